"""Cells of `attnprobe error` as rows, from the lists of `error_records`, and what is shown and judged of them."""

import json
from functools import cache

from attnprobe.frame.labels import identity, source_labels
from attnprobe.frame.read import frame_of
from attnprobe.frame.records.file import decode_inf
from attnprobe.frame.records.read import read_records
from attnprobe.frame.rows import head_rows
from attnprobe.grammar.foreign import printable_within
from attnprobe.grammar.lists import options_text
from attnprobe.judge.best import Best
from attnprobe.measure import experiment
from attnprobe.measure.error.record import SHAPE
from attnprobe.show.header import Header
from attnprobe.show.shown import Shown

LISTS = ("matrix_open", "matrix_kind")


def as_rows(records):
    """Cells as the command writes them: lists of metrics become rows of heads."""
    cells = []
    for number, record in enumerate(records):
        lists = {**record["metrics"], **{name: record[name] for name in LISTS if name in record}}
        measured = lists or record["status"] == "ok"
        rows = [*(head_rows(record["heads"], lists) if measured else ()), *record.get("positions", ())]
        key = record.get("key", f"k{number}")
        rows = [{**row, "key": key} for row in rows]
        own = {name: value for name, value in record.items() if name not in ("metrics", "positions", *LISTS)}
        known = {"kind": "cell", "schema": 1, "command": "error", "key": key, "source": {}, **own}
        cell = {**known, "options": options_text(record["options"]), "rows": rows, "lines": len(rows)}
        cells.append(printable_within(cell))
    return cells


def in_rows(record):
    """A record as the command writes it: those of error have rows."""
    return as_rows([record])[0] if record["command"] == "error" and "rows" not in record else record


def shown_of(records, header=None, **facts):
    """What is shown of cells, as `report` shows a folder."""
    cells = as_rows(records)
    labels = source_labels(cells)
    of_cells = {cell["key"]: labels[identity(cell["source"])] or "" for cell in cells}

    @cache
    def frame(kind):
        return frame_of(cells, SHAPE, kind, of_cells)

    best = Best(cells)
    return Shown("error", experiment("error").catalogue, frame, header or Header(), best=best, **facts)


def judged(records):
    """The lines that gates judge."""
    return [line for line in shown_of(records).gate_lines if line["table"] == "error"]


def in_lists(cell):
    """A cell with its rows as lists: ``metrics`` of heads, and ``profile``, the positions and the means by position."""
    heads = [row for row in cell["rows"] if row["kind"] == "head"]
    names = dict.fromkeys(name for row in heads for name in row if name not in ("kind", "key", "head"))
    metrics = {name: [_number(row.get(name)) for row in heads] for name in names}
    of_cell = {name: metrics.pop(name) for name in LISTS if name in metrics}
    of_cell |= {name: value for name, value in cell.items() if name not in ("rows", "lines", "kind", "schema", "run")}
    by_position = [row for row in cell["rows"] if row["kind"] == "position"]
    if not by_position:
        return {**of_cell, "metrics": metrics}
    positions = sorted({row["position"] for row in by_position})
    by_head = {row["head"]: [other for other in by_position if other["head"] == row["head"]] for row in by_position}
    names = dict.fromkeys(
        name for row in by_position for name in row if name not in ("kind", "key", "head", "position")
    )
    means = {name: [[row.get(name) for row in rows] for rows in by_head.values()] for name in names}
    return {**of_cell, "metrics": metrics, "profile": {"keys": positions, **means}}


def _number(value):
    return decode_inf(value) if value in ("inf", "-inf") else value


def lines_of_cells(path):
    """The lines of a file of rows, as one text for each cell: its rows, then the line that ends it."""
    cells, lines = [], []
    for line in path.read_bytes().splitlines(keepends=True):
        lines.append(line)
        if json.loads(line)["kind"] == "cell":
            cells.append(b"".join(lines))
            lines = []
    return cells


def known(cells):
    """Cells by key without the fields that are null, which a cell that was read has where the file has none."""
    return {key: {name: value for name, value in cell.items() if value is not None} for key, cell in cells.items()}


def records_in(folder):
    """The cells of a run's folder as lists, in the order of the file."""
    return [in_lists(cell) for cell in read_records(folder)]
