"""``attnprobe methods``."""

from __future__ import annotations

from typing import Any

import click

from .completion import complete_methods
from .options import debug_option, format_option, refuse_unknown_format

EPILOG = """\b
In Python:
  from attnprobe.methods import METHODS
  METHODS["skyformer"].options"""


@click.command("methods", epilog=EPILOG)
@click.argument("name", required=False, shell_complete=complete_methods)
@click.option("--pages", is_flag=True, help="Every built-in method's page, as Markdown: docs/reference/methods.md.")
@format_option
@debug_option
def command(name: str | None, pages: bool, format_: str, debug: bool) -> None:
    """List the methods: name, paper, targets, what the budget d means, cost and tags. With NAME, explain one."""
    from ..errors import UsageError
    from ..methods import by_family, get
    from ..methods.user import plugins
    from ..tables.view import flat_view
    from .streams import answer, note

    refuse_unknown_format(format_)
    if pages and (name is not None or format_ not in ("table", "md")):
        raise UsageError("--pages shows every method, as Markdown; drop the name and --format")
    if pages:
        answer(methods_page())
        return
    entries = [get(name)] if name is not None else by_family(kernels=True)
    if name is None:
        others, lines = plugins.every()
        entries += others
        for line in lines:
            note(line)
    if format_ == "table":
        answer("\n\n".join(entry.card() if name is None else entry.explain() for entry in entries))
        return
    rows = [entry.row() for entry in entries]
    if format_ in ("md", "latex", "csv"):
        rows = [_for_people(row) for row in rows]
    answer(flat_view("methods", rows).text(format_))


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


def methods_page() -> str:
    """docs/reference/methods.md, from the registry: tables, then each page as ``attnprobe methods NAME`` shows it."""
    from ..methods import FAMILIES, KERNELS, by_family

    entries = by_family(kernels=True)
    lines = [
        "# Methods and kernels",
        "",
        "Made by `attnprobe methods --pages` from what the methods themselves say. "
        "Each page is that of `attnprobe methods NAME`.",
        "",
        readme_table(),
        "",
        "Kernels are exact attention by other means (see [kernels.md](../guide/kernels.md)):",
        "",
        _table(list(KERNELS.values())),
    ]
    for family in FAMILIES:
        here = [entry for entry in entries if entry.family == family]
        if here:
            lines += ["", f"## Family: {family}"]
        for entry in here:
            lines += ["", f"### `{entry.name}`", "", "```text", entry.explain(), "```"]
    return "\n".join(lines)


def readme_table() -> str:
    """The method table of the README, from the registry."""
    from ..methods import by_family

    return _table(by_family())


def _table(entries: list[Any]) -> str:
    names = ("method", "paper", "family", "target", "d means", "cost per head", "random?", "needs V?", "causal?")
    names += ("oracle",)
    lines = [f"| {' | '.join(names)} |", "| --- " * len(names) + "|"]
    for entry in entries:
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
