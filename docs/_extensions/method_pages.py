"""The reference pages of the methods, as Markdown: an index by family, and a page for each method.

They are made from the registry and the methods' docstrings.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from attnprobe.methods import FAMILIES, by_family

COLUMNS = ("method", "paper", "target", "d means", "cost per head", "random?", "needs V?", "causal?", "compared with")
INTRODUCTION = """# Methods

Each method has a page with its formula, its options, its claims, and the software that the tests compare it with.
`attnprobe methods NAME` prints the same. `--method all` runs all methods without references and kernels. A method that
does not support a setting is a `skipped` row with the reason.

If a paper and its authors' code differ, the page says which one is the default. The other is an option.

- **d means**: the meaning of the budget. **cost per head**: the leading term of multiply-adds.
- **random?**: whether it has random draws. **needs V?**: whether its matrix depends on V.
- **causal?**: whether it has a causal form. A *yardstick* approximates the causal matrix but uses later tokens.
- **compared with**: the reference of the tests, in addition to a slow literal twin.

![Output error of every method at two budgets, on MiniLM, layer 0](../../figures/minilm-layer0-methods.svg)

    attnprobe error --method all,topk,svd,softmax --n 1024 --d 32,128 --model minilm --no-matrix --plot"""


#: of methods whose rows depend on later tokens
OTHER_FORMS = {"causal_target": "yardstick", "prefill": "prefill", "whole_scale": "but for scales"}


def method_pages() -> dict[str, str]:
    """The text of every page by the name of its file; the registry is the only source."""
    return {"index.md": index_page(), **{file_name(entry): method_page(entry) for entry in by_family(kernels=True)}}


def file_name(entry: Any) -> str:
    return entry.name.replace(":", "-") + ".md"


def index_page() -> str:
    """Every method in a table of its family, and the table of contents of the site."""
    entries = by_family(kernels=True)
    lines = [INTRODUCTION]
    for family in FAMILIES:
        members = [entry for entry in entries if entry.family == family]
        if members:
            lines += ["", f"## Family: {family}", "", *_table(COLUMNS, map(_facts, members))]
    contents = [file_name(entry).removesuffix(".md") for entry in entries]
    return "\n".join([*lines, "", "```{toctree}", ":hidden:", "", *contents, "```"]) + "\n"


def _facts(entry: Any) -> tuple[str, ...]:
    """A method's row of the index."""
    causal = next((word for tag, word in OTHER_FORMS.items() if tag in entry.tags), "no")
    return (
        f"[`{entry.name}`]({file_name(entry)})",
        f"{entry.paper} ({entry.year})",
        ", ".join(entry.targets),
        entry.budget or "–",
        entry.cost,
        "no" if "deterministic" in entry.tags else "yes",
        "yes" if "uses_values" in entry.tags else "no",
        "yes" if entry.is_causal else causal,
        entry.oracle,
    )


def method_page(entry: Any) -> str:
    """One method: its facts, its docstring, a table of its options, its errors and its claims."""
    facts = [
        ("paper", entry.source),
        ("family", f"{entry.family}, kind {entry.kind}"),
        ("targets", ", ".join(entry.targets)),
        ("budget d", entry.budget or "none: d is ignored"),
        ("cost", f"{entry.cost} multiply-adds per head"),
        ("compared with", entry.oracle if entry.family == "kernel" else f"its literal twin; {entry.oracle}"),
    ]
    body, sections = _sections(inspect.getdoc(entry.function) or "")
    lines = [f"# {entry.name}", "", *_table(("", ""), facts), "", body]
    if entry.options:
        lines += ["", "## Options", "", f"`--method {entry.name}:OPTION=VALUE,…`", "", *_options(entry, sections)]
    lines += ["", "## Claims", "", *(f"- {claim}" for claim in entry.claimed())]
    if "Raises" in sections:
        lines += ["", "## Errors", "", " ".join(sections["Raises"].split())]
    return "\n".join(lines) + "\n"


def _options(entry: Any, sections: dict[str, str]) -> Iterator[str]:
    """The table of a method's options: default, allowed values, and the text of its docstring."""
    meanings = dict(_entries(sections.get("Options", "")))
    rows = [
        (f"`{name}`", f"`{option.default_text}`", option.describe(), meanings.get(name, ""))
        for name, option in entry.options.items()
    ]
    return _table(("option", "default", "values", "meaning"), rows)


def _entries(section: str) -> Iterator[tuple[str, str]]:
    """``(name, text)`` of each ``name: text`` of a section; indented lines continue the text."""
    for part in re.split(r"\n(?=\S)", section):
        name, _, text = part.partition(":")
        for one in name.split(","):
            yield one.strip(), " ".join(text.split())


def _sections(docstring: str) -> tuple[str, dict[str, str]]:
    """A docstring as Markdown without ``Options:`` and ``Raises:``, and the texts of these two sections."""
    sections: dict[str, str] = {}

    def take(match: re.Match[str]) -> str:
        sections[match[1]] = textwrap.dedent(match[2]).strip().replace("``", "`")
        return ""

    text = re.sub(r"^(Options|Raises):\n((?:    .*\n|\n)*)", take, docstring + "\n", flags=re.M).replace("``", "`")
    text = re.sub(r"^>>> (?:.+\n)+", lambda example: f"```pycon\n{example[0]}```\n", text, flags=re.M)
    return re.sub(r"\n{3,}", "\n\n", text).strip(), sections


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    headings = list(headings)
    yield f"| {' | '.join(headings)} |"
    yield "| --- " * len(headings) + "|"
    for row in rows:
        cells = [cell.replace("|", "\\|") for cell in row]
        yield f"| {' | '.join(cells)} |"
