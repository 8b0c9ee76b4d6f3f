"""Eckart-Young for every method: the rank that a structure allows, the best that it is held against, planted faults."""

from dataclasses import replace

import pytest
import torch
from inputs import make
from theory_settings import check, setting_for

from attnprobe import exact
from attnprobe.approximation import Approximation
from attnprobe.errors import Unsupported
from attnprobe.methods import METHODS
from attnprobe.operators import Dense, Identity, LowRank, RankOne, Stacked
from attnprobe.reference import exact_output
from attnprobe.theorems import THEOREMS
from attnprobe.theorems.eckart import eckart1936_distance, rank_bound

SOFTMAX = [name for name, entry in METHODS.items() if "softmax" in entry.targets]
LOW_RANK = (
    *("svd", "nystromformer", "nystromformer-kmeans", "skyformer", "performer", "linformer", "linformer-jlt", "amm"),
    *("prototype", "mss-literal", "vmean"),
)


def budget(name, n=24):
    for d in (6, 10, 12, 16, 20):
        try:
            METHODS[name].check_budget(d, n, n)
            setting_for(make(n=n)).run(name, d, 0)
        except Unsupported:
            continue
        return d
    pytest.skip("takes no such budget")


@pytest.mark.parametrize("name", SOFTMAX)
@pytest.mark.parametrize("score", [1.0, 6.0])
def test_no_matrix_has_more_rank_than_its_structure_allows(name, score):
    operator = setting_for(make(n=24, score=score)).run(name, budget(name), 0).operator
    actual = torch.linalg.matrix_rank(operator.to(torch.float64).dense())
    assert (actual <= rank_bound(operator)).all()
    if name in LOW_RANK:
        assert (rank_bound(operator) <= budget(name)).all()


def test_the_rank_of_a_structure():
    n = 9
    thin = LowRank(torch.ones(2, n, 3), torch.ones(2, 3, 3), torch.ones(2, 3, n))
    assert rank_bound(thin).tolist() == [3, 3]
    assert rank_bound(LowRank(torch.ones(2, n, 3), torch.ones(2, 3, 2), torch.ones(2, 2, n))).tolist() == [2, 2]
    narrow = [torch.ones(2, 3, 1), torch.ones(2, 1, 3)]
    assert rank_bound(LowRank(torch.ones(2, n, 3), narrow, torch.ones(2, 3, n))).tolist() == [1, 1]
    assert rank_bound(Identity(torch.ones(2), n)).tolist() == [n, n] == rank_bound(exact(make(n=n))).tolist()
    assert rank_bound(Dense(torch.ones(2, 4, n))).tolist() == [4, 4]
    low = LowRank(torch.ones(1, n, 3), None, torch.ones(1, 3, n))
    assert rank_bound(Stacked([low, RankOne(torch.ones(1, n), torch.ones(1, n))])).tolist() == [3, 1]
    rows = setting_for(make(n=24)).run("informer", 6, 0).operator
    assert rank_bound(rows).tolist() == [7, 7]  # the mean, and six exact rows


def test_the_distance_is_the_next_singular_value():
    values = torch.tensor([[5.0, 3.0, 1.0], [4.0, 2.0, 0.5]])
    assert eckart1936_distance(values, torch.tensor([0, 2])).tolist() == [5.0, 0.5]
    assert eckart1936_distance(values, torch.tensor([3, 7])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("n", [24, 300])  # held, and by passes
def test_the_bounds_are_the_singular_values_and_truncation_reaches_them(n):
    qkv = make(n=n, p=8, p_v=5)
    actual = check("eckart-young", qkv, (2, 3), methods=("svd", "nystromformer", "skyformer"))
    b = exact(qkv).dense()
    values, outputs = torch.linalg.svdvals(b), torch.linalg.svdvals(b @ qkv.v)
    for one in actual:
        expected = (values if one.at["of"] == "matrix" else outputs)[:, one.d]
        assert one.bound.numpy() == pytest.approx(expected.numpy(), rel=2e-6)
        assert set(one.verdicts()) == {"holds"} and (one.slack > 1 - 1e-3).all()  # the tolerance of the passes
        assert one.upper is None or (one.upper >= one.bound).all()
        approx = setting_for(qkv).run(one.at["method"], one.d, 0)
        error = b - approx.operator.dense()
        error = error if one.at["of"] == "matrix" else error @ qkv.v
        norms = torch.linalg.matrix_norm(error, 2)
        assert one.measured.numpy() == pytest.approx(norms.numpy(), rel=2e-3)
        if one.at == {"method": "svd", "of": "matrix"}:
            assert one.slack.numpy() == pytest.approx(1, abs=2e-3)


def test_under_the_gaussian_target_the_best_is_that_of_c():
    qkv = make(h=2, n=24, dtype=torch.float64)
    matrix, output = check("eckart-young", qkv, (4,), methods=("svd",), target="gaussian")
    c = exact(qkv, "gaussian").dense()
    best = torch.linalg.svdvals(c)[:, 4]
    assert torch.allclose(matrix.bound, best, rtol=1e-9) and torch.allclose(matrix.measured, best, rtol=1e-6)
    assert torch.allclose(output.bound, torch.linalg.svdvals(c @ qkv.v)[:, 4], rtol=1e-9)
    assert matrix.promise == "‖C - C~‖₂ ≥ σ_{d+1}(C)" and set(matrix.verdicts()) == {"holds"}


def test_outputs_of_many_dimensions_have_no_bound():
    actual = check("eckart-young", make(n=24, p_v=5), (5,), methods=("svd",))
    assert [set(one.verdicts()) for one in actual] == [{"holds"}, {"vacuous"}]


def test_methods_of_higher_rank_do_not_meet_the_assumption():
    actual = check("eckart-young", make(n=40), (8,), methods=("topk", "informer", "skeinformer", "mss"))
    assert {v for one in actual for v in one.verdicts()} == {"assumption not met"}
    informer = next(one for one in actual if one.at == {"method": "informer", "of": "matrix"})
    values = torch.linalg.svdvals(exact(make(n=40)).dense())
    assert informer.details["rank"].tolist() == [9, 9]
    assert informer.details["at_rank"].numpy() == pytest.approx(values[:, 9].numpy(), rel=1e-9)
    assert (informer.measured >= informer.details["at_rank"]).all()


def with_operator(qkv, make_operator):
    """A setting whose method has this operator."""
    return replace(
        setting_for(qkv, (3,), methods=("mine",)), run=lambda method, d, seed: Approximation.of(make_operator(d), qkv)
    )


def test_the_best_operator_for_the_output_reaches_its_bound():
    """``U_d U_dᵀ B`` with the left singular vectors of BV."""
    qkv = make(n=24, p_v=5)
    b = exact(qkv).dense()
    u = torch.linalg.svd(b @ qkv.v, full_matrices=False).U

    actual = THEOREMS["eckart-young"].check(
        qkv, with_operator(qkv, lambda d: LowRank(u[..., :d], None, u[..., :d].mT @ b))
    )
    matrix, output = actual
    assert set(output.verdicts()) == {"holds"} and output.slack.numpy() == pytest.approx(1, abs=1e-9)
    assert set(matrix.verdicts()) == {"holds"} and (matrix.slack > 1.001).all()  # a different best


def test_a_rank_that_is_claimed_too_low_is_violated():
    """Exact attention that passes itself off as of rank three is nearer to B than any such matrix."""
    qkv = make(n=24)
    b = exact(qkv).dense()

    class Claimed(LowRank):
        def to(self, dtype):
            return self

    def claimed(d):
        operator = Claimed(b, None, torch.eye(24, dtype=torch.float64).expand(2, 24, 24))
        operator.left = b[..., :d]  # what the structure shows
        operator._apply = lambda x: b @ x
        operator._apply_transpose = lambda x: b.mT @ x
        operator._rows = lambda start, stop: b[:, start:stop]
        return operator

    actual = THEOREMS["eckart-young"].check(qkv, with_operator(qkv, claimed))
    assert [set(one.verdicts()) for one in actual] == [{"violated"}, {"violated"}]


def test_an_output_alone_has_no_rank():
    qkv = make(n=24)
    setting = replace(
        setting_for(qkv, (3,), methods=("mine",)), run=lambda method, d, seed: Approximation(None, exact_output(qkv))
    )
    actual = list(THEOREMS["eckart-young"].check(qkv, setting))
    assert [one.at["of"] for one in actual] == ["output"]
    assert set(actual[0].verdicts()) == {"assumption not met"} and (actual[0].measured == 0).all()


def test_a_budget_that_the_method_refuses_is_left_out():
    assert {one.d for one in check("eckart-young", make(n=24), (4, 99), methods=("svd",))} == {4}
    with pytest.raises(Unsupported):
        check("eckart-young", make(n=24), (99,), methods=("svd",))
