"""What the commands whose cells are rows show: any run that is possible, in every format, with figures and gates."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from golden.small_runs import COMMANDS
from paths import GOLDEN
from report_pages import shown
from thinned import others_slow

from attnprobe.errors import UsageError
from attnprobe.frame.metric import METRICS
from attnprobe.frame.records.append import RecordWriter
from attnprobe.frame.records.read import read_records
from attnprobe.judge.gates import check
from attnprobe.judge.parse import parse_gate
from attnprobe.measure import experiment
from attnprobe.show.formats import FORMATS
from attnprobe.show.table import METHOD

RUNS = [name for name in COMMANDS if experiment(name.partition("-")[0]).catalogue is not None]

CALLED = METHOD.words | {"lower-bound": "lower"}  # what tables call a method


def changed(folder, change):
    """A run whose cells are changed."""
    folder.mkdir(exist_ok=True)
    with RecordWriter(folder / "rows.jsonl") as writer:
        for cell in change:
            writer.append(cell)
    return folder


@pytest.fixture(params=RUNS)
def run(request):
    return GOLDEN / "runs" / request.param


@pytest.fixture(params=[name for name in RUNS if experiment(name.partition("-")[0]).gated])
def gated_run(request):
    return GOLDEN / "runs" / request.param


def test_every_format_has_the_lines_of_the_first_table(run):
    one = shown(run)
    rows = json.loads(one.text("json"))["rows"]
    lines = [row for row in rows if row["table"] == rows[0]["table"]]
    assert lines and len(one.text("jsonl").splitlines()) == len(lines)
    for written, line in zip(csv.DictReader(io.StringIO(one.text("csv"))), lines, strict=True):
        for name, text in written.items():
            value = line[name]
            if isinstance(value, float):
                assert math.isclose(float(text), value), name
            else:
                assert text == ("" if value is None else str(value)), name
    first = one.catalogue.tables[0].by[0]
    called = {**one.catalogue.tables[0].columns[0].words, **CALLED}
    names = {called.get(row[first], row[first]) for row in lines if row[first]}
    for format in set(FORMATS) - {"json", "jsonl", "csv"}:
        text = one.text(format).replace("\\_", "_")
        assert all(name in text for name in names), format


def test_a_run_of_which_every_cell_was_skipped_is_shown(run, tmp_path):
    fields = experiment(run.name.partition("-")[0]).shape.cell.model_fields
    numbers = dict.fromkeys(name for name in fields if name in {*METRICS} - {"n", "d", "layer", "head"})
    cells = [{**cell, **numbers, "rows": [], "status": "skipped", "reason": "no form"} for cell in read_records(run)]
    one = shown(changed(tmp_path / "r", cells))
    text = one.text("table")
    assert "skipped" in text and "no form" in text and "nan" not in text.lower().replace("nanosecond", "")
    assert not [path for figure in one.figures.values() for path in figure.draw(tmp_path)]


@pytest.mark.parametrize(
    "run", others_slow(RUNS, lambda name: name[0] in ("error", "audit", "budget", "inject-decode")), indirect=True
)
def test_a_run_of_one_cell_is_shown(run, tmp_path):
    cells = [cell for cell in read_records(run) if cell["requested"] and cell["status"] == "ok"]
    [*_, cell] = [cell for cell in cells if cell["method"] != "vmean"]  # whose label is not its name
    one = shown(changed(tmp_path / "r", [cell]))
    assert cell["method"] in one.text("table")
    assert any(figure.draw(tmp_path) for figure in one.figures.values())


def test_chosen_columns_are_shown_and_unknown_ones_are_refused(run):
    one = shown(run)
    columns = [column.name for column in one.catalogue.columns]
    assert one.text("md", columns=columns)
    for name in (columns[len(columns) // 2], columns[-1]):
        assert one.text("md", columns=[name])
    with pytest.raises(UsageError, match="unknown column 'nosuch'"):
        one.text("table", columns=["nosuch"])


def test_a_gate_judges_the_first_table_that_has_its_metric(gated_run):
    one = shown(gated_run)
    gated = experiment(one.command).gated
    every = one.gate_lines
    lines = [line for line in every if line["requested"]]
    for metric in gated.names:
        least = METRICS[metric].better == "larger"
        results = check(every, [parse_gate(f"{metric}.{gated.statistics(metric)[-1]}=1", gated, least=least)])
        tables = [line["table"] for line in lines if f"{metric}.count" in line] or [lines[0]["table"]]
        assert len(results) == sum(line["table"] == tables[0] for line in lines) > 0


def test_a_gate_names_a_method_of_a_file_with_its_options(tmp_path):
    """The name has a colon before its options, which are those that the gate compares."""
    cells = [
        {**cell, "method": "mine.py:fn", "options": "width=4,causal=True"}
        for cell in read_records(GOLDEN / "runs" / "audit")
        if cell["method"] == "performer"
    ]
    gated = experiment("audit").gated
    lines = shown(changed(tmp_path / "r", cells)).gate_lines
    for text, found in (("mine.py:fn", True), ("mine.py:fn:causal=true,width=4", True), ("mine.py:fn:width=5", False)):
        [*results] = check(lines, [parse_gate(f"rate.max=1 for {text}", gated)])
        assert all(result.passed for result in results) == found, text


@pytest.mark.parametrize(("name", "field"), [("budget", "found.median"), ("inject-decode", "d")])
def test_a_field_that_a_column_shows_in_other_words_is_a_number_in_json(name, field):
    """Such as d, which may be the mean of a file's budgets, and a budget that may be more than all tried."""
    numbers = [row[field] for row in shown(GOLDEN / "runs" / name).rows if row.get(field) is not None]
    assert numbers and all(isinstance(number, (int, float)) or number == "inf" for number in numbers)


def test_statistics_of_the_inputs_are_a_table_of_their_own(run):
    inputs = shown(run).inputs
    if not (run / "inputs.jsonl").exists():
        return
    assert inputs is not None and inputs.command == "inputs" and "entropy" in inputs.text("csv")
