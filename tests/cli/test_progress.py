"""Progress counts the work of cells, knows the time left, fits a narrow terminal, and is announced beforehand."""

import os
import pty
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from attnprobe.cli import main
from attnprobe.cli.dry_run import plan_table
from attnprobe.cli.progress import BAR, Pace, progress_bar
from attnprobe.measure import experiment
from attnprobe.measure.error import ErrorRequest, measure_errors
from attnprobe.run import loop
from attnprobe.run.costs import OPENING, work_of_forward, work_of_inputs
from attnprobe.run.estimate import CellEstimate, estimate_cells


@pytest.fixture
def file(tmp_path):
    q, k, v = torch.randn(3, 2, 1024, 8, generator=torch.Generator().manual_seed(0))
    path = tmp_path / "qkv.safetensors"
    save_file({"q": q.contiguous(), "k": k.contiguous(), "v": v.contiguous()}, path)
    return path


def progress_of(file, out, **arguments):
    """Every ``(done, total, label)`` of a run of ``error``."""
    states = []
    request = ErrorRequest(qkv=str(file), device="cpu", out=str(out), **arguments)
    measure_errors(request, progress=lambda *state: states.append(state))
    return states


def test_matrix_errors_move_the_progress(file, tmp_path):
    states = progress_of(file, tmp_path / "r", methods=("skyformer,performer,linformer,mss",), d=(16,), n=(512,))
    shares = [done / total for done, total, _ in states]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] == 1
    passes = [share for share, (_, _, label) in zip(shares, states, strict=True) if "matrix errors" in label]
    assert len(passes) >= 3 and len(set(passes)) >= 3
    assert passes[-1] - passes[0] > 0.1


def test_what_is_there_already_counts_as_done_and_has_no_work(file, tmp_path):
    first = progress_of(file, tmp_path / "r", methods=("skyformer",), d=(16,), n=(512,), matrix=False)
    total = first[-1][1]
    states = progress_of(file, tmp_path / "r", methods=("skyformer,linear",), d=(16,), n=(512,), matrix=False)
    assert states[0][0] == pytest.approx(total) and states[-1][:2] == (total + 1, total + 1)
    assert all(one <= other for (one, *_), (other, *_) in zip(states, states[1:], strict=False))


def test_longer_sequences_weigh_more(file, tmp_path):
    states = progress_of(file, tmp_path / "r", methods=("linear",), n=(64, 1024), matrix=False)
    halfway = [done / total for done, total, label in states if label.startswith("reading n=1024")][0]
    assert halfway < 0.1, "half of the cells, and a 256th of the exact attention"


def test_the_time_left_follows_the_rate(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("attnprobe.cli.progress.monotonic", lambda: now[0])
    pace = Pace()
    assert pace.left(2.0, 10) is None
    now[0] = 30.0
    assert pace.left(2.0, 10) is None
    now[0] = 1000.0
    assert pace.left(4.0, 10) is None, "the reading of a model tells nothing about cells"
    assert pace.left(4.0 + 1e-12, 10) is None, "nor do sums that round"
    now[0] = 1030.0
    assert pace.left(6.0, 10) == pytest.approx(60.0)
    assert pace.state(6.0, 10) == " 60 %, about 60 s left"


@pytest.mark.parametrize("columns", [80, 60])
def test_the_bar_fits_a_narrow_terminal(columns):
    """The share and the time left stand whole; what is measured is cut."""
    code = (
        "import time\nfrom attnprobe.cli.progress import progress_bar\n"
        "with progress_bar('loading torch') as (report, notify):\n"
        "    time.sleep(0.3)\n    report(1, 10, 'x' * 200)\n    report(2, 10, 'x')\n    time.sleep(0.2)\n"
        "    report(4.5, 10, 'n=4096 layer 11 matrix errors of 25 cells, ' + 'x' * 200)\n    time.sleep(0.4)\n"
    )
    ours, other = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color"}
    child = subprocess.Popen([sys.executable, "-c", code], stderr=other, env=environment)
    os.close(other)
    parts = []
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:
            break
        parts.append(part)
    os.close(ours)
    assert child.wait() == 0
    text = b"".join(parts).decode()
    done = re.findall(r"\x1b\[38;5;197m(━+)", text)  # in the colour of what is done
    assert done and len(done[-1]) == BAR * 45 // 100
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text))
    assert any("loading torch" in line for line in lines)
    last = [line for line in lines if "45 %" in line]
    assert last and all(len(line) <= columns for line in lines)
    assert re.search(r"45 %, about \d+ s left\s+n=4096", last[-1]) and "…" in last[-1]


@pytest.mark.parametrize("tty", [False, True])
def test_a_log_has_an_early_line_and_one_a_minute_and_a_terminal_its_notes(tty, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("attnprobe.cli.progress.monotonic", lambda: now[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: tty)
    with progress_bar() as (report, notify):
        for second in (1.0, 2.0, 16.0, 75.0, 77.0):
            now[0] = second
            report(second, 100, f"cell {second:g}")
        now[0] = 300.0
        report(100.0, 100, "")
        notify("one\nnote")
    err = capsys.readouterr().err
    assert "attnprobe: one note\n" in err
    said = [line for line in err.splitlines() if "cell" in line]
    assert tty or said == [
        "attnprobe: 16 %, about 84 s left; now cell 16",
        "attnprobe: 77 %, about 23 s left; now cell 77",
    ]


def test_a_long_run_says_so_first(file, tmp_path, monkeypatch):
    notes = []
    request = ErrorRequest(qkv=str(file), device="cpu", out=str(tmp_path / "r"), matrix=False)
    monkeypatch.setattr(loop, "speed", lambda enough: (1e6, "busy machine"))
    monkeypatch.setattr(loop, "SLOWEST", 1e6)
    measure_errors(request, notify=notes.append)
    said = r"about [\d.]+ (min|h) for \d+ cells \(busy machine\); --dry-run lists them"
    assert [line for line in notes if re.fullmatch(said, line)]
    notes.clear()
    measure_errors(request, notify=notes.append)
    assert not [line for line in notes if line.startswith("about")], "everything is there already"


@pytest.mark.parametrize("columns", [80, 100])
def test_the_table_of_a_dry_run_fits(columns, monkeypatch):
    """Names of methods are wrapped and each stands whole; a pipe without COLUMNS wraps nothing."""
    names = [f"method-{number}:option={number}" for number in range(30)]
    cells = [
        CellEstimate((weights, 4096, window, layer), name, d, done=d == 8, work=1.0, bytes=1.0)
        for weights in ("pretrained", "initialized")
        for layer in (0, 1)
        for window in (0, 1)
        for name in names
        for d in (8, 16, 32)
    ]
    whole = plan_table(cells)
    assert whole.splitlines()[3].split()[:9] == ["pretrained", "4096", "0", "2", "8,", "16,", "32", "180", "60"]
    assert whole.splitlines()[3].endswith(", ".join(names))
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = plan_table(cells).splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[1].split() == ["weights", "n", "layer", "windows", "d", "cells", "done", "of"]
    assert sum(line.count(names[0]) for line in lines) == 4


def test_a_dry_run_of_many_places_lists_the_first():
    cells = [CellEstimate(("file", n, 0, 0), "x", 8, done=False, work=1.0, bytes=1.0) for n in range(1, 5001)]
    lines = plan_table(cells).splitlines()
    assert [line.split()[1] for line in lines[3:103]] == [str(n) for n in range(1, 101)]
    assert lines[-1] == "the first 100 of 5000 lines" and len(lines) < 110
    assert "the first" not in plan_table(cells[:100])


def test_an_estimate_of_many_cells_tells_how_far_it_is(file):
    told = []
    request = ErrorRequest(qkv=str(file), methods=("linformer",), n=(16, 32), d=(4, 8), layer="all", matrix=False)
    cells = estimate_cells(experiment("error").cells, request, progress=lambda *state: told.append(state))
    places = list(dict.fromkeys(cell.place for cell in cells))
    assert [done for done, *_ in told] == [[cell.place for cell in cells].index(place) for place in places]
    assert {total for _, total, _ in told} == {len(cells)} and told[0][2] == "estimating n=16 layer 0"


def test_the_first_cell_that_is_left_opens_the_model(tiny_bert, text_file, monkeypatch):
    """The imports and the weights stand in one cell, once for all places, and in none once the model is imported."""
    request = ErrorRequest(model=str(tiny_bert), text=str(text_file), methods=("linear",), n=(16, 24), layer="all")
    cells, found = experiment("error").cells, {}
    for opened in (True, False):
        if opened:
            monkeypatch.setitem(sys.modules, "transformers.modeling_utils", sys)
        else:
            monkeypatch.delitem(sys.modules, "transformers.modeling_utils")
        found[opened] = [cell.work for cell in estimate_cells(cells, request)]
    more = [a - b for a, b in zip(found[False], found[True], strict=True)]
    assert more[0] == pytest.approx(OPENING) and len(more) > 4 and not any(more[1:])


def test_layers_behind_the_last_and_statistics_from_another_run_take_no_work(
    tiny_bert, text_file, tmp_path, monkeypatch
):
    """A forward ends with the last layer that is read. Statistics in the cache are read from it."""
    import transformers.modeling_utils  # noqa: F401  (it is in the first cell otherwise)

    monkeypatch.setenv("ATTNPROBE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ATTNPROBE_CACHE_SIZE", "1G")

    plain = ErrorRequest(model=str(tiny_bert), text=str(text_file), n=(16,), methods=("linear",), matrix=False)

    def work(layer):
        cells = estimate_cells(experiment("error").cells, replace(plain, layer=(layer,)))
        return sum(cell.work for cell in cells)

    first, last = work(0), work(1)
    assert last - first == pytest.approx(work_of_forward(16, 32, 1, 0) + work_of_inputs(16, 4, False))
    measure_errors(replace(plain, layer=(0,), out=str(tmp_path / "r")))
    assert first - work(0) == pytest.approx(work_of_forward(16, 32, 1, 0) + work_of_inputs(16, 4, True))


def test_a_dry_run_refuses_gates_that_are_none(file, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["error", "--qkv", str(file), "--fail-above", "foo=1", "--dry-run", "--out", str(tmp_path / "r")])
    assert stop.value.code == 2 and "unknown metric 'foo'" in capsys.readouterr().err
