"""``attnprobe methods`` and ``attnprobe new-method``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .options import debug_option, format_option

if TYPE_CHECKING:
    from ..methods import Method

METHODS_EPILOG = """\b
In Python:
  from attnprobe.methods import METHODS
  METHODS["skyformer"].options"""


@click.command("methods", epilog=METHODS_EPILOG)
@click.argument("name", required=False)
@click.option("--long", is_flag=True, help="Also list targets, the meaning of the budget d, cost and tags.")
@format_option
@debug_option
def methods(name: str | None, long: bool, format_: str, debug: bool) -> None:
    """List the methods by family, one per line. With NAME, explain one method.

    --format other than table prints all facts of each method.
    """
    from ..show.formats import check_format
    from .streams import answer

    check_format(format_)  # before torch is imported
    from ..machine.environment import plugins
    from ..methods import by_family, get
    from ..methods.lookup import installed
    from ..show.listing import listing
    from ..show.shown import stdout_width
    from .streams import note

    entries = [get(name)] if name is not None else by_family(kernels=True)
    if name is None and format_ == "table" and not long:
        return answer(_listed(entries, [*plugins()]))  # names alone: packages need not be imported
    if name is None:
        others, lines = installed()
        entries += others
        for line in lines:
            note(line)
    if format_ == "table":
        width = stdout_width(piped=80)
        answer("\n\n".join(entry.card() if name is None else entry.explain(width) for entry in entries))
        return
    facts = [entry.row() for entry in entries]
    if format_ in ("md", "latex", "csv"):
        # these formats have cells of text; JSON has lists
        facts = [_for_people(method) for method in facts]
    answer(listing("methods", facts, format_))


def _listed(methods: Sequence[Method], installed: Sequence[str]) -> str:
    """The methods by family, then those of installed packages, a line each."""
    width = max(len(method.name) for method in methods) + 2
    parts: dict[str, list[str]] = {}
    for method in methods:
        parts.setdefault(method.family, []).append(f"  {method.name:{width}}{method.paper} ({method.year})")
    if installed:
        parts["of installed packages"] = [f"  {name}" for name in installed]
    text = "\n\n".join("\n".join([family, *lines]) for family, lines in parts.items())
    return f"{text}\n\nattnprobe methods NAME explains a method; --long lists targets, budgets, costs and tags."


def _for_people(method: dict[str, Any]) -> dict[str, Any]:
    """The facts of a method, with lists as text."""
    return {
        "name": method["name"],
        "kind": method["kind"],
        "paper": f"{method['paper']} ({method['year']})" if method["year"] else method["paper"],
        "target": ", ".join(method["targets"]),
        "budget d": method["budget"] or "–",
        "cost": method["cost"],
        "tags": ", ".join(tag.replace("_", " ").replace("@", " for ") for tag in method["tags"]),
        "options": ", ".join(method["options"]) or "–",
    }


NEW_METHOD_EPILOG = """\b
In Python:
  from attnprobe.methods.user.scaffold import write_method
  write_method("mine", "methods")
\b
Exit codes: 0 written, 2 an impossible name, or a file that exists already."""


@click.command("new-method", epilog=NEW_METHOD_EPILOG)
@click.argument("name", metavar="NAME")
@click.option("--out", default=".", show_default=True, metavar="DIR", help="The folder for the files.")
@debug_option
def new_method(name: str, out: str, debug: bool) -> None:
    """Write NAME.py, a method that works, also in a language model, and test_NAME.py, its test. Replace it by your own.

    Prints the next commands: measure, check and test it. Existing files are never overwritten.
    """
    from shlex import quote

    from ..methods.user.scaffold import write_method
    from .streams import answer, echo

    method, test = write_method(name, out)
    shown = quote(f"{method if method.is_absolute() else f'./{method}'}:{name}")
    answer(f"{method}\n{test}")
    for line in (f"attnprobe error --method {shown} --d 16,32,64 --plot", f"attnprobe check {shown}", f"pytest {test}"):
        echo(f"  {line}", err=True)
