"""The frame of a run, its columns on the page of records, and the schema of records."""

import json

import pytest
from paths import GOLDEN
from record_pages import records_page, records_schema

from attnprobe import AttnprobeError, SourceError, UsageError, open_run
from attnprobe.frame.metric import METRICS
from attnprobe.frame.read import PLACE
from attnprobe.measure import EXPERIMENTS, shape_of
from attnprobe.show.page.run import _described

RUNS = GOLDEN / "runs"
OF_COMMAND = {"rounding": "rounding-formats"}  # else the run has the name of its command


def fields_of(command):
    return {"schema", *shape_of(command).cell.model_fields}


def test_the_page_describes_the_records_of_every_command():
    page = records_page()
    for command in EXPERIMENTS:
        _, _, section = page.partition(f"## Rows of {command}\n")
        section = section.partition("\n## ")[0]
        for name in shape_of(command).columns:
            assert f"| `{name}` |" in section, (command, name)
    assert "| `key` | text | hash of everything that determines the cell's result |" in page


@pytest.fixture(scope="module")
def check():
    return pytest.importorskip("jsonschema").Draft202012Validator(json.loads(records_schema()))


@pytest.mark.parametrize("command", EXPERIMENTS)
def test_the_records_of_a_command_are_what_the_schema_says(command, check):
    seen = set()
    for line in (RUNS / OF_COMMAND.get(command, command) / "rows.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert check.is_valid(record)
        if "schema" not in record:  # a row
            if record["kind"] in seen:
                continue
            seen.add(record["kind"])
            assert not check.is_valid({**record, "key": 7})
            assert "head" not in record or not check.is_valid({**record, "head": "many"})
            continue
        if record["status"] not in seen:
            seen.add(record["status"])
            assert not check.is_valid({**record, "n": "many"}) and not check.is_valid({**record, "command": "dream"})
        assert record.keys() <= fields_of(command), "a field that its type does not name is lost"


@pytest.mark.parametrize("command", EXPERIMENTS)
def test_a_frame_has_the_columns_that_the_page_names(command):
    run = open_run(RUNS / OF_COMMAND.get(command, command))
    frame = run.frame()
    (records,) = run.records.values()
    assert set(frame.columns) <= {*PLACE, *shape_of(command).columns, *fields_of(command)}
    assert set(PLACE) <= set(frame.columns)
    elsewhere = {cell["key"] for cell in records if cell["rows"]}  # rows of further kinds
    assert set(frame["key"]) | elsewhere == {cell["key"] for cell in records}  # a cell without numbers is a row too


def test_a_frame_of_errors_has_a_row_for_each_cell_and_head_with_its_own_numbers():
    lines = [json.loads(line) for line in (RUNS / "error/rows.jsonl").read_text().splitlines()]
    cells = {line["key"]: line for line in lines if line["kind"] == "cell"}
    heads = [line for line in lines if line["kind"] == "head"]
    frame = open_run(RUNS / "error").frame().set_index(["key", "head"])
    assert heads and {(line["key"], line["head"]) for line in heads} <= set(frame.index)
    for line in heads:
        row, cell = frame.loc[line["key"], line["head"]], cells[line["key"]]
        assert all(row[name] == cell[name] for name in ("n", "layer", "method"))
        for name in line.keys() - {"key", "head", "kind"}:
            assert isinstance(line[name], str) or row[name] == line[name], name


@pytest.mark.parametrize("name", ["inject", "inject-decode"])
def test_frames_of_inject_have_a_row_for_each_model_layer_head_and_step(name):
    run = open_run(RUNS / name)
    for kind in ("head", "layer", "local", "step"):
        frame = run.frame(kind)
        assert not any(isinstance(cell, (list, dict)) for column in frame for cell in frame[column])
        rows = [row for cell in run.records["inject"] for row in cell["rows"] if row["kind"] == kind]
        measured = frame[frame["status"] == "ok"]
        assert len(measured) == len(rows)
        for column in {*measured} & {*METRICS} & {name for row in rows for name in row}:
            assert measured[column].astype(object).where(measured[column].notna(), None).tolist() == [
                row.get(column) for row in rows
            ]
    assert set(run.frame()["layers"]) == ({"0-1", "0", "1"} if name == "inject" else {"0-1"})


def test_a_frame_of_theory_holds_infinity_and_nan():
    rows = open_run(RUNS / "theory").frame()
    assert rows["slack"].dtype == "Float64" and (rows["slack"] == float("inf")).any()


def test_a_seed_of_more_than_64_bits_is_a_row(tmp_path):
    lines = [json.loads(line) for line in (RUNS / "error/rows.jsonl").read_text().splitlines()]
    first = [line for line in lines if line["key"] == lines[0]["key"]]
    rows = [{**line, "seed": 2**100} if line["kind"] == "cell" else line for line in first]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert open_run(tmp_path).frame()["seed"][0] == 2**100


def test_the_errors_are_public():
    assert issubclass(UsageError, ValueError) and issubclass(UsageError, AttnprobeError)
    assert issubclass(SourceError, AttnprobeError)
    with pytest.raises(ValueError, match="no such folder"):
        open_run("nowhere/at/all")


def test_facts_of_a_source_that_has_no_lines_are_its_lines():
    facts = {"model": "m", "weights_seed": None, "max_positions": 4, "fallback": ["no hub", "no text"]}
    assert _described(facts) == ["model: m", "max positions: 4", "fallback: no hub", "fallback: no text"]
