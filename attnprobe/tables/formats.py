"""Tables as Markdown and LaTeX, and rows as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence

from ..grammar.foreign import one_line
from ..records.file import spelt, strict_json
from .console import Header
from .numbers import significant
from .rows import AnyRow
from .table import Table

__all__ = ["csv_of", "flattened", "latex", "markdown", "rows_as_table"]

# what begins a link, a picture, HTML, an entity or emphasis; brackets alone, as of intervals, begin none
MARKDOWN = re.compile(r"[\\|*_~<`]|(?<=!)\[|\](?=[(\[:])|&(?=[#\w]+;)")
FORMULA = tuple("=+-@＝＋－＠")

LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": r"\textbar{}",
    "[": "{[}",
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "‖": r"$\|$",
    "₂": "$_2$",
    "²": "$^2$",
    "σ": r"$\sigma$",
    "λ": r"$\lambda$",
    "Σ": r"$\Sigma$",
    "ε": r"$\varepsilon$",
    "₁": r"$_1$",
    "δ": r"$\delta$",
    "·": r"$\cdot$",
    "✗": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "³": "$^3$",
    "≈": r"$\approx$",
    "√": r"$\surd$",
    "∞": r"$\infty$",
    "●": r"$\bullet$",
    "γ": r"$\gamma$",
    "ρ": r"$\rho$",
    "ᵀ": r"$^\top$",
    "Ā": r"$\bar{A}$",
    "⪯": r"$\preceq$",
    "β": r"$\beta$",
    "η": r"$\eta$",
}


def flattened(row: AnyRow) -> dict[str, object]:
    """A row without nesting: ``metrics`` as ``NAME.STAT``, ``over_vmean.NAME``; lists and options as JSON.

    >>> flattened({"d": 2, "options": {"r": 1}, "metrics": {"x": {"mean": 0.5}}})
    {'d': 2, 'options': '{"r":1}', 'x.mean': 0.5}
    """
    flat: dict[str, object] = {}
    for name, value in row.items():
        if name == "metrics" and isinstance(value, Mapping):
            flat.update({f"{metric}.{stat}": x for metric, stats in value.items() for stat, x in stats.items()})
        elif name == "over_vmean" and isinstance(value, Mapping):
            flat.update({f"{name}.{metric}": x for metric, x in value.items()})
        elif isinstance(value, (Mapping, list, tuple)):
            flat[name] = strict_json(spelt(value))
        else:
            flat[name] = value
    return flat


def csv_of(rows: Sequence[AnyRow]) -> str:
    """A line for each row, with a column for each field of any of them."""
    flat = [{_csv_cell(name): _csv_cell(value) for name, value in flattened(row).items()} for row in rows]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in flat for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return file.getvalue().rstrip("\n")


def _csv_cell(value: object) -> object:
    """A cell that no spreadsheet takes for a formula: an apostrophe stands before text that begins like one.

    >>> _csv_cell("=1+1"), _csv_cell("-inf"), _csv_cell(-0.5), _csv_cell("skyformer")
    ("'=1+1", '-inf', -0.5, 'skyformer')
    """
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.lstrip().startswith(FORMULA) and text not in ("inf", "-inf") else text


def rows_as_table(caption: str, rows: Sequence[AnyRow]) -> Table:
    """Any rows as a table with a column for each field."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return Table(caption, names, [[_text(row.get(name)) for name in names] for row in rows])


def _text(value: object) -> str:
    """A value for people.

    >>> [_text(value) for value in (None, True, 0.123456, {"a": 1}, ["x", "y"], [0, 1, 2, 3], [0, 1, 2, 3, 4])]
    ['', 'yes', '0.1235', 'a=1', 'x, y', '0, 1, 2, 3', '0, 1, 2, 3, … (5 values)']
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return significant(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        if len(value) > 4 and not isinstance(value[0], str):
            return f"{', '.join(_text(item) for item in value[:4])}, … ({len(value)} values)"
        return ", ".join(_text(item) for item in value)
    return str(value)


def markdown(tables: Sequence[Table], told: str, header: Header, run: str | None) -> str:
    """Tables and their legend as Markdown."""
    escape = lambda text: MARKDOWN.sub(r"\\\g<0>", one_line(text))
    lines = [f"- {escape(line)}" for line in header.facts]
    lines += [f"- **Warning: {escape(line)}**" for line in header.warnings]
    lines += [f"- {escape(line)}" for line in header.measured]
    for table in tables:
        lines += ["", f"**{escape(table.caption)}**", ""]
        lines.append(f"| {' | '.join(map(escape, table.headings))} |")
        lines.append(f"| {' | '.join({'l': '---', 'r': '---:'}[side] for side in table.sides)} |")
        lines += [f"| {' | '.join(map(escape, line))} |" for line in table.lines]
        if table.notes:
            lines += ["", *(f"- {escape(note)}" for note in table.notes)]
    if told:
        lines += ["", escape(told)]
    if run is not None:
        lines += ["", f"Run: {escape(run)}"]
    return "\n".join(lines).strip("\n")


def latex(tables: Sequence[Table], told: str, header: Header, run: str | None) -> str:
    """Tables and their legend as LaTeX."""
    lines = [r"% needs \usepackage{booktabs}"]
    if run is not None:
        lines.append(f"% run: {one_line(run)}")
    for table in tables:
        facts = [table.caption, *header.facts, *(f"Warning: {line}" for line in header.warnings)]
        lines += [
            r"\begin{table}",
            r"\centering\scriptsize",
            rf"\caption{{{_tex('. '.join(fact.rstrip('.') for fact in facts))}.}}",
            rf"\begin{{tabular}}{{{''.join(table.sides)}}}",
            r"\toprule",
            f"{' & '.join(map(_tex, table.headings))} \\\\",
            r"\midrule",
            *(f"{' & '.join(map(_tex, line))} \\\\" for line in table.lines),
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par {_tex(text)}" for text in [*table.notes, told] if text),
            r"\end{table}",
        ]
    return "\n".join(lines)


def _tex(text: str) -> str:
    """``text`` with LaTeX's special characters escaped and the symbols of our headings as mathematics.

    >>> print(_tex("50% of a_b & ‖BV‖₂"))
    50\\% of a\\_b \\& $\\|$BV$\\|_2$
    >>> print(_tex("SᵀC̄S ≥ −∞"))
    S$^\\top\\bar{C}$S $\\geq$ $-\\infty$
    """
    bound = "σ_{d+1}(BV)"  # the one formula of the legend
    if bound in text:
        return r"$\sigma_{d+1}(BV)$".join(map(_tex, text.split(bound)))
    escaped = "".join(LATEX.get(character, character) for character in one_line(text))
    escaped = re.sub("([A-Za-z])\u0304", r"$\\bar{\1}$", escaped)
    return re.sub(r"(?<!\\)\$\$", "", escaped).replace(r"$\|$F", r"$\|_F$")
