"""Requests: typed fields that are the options of commands, of files and of Python alike."""

import re
from dataclasses import fields, replace
from pathlib import Path

import click
import pytest

from attnprobe.cli import cli
from attnprobe.cli.sweep import settings_of
from attnprobe.errors import UsageError
from attnprobe.inputs import SourceSpec
from attnprobe.measure import EXPERIMENTS, experiment
from attnprobe.measure.budget import BudgetRequest
from attnprobe.measure.error import ErrorRequest
from attnprobe.measure.stability import StabilityRequest
from attnprobe.run.option import GROUPS, built, options_of
from attnprobe.run.sweeps.yaml_file import read_config

pytestmark = pytest.mark.quick


def every_option():
    return [
        pytest.param(option, id=f"{name} {option.long}")
        for name in EXPERIMENTS
        for form in (experiment(name).request, experiment(name).output)
        for option in options_of(form)
    ]


def test_sequences_become_tuples_and_words_stay():
    request = ErrorRequest(n=[512, 1024], d=(64, 128), layer=range(3), head="all", scale_inputs=(2, 0.5))
    assert request.n == (512, 1024) and request.layer == (0, 1, 2) and request.head == "all"
    assert request.scale_inputs == (0.5, 2.0)
    assert ErrorRequest(layer="all").layer == "all" and StabilityRequest(n=64).n == 64


def test_spaces_around_a_word_or_a_list_do_not_matter():
    layer = next(option for option in options_of(ErrorRequest) if option.name == "layer")
    assert layer.value(" all ", "--layer") == layer.value("all", "--layer") == "all"
    assert layer.value(" 0, 2 ", "--layer") == (0, 2)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"n": "512"}, "n='512': a tuple is needed, such as ('512',)"),
        ({"n": 512}, "n=512: a tuple is needed, such as (512,)"),
        ({"n": (64, 1)}, "n=1: attention needs at least 2 tokens"),
        ({"d": (-1,)}, "d: -1 is below 1"),
        ({"d": (1.5,)}, "d: '1.5' is not a whole number"),
        ({"layer": "none"}, "layer='none': a tuple is needed"),
        ({"scale_inputs": (0,)}, "scale-inputs: '0' is not a number above 0"),
        ({"windows": 0}, "windows=0: choose a number from 1 to 100000"),
        ({"windows": "3"}, "windows='3'; a whole number is needed"),
        ({"repeats": True}, "repeats=True; a whole number is needed"),
        ({"tol": float("nan")}, "tol=nan: choose a relative width above 0 and below 1"),
        ({"row_tolerance": 1.0}, "row-tolerance=1: choose a relative error above 0 and below 1"),
        ({"target": "sofmax"}, "unknown target 'sofmax'; did you mean 'softmax'?"),
        ({"methods": ("vmean", len)}, 'methods: len is a function; write its file and its name, "./mine.py:len"'),
        ({"methods": len}, 'methods: len is a function; write its file and its name, "./mine.py:len"'),
        ({"weights": ("pretrained", "")}, "weights 'pretrained,': an empty word"),
    ],
)
def test_an_impossible_value_is_refused_where_a_request_is_made(values, says):
    with pytest.raises(UsageError) as refused:
        ErrorRequest(**values)
    assert str(refused.value).startswith(says)
    with pytest.raises(UsageError):
        replace(ErrorRequest(), **values)


@pytest.mark.parametrize("option", every_option())
def test_the_text_of_a_default_is_the_default(option):
    text = option.text(option.default)
    if option.repeatable:
        assert ",".join(text) == ",".join(option.default)
    else:
        assert option.value(text, option.long) == option.default
        assert option.checked(option.default) == option.default
    assert option.group in GROUPS and option.help.endswith((".", "]"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_the_command_line_gives_makes_the_default_request(name):
    command = cli.get_command(None, name)
    made = built(experiment(name).request, command.make_context(name, []).params, lambda option: option.long)
    expected = experiment(name).request()
    for option in options_of(experiment(name).request):
        value = getattr(made, option.name)
        assert (tuple(",".join(value).split(",")) if option.repeatable else value) == getattr(expected, option.name)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_source_has_the_same_defaults_by_itself(name):
    source = experiment(name).request().source
    assert source == SourceSpec()


def test_a_source_has_what_its_request_says():
    source = BudgetRequest(qkv=Path("q.safetensors"), device="cpu", dtype="float64", strict=True).source
    assert source == SourceSpec(qkv="q.safetensors", device="cpu", dtype="float64", strict=True)
    assert ErrorRequest(weights=("initialized", "pretrained"), weights_seed=3).source.weights == "initialized"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_file_gives_a_list_of_weights_where_the_option_takes_several(name, tmp_path):
    options = {option.name: option for option in options_of(experiment(name).request)}
    path = tmp_path / "c.yaml"
    path.write_text(f"command: {name}\nweights: [pretrained, initialized]\n")
    if name in ("error", "spectrum", "theory", "inject", "audit", "rounding"):
        values = read_config(path, settings_of).values
        request = built(experiment(name).request, values, lambda option: option.long)
        assert request.weights == ("pretrained", "initialized")
    else:
        assert "weights" not in options or options["weights"].kind is str
        with pytest.raises(UsageError, match="takes one value|unknown key"):
            read_config(path, settings_of)


def test_plural_and_alias_are_keys_of_a_file():
    settings = settings_of("error")
    assert settings["methods"] is settings["method"] and settings["figures"].name == "plots"
    assert settings["no-matrix"] is settings["matrix"] and "debug" not in settings
    assert "list" not in settings_of("theory")
    with pytest.raises(UsageError, match="unknown command 'report'; choose from error, spectrum"):
        settings_of("report")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_help_has_its_options_by_group(name):
    command = cli.get_command(None, name)
    text = command.get_help(click.Context(command, info_name=name, **command.context_settings))
    actual = [group for group in GROUPS if f"\n{group}:\n" in text]
    assert [text.index(f"\n{group}:\n") for group in actual] == sorted(text.index(f"\n{group}:\n") for group in actual)
    assert len(actual) >= 5


def test_no_option_of_a_command_is_declared_twice():
    for name in EXPERIMENTS:
        one = experiment(name)
        names = [option.name for form in (one.request, one.output) for option in options_of(form)]
        assert len(names) == len(set(names))
        assert {field.name for field in fields(one.request)} - set(names) == {"base", "origin"}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"matrix": "no"}, "matrix='no'; True or False is needed"),
        ({"matrix": 1}, "matrix=1; True or False is needed"),
        ({"seed": 1.5}, "seed=1.5; a whole number is needed"),
        ({"windows": True}, "windows=True; a whole number is needed"),
        ({"tol": "small"}, "tol='small'; a number is needed"),
        ({"model": 3}, "model=3; text is needed"),
        ({"methods": (3,)}, "text is needed"),
    ],
)
def test_a_value_of_another_type_is_refused_where_the_request_is_made(wrong, says):
    from attnprobe.measure.error import ErrorRequest

    with pytest.raises(UsageError, match=re.escape(says)):
        ErrorRequest(**wrong)
