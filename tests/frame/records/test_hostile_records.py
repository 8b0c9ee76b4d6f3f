"""Every field of a cell, a row, a manifest and an inputs file changed by itself: nothing ends a report or compare.

The quick cases are a small sample. ``pytest -m slow tests/frame/records/test_hostile_records.py`` tries a larger
one, for minutes; with ``HOSTILE_RECORDS=1000000`` it tries all of them, for hours.
"""

import json
import os
import random
import shutil

import pytest
from click.testing import CliRunner
from paths import GOLDEN
from thinned import others_slow

from attnprobe import UsageError, open_run
from attnprobe.cli import cli
from attnprobe.errors import AttnprobeError
from attnprobe.frame.records.read import read_inputs, read_records
from attnprobe.frame.rows import lines_of
from attnprobe.measure import EXPERIMENTS, read_run, shape_of

RUNS = GOLDEN / "runs"
DELETE, LONGER, SHORTER, DIGITS = object(), object(), object(), "4299 digits"
QUICK = 2  # cases of each command whose whole report is made
SLOW = int(os.environ.get("HOSTILE_RECORDS", "150"))
DRAWN = SLOW // 10  # with figures


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


VALUES = {
    "null": None,
    "true": True,
    "zero": 0,
    "minus": -1,
    "half": 0.5,
    "text": "x",
    "nan": "nan",
    "list": [],
    "object": {},
    "2**53": 2**53,
    "10**400": 10**400,
    "1e308": 1e308,
    "-1e308": -1e308,
    "surrogate": "\ud800",
    "escape": "\x00\x1b[31m",
    "deep": nested(500),
    "deeper": {"a": {"\udc00": nested(900)}},
    "delete": DELETE,
    "longer": LONGER,
    "shorter": SHORTER,
}


RUN_OF = {"rounding": "rounding-formats"}  # of a command, where it has another name


def cells_of(command):
    """The cells of the command's small run, each with its rows."""
    return read_records(RUNS / RUN_OF.get(command, command))


def places(value, at=()):
    """The paths of all values in a value; of a list, that of its first entry."""
    if at:
        yield at
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*at, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*at, 0))


def changed(record, place, how):
    new = json.loads(json.dumps(record))
    holder = new
    for key in place[:-1]:
        holder = holder[key]
    value, old = VALUES[how], holder[place[-1]]
    if value in (LONGER, SHORTER) and not (isinstance(old, list) and old):
        return None
    if value is DELETE:
        del holder[place[-1]]
    elif value in (LONGER, SHORTER):
        holder[place[-1]] = [*old, old[-1]] if value is LONGER else old[1:]
    else:
        holder[place[-1]] = value
    return new


def cases(record):
    """Every single change of a record: where, how, and what it is then."""
    for place in places(record):
        for how in VALUES if place != ("rows",) else ():  # which the reader makes
            if (new := changed(record, place, how)) is not None:
                yield place, how, new


def unlike(cells):
    """Of cells, one of each kind, with one row of each kind: those that hold different fields."""
    kinds = {}
    for number, cell in enumerate(cells):
        filled = tuple(sorted(name for name, value in cell.items() if value not in (None, [], {})))
        kinds.setdefault((filled, cell["status"], cell.get("theorem")), number)
    return list(kinds.values())


def write(folder, cells):
    folder.mkdir(exist_ok=True)
    lines = [line for cell in cells for line in lines_of(cell)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def shown(folder, out, plot):
    """Report the folder, lay it out as a frame and compare it with itself; the exit codes."""
    codes = []
    asked = [["report", folder, "--plot", plot, "--out", out], ["compare", folder, folder]]
    for arguments in asked:
        result = CliRunner().invoke(cli, list(map(str, arguments)))
        assert isinstance(result.exception, SystemExit | AttnprobeError | None), repr(result.exception)
        codes.append(result.exit_code if isinstance(result.exception, SystemExit) else 0)
    open_run(folder).frame()
    return codes


@pytest.mark.parametrize("command", EXPERIMENTS)
def test_every_change_is_read_or_named_with_its_field(command, tmp_path):
    """Of each change a record either still has its type, or the message names the field that was changed."""
    shape, count, refused = shape_of(command), 0, 0
    records = cells_of(command)
    for number in unlike(records):
        record = {**records[number], "rows": records[number]["rows"][:1]}  # of all rows, the first one is changed
        record["lines"] = len(record["rows"])
        assert shape.problem(record) is None
        for place, how, new in cases(record):
            problem, count = shape.problem(new), count + 1
            if problem is not None:
                refused += 1
                about = {str(part) for part in place} | {"heads"}
                counted = place[0] in ("lines", "rows") and (
                    "rows can be read" in problem or "a row has none" in problem
                )
                named = problem.startswith("field ") and any(part in problem for part in about)
                assert counted or named, (place, how, problem)
                assert len(problem) < 400 and "\n" not in problem
    assert count > 200 and refused > count / 3


@pytest.mark.parametrize("command", others_slow(EXPERIMENTS, lambda name: name[0] == "stability"))
def test_a_bad_record_is_named_with_its_line_and_the_rest_is_reported(command, tmp_path):
    records = cells_of(command)
    write(tmp_path / "r", [{**records[0], "n": "many"}, *records[1:]])
    actual = read_run(tmp_path / "r")
    (bad,) = actual.malformed
    line = len(records[0]["rows"]) + 1
    assert str(bad) == (
        f'{tmp_path / "r/rows.jsonl"}:{line}: cell {records[0]["key"]}: field n: expected a valid integer, got "many"'
    )
    assert [one["key"] for one in actual.records] == [one["key"] for one in records[1:]]
    result = CliRunner().invoke(cli, ["report", str(tmp_path / "r"), "--plot", "none"])
    assert result.exit_code == 4, result.output
    assert result.stderr.count(f"{bad}; it is left out") == 1
    assert f"rows.jsonl:{line}" in (tmp_path / "r/report.html").read_text()
    write(tmp_path / "rest", records[1:])
    alone = CliRunner().invoke(cli, ["report", str(tmp_path / "rest"), "--plot", "none", "--format", "jsonl"])
    assert CliRunner().invoke(cli, ["report", str(tmp_path / "r"), "--plot", "none", "--format", "jsonl"]).stdout == (
        alone.stdout
    )
    assert alone.exit_code == 0


def sample(command, count):
    """Changes that a record survives, which reports must survive then."""
    shape, records = shape_of(command), cells_of(command)
    some = [(number, new) for number in unlike(records) for *_, new in cases(records[number])]
    random.Random(command).shuffle(some)
    kept = ((number, new) for number, new in some if shape.problem(new) is None)
    return [one for one, _ in zip(kept, range(count), strict=False)]


def survive(command, count, plot, tmp_path):
    records = cells_of(command)
    for number, new in sample(command, count):
        near = records if len(records) < 15 else records[number % 6 :: 6]
        write(tmp_path / "r", [new, *(record for record in near if record["key"] != records[number]["key"])])
        try:
            shown(tmp_path / "r", tmp_path / "out", plot)
        except BaseException as error:
            raise AssertionError(f"{command}: {json.dumps(new)[:3000]}") from error


@pytest.mark.parametrize("command", others_slow(EXPERIMENTS, lambda name: name[0] == "bench"))
def test_what_is_read_is_shown(command, tmp_path):
    survive(command, QUICK, "none", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("command", EXPERIMENTS)
def test_more_of_what_is_read_is_shown(command, tmp_path):
    survive(command, SLOW, "none", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("command", EXPERIMENTS)
def test_what_is_read_is_drawn(command, tmp_path):
    survive(command, DRAWN, "all", tmp_path)


def manifests(command):
    manifest = json.loads((RUNS / command / "manifest.json").read_text())
    manifest |= {"other_settings": ["a"], "processes": [{"host": "a"}], "deaths": ["b"]}
    return manifest, [new for *_, new in cases(manifest)]


def report_with_manifest(command, some, tmp_path):
    shutil.copytree(RUNS / command, tmp_path / "r")
    for manifest in some:
        (tmp_path / "r/manifest.json").write_text(json.dumps(manifest))
        result = CliRunner().invoke(
            cli, ["report", str(tmp_path / "r"), "--plot", "none", "--out", str(tmp_path / "o")]
        )
        assert isinstance(result.exception, SystemExit | UsageError | None), (manifest, repr(result.exception))
        assert result.exit_code in (0, 4) or "manifest.json: not a manifest: nested" in str(result.exception)


@pytest.mark.parametrize("command", others_slow(["error", "bench"], lambda name: name[0] == "bench"))
def test_a_changed_manifest_is_shown(command, tmp_path):
    whole, some = manifests(command)
    random.Random(0).shuffle(some)
    report_with_manifest(command, some[:3], tmp_path)
    cut, whole_text = "x" * 39, "x" * 38
    for value, said in ((5, "5"), (whole_text, f'"{whole_text}"'), (cut, f'"{cut}…')):
        (tmp_path / "r/manifest.json").write_text(json.dumps({**whole, "other_settings": value}))
        (bad,) = open_run(tmp_path / "r").malformed
        assert str(bad) == f"{tmp_path / 'r/manifest.json'}: field other_settings: expected a valid list, got {said}"


@pytest.mark.slow
@pytest.mark.parametrize("command", EXPERIMENTS)
def test_more_changes_of_a_manifest_are_shown(command, tmp_path):
    _, some = manifests(command)
    random.Random(command).shuffle(some)
    report_with_manifest(command, some[:SLOW], tmp_path)


def test_inputs_that_are_none_are_named_and_the_rest_is_shown(tmp_path):
    shutil.copytree(RUNS / "error", tmp_path / "r")
    path = tmp_path / "r/inputs.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    ends = [number for number, line in enumerate(lines) if "schema" in line]
    broken = lines[ends[0]]
    del broken["window"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    actual = read_inputs(tmp_path / "r")
    named = f"{path}:{ends[0] + 1}: cell {broken['key']}: field window: missing"
    assert [str(line) for line in actual.malformed] == [named] and len(actual.records) == len(ends) - 1
    result = CliRunner().invoke(cli, ["report", str(tmp_path / "r"), "--plot", "none"])
    assert result.exit_code == 4 and f"{named}; it is left out" in result.stderr


@pytest.mark.parametrize("name", ["rows.jsonl", "manifest.json", "inputs.jsonl"])
def test_a_named_pipe_is_refused_and_not_waited_for(name, tmp_path):
    shutil.copytree(RUNS / "bench", tmp_path / "r")
    (tmp_path / "r" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "r" / name)
    result = CliRunner().invoke(cli, ["report", str(tmp_path / "r"), "--plot", "none"])
    assert isinstance(result.exception, UsageError) and "a named pipe, not a regular file" in str(result.exception)


def test_a_line_without_end_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("attnprobe.frame.records.read.LONGEST", 2000)
    path = tmp_path / "rows.jsonl"
    good = {"schema": 1, "key": "a"}
    long = {**good, "key": "b", "x": "y" * 10_000}
    path.write_text("".join(json.dumps(one) + "\n" for one in [good, long, {**good, "key": "c"}]))
    with pytest.raises(UsageError, match=r"rows\.jsonl:2: this line is longer than"):
        read_records(path)
    assert [one["key"] for one in read_run(path).records] == []  # of no command
    path.write_text(json.dumps(good) + "\n" + json.dumps(long)[:-1])  # torn
    assert [one["key"] for one in read_records(path)] == ["a"]


def cell_without_rows(command):
    """A line that ends a cell, of which no rows stand before it."""
    return {**{name: value for name, value in cells_of(command)[0].items() if name != "rows"}, "lines": 0}


@pytest.mark.parametrize("text", ["1" * 4301, "[" * 100_000, '{"a":' * 5000, "NaN", "1e999"])
def test_json_that_python_cannot_hold_is_a_line_that_is_no_record(text, tmp_path):
    good = cell_without_rows("bench")
    line = json.dumps({**good, "key": "b"}).replace('"n": ', f'"n": {text}, "was": ', 1)
    assert text in line
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(good)}\n{line}\n")
    actual = read_run(tmp_path)
    assert [one["key"] for one in actual.records] == [good["key"]] and [one.line for one in actual.malformed] == [2]


def test_a_later_record_takes_the_place_of_a_line_that_is_none(tmp_path):
    good = cell_without_rows("bench")
    write(tmp_path, [{**one, "rows": []} for one in ({**good, "n": None}, {**good, "heads": ["x"]}, good)])
    actual = read_run(tmp_path)
    assert not actual.malformed and len(actual.records) == 1


@pytest.mark.parametrize("command", ["error", "bench"])
def test_bad_rows_of_a_head_that_are_not_known_are_not_none(command):
    shape = shape_of(command)
    cell = next(one for one in read_records(RUNS / command) if any("bad_rows" in row for row in one["rows"]))
    assert shape.problem(cell) is None
    next(row for row in cell["rows"] if "bad_rows" in row)["bad_rows"] = None
    assert "bad_rows" in shape.problem(cell)
