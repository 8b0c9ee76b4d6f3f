"""Row metrics against literal dense twins, at every remainder of the blocks; their identities; their refusals."""

from dataclasses import replace
from math import inf, log, nan

import pytest
import torch
from counting import Counting, Reading
from inputs import make
from pretend_device import AWAY, pretending

from attnprobe import QKV, approximate, exact, row_metrics
from attnprobe.approximation import Approximation
from attnprobe.errors import Unsupported, UsageError
from attnprobe.methods import get
from attnprobe.metrics import ROW_METRICS, ExactRows, exact_rows
from attnprobe.operators import Dense, Sparse

F64 = torch.float64
FORMS = {
    "all": {},
    "causal": {"causal": True},
    "window": {"causal": True, "sliding_window": 17, "sinks": 2},
    "sinks": {"causal": True, "sink_logits": torch.tensor([0.5, 3.0], dtype=F64)},
}
SELECTIONS = ("window", "topk", "longformer", "bigbird")
every_form = pytest.mark.parametrize("form", FORMS)


def inputs(form, n=80, rows=None, **shape):
    qkv = make(n=n, score=4.0, **shape).replace(**FORMS[form])
    return qkv if rows is None else qkv.queries(rows)


def twin(p, a, v, output, log_sums, exact_log_sums, far, needle):
    """The metrics of one row, by their definitions: P and P~ (n_k or n_k + 1), lists of Python numbers."""

    def total(some):
        return float(sum(some))

    keys = range(len(p))
    inside, outside = [j for j in keys if a[j] != 0], [j for j in keys if a[j] == 0]
    order = sorted(keys, key=lambda j: -p[j])
    k = len(inside)
    mass, lost = total(p[j] for j in inside), total(p[j] for j in outside)
    oracle = total(p[j] for j in order[:k])
    o = sum(p[j] * v[j] for j in keys)
    middle = [(x + y) / 2 for x, y in zip(p, a, strict=True)]

    def divergence(x, y):
        return total(s * log(s / t) if t > 0 else inf for s, t in zip(x, y, strict=True) if s > 0)

    negative = min(a) < 0
    least = p[order[k - 1]] if k else inf
    values = {
        "mass": mass,
        "mass_oracle": oracle,
        "mass_efficiency": mass / oracle if k else nan,
        "recall_k": min(k, sum(p[j] >= least for j in inside)) / k if k else nan,
        "tv": total(abs(x - y) for x, y in zip(p, a, strict=True)) / 2,
        "kl": nan if negative else divergence(a, p) - total(a) + total(p),
        "js": nan if negative else (divergence(p, middle) + divergence(a, middle)) / 2,
        "log_normaliser_error": log_sums - exact_log_sums,
        "row_error": float((output - o).norm() / o.norm()),
        "row_error_angle": 1 - float(output @ o / output.norm() / o.norm()),
        "keys": k,
        "support": float(torch.tensor([-x * log(x) for x in p if x > 0], dtype=F64).sum().exp()),
        "distant_mass": total(p[j] for j in far),
        "needle_mass": total(p[j] for j in needle),
        "needle_mass_kept": total(a[j] for j in needle),
    }
    for name, epsilon in (("k_50", 0.5), ("k_90", 0.1), ("k_99", 0.01)):
        held = torch.tensor([p[j] for j in order], dtype=F64).cumsum(0)
        values[name] = 1 + int((held < (1 - epsilon) * held[-1]).sum())
    means = [
        sum(p[j] * v[j] for j in some) / part if part else None for some, part in ((outside, lost), (inside, mass))
    ]
    gap = 0.0 if means[0] is None else nan if means[1] is None else float((means[0] - means[1]).norm() / o.norm())
    return {**values, "tail_gap": gap}


def check(qkv, approx, needle, tolerance=1e-12):
    actual = row_metrics(exact(qkv), approx, qkv, needle=needle)
    assert set(actual) == set(ROW_METRICS)
    wide = qkv.to(dtype=F64)
    p_all, a_all = exact(wide).dense(), approx.operator.dense().double()
    scores = wide.scale * wide.q @ wide.k.mT
    if wide.visible is not None:
        scores = scores.masked_fill(wide.visible.hidden(wide.n_k), -inf)
    exact_sums = scores.logsumexp(-1)
    sums = torch.full_like(exact_sums, nan) if approx.log_normalizer is None else approx.log_normalizer().double()
    values = wide.v
    if wide.sink_logits is not None:
        exact_sums = torch.logaddexp(exact_sums, wide.sink_logits[:, None])
        p_all = torch.cat([p_all, (wide.sink_logits[:, None] - exact_sums).exp()[..., None]], -1)
        a_all = torch.cat([a_all, (wide.sink_logits[:, None] - sums).exp()[..., None]], -1)
        values = torch.nn.functional.pad(values, (0, 0, 0, 1))
    for head in range(qkv.h):
        for i in range(qkv.n_q):
            c = int(qkv.query_positions[i])
            far = [j for j in range(4, qkv.n_k) if abs(j - c) >= 64]
            sides = (sums[head, i], exact_sums[head, i])
            row = (p_all[head, i].tolist(), a_all[head, i].tolist(), values[head], approx.output[head, i].double())
            expected = twin(*row, *map(float, sides), far, needle.tolist())
            for name, value in expected.items():
                got = float(actual[name][head, i])
                assert got == pytest.approx(value, rel=tolerance, abs=tolerance, nan_ok=True), (name, head, i)


@every_form
@pytest.mark.parametrize("method", [*SELECTIONS, "performer", "vmean", "softmax"])
def test_every_metric_is_its_definition(form, method):
    qkv = inputs(form, n=80, rows=torch.tensor([0, 1, 40, 78, 79]))
    entry = get(method)
    if ("sliding_window" in FORMS[form] and "local" not in entry.tags) or (form == "sinks" and method == "vmean"):
        pytest.skip("no such form")
    if method in ("performer",) and form == "sinks":
        qkv = inputs("causal", rows=torch.tensor([3, 79]))
    check(qkv, approximate(method, qkv, None if entry.budget is None else 20), torch.tensor([0, 33]))


@pytest.mark.parametrize("rows", range(1, 9))
def test_blocks_of_any_size_give_the_same(rows, monkeypatch):
    qkv = inputs("causal", n=80, h=1, rows=torch.tensor([2, 30, 5, 61, 77, 78, 79]))
    approx = approximate("window", qkv, 9)
    monkeypatch.setattr(exact_rows, "ENTRIES", rows * qkv.n_k)
    monkeypatch.setattr(exact_rows, "FEWEST", 1)
    check(qkv, approx, torch.tensor([3]))


@pytest.mark.parametrize("room", [0, 2**16, 2**30])
def test_approximations_that_share_exact_rows_have_the_same_numbers(room, monkeypatch):
    monkeypatch.setattr(exact_rows, "KEPT", room)
    monkeypatch.setattr(exact_rows, "ENTRIES", 1600)
    qkv = inputs("sinks", n=80)
    shared = ExactRows(qkv)
    for method in ("window", "topk", "window"):
        approx = approximate(method, qkv, 9)
        actual, expected = row_metrics(shared, approx, qkv), row_metrics(exact(qkv), approx, qkv)
        torch.testing.assert_close(
            actual, expected, rtol=0, atol=0, equal_nan=True
        )  # without a block: no residual error
    kept = sum(block.nbytes for block in shared._kept.values())
    assert kept <= room and (kept > 0) == (room > 0)


@every_form
@pytest.mark.parametrize("score", [1.0, 2000.0])
@pytest.mark.parametrize("method", ["topk", "quest", "bigbird", "h2o"])
def test_slots_of_keys_give_the_same_as_whole_rows(method, score, form, monkeypatch):
    """Also of rows with keys whose weights underflow."""
    qkv = make(n=80, score=score).replace(**FORMS[form])
    if "sliding_window" in FORMS[form] and "local" not in get(method).tags:
        pytest.skip("no such form")
    monkeypatch.setattr(exact_rows, "ENTRIES", 24 * qkv.n_k)  # rows of later blocks see more keys than they have slots
    approx = approximate(method, qkv, 20)
    check_same_as_whole(qkv, approx)


@pytest.mark.parametrize("rows", [4, 40])
def test_slots_with_keys_ahead_of_the_query_give_the_same_as_whole_rows(rows, monkeypatch):
    qkv = inputs("causal", n=40, h=1)
    monkeypatch.setattr(exact_rows, "ENTRIES", rows * qkv.n_k)
    monkeypatch.setattr(exact_rows, "FEWEST", 1)
    index = torch.arange(40)[:, None] + torch.tensor([0, -3, 2])
    index = index.masked_fill((index < 0) | (index >= 40), -1)[None]
    ahead = Sparse(index, torch.full((1, 40, 3), 1 / 3, dtype=F64), 40, distinct=True)
    assert check_same_as_whole(qkv, Approximation.of(ahead, qkv))["kl"][0, :-2].isinf().all()


def check_same_as_whole(qkv, approx):
    whole = replace(approx, operator=Dense(approx.operator.dense()))
    assert any(approx.operator.slots(row, row + 1) for row in range(qkv.n_q)) and whole.operator.slots(0, 1) is None
    actual, expected = row_metrics(exact(qkv), approx, qkv), row_metrics(exact(qkv), whole, qkv)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12, equal_nan=True)
    return actual


@pytest.mark.parametrize("p", [8, 32, 128])
def test_keys_that_tie_with_the_kth_are_chosen_well_whatever_the_scale(p):
    """Scores of whole numbers tie; their product with ``1 / √p`` has other last bits."""
    generator = torch.Generator().manual_seed(p)
    q, k, v = torch.randn(3, 2, 97, p, generator=generator)
    qkv = QKV(q.round(), k.round(), v)
    assert row_metrics(exact(qkv), approximate("topk", qkv, 7), qkv)["recall_k"].min() == 1


def test_a_row_that_holds_nothing_and_one_with_a_negative_weight():
    qkv = inputs("all", n=6, h=1)
    weights = torch.full((1, 6, 6), 1 / 6, dtype=F64)
    weights[0, 2] = 0
    weights[0, 3, 1] = -0.5
    approx = Approximation.of(Dense(weights), qkv)
    approx.output[0, 2] = 1.0  # a row of zeros has no direction
    check(qkv, approx, torch.tensor([1, 2]))


def test_outputs_of_zero_have_no_error_and_no_angle():
    qkv = inputs("causal", n=9, h=1)
    nothing = qkv.replace(v=torch.zeros_like(qkv.v))
    actual = row_metrics(exact(nothing), approximate("window", nothing, 5), nothing)
    for name in ("row_error", "row_error_angle", "tail_gap"):
        assert not actual[name].any(), name
    one_sided = replace(approximate("window", qkv, 5), output=torch.zeros_like(qkv.v))
    actual = row_metrics(exact(qkv), one_sided, qkv)
    assert (actual["row_error"] == 1).all() and (actual["row_error_angle"] == 1).all()


def test_weight_ahead_of_the_query_is_an_infinite_divergence():
    qkv = inputs("causal", n=6, h=1)
    actual = row_metrics(exact(qkv), Approximation.of(Dense(torch.full((1, 6, 6), 1 / 6, dtype=F64)), qkv), qkv)
    assert actual["kl"][0, :5].isinf().all() and actual["kl"][0, 5].isfinite() and actual["js"].isfinite().all()


@pytest.mark.parametrize("total", [0.5, 1.0, 2.0])
def test_no_divergence_is_negative(total):
    """Of a row that sums to s and is s P: s ln s - s + 1, which is zero at s = 1 alone."""
    qkv = inputs("causal", n=40, h=1)
    weights = total * exact(qkv).dense().float()
    actual = row_metrics(exact(qkv), Approximation.of(Dense(weights), qkv), qkv)["kl"]
    assert actual.min() > -1e-15 and actual.sub(total * log(total) - total + 1).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_of_another_dtype_are_measured_in_float64(dtype):
    qkv = inputs("causal", n=40, h=1).to(dtype=dtype)
    check(qkv, approximate("window", qkv, 12), torch.tensor([3]), tolerance=1e-9)


@pytest.mark.parametrize("method", SELECTIONS)
@pytest.mark.parametrize("form", ["causal", "window", "sinks"])
@pytest.mark.parametrize("score", [1.0, 30.0])
def test_total_variation_divergence_and_error_follow_from_the_lost_mass(method, form, score):
    """Of a renormalised selection: TV = 1 - m = 1 - exp(-KL), and row error = (1 - m) · tail gap."""
    qkv = make(n=150, score=score).replace(**FORMS[form])
    actual = row_metrics(exact(qkv), approximate(method, qkv, 16), qkv)
    lost = actual["tv"]
    assert (actual["mass"] + lost - 1).abs().max() < 1e-12
    assert (1 - torch.exp(-actual["kl"]) - lost).abs().max() < 1e-12
    assert (actual["row_error"] - lost * actual["tail_gap"]).abs().max() < 1e-10
    assert (actual["mass"] <= actual["mass_oracle"] + 1e-15).all() and (actual["js"] <= log(2) + 1e-12).all()
    log_error = actual["log_normaliser_error"]
    assert (log_error - actual["mass"].log()).abs().max() < 1e-10


def test_an_output_without_a_matrix_has_the_metrics_of_outputs():
    qkv = inputs("causal", n=40)
    plain = approximate("window", qkv, 12)
    actual = row_metrics(exact(qkv), replace(plain, operator=None), qkv)
    full = row_metrics(exact(qkv), plain, qkv)
    of_output = {"row_error", "row_error_angle", "support", "distant_mass", "k_50", "k_90", "k_99"}
    of_output |= {"log_normaliser_error"}
    for name, values in actual.items():
        assert torch.allclose(values, full[name], rtol=1e-12) if name in of_output else values.isnan().all(), name


def test_padded_rows_are_not_numbers_and_the_others_those_of_the_valid_tokens():
    mask = torch.arange(20) >= 4
    qkv = make(n=20).replace(mask=mask)
    inner = qkv.compressed()
    actual = row_metrics(exact(qkv), approximate("window", qkv, 8), qkv, needle=torch.tensor([7]))
    expected = row_metrics(exact(inner), approximate("window", inner, 8), inner, needle=torch.tensor([3]))
    for name, values in actual.items():
        assert values[:, :4].isnan().all() and torch.allclose(values[:, 4:], expected[name], equal_nan=True), name
    without = row_metrics(exact(qkv), approximate("window", qkv, 8), qkv)
    assert {*actual} - {*without} == {name for name in actual if name.startswith("needle")}
    assert all(torch.equal(values.nan_to_num(), actual[name].nan_to_num()) for name, values in without.items())


def test_a_matrix_of_all_tokens_is_not_compared_with_that_of_the_valid_ones():
    qkv = make(n=20).replace(mask=torch.arange(20) >= 4)
    approx = approximate("window", qkv, 8)
    whole = replace(approx, operator=Dense(approx.matrix().dense()))
    actual, expected = row_metrics(exact(qkv), whole, qkv), row_metrics(exact(qkv), approx, qkv)
    assert actual["tv"].isnan().all() and torch.equal(actual["row_error"][:, 4:], expected["row_error"][:, 4:])


def test_an_output_alone_is_compared_under_sinks():
    qkv = make(n=20).replace(**FORMS["sinks"])
    approx = approximate("window", qkv, 8)
    alone = row_metrics(exact(qkv), Approximation(None, approx.output), qkv)
    assert torch.equal(alone["row_error"], row_metrics(exact(qkv), approx, qkv)["row_error"])
    with pytest.raises(UsageError, match="heads have sinks of their own, and the approximation states no normaliser"):
        row_metrics(exact(qkv), replace(approx, log_normalizer=None), qkv)


def test_what_cannot_be_compared_is_refused():
    qkv = make(n=20)
    approx = approximate("window", qkv, 8)
    with pytest.raises(Unsupported, match="softmax"):
        row_metrics(exact(qkv, "gaussian"), approx, qkv)
    with pytest.raises(UsageError, match="the approximation has shape"):
        row_metrics(exact(qkv), approximate("window", make(n=12, n_k=20), 8), qkv)
    with pytest.raises(UsageError, match="needle: keys 3 … 20"):
        row_metrics(exact(qkv), approx, qkv, needle=torch.tensor([3, 20]))


def test_another_device_is_asked_for_as_many_operations_for_two_heads_as_for_five():
    """And it waits three times: for the last key that is seen, the keys of rows, and the size of a gather."""
    calls = []
    for h in (2, 5):
        q, k, v = torch.randn(3, h, 40, 8, generator=torch.Generator().manual_seed(h), dtype=F64)
        expected = QKV(q, k, v, causal=True)
        with pretending():
            qkv = QKV(q.to(AWAY), k.to(AWAY), v.to(AWAY), causal=True)
            reference, approx = exact(qkv), approximate("topk", qkv, 6)
            with Counting() as counting, Reading() as reading:
                rows = row_metrics(reference, approx, qkv)
            calls.append((sum(counting.calls.values()), reading.count))
        for name, values in row_metrics(exact(expected), approximate("topk", expected, 6), expected).items():
            torch.testing.assert_close(rows[name].held, values, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert calls[0] == calls[1] and calls[0][1] <= 3, calls
