"""Linformer against the package of that name; the sketches and the unreduced form against their moments."""

from math import sqrt

import pytest
import torch
from inputs import assert_twin, make
from twins import TWINS

from attnprobe.errors import UsageError
from attnprobe.methods import approximate, get
from attnprobe.operators.linalg import sketches
from attnprobe.qkv import QKV
from attnprobe.reference import exact
from attnprobe.rng import generator

SKETCHES = ("gaussian", "srht", "countsketch", "sparse", "accumulate")


def copies(qkv, count):
    """One head ``count`` times: as many independent draws in one call, since each head has its own stream."""
    return QKV(*(x[:1].expand(count, -1, -1).contiguous() for x in (qkv.q, qkv.k, qkv.v)))


def within(sample, expected, sigmas=5.0, atol=1e-12):
    """Whether the means of a sample (R, …) lie within 5 of their own standard errors of what they should be."""
    error = sample.std(0) / sqrt(len(sample))
    return bool(((sample.mean(0) - expected).abs() <= sigmas * error + atol).all())


@pytest.mark.parametrize("n, d", [(24, 6), (17, 17), (30, 1)])
@pytest.mark.parametrize("score", [1.0, 6.0])
@pytest.mark.parametrize("share", [True, False])
def test_it_equals_the_module_of_the_linformer_package(n, d, score, share):
    package = pytest.importorskip("linformer", reason="linformer is not installed")
    p = 8
    qkv = make(h=2, n=n, p=p, p_v=p, score=score)
    approx = approximate("linformer", qkv, d, share=share)
    assert set(approx.draws) == ({"sketch"} if share else {"sketch", "sketch_values"})
    module = package.LinformerSelfAttention(dim=3 * p, seq_len=n, k=d, heads=1, dim_head=p).double()
    module.to_out = torch.nn.Identity()
    for row in range(2):
        with torch.no_grad():
            for place, layer in enumerate((module.to_q, module.to_k, module.to_v)):
                layer.weight.copy_(torch.eye(3 * p)[place * p : (place + 1) * p])  # the input is [q, k, v] as it stands
            module.proj_k.copy_(approx.draws["sketch"][row])
            module.proj_v.copy_(approx.draws.get("sketch_values", approx.draws["sketch"])[row])
            expected = module(torch.cat([qkv.q[row], qkv.k[row], qkv.v[row]], -1)[None])[0]
        assert (approx.output[row] - expected).abs().max() <= 1e-12 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("options", [{"share": False}, {"std": "authors"}, {"share": False, "std": "authors"}], ids=str)
def test_linformer_with_its_options_equals_its_twin(options):
    qkv = make(n=14, n_k=19)
    approx = approximate("linformer", qkv, 5, **options)
    assert_twin(approx, qkv, TWINS["linformer"], 5)


def test_the_two_scales_of_the_sketch_are_one_draw():
    qkv, d = make(h=400, n=30, p=2), 8
    unit = approximate("linformer", qkv, d).draws["sketch"]
    authors = approximate("linformer", qkv, d, std="authors").draws["sketch"]
    assert torch.allclose(authors, unit * 0.02 * d**0.5, rtol=1e-14)
    for drawn, variance in ((unit, 1 / d), (authors, 0.02**2)):
        assert drawn.shape == (400, 30, d) and within(drawn.flatten(), 0.0)
        assert within(drawn.flatten().square(), variance, atol=0)


def test_keys_and_values_that_do_not_share_have_independent_sketches():
    draws = approximate("linformer", make(h=400, n=30, p=2), 8, share=False).draws
    assert within((draws["sketch"] * draws["sketch_values"]).flatten(), 0.0)
    assert not torch.equal(draws["sketch"], draws["sketch_values"])


def test_an_untrained_linformer_does_not_converge_with_d():
    """What `untrained` means: at d = n its error is no better than that of V-Mean, which does nothing."""
    qkv = make(h=8, n=64)
    expected = exact(qkv) @ qkv.v
    error = (approximate("linformer", qkv, 64).output - expected).norm(dim=(1, 2))
    mean = (approximate("vmean", qkv).output - expected).norm(dim=(1, 2))
    assert (error > mean).all()
    assert "untrained" in get("linformer").paper and "untrained" in get("linformer").explain()


@pytest.mark.parametrize("name", SKETCHES)
@pytest.mark.parametrize("n, d", [(12, 4), (8, 8), (5, 1), (1, 1)])
def test_every_sketch_is_the_identity_on_average(name, n, d):
    drawn = torch.stack([getattr(sketches, name)(n, d, generator(seed, name)) for seed in range(1000)])  # (R, n, d)
    assert drawn.shape == (1000, n, d) and drawn.dtype == torch.float64
    assert within(drawn @ drawn.mT, torch.eye(n, dtype=torch.float64))


def test_each_sketch_has_its_structure():
    for seed in range(20):
        draw = {name: getattr(sketches, name)(12, 4, generator(seed, name)) for name in SKETCHES}
        assert torch.equal((draw["countsketch"] != 0).sum(1), torch.ones(12, dtype=torch.int64))
        assert torch.allclose(draw["srht"].abs(), torch.full((12, 4), 0.5, dtype=torch.float64))
        assert {round(x, 12) for x in draw["sparse"].abs().unique().tolist()} <= {0.0, round(sqrt(3 / 4), 12)}
        assert ((draw["accumulate"] != 0).sum(0) <= 4).all()
        one = sketches.accumulate(12, 4, generator(seed), terms=1)
        assert torch.equal((one != 0).sum(0), torch.ones(4, dtype=torch.int64)) and one.abs().max() == sqrt(3)
        assert torch.allclose(sketches.sparse(12, 4, generator(seed), density=1.0).abs(), draw["srht"].abs())
        full = sketches.srht(16, 16, generator(seed))
        assert torch.allclose(full @ full.T, torch.eye(16, dtype=torch.float64), atol=1e-15)
        assert not torch.allclose(draw["gaussian"], draw["sparse"])


def jlt_variance(name, b, v, d):
    """``E‖B S Sᵀ V - BV‖_F²``, from the fourth moments of the entries of S.

    ``T = Σ_k ‖B^(k)‖² ‖V_k‖²`` are the terms with all four indices equal. Entries ±1 (kurtosis 1) take off 2T, those of
    the sparse sketch with density 1/3 have kurtosis 3 as normal ones do, and the SRHT has, for d of its N columns
    without replacement, the factor of a finite population.
    """
    n = len(v)
    product, cross = b.square().sum() * v.square().sum(), (b @ v).square().sum()
    same = (b.square().sum(0) * v.square().sum(1)).sum()
    if name == "srht":
        size = 1 << (n - 1).bit_length()
        return (product + cross - 2 * same) / d * (size - d) / (size - 1)
    if name == "countsketch":
        return (product + cross - 2 * same) / d
    if name == "accumulate":
        return (n / 4 * same + 3 / 4 * (product + 2 * cross) - cross) / d
    return (product + cross) / d


@pytest.mark.parametrize("name", SKETCHES)
@pytest.mark.parametrize("n, d", [(20, 6), pytest.param(16, 12, marks=pytest.mark.slow)])
def test_the_unreduced_form_is_unbiased_and_has_the_variance_of_its_sketch(name, n, d):
    qkv = copies(make(n=n, score=2.0), 2000)
    approx = approximate("linformer-jlt", qkv, d, sketch=name)
    b, v = exact(qkv.select([0])).dense()[0], qkv.v[0]
    error = approx.output - b @ v
    assert within(error, torch.zeros_like(error[0]))
    squares = error.square().sum((1, 2))
    expected = jlt_variance(name, b, v, d)
    assert within(squares, expected)
    assert squares.std() / sqrt(2000) < 0.05 * expected  # the band is narrow enough to say something


@pytest.mark.parametrize("name", SKETCHES)
def test_the_unreduced_form_with_any_sketch_equals_its_twin(name):
    qkv = make(n=14, n_k=19, score=6.0)
    approx = approximate("linformer-jlt", qkv, 5, sketch=name)
    assert_twin(approx, qkv, TWINS["linformer-jlt"], 5)


def test_with_all_columns_of_a_hadamard_matrix_the_unreduced_form_is_exact():
    for score in (1.0, 6.0):
        qkv = make(n=32, score=score)
        error = approximate("linformer-jlt", qkv, 32, sketch="srht").operator.dense() - exact(qkv).dense()
        assert error.abs().max() <= 1e-14
        assert (
            approximate("linformer-jlt", qkv, 31, sketch="srht").operator.dense() - exact(qkv).dense()
        ).abs().max() > 1e-4


@pytest.mark.parametrize(
    "options, words",
    [
        ({"density": 0.5}, "density belongs to sketch=sparse"),
        ({"sketch": "sparse", "density": 0.0}, "density=0.0 is not in"),
        ({"sketch": "sparse", "density": 1.5}, "density=1.5 is not in"),
        ({"sketch": "srht", "terms": 3}, "terms belongs to sketch=accumulate"),
        ({"sketch": "accumulate", "terms": 0}, "terms=0 is not positive"),
    ],
    ids=str,
)
def test_options_that_contradict_each_other_are_refused(options, words):
    with pytest.raises(UsageError, match=f"linformer-jlt: {words}"):
        approximate("linformer-jlt", make(), 4, **options)


def test_density_and_terms_reach_their_sketch():
    dense = approximate("linformer-jlt", make(), 4, sketch="sparse", density=1.0).draws["sketch"]
    assert torch.allclose(dense.abs(), torch.full_like(dense, 0.5))
    single = approximate("linformer-jlt", make(), 4, sketch="accumulate", terms=1).draws["sketch"]
    assert ((single != 0).sum(1) == 1).all()
