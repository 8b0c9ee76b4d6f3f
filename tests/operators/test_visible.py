"""Which keys a query sees: causal rows of a longer text, sliding windows, sinks; and what is measured of them."""

import pytest
import torch
from inputs import make, one_head
from thinned import others_slow
from twins_causal import CAUSAL

from attnprobe import exact, input_statistics, matrix_errors, output_errors, spectra
from attnprobe.errors import Unsupported, UsageError
from attnprobe.methods import METHODS, approximate, get
from attnprobe.metrics.condition import exact_matrices
from attnprobe.operators import GaussianAttention, SoftmaxAttention, UnnormalisedAttention
from attnprobe.operators.terms import Terms
from attnprobe.operators.visible import Visible
from attnprobe.qkv import QKV
from attnprobe.reference import exact_output

F64 = torch.float64
N = 37
LOCAL = [name for name, entry in METHODS.items() if "local" in entry.tags]
FORMATS = tuple(name for name, entry in METHODS.items() if entry.format is not None)
OWN_SETS = ("linear", "lsh-qk", "magicpig", "performer", "performer-relu", "reformer", "topp", "vattention", *FORMATS)
FORMS = {
    "causal": {"causal": True},
    "window": {"causal": True, "sliding_window": 9},
    "window and sinks": {"causal": True, "sliding_window": 5, "sinks": 3},
    "both sides": {"sliding_window": 6},
    "wider than the text": {"causal": True, "sliding_window": 99},
}
ROWS = {
    "all": torch.arange(N),
    "last": torch.arange(N - 5, N),
    "one": torch.tensor([N - 1]),
    "first": torch.tensor([0]),
    "some": torch.tensor([2, 30, 7, 31, 36, 0]),
    "every": torch.arange(0, N, 4),
}
every_form = pytest.mark.parametrize("form", FORMS)
every_rows = pytest.mark.parametrize("rows", ROWS)


def seen(form, n=N):
    """The literal mask, (n, n) bool."""
    facts = {"causal": False, "sliding_window": None, "sinks": 0, **FORMS[form]}
    mask = torch.zeros(n, n, dtype=torch.bool)
    for i in range(n):
        for j in range(n):
            ahead = facts["causal"] and j > i
            far = facts["sliding_window"] is not None and abs(i - j) >= facts["sliding_window"]
            mask[i, j] = not ahead and (not far or j < facts["sinks"])
    return mask


def inputs(form, rows="all", **shape):
    return make(n=N, score=3.0, **shape).replace(**FORMS[form]).queries(ROWS[rows])


def dense(form, rows, qkv):
    """B, (h, n_q, n) float64."""
    scores = (qkv.scale * qkv.q.double() @ qkv.k.double().mT).masked_fill(~seen(form)[ROWS[rows]], float("-inf"))
    if qkv.sink_logits is None:
        return torch.softmax(scores, -1)
    sink = qkv.sink_logits.double()[:, None, None].expand(*scores.shape[:2], 1)
    return torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]


def test_visible_keys_are_counted_and_hidden_alike():
    visible = Visible(torch.tensor([0, 4, 9, 9]), torch.tensor([0, 3, 2, 8]), sinks=2)
    hidden = visible.hidden(10)
    assert (~hidden).sum(1).tolist() == visible.counts().tolist() == [1, 4, 10, 4]
    assert torch.equal(visible.hidden(10, 4), hidden[:, 4:])
    assert torch.equal(visible.of(torch.tensor([2, 0])).hidden(10), hidden[[2, 0]])
    assert torch.equal(visible.hides(torch.tensor([[1, 8]])), hidden[:, [1, 8]])
    numbers = torch.tensor([[3.0, 9.0, 1.0, 4.0, 2.0, 8.0, 5.0, 0.0, 7.0, 6.0]])
    assert torch.equal(visible.largest(numbers)[0], numbers.expand(4, -1).masked_fill(hidden, 0).amax(1))


@every_form
@every_rows
def test_exact_attention_of_some_rows_is_that_of_the_literal_mask(form, rows):
    qkv = inputs(form, rows)
    assert torch.equal(qkv.visible.hidden(N), ~seen(form)[ROWS[rows]])
    b = dense(form, rows, qkv)
    operator = exact(qkv)
    assert (operator.dense() - b).abs().max() < 1e-14
    assert (operator @ qkv.v - b @ qkv.v).abs().max() < 1e-13
    y = torch.linspace(-1, 1, qkv.n_q * 2 * 2, dtype=F64).reshape(2, qkv.n_q, 2)
    assert (operator.rmatmul(y) - b.mT @ y).abs().max() < 1e-13
    assert (exact_output(qkv) - b @ qkv.v).abs().max() < 1e-13
    assert (exact_output(qkv.to(dtype=torch.float32)) - b @ qkv.v).abs().max() < 1e-6
    on_cpu = operator.on(torch.device("cpu"))
    assert torch.equal(on_cpu.dense(), operator.dense())
    assert (operator.heads(slice(1, 2)).dense()[0] - operator.dense()[1]).abs().max() < 1e-14


@pytest.mark.parametrize("kind", [SoftmaxAttention, UnnormalisedAttention, GaussianAttention])
def test_the_first_keys_of_causal_rows_are_all_that_they_see(kind):
    qkv = make(n=500, score=3.0).replace(causal=True)
    bias = Terms(bias=torch.linspace(-1, 1, 500, dtype=F64).expand(1, 500, 500))
    operator = kind(qkv.q, qkv.k, qkv.scale, visible=qkv.visible, terms=bias)
    assert [operator.seen(0, 384), operator.seen(100, 385), operator.seen(499, 500)] == [384, 500, 500]
    rows = operator.rows(100, 300)
    assert (operator.first_keys(100, 300, 384).dense() - rows[..., :384]).abs().max() < 1e-14 * rows.max()
    assert not rows[..., 384:].any()


@every_form
def test_everything_measured_of_some_rows_is_that_of_their_dense_matrix(form):
    qkv = inputs(form, "some")
    b = dense(form, "some", qkv)
    approx = approximate("topk", qkv, 3)
    gap = b - approx.operator.dense()
    errors = matrix_errors(exact(qkv), approx.operator)
    norms = torch.linalg.matrix_norm(gap, 2)
    assert torch.allclose(errors["matrix_spectral"], norms, rtol=1e-3)
    assert (errors["matrix_spectral_upper"] >= norms * (1 - 1e-12)).all()
    assert torch.allclose(errors["matrix_frobenius"], gap.norm(dim=(1, 2)), rtol=1e-9)
    outputs = output_errors(exact(qkv), approx, qkv)
    assert torch.allclose(outputs["output_spectral"], torch.linalg.matrix_norm(gap @ qkv.v, 2), rtol=1e-9)
    for head, one in enumerate(spectra(qkv)):
        assert (one.values - torch.linalg.svdvals(b[head])).abs().max() < 1e-13
    matrices = {name: matrix for name, matrix, _ in exact_matrices(qkv, 1)}
    assert (matrices["B"] - b[1]).abs().max() < 1e-14
    assert torch.equal(matrices["A"] == 0, ~seen(form)[ROWS["some"]]) and torch.equal(
        matrices["C"] == 0, matrices["A"] == 0
    )


@every_form
def test_errors_of_larger_matrices_are_certified_for_some_rows_too(form):
    """Beyond the size that is computed densely."""
    qkv = make(n=300, score=4.0).replace(**FORMS[form], sink_logits=torch.tensor([0.0, 3.0], dtype=F64))
    some = qkv.queries(torch.arange(1, 300, 3))
    approx = approximate("topk", some, 3)
    gap = exact(some).dense() - approx.operator.dense()
    errors, norms = matrix_errors(exact(some), approx.operator), torch.linalg.matrix_norm(gap, 2)
    assert torch.allclose(errors["matrix_spectral"], norms, rtol=1e-3)
    assert (errors["matrix_spectral_lower"] <= norms * (1 + 1e-12)).all()
    assert (errors["matrix_spectral_upper"] >= norms * (1 - 1e-12)).all()
    assert torch.allclose(errors["matrix_frobenius"], gap.norm(dim=(1, 2)), rtol=1e-9)


@every_form
def test_statistics_count_what_is_seen(form):
    qkv = inputs(form, "some")
    b, mask = dense(form, "some", qkv), seen(form)[ROWS["some"]]
    actual = input_statistics(qkv)
    for head in range(2):
        s = (qkv.scale * qkv.q[head] @ qkv.k[head].mT)[mask]
        entropy = -(b[head].clamp(min=1e-300).log() * b[head]).sum(1).mean()
        assert float(actual["score_std"][head]) == pytest.approx(float(s.std(correction=0)), rel=1e-9)
        assert float(actual["score_max"][head]) == pytest.approx(float(s.abs().max()), rel=1e-12)
        assert float(actual["entropy"][head]) == pytest.approx(float(entropy), rel=1e-9)
        uniform = mask.sum(1).double().log().mean()
        assert float(actual["entropy_share"][head]) == pytest.approx(float(entropy / uniform), rel=1e-9)


@pytest.mark.parametrize("form", others_slow(FORMS, lambda form: form[0] in ("window and sinks", "both sides")))
@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("rows", others_slow(["all", "last", "some"], lambda rows: rows[0] == "some"))
def test_a_method_with_a_local_form_is_its_pattern_on_what_is_seen(form, name, rows):
    """Fixed patterns, renormalised where the window hides keys; topk chooses among the keys that are seen."""
    qkv, mask = inputs(form, rows), seen(form)[ROWS[rows]]
    if qkv.causal and "causal" not in get(name).tags:
        pytest.skip("no causal form")
    if get(name).square and not qkv.square:
        pytest.skip("each token is a query and a key")
    d, small = max(12, get(name).least), get(name).small if name in FORMATS else {}
    got = approximate(name, qkv, None if get(name).budget is None else d, **small).operator.dense()
    scores = (qkv.scale * qkv.q @ qkv.k.mT).masked_fill(~mask, float("-inf"))
    if name == "topk":
        least = scores.topk(d, -1).values[..., -1:]
        expected = torch.softmax(scores.masked_fill(scores < least, float("-inf")), -1)
    elif name == "vmean":
        expected = mask / mask.sum(-1, keepdim=True).double()
    elif name == "softmax":
        expected = torch.softmax(scores, -1)
    elif name == "kernelized":
        expected = torch.exp(-(torch.cdist(qkv.q, qkv.k) ** 2) * qkv.scale / 2).masked_fill(~mask, 0)
    elif name in OWN_SETS:  # features or sets that depend on what a row sees
        draws = approximate(name, qkv, d if get(name).budget else None).draws

        def of_head(row):
            return {key: value[row] for key, value in draws.items()}

        twins = [CAUSAL[name](one_head(qkv, row), d, of_head(row), "softmax") for row in range(qkv.h)]
        expected = torch.stack(twins)
    else:
        every = qkv.replace(sliding_window=None, sinks=0, positions=None, q=make(n=N, score=3.0).q)
        support = approximate(name, every, d).operator.dense()[:, ROWS[rows]] > 0
        expected = torch.softmax(scores.masked_fill(~support, float("-inf")), -1)
    assert (got - expected).abs().max() < 1e-13


@every_form
@pytest.mark.parametrize("name", ["softmax", "window", "topk", "longformer", "bigbird", "performer", "lsh-qk"])
def test_the_normaliser_of_a_method_is_that_of_its_weights(form, name):
    qkv = inputs(form)
    approx = approximate(name, qkv, max(12, get(name).least) if get(name).budget else None)
    log_sums, rows = approx.log_normalizer(), approx.operator.dense()
    if name == "performer":
        w = approx.draws["projection"]
        phi = [
            torch.exp(qkv.scale**0.5 * x @ w.mT - qkv.scale * x.square().sum(-1, keepdim=True) / 2)
            for x in (qkv.q, qkv.k)
        ]
        expected = (phi[0] @ phi[1].mT / 12 * seen(form)).sum(-1).log()
    else:
        scores = qkv.scale * qkv.q @ qkv.k.mT
        expected = scores.masked_fill(rows == 0, float("-inf")).logsumexp(-1)
    assert (log_sums - expected).abs().max() < 1e-12


@every_form
def test_sinks_of_heads_enter_the_normaliser_of_every_row(form):
    qkv = inputs(form, "last").replace(sink_logits=torch.tensor([1.5, -2.0], dtype=F64))
    b = dense(form, "last", qkv)
    assert (exact(qkv).dense() - b).abs().max() < 1e-14 and (exact(qkv).row_sums() < 1).all()
    for dtype, tolerance in ((F64, 1e-13), (torch.float32, 1e-6)):
        assert (exact_output(qkv.to(dtype=dtype)) - b @ qkv.v).abs().max() < tolerance
    for name, d in (("softmax", None), ("topk", N), ("window", N + 4)):
        approx = approximate(name, qkv, d)
        assert (approx.operator.dense() - b).abs().max() < 1e-13 and (approx.output - b @ qkv.v).abs().max() < 1e-12
        scores = (qkv.scale * qkv.q @ qkv.k.mT).masked_fill(~seen(form)[ROWS["last"]], float("-inf"))
        log_sums = torch.logaddexp(scores.logsumexp(-1), qkv.sink_logits[:, None])
        assert (approx.log_normalizer() - log_sums).abs().max() < 1e-12
    errors = matrix_errors(exact(qkv), approximate("topk", qkv, 3).operator)
    gap = b - approximate("topk", qkv, 3).operator.dense()
    assert torch.allclose(errors["matrix_spectral"], torch.linalg.matrix_norm(gap, 2), rtol=1e-3)
    assert float(spectra(qkv)[0].values[0]) == pytest.approx(float(torch.linalg.matrix_norm(b[0], 2)), rel=1e-12)


def test_methods_without_a_form_refuse():
    qkv = make(n=N)
    with pytest.raises(Unsupported, match="skyformer has no form for it"):
        approximate("skyformer", qkv.replace(sliding_window=4), 8)
    with pytest.raises(Unsupported, match="skyformer states no normaliser"):
        approximate("skyformer", qkv.replace(sink_logits=torch.zeros(2)), 8)
    with pytest.raises(Unsupported, match="reformer: 3 queries and 37 keys"):
        approximate("reformer", qkv.replace(causal=True).queries(torch.arange(34, 37)), 8)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"positions": torch.tensor([0, 5, 37])}, "positions: 0 … 37 are not all among the 37 keys"),
        ({"positions": torch.tensor([-1, 5, 6])}, "positions: -1 … 6"),
        ({"positions": torch.tensor([0, 5])}, r"positions: needs shape \(3,\)"),
        ({"positions": torch.tensor([0.0, 5, 6])}, "torch.float32"),
        ({"positions": torch.tensor([4, 4, 6])}, "two queries share a position"),
        ({"sliding_window": 0}, "sliding_window: 0 is not between 1 and"),
        ({"sinks": -1}, "sinks: -1 is not between 0 and"),
        ({"sinks": 2, "causal": False}, "sinks: 2 is for causal inputs only"),
        ({"sink_logits": torch.zeros(3)}, r"sink_logits: needs shape \(2,\)"),
        ({"sink_logits": torch.tensor([0.0, torch.nan])}, "sink_logits: a number is not finite"),
        ({"mask": torch.ones(N, dtype=torch.bool)}, "as many queries as keys"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_name(wrong, message):
    q, k = make(n=3).q, make(n=N).k
    with pytest.raises(UsageError, match=message):
        QKV(q, k, k, **{"causal": True, **wrong})


def test_the_last_queries_are_the_default_and_follow_every_change():
    qkv = QKV(make(n=3).q, make(n=N).k, make(n=N).v, causal=True)
    assert qkv.query_positions.tolist() == [34, 35, 36] and not qkv.square
    shorter = qkv.replace(k=qkv.k[:, :9], v=qkv.v[:, :9])
    assert shorter.query_positions.tolist() == [6, 7, 8]
    chosen = qkv.queries(torch.tensor([2, 0]))
    assert chosen.query_positions.tolist() == [36, 34] and chosen.to(dtype=torch.float32).query_positions.tolist() == [
        36,
        34,
    ]
    assert chosen.select([1]).query_positions.tolist() == [36, 34]
    assert "sinks=2" in repr(qkv.replace(sliding_window=4, sinks=2)) and "sliding_window=4" in repr(
        qkv.replace(sliding_window=4)
    )
