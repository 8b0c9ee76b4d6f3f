"""Tables as Markdown, and rows as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence

from ..errors import unknown
from ..files import Fields
from ..grammar.foreign import one_line
from ..records.file import encode_inf, strict_json
from ..show.writers.data import csv_cell
from .console import Header
from .numbers import significant
from .table import Column, Table

# what begins a link, a picture, HTML, an entity or emphasis; brackets alone, as of intervals, begin none
MARKDOWN = re.compile(r"[\\|*_~<`]|(?<=!)\[|\](?=[(\[:])|&(?=[#\w]+;)")
MOST_OPEN = 3  # tables of a summary that are not folded


def flattened(row: Fields) -> dict[str, object]:
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
            flat[name] = strict_json(encode_inf(value))
        else:
            flat[name] = value
    return flat


def check_fields(fields: Iterable[str], names: Iterable[str]) -> None:
    """Refuse an unknown field; ``NAME`` of a metric stands for its ``NAME.STAT``."""
    fields = list(fields)
    metrics = list(dict.fromkeys(field.partition(".")[0] for field in fields))
    for name in names:
        if name not in metrics and name not in fields:
            raise unknown("field", name, fields if "." in name else metrics)


def csv_of(rows: Sequence[Fields], columns: Sequence[str] = (), known: Sequence[str] = ()) -> str:
    """A line for each row, with a column for each field of any of them.

    Args:
        columns: fields, in this order, in the place of all; ``NAME`` is each ``NAME.STAT`` too.
        known: fields that the rows may have; one of ``columns`` that no row has is empty.
    """
    flat = [{str(csv_cell(name)): csv_cell(value) for name, value in flattened(row).items()} for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    check_fields([*names, *known], columns)
    chosen: list[str] = []
    for column in columns:
        fields = [name for name in names if column in (name, name.partition(".")[0])]
        chosen += fields or [column]
    file = io.StringIO()
    fields = list(dict.fromkeys(chosen)) or names
    writer = csv.DictWriter(file, fields, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(flat)
    return file.getvalue().rstrip("\n")


def rows_as_table(caption: str, rows: Sequence[Fields]) -> Table:
    """Any rows as a table with a column for each field."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [Column(name, lambda row, name=name: _text(row.get(name))) for name in names]
    return Table(caption, columns, [[column.text(row) for column in columns] for row in rows])


def _text(value: object) -> str:
    """A value as text.

    >>> [_text(value) for value in (None, True, False, 0.123456, {"a": 1}, ["x", "y"], [0, 1, 2, 3], [0, 1, 2, 3, 4])]
    ['', 'yes', 'no', '0.1235', 'a=1', 'x, y', '0, 1, 2, 3', '0, 1, 2, 3, … (5 values)']
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


def markdown(tables: Sequence[Table], legend: Sequence[str], header: Header, run: str | None) -> str:
    """Tables and their legend as Markdown."""
    lines = [escape(header.first), ""] if header.first else []
    lines += [f"- {escape(line)}" for line in header.facts]
    lines += [f"- **Warning: {escape(line)}**" for line in header.warnings]
    return "\n".join([*lines, *_body(tables, legend, header, run)]).strip("\n")


def _body(tables: Sequence[Table], legend: Sequence[str], header: Header, run: str | None) -> list[str]:
    lines = [f"- {escape(line)}" for line in header.measured]
    for table in tables:
        lines += ["", *markdown_table(table)]
    if legend:
        lines += ["", escape(" ".join(legend))]
    if run is not None:
        lines += ["", f"Run: {escape(run)}"]
    return lines


def github(
    tables: Sequence[Table], legend: Sequence[str], header: Header, run: str | None, above: Sequence[str] = ()
) -> str:
    """A summary for the page of a CI job: the columns that an answer needs, and everything folded below.

    Args:
        above: lines of Markdown that stand first.
    """
    lines = [*above, "", escape(header.first), ""] if header.first else [*above, ""]
    lines += [f"- **Warning: {escape(line)}**" for line in header.warnings]
    for table in tables[:MOST_OPEN]:
        lines += ["", *markdown_table(table.needed)]
    more = f", {len(tables) - MOST_OPEN} more tables" if len(tables) > MOST_OPEN else ""
    lines += ["", f"<details><summary>All columns{more}, legend and provenance</summary>", ""]
    lines += [*(f"- {escape(line)}" for line in header.facts), *_body(tables, legend, header, run), "", "</details>"]
    return "\n".join(lines).strip("\n")


def escape(text: str) -> str:
    """Text on one line that Markdown takes as it is."""
    return MARKDOWN.sub(r"\\\g<0>", one_line(text))


def markdown_table(table: Table) -> list[str]:
    """The lines of one table: its caption, its cells with the best in bold, its notes."""
    best = {*table.best}
    lines = [f"**{escape(table.caption)}**", ""]
    lines.append(f"| {' | '.join(map(escape, table.headings))} |")
    lines.append(f"| {' | '.join({'l': '---', 'r': '---:'}[side] for side in table.sides)} |")
    for place, line in enumerate(table.lines):
        cells = [f"**{escape(cell)}**" if (place, i) in best else escape(cell) for i, cell in enumerate(line)]
        lines.append(f"| {' | '.join(cells)} |")
    if table.notes:
        lines += ["", *(f"- {escape(note)}" for note in table.notes)]
    return lines
