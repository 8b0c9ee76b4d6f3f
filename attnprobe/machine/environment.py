"""The environment variables that the library reads. Every other ``ATTNPROBE_…`` is the value of an option."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PREFIX = "ATTNPROBE_"
CACHE_DIR = "ATTNPROBE_CACHE_DIR"
CACHE_SIZE = "ATTNPROBE_CACHE_SIZE"
LOAD_PLUGINS = "ATTNPROBE_LOAD_PLUGINS"
TEST_DEVICE = "ATTNPROBE_TEST_DEVICE"  # of the project's own tests
OWN = (CACHE_DIR, CACHE_SIZE, LOAD_PLUGINS, TEST_DEVICE)


def variable(flag: str) -> str:
    """The variable of an option.

    >>> variable("--scale-inputs")
    'ATTNPROBE_SCALE_INPUTS'
    """
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def plugins() -> dict[str, EntryPoint]:
    """The installed entry points of methods that ``ATTNPROBE_LOAD_PLUGINS`` allows, by name. Nothing is imported."""
    from importlib.metadata import entry_points

    allowed = os.environ.get(LOAD_PLUGINS)
    if allowed is not None and not allowed.strip():
        return {}
    # unset allows every plug-in; set but empty, none (above)
    names = None if allowed is None else {name.strip() for name in allowed.split(",")}
    # sorted, so that of two packages with one name the same one wins on every machine
    points = sorted(entry_points(group="attnprobe.methods"), key=lambda point: (point.name, point.value))
    return {
        point.name: point
        for point in points
        # a user knows a plug-in by its method or by the package that pip installed
        if names is None or names & {point.name, point.dist.name if point.dist else ""}
    }
