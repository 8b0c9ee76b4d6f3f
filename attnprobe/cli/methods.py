"""``attnprobe methods``."""

from __future__ import annotations

from typing import Any

import click

from .completion import complete_methods
from .options import debug_option, format_option

EPILOG = """\b
In Python:
  from attnprobe.methods import METHODS
  METHODS["skyformer"].options"""


@click.command("methods", epilog=EPILOG)
@click.argument("name", required=False, shell_complete=complete_methods)
@format_option
@debug_option
def command(name: str | None, format_: str, debug: bool) -> None:
    """List the methods: name, paper, targets, what the budget d means, cost and tags. With NAME, explain one."""
    from ..errors import unknown
    from ..methods import by_family, get, plugins
    from ..report import FORMATS, Header, render
    from .progress import note

    if format_ not in FORMATS:
        raise unknown("format", format_, FORMATS)
    entries = [get(name)] if name is not None else by_family(kernels=True)
    if name is None:
        others, lines = plugins.every()
        entries += others
        for line in lines:
            note(line)
    if format_ == "table":
        click.echo("\n\n".join(entry.card() if name is None else entry.explain() for entry in entries))
        return
    rows = [entry.row() for entry in entries]
    if format_ in ("md", "latex", "csv"):
        rows = [_for_people(row) for row in rows]
    click.echo(render(rows, [], Header(), format_, None, command="methods"))


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its lists as words."""
    return {
        "name": row["name"],
        "kind": row["kind"],
        "paper": f"{row['paper']} ({row['year']})" if row["year"] else row["paper"],
        "target": ", ".join(row["targets"]),
        "budget d": row["budget"] or "–",
        "cost": row["cost"],
        "tags": ", ".join(tag.replace("_", " ").replace("@", " for ") for tag in row["tags"]),
        "options": ", ".join(row["options"]) or "–",
    }


def readme_table() -> str:
    """The method table of the README, from the registry."""
    from ..methods import by_family

    names = ("method", "paper", "family", "target", "d means", "cost per head", "random?", "needs V?", "causal?")
    names += ("oracle",)
    lines = [f"| {' | '.join(names)} |", "| --- " * len(names) + "|"]
    for entry in by_family():
        cells = (
            f"`{entry.name}`",
            f"{entry.paper} ({entry.year})",
            entry.family,
            ", ".join(entry.targets),
            entry.budget or "–",
            entry.cost,
            "no" if "deterministic" in entry.tags else "yes",
            "yes" if "uses_values" in entry.tags else "no",
            "yes" if entry.is_causal else "yardstick" if "causal_target" in entry.tags else "no",
            entry.oracle,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
