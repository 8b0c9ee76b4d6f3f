"""`attnprobe report`: what a command left is rebuilt to the byte from the records alone, and bad folders are named."""

import functools
import json
import os
import random
import re
import shutil
import subprocess
import sys
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from error_rows import lines_of_cells
from folders import snapshot
from golden import small_runs as golden
from safetensors.torch import save_file
from thinned import others_slow

import attnprobe
from attnprobe.cli import output, report
from attnprobe.measure import experiment
from attnprobe.methods import METHODS
from attnprobe.show.formats import FORMATS
from attnprobe.show.page import open_run, views
from attnprobe.show.shown import Drawn


def qkv_file(path, seed=0):
    """A small Q/K/V file: 2 layers of 2 heads, 48 tokens, p = 8."""
    q, k, v = torch.randn(3, 2, 48, 8, generator=torch.Generator().manual_seed(seed))
    save_file({"q": q.contiguous(), "k": k.contiguous(), "v": v.contiguous()}, path)
    return path


@pytest.fixture
def qkv(tmp_path):
    return qkv_file(tmp_path / "qkv.safetensors")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The folder of a small run, which is measured once for all tests."""
    place = tmp_path_factory.mktemp("measured")
    qkv_file(place / "qkv.safetensors")
    with chdir(place):
        said = golden.said(["error", "--qkv", "qkv.safetensors", "--d", "4", "--out", "r"])
    assert said.endswith("--- exit 0\n"), said
    return place / "r"


@pytest.fixture
def r(measured, tmp_path):
    """A copy of it, ``r`` in the folder of the test."""
    return shutil.copytree(measured, tmp_path / "r")


SMALL = {
    "error": ("error", "--method skyformer,performer --d 2,4"),
    "spectrum": ("spectrum", "--of softmax,skyformer --d 4"),
    "condition": ("condition", "--method skyformer --d 4"),
    "theory": ("theory", "--theorem ma-property,rank-collapse --repeats 2 --d 4"),
    "budget": ("budget", "--method svd --epsilon 0.3"),
}


def left(folder):
    """Every table and figure of a folder, by its path."""
    files = [*(folder / "tables").glob("*"), *(folder / "figures").glob("*")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def forget(folder):
    """Take away all that a report makes."""
    for name in ("tables", "figures"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "report.html").unlink(missing_ok=True)


def one_line(err):
    lines = err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("attnprobe: ") and "Traceback" not in err, err
    return lines[0]


# --- to the byte


@pytest.mark.parametrize("plot", ["none", pytest.param("all", marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", others_slow(golden.COMMANDS, lambda name: name[0] in ("error-rows", "stability")))
def test_the_order_of_the_records_and_a_torn_line_change_nothing(run, tmp_path, command, plot):
    """An interrupted run that goes on appends what is missing at the end. A line that was cut off is named."""
    shutil.copytree(golden.RUNS / command, "r")
    code, printed, err = run("report", "r", "--plot", plot)
    assert code == 0, err
    before, path = left(tmp_path / "r"), tmp_path / "r/rows.jsonl"
    cells = lines_of_cells(path)
    random.Random(0).shuffle(cells)
    lines = b"".join(cells).splitlines(keepends=True)
    path.write_bytes(b"".join(lines) + lines[0][:30])
    forget(tmp_path / "r")
    code, out, err = run("report", "r", "--plot", plot)
    assert code == 4 and f"rows.jsonl:{len(lines) + 1}: the file ends within this line; it is left out" in err
    assert printed in out and left(tmp_path / "r") == before


@pytest.mark.parametrize("damage", [pytest.param("cut", marks=pytest.mark.slow), "flipped"])
def test_a_damaged_line_whose_cell_is_measured_again_is_forgotten(run, qkv, r, tmp_path, damage):
    args = ("error", "--qkv", "qkv.safetensors", "--d", "4", "--out", "r")
    path = tmp_path / "r/rows.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if b'"kind":"cell"' in line)
    cell = lines[at]
    lines[at] = cell[: len(cell) // 2] + b"\n" if damage == "cut" else cell.replace(b'"heads":', b'"heads"\x00')
    path.write_bytes(b"".join(lines))
    assert run("report", "r", "--plot", "none")[0] == 4
    code, _, err = run(*args)
    assert code == 0 and f"rows.jsonl:{at + 1}: " in err and "counts as not measured" in err
    code, _, err = run("report", "r", "--plot", "none")
    assert code == 0 and "rows.jsonl" not in err


def test_records_of_other_settings_are_left_out_as_the_command_did(run, qkv, r, tmp_path):
    run("error", "--qkv", qkv, "--d", "8", "--head", "0", "--plot", "errors", "--out", "r")
    before = left(tmp_path / "r")
    forget(tmp_path / "r")
    code, _, err = run("report", "r", "--plot", "errors")
    after = left(tmp_path / "r")
    assert code == 0 and "has 3 cells of other settings" in err
    assert {name: after[name] for name in before} == before


def test_without_a_manifest_the_records_suffice(run, r, tmp_path):
    rows = json.loads((tmp_path / "r/tables/error.json").read_text())
    forget(tmp_path / "r")
    (tmp_path / "r/manifest.json").unlink()
    code, out, err = run("report", "r", "--format", "json", "--plot", "none")
    assert code == 0 and "no manifest.json" in err
    assert json.loads(out)["rows"] == rows["rows"] and json.loads(out)["source"] == rows["source"]
    assert not (tmp_path / "r/figures").exists()


def test_another_format_only_prints(run, r, tmp_path):
    """A figure of the reader's style stays as it is."""
    (tmp_path / "r/figures").mkdir()
    (tmp_path / "r/figures/errors.svg").write_text("of the reader's style")
    before = left(tmp_path / "r")
    code, out, err = run("report", "r", "--format", "latex")
    assert code == 0 and r"\begin{table}" in out and "page" not in err
    assert left(tmp_path / "r") == before
    (tmp_path / "r/rows.jsonl").write_text(a_record(status="skipped", lines=0) + "\n")  # which draws nothing
    assert "page: r2/report.html" in run("report", "r", "--format", "latex", "--out", "r2")[2]


def test_written_tables_have_the_chosen_columns(run, qkv, r, tmp_path):
    """The printed LaTeX table had them, the one in the folder did not."""
    before = left(tmp_path / "r")
    columns = ("--columns", "output_spectral_relative.median", "--plot", "none")
    _, _, err = run("report", "r", *columns)
    after = left(tmp_path / "r")
    assert "tables have none of these columns" not in err
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"tables/error.md", "tables/error.tex"}
    assert after["tables/error.tex"].decode() == run("report", "r", *columns, "--format", "latex")[1]
    assert run("report", "r", "--plot", "none", "--format", "csv", "--columns", "n")[0] == 0
    assert left(tmp_path / "r") == before
    run("error", "--qkv", "qkv.safetensors", "--d", "4", "--out", "r", "--columns", "output_spectral_relative.median")
    assert left(tmp_path / "r") == after


def test_tables_without_the_chosen_columns_are_counted(run, qkv):
    run("error", "--qkv", qkv, "--d", "4", "--out", "r", "--rows", "--no-matrix")
    _, out, err = run("report", "r", "--plot", "none", "--columns", "median_over_vmean")
    assert "--columns: 1 of 2 tables have none of these columns and are left out" in err
    assert "\nRelative error of the output" in out and "\nRows of attention" not in out


@pytest.mark.slow
def test_why_a_map_is_missing_is_told_again(run, qkv, tmp_path, monkeypatch):
    entry = METHODS["performer"]
    bare = functools.wraps(entry.function)(lambda *args, **rest: replace(entry.function(*args, **rest), operator=None))
    monkeypatch.setitem(METHODS, "performer", replace(entry, function=bare))
    args = ("--method", "performer,skyformer", "--d", "16", "--plot", "maps", "--out", "r")
    run("error", "--qkv", qkv, *args)
    before = left(tmp_path / "r")
    (why,) = json.loads((tmp_path / "r/maps/missing.json").read_text()).values()
    assert why == "gives an output and no matrix"
    forget(tmp_path / "r")
    run("report", "r")
    after = left(tmp_path / "r")
    assert {name: after[name] for name in before} == before
    monkeypatch.setitem(METHODS, "performer", entry)
    run("error", "--qkv", qkv, *args)
    assert json.loads((tmp_path / "r/maps/missing.json").read_text()) == {}  # it is there now
    (tmp_path / "r/maps/missing.json").write_text("{not JSON")  # reasons that are gone do not stop a report
    assert run("report", "r")[0] == 0


def test_a_report_elsewhere_leaves_the_run_alone(run, r, tmp_path):
    before = {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()}
    assert run("report", "r", "--plot", "errors", "--out", "elsewhere")[0] == 0
    assert {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()} == before
    assert left(tmp_path / "elsewhere").keys() >= {*left(tmp_path / "r"), "figures/errors.svg"}


LIGHT = """
import sys
from attnprobe.cli import main
compared = [["compare", *2 * sys.argv[1:2], "--format", format] for format in sys.argv[2:]]
for command in (*compared, ["report", sys.argv[1], "--plot", "errors"]):
    try:
        main(command)
    except SystemExit as stop:
        assert not stop.code
    heavy = {"torch", "transformers", "datasets", *(["matplotlib"] if command[0] == "compare" else [])}
    if found := heavy & set(sys.modules):
        sys.exit(f"{command[0]} imported {found}")
"""


def test_reports_and_comparisons_never_import_torch(r):
    env = {**os.environ, "PYTHONPATH": str(Path(attnprobe.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", LIGHT, r, *FORMATS], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_cell_that_failed_is_told_and_the_report_is_fine(run, qkv, tmp_path):
    assert run("error", f"--qkv {qkv} --method skyformer:inverse=cholesky,gamma=0,sampler=iid --d 90 --out r")[0] == 4
    code, out, _ = run("report", "r", "--plot", "none")
    assert code == 0 and "✗" in out and "not finite" in out


def test_a_papers_values_stand_in_a_table_and_a_figure(run, r, tmp_path):
    lines = [json.loads(line) for line in (tmp_path / "r/rows.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "cell":
            line["source"]["weights"] = "pretrained"
    (tmp_path / "r/rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    paper = "init,n,d,method,value,digitisation_uncertainty\npretrained,48,4,Skyformer,0.5,0.01\n"
    (tmp_path / "paper.csv").write_text(paper)
    code, out, err = run("report", "r", "--reference", "paper.csv", "--plot", "papers")
    assert code == 0 and "papers.svg" in err, err
    (row,) = json.loads((tmp_path / "r/tables/papers.json").read_text())["rows"]
    measured = next(row for row in json.loads((tmp_path / "r/tables/error.json").read_text())["rows"] if row["d"] == 4)
    assert row["ratio"] == measured["output_spectral.mean"] / 0.5
    assert run("report", "r", "--reference", "nowhere.csv")[0] == 2


def test_python_has_the_same_views(measured):
    (view,) = views(open_run(measured))
    assert view.command == "error" and view.text("md") + "\n" == (measured / "tables/error.md").read_text()


# --- several sources in one run


SOURCES = {
    "pretrained": ("--weights", "pretrained"),
    "initialized, weights seed 0": ("--weights", "initialized"),
    "initialized, weights seed 1": ("--weights", "initialized", "--weights-seed", "1"),
}


@pytest.fixture
def together(run, tiny_bert, text_file, tmp_path):
    """Runs of three sources, and one folder with the records of them all: ``(the runs' rows by label, folder)``."""

    def made(command, *more):
        (tmp_path / "all").mkdir()
        alone, windows = {}, ("--windows", "2") if command == "error" else ()
        for number, (label, weights) in enumerate(SOURCES.items()):
            source = f"--model {tiny_bert} --text {text_file} --n 24 --out r{number}"
            code, _, err = run(*SMALL[command], source, *weights, *more, *windows)
            assert code == 0, err
            alone[label] = json.loads((tmp_path / f"r{number}/tables/{command}.json").read_text())
            with open(tmp_path / "all/rows.jsonl", "ab") as file:
                file.write((tmp_path / f"r{number}/rows.jsonl").read_bytes())
            if (tmp_path / f"r{number}/maps").is_dir():
                shutil.copytree(tmp_path / f"r{number}/maps", tmp_path / "all/maps", dirs_exist_ok=True)
        return alone, tmp_path / "all"

    return made


@pytest.mark.parametrize("command", others_slow(SMALL, lambda name: name[0] == "error"))
def test_tables_and_figures_tell_the_sources_apart_and_average_none_together(run, together, command):
    alone, folder = together(command)
    code, out, err = run("report", folder, "--format", "json", "--plot", "errors" if command == "error" else "all")
    assert code == 0, err
    result = json.loads(out)
    assert set(result["source"]) == set(alone)
    for name in ("rows", "bounds", "summary"):
        expected = []
        for label, one in alone.items():
            for row in one.get(name, ()):
                assert not row.get("source")
                expected.append({**row, "source": label})
        assert listed(result.get(name, [])) == listed(expected)
    assert {path.name for path in (folder / "figures").iterdir()}
    (view,) = views(open_run(folder))
    for format_ in ("table", "md", "latex"):
        text = view.text(format_)
        for label in alone:
            assert re.search(rf"weights {label} " if experiment(command).catalogue is None else label, text), text


def listed(rows):
    """Rows as texts: those of several tables stand table by table."""
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


@pytest.mark.slow
def test_maps_of_several_sources_are_figures_of_their_own(run, together):
    _, folder = together("error", "--plot", "maps")
    run("report", folder)
    names = sorted(path.name for path in (folder / "figures").glob("maps-*.svg"))
    assert len(names) == 3 and names[-1] == "maps-layer0-n24-pretrained.svg"
    for number, name in ((0, names[2]), (1, names[0])):
        assert (folder / "figures" / name).stat().st_size > 5000, number


def test_one_source_by_two_names_is_one_source(run, tmp_path):
    """What is hashed decides, not the path that was typed."""
    qkv_file(tmp_path / "a.safetensors")
    shutil.copy(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    run("error", "--qkv", "a.safetensors", "--d", "4", "--out", "a")
    run("error", "--qkv", "b.safetensors", "--d", "8", "--out", "b")
    (tmp_path / "b/rows.jsonl").write_bytes(b"".join((tmp_path / x / "rows.jsonl").read_bytes() for x in "ab"))
    result = json.loads(run("report", "b", "--format", "json", "--plot", "none")[1])
    rows = {(row["method"], row["d"]) for row in result["rows"]}
    assert rows == {("skyformer", 4), ("skyformer", 8), ("lower-bound", 4), ("vmean", None)}
    assert result["source"]["qkv"] == "b.safetensors" and {row["source"] for row in result["rows"]} == {""}


# --- bad input


def a_record(**changes):
    state = {"kind": "cell", "schema": 1, "key": "k", "lines": 1, "command": "error", "status": "ok", "source": {}}
    place = {"layer": 0, "n": 8, "window": 0, "d": 4, "seed": 0, "heads": [0], "requested": True}
    one = {"method": "skyformer", "options": "", "target": "softmax"}
    return json.dumps({**state, **place, **one, **changes})


def a_cell(row=None, **changes):
    """The lines of a record with one row."""
    head = {"kind": "head", "key": "k", "head": 0, "output_spectral": 0.5, "output_spectral_relative": 0.5}
    return f"{json.dumps({**head, **(row or {}), 'key': changes.get('key', 'k')})}\n{a_record(**changes)}\n"


BAD = {
    "no folder": (None, "no such folder"),
    "an empty folder": ({}, "no rows*.jsonl"),
    "a file": ("file", "is a file"),
    "empty records": ({"rows.jsonl": ""}, "has no finished cell"),
    "only a torn line": ({"rows.jsonl": a_record()[:40]}, "rows.jsonl:1: the file ends within this line"),
    "torn lines": ({"rows.jsonl": a_record()[:40] + "\n" + "{\n"}, "rows.jsonl:1: this line is no"),
    "a newer schema": ({"rows.jsonl": a_record(schema=2)}, "schema 2 is newer than 1"),
    "another schema": ({"rows.jsonl": a_record(schema="x")}, 'its schema is "x"'),
    "no schema": ({"rows.jsonl": '{"a": 1}'}, "its schema is null"),
    "another program's": (
        {"rows.jsonl": '{"schema": 1, "key": "k"}'},
        "r/rows.jsonl:1: cell k: field command: missing; the run has no valid line",
    ),
    "a later command": ({"rows.jsonl": a_record(command="dream")}, "of 'dream', which this version does not know"),
    "an unknown status": (
        {"rows.jsonl": a_record(status="fine")},
        "field status: expected 'ok', 'skipped', 'failed' or 'diverged', got \"fine\"",
    ),
    "a metric as words": (
        {"rows.jsonl": a_cell({"output_spectral": "high"})},
        'field [0].output_spectral: expected a valid number, got "high"',
    ),
    "a row that is missing": ({"rows.jsonl": a_record()}, "0 of its 1 rows can be read"),
    "rows of another kind": ({"rows.jsonl": a_cell({"kind": "tail"})}, "no rows of kind 'tail'"),
    "no heads": ({"rows.jsonl": a_record(heads=None)}, "field heads: expected a valid list, got null"),
    "a manifest that is none": ({"rows.jsonl": a_cell(), "manifest.json": "[1]"}, "not a manifest"),
    "a damaged manifest": ({"rows.jsonl": a_cell(), "manifest.json": "{"}, "not a manifest: not valid JSON"),
}


def test_a_file_in_place_of_the_folder_is_refused(run, r, tmp_path):
    (tmp_path / "f").write_text("")
    code, out, err = run("report", "r", "--out", "f")
    assert (code, out, err) == (2, "", "attnprobe: --out f is not a directory\n")


@pytest.mark.parametrize(("files", "says"), BAD.values(), ids=BAD)
def test_a_folder_that_is_no_run_is_one_line_and_exit_2(run, tmp_path, files, says):
    if files == "file":
        (tmp_path / "r").write_text("")
    elif files is not None:
        (tmp_path / "r").mkdir()
        for name, text in files.items():
            (tmp_path / "r" / name).write_text(text)
    code, out, err = run("report", "r")
    assert code == 2 and says in one_line(err) and not out
    assert not (tmp_path / "r/tables").exists()


def test_fields_of_csv_are_chosen_by_their_names(run, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r/rows.jsonl").write_text(a_cell())
    code, out, _ = run("report", "r", "--format", "csv", "--columns", "method,n")
    assert code == 0 and out.splitlines()[0] == "method,n"
    code, out, err = run("report", "r", "--format", "csv", "--columns", "metod")
    assert code == 2 and "did you mean 'method'" in one_line(err) and not out


def test_figures_that_a_run_left_nothing_for_are_named(run, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r/rows.jsonl").write_text(a_cell())
    code, _, err = run("report", "r", "--plot", "maps,errors")
    assert code == 0 and "no figure: no requested method has a matrix to draw" in err
    assert err.count("no figure") == 1 and "figures/errors.svg" in err


def test_runs_of_one_name_have_folders_of_their_own(tmp_path):
    runs = [SimpleNamespace(path=tmp_path / place / "run") for place in "abc"] + [SimpleNamespace(path=Path("/"))]
    names = [path.name for path in report._folders(runs, tmp_path)]
    assert names == ["run", "run-again1", "run-again2", "run-again3"]
    assert report._folders(runs[:1], tmp_path) == [tmp_path]


@pytest.mark.parametrize("count, lines", [(output.MOST_FIGURES, output.MOST_FIGURES), (40, 1)])
def test_many_figures_of_a_kind_are_counted_in_one_line(tmp_path, capsys, count, lines):
    def pages(folder):
        paths = [folder / f"maps-{number}{ending}" for number in range(count) for ending in (".svg", ".png")]
        for path in paths:
            path.write_text("any")
        return paths

    assert len(output._drawn(Drawn("maps", pages, ""), tmp_path, named=True)) == 2 * count
    said = capsys.readouterr().err.splitlines()
    assert len(said) == lines
    assert lines > 1 or said == [f"attnprobe: 40 figures: {tmp_path}/figures/maps*.svg, and .png, .pdf, .txt"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--format", "jsn"), "did you mean 'json'"),
        (("--plot", "eror"), "did you mean 'errors'"),
        (("--metric", "output_spektral"), "did you mean 'output_spectral'"),
        (("--out", " "), "--out is empty"),
    ],
)
def test_bad_options_are_one_line_and_exit_2(run, tmp_path, args, says):
    (tmp_path / "r").mkdir()
    (tmp_path / "r/rows.jsonl").write_text(a_cell())
    code, out, err = run("report", "r", *args)
    assert code == 2 and says in one_line(err) and not out
    assert run("report", "r", "--plot", "none")[0] == 0


def test_a_run_that_did_not_end_is_shown_and_said(run, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r/rows.jsonl").write_text(a_cell() + a_cell(command="dream", key="l"))
    (tmp_path / "r/manifest.json").write_text('{"status": "interrupted", "source": 3, "plan": [], "described": {}}')
    code, out, err = run("report", "r")
    assert code == 4 and "skyformer" in out
    for name in ("source", "plan", "described"):
        assert re.search(rf"r/manifest.json: field {name}: expected .*; it is left out", err), err
    assert "this run is interrupted, not finished" in err and "1 cells of commands that this version" in err


def test_a_page_of_other_runs_leaves_the_folders_of_the_earlier_ones(run, measured, tmp_path):
    for name in "ab":
        shutil.copytree(measured, tmp_path / name)
    assert run("report", "a", "b", "--plot", "none", "--out", "pages")[0] == 0
    (tmp_path / "pages/a/tables/mine.md").write_text("of the user")
    (tmp_path / "pages/a/figures").mkdir()
    (tmp_path / "pages/a/figures/cost.svg").write_text("of an earlier report")
    before = snapshot(tmp_path / "pages/a")
    assert run("report", "b", "--plot", "cost", "--out", "pages")[0] == 0
    assert snapshot(tmp_path / "pages/a") == before


def test_plot_draws_the_named_kinds_alone_and_the_page_keeps_the_others(run, r, tmp_path):
    before = left(tmp_path / "r")
    run("report", "r", "--plot", "errors,cost")
    after = left(tmp_path / "r")
    assert {name: after[name] for name in before} == before
    drawn = {path: path.stat().st_mtime_ns for path in (tmp_path / "r/figures").glob("*.svg")}
    assert {"errors", "cost"} <= {path.stem.partition("-")[0] for path in drawn}
    code, _, err = run("report", "r", "--plot", "cost", "--style", "slide")
    assert code == 0 and err.count("figure:") == 1 and "cost" in err
    again = [path for path, time in drawn.items() if path.stat().st_mtime_ns != time]
    assert [path.stem.partition("-")[0] for path in again] == ["cost"]
    page = (tmp_path / "r/report.html").read_text()
    assert all(path.with_suffix(".png").name in page for path in drawn)


def test_a_figure_that_was_there_before_is_not_on_the_page(run, r, tmp_path):
    hostile = '<svg><base href="//evil"/><meta http-equiv="refresh"/><form action="//evil"><input/></form></svg>'
    stems = ("figures/errors.svg", "figures/errors-x.svg")
    for plot in ("none", "errors"):
        forget(r)
        (r / "figures").mkdir()
        for name in stems:
            (r / name).write_text(hostile)
        assert run("report", "r", "--plot", plot)[0] == 0
        page = (tmp_path / "r/report.html").read_text()
        assert not any(word in page for word in ("evil", "<base", "<form", "refresh"))
        assert page.count("<svg") == (1 if plot == "errors" else 0)
        assert stems[1] not in page and (stems[0] in page) == (plot == "errors")  # no link either


@pytest.mark.parametrize(
    "value", [[1.5], {"a": 1}, [None], *(pytest.param(one, marks=pytest.mark.slow) for one in (5, "x", []))]
)
def test_a_manifest_with_options_of_anything_is_shown(value, run, r):
    manifest = json.loads((r / "manifest.json").read_text())
    manifest["config"] = {name: {"value": value} for name in manifest["config"]}
    (r / "manifest.json").write_text(json.dumps(manifest))
    code, _, err = run("report", "r", "--plot", "none")
    assert code == 0, err


def test_spectra_without_optional_fields_are_shown(run, tmp_path):
    """As another program may write them: the schema asks for a place alone, and a table for a value."""
    kept, types = golden.RUNS / "spectrum", experiment("spectrum").shape
    shutil.copytree(kept, tmp_path / "r")
    fields = [
        *types.cell.model_fields.items(),
        *(field for one in types.kinds.values() for field in one.model_fields.items()),
    ]
    optional = {name for name, field in fields if not field.is_required()} - {"layer", "head", "value"}
    lines = [json.loads(line) for line in (kept / "rows.jsonl").read_text().splitlines()]
    texts = [json.dumps({name: fact for name, fact in line.items() if name not in optional}) for line in lines]
    (tmp_path / "r/rows.jsonl").write_text("\n".join(texts) + "\n")
    code, out, err = run("report", tmp_path / "r", "--plot", "none")
    assert code == 0 and "Values by rank" in out and "stable rank" not in out, err


def test_each_layer_has_a_table_of_its_own_on_request(run, two_layers):
    code, _, err = run("error", "--qkv", two_layers, "--layer", "all", "--d", "4", "--no-matrix", "--out", "r")
    assert code == 0, err
    together, apart = (run("report", "r", "--plot", "none", *more)[1] for more in ((), ("--by-layer",)))
    assert together.count("Relative error of the output") == 1 and "layers 0, 2" in together
    assert apart.count("Relative error of the output") == 2 and "layer 0, " in apart and "layer 2, " in apart
