"""``attnprobe audit``: promises of methods whose probability of an error is known, and what a run leaves of them."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import binom

from attnprobe import QKV, approximate, load_qkv
from attnprobe.errors import UsageError
from attnprobe.experiments.audit import AuditRequest, measure_guarantees
from attnprobe.experiments.audit.measure import Tally
from attnprobe.experiments.audit.record import SHAPE
from attnprobe.experiments.audit.view import audit_result, audit_summary, doubts, too_few
from attnprobe.linalg.exceedance import exact_p_values, verdicts
from attnprobe.metrics.guarantees import GuaranteeReference, over_heads
from attnprobe.records.read import read_records
from attnprobe.reference import exact_output
from attnprobe.rng import generator
from attnprobe.tables.long import CELL, long_rows
from attnprobe.tables.numbers import per_cent, significant

COIN = """
import torch
import attnprobe

def coin(q, k, v, generator, scale):
    '''Twice the exact output with probability 0.3, the exact output otherwise.'''
    doubled = torch.rand((), generator=generator) < 0.3
    return torch.softmax(scale * q @ k.mT, -1) @ v * (2.0 if doubled else 1.0)

def exact(q, k, v, generator, scale):
    torch.rand((), generator=generator)
    return torch.softmax(scale * q @ k.mT, -1) @ v

def first_row(q, k, v, generator, scale):
    out = torch.softmax(scale * q @ k.mT, -1) @ v
    out[..., 0, :] *= 2.0 if torch.rand((), generator=generator) < 0.3 else 1.0
    return out

def lost(q, k, v, generator, scale):
    out = torch.softmax(scale * q @ k.mT, -1) @ v
    return out * (float('nan') if torch.rand((), generator=generator) < 0.3 else 1.0)

def lost_where(q, k, v, generator, scale):
    out = torch.softmax(scale * q @ k.mT, -1) @ v
    return torch.where(v[..., :1, :1] > 0, out, float('nan'))
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.py").write_text(COIN)
    q, k, v = torch.randn(3, 2, 24, 6, generator=generator(0, "audit"))
    save_file({"q": q.contiguous(), "k": k.contiguous(), "v": v.contiguous()}, tmp_path / "qkv.safetensors")
    return tmp_path / "qkv.safetensors"


def audited(file, *methods, **options):
    """The records of a run."""
    options = {"repeats": 200, "epsilon": (0.5,), "d": (8,), "input_statistics": False, **options}
    methods = [f"{file.parent / 'mine.py'}:{name}" if "-" not in name and name[0] != "@" else name for name in methods]
    names = tuple(name.removeprefix("@") for name in methods)
    request = AuditRequest(qkv=str(file), methods=names, device="cpu", base=str(file.parent), **options)
    return measure_guarantees(request).outcome.records


@pytest.mark.parametrize("stop", [False, True])
def test_verdicts_on_methods_with_known_probabilities(file, stop):
    """An output that is doubled with probability 0.3 breaks δ = 0.05 and keeps δ = 0.6; an exact one keeps all."""
    coin, exact = audited(file, "coin", "exact", delta=(0.05, 0.6), stop=stop, matrix=False)
    verdicts = {(one["delta"]): one["verdict"] for one in coin["statements"]}
    assert verdicts == {0.05: ["violated"] * 2, 0.6: ["holds"] * 2}
    assert [one["verdict"] for one in exact["statements"]] == [["holds"] * 2] * 2
    low, high = binom.ppf([1e-6, 1 - 1e-6], coin["trials"], 0.3) / coin["trials"]
    for one in coin["statements"]:
        assert one["quantity"] == "output" and one["per"] == "head"
        assert all(low <= rate <= high for rate in one["rate"])
        assert all(a <= rate <= b for a, rate, b in zip(one["lower"], one["rate"], one["upper"], strict=True))
    assert coin["trials"] == 200 if not stop else coin["trials"] < 200
    assert coin["metrics"] == {}, "no normaliser is stated"


def test_a_promise_just_kept_is_undecided(file):
    (coin,) = audited(file, "coin", delta=(0.32,), matrix=False)
    assert coin["statements"][0]["verdict"] == ["undecided"] * 2


def test_rows_are_judged_one_by_one(file):
    """One of 24 rows breaks the promise: so does the head, though its mean rate is far below δ."""
    (row,) = audited(file, "first_row", rows=True, matrix=False)
    (statement,) = row["statements"]
    assert statement["per"] == "row" and statement["verdict"] == ["violated"] * 2
    assert statement["rows_violated"] == [1, 1] and max(statement["rate"]) < 0.05 < min(statement["worst"])
    (head,) = audited(file, "first_row", matrix=False)
    assert head["statements"][0]["verdict"] == ["holds"] * 2


def test_a_result_that_is_not_finite_exceeds_every_error(file):
    (lost,) = audited(file, "lost", matrix=False)
    assert lost["status"] == "diverged" and lost["reason"].startswith("not finite in 200 repeats: ")
    assert lost["statements"][0]["verdict"] == ["violated"] * 2
    rows = long_rows([lost], SHAPE, (*CELL, "trials"))
    (row,) = audit_summary(rows)
    assert audit_result(rows) == "Of 2 promises, head by head, 2 are violated. Failed or diverged: mine.py:lost."
    assert row["status"] == "diverged" and row["verdicts"] == {"violated": 2}
    (one,) = audited(file, "lost_where", matrix=False, repeats=5)
    assert one["reason"] == "not finite in 5 repeats: 5 of head 1"


def test_counts_are_those_of_runs_with_the_same_seeds(file):
    """Each count, and the bias, from separate runs of the method."""
    (record,) = audited(file, "@performer", epsilon=(0.3, 1.0), repeats=12, seed=5)
    q, k, v = torch.randn(3, 2, 24, 6, generator=generator(0, "audit"))
    qkv = QKV(q, k, v)
    reference, errors, ratios = GuaranteeReference(qkv), {}, []
    for seed in range(5, 17):
        approx = approximate("performer", qkv, 8, seed=seed)
        for name, error in reference.errors(approx).items():
            errors.setdefault(name, []).append(
                error if error.ndim == 1 else over_heads(error, reference.sizes_of(name))
            )
        assert approx.log_normalizer is not None and reference.log_normaliser is not None
        ratios.append((approx.log_normalizer().double() - reference.log_normaliser).exp() - 1)
    for one in record["statements"]:
        exceeded = torch.stack(errors[one["quantity"]]) > one["epsilon"]
        assert one["rate"] == pytest.approx(exceeded.double().mean(0).tolist())
    assert len(record["statements"]) == 8
    ratios = torch.stack(ratios)
    assert record["metrics"]["bias"] == pytest.approx(ratios.mean((0, 2)).tolist(), rel=1e-6)
    spread = ratios.std(0).square().mean(-1).sqrt()
    assert record["metrics"]["normaliser_sd"] == pytest.approx(spread.tolist(), rel=1e-6)


def test_a_tally_without_an_end_stops_only_when_all_is_decided():
    q, k, v = torch.randn(3, 2, 24, 6, generator=generator(0, "audit"))
    qkv = QKV(q, k, v)
    output = exact_output(qkv).float()
    tally = Tally(GuaranteeReference(qkv, matrix=False), (0.5,), (0.05,), 0.95, rows=False, anytime=True)
    approx = approximate("vmean", qkv)
    for trial in range(200):
        tally.add(approx.__class__(None, output * (1 + (trial % 2) * torch.tensor([0.0, 1.0])[:, None, None])))
        tally.look()
        if trial == 30:  # head 1 is violated by then, head 0 not yet certain
            assert not tally.decided
    assert tally.decided
    assert tally.statements()[0]["verdict"] == ["holds", "violated"]


def test_what_cannot_be_audited_is_refused(file):
    with pytest.raises(UsageError, match="nothing is random"):
        audited(file, "@vmean")
    skipped = audited(file, "@vmean", "@performer", repeats=2)[0]
    assert skipped["status"] == "skipped" and "draws nothing" in skipped["reason"]
    for options in ({"delta": (1.5,)}, {"epsilon": (0.0,)}, {"confidence": 1.0}, {"repeats": 1}):
        with pytest.raises(UsageError):
            audited(file, "@performer", **options)


def test_exact_attention_that_is_not_finite_is_a_failed_row(file):
    big = torch.full((2, 24, 6), 1e160, dtype=torch.float64)
    save_file({"q": big, "k": big.clone(), "v": big.clone()}, file)
    (record,) = audited(file, "@performer", repeats=2, dtype="float64")
    assert record["status"] == "failed" and record["reason"].startswith("exact attention itself is not finite")


def test_a_model_has_a_residual_error_too(run, tiny_bert, text_file):
    words = ("--model", tiny_bert, "--text", text_file, "--n", 16, "--method", "performer", "--d", 8, "--repeats", 3)
    code, _, err = run("audit", *words, "--no-matrix", "--no-input-statistics", "--device", "cpu", "--out", "r")
    assert code == 0, err
    assert all(value > 0 for record in read_records("r") for value in record["metrics"]["residual_error"])


def test_a_budget_is_held_against_the_keys_where_queries_are_few(file):
    (record,) = audited(file, "@vattention", queries="last:4", repeats=3, d=(12,))
    assert record["status"] == "ok" and record["metrics"]["ess"][0] == pytest.approx(12, rel=0.5)


@pytest.mark.parametrize("causal", [False, True])
def test_the_keys_that_are_read_are_told(file, run, causal, tmp_path):
    """A promise may take more keys than d: records and the table have their mean and share."""
    path = tmp_path / "given.safetensors"
    save_file(load_file(file), path, metadata={"causal": str(causal).lower()})
    (record,) = audited(path, "@vattention", repeats=3, d=(12,), matrix=False)
    qkv = load_qkv(qkv=str(path), layer=0, device="cpu", notify=lambda line: None)
    seeds = [approximate("vattention", qkv, 12, seed=seed) for seed in range(3)]
    read = torch.stack([approx.diagnostics["realised_d"].double() for approx in seeds]).mean(0)
    seen = (qkv.n_k + 1) / 2 if causal else qkv.n_k
    assert record["metrics"]["keys"] == pytest.approx(read.tolist(), rel=1e-9)
    assert record["metrics"]["keys_share"] == pytest.approx((read / seen).tolist(), rel=1e-9)
    code, out, _ = run(
        "audit", "vattention", f"--qkv {path} --d 12 --repeats 3 --no-matrix --device cpu --format github"
    )
    assert code == 0 and f"{significant(float(read.mean()))} ({per_cent(float((read / seen).mean()))})" in out


def test_the_command_shows_verdicts_and_gates_them(run, file):
    args = ["audit", "--qkv", file, "--method", f"{file.parent / 'mine.py'}:coin", "--epsilon", "0.5", "--no-matrix"]
    args += ["--repeats", "100", "--delta", "0.05"]
    code, out, err = run(*args, "--out", "r", "--plot")
    assert code == 0, err
    assert "violated 2/2" in out
    assert (file.parent / "r/figures/calibration-n24.svg").exists()
    code, _, err = run(*args, "--out", "r", "--fail-above", "violated=0")
    assert code == 1 and "violated.mean <= 0" in err
    code, out, _ = run("report", "r", "--format", "json")
    rows = json.loads(out)["rows"]
    assert Counter(row["verdict"] for row in rows) == {"violated": 2}
    (record,) = read_records(file.parent / "r")
    assert record["trials"] == 100 and np.isclose(rows[0]["rate"], record["statements"][0]["rate"][0])
    code, _, err = run("audit", "--qkv", file, "--delta", "2")
    assert code == 2 and "choose probabilities above 0 and below 1" in err


@pytest.mark.parametrize("repeats, noted", [(120, True), (121, False)])
def test_repeats_that_cannot_show_a_promise_are_said(repeats, noted):
    """Of twelve heads at δ = 0.05 one without an exceedance holds if 0.95^N ≤ 0.025 / 12: from 121 repeats on."""
    p = exact_p_values(np.zeros(12), repeats, 0.05)
    assert (verdicts(p, 0.95) == "holds").all() != noted
    row = {"verdicts": {"undecided": 12}, "per": "head", "anytime": False, "values": 24, "cells": 2}
    row |= {"delta": 0.05, "confidence": 0.95, "trials": [repeats] * 2}
    lines = too_few([row, {**row, "verdicts": {"holds": 12}}, {**row, "per": "row"}, {**row, "verdicts": {}}])
    assert lines == ["undecided: too few repeats to show a probability of at most 0.05; choose --repeats 121"] * noted


@pytest.mark.parametrize("repeats, biased, doubted", [(60, 1.0, True), (400, 1.0, False), (60, 0.0, False)])
def test_a_bias_of_few_repeats_is_doubted(repeats, biased, doubted):
    rows = [{"trials": [repeats, repeats], "metrics": {"biased": {"mean": biased}}}, {"trials": [9, 9], "metrics": {}}]
    notes = doubts(rows)
    assert bool(notes) == doubted and all(f"{repeats} repeats may find a bias" in line for line in notes)


@pytest.fixture
def calibration(tmp_path, monkeypatch):
    """``calibration(heads, deltas)``: the figure of shares of 1 at two ε, and of 0 of the numerator."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from attnprobe.experiments.audit.figures import audit_figures
    from attnprobe.figures import files
    from attnprobe.figures.drawing import Drawing

    def draw(heads, deltas):
        sheets = []
        monkeypatch.setattr(files, "saved", lambda sheet, stem, drawing: sheets.append(sheet) or [])
        place = {"method": "performer", "options": {}, "d": 16, "layer": 0, "window": 0, "n": 64}
        rows = [
            {**place, "head": head, "epsilon": epsilon, "quantity": quantity, "source": None, "target": "softmax"}
            | {"verdict": "violated", "worst": share, "lower": share, "upper": share, "trials": 100, "delta": delta}
            | {"confidence": 0.95}
            for quantity, share in (("normaliser", 1.0), ("numerator", 0.0), ("output", 1.0))
            for delta in deltas
            for epsilon in (0.05, 0.1)
            for head in range(heads)
        ]
        audit_figures(rows, Drawing(), tmp_path)
        (figure,) = [sheet.figure for sheet in sheets]
        FigureCanvasAgg(figure).draw()
        return figure

    return draw


@pytest.mark.parametrize(
    ("verdict", "ends"), [("violated", (0.05, 0.2)), ("holds", (0.01, 0.05)), ("undecided", (0.01, 0.2))]
)
def test_the_interval_of_a_decided_head_ends_at_delta(verdict, ends):
    from matplotlib.figure import Figure

    from attnprobe.experiments.audit.figures import _panel

    row = {"layer": 0, "head": 0, "window": 0, "delta": 0.05, "epsilon": 0.1, "verdict": verdict, "worst": 0.1}
    axis = Figure().subplots()
    _panel(0.001, axis, [{**row, "lower": 0.01, "upper": 0.2}])
    (bar,) = [line for line in axis.get_lines() if len({*line.get_xdata()}) == 1 == len(line.get_xdata()) - 1]
    assert tuple(bar.get_ydata()) == ends


@pytest.mark.parametrize("heads", [2, 12])
def test_markers_of_neighbours_do_not_cover_each_other(heads, calibration):
    """Shares of 1 of all heads at two ε, and of 0; none is cut by the edge."""
    figure = calibration(heads, [0.05])
    for axis in figure.axes:
        lines = [line for line in axis.get_lines() if line.get_marker() == "X"]
        spots = [line.get_transform().transform(line.get_xydata())[0] * 72 / figure.dpi for line in lines]
        steps = np.diff(sorted(x for x, _ in spots))
        size = lines[0].get_markersize()
        assert len(spots) == 2 * heads and size <= steps.min() and (heads > 2 or size == 6)
        assert axis.get_window_extent().y0 * 72 / figure.dpi + size / 2 <= min(y for _, y in spots)
    numbers = {text.get_text(): text.get_position()[1] for text in figure.axes[0].get_yticklabels()}
    zeros = {line.get_ydata()[0] for line in figure.axes[1].get_lines() if line.get_marker() == "X"}
    assert zeros == {numbers.pop("0")} and min(numbers.values()) > 1.2 * max(zeros)
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["0.05", "0.1"]


def test_each_delta_is_named_once_and_heads_of_one_epsilon_stand_together(calibration):
    figure = calibration(2, [0.05, 0.2])
    assert figure.get_suptitle().replace("\u00a0", " ") == "performer d = 16, layer 0, n = 64"
    for axis in figure.axes:
        labels = [text for minor in (False, True) for text in axis.get_xticklabels(minor=minor)]
        assert [text.get_text().strip() for text in labels] == [*["0.05", "0.1"] * 2, "δ = 0.05", "δ = 0.2"]
        boxes = [text.get_window_extent() for text in labels[4:]]
        assert boxes[0].x1 < boxes[1].x0
        x = sorted(line.get_xdata()[0] for line in axis.get_lines() if line.get_marker() == "X")
        steps = np.diff(x)
        assert max(steps[::2]) < min(steps[1::2])
