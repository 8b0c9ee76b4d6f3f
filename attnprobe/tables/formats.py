"""One door to every output format: ``table | json | jsonl | csv | md | latex``."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..compare.view import comparison_legend, comparison_tables
from ..errors import unknown
from ..experiments.budget.view import BUDGET_SPARE, budget_legend, budget_summary, budget_tables
from ..experiments.error.kernels_view import KERNEL_SPARE, kernel_legend, kernel_tables
from ..experiments.inject.view import INJECT_SPARE, inject_legend, inject_summary, inject_tables
from ..experiments.spectrum.view import spectrum_legend, spectrum_tables
from ..experiments.theory.view import SPARE, theory_legend, theory_summary, theory_tables
from ..grammar.foreign import one_line
from ..records.file import SCHEMA, spelt, strict_json
from .columns import columns_of, grouped, legend, mark, notes
from .console import Header
from .inputs import INPUTS_LEGEND, input_tables
from .terminal import error_tables, flat_table, plain_tables

__all__ = ["FORMATS", "Plain", "latex", "markdown", "render", "tables_of"]

FORMATS = ("table", "json", "jsonl", "csv", "md", "latex")
# what begins a link, a picture, HTML, an entity or emphasis; brackets alone, as of intervals, begin none
MARKDOWN = re.compile(r"[\\|*_~<`]|(?<=!)\[|\](?=[(\[:])|&(?=[#\w]+;)")
FORMULA = tuple("=+-@＝＋－＠")
Row = Mapping[str, Any]

SUMMARISED = {  # rows per head, tables of their summary
    "theory": (theory_summary, theory_tables, theory_legend),
    "budget": (budget_summary, budget_tables, budget_legend),
}
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

# columns that a narrow terminal goes without, by command
SPARES = {"theory": SPARE, "budget": BUDGET_SPARE, "inject": INJECT_SPARE}
# what stands beside the rows in JSON, by command
SUMMARIES = {**{name: made[0] for name, made in SUMMARISED.items()}, "inject": inject_summary}


def render(
    rows: Sequence[Row],
    bounds: Sequence[Row],
    header: Header,
    format: str,
    run: str | None,
    command: str = "error",
    width: int | None = None,
) -> str:
    """The rows of a command as text, without a final newline.

    ``json`` is the one object of the contract; ``jsonl`` and ``csv`` are one line per row, the bounds last (their
    method is ``lower-bound``), at full precision, infinity as the text ``"inf"`` and NaN as null; ``table``, ``md``
    and ``latex`` round to three or four digits.

    Args:
        header: the source and its warnings; see `Header`.
        format: one of `FORMATS`.
        run: the run's directory, or ``None``.
        width: the terminal's width, for ``table``; ``None`` asks standard output.

    Raises:
        UsageError: an unknown format.
    """
    if format == "json":
        whole = {
            "schema": SCHEMA,
            "command": command,
            "source": header.source,
            "rows": rows,
            "bounds": bounds,
            "run": run,
        }
        if header.inputs:
            whole["inputs"] = header.inputs
        if command in SUMMARIES:
            whole["summary"] = SUMMARIES[command](rows)
        return strict_json(spelt(whole), indent=2)
    if format == "jsonl":
        return "\n".join(strict_json(spelt(row)) for row in [*rows, *bounds])
    if format == "csv":
        return _csv([*rows, *bounds])
    if format == "table" and command in ("spectrum", "compare", "inject", *SUMMARISED):
        tables, told = tables_of(rows, bounds, command)
        parts = [(one.caption, one.headings, one.lines, one.notes) for one in tables]
        return plain_tables(parts, told, header, run, width, SPARES.get(command, ()))
    if format == "table":
        return _errors(rows, bounds, header, run, width) if command == "error" else flat_table(rows, header, run, width)
    if format == "md":
        return markdown(*tables_of(rows, bounds, command), header, run)
    if format == "latex":
        return latex(*tables_of(rows, bounds, command), header, run)
    raise unknown("format", format, FORMATS)


def _errors(rows: Sequence[Row], bounds: Sequence[Row], header: Header, run: str | None, width: int | None) -> str:
    """The tables of `error`, and beneath them those of kernels."""
    kernels = kernel_tables(rows)
    if not kernels:
        return error_tables(rows, bounds, header, run, width)
    above = error_tables(rows, bounds, header, None, width)
    return f"{above}\n{plain_tables(kernels, kernel_legend(kernels), Header(), run, width, KERNEL_SPARE)}"


def flattened(row: Row) -> dict[str, Any]:
    """A row without nesting: ``metrics`` as ``NAME.STAT``, ``over_vmean.NAME``; lists and options as JSON.

    >>> flattened({"d": 2, "options": {"r": 1}, "metrics": {"x": {"mean": 0.5}}})
    {'d': 2, 'options': '{"r":1}', 'x.mean': 0.5}
    """
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name == "metrics":
            flat.update({f"{metric}.{stat}": x for metric, stats in value.items() for stat, x in stats.items()})
        elif name == "over_vmean":
            flat.update({f"{name}.{metric}": x for metric, x in value.items()})
        elif isinstance(value, (Mapping, list, tuple)):
            flat[name] = strict_json(spelt(value))
        else:
            flat[name] = value
    return flat


def _csv(rows: Sequence[Row]) -> str:
    flat = [{_csv_cell(name): _csv_cell(value) for name, value in flattened(row).items()} for row in rows]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in flat for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return file.getvalue().rstrip("\n")


def _csv_cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: an apostrophe stands before text that begins like one.

    >>> _csv_cell("=1+1"), _csv_cell("-inf"), _csv_cell(-0.5), _csv_cell("skyformer")
    ("'=1+1", '-inf', -0.5, 'skyformer')
    """
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.lstrip().startswith(FORMULA) and text not in ("inf", "-inf") else text


@dataclass(frozen=True)
class Plain:
    """A table as strings: what Markdown and LaTeX have in common."""

    caption: str
    headings: list[str]
    lines: list[list[str]]
    notes: list[str]

    @property
    def sides(self) -> list[str]:
        """``l`` for the first column and every one that holds a word, ``r`` for numbers."""
        wordy = [any(line[i][:1].isalpha() for line in self.lines) for i in range(len(self.headings))]
        return ["l" if word or index == 0 else "r" for index, word in enumerate(wordy)]


def tables_of(rows: Sequence[Row], bounds: Sequence[Row], command: str) -> tuple[list[Plain], str]:
    """The tables of a command and the legend beneath them."""
    if command == "spectrum":
        return [Plain(*table) for table in spectrum_tables(rows)], spectrum_legend(rows) if rows else ""
    if command == "inputs":
        return [Plain(*table) for table in input_tables(rows)], INPUTS_LEGEND if rows else ""
    if command == "compare":
        return [Plain(*table) for table in comparison_tables(rows)], comparison_legend(rows)
    if command in SUMMARISED:
        summary_of, tables_for, legend_of = SUMMARISED[command]
        tables = tables_for(summary_of(rows))
        return [Plain(*table) for table in tables], legend_of(tables)
    if command == "inject":
        return [Plain(*table) for table in inject_tables(rows)], inject_legend(rows)
    if command != "error":
        flat = [flattened(row) for row in rows]
        names = list(dict.fromkeys(name for row in flat for name in row))
        lines = [["" if row.get(name) is None else str(row[name]) for name in names] for row in flat]
        return [Plain(command, names, lines, [])], ""
    groups = grouped(rows, bounds)
    columns = columns_of([row for group in groups for row in group.rows])
    headings = [" ".join(part for part in column.heading if part) for column in columns]
    tables = []
    for group in groups:
        cells = [column.cells(group.rows, pad=False) for column in columns]
        lines = [list(line) for line in zip(*cells, strict=True)]
        for line, row in zip(lines, group.rows, strict=True):
            line[0] = f"{mark(row)} {line[0]}".lstrip()
        tables.append(Plain(group.caption, headings, lines, [line for _, line in notes(group.rows)]))
    kernels = kernel_tables(rows)
    return tables + [Plain(*table) for table in kernels], f"{legend(groups, columns)} {kernel_legend(kernels)}".strip()


def markdown(tables: Sequence[Plain], told: str, header: Header, run: str | None) -> str:
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


def latex(tables: Sequence[Plain], told: str, header: Header, run: str | None) -> str:
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
