"""``attnprobe audit``: promises of methods whose probability of an error is known, and what a run leaves of them."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from asked import measured
from safetensors.torch import load_file, save_file
from scipy.stats import binom

from attnprobe import QKV, approximate, load_qkv
from attnprobe.errors import UsageError
from attnprobe.frame.records.read import read_records
from attnprobe.measure.audit import AuditRequest, measure_guarantees
from attnprobe.measure.audit.measure import Tally
from attnprobe.metrics.guarantees import GuaranteeReference, over_heads
from attnprobe.operators.linalg.exceedance import exact_p_values, verdicts
from attnprobe.reference import exact_output
from attnprobe.rng import generator
from attnprobe.show.catalogue.audit import NORMALISERS, PROMISES

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


def of_heads(cell, name, kind="head", **promise):
    """A number of each head, of one promise where the rows are promises."""
    rows = [row for row in cell["rows"] if row["kind"] == kind]
    return [row[name] for row in rows if all(row[key] == value for key, value in promise.items())]


def promised(cell, name, **promise):
    return of_heads(cell, name, "promise", **promise)


@pytest.mark.parametrize("stop", [False, True])
def test_verdicts_on_methods_with_known_probabilities(file, stop):
    """An output that is doubled with probability 0.3 breaks δ = 0.05 and keeps δ = 0.6; an exact one keeps all."""
    coin, exact = audited(file, "coin", "exact", delta=(0.05, 0.6), stop=stop, matrix=False)
    assert promised(coin, "verdict", delta=0.05) == ["violated"] * 2
    assert promised(coin, "verdict", delta=0.6) == ["holds"] * 2
    assert promised(exact, "verdict") == ["holds"] * 4
    low, high = binom.ppf([1e-6, 1 - 1e-6], coin["trials"], 0.3) / coin["trials"]
    for row in coin["rows"]:
        assert row["kind"] == "head" or row["quantity"] == "output" and row["per"] == "head"
        assert row["kind"] == "head" or low <= row["rate"] <= high and row["lower"] <= row["rate"] <= row["upper"]
    assert coin["trials"] == 200 if not stop else coin["trials"] < 200
    assert not any("bias" in row for row in coin["rows"]), "no normaliser is stated"


def test_a_promise_just_kept_is_undecided(file):
    (coin,) = audited(file, "coin", delta=(0.32,), matrix=False)
    assert promised(coin, "verdict") == ["undecided"] * 2


def test_rows_are_judged_one_by_one(file):
    """One of 24 rows breaks the promise: so does the head, though its mean rate is far below δ."""
    (row,) = audited(file, "first_row", rows=True, matrix=False)
    assert promised(row, "per") == ["row"] * 2 and promised(row, "verdict") == ["violated"] * 2
    assert promised(row, "rows_violated") == [1, 1] and max(promised(row, "rate")) < 0.05 < min(promised(row, "worst"))
    (head,) = audited(file, "first_row", matrix=False)
    assert promised(head, "verdict") == ["holds"] * 2


def test_a_result_that_is_not_finite_exceeds_every_error(file):
    (lost,) = audited(file, "lost", matrix=False)
    assert lost["status"] == "diverged" and lost["reason"].startswith("not finite in 200 repeats: ")
    assert promised(lost, "verdict") == ["violated"] * 2
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
    promises = [row for row in record["rows"] if row["kind"] == "promise"]
    for row in promises:
        exceeded = torch.stack(errors[row["quantity"]])[:, row["head"]] > row["epsilon"]
        assert row["rate"] == pytest.approx(float(exceeded.double().mean()))
    assert len(promises) == 16
    ratios = torch.stack(ratios)
    assert of_heads(record, "bias") == pytest.approx(ratios.mean((0, 2)).tolist(), rel=1e-6)
    spread = ratios.std(0).square().mean(-1).sqrt()
    assert of_heads(record, "normaliser_sd") == pytest.approx(spread.tolist(), rel=1e-6)


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
    assert [row["verdict"] for row in tally.promises()] == ["holds", "violated"]


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


def test_a_model_has_a_residual_error_too(tiny_bert, text_file, tmp_path):
    words = ("--model", tiny_bert, "--text", text_file, "--n", 16, "--method", "performer", "--d", 8, "--repeats", 3)
    spec = ("--no-matrix", "--no-input-statistics", "--device", "cpu", "--out", tmp_path / "r")
    errors = [value for record in measured("audit", *words, *spec) for value in of_heads(record, "residual_error")]
    assert errors and all(value > 0 for value in errors)


def test_a_budget_is_held_against_the_keys_where_queries_are_few(file):
    (record,) = audited(file, "@vattention", queries="last:4", repeats=3, d=(12,))
    assert record["status"] == "ok" and of_heads(record, "ess")[0] == pytest.approx(12, rel=0.5)


@pytest.mark.parametrize("causal", [False, True])
def test_the_keys_that_are_read_are_told(file, causal, tmp_path):
    """A promise may take more keys than d: rows have their mean and share."""
    path = tmp_path / "given.safetensors"
    save_file(load_file(file), path, metadata={"causal": str(causal).lower()})
    (record,) = audited(path, "@vattention", repeats=3, d=(12,), matrix=False)
    qkv = load_qkv(qkv=str(path), layer=0, device="cpu", notify=lambda line: None)
    seeds = [approximate("vattention", qkv, 12, seed=seed) for seed in range(3)]
    read = torch.stack([approx.diagnostics["realised_d"].double() for approx in seeds]).mean(0)
    seen = (qkv.n_k + 1) / 2 if causal else qkv.n_k
    assert of_heads(record, "keys") == pytest.approx(read.tolist(), rel=1e-9)
    assert of_heads(record, "keys_share") == pytest.approx((read / seen).tolist(), rel=1e-9)


def test_the_command_shows_verdicts_and_gates_them(run, file):
    args = ["audit", "--qkv", file, "--method", f"{file.parent / 'mine.py'}:coin", "--epsilon", "0.5", "--no-matrix"]
    args += ["--repeats", "100", "--delta", "0.05"]
    code, out, err = run(*args, "--out", "r", "--plot")
    assert code == 0, err
    assert "Promises, one for each head, ε and δ: 2 violated of 2." in out
    assert (file.parent / "r/figures/calibration.svg").exists()
    code, _, err = run(*args, "--out", "r", "--fail-above", "violated=0")
    assert code == 1 and "violated.mean <= 0" in err
    code, out, _ = run("report", "r", "--format", "json")
    (line,) = json.loads(out)["rows"]
    assert line["violated.sum"] == line["values"] == 2
    (record,) = read_records(file.parent / "r")
    assert record["trials"] == 100 and np.isclose(line["rate.mean"], np.mean(promised(record, "rate")))
    code, _, err = run("audit", "--qkv", file, "--delta", "2")
    assert code == 2 and "choose probabilities above 0 and below 1" in err


@pytest.mark.parametrize("repeats, noted", [(120, True), (121, False)])
def test_repeats_that_cannot_show_a_promise_are_said(repeats, noted):
    """Of twelve heads at δ = 0.05 one without an exceedance holds if 0.95^N ≤ 0.025 / 12: from 121 repeats on."""
    p = exact_p_values(np.zeros(12), repeats, 0.05)
    assert (verdicts(p, 0.95) == "holds").all() != noted
    rows = pd.DataFrame({"key": "a", "head": range(12), "verdict": "undecided", "per": "head", "anytime": False})
    rows = rows.assign(delta=0.05, confidence=0.95, trials=repeats)
    others = [rows.assign(verdict="holds"), rows.assign(per="row"), rows.assign(anytime=True)]
    lines = PROMISES.notes(pd.concat([rows, *(other.assign(key=f"{n}") for n, other in enumerate(others))]))
    assert lines == ["undecided: too few repeats to show a probability of at most 0.05; choose --repeats 121"] * noted


@pytest.mark.parametrize("repeats, biased, doubted", [(60, 1.0, True), (400, 1.0, False), (60, 0.0, False)])
def test_a_bias_of_few_repeats_is_doubted(repeats, biased, doubted):
    rows = pd.DataFrame({"biased": [biased, pd.NA], "trials": [repeats, 9]}).convert_dtypes()
    notes = NORMALISERS.notes(rows)
    assert bool(notes) == doubted and all(f"{repeats} repeats may find a bias" in line for line in notes)
