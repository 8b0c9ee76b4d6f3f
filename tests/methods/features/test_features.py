"""Performer, linear and efficient attention against performer-pytorch, and the laws of the random features."""

import math
from math import sqrt

import pytest
import torch
from inputs import assert_twin, make, reaching
from thinned import others_slow
from twins import TWINS

from attnprobe.errors import UsageError
from attnprobe.methods import approximate, get
from attnprobe.methods.base import from_log_features
from attnprobe.methods.features.performer import log_features
from attnprobe.qkv import QKV
from attnprobe.reference import exact
from attnprobe.rng import Streams, generator

EVERY = ("linear", "efficient", "performer", "performer-relu")
TOLERANCE = 1e-13  # outputs of size 1 to 4, exponents of up to 100: a few hundred eps; measured at most 3e-15


def run(name, qkv, d=6, **options):
    return approximate(name, qkv, None if get(name).budget is None else d, **options)


def package():
    return pytest.importorskip("performer_pytorch.performer_pytorch", reason="performer-pytorch is not installed")


def fast_attention(qkv, w, **options):
    """The output of performer-pytorch head by head, each with its own projection."""
    outputs = []
    for row in range(qkv.h):
        module = package().FastAttention(qkv.p, nb_features=w.shape[1], **options).double()
        module.projection_matrix.copy_(w[row])
        outputs.append(module(*(x[None, None, row] for x in (qkv.q, qkv.k, qkv.v)))[0, 0])
    return torch.stack(outputs)


@pytest.mark.parametrize("score", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("n_q, n_k, p, d", [(20, 20, 8, 6), (20, 20, 8, 8), (12, 17, 6, 40)])
@pytest.mark.parametrize(
    "name, options, theirs", [("performer", {"eps": 1e-4}, {}), ("performer-relu", {}, {"generalized_attention": True})]
)
def test_it_equals_performer_pytorch_with_the_same_projection(name, options, theirs, n_q, n_k, p, d, score):
    qkv = make(n=n_q, n_k=n_k, p=p, score=score)
    approx = run(name, qkv, d, **options)
    expected = fast_attention(qkv, approx.draws["projection"], **theirs)
    assert (approx.output - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("score", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("eps", [0.0, 1e-6, 1e-2])
def test_features_with_any_constant_equal_those_of_performer_pytorch(score, eps):
    """Its module has 1e-4 only, its kernel takes any: with 0 its shifts and ours cancel alike."""
    qkv = make(score=score)
    approx = run("performer", qkv, 10, eps=eps)
    for row in range(qkv.h):
        q, k, v = (x[None, None, row] for x in (qkv.q, qkv.k, qkv.v))
        given = {"projection_matrix": approx.draws["projection"][row], "eps": eps}
        phi_q = package().softmax_kernel(q, is_query=True, **given)
        phi_k = package().softmax_kernel(k, is_query=False, **given)
        expected = package().linear_attention(phi_q, phi_k, v)[0, 0]
        assert (approx.output[row] - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("d", [3, 8, 20])
def test_raw_features_are_drawn_as_performer_pytorch_draws_them(monkeypatch, d):
    """Both get the same normal numbers: ours from their streams, its from a stand-in for torch.randn."""
    draw = package().gaussian_orthogonal_random_matrix
    w = run("performer", make(h=1), d, qr="raw", seed=5).draws["projection"][0]
    blocks, norms = [], []
    for into, label in ((blocks, "directions"), (norms, "norms")):
        g = Streams(5, "performer").head(0, label)
        into += [torch.randn(8, 8, generator=g, dtype=torch.float64) for _ in range(-(-d // 8))]
    queue = [*blocks, torch.cat(norms)[:d]]
    monkeypatch.setattr(torch, "randn", lambda *size, device=None: queue.pop(0))
    expected = draw(d, 8)
    assert (w - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("size", [0.3, 1.0, 3.0])
def test_linear_attention_equals_that_of_performer_pytorch_on_elu_features(size):
    qkv = make(score=size**2, n=14, n_k=19)
    phi_q, phi_k = (torch.nn.functional.elu(x)[None] + 1 for x in (qkv.q, qkv.k))
    expected = package().linear_attention(phi_q, phi_k, qkv.v[None])[0]
    assert (run("linear", qkv).output - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("size", [0.3, 1.0, 3.0])
def test_efficient_attention_equals_performer_pytorch_without_a_projection(size):
    qkv = make(score=size**2, n=14, n_k=19)
    module = package().FastAttention(qkv.p, no_projection=True).double()
    expected = module(qkv.q[None], qkv.k[None], qkv.v[None])[0]
    approx = run("efficient", qkv)
    assert (approx.output - expected).abs().max() <= TOLERANCE
    assert approx.diagnostics["visited"].tolist() == [qkv.p * (14 + 19)] * qkv.h


@pytest.mark.parametrize(
    "name, options",
    [
        ("linear", {"scale": True}),
        ("efficient", {"scale": True}),
        ("performer", {"eps": 1e-3}),
        ("performer", {"double_norm": True}),
        ("performer", {"orthogonal": False}),
        ("performer", {"qr": "raw", "scaling": "sqrt"}),
        ("performer-relu", {"eps": 0.1}),
        ("performer-relu", {"double_norm": True}),
    ],
)
def test_every_option_equals_its_twin_and_changes_something(name, options):
    qkv = make(score=2.0)
    approx = run(name, qkv, **options)
    known = {key: value for key, value in options.items() if key in ("scale", "eps", "double_norm")}
    assert_twin(approx, qkv, TWINS[name], 6, **known)
    assert (approx.output - run(name, qkv).output).abs().max() > 1e-3


@pytest.mark.parametrize("name", EVERY)
def test_the_models_scale_is_used_and_not_the_head_dimension(name):
    options = {"scale": True} if get(name).budget is None else {}
    qkv = make()
    scaled = QKV(qkv.q, qkv.k, qkv.v, scale=0.07)
    folded = QKV(qkv.q * 0.07**0.5, qkv.k * 0.07**0.5, qkv.v, scale=1.0)
    assert (run(name, scaled, **options).output - run(name, folded, **options).output).abs().max() <= 1e-14
    assert (run(name, scaled, **options).output - run(name, qkv, **options).output).abs().max() > 1e-3
    if get(name).budget is None:  # without the option the scale has no part in it
        assert torch.equal(run(name, scaled).output, run(name, qkv).output)


# Unbiasedness. Each of many heads holds the same three tokens and draws its own W, so the mean over heads of A~ is a
# mean of independent draws and z, its error over its standard error, is normal: |z| ≤ 5 for all 9 entries fails with a
# probability of 5e-6. Features are log-normal, so |x'| is kept near 1, where the skewness divided by √4000 is small.
HEADS = 4000


def z_scores(d, size=0.4, **options):
    """z of each entry of A~ and its relative bias, (3, 3), over 4000 draws."""
    one = make(h=1, n=3, p=8, score=size)
    qkv = QKV(*(x.expand(HEADS, -1, -1) for x in (one.q, one.k, one.v)))
    w = run("performer", qkv, d, **options).draws["projection"]
    phi_q, phi_k = (log_features(x * qkv.scale**0.5, w).exp() for x in (qkv.q, qkv.k))
    estimates = phi_q @ phi_k.mT / d  # A~, (4000, 3, 3)
    expected = torch.exp(one.scale * one.q @ one.k.mT)[0]
    error = estimates.mean(0) - expected
    return error / (estimates.std(0) / sqrt(HEADS)), error / expected


@pytest.mark.parametrize("d", others_slow([1, 5, 8, 20], lambda d: d[0] in (5, 20)))
@pytest.mark.parametrize("orthogonal", [True, False])
def test_the_kernel_estimate_is_unbiased(d, orthogonal):
    z, _ = z_scores(d, orthogonal=orthogonal)
    assert z.abs().max() <= 5


def test_raw_signs_of_the_qr_decomposition_bias_it():
    """The negative control: the test above would notice."""
    z, bias = z_scores(8, qr="raw")
    assert z.abs().max() > 10 and bias.abs().max() > 0.05


def test_rows_of_one_length_bias_it():
    z, _ = z_scores(8, scaling="sqrt")
    assert z.min() < -10  # a sphere has lighter tails than a normal vector: A~ is too small


def test_orthogonal_rows_have_less_variance():
    """The point of the paper's section 2.4: over 4000 draws a variance is known to a few percent."""
    spread = {}
    for orthogonal in (True, False):
        z, bias = z_scores(8, orthogonal=orthogonal)
        spread[orthogonal] = float((bias / z).mean())  # standard error over A
    assert spread[True] < 0.9 * spread[False]


@pytest.mark.parametrize("d", [5, 8, 20])
def test_blocks_are_orthogonal_with_the_norms_asked_for(d):
    for scaling in ("chi", "sqrt"):
        w = run("performer", make(h=3), d, scaling=scaling).draws["projection"]
        assert w.shape == (3, d, 8) and w.dtype == torch.float64
        for block in w.split(8, dim=1):
            gram = block @ block.mT
            lengths = gram.diagonal(dim1=1, dim2=2)
            assert (gram - torch.diag_embed(lengths)).abs().max() <= 1e-13 * float(lengths.max())
        lengths = w.square().sum(-1)
        assert ((lengths - 8).abs().max() <= 1e-13) == (scaling == "sqrt")
        assert scaling == "sqrt" or len(lengths.unique()) == 3 * d  # each row has a norm of its own


def test_budgets_share_their_rows_and_norms_are_chi():
    for options in ({}, {"orthogonal": False}, {"qr": "raw"}):
        large = run("performer", make(p=5), 23, **options).draws["projection"]
        small = run("performer", make(p=5), 7, **options).draws["projection"]
        assert torch.equal(large[:, :7], small)
    squares = run("performer", make(), 2000).draws["projection"].square().sum(-1)
    # χ² with 8 degrees has mean 8 and variance 16, 4000 rows: five standard errors are 5 · √(16 / 4000)
    assert abs(float(squares.mean()) - 8) <= 5 * sqrt(16 / 4000)


def test_more_features_come_nearer():
    qkv = make(h=16, score=0.1)  # variances grow with exp(|q' + k'|²): at large scores a few entries decide
    expected = exact(qkv).dense()
    errors = [float((run("performer", qkv, d).operator.dense() - expected).norm()) for d in (8, 128, 2048)]
    # standard errors fall with √16 = 4; half of that is left to chance
    assert errors[1] < errors[0] / 2 and errors[2] < errors[1] / 2


def test_a_constant_vanishes_with_eps_and_draws_large_keys_to_the_mean():
    small = make(score=0.5)
    plain = run("performer", small).operator.dense()
    changes = [float((run("performer", small, eps=eps).operator.dense() - plain).abs().max()) for eps in (1e-4, 1e-6)]
    assert 0 < changes[1] < 0.02 * changes[0]  # linear in eps
    large = reaching(700.0, p=32)  # every key feature lies below 1e-4
    uniform = 1 / large.n_k
    flat = (run("performer", large, 64, eps=1e-4).operator.dense() - uniform).abs().max()
    peaked = (run("performer", large, 64).operator.dense() - uniform).abs().max()
    assert flat < 1e-3 and peaked > 0.9


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_finite_for_scores_of_several_hundred_and_more(name, dtype):
    for top in (300.0, 900.0, 1e5):
        approx = run(name, reaching(top, dtype=dtype))
        assert torch.isfinite(approx.output).all()
        assert not approx.diagnostics.get("bad_rows", torch.zeros(2)).any()


def test_a_query_that_shares_no_feature_with_any_key_is_counted():
    """With eps=0 a relu is 0 on half of all directions, and all of one row's features may be."""
    qkv = make(n=40)
    approx = run("performer-relu", qkv, 2, eps=0.0)
    lost = torch.isnan(approx.output).all(-1)
    assert lost.any() and not lost.all()
    assert torch.equal(approx.diagnostics["bad_rows"], lost.sum(-1))
    w = approx.draws["projection"]
    phi_q, phi_k = (torch.relu(x @ w.mT) for x in (qkv.q, qkv.k))
    assert torch.equal(lost, (phi_q @ phi_k.mT).sum(-1) == 0)


@pytest.mark.parametrize("double_norm", [False, True])
def test_the_normaliser_is_the_sum_of_the_features_of_the_scaled_inputs(double_norm):
    qkv = make(n=24)
    approx = run("performer", qkv, 8, double_norm=double_norm)
    by = qkv.scale if double_norm else qkv.scale**0.5
    assert by < 1
    w = approx.draws["projection"].to(qkv.q)
    phi_q, phi_k = ((x @ w.mT - x.square().sum(-1, keepdim=True) / 2).exp() for x in (by * qkv.q, by * qkv.k))
    expected = (phi_q @ phi_k.mT).sum(-1).log() - math.log(8)
    assert torch.allclose(approx.log_normalizer(), expected, rtol=1e-9, atol=1e-9)


def test_features_given_by_their_logarithms_are_normalised_without_a_shift():
    g = generator(0, "features")
    log_q, log_k = (3 * torch.randn(2, n, 4, generator=g, dtype=torch.float64) for n in (5, 7))
    expected = log_q.exp() @ log_k.exp().mT
    expected = expected / expected.sum(-1, keepdim=True)
    for by in (0.0, -1e4, 1e4):
        operator, bad = from_log_features(log_q + by, log_k - by, make())
        # the shift itself rounds each logarithm by eps · 1e4
        assert (operator.dense() - expected).abs().max() <= 1e-14 + 1e-15 * abs(by) and not bad.any()


@pytest.mark.parametrize("name", ["performer", "performer-relu"])
def test_options_that_contradict_each_other_are_refused(name):
    with pytest.raises(UsageError, match=f"{name}: eps=-1.0 is negative"):
        run(name, make(), eps=-1.0)
    for option, value in (("qr", "raw"), ("scaling", "sqrt")):
        with pytest.raises(UsageError, match=f"{name}: qr and scaling belong to orthogonal=true"):
            run(name, make(), orthogonal=False, **{option: value})


def test_a_feature_that_no_key_has_is_no_feature():
    """Its column is 0/0 unless it is left out; a query that has no other has no row."""
    phi_q = torch.tensor([[[1.0, 2.0, 5.0], [0.0, 0.0, 1.0], [3.0, 1.0, 0.0]]], dtype=torch.float64)
    phi_k = torch.tensor([[[2.0, 1.0, 0.0], [0.0, 3.0, 0.0]]], dtype=torch.float64)
    operator, bad = from_log_features(phi_q.log(), phi_k.log(), make())
    expected = phi_q @ phi_k.mT
    expected = expected / expected.sum(-1, keepdim=True)
    selected = [0, 2]
    assert (operator.dense()[0, selected] - expected[0, selected]).abs().max() <= 1e-15
    assert bad.tolist() == [1] and operator.dense()[0, 1].isnan().all()
