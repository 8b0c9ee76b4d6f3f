"""Every experiment has its parts, and each part is what its name says."""

import json
import shlex

import pytest
from paths import GOLDEN

from attnprobe.cli.factory import measuring_command
from attnprobe.errors import UsageError
from attnprobe.experiments import EXPERIMENTS, experiment, shape_of
from attnprobe.experiments.base import Experiment
from attnprobe.run.cells import Cells
from attnprobe.run.option import KEYS, options_of
from attnprobe.run.topics.running import RunRequest
from attnprobe.run.topics.showing import Output


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_parts_of_an_experiment_are_there(name):
    one = experiment(name)
    assert isinstance(one, Experiment) and one.name == name and one.summary.endswith(".")
    assert issubclass(one.request, RunRequest) and issubclass(one.output, Output) and issubclass(one.cells, Cells)
    assert one.plots and one.examples and one.python and one.cells.command == name and one.request.__doc__


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_has_the_type_of_its_records(name):
    assert shape_of(name) is not None and shape_of(name) is shape_of(name)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_command_line_of_a_run_gives_the_same_request(name):
    config = json.loads((GOLDEN / "runs" / name / "manifest.json").read_text())["config"]
    words = shlex.split(experiment(name).command_line(config))
    assert words[:2] == ["attnprobe", name]
    context = measuring_command(experiment(name)).make_context(name, words[2:])
    for option in options_of(experiment(name).request):
        if option.role == KEYS and option.name in config:
            value = config[option.name]["value"]
            given = tuple(value) if isinstance(value, list) else value
            assert context.params[option.name] == option.text(given), option.name


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_command_takes_plot_none(name):
    """It draws no figure, and a method named behind it is still a method."""
    words = ["--plot", "none", *(() if name == "spectrum" else ("performer",))]
    context = measuring_command(experiment(name)).make_context(name, words)
    assert not context.params.get("plot") and context.params.get("plots", ("none",)) == ("none",)
    assert context.params.get("methods", ("performer",)) == ("performer",)


def test_other_words_have_no_type():
    assert shape_of("sweep") is None


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_part_of_an_experiment_stands_under_its_usual_name(name):
    one = experiment(name)
    assert callable(one.part("view:view")) and one.columns and one.fields and shape_of(name) is one.part("record:SHAPE")
    listed = any(option.name == "listing" for option in options_of(one.output))
    assert not listed or callable(one.part("setting:list_all"))
    assert not one.timed or callable(one.part("view:timed_rows"))
    with pytest.raises(UsageError, match="keeps no pictures"):
        one.measure(None, pictures=True)
