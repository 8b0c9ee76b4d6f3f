"""Causal attention: every method that has a causal form, and the refusal of every other."""

import functools

import pytest
import torch
from inputs import (
    DTYPES,
    PRECISIONS,
    SCORES,
    assert_twin,
    draws_of,
    entry_band,
    eps,
    make,
    one_head,
    output_band,
    reaching,
)
from pretend_device import AWAY, Pretended, pretending
from thinned import others_slow
from twins import exact as exact_twin
from twins_causal import CAUSAL, last_rows
from twins_dyadic import CAUSAL as DYADIC

from attnprobe import exact, matrix_errors, output_errors
from attnprobe.errors import Unsupported, UsageError
from attnprobe.methods import METHODS, approximate, get
from attnprobe.metrics import input_statistics
from attnprobe.metrics.spectrum import attention_matrix
from attnprobe.operators import CausalFeatures
from attnprobe.qkv import QKV
from attnprobe.reference import exact_output
from attnprobe.rng import generator

N, BUDGET = 40, 12
FORMS = [(name, target) for name, entry in METHODS.items() for target in entry.targets if entry.is_causal]
PREFILL = [name for name, entry in METHODS.items() if "prefill" in entry.tags]
WHOLE_SCALE = [name for name, entry in METHODS.items() if "whole_scale" in entry.tags]
TAKEN = FORMS + [("svd", "softmax"), ("svd", "gaussian")] + [(name, "softmax") for name in PREFILL + WHOLE_SCALE]
every_form = pytest.mark.parametrize("name, target", FORMS)
every_taken = pytest.mark.parametrize("name, target", TAKEN)
every_score = pytest.mark.parametrize("score", SCORES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
# whose float32 test_every_form compares with the reference
in_float64 = pytest.mark.parametrize(
    "score, dtype", others_slow(PRECISIONS, lambda case: case[1] == torch.float64), ids=["float64", "float32"]
)
# what no rounding moves, or float32 more than float64
of_float32 = pytest.mark.parametrize(
    "dtype", others_slow(DTYPES, lambda dtype: dtype[0] == torch.float32), ids=lambda dtype: str(dtype)[6:]
)


def causal(**shape) -> QKV:
    return make(**{"n": N, **shape}).replace(causal=True)


def run(name, target, qkv, d=None, **options):
    d = max(BUDGET, get(name).least) if d is None else d
    keys = {} if get(name).format is None else {"of": "k"}  # so that its values are V
    options = {**get(name).small, **keys, **options}
    return approximate(name, qkv, None if get(name).budget is None else d, target=target, **options)


@functools.cache
def whole(name, target, dtype):
    """The output on all tokens, made once for the tests that compare with it."""
    return run(name, target, causal(dtype=dtype)).output


def random_like(shape, *labels):
    return torch.randn(shape, generator=generator(0, *labels), dtype=torch.float64)


def with_future(qkv: QKV, first: int, factor: float, label: str) -> QKV:
    """Other queries, keys and values from token ``first`` on, ``factor`` times as large."""
    tensors = {}
    for axis in "qkv":
        x = getattr(qkv, axis).clone()
        x[:, first:] = factor * random_like(x[:, first:].shape, label, axis).to(x.dtype)
        tensors[axis] = x
    return qkv.replace(**tensors)


def test_the_forms_are_these():
    """The tag is a claim; what the issue of causal attention names has it, and svd stands for the causal matrix."""
    names = "softmax kernelized vmean window longformer bigbird tri-shape topk performer performer-relu linear reformer"
    names += " lsh-qk dsa-oracle expected h2o keydiff knorm moba nsa quest random snapkv topp tova magicpig vattention"
    formats = {name for name, entry in METHODS.items() if entry.format is not None and "whole_scale" not in entry.tags}
    assert {name for name, _ in FORMS} == {*names.split(), *formats, *DYADIC}
    assert set(CAUSAL) == {name for name, _ in TAKEN}
    assert [name for name, entry in METHODS.items() if "causal_target" in entry.tags] == ["svd"]


@in_float64
@every_taken
def test_a_causal_form_equals_its_literal_twin(name, target, score, dtype):
    qkv = causal(n=23, score=score, dtype=dtype)
    approx = run(name, target, qkv)
    assert_twin(approx, qkv, CAUSAL[name], max(BUDGET, get(name).least), target)


@pytest.mark.parametrize(
    "name, options",
    [
        ("performer", {"eps": 1e-4}),
        ("performer", {"eps": 0.3}),
        ("performer", {"double_norm": True}),
        ("performer-relu", {"eps": 0.1}),
        ("linear", {"scale": True}),
        ("window", {"sinks": 0}),
        ("window", {"sinks": 7}),
        ("longformer", {"global_tokens": 0}),
        ("longformer", {"global_tokens": 3}),
        ("bigbird", {"random_blocks": 1}),
        ("topk", {"renormalize": False}),
        ("lsh-qk", {"rounds": 1}),
        ("lsh-qk", {"rounds": 3, "buckets": 6}),
        ("reformer", {"rounds": 3}),
        ("reformer", {"duplicates": "once"}),
        ("reformer", {"logits": "scaled", "buckets": 4}),
    ],
)
def test_options_mean_in_a_causal_form_what_they_mean(name, options):
    qkv = causal(n=23)
    approx = run(name, "softmax", qkv, **options)
    assert_twin(approx, qkv, CAUSAL[name], BUDGET, **options)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mask", [{"causal": True, "sinks": 2}, {}], ids=["causal", "both sides"])
@pytest.mark.parametrize("name, options", [("performer", {"eps": 0.3}), ("performer-relu", {}), ("linear", {})])
def test_windowed_features_are_those_of_the_keys_in_the_window(name, options, mask, score):
    """At every width: windows within a block of keys, over two, and over the whole text."""
    for width in (1, 5, 22, 40):
        qkv = make(n=23, score=score).replace(sliding_window=width, **mask)
        approx = run(name, "softmax", qkv, **options)
        twins = [
            CAUSAL[name](one_head(qkv, row), BUDGET, draws_of(approx, row), "softmax", **options) for row in (0, 1)
        ]
        band = entry_band(approx.operator, qkv, torch.float64)
        assert ((approx.operator.dense() - torch.stack(twins)).abs() <= band).all()


def test_a_windowed_row_is_no_number_only_if_the_query_shares_no_feature_with_a_key_that_it_sees():
    qkv = make(h=2, n=N, p=2).replace(causal=True, sliding_window=3)
    approx = run("performer-relu", "softmax", qkv, 2, eps=0.0)
    w = approx.draws["projection"]
    phi_q, phi_k = ((x @ w.mT).relu() for x in (qkv.q, qkv.k))
    empty = ((phi_q @ phi_k.mT) * ~qkv.visible.hidden(N)).sum(-1) == 0
    assert 0 < int(empty.sum()) < 2 * N and torch.equal(approx.diagnostics["bad_rows"], empty.sum(-1))
    assert torch.equal(~torch.isfinite(approx.output).all(-1), empty)


@of_float32
@every_form
def test_no_later_token_moves_an_earlier_row(name, target, dtype):
    """Later Q, K and V, thirty times as large too: earlier rows stay as they are to a few roundings."""
    qkv = causal(dtype=dtype)
    expected = whole(name, target, dtype)
    for first, factor in ((1, 1.0), (17, 30.0), (N - 1, 1.0)):
        got = run(name, target, with_future(qkv, first, factor, "future"))
        before = expected[:, :first]
        assert torch.isfinite(got.output[:, :first]).all()
        assert (got.output[:, :first] - before).abs().max() <= 64 * eps(dtype) * qkv.v.abs().max()
        assert not torch.equal(got.output[:, first:], expected[:, first:])
        dense = got.operator.dense()
        if get(name).claims("vanishing_normaliser", target):  # a lost row has no entry ahead that is a number
            dense = dense.masked_fill(dense.isnan().any(-1, keepdim=True), 0.0)
        assert not dense.triu(1).any()


@pytest.mark.parametrize(
    "name, options",
    [
        ("performer", {"eps": 1e-4}),
        ("performer-relu", {"eps": 0.1}),
        ("linear", {"scale": True}),
        ("window", {"sinks": 0}),
        ("longformer", {"global_tokens": 3}),
        ("bigbird", {"random_blocks": 1}),
        ("topk", {"renormalize": False}),
        ("lsh-qk", {"rounds": 1}),
        ("reformer", {"duplicates": "once"}),
    ],
)
def test_nor_does_one_with_options(name, options):
    qkv = causal()
    expected, got = (run(name, "softmax", x, **options).output[:, :17] for x in (qkv, with_future(qkv, 17, 30.0, "z")))
    assert (got - expected).abs().max() <= 64 * eps(torch.float64) * qkv.v.abs().max()


def test_the_test_of_the_future_would_notice():
    """The negative control: the truncated SVD of the causal matrix looks ahead."""
    qkv = causal()
    expected, got = (run("svd", "softmax", x).output[:, :17] for x in (qkv, with_future(qkv, 17, 1.0, "future")))
    assert (expected - got).abs().max() > 1e-3
    assert run("svd", "softmax", qkv).operator.dense().triu(1).abs().max() > 1e-3


@of_float32
@every_form
def test_the_first_row_is_the_first_value(name, target, dtype):
    qkv = causal(dtype=dtype)
    first = whole(name, target, dtype)[:, 0]
    if name == "kernelized" or (target == "gaussian" and name != "vmean"):  # which are not normalised
        weight = torch.exp(-qkv.scale / 2 * (qkv.q[:, :1] - qkv.k[:, :1]).square().sum(-1))
        torch.testing.assert_close(first, weight * qkv.v[:, 0])
        return
    assert ((first - qkv.v[:, 0]).abs() <= 4 * eps(dtype) * qkv.v[:, 0].abs()).all()


@in_float64
@pytest.mark.parametrize(
    "name, target", [(name, target) for name, target in TAKEN if get(name).claims("exact_at_full_budget", target)]
)
@pytest.mark.parametrize("n", [9, 20])
def test_the_full_budget_is_exact_causal_attention(name, target, score, dtype, n):
    qkv = causal(n=n, score=score, dtype=dtype)
    d, options = get(name).exact_at(n)
    approx = run(name, target, qkv, d=d, **options)
    band = entry_band(approx.operator, qkv, approx.operator.dtype)
    twin = last_rows(lambda some, *_: exact_twin(some, target))
    for row in range(qkv.h):
        expected = twin(one_head(qkv, row), d, {}, target)
        assert ((approx.operator.dense()[row].double() - expected).abs() <= band[row]).all()


@in_float64
@every_taken
def test_the_operator_is_linear_and_all_of_it(name, target, score, dtype):
    """Products, transposes, rows, the output and heads alone agree, and rows sum to 1 where the method says so."""
    qkv = causal(n=150, score=score, dtype=dtype)  # three chunks of a prefix sum
    approx = run(name, target, qkv)
    operator = approx.operator
    dense, band = operator.dense().double(), entry_band(operator, qkv, operator.dtype)
    x, u = random_like((2, 150, 3), "x"), random_like((2, 150, 3), "u")
    assert (((operator @ x).double() - dense @ x).abs() <= band @ x.abs()).all()
    assert ((operator.rmatmul(u).double() - dense.mT @ u).abs() <= band.mT @ u.abs()).all()
    blocks = torch.cat([operator.rows(*ends) for ends in ((0, 7), (7, 70), (70, 71), (71, 150))], 1)
    assert ((blocks.double() - dense).abs() <= band).all()
    assert ((approx.output.double() - dense @ qkv.v.double()).abs() <= output_band(approx, qkv, operator.dtype)).all()
    # two threads divide the products of two heads in another way than those of one
    assert ((operator.heads(slice(1, 2)).dense().double() - dense[1:]).abs() <= 2 * band[1:]).all()
    if get(name).claims("row_sums_one", target):
        assert ((dense.sum(-1) - 1).abs() <= band.sum(-1)).all()
    if get(name).claims("nonnegative", target):
        assert (dense >= 0).all()
    alone = run(name, target, qkv.select([1]))
    assert ((alone.operator.dense()[0].double() - dense[1]).abs() <= band[1]).all()


@every_taken
def test_masked_equals_compressed(name, target):
    qkv = causal(n=N + 5)
    mask = torch.ones(N + 5, dtype=torch.bool)
    mask[[0, 6, 7, 30, N + 4]] = False
    padded = qkv.replace(mask=mask)
    got, expected = run(name, target, padded), run(name, target, padded.compressed())
    assert padded.compressed().causal
    assert torch.equal(got.output[:, mask], expected.output) and not got.output[:, ~mask].any()
    assert torch.equal(got.operator.dense()[:, mask][:, :, mask], expected.operator.dense())


@pytest.mark.parametrize("score", [3.0, 10.0, 30.0])
def test_heads_whose_rows_rounding_decides_are_counted(score):
    """Queries that differ by rounding have another output: of a trained head, 18 times as large with two threads.

    Between the heads that are counted (above 1e-4) and the others (below 1e-7) lie three digits, so that no processor
    decides on which side of 1e-5 a head is.
    """
    qkv = make(h=4, n=200, p=8, score=score, dtype=torch.float64).replace(causal=True)
    one, draws = approximate("skyformer", qkv, 16), torch.Generator().manual_seed(0)
    moved = torch.zeros(4, dtype=torch.bool)
    for _ in range(3):
        signs = torch.randn(qkv.q.shape, generator=draws, dtype=qkv.dtype).sign()
        other = approximate("skyformer", qkv.replace(q=qkv.q * (1 + 3e-16 * signs)), 16)
        moved |= (one.output - other.output).flatten(1).norm(dim=1) > 1e-5 * one.output.flatten(1).norm(dim=1)
    rounded = one.diagnostics["rounded_rows"] > 0
    assert (rounded == moved).all() and bool(moved.all()) == (score == 30) and bool(moved.any()) == (score >= 10)


@of_float32
@every_taken
def test_large_scores_give_finite_outputs(name, target, dtype):
    for top in (200.0, 2000.0, 2e4):
        approx = run(name, target, reaching(top, n=N, dtype=dtype).replace(causal=True))
        if get(name).claims("vanishing_normaliser", target):
            assert (approx.lost_rows() <= approx.diagnostics["bad_rows"]).all()
        else:
            assert torch.isfinite(approx.output).all() and not approx.diagnostics["bad_rows"].any()


@every_form
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_runs_and_lies_near(name, target, dtype):
    qkv = causal(n=20, score=0.25, dtype=dtype)
    approx, expected = run(name, target, qkv), run(name, target, qkv.to(dtype=torch.float64)).output
    assert approx.output.dtype == dtype
    assert ((approx.output.double() - expected).norm(dim=(1, 2)) <= 80 * eps(dtype) * expected.norm(dim=(1, 2))).all()


@every_form
def test_diagnostics_count_what_lies_at_or_before_the_row(name, target):
    approx = run(name, target, causal())
    entries = (approx.operator.dense() > 0).sum((1, 2)).double()
    family = get(name).family
    if family == "sparse":
        assert torch.equal(approx.diagnostics["realised_d"] * N, entries)
    if name == "lsh-qk":
        assert torch.equal(approx.diagnostics["realised_d"] * N, entries)
    if get(name).budget is not None:
        assert (approx.diagnostics["realised_d"] <= max(BUDGET, get(name).least)).all()


@pytest.mark.parametrize(
    "name", ["softmax", "kernelized", "svd", "topk", "topp", "dsa-oracle", "vattention", "magicpig"]
)
def test_all_scores_of_causal_rows_are_those_of_the_keys_that_they_see(name):
    costs = run(name, get(name).targets[0], causal()).diagnostics
    assert (costs["visited"] == 820).all()  # 1 + 2 + … + 40
    assert (costs["scored"] == 20.5).all() if name in ("topk", "topp", "dsa-oracle") else True


def test_the_scores_of_a_probe_are_those_of_the_keys_that_its_rows_see():
    costs = run("vertical-slash", "softmax", causal(), probe=4).diagnostics
    assert (costs["scored"] == (37 + 38 + 39 + 40) / 40).all()


@pytest.mark.parametrize("name", sorted({*METHODS} - {name for name, _ in TAKEN}))
def test_a_method_without_a_causal_form_says_so(name):
    with pytest.raises(Unsupported, match=f"attention is causal, and {name} has no causal form"):
        run(name, get(name).targets[0], causal())


@pytest.mark.parametrize("name, target", [form for form in FORMS if form[0] not in DYADIC])
def test_draws_are_those_of_the_method(name, target):
    """Causal or not: what is drawn depends on the seed alone. The dyadic form draws for each of its blocks."""
    qkv = causal()
    assert run(name, target, qkv).draws_hash() == run(name, target, qkv.replace(causal=False)).draws_hash()


@every_form
def test_gradients_are_those_of_differences_and_none_comes_from_the_future(name, target):
    qkv = causal(h=1)
    leaves = [getattr(qkv, axis).clone().requires_grad_() for axis in "qkv"]

    def output(q, k, v):
        return run(name, target, qkv.replace(q=q, k=k, v=v)).output[:, :17]

    weights = random_like((1, 17, 5), "weights")
    grads = torch.autograd.grad((output(*leaves) * weights).sum(), leaves, allow_unused=True)
    assert all(grad is None or not grad[:, 17:].any() for grad in grads)
    towards = [random_like(x.shape, "towards", str(i)) for i, x in enumerate(leaves)]
    along = sum(float((g * t).sum()) for g, t in zip(grads, towards, strict=True) if g is not None)
    step = 1e-6
    ends = [output(*(x.detach() + sign * step * t for x, t in zip(leaves, towards, strict=True))) for sign in (1, -1)]
    difference = float(((ends[0] - ends[1]) * weights).sum()) / (2 * step)
    assert along == pytest.approx(difference, rel=1e-4, abs=1e-4) and along != 0.0


@every_score
@pytest.mark.parametrize("target", ["softmax", "gaussian"])
def test_the_exact_causal_matrix(target, score):
    """Operator, output and errors; torch's own causal kernel for the softmax target."""
    qkv = causal(n=70, score=score)
    twin = last_rows(lambda some, *_: exact_twin(some, target))
    dense = torch.stack([twin(one_head(qkv, row), None, {}, target) for row in range(2)])
    operator = exact(qkv, target)
    band = entry_band(operator, qkv, torch.float64)
    assert ((operator.dense() - dense).abs() <= band).all() and not operator.dense().triu(1).any()
    assert ((operator.heads(slice(1, 2)).dense() - operator.dense()[1:]).abs() <= 2 * band[1:]).all()
    single = operator.to(torch.float32).dense()
    assert not single.triu(1).any() and (single - dense).abs().max() < 1e-4
    assert ((exact_output(qkv, target) - dense @ qkv.v).abs() <= band @ qkv.v.abs()).all()
    complete = approximate("softmax" if target == "softmax" else "kernelized", qkv, target=target)
    assert output_errors(operator, complete, qkv)["output_spectral"].max() < 1e-12
    if target == "softmax":
        fused = torch.nn.functional.scaled_dot_product_attention(qkv.q, qkv.k, qkv.v, is_causal=True, scale=qkv.scale)
        torch.testing.assert_close(exact_output(qkv), fused, rtol=1e-12, atol=1e-12)


def test_the_unnormalised_causal_matrix():
    qkv = causal(score=6.0)
    operator = attention_matrix(qkv, "unnormalised")
    scores = qkv.scale * qkv.q @ qkv.k.mT
    hidden = torch.ones(N, N, dtype=torch.bool).triu(1)
    torch.testing.assert_close(operator.shift, scores.masked_fill(hidden, float("-inf")).amax((1, 2)))
    expected = torch.exp(scores - operator.shift[:, None, None]).masked_fill(hidden, 0)
    for same in (operator, operator.heads(slice(0, 2)), operator.to(torch.float32)):
        assert (same.dense() - expected).abs().max() < 1e-4 and not same.dense().triu(1).any()
    with pytest.raises(Unsupported, match="attention is causal, and lifted-softmax has no causal form"):
        attention_matrix(qkv, "lifted-softmax")


def test_statistics_of_causal_inputs_are_of_what_is_seen():
    qkv = causal(n=90, score=3.0)
    actual, uniform = input_statistics(qkv), input_statistics(causal(n=90, score=1e-12))
    for row in range(2):
        s, b = qkv.scale * qkv.q[row] @ qkv.k[row].T, exact(qkv).dense()[row]
        seen = s[torch.ones(90, 90).tril().bool()]
        entropy = -(b * b.clamp(min=1e-300).log()).sum(1)
        expected = {
            "score_std": seen.std(correction=0),
            "score_max": seen.abs().max(),
            "entropy": entropy.mean(),
            "entropy_share": entropy.mean() / torch.arange(1, 91).double().log().mean(),
            "sink_first": b.mean(0)[0],
            "sink_most": b.mean(0).max(),
            "stable_rank": b.square().sum() / torch.linalg.matrix_norm(b, 2) ** 2,
        }
        for name, value in expected.items():
            assert float(actual[name][row]) == pytest.approx(float(value), rel=1e-3 if "rank" in name else 1e-10), name
        assert float(uniform["entropy_share"][row]) == pytest.approx(1.0)


@pytest.mark.parametrize("n", [150, 300])  # held, and streamed with a certificate
@pytest.mark.parametrize("name", ["performer", "window", "vmean", "svd"])
def test_matrix_errors_are_those_of_the_causal_matrix(n, name):
    qkv = causal(n=n)
    approx = run(name, "softmax", qkv)
    e = exact(qkv).dense() - approx.operator.dense()
    actual = matrix_errors(exact(qkv), approx.operator)
    norm = torch.linalg.matrix_norm(e, 2)
    assert (actual["matrix_spectral_lower"] <= norm * (1 + 1e-9)).all()
    assert (norm <= actual["matrix_spectral_upper"] * (1 + 1e-9)).all()
    torch.testing.assert_close(actual["matrix_frobenius"], e.norm(dim=(1, 2)))
    torch.testing.assert_close(actual["matrix_infinity"], e.abs().sum(-1).amax(-1))
    full = qkv.replace(causal=False)
    other = matrix_errors(exact(full), approx.operator)["matrix_frobenius"]
    assert (other - actual["matrix_frobenius"]).abs().min() > 1e-3


@pytest.mark.parametrize("size", [1.0, 40.0, 1e4])
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 200])
def test_prefix_sums_equal_the_masked_kernel(n, size):
    """Whatever the size of the logarithms: features that overflow, vanish, or appear late."""
    log_q, log_k = (size * random_like((2, n, 7), name) for name in ("log q", "log k"))
    log_k[:, : n // 2, 3] = float("-inf")
    log_k[1, :, 4] = float("-inf")
    log_q[:, n // 3 :, 5] = float("-inf")
    operator = CausalFeatures(log_q, log_k)
    scores = (log_q[:, :, None] + log_k[:, None]).logsumexp(-1)
    scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
    expected = torch.softmax(scores, -1)
    band = eps(torch.float64) * (16 * 7 * size + n + 64)
    assert (operator.dense() - expected).abs().max() <= band
    x = random_like((2, n, 3), "x")
    assert ((operator @ x) - expected @ x).abs().max() <= band * x.abs().sum(1).max()
    assert (operator.rmatmul(x) - expected.mT @ x).abs().max() <= band * x.abs().sum(1).max()


def test_a_shift_of_the_features_cancels_in_every_row():
    """Of all keys alike, of a query, and of one feature in opposite directions: exact up to the rounding of the sum."""
    log_q, log_k = (random_like((1, 130, 5), name) for name in ("log q", "log k"))
    expected = CausalFeatures(log_q, log_k).dense()
    rows, features = 300 * random_like((1, 130, 1), "rows"), 300 * random_like((1, 1, 5), "features")
    for q, k in ((log_q + rows, log_k), (log_q, log_k + 500.0), (log_q - features, log_k + features)):
        assert (CausalFeatures(q, k).dense() - expected).abs().max() <= 4096 * eps(torch.float64)


def test_rows_without_a_feature_are_counted():
    """Of performer-relu without its constant: queries that share no feature with a key up to them."""
    qkv = causal(h=1, p=2)
    approx = approximate("performer-relu", qkv, 2, eps=0.0)
    lost = (~torch.isfinite(approx.output)).any(-1).sum(-1)
    assert 0 < int(lost) < N and torch.equal(lost, approx.diagnostics["bad_rows"])
    kernel = [(qkv.q[0], qkv.k[0])]
    phi_q, phi_k = ((x @ (approx.draws["projection"][0].T * qkv.scale**0.5)).relu() for x in kernel[0])
    assert int(((phi_q @ phi_k.T).tril().sum(-1) == 0).sum()) == int(lost)


def test_no_prefix_sum_holds_n_by_n():
    n = 2048
    operator = CausalFeatures(*(random_like((1, n, 4), name).float() for name in ("log q", "log k")))
    assert max(part.numel() for part in operator.parts) <= 64 * n


def test_hashes_that_need_later_tokens_are_refused():
    with pytest.raises(Unsupported, match="hash=smyrf needs the lengths of hidden keys"):
        run("lsh-qk", "softmax", causal(), hash="smyrf")


def test_the_option_of_the_window_is_the_same_pattern():
    """Asked for on Q, K, V of an encoder it is what causal Q, K, V get without being asked, or with it."""
    qkv = causal()
    expected = run("window", "softmax", qkv)
    for other, options in ((qkv.replace(causal=False), {"causal": True}), (qkv, {"causal": True})):
        assert torch.equal(run("window", "softmax", other, **options).operator.dense(), expected.operator.dense())


def test_more_causal_queries_than_keys_need_positions():
    q, k = torch.ones(1, 5, 2), torch.ones(1, 4, 2)
    with pytest.raises(UsageError, match="causal: 5 queries and 4 keys"):
        QKV(q, k, k, causal=True)
    complete = QKV(k, k, k, causal=True)
    assert "causal" in repr(complete) and complete.to(dtype=torch.float64).causal and complete.select([0]).causal


@every_taken
def test_a_causal_form_stays_on_the_device_of_its_inputs(name, target):
    """A pretended device; and with a default device that holds no numbers nothing is made there."""
    qkv, x = causal(), random_like((2, N, 3), "x")
    expected = run(name, target, qkv)
    with pretending():
        away = qkv.replace(**{axis: getattr(qkv, axis).to(AWAY) for axis in "qkv"})
        got = run(name, target, away)
        pairs = [(got.output, expected.output), (got.operator.rows(3, 9), expected.operator.rows(3, 9))]
        pairs += [(got.operator @ x.to(AWAY), expected.operator @ x), (exact_output(away), exact_output(qkv))]
        pairs += [(got.operator.rmatmul(x.to(AWAY)), expected.operator.rmatmul(x))]
        for one, other in pairs:
            assert isinstance(one, Pretended) and (one.held - other).abs().max() <= 1e-10
    with torch.device("meta"):
        assert torch.equal(run(name, target, qkv).output, expected.output)


@pytest.mark.parametrize("n", [20, 150])
@pytest.mark.parametrize("name", ["performer", "performer-relu", "linear"])
def test_performer_pytorch_computes_the_same_prefix_sums(name, n):
    """Its own causal attention without CUDA, fed with the features as the paper has them, not in logarithms."""
    package = pytest.importorskip("performer_pytorch.performer_pytorch", reason="performer-pytorch is not installed")
    qkv = causal(n=n, score=0.5)
    approx = run(name, "softmax", qkv)
    scaled = [x * (1.0 if name == "linear" else qkv.scale**0.5) for x in (qkv.q, qkv.k)]
    rows = approx.draws["projection"].mT if name != "linear" else None
    phi = {
        "linear": lambda x: torch.nn.functional.elu(x) + 1,
        "performer": lambda x: torch.exp(x @ rows - x.square().sum(-1, keepdim=True) / 2),
        "performer-relu": lambda x: (x @ rows).relu() + 1e-3,
    }[name]
    expected = package.causal_linear_attention_noncuda(*(phi(x)[None] for x in scaled), qkv.v[None], eps=0.0)[0]
    torch.testing.assert_close(approx.output, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("size", [1.0, 40.0])
def test_prefix_sums_of_single_precision_lose_what_single_precision_loses(size):
    """Logarithms and their differences are float64 whatever the dtype: only weights and products are rounded."""
    log_q, log_k = (size * random_like((1, 200, 7), name).float() for name in ("log q", "log k"))
    expected = CausalFeatures(log_q.double(), log_k.double()).dense()
    got = CausalFeatures(log_q, log_k).dense()
    assert (got.double() - expected).abs().max() <= 2 * eps(torch.float32)
