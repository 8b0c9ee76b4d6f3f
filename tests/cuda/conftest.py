"""Which tests of a GPU run, and on what (see `places`).

``pytest -m cuda`` runs all of them where a GPU is, and skips each where none is. The ordinary suite runs those that are
marked ``share``, on a pretended device where no GPU is.
"""

import os
from pathlib import Path

import pytest
from places import Place, here

from attnprobe.machine.environment import TEST_DEVICE

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config, items):
    ordinary = "cuda" not in config.option.markexpr and TEST_DEVICE not in os.environ
    mine = [item for item in items if item.path.is_relative_to(HERE)]
    left = {item for item in mine if ordinary and item.get_closest_marker("share") is None}
    for item in mine:
        item.add_marker(pytest.mark.cuda)
    if left:
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


@pytest.fixture
def place(request):
    """The device, inside of which tensors may be made there."""
    ordinary = "cuda" not in request.config.option.markexpr
    place = here(share=ordinary)
    if isinstance(place, str):
        pytest.skip(place)
    with place.inside():
        yield place


@pytest.fixture
def gpu(place):
    """A GPU itself: nothing stands in for its memory, its streams and its clock."""
    if not place.real:
        pytest.skip("needs a GPU itself")
    return place


@pytest.fixture
def command_place(request):
    """The device of a command, for which the CPU stands in: no option names a pretended one."""
    place = here(share="cuda" not in request.config.option.markexpr)
    if isinstance(place, str):
        pytest.skip(place)
    return place if place.real else Place("cpu")
