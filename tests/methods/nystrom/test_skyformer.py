"""Skyformer's own mathematics: forms, order, samplers, starts, guards and options."""

from math import log

import pytest
import torch
from inputs import assert_twin, entry_band, factor_of, make, one_head, reaching
from scipy.stats import chi2
from thinned import others_slow
from twins import exact as exact_twin
from twins import gaussian_of, lifted, razavi_steps, sampling, skyformer_lifted, skyformer_raw, softmax_kernel_of
from twins import skyformer as twin

from attnprobe.errors import Unsupported, UsageError
from attnprobe.methods import approximate
from attnprobe.methods.nystrom.row_guard import certainly_wrong, normaliser_noise, sampled_key_mass
from attnprobe.methods.nystrom.skyformer import _norm
from attnprobe.operators.linalg.sampling import kmeans, recursive_rls
from attnprobe.qkv import QKV
from attnprobe.reference import exact
from attnprobe.rng import Streams, generator

EPS = torch.finfo(torch.float64).eps


def sky(qkv, d, **options):
    return approximate("skyformer", qkv, d, **options)


def lowest(matrix):
    return float(torch.linalg.eigvalsh((matrix + matrix.mT) / 2).min())


# The two forms of the softmax target


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("score, d", [(0.5, 6), (1.0, 8), (2.0, 10)])
def test_the_gaussian_form_equals_the_raw_form_where_the_raw_form_is_well_posed(seed, score, d):
    qkv = make(h=1, n=16, p=8, score=score, seed=seed)
    approx = sky(qkv, d, sampler="wor", inverse="pinv", seed=seed)
    raw, core = skyformer_raw(qkv, approx.draws["indices"][0])
    condition, sums = float(torch.linalg.cond(core)), raw.sum(1)
    cancelled = float((raw.abs().sum(1) / sums.abs()).max())
    if condition >= 1e6 or cancelled >= 100:
        pytest.skip(f"raw core of condition {condition:.0e}, normaliser cancelled by {cancelled:.0f}")
    # the raw form loses eps · condition · cancellation, at most 2e-8 in the worst case and 1e-10 in practice
    assert (approx.operator.dense()[0] - raw / sums[:, None]).abs().max() <= 1e-10


def test_enough_of_the_raw_forms_above_are_well_posed():
    """So that the skips cannot eat the test."""
    posed = 0
    for seed in range(6):
        for score, d in [(0.5, 6), (1.0, 8), (2.0, 10)]:
            qkv = make(h=1, n=16, p=8, score=score, seed=seed)
            raw, core = skyformer_raw(qkv, sky(qkv, d, sampler="wor", inverse="pinv", seed=seed).draws["indices"][0])
            posed += bool(torch.linalg.cond(core) < 1e6 and (raw.abs().sum(1) / raw.sum(1).abs()).max() < 100)
    assert posed >= 12


def test_with_a_ridge_the_two_forms_differ():
    """The negative control: γI is not invariant to a scaling of the landmarks."""
    qkv = make(h=1)
    approx = sky(qkv, 8, inverse="cholesky", gamma=0.1)
    x = lifted(qkv)[approx.draws["indices"][0]]
    core = softmax_kernel_of(x, x, qkv.scale) + 0.1 * torch.eye(8, dtype=torch.float64)
    raw = softmax_kernel_of(qkv.q[0], x, qkv.scale) @ core.inverse() @ softmax_kernel_of(x, qkv.k[0], qkv.scale)
    assert (approx.operator.dense()[0] - raw / raw.sum(1, keepdim=True)).abs().max() > 1e-3


@pytest.mark.parametrize("target", ["softmax", "gaussian"])
@pytest.mark.parametrize("score", [1.0, 6.0])
@pytest.mark.parametrize(
    "options",
    [
        {"inverse": "pinv"},
        {"inverse": "cholesky"},
        {"inverse": "cholesky", "gamma": 1e-3},
        {"inverse": "schulz", "n_iter": 1},
        {"inverse": "schulz", "z0": "identity", "n_iter": 4},
        {"inverse": "schulz", "gamma": 0.01, "n_iter": 12},
        {"inverse": "schulz", "n_iter": 0},
    ],
    ids=str,
)
def test_every_inverse_equals_its_twin(target, score, options):
    qkv = make(score=score)
    approx = sky(qkv, 7, target=target, **options)
    assert_twin(approx, qkv, twin, 7, target, **options)


# Order, interpolation, exactness


@pytest.mark.parametrize("score", [0.5, 1.0, 6.0])
@pytest.mark.parametrize("sampler", ["stratified", "iid", "wor", "rls"])
@pytest.mark.parametrize("options", [{"inverse": "pinv"}, {"inverse": "cholesky"}, {"inverse": "schulz"}], ids=str)
def test_the_lifted_order_holds_and_the_block_is_no_worse_than_the_whole(score, sampler, options):
    qkv = make(h=1, n=16, score=score)
    approx = sky(qkv, 9, target="gaussian", sampler=sampler, **options)
    middle = approx.inverses["core"][0]
    kernel, below = skyformer_lifted(qkv, approx.draws["indices"][0], middle)
    band = EPS * factor_of(qkv) * float(kernel.norm() ** 2 * middle.norm())
    assert band < 1e-8  # else the assertions below would say nothing
    assert lowest(kernel - below) >= -band and lowest(below) >= -band
    block = kernel[:16, 16:] - approx.operator.dense()[0]
    assert torch.linalg.matrix_norm(block, 2) <= torch.linalg.matrix_norm(kernel - below, 2) + band
    assert torch.allclose(block, (kernel - below)[:16, 16:], atol=band, rtol=0)
    rows = approx.draws["indices"][0]
    missed = (kernel - below)[rows].abs().max()
    if options["inverse"] == "pinv":
        assert missed <= band and (kernel - below)[:, rows].abs().max() <= band
    else:
        assert missed > 1e-3  # a ridge does not interpolate: the negative control


@pytest.mark.parametrize("inverse", ["pinv", "cholesky"])
@pytest.mark.parametrize("target", ["softmax", "gaussian"])
def test_full_budget_is_exact_with_a_pseudo_inverse_and_not_with_a_ridge(inverse, target):
    qkv = make(h=1, n=12)
    approx = sky(qkv, 24, target=target, sampler="wor", inverse=inverse)
    error = (approx.operator.dense()[0] - exact_twin(qkv, target)).abs().max()
    if inverse == "pinv":
        assert error <= 1e-12  # eps times a condition number of about 100 times norms of about 10
    else:
        assert error > 1e-3


def test_duplicated_landmarks_change_nothing():
    """Tokens that repeat make landmarks that repeat: the operator is the one of the distinct tokens."""
    qkv = make(h=1, n=10)
    twice = QKV(*(torch.cat([x, x], 1) for x in (qkv.q, qkv.k, qkv.v)))
    single = exact(qkv, "gaussian").dense()
    double = sky(twice, 40, target="gaussian", sampler="wor", inverse="pinv")
    assert (double.operator.dense() - single.repeat(1, 2, 2)).abs().max() <= 1e-12  # eps · cond ~ 100 · norms ~ 30
    drawn = sky(qkv, 20, target="gaussian", sampler="iid", inverse="pinv")
    indices = drawn.draws["indices"][0]
    assert len(indices.unique()) < 20 == len(indices)
    assert drawn.diagnostics["realised_d"].tolist() == [len(indices.unique())]
    unique = twin(qkv, len(indices.unique()), {"indices": indices.unique()}, "gaussian", inverse="pinv")
    assert (drawn.operator.dense()[0] - unique).abs().max() <= 1e-12
    lost = 1 - len(indices.unique()) / 20
    assert torch.allclose(drawn.diagnostics["inverse_residual"], torch.tensor([lost]).double().sqrt(), atol=1e-6)


@pytest.mark.parametrize("inverse", ["pinv", "cholesky"])
def test_more_landmarks_raise_the_approximation_in_the_loewner_order(inverse):
    """Without replacement the draws of a smaller budget are the first of a larger one."""
    qkv = make(h=1, n=14)
    before, last = None, None
    for d in (2, 5, 9, 15, 28):
        approx = sky(qkv, d, target="gaussian", sampler="wor", inverse=inverse)
        indices = approx.draws["indices"][0]
        assert last is None or torch.equal(indices[: len(last)], last)
        kernel, below = skyformer_lifted(qkv, indices, approx.inverses["core"][0])
        if before is not None:
            assert lowest(below - before) >= -1e-11  # eps times condition times norms, as above
            assert (below - before).norm() > 1e-2
        before, last = below, indices


@pytest.mark.parametrize("sampler", ["stratified", "iid", "wor"])
def test_budgets_share_their_draws(sampler):
    qkv = make(n=30)
    small, large = (sky(qkv, d, sampler=sampler).draws["indices"] for d in (10, 24))
    if sampler == "stratified":
        assert torch.equal(small[:, :5], large[:, :5]) and torch.equal(small[:, 5:], large[:, 12:17])
    else:
        assert torch.equal(small, large[:, :10])


# The iteration and its start


def test_the_scaled_core_has_its_spectrum_in_zero_to_one_and_its_top_eigenvector_is_one_over_r():
    """Lemma 3; the top eigenvalue is exactly 1, so the interval is half open."""
    for score in (0.1, 1.0, 6.0):
        approx = sky(make(score=score), 12, target="gaussian")
        ridged, scaled = approx.cores["core"], approx.cores["scaled"]
        values = torch.linalg.eigvalsh(scaled)
        assert values.min() > 0 and (values[:, -1] - 1).abs().max() <= 50 * EPS
        vector = ridged.sum(-1).sqrt()[..., None]  # 1/r
        assert (scaled @ vector - vector).abs().max() <= 50 * EPS * vector.max()
        assert torch.allclose(ridged - 0.1 * torch.eye(12, dtype=torch.float64), _cores(approx, make(score=score)))


def _cores(approx, qkv):
    out = []
    for row in range(qkv.h):
        x = lifted(one_head(qkv, row))[approx.draws["indices"][row]]
        out.append(gaussian_of(x, x, qkv.scale))
    return torch.stack(out)


def test_each_start_is_its_formula_and_only_global_couples_heads():
    qkv = QKV(*(x * torch.tensor([1.0, 2.5]).double()[:, None, None] for x in (make().q, make().k, make().v)))
    alone = qkv.select([1])
    for z0 in ("paper", "global", "identity"):
        both = sky(qkv, 8, target="gaussian", z0=z0, n_iter=1)
        n = both.cores["scaled"]
        sums = n.sum(1).amax(-1)  # largest column sum of each head
        assert sums[0] > sums[1] * 1.0001
        start = {
            "paper": [n[1].T / sums[1], n[1].T / sums[1]],
            "global": [n[1].T / sums.max(), n[1].T / sums[1]],
            "identity": [torch.eye(8, dtype=torch.float64)] * 2,
        }[z0]
        one = sky(alone, 8, target="gaussian", z0=z0, n_iter=1)
        for approx, z, row in ((both, start[0], 1), (one, start[1], 0)):
            assert (approx.inverses["scaled"][row] - razavi_steps(n[1], z, 1)).abs().max() <= 1e-12
        change = (both.operator.dense()[1] - one.operator.dense()[0]).abs().max()
        assert change > 1e-9 if z0 == "global" else change <= 1e-13


def test_the_identity_converges_faster_and_all_starts_reach_the_ridged_inverse():
    qkv = make()
    desired = sky(qkv, 10, target="gaussian", inverse="cholesky").operator.dense()
    for z0 in ("paper", "global", "identity"):
        errors = [sky(qkv, 10, target="gaussian", z0=z0, n_iter=n).diagnostics["inverse_residual"] for n in (1, 2, 3)]
        assert (errors[0] > errors[1]).all() and (errors[1] > errors[2]).all()
        last = sky(qkv, 10, target="gaussian", z0=z0, n_iter=30).operator.dense()
        assert (last - desired).abs().max() <= 1e-12
    slow, fast = (sky(qkv, 10, target="gaussian", z0=z0, n_iter=3) for z0 in ("paper", "identity"))
    assert (fast.diagnostics["inverse_residual"] < slow.diagnostics["inverse_residual"]).all()


# Samplers


def counts_of(sampler, d, n=6, seeds=300, h=4):
    """How often each of the 2n rows was drawn, and how many draws there were."""
    qkv = make(h=h, n=n)
    drawn = [sky(qkv, d, sampler=sampler, seed=seed).draws["indices"] for seed in range(seeds)]
    return torch.bincount(torch.stack(drawn).reshape(-1), minlength=2 * n).double(), torch.stack(drawn)


@pytest.mark.parametrize("d", [1, 2, 7, 8])
def test_stratified_takes_half_from_queries_and_the_rest_from_keys(d):
    _, drawn = counts_of("stratified", d, seeds=20)
    assert ((drawn < 6).sum(-1) == d // 2).all() and ((drawn >= 6).sum(-1) == d - d // 2).all()


@pytest.mark.parametrize("sampler", ["stratified", "iid", "wor"])
def test_every_row_is_as_likely_as_any_other(sampler):
    """Pearson's statistic below its 1 - 1e-6 quantile; a draw without replacement has variance (N-d)/(N-1) of that."""
    d, total = 8, 12
    counts, drawn = counts_of(sampler, d)
    expected = counts.sum() / total
    statistic = float(((counts - expected) ** 2 / expected).sum())
    if sampler == "wor":
        statistic *= (total - 1) / (total - d)
        assert all(len(row.unique()) == d for row in drawn.reshape(-1, d))
    else:
        assert any(len(row.unique()) < d for row in drawn.reshape(-1, d))
    assert 1e-2 < statistic < chi2.isf(1e-6, total - 1)


def test_leverage_scores_find_the_rare_tokens_that_uniform_sampling_misses():
    """36 copies of nearly one token and 4 far ones: exact scores want the far ones."""
    g = torch.Generator().manual_seed(0)
    x = 0.05 * torch.randn(1, 40, 4, generator=g, dtype=torch.float64)
    x[0, 36:] = 6 * torch.eye(4, dtype=torch.float64)
    qkv = QKV(x, x, x)
    rare = {*range(36, 40), *range(76, 80)}
    actual = {}
    for sampler in ("rls", "wor"):
        drawn = [sky(qkv, 10, target="gaussian", sampler=sampler, seed=s).draws["indices"][0] for s in range(30)]
        assert all(len(row.unique()) == 10 for row in drawn)
        actual[sampler] = sum(len({i % 40 for i in row.tolist() if i in rare}) for row in drawn) / 30
    # uniform draws hold a given pair of rows with probability 1 - (70/80 · 69/79): 0.94 of the four rare tokens
    assert actual["rls"] > 3 and actual["wor"] < 1.4


def test_centroids_lower_the_quantisation_error_and_are_fixed_points():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=g, dtype=torch.float64)

    def error(centroids):
        return float(torch.cdist(x, centroids).amin(1).square().sum())

    errors = [error(kmeans(x[None], 7, [torch.Generator().manual_seed(1)], steps=steps)[0]) for steps in range(12)]
    assert all(a >= b - 1e-12 for a, b in zip(errors, errors[1:], strict=False)) and errors[0] > errors[-1] + 1
    final = kmeans(x[None], 7, [torch.Generator().manual_seed(1)], steps=100)[0]
    nearest = torch.cdist(x, final).argmin(1)
    for cluster in range(7):
        assert torch.allclose(final[cluster], x[nearest == cluster].mean(0), atol=1e-13)


def test_kmeans_landmarks_are_ten_steps_of_lloyd_on_queries_and_keys():
    qkv = make(n=12)
    approx = sky(qkv, 5, target="gaussian", sampler="kmeans")
    assert set(approx.draws) == {"centroids"} and approx.draws["centroids"].shape == (2, 5, 8)
    assert not torch.equal(approx.draws["centroids"][0], approx.draws["centroids"][1])
    for row in range(2):
        x, ours = lifted(one_head(qkv, row)), approx.draws["centroids"][row]
        nearest = torch.cdist(x, ours).argmin(1)
        again = torch.stack([x[nearest == c].mean(0) if (nearest == c).any() else ours[c] for c in range(5)])
        before = torch.cdist(x, ours).amin(1).square().sum()
        assert torch.cdist(x, again).amin(1).square().sum() <= before * (1 + 1e-12)
        desired = twin(one_head(qkv, row), 5, {"centroids": ours}, "gaussian")
        assert (approx.operator.dense()[row] - desired).abs().max() <= 1e-12


def test_heads_share_indices_only_when_asked():
    shared = sky(make(h=3), 8, share_heads=True).draws["indices"]
    assert torch.equal(shared[0], shared[1]) and torch.equal(shared[0], shared[2])
    own = sky(make(h=3), 8).draws["indices"]
    assert not torch.equal(own[0], own[1])


@pytest.mark.parametrize("sampler", ["stratified", "iid", "wor", "rls", "kmeans"])
def test_heads_that_hold_the_same_tokens_draw_on_their_own(sampler):
    """Draws that look at the data differ between heads anyway: only equal heads tell a shared stream."""
    one = make(h=1, n=12)
    qkv = QKV(*(x.expand(2, -1, -1).contiguous() for x in (one.q, one.k, one.v)))
    (drawn,) = sky(qkv, 5, sampler=sampler).draws.values()
    assert not torch.equal(drawn[0], drawn[1])


# Normalisers and guards


def scene(guard, score=6.0, n=48, d=14, seed=0, **options):
    """A run whose head 0 has certainly bad rows, its twin's D~, and the literal lower bound of D, per row."""
    qkv = make(h=2, n=n, p=4, score=score, seed=seed)
    approx = sky(qkv, d, guard=guard, **options)
    out = []
    for row in range(2):
        one, indices = one_head(qkv, row), approx.draws["indices"][row]
        kernel = gaussian_of(lifted(one), lifted(one), one.scale)
        s = sampling(indices, 2 * n)
        c = (kernel @ s @ torch.linalg.pinv(s.T @ kernel @ s, hermitian=True) @ s.T @ kernel)[:n, n:]
        half = one.scale / 2
        a = c * torch.exp(half * one.q[0].square().sum(1))[:, None] * torch.exp(half * one.k[0].square().sum(1))
        keys = sorted({i - n for i in indices.tolist() if i >= n})
        true = softmax_kernel_of(one.q[0], one.k[0], one.scale)
        out.append((one, a, true, true[:, keys].sum(1), keys))
    return qkv, approx, out


def certain(mass, bound):
    """Rows that are bad or good beyond rounding; the scene must leave none between."""
    bad, good = mass < bound * (1 - 1e-5), mass > bound * (1 + 1e-7)
    assert (bad | good).all() and bad.any() and good.any()
    return bad


@pytest.mark.parametrize("guard", ["sampled", "floor", "vmean", "exact"])
@pytest.mark.parametrize("seed", [0, 1])
def test_each_guard_replaces_the_rows_below_the_bound_by_its_definition_and_no_others(guard, seed):
    qkv, approx, heads = scene(guard, seed=seed)
    dense = approx.operator.dense()
    plain = sky(qkv, 14)
    assert torch.equal(plain.diagnostics["bad_rows"], approx.diagnostics["bad_rows"])
    extra = approx.diagnostics["visited"] - plain.diagnostics["visited"]
    for row, (one, a, true, bound, keys) in enumerate(heads):
        mass = a.sum(1)
        bad = certain(mass, bound)
        assert int(approx.diagnostics["guarded_rows"][row]) == int(bad.sum())
        assert int(approx.diagnostics["bad_rows"][row]) == int((mass <= 0).sum())
        assert extra[row] == (bad.sum() * one.n_k if guard == "exact" else 0)
        desired = a / mass[:, None]
        if guard == "floor":
            desired[bad] = a[bad] / bound[bad, None]
        elif guard == "vmean":
            desired[bad] = 1 / one.n_k
        elif guard == "exact":
            desired[bad] = (true / true.sum(1, keepdim=True))[bad]
        else:
            sampled = torch.zeros_like(true)
            sampled[:, keys] = true[:, keys]
            desired[bad] = (sampled / sampled.sum(1, keepdim=True))[bad]
        # two computations whose cancellation in D~ is up to 1e5 at this scale
        assert torch.allclose(dense[row], desired, rtol=1e-8, atol=1e-9 * float(desired.abs().max()))
        assert torch.allclose(dense[row][good_rows(bad)], plain.operator.dense()[row][good_rows(bad)], rtol=1e-12)


def good_rows(bad):
    return (~bad).nonzero()[:, 0]


@pytest.mark.parametrize("score", [0.3, 1.0, 3.0, 6.0])
@pytest.mark.parametrize("d", [3, 8, 20])
def test_the_bound_is_the_mass_on_the_distinct_sampled_keys_and_never_above_D(score, d):
    qkv = make(n=20, score=score)
    indices = sky(qkv, d, sampler="iid", seed=2).draws["indices"]
    for row in range(2):
        one = one_head(qkv, row)
        x = lifted(one)[indices[row]]
        left = gaussian_of(one.q[0], x, one.scale)[None]
        got, key = sampled_key_mass(left, indices[row : row + 1], 20, one.k, one.scale, torch.zeros(1).double())
        keys = sorted({i - 20 for i in indices[row].tolist() if i >= 20})
        assert sorted(key[key >= 0].tolist()) == keys
        a = softmax_kernel_of(one.q[0], one.k[0], one.scale)
        bound = got[0] * torch.exp(one.scale / 2 * one.q[0].square().sum(1))
        assert torch.allclose(bound, a[:, keys].sum(1), rtol=1e-11)  # exponents of at most 100, 100 eps each
        assert (bound <= a.sum(1) * (1 + 1e-11)).all()


@pytest.mark.parametrize("guard", ["sampled", "floor", "vmean", "exact"])
@pytest.mark.parametrize("score", [1.0, 3.0])
def test_a_guard_leaves_an_exact_approximation_exact(guard, score):
    """With every key sampled the bound *is* D, so D~ may lie below it by rounding, which is no breakdown."""
    qkv = make(n=16, score=score)
    guarded, plain = (sky(qkv, 32, sampler="wor", guard=g) for g in (guard, "none"))
    assert guarded.diagnostics["guarded_rows"].tolist() == [0, 0]
    assert (guarded.output - plain.output).abs().max() <= 1e-6


def test_a_guard_that_finds_no_key_says_so():
    for seed in range(200):
        qkv, draws = make(h=1, n=30, p=4, score=8.0, seed=seed), None
        draws = sky(qkv, 2, sampler="iid", seed=seed)
        if (draws.draws["indices"] < 30).all() and draws.diagnostics["bad_rows"] > 0:
            break
    else:
        pytest.fail("no seed gives two queries and a bad row")
    for guard in ("sampled", "floor"):
        with pytest.raises(Unsupported, match=f"guard={guard}.*raise d"):
            sky(qkv, 2, sampler="iid", guard=guard, seed=seed)
    assert torch.isfinite(sky(qkv, 2, sampler="iid", guard="exact", seed=seed).output).all()


@pytest.mark.parametrize("score", [1.0, 6.0])
def test_the_exact_normaliser_divides_by_the_true_D(score):
    qkv = make(score=score)
    approx = sky(qkv, 10, normalizer="exact")
    for row in range(2):
        one, indices = one_head(qkv, row), approx.draws["indices"][row]
        c = twin(one, 10, {"indices": indices}, "gaussian", inverse="pinv")
        half = one.scale / 2
        a = c * torch.exp(half * one.q[0].square().sum(1))[:, None] * torch.exp(half * one.k[0].square().sum(1))
        desired = a / softmax_kernel_of(one.q[0], one.k[0], one.scale).sum(1, keepdim=True)
        band = entry_band(approx.operator, qkv, torch.float64)[row]
        assert ((approx.operator.dense()[row] - desired).abs() <= band).all()
    assert (approx.diagnostics["visited"] >= 400).all()


def test_centring_the_keys_leaves_B_and_moves_the_approximation():
    qkv = make(score=2.0)
    qkv = QKV(qkv.q, qkv.k + 0.7, qkv.v)
    centred = QKV(qkv.q, qkv.k - qkv.k.mean(1, keepdim=True), qkv.v)
    assert (exact(qkv).dense() - exact(centred).dense()).abs().max() <= 1e-13
    ours = sky(qkv, 10, center_keys=True)
    assert torch.allclose(ours.operator.dense(), sky(centred, 10).operator.dense(), rtol=1e-9, atol=1e-12)
    assert (ours.operator.dense() - sky(qkv, 10).operator.dense()).abs().max() > 1e-3
    moved = QKV(qkv.q, qkv.k + 1.3, qkv.v)
    again = sky(moved, 10, center_keys=True).operator.dense()
    assert torch.allclose(ours.operator.dense(), again, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("target", ["softmax", "gaussian"])
def test_scale_dim_overrides_the_scale_of_the_model(target):
    qkv = make()
    ours = sky(qkv, 8, target=target, scale_dim=32).operator.dense()
    assert torch.equal(ours, sky(QKV(qkv.q, qkv.k, qkv.v, scale=32**-0.5), 8, target=target).operator.dense())
    assert torch.equal(sky(qkv, 8, target=target, scale_dim=8).output, sky(qkv, 8, target=target).output)
    assert (ours - sky(qkv, 8, target=target).operator.dense()).abs().max() > 1e-3


# Options


def test_the_defaults_of_inverse_and_gamma_follow_the_target():
    qkv = make()
    same = torch.equal
    published = sky(qkv, 8, target="gaussian").output
    assert same(published, sky(qkv, 8, target="gaussian", inverse="schulz", gamma=0.1, n_iter=6, z0="paper").output)
    figure = sky(qkv, 8).output
    assert same(figure, sky(qkv, 8, inverse="pinv", gamma=0.0).output)
    assert same(sky(qkv, 8, inverse="cholesky").output, sky(qkv, 8, inverse="cholesky", gamma=0.1).output)
    assert not same(published, sky(qkv, 8, target="gaussian", gamma=0.2).output)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"inverse": "pinv", "gamma": 0.1}, "gamma=0.1.*inverse=cholesky"),
        ({"gamma": 0.1}, "gamma=0.1.*inverse=cholesky"),
        ({"inverse": "cholesky", "gamma": -0.1}, "gamma=-0.1 is negative"),
        ({"n_iter": -1}, "n_iter=-1"),
        ({"scale_dim": 0}, "scale_dim=0"),
        ({"inverse": "schulz", "rtol": 1e-3}, "rtol.*inverse=schulz"),
        ({"target": "gaussian", "rtol": 1e-3}, "rtol.*inverse=schulz"),
        ({"target": "gaussian", "guard": "sampled"}, "target=softmax"),
        ({"target": "gaussian", "normalizer": "exact"}, "target=softmax"),
        ({"target": "gaussian", "center_keys": True}, "target=softmax"),
        ({"sampler": "kmeans", "guard": "sampled"}, "guard=sampled.*kmeans"),
        ({"sampler": "kmeans", "guard": "floor"}, "guard=floor.*kmeans"),
        ({"sampler": "rls", "share_heads": True}, "share_heads.*rls"),
        ({"sampler": "kmeans", "share_heads": True}, "share_heads.*kmeans"),
    ],
    ids=str,
)
def test_options_that_contradict_each_other_are_refused(options, words):
    with pytest.raises(UsageError, match=f"skyformer: .*{words}"):
        sky(make(), 8, **options)


@pytest.mark.parametrize(
    "options",
    [{"inverse": "cholesky", "gamma": "nan"}, {"inverse": "cholesky", "gamma": "inf"}, {"rtol": 2.0}, {"rtol": -1.0}],
    ids=str,
)
def test_ridges_and_cut_offs_that_are_no_such_number_are_refused(options):
    with pytest.raises(UsageError):
        sky(make(), 8, **options)


def test_the_cut_off_drops_eigenvalues_below_it():
    qkv = make(h=1, score=0.3)
    approx = sky(qkv, 12, target="gaussian", sampler="wor", inverse="pinv", rtol=0.05)
    values = torch.linalg.eigvalsh(approx.cores["core"][0])
    selected = int((values > 0.05 * values.max()).sum())
    assert 0 < selected < 12 and int(torch.linalg.matrix_rank(approx.inverses["core"][0], rtol=1e-8)) == selected
    assert abs(float(approx.diagnostics["inverse_residual"]) - (1 - selected / 12) ** 0.5) <= 1e-9


# Limits of floating point


@pytest.mark.parametrize("guard", ["none", "sampled", "floor", "vmean", "exact"])
def test_no_output_row_is_silently_lost_at_any_score(guard):
    """Between 1000 and 2000 the normaliser passes through the subnormal numbers, whose reciprocal is infinite."""
    for step in range(60):
        qkv = reaching(10 ** (2.5 + step / 60), n=24, seed=step)
        approx = sky(qkv, 8, guard=guard)
        lost = (~torch.isfinite(approx.output)).any(-1).sum(-1)
        assert (lost <= approx.diagnostics["bad_rows"]).all(), step


@pytest.mark.parametrize("guard", ["sampled", "floor", "vmean", "exact"])
def test_a_guarded_output_is_finite_at_any_score(guard):
    for step in range(60):
        qkv = reaching(10 ** (2.5 + step / 60), n=24, seed=step)
        assert torch.isfinite(sky(qkv, 8, guard=guard).output).all(), step


@pytest.mark.parametrize("score", [1.0, 0.1, 0.01])
def test_interpolation_survives_an_ill_conditioned_core(score):
    """The eigenvectors over the roots of the eigenvalues, applied on both sides, keep 1e-10 at condition 1e12."""
    qkv = make(h=1, n=96, score=score)
    approx = sky(qkv, 192, target="gaussian", sampler="wor", inverse="pinv")
    worst = (approx.operator.dense() - exact(qkv, "gaussian").dense()).abs().max()
    # eps · √condition · √d is what a factored pseudo-inverse needs; the product of factors loses eps · condition
    condition = torch.linalg.cond(approx.cores["core"][0])
    assert worst <= 50 * EPS * float(condition) ** 0.5 * 192**0.5


def test_the_logarithm_in_the_rank_of_the_leverage_sampler_takes_tiny_budgets():
    for d in (1, 2, 3):
        drawn = sky(make(n=9), d, sampler="rls").draws["indices"]
        assert drawn.shape == (2, d) and drawn.min() >= 0 and drawn.max() < 18 and log(d + 1) > 0


@pytest.mark.parametrize("score", [1.0, 6.0])
@pytest.mark.parametrize(
    "options", [{}, {"target": "gaussian", "inverse": "pinv"}, {"inverse": "cholesky", "gamma": 1e-5}]
)
def test_an_inverse_that_amplifies_rounding_is_applied_in_float64_whatever_the_inputs_are(score, options):
    """So float32 inputs lose one rounding of the output, and nothing else: both runs see the same numbers."""
    single, double = (sky(make(score=score, dtype=dtype), 10, **options) for dtype in (torch.float32, torch.float64))
    assert single.operator.dtype == torch.float64 and single.output.dtype == torch.float32
    assert torch.equal(single.output, double.output.float())


def test_a_query_far_from_every_landmark_has_a_normaliser_all_the_same():
    """κ to every landmark is below exp(-800), which is 0 in float64: the largest is taken out of its row."""
    qkv = make(h=1, n=12, p=4)
    q = qkv.q.clone()
    q[0, 0] = torch.tensor([60.0, 0.0, 0.0, 0.0])
    far = QKV(q, qkv.k, qkv.v)
    approx = sky(far, 6, sampler="stratified", seed=0)
    assert 0 not in approx.draws["indices"][0].tolist()
    marks = lifted(far)[approx.draws["indices"][0]]
    exponent = -(q[0, 0] - marks).square().sum(1) * far.scale / 2
    assert exponent.max() < -800
    assert approx.diagnostics["bad_rows"].tolist() == [0] and torch.isfinite(approx.output).all()
    core = gaussian_of(marks, marks, far.scale)
    key = gaussian_of(marks, far.k[0], far.scale) * torch.exp(far.scale / 2 * far.k[0].square().sum(1))
    row = torch.exp(exponent - exponent.max()) @ torch.linalg.pinv(core) @ key
    assert torch.allclose(approx.operator.dense()[0, 0], row / row.sum(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("score, expected", [(3, "none"), (6, "none"), (9, "some"), (12, "some"), (20, "some")])
def test_rows_whose_normaliser_is_rounding_are_counted(score, expected):
    """At full budget B~ is B in exact arithmetic: a row that is far off is rounding, and must be counted as bad."""
    qkv = make(h=2, n=32, p=8, score=float(score))
    approx = sky(qkv, 64, sampler="wor")
    wrong = ((approx.operator.dense() - exact(qkv).dense()).abs().sum(-1) > 0.2).sum(-1)  # rows sum to 1
    bad = approx.diagnostics["bad_rows"]
    assert (bad >= wrong).all()
    assert (bad.sum() > 0) == (expected == "some")


def rows_moved(ours, theirs, raw):
    """The rows of B~ that two orders of sums move by more than the noise of their normaliser and entries, (h, n_q).

    ``A~_ij`` moves by at most ``ν_i ‖R_j‖ / ‖w‖`` if D~_i moves by at most ν_i. So the row ``A~_i / D~_i`` moves by at
    most ``ν_i / D~_i (Σ_j ‖R_j‖ / ‖w‖ + ‖B~_i‖₁)`` in the 1-norm. Relative to an output there is no bound: it may be
    any fraction of V.
    """
    low_rank = raw.operator.operator
    noise, mass = normaliser_noise(low_rank, _norm(list(low_rank.middle))), 1 / raw.operator.left
    spread = low_rank.right.norm(dim=1).sum(-1) / low_rank.right.sum(-1).norm(dim=-1)  # (h,)
    rows = ours.operator.dense()
    allowed = noise / mass.abs() * (spread[:, None] + rows.abs().sum(-1))
    return (rows - theirs.operator.dense()).abs().sum(-1) > allowed + 1e-6


@pytest.mark.parametrize(
    "guard", others_slow(["none", "floor", "sampled", "exact"], lambda guard: guard[0] in ("none", "exact"))
)
@pytest.mark.parametrize(
    "n, p, score, d, decided",
    [(32, 8, 12.0, 64, True), (32, 8, 20.0, 40, True), (48, 16, 10.0, 64, True), (48, 4, 6.0, 14, False)],
)
def test_rounded_rows_are_those_that_another_order_of_sums_moves(n, p, score, d, decided, guard):
    """Not the rows whose normaliser is clearly negative, as some are in the last scene; a replaced row is none."""
    sampler, bad, rounded = "wor" if decided else "iid", 0, 0
    for seed in range(10):
        qkv = make(h=2, n=n, p=p, score=score, seed=seed)
        ours, raw = (sky(qkv, d, sampler=sampler, guard=one) for one in (guard, "none"))
        bad, rounded = bad + ours.diagnostics["bad_rows"].sum(), rounded + ours.diagnostics["rounded_rows"].sum()
        for turn in range(4):
            order = torch.randperm(p, generator=generator(seed, "order", turn))
            other = QKV(qkv.q[..., order], qkv.k[..., order], qkv.v, scale=qkv.scale)
            moved = rows_moved(ours, sky(other, d, sampler=sampler, guard=guard), raw).sum(-1)
            assert (moved <= ours.diagnostics["rounded_rows"]).all(), (seed, turn)
    assert bad > 0
    if guard in ("none", "floor"):
        assert (rounded > 0) == decided
    else:
        assert rounded < bad / 10


def test_a_row_is_certainly_wrong_below_its_bound_by_twice_the_noise_or_where_it_is_not_steady():
    def judged(mass, noise, bound):
        of = [torch.tensor([x], dtype=torch.float64) for x in (mass, noise, bound)]
        return tuple(bool(x) for x in certainly_wrong(*of))

    wrong, rounding = (True, False), (True, True)
    right, rounding_keeps = (False, False), (False, True)
    for mass, expected in ((196.9, wrong), (197.1, rounding), (198.1, rounding_keeps), (199.1, right), (200.0, right)):
        assert judged(mass, 1.0, 200.0) == expected, mass
    for mass, expected in ((-9.0, wrong), (98.9, wrong), (99.1, rounding), (100.9, rounding_keeps), (101.1, right)):
        assert judged(mass, 1.0, 2.0) == expected, mass
    assert judged(1 - 1e-7, 1e-30, 1.0) == right  # every key is sampled: D~ is the bound, up to rounding
    assert judged(1 - 3e-6, 1e-30, 1.0) == judged(float("nan"), 1e-30, 1.0) == wrong


def test_leverage_scores_are_those_of_the_queries_first_and_the_keys_behind_them():
    qkv = make(n=30, n_k=40, score=0.3)

    def kernel(a, b):
        return torch.exp(-(a[:, None] - b).square().sum(-1) * qkv.scale / 2)

    drawn = sky(qkv, 12, sampler="rls").draws["indices"]
    for row in range(2):
        for first, second, same in ((qkv.q, qkv.k, True), (qkv.k, qkv.q, False)):
            x = torch.cat([first[row], second[row]])
            desired = recursive_rls(x, 12, kernel, Streams(0, "skyformer").head(row, "rls"))
            assert torch.equal(drawn[row], desired) == same


def test_an_exact_normaliser_does_not_hide_rows_that_rounding_decides():
    """Scores in the hundreds: B~ is nothing but rounding there, whatever divides it."""
    qkv = make(n=24, p=4, score=100.0)
    approx = approximate("skyformer", qkv, 7, sampler="wor", normalizer="exact")
    off = (approx.operator.row_sums() - 1).abs().amax(-1) > 1e6
    assert off.any() and (approx.diagnostics["bad_rows"][off] > 0).all()
