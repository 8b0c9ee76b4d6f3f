"""Inverses, norms, samplers of rows and the order of scores, each against its definition."""

from itertools import permutations
from math import ceil, log

import numpy as np
import pytest
import torch
from pretend_device import AWAY, Pretended, pretending
from scipy.stats import chi2
from twins import razavi_steps

from attnprobe.errors import UsageError
from attnprobe.operators.linalg.inverses import inverse_root, razavi, residual, start, truncated_pinv
from attnprobe.operators.linalg.norms import CHUNK, output_norms, tail_singular_values
from attnprobe.operators.linalg.order import largest_scores, median
from attnprobe.operators.linalg.sampling import _ridge_scores, kmeans, recursive_rls, weighted_without_replacement
from attnprobe.rng import generator

F64 = torch.float64
EPS = torch.finfo(F64).eps


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed, str(shape)), dtype=F64)


def with_values(values, seed=0, symmetric=True):
    """A matrix with these eigenvalues, or singular values."""
    d = len(values)
    u, w = (torch.linalg.qr(randn(d, d, seed=seed + shift)).Q for shift in (0, 100))
    return u @ torch.diag(torch.tensor(values, dtype=F64)) @ (u if symmetric else w).T


# Inverses


@pytest.mark.parametrize("steps", [0, 1, 2, 6])
def test_the_iteration_is_the_literal_polynomial(steps):
    a = torch.stack([with_values([1.0, 0.5, 0.1], seed=i) for i in range(3)])
    z = a.mT / 2
    got = razavi(a, z, steps)
    for row in range(3):
        assert torch.allclose(got[row], razavi_steps(a[row], z[row], steps), rtol=1e-13, atol=1e-13)


def test_the_iteration_is_of_third_order():
    """For one eigenvalue the error e = 1 - az becomes e³ (4 - az)/4, so e'/e³ is between 3/4 and 1."""
    for az in (0.1, 0.5, 0.9, 0.99):
        after = 1 - float(2.0 * razavi(torch.tensor([[[2.0]]], dtype=F64), torch.tensor([[[az / 2]]], dtype=F64), 1))
        assert after == pytest.approx((1 - az) ** 3 * (4 - az) / 4, rel=1e-6, abs=4 * EPS)
    a = with_values([1.0, 0.8, 0.6])[None]
    errors = [float(residual(a, razavi(a, torch.eye(3, dtype=F64)[None], n))[0]) for n in range(4)]
    assert all(after <= before**3 * 3 for before, after in zip(errors, errors[1:], strict=False))
    assert errors[1] > 1e-3 > 1e-6 > errors[2] * 1e-3


def test_the_iteration_tends_to_the_inverse_and_keeps_the_null_space():
    """On the null space a step multiplies rounding errors by 13/4: 12 steps make 1e6 of them, 60 would diverge."""
    a = with_values([1.0, 0.5, 0.0])[None]
    z = razavi(a, start(a, "columns"), 12)
    assert torch.allclose(z, torch.linalg.pinv(a, rtol=1e-10), atol=1e-9)


def test_each_start_is_its_formula():
    a = randn(2, 4, 4)
    column = [max(float(a[h, :, j].abs().sum()) for j in range(4)) for h in range(2)]
    row = [max(float(a[h, i].abs().sum()) for i in range(4)) for h in range(2)]
    for h in range(2):
        assert torch.allclose(start(a, "norms")[h], a[h].T / (column[h] * row[h]))
        assert torch.allclose(start(a, "columns")[h], a[h].T / column[h])
        assert torch.allclose(start(a, "global")[h], a[h].T / max(column))
        assert torch.equal(start(a, "identity")[h], torch.eye(4, dtype=F64))
    with pytest.raises(UsageError, match="unknown start"):
        start(a, "best")


def moore_penrose(a, z, band):
    assert (a @ z @ a - a).abs().max() <= band and (z @ a @ z - z).abs().max() <= band * float(z.abs().max() ** 2)
    assert (a @ z - (a @ z).mT).abs().max() <= band * float(z.abs().max())
    assert (z @ a - (z @ a).mT).abs().max() <= band * float(z.abs().max())


def squared_root(a, rtol=None):
    root = inverse_root(a, rtol)
    return root @ root.mT


@pytest.mark.parametrize("values", [[3.0, 1.0, 0.2], [3.0, 1.0, 0.0], [5.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
def test_pseudo_inverses_satisfy_the_four_identities(values):
    a = with_values(values)[None]
    moore_penrose(a, squared_root(a), 50 * EPS)
    b = with_values(values, symmetric=False)[None]
    moore_penrose(b, truncated_pinv(b), 50 * EPS)
    assert torch.allclose(squared_root(a), torch.linalg.pinv(a, rtol=1e-12, hermitian=True), atol=1e-13)


def test_the_cut_off_is_relative_to_the_largest_and_drops_what_equals_it():
    a = torch.diag(torch.tensor([8.0, 4.0, 2.0, 1e-3], dtype=F64))[None]
    for rtol, selected in [(None, 4), (1e-3, 3), (0.25, 2), (0.3, 2), (0.5, 1), (0.9, 1)]:
        for pinv in (squared_root, truncated_pinv):
            diagonal = pinv(a, rtol)[0].diagonal()
            assert int((diagonal.abs() > 1e-12).sum()) == selected, (pinv, rtol)
    tiny = torch.diag(torch.tensor([1.0, 1e-3, 3 * EPS, 5 * EPS], dtype=F64))[None]
    assert int((squared_root(tiny)[0].diagonal() > 0).sum()) == 3  # None is d · eps = 4 eps
    scaled = torch.cat([a, 1e-8 * a])
    assert torch.allclose(squared_root(scaled, 0.4)[0], 1e-8 * squared_root(scaled, 0.4)[1])


def test_a_negative_eigenvalue_that_rounding_left_is_dropped():
    a = torch.diag(torch.tensor([2.0, 1.0, -1e-13], dtype=F64))[None]
    assert torch.allclose(squared_root(a)[0], torch.diag(torch.tensor([0.5, 1.0, 0.0], dtype=F64)))


def test_a_factored_pseudo_inverse_keeps_what_its_product_loses():
    """Applied one after the other to the matrix itself, at condition 1e12, where eps · cond is 2e-4."""
    values = (10.0 ** -torch.linspace(0, 12, 6, dtype=F64)).tolist()
    a = with_values(values)[None]
    root = inverse_root(a)
    assert (a @ (root @ (root.mT @ a)) - a).abs().max() <= 1e-13
    assert (root.mT @ a @ root - torch.eye(6, dtype=F64)).abs().max() <= 20 * EPS * 1e12  # itself: eps · cond


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_the_residual_of_a_pseudo_inverse_is_the_share_that_was_cut(rank):
    a = with_values([1.0 + i for i in range(rank)] + [0.0] * (5 - rank))[None]
    assert float(residual(a, torch.linalg.pinv(a, rtol=1e-10))) == pytest.approx((1 - rank / 5) ** 0.5, abs=1e-12)
    assert float(residual(a, torch.zeros_like(a))) == 1.0
    assert residual(a.float(), a.float()).dtype == F64


# Norms


@pytest.mark.parametrize("size", [1.0, 1e200, 1e-200, 1e-310])
@pytest.mark.parametrize("decay", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("n, p", [(50, 8), (8, 50), (CHUNK + 3, 4), (1, 1), (7, 1)])
def test_norms_are_accurate_to_a_few_eps_on_graded_matrices_of_any_size(size, decay, n, p):
    unit = randn(2, n, p) * 10.0 ** (-decay * torch.arange(p, dtype=F64))
    unit = unit / unit.abs().amax()
    spectral, frobenius = output_norms(unit * size)
    expected = torch.linalg.matrix_norm(unit, 2), torch.linalg.matrix_norm(unit)
    # sums of n squares in lanes: a few eps, growing no faster than log n; subnormals have fewer bits
    band = (4 + p**0.5) * EPS if size > 1e-300 else 1e-10
    assert spectral.dtype == frobenius.dtype == F64
    assert ((spectral / size - expected[0]).abs() <= band * expected[0]).all()
    assert ((frobenius / size - expected[1]).abs() <= band * expected[1]).all()


def test_norms_do_not_cancel_where_the_entries_span_all_magnitudes():
    e = torch.tensor([[[1e160, 0.0], [0.0, 1e-160], [3e-200, 0.0]]], dtype=F64)
    assert [float(x) for x in output_norms(e)] == [1e160, 1e160]


def test_a_head_that_is_not_finite_has_norms_nan_and_leaves_the_others_alone():
    e = randn(4, 30, 3)
    expected = output_norms(e)
    broken = e.clone()
    broken[1, 5, 2], broken[2, 0, 0] = float("nan"), float("inf")
    for got, full in zip(output_norms(broken), expected, strict=True):
        assert torch.isnan(got[1]) and torch.isnan(got[2]) and torch.equal(got[[0, 3]], full[[0, 3]])


def test_norms_of_nothing_are_zero_and_lower_dtypes_are_summed_in_float64():
    assert [float(x) for x in output_norms(torch.zeros(1, 4, 3))] == [0.0, 0.0]
    e = randn(2, 3000, 4).float()
    spectral, frobenius = output_norms(e)
    assert torch.allclose(spectral, torch.linalg.matrix_norm(e.double(), 2), rtol=1e-14, atol=0)
    assert torch.allclose(frobenius, torch.linalg.matrix_norm(e.double()), rtol=1e-14, atol=0)


@pytest.mark.parametrize("n, p", [(40, 6), (6, 40), (5, 5)])
def test_tail_singular_values_keep_what_a_gram_matrix_loses(n, p):
    r = min(n, p)
    values = 10.0 ** -torch.linspace(0, 12, r, dtype=F64)
    u, w = torch.linalg.qr(randn(n, r)).Q, torch.linalg.qr(randn(p, r)).Q
    got = tail_singular_values((u * values @ w.T)[None])
    assert got.shape == (1, r) and got.dtype == F64
    assert ((got[0] - values).abs() <= 20 * EPS).all()  # absolute: eps · σ₁
    assert (got[0, :-1] >= got[0, 1:]).all()
    assert tail_singular_values(randn(1, n, p).float()).dtype == F64


# Sampling


@pytest.mark.parametrize("count", [1, 2, 3])
def test_sampling_without_replacement_has_the_law_of_sequential_draws(count):
    """All ordered outcomes of three items, with their exact probabilities; 1 - 1e-6 quantile of Pearson's statistic."""
    weights, draws = torch.tensor([0.5, 2.0, 1.0], dtype=F64), 6000
    g = generator(0, "law")
    seen = [tuple(weighted_without_replacement(weights, count, g).tolist()) for _ in range(draws)]
    statistic, outcomes = 0.0, list(permutations(range(3), count))
    for outcome in outcomes:
        probability, left = 1.0, float(weights.sum())
        for item in outcome:
            probability *= float(weights[item]) / left
            left -= float(weights[item])
        statistic += (seen.count(outcome) - draws * probability) ** 2 / (draws * probability)
    assert set(seen) <= set(outcomes) and statistic < chi2.isf(1e-6, len(outcomes) - 1)


def test_items_of_weight_zero_come_last_but_come():
    weights = torch.tensor([0.0, 1.0, 0.0, 3.0])
    for seed in range(50):
        drawn = weighted_without_replacement(weights, 4, generator(seed)).tolist()
        assert set(drawn[:2]) == {1, 3} and set(drawn) == {0, 1, 2, 3}
    both = {int(weighted_without_replacement(torch.zeros(3), 1, generator(seed))) for seed in range(60)}
    assert both == {0, 1, 2}  # all zero is uniform
    huge = weighted_without_replacement(torch.tensor([1e-300, 1e300, 1e-300], dtype=F64), 3, generator(0))
    assert int(huge[0]) == 1 and sorted(huge.tolist()) == [0, 1, 2] and huge.dtype == torch.int64


def kernel(a, b):
    return torch.exp(-(torch.cdist(a, b) ** 2) / 2)


def test_the_estimated_scores_are_exact_where_every_point_is_a_landmark():
    x, rank = randn(20, 3), 4
    k = kernel(x, x)
    ridge = float(torch.linalg.eigvalsh(k).flip(0)[rank:].sum()) / rank
    exact = (k @ torch.linalg.inv(k + ridge * torch.eye(20, dtype=F64))).diagonal()
    got = _ridge_scores(x, torch.arange(20), torch.arange(20), torch.ones(20, dtype=F64), rank, kernel)
    assert torch.allclose(got, exact, rtol=1e-10)


def test_the_estimated_scores_are_the_literal_formula_for_weighted_landmarks():
    x, rows, landmarks = randn(20, 3), torch.arange(0, 20, 2), torch.tensor([1, 4, 7, 11, 19])
    weights = torch.tensor([1.0, 2.0, 1.5, 3.0, 1.0], dtype=F64)
    m, w = kernel(x[landmarks], x[landmarks]), torch.diag(weights)
    for rank in (1, 2, 5, 9):
        spectrum = torch.linalg.eigvalsh(w @ m @ w).flip(0)
        ridge = 1e-5 if rank >= 5 else float((torch.trace(w @ m @ w) - spectrum[:rank].sum()) / rank)
        inverse = torch.linalg.inv(m + ridge * torch.diag(weights**-2))
        for place, i in enumerate(rows.tolist()):
            c = kernel(x[i : i + 1], x[landmarks])[0]
            expected = max(0.0, (1 - float(c @ inverse @ c)) / ridge)
            got = float(_ridge_scores(x, rows, landmarks, weights, rank, kernel)[place])
            # the ridge of 1e-5 divides a rounding error of about 1e-12
            assert got == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_the_recursion_is_the_literal_one():
    """Algorithm 3 once more, from the same stream: permutation, halving, scores, thinning, weights, last level."""
    x, s = randn(90, 3), 8
    for seed in range(5):
        g = generator(seed, "rls")
        order, n, sizes = torch.randperm(90, generator=g), 90, [90]
        for _ in range(ceil(log(n / s) / log(2))):
            n = -(-n // 2)
            sizes.append(n)
        marks, weights = order[: sizes.pop()], None
        weights = torch.ones(len(marks), dtype=F64)
        while sizes:
            now = order[: sizes.pop()]
            scores = _ridge_scores(x, now, marks, weights, ceil(s / (4 * log(s))), kernel)
            if not sizes:
                expected = now[weighted_without_replacement(scores.clamp(max=1), s, g)]
                break
            p = (log(s) * scores).clamp(max=1)
            keep = torch.rand(len(now), generator=g, dtype=F64) < p
            assert keep.any()
            marks, weights = now[keep], p[keep] ** -0.5
        assert torch.equal(recursive_rls(x, s, kernel, generator(seed, "rls")), expected)


@pytest.mark.parametrize("s", [1, 2, 3, 19, 20, 25])
@pytest.mark.parametrize("points", ["distinct", "equal", "pairs"])
def test_the_recursion_takes_every_budget_and_repeated_points(s, points):
    x = {"distinct": randn(20, 3), "equal": torch.ones(20, 3, dtype=F64), "pairs": randn(10, 3).repeat(2, 1)}[points]
    for seed in range(5):
        drawn = recursive_rls(x, s, kernel, generator(seed))
        assert drawn.dtype == torch.int64 and sorted(set(drawn.tolist())) == sorted(drawn.tolist())
        assert len(drawn) == min(s, 20) and drawn.min() >= 0 and drawn.max() < 20


@pytest.mark.parametrize("count", [1, 4, 12])
def test_kmeans_keeps_its_centroids_where_every_point_has_one(count):
    x = randn(12, 2)
    got = kmeans(x[None], count, [generator(0)], steps=30)[0]
    assert got.shape == (count, 2) and torch.isfinite(got).all()
    if count == 12:
        assert torch.cdist(x, got).amin(1).max() <= 1e-15 and torch.cdist(x, got).amin(0).max() <= 1e-15
    if count == 1:
        assert torch.allclose(got[0], x.mean(0), atol=1e-15)


def test_an_empty_cluster_keeps_its_centroid():
    x = torch.tensor([[0.0], [0.0], [0.0], [5.0]], dtype=F64)
    for seed in range(8):
        got = kmeans(x[None], 3, [generator(seed)], steps=5)[0]
        assert torch.isfinite(got).all() and set(got[:, 0].tolist()) <= {0.0, 5.0}


SHAPES = [(60,), (5, 60), (2, 3, 60)]


def equal_scores(shape, levels=4):
    """Scores of a few levels, of which the lowest is -∞."""
    x = torch.randint(levels, shape, generator=torch.Generator().manual_seed(0)).double()
    return x.masked_fill(x == 0, float("-inf"))


def sorted_scores(x, count):
    values, places = x.sort(dim=-1, descending=True, stable=True)
    return values[..., :count], places.masked_fill(values == float("-inf"), -1)[..., :count]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [0, 1, 7, 25, 59, 60, 70])
def test_equal_scores_are_taken_by_their_place(shape, count):
    x = equal_scores(shape)
    expected = sorted_scores(x, count)
    for actual in (largest_scores(x, count), largest_scores(x.masked_fill(x > 2, torch.inf), count)):
        assert torch.equal(actual[1], expected[1])
    assert torch.equal(largest_scores(x, count)[0], expected[0])
    with pretending():
        values, places = largest_scores(x.to(AWAY), count)
    assert isinstance(values, Pretended) and isinstance(places, Pretended)
    assert torch.equal(places.held, expected[1]) and torch.equal(values.held, expected[0])


@pytest.mark.parametrize("count", [1, 20, 60])
def test_scores_without_ties_are_those_of_topk(count):
    x = torch.randn(4, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = x.topk(count)
    for actual, of_topk in zip(largest_scores(x, count), expected, strict=True):
        assert torch.equal(actual, of_topk)


def test_scores_that_are_not_above_the_bound_have_no_place():
    values, places = largest_scores(torch.tensor([[0.0, 2.0, 0.0, 1.0]]), 3, above=0.0)
    assert values.tolist() == [[2.0, 1.0, 0.0]] and places.tolist() == [[1, 3, -1]]


def test_nan_is_larger_than_every_number():
    x = torch.tensor([[1.0, 2.0, float("nan"), 2.0, 2.0]])
    assert largest_scores(x, 3)[1].tolist() == [[2, 1, 3]]


@pytest.mark.parametrize("count", [1, 40, 200, 300])
def test_many_float32_scores_have_the_same_order(count):
    x = torch.randn(4, 300, generator=torch.Generator().manual_seed(0)).mul(4).round()
    x[0] = x[0] * 0  # zeros of both signs are equal
    x[1, ::7], x[1, 1::7], x[2, ::3] = torch.inf, -torch.inf, 1.5
    assert torch.equal(largest_scores(x, count)[1], sorted_scores(x, count)[1])
    assert torch.equal(largest_scores(x, count)[0], sorted_scores(x, count)[0])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_nan_of_either_sign_is_larger_than_many_numbers(sign):
    x = torch.arange(200.0)[None]
    x[0, 7] = torch.tensor(float("nan")).copysign(torch.tensor(sign))
    assert largest_scores(x, 3)[1].tolist() == [[7, 199, 198]]


def test_many_scores_of_no_row_have_no_place():
    values, places = largest_scores(torch.empty(0, 200), 3)
    assert values.shape == places.shape == (0, 3) and places.dtype == torch.int64


def test_gradients_reach_the_scores_that_are_taken():
    x = torch.tensor([[3.0, 5.0, 5.0, 5.0]], requires_grad=True)
    largest_scores(x, 2)[0].sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[0.0, 1.0, 1.0, 0.0]]


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_a_median_of_an_even_count_is_the_mean_of_the_middle_two(count):
    x = torch.randn(3, count, 2, generator=generator(0, "median"), dtype=torch.float64)
    assert median(x, 1).numpy() == pytest.approx(np.median(x.numpy(), axis=1), rel=1e-15)
    assert median(x, -2).equal(median(x, 1))


@pytest.mark.parametrize(
    "values, middle",
    [
        ([1, 2, 3, float("inf")], 2.5),
        ([1, 2, float("inf"), float("inf")], float("inf")),
        ([float("inf")] * 2, float("inf")),
        ([1, float("nan"), 3], float("nan")),
    ],
)
def test_infinite_values_are_the_largest_and_nan_is_the_median(values, middle):
    assert float(median(torch.tensor(values), 0)) == pytest.approx(middle, nan_ok=True)
