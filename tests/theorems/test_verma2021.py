"""Spectral shifting: the zero shift, equation 12 as printed and corrected, exactness in the class, planted faults."""

import numpy as np
import pytest
import torch
from inputs import make, one_head
from theory_settings import check, setting_for
from twins_shift import lifted_kernel, shifted_kernel

from attnprobe import QKV, exact
from attnprobe.errors import Unsupported
from attnprobe.operators.linalg.inverses import shifted, truncated_pinv
from attnprobe.theorems import verma2021
from attnprobe.theorems.verma2021 import (
    MATRICES,
    verma2021_corrected_bound,
    verma2021_delta_numerator,
    verma2021_printed_bound,
    verma2021_tail,
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kind", ["any", "singular", "stochastic", "nilpotent"])
def test_the_literal_numerator_is_zero(kind):
    core = normal(3, 9, 9)
    if kind == "singular":
        core = core[..., :4] @ normal(3, 4, 9, seed=1)
    elif kind == "stochastic":
        core = torch.softmax(3 * core, -1)
    elif kind == "nilpotent":
        core = core.triu(1)
    numerator, rounding = verma2021_delta_numerator(core)
    assert (numerator.abs() <= rounding).all() and (rounding < 1e-8).all()


@pytest.mark.parametrize("score", [1.0, 6.0])
def test_the_shift_of_real_cores_is_zero(score):
    for one in check("shift-delta-zero", make(n=32, score=score), (4, 8)):
        assert set(one.verdicts()) == {"holds"}
        core = setting_for(make(n=32, score=score)).run("mss-literal", one.d, 0).cores["A"]
        trace = [sum(float(core[row, i, i]) for i in range(one.d)) for row in range(2)]
        assert one.details["trace"].numpy() == pytest.approx(trace, rel=1e-13)
        assert (one.details["of_trace"].abs() < 1e-11).all() and (one.details["missing"] == 0).all()


def test_an_inverse_that_is_truncated_gives_a_shift(monkeypatch):
    """It is the literal pseudo-inverse that makes it zero: cut off at a tenth of the largest value, it is not."""
    monkeypatch.setattr(verma2021, "truncated_pinv", lambda core: truncated_pinv(core, 0.1))
    assert "violated" in [v for one in check("shift-delta-zero", make(n=32), (8,)) for v in one.verdicts()]


def stochastic(*shape, seed):
    return torch.softmax(2 * normal(*shape, seed=seed), -1)


def infinity(x):
    return torch.linalg.matrix_norm(x, float("inf"))


def test_the_triangle_bounds_the_error_and_says_nothing():
    for seed in range(20):
        b, f, a, w = (stochastic(1, *s, seed=seed) for s in ((9, 9), (9, 4), (4, 4), (4, 9)))
        pinv = torch.linalg.pinv(a)
        z = pinv + 0.5 * normal(1, 4, 4, seed=seed + 99)
        delta = torch.tensor([0.1 * (seed % 4)], dtype=torch.float64)
        error = infinity(b - f @ z @ (torch.eye(4) - delta * z) @ w)
        bound = verma2021_corrected_bound(infinity(pinv), infinity(pinv - z), delta)
        assert float(error) <= float(bound) and float(bound) >= 1
        assert float(bound) >= 1 + float(infinity(z))


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_both_forms_are_the_literal_expressions(shift):
    """Row sums by loops over the entries, in Python's numbers."""
    a, z = stochastic(1, 4, 4, seed=1), normal(1, 4, 4, seed=2)
    pinv, delta = torch.linalg.pinv(a), torch.tensor([shift], dtype=torch.float64)

    def rows(x):
        return max(sum(abs(float(value)) for value in row) for row in x[0])

    inverse, apart = rows(pinv), rows(pinv - z)
    printed = verma2021_printed_bound(infinity(pinv), infinity(pinv - z), delta)
    corrected = verma2021_corrected_bound(infinity(pinv), infinity(pinv - z), delta)
    assert float(printed) == pytest.approx(1 + inverse * (1 + shift * inverse) * (1 - apart), rel=1e-12)
    assert float(corrected) == pytest.approx(1 + (inverse + apart) * (1 + shift * (inverse + apart)), rel=1e-12)


def test_the_printed_form_is_no_bound():
    """It falls where Z* is further from A⁺, down to negative numbers; no error is negative."""
    b, f, a, w = (stochastic(1, *s, seed=1) for s in ((9, 9), (9, 4), (4, 4), (4, 9)))
    pinv, delta = torch.linalg.pinv(a), torch.zeros(1, dtype=torch.float64)
    found = []
    for z in (pinv, 0 * pinv, -2 * pinv):
        bound = verma2021_printed_bound(infinity(pinv), infinity(pinv - z), delta)
        found.append(float(infinity(b - f @ z @ w)) - float(bound))
    assert found == sorted(found) and found[0] < 0 < found[1]


def test_both_forms_on_a_layer(monkeypatch):
    monkeypatch.setattr(verma2021, "ROWS", 24)
    qkv = make(h=4, n=64, score=3.0, seed=4)
    actual = check("shift-bound", qkv, (8, 32))
    assert [(one.d, one.at["form"]) for one in actual] == [(d, f) for d in (8, 32) for f in ("as printed", "corrected")]
    for one in actual:
        approx = setting_for(qkv).run("mss:inverse=schulz,identity=false", one.d, 0)
        expected = (exact(qkv).dense() - approx.operator.dense()).abs().sum(-1).amax(-1)
        assert one.measured.numpy() == pytest.approx(expected.numpy(), rel=1e-12)
        inverse = truncated_pinv(approx.cores["A"].double())
        sizes = infinity(inverse), infinity(inverse - approx.inverses["A"].double()), approx.diagnostics["delta"]
        bound = {"as printed": verma2021_printed_bound, "corrected": verma2021_corrected_bound}[one.at["form"]]
        assert one.bound.numpy() == pytest.approx(bound(*sizes).numpy(), rel=1e-12)
        if one.at["form"] == "corrected":
            assert set(one.verdicts()) == {"vacuous"} and (one.slack > 1).all()


def test_the_printed_form_is_violated_by_real_cores():
    """By every core whose inverse is a distance of 1 or more from A⁺, because the right side is then at most 1."""
    for seed in range(3):
        for one in check("shift-bound", make(h=4, n=64, score=3.0, seed=seed), (8, 16, 32)):
            far = one.details["apart"] > 1 + (1 - one.measured).clamp(min=0) / one.details["pinv"]
            expected = ["violated"] * int(far.sum())
            if one.at["form"] == "as printed":
                assert [verdict for verdict, much in zip(one.verdicts(), far, strict=True) if much] == expected
                assert far.any()


def test_the_tail_is_what_shifting_leaves():
    values = normal(9).abs()
    for d in (1, 4, 8):
        tail = sorted(values.tolist())[: 9 - d]
        expected = sum(x * x for x in tail) - sum(tail) ** 2 / (9 - d)
        assert float(verma2021_tail(values, d)) == pytest.approx(expected, abs=1e-13)
    assert float(verma2021_tail(values, 9)) == 0


@pytest.mark.parametrize("score", [1.0, 6.0])
def test_the_errors_of_both_statements_are_the_literal_ones(score):
    qkv, d = make(n=14, score=score, seed=7), 5
    setting = setting_for(qkv, (d,))
    one, other = (
        next(x for x in check(name, qkv, (d,)) if x.at["matrix"] == "C̄")
        for name in ("shift-lemma-1", "shift-theorem-1")
    )
    for row in range(qkv.h):
        kernel = lifted_kernel(one_head(qkv, row))
        stream = setting.streams("spectral-shift", 0).head(row, "indices")
        columns = torch.randperm(28, generator=stream)[:d].tolist()
        error = np.linalg.norm(kernel - shifted_kernel(kernel, columns)[0]) / np.linalg.norm(kernel)
        assert float(one.measured[row]) == pytest.approx(error, rel=1e-9)
        values = np.sort(np.linalg.eigvalsh(kernel))[::-1]
        bar = kernel - values[d:].mean() * np.eye(28)
        projector = bar[:, columns] @ np.linalg.pinv(bar[:, columns])
        left = np.linalg.norm(bar - projector @ bar @ projector)
        eta = left**2 / sum((x - values[d:].mean()) ** 2 for x in values[d:])
        assert float(other.details["eta"][row]) == pytest.approx(eta, rel=1e-8)
        assert float(other.bound[row]) == pytest.approx(left / np.linalg.norm(kernel), rel=1e-9)
        assert float(other.details["plain"][row]) == pytest.approx(
            np.linalg.norm(values[d:]) / np.linalg.norm(kernel), rel=1e-9
        )
        made, spectrum = verma2021._shifted_low_rank(*torch.linalg.eigh(torch.tensor(kernel)), d)
        expected = [*values[:d], *[values[d:].mean()] * (28 - d)]
        assert torch.linalg.eigvalsh(made).flip(0).numpy() == pytest.approx(expected, abs=1e-12)
        assert spectrum.flip(0).numpy() == pytest.approx(expected, abs=1e-12)
        assert float(one.details["spread"][row]) == pytest.approx((values[d] - values[-1]) / values[0], rel=1e-10)


def test_lemma_1_is_exact_in_its_class_and_about_nothing_else():
    actual = check("shift-lemma-1", make(n=16, score=2.0), (3, 6))
    message = {(one.d, one.at["matrix"]): set(one.verdicts()) for one in actual}
    assert len(message) == 2 * len(MATRICES)
    for d in (3, 6):
        assert message[d, "θI + rank d"] == {"holds"}
        assert message[d, "C̄"] == {"assumption not met"} == message[d, "(B + Bᵀ)/2"]
    for one in actual:
        if one.at["matrix"] == "θI + rank d":
            assert (one.measured < 1e-9).all() and (one.details["spread"] == 0).all()
        else:
            assert (one.measured > 1e-3).all()


def test_columns_that_repeat_each_other_do_not_meet_the_lemma():
    """One query and one key, three times each: in the class at d = 2, but two columns of a kind span half of C̄."""
    g = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(12, 1, 4, generator=g, dtype=torch.float64).expand(12, 3, 4) for _ in range(3))
    qkv = QKV(q, k, v)
    setting = setting_for(qkv, (2,))
    draws = [
        torch.randperm(6, generator=setting.streams("spectral-shift", 0).head(row, "indices"))[:2].tolist()
        for row in range(12)
    ]
    both = [min(pair) < 3 <= max(pair) for pair in draws]
    assert 0 < sum(both) < 12
    for one in check("shift-lemma-1", qkv, (2,)):
        if one.at["matrix"] == "C̄":
            assert one.met.tolist() == both and set(one.verdicts()) == {"holds", "assumption not met"}
            assert ((one.measured > 1e-3) == ~one.met).all() and (one.details["needed"] == 2).all()
            assert one.details["rank"].tolist() == [1 + spans for spans in both]


def test_theorem_1_holds_for_semidefinite_matrices_and_is_not_vacuous():
    for one in check("shift-theorem-1", make(n=16, score=2.0), (3, 6)):
        if one.at["matrix"] == "(B + Bᵀ)/2":
            assert set(one.verdicts()) == {"assumption not met"} and (one.details["least"] < 0).all()
        else:
            assert set(one.verdicts()) == {"holds"} and (one.measured <= one.bound + one.rounding).all()
        if one.at["matrix"] == "C̄":
            assert (one.bound < 1).all() and (one.slack >= 1).all()
            assert (one.details["eta"] * 0.999 > 1).all()  # no columns beat the best rank d here


def test_a_model_without_its_shift_is_seen(monkeypatch):
    def unshifted(kernel, columns, values=None):
        h, core, delta = shifted(kernel, columns, values=values)
        return h, core, 0 * delta

    monkeypatch.setattr(verma2021, "shifted", unshifted)
    for name in ("shift-lemma-1", "shift-theorem-1"):
        message = [
            v
            for one in check(name, make(n=16, score=2.0), (4,))
            if one.at["matrix"] == "θI + rank d"
            for v in one.verdicts()
        ]
        assert set(message) == {"violated"}


def test_large_layers_are_refused():
    with pytest.raises(Unsupported, match="up to 4096"):
        check("shift-lemma-1", make(h=1, n=4097, p=2))
    with pytest.raises(Unsupported, match="no budget"):
        check("shift-theorem-1", make(n=8), (8,))
