"""Environment variables that look like options but are none."""

from __future__ import annotations

import os
from collections.abc import Iterable

import click

from ..environment import OWN, PREFIX, variable
from ..errors import near


def unknown_variables(commands: Iterable[click.Command | None]) -> list[str]:
    """A line for each ``ATTNPROBE_…`` variable that no command and no other part of the program reads."""
    given = [name for name in os.environ if name.startswith(PREFIX) and name not in OWN]
    if not given:
        return []
    written = _written(commands)
    return [_line(name, written) for name in given if written.get(name) != name]


def _written(commands: Iterable[click.Command | None]) -> dict[str, str]:
    """The right variable for one that users may try: ``ATTNPROBE_MATRIX=0`` for ``ATTNPROBE_NO_MATRIX``."""
    written = {name: name for name in OWN}
    params = [param for command in commands if command is not None for param in command.params]
    for option in params:
        if not isinstance(option, click.Option):
            continue
        name = str(option.envvar)
        written |= {variable(flag): f"{name}=0" for flag in option.secondary_opts}
        written[name] = name
    return written


def _line(name: str, written: dict[str, str]) -> str:
    tails = {tried.removeprefix(PREFIX): right for tried, right in written.items()}
    tail = near(name.removeprefix(PREFIX), tails)
    way_out = f"; did you mean {tails[tail]}?" if tail is not None else ""
    return f"{name} is not an option of any command{way_out}"
