"""Every experiment has its parts, and each part is what its name says."""

import pytest

from attnprobe.experiments import EXPERIMENTS, experiment
from attnprobe.experiments.base import Experiment, called, late
from attnprobe.experiments.shapes import shape_of
from attnprobe.run.cells import Cells
from attnprobe.run.topics import Output, RunRequest


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_parts_of_an_experiment_are_there(name):
    one = experiment(name)
    assert isinstance(one, Experiment) and one.name == name and one.summary.endswith(".")
    assert issubclass(one.request, RunRequest) and issubclass(one.output, Output) and issubclass(one.cells(), Cells)
    assert callable(one.measure()) and callable(one.view()) and one.plots and one.examples and one.python
    assert one.cells().command == name and one.request.__doc__


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_has_the_type_of_its_records(name):
    assert shape_of(name) is not None and shape_of(name) is shape_of(name)


def test_other_words_have_no_type():
    assert shape_of("sweep") is None


def test_a_late_name_is_imported_when_it_is_called():
    assert late("base:Experiment")() is Experiment
    assert called("shapes:shape_of")("sweep") is None
    with pytest.raises(ImportError):
        late("nowhere:nothing")()
