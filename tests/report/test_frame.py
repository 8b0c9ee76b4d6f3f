"""The frame of a run, its columns on the page of records, and the schema of records."""

import json

import pytest
from paths import GOLDEN
from record_pages import records_page, records_schema

from attnprobe import AttnprobeError, SourceError, UsageError, open_run
from attnprobe.experiments import EXPERIMENTS, shape_of
from attnprobe.frame.read import PLACE
from attnprobe.frame.rows import RowTypes
from attnprobe.report.run import COLUMNS, _described

RUNS = GOLDEN / "runs"


def fields_of(command):
    shape = shape_of(command)
    return {"schema", *shape.cell.model_fields} if isinstance(shape, RowTypes) else shape.fields


def test_the_page_describes_the_records_of_every_command():
    page = records_page()
    for command in EXPERIMENTS:
        _, _, section = page.partition(f"## Records of {command}\n")
        section = section.partition("\n## ")[0]
        for name in shape_of(command).columns:
            assert f"| `{name}` |" in section, (command, name)
    assert "| `key` | text | hash of everything that determines the cell's result |" in page


def run_of(command):
    """The folder of the first run of a command."""
    return next(path for path in sorted(RUNS.iterdir()) if path.name.partition("-")[0] == command)


@pytest.mark.parametrize("command", EXPERIMENTS)
def test_the_records_of_a_command_are_what_the_schema_says(command):
    jsonschema = pytest.importorskip("jsonschema")
    check = jsonschema.Draft202012Validator(json.loads(records_schema()))
    for line in (run_of(command) / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert check.is_valid(record)
        if "schema" not in record:  # a row
            assert not check.is_valid({**record, "key": 5})
            continue
        assert not check.is_valid({**record, "n": "many"}) and not check.is_valid({**record, "command": "dream"})
        assert record.keys() <= fields_of(command), "a field that its type does not name is lost"


@pytest.mark.parametrize("command", EXPERIMENTS)
def test_a_frame_has_the_columns_that_the_page_names(command):
    run = open_run(run_of(command))
    frame = run.frame()
    (records,) = run.records.values()
    named = {*COLUMNS, *shape_of(command).columns, *fields_of(command)}
    families = {name.partition("[")[0] for name in named if "[" in name}
    metrics = {name for record in records for name in record.get("metrics", {})}
    metrics |= {name for record in records for one in record.get("matrices", ()) for name in one["metrics"]}
    for column in frame.columns:
        assert column in named | metrics or column.partition("[")[0] in families, column
    assert set(PLACE) <= set(frame.columns)
    assert set(frame["key"]) == {record["key"] for record in records}  # a cell without numbers is a row too


def test_a_frame_of_errors_has_a_row_for_each_cell_and_head_with_its_own_numbers():
    run = open_run(RUNS / "error")
    frame = run.frame().set_index(["key", "head"])
    for record in run.records["error"]:
        for index, head in enumerate(record["heads"]):
            row = frame.loc[record["key"], head]
            assert row["n"] == record["n"] and row["layer"] == record["layer"] and row["method"] == record["method"]
            for name, values in record["metrics"].items():
                assert row[name] == values[index] or (row[name] != row[name] and values[index] is None)


@pytest.mark.parametrize("run", ["inject", "inject-decode"])
def test_a_frame_of_inject_has_one_value_in_a_cell(run):
    run = open_run(RUNS / run)
    frame = run.frame().set_index(["key", "head", "local_layer"])
    assert not any(isinstance(cell, (list, dict)) for column in frame for cell in frame[column])
    for record in run.records["inject"]:
        row = frame.loc[record["key"]].iloc[0]
        assert row["layers"] == json.dumps(record["layers"], separators=(",", ":"))  # as in the CSV
        for name, values in (record.get("steps") or {}).items():
            assert [row[f"steps[{name}][{step}]"] for step in range(len(values))] == values


def test_a_frame_of_theory_holds_infinity_and_nan():
    rows = open_run(RUNS / "theory").frame()
    assert rows["slack"].dtype == "Float64" and (rows["slack"] == float("inf")).any()


def test_a_seed_of_more_than_64_bits_is_a_row(tmp_path):
    record = json.loads((RUNS / "error/records.jsonl").read_text().splitlines()[0])
    (tmp_path / "records.jsonl").write_text(json.dumps({**record, "seed": 2**100}))
    assert open_run(tmp_path).frame()["seed"][0] == 2**100


def test_the_errors_are_public():
    assert issubclass(UsageError, ValueError) and issubclass(UsageError, AttnprobeError)
    assert issubclass(SourceError, AttnprobeError)
    with pytest.raises(ValueError, match="no such folder"):
        open_run("nowhere/at/all")


def test_facts_of_a_source_that_has_no_lines_are_its_lines():
    facts = {"model": "m", "weights_seed": None, "max_positions": 4, "fallback": ["no hub", "no text"]}
    assert _described(facts) == ["model: m", "max positions: 4", "fallback: no hub", "fallback: no text"]
