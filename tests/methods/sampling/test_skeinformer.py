"""Skeinformer's own mathematics: Algorithm 1 by its steps, every ablation, the law of its columns."""

import pytest
import torch
from inputs import assert_twin, entry_band, factor_of, make, one_head, reaching
from largest import Largest
from twins import exact as exact_twin
from twins_rows import pilot_probabilities, scores_of
from twins_rows import skeinformer as twin

from attnprobe.errors import UsageError
from attnprobe.methods import approximate, get
from attnprobe.methods.sampling.skeinformer import _draw
from attnprobe.operators.linalg.sampling import weighted_with_replacement
from attnprobe.qkv import QKV
from attnprobe.reference import exact
from attnprobe.rng import Streams, generator

ABLATIONS = get("skeinformer").options["ablation"].choices
EPS = torch.finfo(torch.float64).eps


def skein(qkv, d, **options):
    return approximate("skeinformer", qkv, d, **options)


@pytest.mark.parametrize("n_q, n_k, d", [(20, 20, 6), (14, 19, 5), (19, 14, 14), (9, 9, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("score", [1.0, 6.0])
@pytest.mark.parametrize("ablation", ABLATIONS)
def test_every_ablation_is_its_literal_definition(ablation, score, dtype, n_q, n_k, d):
    qkv = make(n=n_q, n_k=n_k, score=score, dtype=dtype)
    approx = skein(qkv, d, ablation=ablation, seed=1)
    assert_twin(approx, qkv, twin, d, ablation=ablation)


def test_the_ablations_are_different_methods():
    qkv = make()
    outputs = [skein(qkv, 6, ablation=ablation).output for ablation in ABLATIONS]
    for i, one in enumerate(outputs):
        assert all((one - other).abs().max() > 1e-3 for other in outputs[:i])


@pytest.mark.parametrize("score", [1.0, 6.0])
def test_the_output_is_steps_5_to_7_as_the_paper_writes_them(score):
    qkv = make(score=score)
    approx = skein(qkv, 6)
    for row in range(qkv.h):
        one, columns = one_head(qkv, row), approx.draws["columns"][row]
        v, scores = one.v[0], torch.tensor(scores_of(one), dtype=torch.float64)
        a = torch.exp(scores[:, columns])  # not shifted: scores of 6 are small enough
        g = torch.exp(scores[:, columns].mean(1))
        mass = a.sum(1) + (one.n_k - 6) * g
        desired = (a @ v[columns] + torch.outer(g, v.sum(0) - v[columns].sum(0))) / mass[:, None]
        for j in approx.draws["pilot_rows"][row].tolist():
            desired[j] = torch.softmax(scores[j], 0) @ v
        assert torch.allclose(approx.output[row], desired, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("score", [1.0, 6.0])
@pytest.mark.parametrize("ablation", sorted(set(ABLATIONS) - {"no-norm-weighted"}))
def test_all_columns_are_exact_for_every_ablation_without_weights(ablation, score):
    qkv = make(n=12, score=score)
    approx = skein(qkv, 12, ablation=ablation)
    assert torch.equal(approx.draws["columns"].sort(1).values, torch.arange(12).expand(2, -1))
    band = entry_band(approx.operator, qkv, torch.float64)
    for row in range(2):
        desired = exact_twin(one_head(qkv, row), "softmax")
        assert ((approx.operator.dense()[row] - desired).abs() <= band[row]).all()


def test_a_pilot_that_is_drawn_twice_is_one_row_and_weighs_twice():
    qkv = make(h=3, n=7)
    approx = skein(qkv, 7, seed=2)
    pilots = approx.draws["pilot_rows"]
    distinct = [sorted(set(row)) for row in pilots.tolist()]
    assert all(len(row) < 7 for row in distinct) and len({len(row) for row in distinct}) > 1
    index = approx.operator.index
    assert [sorted(i for i in row if i >= 0) for row in index.tolist()] == distinct
    for seed in range(100):
        few = skein(qkv, 3, seed=seed)
        if len(set(few.draws["pilot_rows"][0].tolist())) < 3:
            break
    u = torch.randn(3, 7, 2, generator=generator(0, "u"), dtype=torch.float64)
    dense = few.operator.dense()
    assert (few.operator.rmatmul(u) - dense.mT @ u).abs().max() <= 1e-13
    one, rows = one_head(qkv, 0), few.draws["pilot_rows"][0].tolist()
    assert len(set(rows)) < 3
    desired = exact_twin(one, "softmax")
    assert (dense[0, rows] - desired[rows]).abs().max() <= 1e-13
    once = pilot_probabilities(one, sorted(set(rows)))
    assert max(abs(a - b) for a, b in zip(once, pilot_probabilities(one, rows), strict=True)) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("top", [100.0, 400.0, 2000.0])
@pytest.mark.parametrize("ablation", ABLATIONS)
def test_large_scores_stay_finite_and_right(ablation, top, dtype):
    qkv = reaching(top, dtype=dtype)
    approx = skein(qkv, 6, ablation=ablation)
    assert torch.isfinite(approx.output).all() and torch.isfinite(approx.operator.dense()).all()
    if ablation not in ("no-norm", "no-norm-weighted"):
        assert ((approx.operator.row_sums().double() - 1).abs() <= torch.finfo(dtype).eps * 3 * qkv.n_k).all()
    if dtype == torch.float64:
        lost = 1e-300  # weights near the least normal number are zero, here divided by their probabilities
        assert_twin(approx, qkv, twin, 6, slack=lost, ablation=ablation)


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_padding_is_left_out_of_pilots_columns_and_sums(ablation):
    qkv = make(n=17)
    mask = torch.ones(17, dtype=torch.bool)
    mask[[0, 6, 7, 16]] = False
    noise = torch.where(mask[:, None], 0.0, 1e3).double()
    padded = QKV(qkv.q + noise, qkv.k + noise, qkv.v + noise, mask=mask)
    got, desired = skein(padded, 13, ablation=ablation), skein(padded.compressed(), 13, ablation=ablation)
    assert got.draws_hash() == desired.draws_hash() and got.draws["columns"].max() == 12
    assert torch.equal(got.output[:, mask], desired.output) and not got.output[:, ~mask].any()
    assert torch.equal(got.operator.dense()[:, mask][:, :, mask], desired.operator.dense())


def within_five_sigma(counts, probabilities):
    """Counts of independent draws with their own probabilities, (draws, items): each sum within 5 of its σ.

    The variance of a sum of indicators is Σ p(1 - p); 5 σ plus 3 for the skew of rare items."""
    expected, variance = probabilities.sum(0), (probabilities * (1 - probabilities)).sum(0)
    assert ((counts - expected).abs() <= 5 * variance.sqrt() + 3).all()
    assert variance.max() > 40  # so that the band is a band


@pytest.mark.parametrize(
    "ablation, score",
    [
        pytest.param("none", 1.0, marks=pytest.mark.slow),
        ("none", 3.0),
        ("uniform", 1.0),
        ("no-norm-weighted", 3.0),
    ],
)
def test_columns_follow_the_law_of_the_pilots_one_after_another(ablation, score):
    """The first column has law p̂, the second p̂ without the first; p̂ is that of each draw's own pilots."""
    qkv, n, repeats = make(h=4, n=9, score=score), 9, 150
    qkv = QKV(qkv.q, qkv.k, qkv.v * torch.linspace(0.3, 2, n, dtype=torch.float64)[:, None])
    first, second, p_first, p_second = torch.zeros(n), torch.zeros(n), [], []
    for seed in range(repeats):
        draws = skein(qkv, 2, ablation=ablation, seed=seed).draws
        for row in range(4):
            one, drawn = one_head(qkv, row), draws["columns"][row].tolist()
            if ablation == "uniform":
                p = torch.full((n,), 1 / n)
            else:
                p = torch.tensor(pilot_probabilities(one, draws["pilot_rows"][row].tolist()))
            rest = p.clone()
            if ablation != "no-norm-weighted":
                rest[drawn[0]] = 0
            first[drawn[0]] += 1
            second[drawn[1]] += 1
            p_first.append(p)
            p_second.append(rest / rest.sum())
    within_five_sigma(first, torch.stack(p_first))
    within_five_sigma(second, torch.stack(p_second))
    if ablation != "uniform":  # the control: a constant law is told apart
        with pytest.raises(AssertionError):
            within_five_sigma(first, torch.full((4 * repeats, n), 1 / n))


def test_pilots_are_uniform_with_replacement():
    pilots = torch.cat([skein(make(h=8, n=10), 10, seed=seed).draws["pilot_rows"] for seed in range(20)])
    counts = torch.bincount(pilots.flatten(), minlength=10).double()
    within_five_sigma(counts, torch.full((1600, 10), 0.1))
    # ten of ten without a repeat has probability 10!/10^10 = 4e-4
    assert sum(len(set(row)) == 10 for row in pilots.tolist()) <= 5


def test_weights_and_replacement_make_the_sum_unbiased_and_leaving_them_out_makes_it_small():
    """Given its pilots a weighted draw has mean B; 400 draws of all heads, each entry within 5 standard errors."""
    qkv = make(h=2, n=8)
    draws = torch.stack([skein(qkv, 4, ablation="no-norm-weighted", seed=s).operator.dense() for s in range(400)])
    error = draws.std(0) / 400**0.5
    assert ((draws.mean(0) - exact(qkv).dense()).abs() <= 5 * error).all()
    small = skein(qkv, 4, ablation="no-norm")
    assert (small.operator.dense() <= exact(qkv).dense() + 8 * EPS * factor_of(qkv)).all()
    assert (small.operator.row_sums() < 1).all()


def test_drawing_with_replacement_never_takes_a_weight_of_zero():
    weights = torch.tensor([0.0, 2.0, 0.0, 1.0, 0.0])
    drawn = weighted_with_replacement(weights, 3000, generator(0, "zero"))
    counts = torch.bincount(drawn, minlength=5)
    assert counts[[0, 2, 4]].sum() == 0
    assert abs(float(counts[1]) - 2000) <= 5 * (3000 * 2 / 9) ** 0.5


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_only_the_uniform_columns_ignore_the_values(ablation):
    qkv = make(h=3)
    other = QKV(qkv.q, qkv.k, qkv.v * torch.linspace(0.01, 5, 20, dtype=torch.float64)[:, None])
    one, two = (skein(x, 6, ablation=ablation).operator.dense() for x in (qkv, other))
    assert torch.equal(one, two) == (ablation == "uniform")


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_values_of_zero_leave_columns_to_draw(ablation):
    qkv = make()
    for factor in (torch.zeros(20, 1), (torch.arange(20) < 2).float()[:, None]):  # none, and fewer than d
        v = qkv.v * factor.double()
        approx = skein(QKV(qkv.q, qkv.k, v), 6, ablation=ablation)
        assert torch.isfinite(approx.operator.dense()).all() and torch.isfinite(approx.output).all()


def test_what_it_visits_and_realises():
    qkv = make(n=14, n_k=19)
    desired = {
        "none": 5 * 33,
        "no-pilot-reuse": 5 * 33,
        "simple-norm": 5 * 33,
        "uniform": 5 * 14,
        "no-norm": 5 * 19 + 14 * 19,
        "no-norm-weighted": 5 * 19 + 14 * 19,
    }
    for ablation in ABLATIONS:
        approx = skein(qkv, 5, ablation=ablation)
        assert approx.diagnostics["visited"].tolist() == [desired[ablation]] * 2
        distinct = [len(set(row)) for row in approx.draws["columns"].tolist()]
        assert approx.diagnostics["realised_d"].tolist() == distinct
        assert ablation == "no-norm-weighted" or distinct == [5, 5]


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_nothing_of_size_n_by_n_is_made(ablation):
    qkv = make(h=1, n=400, p=4)
    with Largest() as largest:
        skein(qkv, 4, ablation=ablation)
    # no more than the block of 64 rows in which the exact normaliser of no-norm is made
    assert largest.numel <= 64 * 400


@pytest.mark.parametrize("score", [1.0, 6.0])
def test_the_probabilities_of_single_precision_inputs_are_those_of_double(score):
    """p̂ is computed in float64 from Q, K, V as they are: a column's chance depends on no rounding of scores."""
    qkv = make(score=score, dtype=torch.float32)
    exactly = QKV(qkv.q.double(), qkv.k.double(), qkv.v.double(), scale=qkv.scale)
    _, single, _ = _draw(qkv, 6, Streams(0, "skeinformer"), "none", False)
    _, double, _ = _draw(exactly, 6, Streams(0, "skeinformer"), "none", False)
    assert single.dtype == torch.float64 and torch.allclose(single, double, rtol=1e-12, atol=0)


def test_heads_share_no_pilots_where_there_are_none():
    with pytest.raises(UsageError, match="ablation=uniform has none"):
        approximate("skeinformer", make(n=16), 4, share_heads=True, ablation="uniform")
