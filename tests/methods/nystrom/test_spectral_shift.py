"""The prototype model, spectral shifting, its modified form, and Nyströmformer over centroids: their identities."""

from itertools import product

import numpy as np
import pytest
import torch
from inputs import draws_of, entry_band, make, one_head, permuted
from twins import TWINS
from twins_shift import lifted_kernel, lloyd, mss_delta, shifted_kernel

from attnprobe.errors import Unsupported, UsageError
from attnprobe.methods import approximate, get
from attnprobe.methods.nystrom.mss import _shift, _truncated
from attnprobe.methods.nystrom.spectral_shift import _unit, lifted, shifted, span
from attnprobe.operators.linalg.sampling import kmeans
from attnprobe.qkv import QKV
from attnprobe.reference import exact
from attnprobe.rng import Streams, generator


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed, "normal"), dtype=torch.float64)


def close(got, expected, eps=1e-12):
    """Whether two matrices agree to ``eps`` of the norm of the second."""
    return float((got - expected).norm()) <= eps * max(1.0, float(expected.norm()))


def dense_of(approx, row):
    """``H M Hᵀ`` over [Q; K] of an operator that is the block of it with queries for rows and keys for columns."""
    h = torch.cat([approx.operator.left[row], approx.operator.right[row].T])
    return h @ approx.operator.middle[0][row] @ h.T


def equals_its_twin(name, qkv, d, target="softmax", slack=0.0, **options):
    """Within the band times the condition of the core that is inverted, and ``slack`` for what the twin loses."""
    approx = approximate(name, qkv, d, target=target, **options)
    band = entry_band(approx.operator, qkv, torch.float64)
    for row in range(qkv.h):
        expected = TWINS[name](one_head(qkv, row), d, draws_of(approx, row), target, **options)
        cond = 1.0
        if "A" in approx.cores:
            cond += float(approx.cores["A"][row].norm() * approx.inverses["A"][row].norm())
        if not ((approx.operator.dense()[row] - expected).abs() <= cond * band[row] + slack).all():
            return False
    return True


# --- prototype


@pytest.mark.parametrize("score", [1.0, 6.0])
def test_the_middle_of_cur_is_the_best_there_is(score):
    """Its residual is orthogonal to the sampled columns and rows, and no other middle matrix comes nearer."""
    qkv, d = make(n=14, n_k=19, score=score), 5
    approx = approximate("prototype", qkv, d)
    for row in range(2):
        order = approx.draws["order"][row]
        b = exact(qkv).dense()[row]
        c, r = b[:, order[order >= 14][:d] - 14], b[order[order < 14][:d]]
        error = b - approx.operator.dense()[row]
        assert (c.T @ error @ r.T).abs().max() <= 1e-13
        for seed in range(10):
            other = error - 1e-3 * c @ normal(d, d, seed=seed) @ r
            assert other.norm() > error.norm()
        skeleton = torch.linalg.pinv(b[order[order < 14][:d]][:, order[order >= 14][:d] - 14])
        assert (b - c @ skeleton @ r).norm() > error.norm()  # the middle of entries at the crossings alone
        assert error.norm() >= torch.linalg.svdvals(b)[d:].norm() * (1 - 1e-12)  # Eckart & Young


@pytest.mark.parametrize("score", [1.0, 6.0])
def test_for_gaussian_the_middle_is_the_best_for_the_lifted_kernel(score):
    qkv, d = make(n=9, n_k=12, score=score), 6
    approx = approximate("prototype", qkv, d, target="gaussian")
    for row in range(2):
        kernel = lifted(one_head(qkv, row))
        assert np.allclose(kernel, lifted_kernel(one_head(qkv, row)), atol=1e-14)
        c, actual = kernel[:, approx.draws["order"][row, :d]], dense_of(approx, row)
        assert (c.T @ (kernel - actual) @ c).abs().max() <= 1e-12
        assert torch.equal(actual[:9, 9:], actual[9:, :9].T) or close(actual[:9, 9:], actual[9:, :9].T, 1e-14)
        assert close(approx.operator.dense()[row], actual[:9, 9:], 1e-14)
        nystrom = c @ torch.linalg.pinv(kernel[approx.draws["order"][row, :d]][:, approx.draws["order"][row, :d]]) @ c.T
        assert (kernel - actual).norm() < (kernel - nystrom).norm()


@pytest.mark.parametrize("target", ["softmax", "gaussian"])
def test_a_larger_budget_adds_columns_and_never_errs_more(target):
    qkv = make(n=12, score=2.0)
    errors, orders = [], set()
    for d in range(1, 13):
        approx = approximate("prototype", qkv, d, target=target)
        orders.add(approx.draws_hash())
        actual = approx.operator.dense()
        if target == "gaussian":
            actual = torch.stack([dense_of(approx, row) for row in (0, 1)])
        kernels = [exact(qkv).dense()[row] if target == "softmax" else lifted(one_head(qkv, row)) for row in (0, 1)]
        errors.append((torch.stack(kernels) - actual).norm(dim=(1, 2)))
    errors = torch.stack(errors)
    assert (errors[1:] <= errors[:-1] + 1e-12).all() and (errors[0] > 0.1).all()
    assert len(orders) == 1
    assert all(sorted(order.tolist()) == list(range(24)) for order in approx.draws["order"])


def repeated(n=12, copies=4):
    """Tokens that are ``copies`` different ones again and again."""
    qkv = make(n=copies)

    def again(x):
        return x.repeat(1, n // copies, 1)

    return QKV(again(qkv.q), again(qkv.k), again(qkv.v))


@pytest.mark.parametrize("target", ["softmax", "gaussian"])
def test_columns_that_repeat_change_nothing(target):
    """B of four different queries and keys has rank 4, C̄ of eight different tokens rank 8."""
    qkv = repeated()
    assert equals_its_twin("prototype", qkv, 9, target)
    approx = approximate("prototype", qkv, 12, target=target)
    if target == "softmax" or len({int(i) % 4 + 4 * (int(i) >= 12) for i in approx.draws["order"][0, :12]}) == 8:
        assert close(approx.operator.dense()[0], exact(qkv, target).dense()[0])
    h = span(torch.cat([normal(9, 2), normal(9, 2), torch.zeros(9, 1).double()], 1))
    assert int(h.any(0).sum()) == 2 and close(h @ h.T @ normal(9, 2), normal(9, 2))


def test_a_column_of_vanishing_entries_is_a_direction_like_any_other():
    columns = torch.cat([normal(9, 1), 1e-20 * normal(9, 1, seed=1), torch.zeros(9, 1).double()], 1)
    assert int(span(columns).any(0).sum()) == 1  # what a pseudo-inverse would keep
    h = span(_unit(columns))
    assert int(h.any(0).sum()) == 2 and close(h @ (h.T @ normal(9, 1, seed=1)), normal(9, 1, seed=1))


def test_a_sampled_column_of_vanishing_entries_is_spanned_too():
    """That of a key that no query looks at, 1e-17 of the others and less: the budget of all keys spans them all."""
    qkv = make(n=14, n_k=9)
    q, k = qkv.q.clone(), qkv.k.clone()
    q[..., 0] = q[..., 0].abs() + 1
    k[:, 4] = 0
    k[:, 4, 0] = -60 / qkv.scale
    qkv = QKV(q, k, qkv.v)
    column = exact(qkv).dense()[:, :, 4]
    assert (column < 1e-17).all()
    h = approximate("prototype", qkv, 9).operator.left
    unit = (column / column.norm(dim=1, keepdim=True))[..., None]
    assert (h != 0).any(1).all() and close(h @ (h.mT @ unit), unit)


# --- spectral shifting


def model_class(total, rank, theta, seed):
    """``θ I`` and a positive semidefinite matrix of this rank."""
    factor = normal(total, rank, seed=seed)
    return theta * torch.eye(total, dtype=torch.float64) + factor @ factor.T


@pytest.mark.parametrize("theta", [0.01, 0.7, 30.0])
@pytest.mark.parametrize("rank, d", [(1, 1), (3, 3), (3, 7), (5, 5), (0, 4)])
def test_spectral_shifting_is_exact_on_its_model_class(theta, rank, d):
    """Lemma 1 of the paper, which needs the two stages: without the first only the fit of U and δ is left."""
    for seed in range(5):
        kernel = model_class(30, rank, theta, seed)
        before = kernel.clone()
        columns = torch.randperm(30, generator=generator(seed, "columns"))[:d]
        h, core, delta = shifted(kernel, columns)
        assert torch.equal(kernel, before)
        eye = torch.eye(30, dtype=torch.float64)
        assert close(h @ core @ h.T + delta * eye, kernel) and abs(float(delta) - theta) <= 1e-12 * max(1, theta)
        if rank and theta == 30:
            h, core, delta = shifted(kernel, columns, two_stage=False)
            assert not close(h @ core @ h.T + delta * eye, kernel, 1e-3)
            assert not close(h @ (h.T @ kernel @ h) @ h.T, kernel, 1e-3)


def test_columns_that_do_not_span_the_low_rank_part_are_not_exact():
    """The negative control."""
    kernel = torch.eye(10, dtype=torch.float64)
    kernel[0, 0] = kernel[1, 1] = 5.0
    h, core, delta = shifted(kernel, torch.tensor([0, 4]))
    assert not close(h @ core @ h.T + delta * torch.eye(10, dtype=torch.float64), kernel, 1e-3)


@pytest.mark.parametrize("two_stage", [True, False])
@pytest.mark.parametrize("score", [0.3, 1.0, 6.0])
def test_no_middle_and_no_shift_fit_better(score, two_stage):
    """``‖C~ U C~ᵀ + δ I - K‖_F`` is convex in (U, δ): its minimum is where the residual is orthogonal to both."""
    for seed in range(5):
        kernel = lifted(make(h=1, n=10, n_k=13, score=score, seed=seed))
        columns = torch.randperm(23, generator=generator(seed, "columns"))[:6]
        h, core, delta = shifted(kernel, columns, two_stage)
        eye = torch.eye(23, dtype=torch.float64)
        error = kernel - h @ core @ h.T - delta * eye
        d_bar = torch.linalg.eigvalsh(kernel)[:-6].sum() / 17 if two_stage else 0.0
        c = (kernel - d_bar * eye)[:, columns]
        assert close(h @ (h.T @ c), c)  # H spans C~
        assert abs(error.trace()) <= 1e-12 and (c.T @ error @ c).abs().max() <= 1e-11
        for trial in range(10):
            change = normal(6, 6, seed=trial), float(normal(1, seed=trial + 100))
            for size in (1e-4, 1e-1):
                assert (error - size * (c @ change[0] @ c.T + change[1] * eye)).norm() > error.norm()
        expected, wanted_delta = shifted_kernel(kernel.numpy(), columns.tolist(), "two-stage" if two_stage else "none")
        assert close(h @ core @ h.T + delta * eye, torch.tensor(expected)) and abs(float(delta) - wanted_delta) <= 1e-12
        assert delta >= 0


@pytest.mark.parametrize("score", [0.3, 1.0, 6.0])
def test_a_shift_never_errs_more_than_the_prototype_with_the_same_columns(score):
    for seed, d in product(range(10), (1, 5, 12)):
        kernel = lifted(make(h=1, n=12, score=score, seed=seed))
        columns = torch.randperm(24, generator=generator(seed, "columns"))[:d]
        eye = torch.eye(24, dtype=torch.float64)
        for two_stage in (True, False):
            bar = float(torch.linalg.eigvalsh(kernel)[:-d].sum() / (24 - d)) if two_stage else 0.0
            base = span((kernel - bar * eye)[:, columns])  # the prototype model of K - d̄ I
            prototype = kernel - bar * eye - base @ (base.T @ (kernel - bar * eye) @ base) @ base.T
            h, core, delta = shifted(kernel, columns, two_stage)
            error = (kernel - h @ core @ h.T - delta * eye).norm()
            assert error <= prototype.norm() + 1e-12
            if not two_stage and delta > 1e-3:
                assert error < prototype.norm()


def test_the_block_has_no_identity_and_its_middle_is_moved_by_the_shift():
    qkv, d = make(n=8, n_k=11), 5
    approx = approximate("spectral-shift", qkv, d, target="gaussian", shift="none")
    delta = approx.diagnostics["delta"]
    assert delta.shape == (2,) and (delta > 0).all()
    for row in range(2):
        kernel, columns = lifted(one_head(qkv, row)), approx.draws["indices"][row]
        assert len(columns.unique()) == d
        h = span(kernel[:, columns])
        prototype = h @ (h.T @ kernel @ h) @ h.T
        expected = (prototype - delta[row] * h @ h.T)[:8, 8:]
        assert close(approx.operator.dense()[row], expected, 1e-13)
        assert not close(approx.operator.dense()[row], prototype[:8, 8:], 1e-4)
        assert close(dense_of(approx, row)[:8, 8:], expected, 1e-13)
        assert torch.linalg.matrix_rank(approx.operator.dense()[row]) <= d


def equidistant(n, groups, apart=1.5):
    """Tokens at one distance from each other, in groups a larger distance apart: C̄ is ``θ I`` and rank ``groups``."""
    x = torch.cat([torch.eye(2 * n), apart * torch.eye(groups)[torch.arange(2 * n) % groups]], 1).double()[None]
    return QKV(x[:, :n], x[:, n:], normal(1, n, 3), scale=1.0)


@pytest.mark.parametrize("groups, d", [(1, 1), (1, 3), (2, 6), (3, 12)])
def test_attention_of_equidistant_tokens_is_exact_and_the_prototypes_is_not(groups, d):
    qkv = equidistant(9, groups)
    approx = approximate("spectral-shift", qkv, d, target="gaussian")
    assert len((approx.draws["indices"] % groups).unique()) == groups  # one token of each group at least
    expected = exact(qkv, "gaussian").dense()
    assert close(approx.operator.dense(), expected)
    assert torch.allclose(approx.diagnostics["delta"], torch.tensor(1 - np.exp(-1.0)), rtol=1e-12)
    for name, options in (("prototype", {}), ("spectral-shift", {"shift": "none"}), ("skyformer", {"inverse": "pinv"})):
        if name == "prototype" and d > 9:
            continue
        other = approximate(name, qkv, d, target="gaussian", **options)
        assert not close(other.operator.dense(), expected, 1e-2), name


@pytest.mark.parametrize("shift", ["two-stage", "none"])
@pytest.mark.parametrize("d", [1, 7, 19, 23, 24])
def test_spectral_shifting_equals_its_twin_at_any_budget(shift, d):
    # the twin has (C~ᵀ C~)⁺, which loses eps · cond(C~)²: up to 1e-9 here
    assert equals_its_twin("spectral-shift", make(n=12), d, "gaussian", 1e-9, shift=shift)


def test_tokens_that_repeat_leave_a_smaller_rank_to_divide_by():
    qkv = repeated()  # C̄ has rank 8 of 24
    approx = approximate("spectral-shift", qkv, 24, target="gaussian")
    assert close(approx.operator.dense(), exact(qkv, "gaussian").dense()) and approx.diagnostics["delta"].max() <= 1e-12
    approx = approximate("spectral-shift", qkv, 10, target="gaussian", shift="none")
    for row in range(2):
        kernel = lifted_kernel(one_head(qkv, row))
        c = kernel[:, approx.draws["indices"][row]]
        rank = np.linalg.matrix_rank(c)
        assert rank < 10
        expected = (24 - np.trace(np.linalg.pinv(c) @ kernel @ c)) / (24 - rank)
        assert abs(float(approx.diagnostics["delta"][row]) - expected) <= 1e-12


def test_dense_methods_refuse_long_sequences_and_spectral_shifting_the_target_softmax():
    for name, limit in (("prototype", 2048), ("spectral-shift", 1024)):
        assert get(name).check_budget(4, limit, limit) == 4
        with pytest.raises(Unsupported, match=f"{name}: n={limit + 1} is above"):
            get(name).check_budget(4, limit + 1, 8)
    with pytest.raises(Unsupported, match="spectral-shift does not take target=softmax; it takes gaussian"):
        approximate("spectral-shift", make(), 4)


# --- its modified form


@pytest.mark.parametrize("form", ["eq8", "eq4"])
@pytest.mark.parametrize("identity", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"rank": 3},
        {"rank": 1},
        {"rtol": 0.05},
        {"rtol": None},
        {"delta_override": 0.2},
        {"rank": 4, "delta_override": 0.3},
        {"inverse": "schulz"},
        {"inverse": "schulz", "n_iter": 2},
        {"inverse": "schulz", "n_iter": 25},
    ],
    ids=str,
)
def test_mss_with_its_options_equals_its_twin(form, identity, options):
    for qkv in (make(n=18), make(n=13, n_k=20), make(n=20, n_k=13)):
        assert equals_its_twin("mss", qkv, 6, form=form, identity=identity, **options)


def test_the_shift_of_a_truncated_positive_semidefinite_core_is_the_mean_discarded_eigenvalue():
    factor = normal(4, 7, 7)
    a = factor @ factor.mT
    values = torch.linalg.eigvalsh(a).flip(-1)
    for rank in range(1, 7):
        g, delta = _truncated(a, rank, None)
        assert torch.allclose(delta, values[:, rank:].mean(-1), rtol=1e-12) and (delta > 0).all()
        assert torch.allclose(_shift(a, g), delta, rtol=1e-9)
    g, delta = _truncated(a, 7, None)
    assert not delta.any() and close(g @ a, torch.eye(7).double().expand(4, -1, -1), 1e-9)


def test_the_shift_is_the_quotient_of_traces_for_any_inverse():
    worst = 0.0
    for seed in range(20):
        a = torch.softmax(2 * normal(2, 6, 6, seed=seed), -1)
        for rank in range(1, 6):
            g, delta = _truncated(a, rank, None)
            for row in range(2):
                assert abs(float(delta[row]) - mss_delta(a[row].numpy(), g[row].numpy())) <= 1e-10
        for other in (g + 0.1 * normal(2, 6, 6, seed=seed + 50), a.mT, 0.5 * torch.linalg.inv(a)):
            for row in range(2):
                expected = mss_delta(a[row].numpy(), other[row].numpy())
                assert abs(float(_shift(a, other)[row]) - expected) <= 1e-10 * (1 + expected)
                worst = max(worst, expected)
    assert worst > 0.1


def test_a_shift_that_is_no_number_or_negative_is_zero():
    a = torch.diag_embed(torch.tensor([[1.0, 0.1]], dtype=torch.float64))

    def inverse(x, y):
        return torch.diag_embed(torch.tensor([[x, y]], dtype=torch.float64))

    assert abs(float(_shift(a, inverse(1.0, 5.0))) - 0.1) <= 1e-15  # (1.1 - 1.05) / (2 - 1.5)
    assert _shift(a, inverse(1.5, 0.0)) == 0  # (1.1 - 1.5) / 0.5
    assert _shift(a, inverse(1.0, 10.0)) == 0  # 0 / 0
    assert _shift(a, inverse(2.0, 0.0)) == 0  # -0.9 / 0
    assert _truncated(torch.ones(1, 1, 1, dtype=torch.float64), None, 1e-3)[1] == 0
    # cond 1e16 and no singular value cut off: the quotient of traces would be a ratio of two rounding errors
    hilbert = 1 / (torch.arange(1.0, 13).double()[:, None] + torch.arange(12).double())
    assert _truncated(hilbert[None], None, 0.0)[1] == 0
    assert _truncated(torch.zeros(1, 3, 3, dtype=torch.float64), None, 1e-3)[1] == 0


@pytest.mark.parametrize("form", ["eq8", "eq4"])
@pytest.mark.parametrize("n_k", [16, 21, 12])
def test_rows_sum_to_one_with_the_identity_and_to_one_less_the_shift_without(form, n_k):
    for score, delta in product((1.0, 6.0), (0.05, 0.5)):
        options = {"form": form, "rtol": None, "delta_override": delta}
        approx = approximate("mss", make(n=16, n_k=n_k, score=score), 5, **options)
        band = 1e-14 * (approx.inverses["A"].norm(dim=(1, 2)) ** 2)[:, None]
        assert ((approx.operator.row_sums() - 1).abs() <= band).all()
        bare = approximate("mss", make(n=16, n_k=n_k, score=score), 5, **options, identity=False)
        assert ((bare.operator.row_sums() - (1 - delta)).abs() <= band).all()
        assert torch.linalg.matrix_rank(bare.operator.dense()).max() <= 5
        if n_k == 16:
            assert torch.linalg.matrix_rank(approx.operator.dense()).min() >= 16 - 1
        selected = approx.operator.dense() - bare.operator.dense()
        expected = torch.zeros(16, n_k, dtype=torch.float64)
        expected[torch.arange(16), torch.arange(16).clamp(max=n_k - 1)] = delta
        assert (selected - expected).abs().max() <= 1e-12


def test_equation_4_takes_smoothed_attention_off():
    qkv = make(n=16)
    plain = approximate("nystromformer", qkv, 5, inverse="pinv")
    approx = approximate("mss", qkv, 5, form="eq4", identity=False, rtol=None, delta_override=0.25)
    expected = plain.operator.dense() - 0.25 * plain.operator.left @ plain.operator.right
    assert close(approx.operator.dense(), expected, 1e-12)


@pytest.mark.parametrize(
    "options, same",
    [
        ({"rtol": None}, {"inverse": "pinv"}),
        ({}, {"inverse": "pinv", "rtol": 1e-3}),
        ({"rtol": 0.1}, {"inverse": "pinv", "rtol": 0.1}),
        ({"inverse": "schulz"}, {}),
        ({"inverse": "schulz", "n_iter": 3}, {"n_iter": 3}),
    ],
    ids=str,
)
def test_without_a_shift_it_is_nystromformer_with_that_inverse(options, same):
    for dtype in (torch.float32, torch.float64):
        qkv = make(n=18, dtype=dtype)
        expected = approximate("nystromformer", qkv, 6, **same)
        approx = approximate("mss", qkv, 6, delta_override=0.0, **options)
        scale = torch.finfo(approx.operator.dtype).eps * float(approx.inverses["A"].norm())
        assert approx.operator.dtype == expected.operator.dtype
        assert (approx.operator.dense() - expected.operator.dense()).abs().max() <= 100 * scale
        shifted_one = approximate("mss", qkv, 6, **options)
        if shifted_one.diagnostics["delta"].any():
            assert (shifted_one.operator.dense() - expected.operator.dense()).abs().max() > 1e-6


def test_the_default_shifts_where_the_core_is_truncated_and_its_rest_has_a_positive_trace():
    above, below = 0, 0
    for seed in range(10):
        qkv = make(n=40, score=0.3, seed=seed)
        approx = approximate("mss", qkv, 8)
        assert equals_its_twin("mss", qkv, 8)
        for row in range(2):
            u, s, v = torch.linalg.svd(approx.cores["A"][row])
            lost = sum(float(s[i] * u[:, i] @ v[i]) for i in range(8) if s[i] < 1e-3 * s[0])
            cut = int((s < 1e-3 * s[0]).sum())
            expected = max(0.0, lost / max(cut, 1))
            assert abs(float(approx.diagnostics["delta"][row]) - expected) <= 1e-14
            above, below = above + (expected > 0), below + (cut > 0 and lost < 0)
    assert above > 2 and below > 2
    assert not approximate("mss", make(n=40, score=6.0), 4).diagnostics["delta"].any()  # nothing is cut


def test_what_contradicts_itself_is_refused():
    for options, words in (
        ({"rank": 3, "rtol": 0.1}, "rank=3 and rtol=0.1 are two ways"),
        ({"rank": 0}, "rank=0 is not positive"),
        ({"rtol": 1.0}, r"rtol=1.0 is not in \[0, 1\)"),
        ({"inverse": "schulz", "rank": 3}, "rank and rtol belong to inverse=pinv"),
        ({"inverse": "schulz", "rtol": 0.1}, "rank and rtol belong to inverse=pinv"),
        ({"n_iter": 4}, "n_iter belongs to inverse=schulz"),
        ({"inverse": "schulz", "n_iter": -1}, "n_iter=-1 is negative"),
        ({"delta_override": -0.1}, "delta_override=-0.1 is negative"),
    ):
        with pytest.raises(UsageError, match=f"mss: {words}"):
            approximate("mss", make(), 6, **options)
    with pytest.raises(Unsupported, match=r"mss: rank=7 exceeds d=6; choose rank in 1\.\.6"):
        approximate("mss", make(), 6, rank=7)


# --- as printed


def test_the_numerator_of_the_printed_shift_is_zero_for_every_matrix():
    for seed in range(30):
        square, thin = normal(8, 8, seed=seed), normal(8, 3, seed=seed)
        for a in (square, thin @ normal(3, 8, seed=seed + 1), torch.triu(square, 1), thin @ thin.T, square - square.T):
            inverse = torch.linalg.pinv(a)
            lost = a.trace() - (inverse @ a @ a).trace()
            assert abs(lost) <= 1e-13 * inverse.norm() * a.norm() ** 2
    assert torch.linalg.eigvals(square - square.T).imag.abs().max() > 1  # complex ones do not matter


@pytest.mark.parametrize(
    "qkv", [make(n=18), make(n=18, score=6.0), make(n=14, n_k=19), repeated(), make(n=18, score=0.1)], ids=range(5)
)
def test_mss_as_printed_is_nystromformer_with_a_pseudo_inverse(qkv):
    approx = approximate("mss-literal", qkv, 6)
    expected = approximate("nystromformer", qkv, 6, inverse="pinv")
    assert torch.equal(approx.operator.dense(), expected.operator.dense())
    assert torch.equal(approx.output, expected.output)
    assert approx.diagnostics["delta"].tolist() == [0.0, 0.0]
    assert equals_its_twin("mss-literal", qkv, 6)
    assert not close(approximate("mss", qkv, 6, rank=3).operator.dense(), expected.operator.dense(), 1e-6)


def test_the_pages_say_what_is_an_interpretation_and_what_vanishes():
    page = " ".join(get("mss").explain().split())
    assert "This is an interpretation" in page and "vanishes for every A" in page
    literal = " ".join(get("mss-literal").explain().split())
    assert "= tr(A A⁺ A) = tr A" in literal and "Nyströmformer with a true pseudo-inverse" in literal


# --- Nyströmformer over centroids


@pytest.mark.parametrize("steps", [0, 1, 3, 10])
def test_the_centroids_are_steps_of_lloyd_from_tokens_of_their_own_stream(steps):
    qkv = make(h=3, n=15, n_k=22).select([2, 0])
    draws = approximate("nystromformer-kmeans", qkv, 5, seed=4, steps=steps).draws
    streams = Streams(4, "nystromformer-kmeans")
    for name, x in (("query_centroids", qkv.q), ("key_centroids", qkv.k)):
        for row, head in enumerate((2, 0)):
            start = torch.randperm(x.shape[1], generator=streams.head(head, name))[:5].tolist()
            expected = torch.tensor(lloyd(x[row].tolist(), start, steps), dtype=torch.float64)
            assert torch.allclose(draws[name][row], expected, atol=1e-13)
    if steps == 10:
        assert torch.equal(
            approximate("nystromformer-kmeans", qkv, 5, seed=4).draws["key_centroids"], draws["key_centroids"]
        )
        both = QKV(qkv.q, qkv.q, qkv.q)
        actual = approximate("nystromformer-kmeans", both, 5).draws
        assert not torch.equal(actual["query_centroids"], actual["key_centroids"])  # two draws, of the same tokens


def test_centroids_do_not_depend_on_the_order_of_the_tokens(monkeypatch):
    """From the same starting tokens: the half of the equivariance that the centroids hide from the general test."""
    qkv = make(h=1, n=20)
    order = torch.randperm(20, generator=generator(0, "order"))
    drawn = torch.randperm
    expected = kmeans(qkv.k[:1], 6, [generator(0)])[0]
    place = torch.argsort(order)
    monkeypatch.setattr(torch, "randperm", lambda n, **named: place[drawn(n, **named)])
    assert torch.allclose(kmeans(permuted(qkv, order).k[:1], 6, [generator(0)])[0], expected, atol=1e-14)


@pytest.mark.parametrize("inverse", ["schulz", "pinv"])
def test_with_one_cluster_for_each_segment_it_is_nystromformer(inverse):
    d, actual = 4, 0
    marks = make(h=1, n=d, p=6, score=4.0)
    noise = make(h=1, n=2 * d, p=6, score=1e-4)

    def twice(x):
        return x.repeat_interleave(2, 1)

    qkv = QKV(twice(marks.q) + noise.q, twice(marks.k) + noise.k, noise.v)
    expected = approximate("nystromformer", qkv, d, inverse=inverse)
    for seed in range(200):
        start = approximate("nystromformer-kmeans", qkv, d, seed=seed, steps=0).draws
        hits = [
            torch.cdist(start[name], tokens).argmin(-1).unique().numel() == d
            for name, tokens in (("query_centroids", marks.q), ("key_centroids", marks.k))
        ]
        if all(hits):  # a start in each cluster
            actual += 1
            approx = approximate("nystromformer-kmeans", qkv, d, inverse=inverse, seed=seed)
            assert close(approx.operator.dense(), expected.operator.dense(), 1e-9)
            for name in ("visited", "realised_d", "bad_rows"):
                assert torch.equal(approx.diagnostics[name], expected.diagnostics[name])
    assert actual > 3


@pytest.mark.parametrize("n, n_k, d", [(20, 20, 1), (17, 11, 11), (12, 30, 5)])
@pytest.mark.parametrize("inverse", ["schulz", "pinv"])
def test_nystromformer_kmeans_equals_its_twin(n, n_k, d, inverse):
    assert equals_its_twin("nystromformer-kmeans", make(n=n, n_k=n_k), d, inverse=inverse)


def test_an_empty_cluster_keeps_its_centroid():
    """Of starting tokens that are equal the first has the cluster. Whole numbers, so that ties are ties."""
    x = (3 * normal(6, 3)).round().repeat(2, 1)
    for seed in range(5):
        start = torch.randperm(12, generator=generator(seed))[:7]  # of six different tokens
        assert len(x[start].unique(dim=0)) < 7
        expected = torch.tensor(lloyd(x.tolist(), start.tolist(), 1), dtype=torch.float64)
        assert torch.allclose(kmeans(x[None], 7, [generator(seed)], steps=1)[0], expected, atol=1e-14)


def test_repeated_tokens_leave_clusters_empty_and_everything_finite():
    approx = approximate("nystromformer-kmeans", repeated(), 9)
    assert torch.isfinite(approx.output).all()
    approx = approximate("nystromformer-kmeans", repeated(), 12, inverse="pinv")
    assert close(approx.operator.dense(), exact(repeated()).dense(), 1e-9)


def test_its_options_are_checked_under_its_own_name():
    for options, words in (
        ({"steps": -1}, "steps=-1 is negative"),
        ({"n_iter": -1}, "n_iter=-1 is negative"),
        ({"rtol": 0.1}, "rtol belongs to inverse=pinv"),
        ({"inverse": "pinv", "n_iter": 3}, "n_iter and z0 belong to inverse=schulz"),
    ):
        with pytest.raises(UsageError, match=f"nystromformer-kmeans: {words}"):
            approximate("nystromformer-kmeans", make(), 4, **options)
