"""Cells and their rows: written at once, read whole or not at all, checked against their types, laid out as frames."""

from __future__ import annotations

import json
import math
from typing import Annotated

import pandas as pd
import pytest

from attnprobe.errors import UsageError
from attnprobe.frame.metric import metrics
from attnprobe.frame.read import PLACE, frame_of
from attnprobe.frame.records.append import RecordWriter
from attnprobe.frame.records.read import read_typed
from attnprobe.frame.rows import CellLine, HeadRow, RowTypes, head_rows, with_metrics
from attnprobe.grammar.validation import Count, said


class Step(HeadRow):
    """A row of one step of a head."""

    step: Annotated[Count, said("the step")]


TYPES = RowTypes(
    {"head": with_metrics("Head", HeadRow, metrics("kl", "loss")), "step": with_metrics("Step", Step, metrics("kl"))}
)


def cell(key: str, **more) -> dict:
    rows = head_rows([0, 1], {"kl": [0.5, math.inf], "loss": [1.0, None]})
    rows += [{"kind": "step", "head": 0, "step": step, "kl": step / 4} for step in range(3)]
    place = {"command": "trial", "source": {"weights": "pretrained"}, "window": 0, "n": 8, "layer": 1, "heads": [0, 1]}
    known = {"kind": "cell", "key": key, "status": "ok", **place, "method": "x", "options": "a=1", "d": 4, "rows": rows}
    return {**known, **more}


def read(path):
    return read_typed(path, lambda command: TYPES)


def test_a_cell_comes_back_with_its_rows_and_infinity(tmp_path):
    with RecordWriter(tmp_path / "rows.jsonl") as writer:
        writer.append(cell("a"))
        writer.append(cell("b", rows=[], status="skipped", reason="no form"))
    first, second = read(tmp_path).records
    assert [row["kl"] for row in first["rows"] if row["kind"] == "head"] == [0.5, math.inf]
    assert [row["step"] for row in first["rows"] if row["kind"] == "step"] == [0, 1, 2]
    assert (second["rows"], second["reason"]) == ([], "no form")


def test_a_file_that_was_cut_at_any_byte_has_whole_cells_alone(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RecordWriter(path) as writer:
        writer.append(cell("a"))
        end = path.stat().st_size
        writer.append(cell("b"))
    data = path.read_bytes()
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        whole = (["a"] if size >= end - 1 else []) + (["b"] if size >= len(data) - 1 else [])
        assert [one["key"] for one in read(tmp_path).records] == whole, size
        with RecordWriter(path) as writer:
            writer.append(cell("c"))
        again = read(tmp_path)
        assert [one["key"] for one in again.records] == [*whole, "c"] and not again.malformed, size
        assert all(len(one["rows"]) == 5 for one in again.records), size


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"d": "four"}, "field d"),
        ({"lines": 4}, "5 of its 4 rows can be read"),
        ({"rows": [{"kind": "nosuch", "key": "a"}], "lines": 1}, "no rows of kind 'nosuch'"),
        ({"rows": [{"kind": "step", "key": "a", "head": 0}], "lines": 1}, "step"),
        ({"rows": [{"kind": "head", "key": "a", "head": 0, "kl": "much"}], "lines": 1}, "kl"),
    ],
)
def test_a_problem_is_named(change, problem):
    whole = cell("a", lines=5, schema=1)
    whole["rows"] = [{**row, "key": "a"} for row in whole["rows"]]
    assert TYPES.problem(whole) is None
    assert problem in (TYPES.problem({**whole, **change}) or "")


def test_a_lost_row_makes_its_cell_malformed(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RecordWriter(path) as writer:
        writer.append(cell("a"))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], *lines[2:]]))
    [malformed] = read(tmp_path).malformed
    assert "4 of its 5 rows can be read" in str(malformed)


def test_frames_have_a_line_for_each_row_and_nullable_types():
    cells = [cell("a"), cell("b", rows=[], status="skipped")]
    labels = {"a": "", "b": ""}
    heads = frame_of(cells, TYPES, "head", labels)
    assert heads["head"].tolist() == [0, 1, pd.NA] and heads["kl"].dtype == "Float64" and heads["d"].dtype == "Int64"
    assert heads["name"].tolist() == ["x:a=1"] * 3 and list(heads)[: len(PLACE)] == list(PLACE)
    assert frame_of(cells, TYPES, "step", labels)["kl"].tolist() == [0.0, 0.25, 0.5, pd.NA]
    assert frame_of(cells, TYPES, "cell", labels)["status"].tolist() == ["ok", "skipped"]
    with pytest.raises(UsageError, match="unknown kind of rows 'seed'"):
        frame_of(cells, TYPES, "seed", labels)


def test_the_schema_describes_every_kind_of_line():
    schemas = TYPES.json_schemas()
    assert list(schemas) == ["head", "step", "cell"] and json.loads(json.dumps(schemas)) == schemas
    for kind, schema in schemas.items():
        assert schema["properties"]["kind"]["const"] == kind
        assert all(field.get("description") for field in schema["properties"].values()), kind


def test_a_cell_line_refuses_no_field_that_a_later_version_adds():
    whole = cell("a", lines=0, rows=[], schema=1, later=3)
    assert TYPES.problem(whole) is None and "later" not in TYPES.known(whole)
    assert CellLine.model_fields["lines"].description
