"""No number of a record is lost on its way to a reader: every field reaches a row, and every summary field has a value
somewhere if the records have it."""

import json
import re

import pytest
from golden.rewrite import OF_ROWS
from paths import GOLDEN

from attnprobe import open_run

RUNS = sorted(path.name for path in (GOLDEN / "runs").iterdir() if path.name not in OF_ROWS)
NOT_IN_ROWS = {
    "schema": "the version of the format",
    "run": "the folder, which the user named",
    "source": "`source`, `weights` and `scale_inputs` tell apart what differs; the manifest has all of it",
}
RENAMED = {"heads": "head"}


def leaves(value, name=""):
    """Every value in nested objects and lists, with the name of the nearest field; null is none."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{name}[{key}]" if name else key)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item, name)
    elif value is not None:
        yield name, float(value) if value in ("inf", "-inf") else value


def parts(name):
    return set(re.split(r"[\[\].]+", name)) - {""}


def shown(rows):
    """The values of rows, by the names of their columns and what is in brackets behind them."""
    found = {}
    for row in rows:
        for column, cell in row.items():
            for name, value in leaves(cell, column):
                for part in parts(name):
                    found.setdefault(part, set()).add(value)
    return found


def lost(record, rows):
    """The fields of a record with a value that no row of it has under the field's name."""
    texts = ("options", "layers") if record["command"] == "inject" else ("options",)  # JSON, which is one cell
    found = shown([{**row, **{name: json.loads(row[name]) for name in texts}} for row in rows])
    if "head" not in found:  # a cell that failed has one row
        found["head"] = set(record["heads"])
    for name, value in leaves({key: item for key, item in record.items() if key not in NOT_IN_ROWS}):
        names = {RENAMED.get(part, part) for part in parts(name)}
        if str(value) not in found and not any(value in found.get(one, ()) for one in names | parts(name)):
            yield name


@pytest.mark.parametrize("name", RUNS)
def test_every_field_of_a_record_reaches_a_row(name):
    run = open_run(GOLDEN / "runs" / name)
    frame = run.frame().astype(object)
    rows = frame.where(frame.notna(), None).to_dict("records")
    lines = (GOLDEN / "runs" / name / "records.jsonl").read_text().splitlines()
    for record in map(json.loads, lines):
        assert not sorted(set(lost(record, [row for row in rows if row["key"] == record["key"]])))


@pytest.mark.parametrize("name", RUNS)
def test_no_field_of_a_summary_is_null_where_records_have_it(name):
    command = name.partition("-")[0]
    summary = json.loads((GOLDEN / "shown" / name / f"{command}.json").read_text()).get("summary") or []
    lines = (GOLDEN / "runs" / name / "records.jsonl").read_text().splitlines()
    records = ({key: value for key, value in json.loads(line).items() if key not in NOT_IN_ROWS} for line in lines)
    known = {part for record in records for field, _ in leaves(record) for part in parts(field)}
    entries = {field for row in summary for field in row}
    assert not [field for field in entries & known if all(row.get(field) is None for row in summary)]
