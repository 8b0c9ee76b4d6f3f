"""Shell completion of method names, without importing the methods' modules."""

from __future__ import annotations

import os
from typing import Any

import click

from ..environment import LOAD_PLUGINS
from .method_index import INDEX

NAMES = tuple(name for family in INDEX.values() for name in family)


def complete_methods(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """The methods of the project and of installed packages that begin with the typed text, and files.

    What stands before the last comma stays: ``skyformer,nys`` becomes ``skyformer,nystromformer``.
    """
    from click.shell_completion import CompletionItem

    before, comma, last = incomplete.rpartition(",")
    matches = [f"{before}{comma}{name}" for name in sorted({*NAMES, *plugin_names()}) if name.startswith(last)]
    if matches or not last.startswith((".", "/", "~")) and ".py" not in last:
        return [CompletionItem(name) for name in matches]
    return [CompletionItem(incomplete, type="file")]


def plugin_names() -> list[str]:
    """Names of entry points, without importing them."""
    from importlib.metadata import entry_points

    chosen = os.environ.get(LOAD_PLUGINS)
    if chosen is not None and not chosen.strip():
        return []
    names = None if chosen is None else {name.strip() for name in chosen.split(",")}
    return [
        point.name
        for point in entry_points(group="attnprobe.methods")
        if names is None or names & {point.name, point.dist.name if point.dist else ""}
    ]
