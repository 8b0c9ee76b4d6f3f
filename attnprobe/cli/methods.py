"""``attnprobe methods``."""

from __future__ import annotations

import click

from .options import debug_option, format_option

EPILOG = """\b
In Python:
  from attnprobe.methods import METHODS
  METHODS["skyformer"].options"""


@click.command("methods", epilog=EPILOG)
@click.argument("name", required=False)
@format_option
@debug_option
def command(name: str | None, format_: str, debug: bool) -> None:
    """List the methods: name, paper, targets, what the budget d means, cost and tags. With NAME, explain one."""
    from ..errors import unknown
    from ..methods import METHODS, get
    from ..report import FORMATS, Header, render

    if format_ not in FORMATS:
        raise unknown("format", format_, FORMATS)
    if name is not None and format_ == "table":
        click.echo(get(name).explain())
        return
    entries = METHODS.values() if name is None else [get(name)]
    rows = [entry.row() for entry in entries]
    if format_ == "table":
        rows = [{**row, "options": len(row["options"])} for row in rows]
    click.echo(render(rows, [], Header(), format_, None, command="methods"))
