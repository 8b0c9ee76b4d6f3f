"""``share_heads``: the draws that authors share over heads are the same for all, and only those; grouped queries."""

import pytest
import tiny_models
import torch
from inputs import assert_twin, make
from twins import TWINS

from attnprobe import exact, matrix_errors, output_errors, row_metrics
from attnprobe.errors import UsageError
from attnprobe.inputs.hooks.capture import capture
from attnprobe.methods import METHODS, approximate, get
from attnprobe.metrics import input_statistics
from attnprobe.metrics.kernel import eager_output
from attnprobe.operators import GaussianAttention, SoftmaxAttention, UnnormalisedAttention
from attnprobe.qkv import QKV
from attnprobe.reference import exact_output, own_output
from attnprobe.rng import Streams

SHARED = {
    "informer": {"sampled_keys"},
    "linformer": {"sketch", "sketch_values"},
    "performer": {"projection"},
    "performer-relu": {"projection"},
    "skeinformer": {"pilot_rows"},
    "skyformer": {"indices"},
}
every = pytest.mark.parametrize("name", sorted(SHARED))


def run(name, qkv, **options):
    options |= {"share": False} if name == "linformer" else {}
    return approximate(name, qkv, 6, **options)


def test_every_method_that_can_share_is_tested():
    having = {name for name, entry in METHODS.items() if "share_heads" in entry.options and entry.kind != "user"}
    assert set(SHARED) <= having


@every
def test_only_the_draws_that_authors_share_are_the_same_for_all_heads(name):
    qkv = make(h=3, n=24)
    for share in (False, True):
        draws = run(name, qkv, share_heads=share).draws
        assert SHARED[name] <= set(draws)
        for key, value in draws.items():
            alike = torch.equal(value[0], value[1]) and torch.equal(value[1], value[2])
            assert alike == (share and key in SHARED[name]), key


@every
def test_they_do_not_depend_on_which_heads_are_asked_for(name):
    qkv = make(h=3, n=24)
    full, one = run(name, qkv, share_heads=True), run(name, qkv.select([2]), share_heads=True)
    for key, value in one.draws.items():
        assert torch.equal(value[0], full.draws[key][2])
    assert (one.output[0] - full.output[2]).abs().max() <= 1e-12


@every
def test_each_head_is_the_twin_with_those_draws(name):
    qkv = make(h=3, n=20)
    approx = run(name, qkv, share_heads=True)
    assert_twin(approx, qkv, TWINS[name], 6)


def test_one_projection_for_all_heads_is_performer_pytorch_as_it_is_called():
    package = pytest.importorskip("performer_pytorch.performer_pytorch", reason="performer-pytorch is not installed")
    qkv = make(h=3)
    approx = approximate("performer", qkv, 12, share_heads=True, eps=1e-4)
    module = package.FastAttention(qkv.p, nb_features=12).double()
    module.projection_matrix.copy_(approx.draws["projection"][0])
    expected = module(qkv.q[None], qkv.k[None], qkv.v[None])[0]  # all heads at once
    assert (approx.output - expected).abs().max() <= 1e-13


def test_the_shared_stream_is_no_heads_stream():
    """Pilots shared over heads come from the stream named for that, with its method, layer and window."""
    pilots = run("skeinformer", make(h=2), share_heads=True, seed=3).draws["pilot_rows"]
    expected = torch.randint(20, (6,), generator=Streams(3, "skeinformer").shared("pilot_rows"), device="cpu")
    assert torch.equal(pilots, expected.expand(2, -1))


def test_heads_that_share_pilots_draw_columns_of_their_own():
    """On heads that are all alike, whose columns follow one law, too."""
    one = make(h=1, n=40)
    alike = QKV(*(x.expand(3, -1, -1) for x in (one.q, one.k, one.v)))
    columns = run("skeinformer", alike, share_heads=True).draws["columns"]
    assert len({tuple(sorted(row)) for row in columns.tolist()}) == 3


def test_pilots_that_are_not_drawn_cannot_be_shared():
    with pytest.raises(UsageError, match="skeinformer: share_heads shares the pilots, and ablation=uniform has none"):
        approximate("skeinformer", make(), 6, ablation="uniform", share_heads=True)


F64 = torch.float64
TAKEN = [(name, target) for name, entry in METHODS.items() for target in entry.targets]


def close(a, b) -> bool:
    return bool(((a - b).abs() <= 1e-12 * (1 + b.abs())).all())


@pytest.fixture(scope="module")
def captured() -> QKV:
    """A layer of a Llama with four query heads and two KV heads."""
    model = tiny_models.build("Llama")
    call = capture(model, tiny_models.inputs(model, padded=False), "1")
    return next(iter(call.values())).qkv().to(dtype=F64)


def alone(qkv: QKV) -> QKV:
    """The same inputs with keys and values of each query head."""
    return QKV(
        **(
            qkv.parts()
            | {"k": qkv.shared_k.repeat_interleave(qkv.group, 0), "v": qkv.shared_v.repeat_interleave(qkv.group, 0)}
        )
    )


def unread(qkv: QKV) -> bool:
    """Whether nothing has repeated the keys or the values."""
    return not {"k", "v"} & set(vars(qkv))


@pytest.mark.parametrize("name, target", TAKEN)
def test_every_method_gives_what_it_gives_with_repeated_keys(name, target, captured):
    entry = get(name)
    qkv = captured if entry.is_causal else captured.replace(causal=False)
    d = None if entry.budget is None else min(max(12, entry.least), entry.limit(qkv.n_q, qkv.n_k))
    options = {}
    if entry.family == "selection":  # sets of groups differ
        options = {name: "head" for name in ("sets", "share") if name in entry.options}
    expected, got = (approximate(name, inputs, d, target=target, **options) for inputs in (alone(qkv), qkv.replace()))
    assert qkv.group == 2 and close(got.output, expected.output)
    if got.operator is not None:
        assert close(got.operator.dense(), expected.operator.dense())
    if got.log_normalizer is not None:
        assert close(got.log_normalizer(), expected.log_normalizer())
    shared = {"kv_read"}  # a group loads its rows of K and V once, so that it is not the same
    assert {key: value.tolist() for key, value in got.diagnostics.items() if key not in shared} == {
        key: value.tolist() for key, value in expected.diagnostics.items() if key not in shared
    }


@pytest.mark.parametrize("name", ["softmax", "topk", "window", "bigbird", "longformer", "vmean"])
def test_exact_and_sparse_attention_repeat_nothing(name, captured):
    qkv = captured.replace()
    approx = approximate(name, qkv, None if get(name).budget is None else 12)
    reference = exact(qkv)
    output_errors(reference, approx, qkv)
    matrix_errors(reference, approx.operator)
    row_metrics(reference, approx, qkv)
    assert unread(qkv)


@pytest.mark.parametrize("kind", [SoftmaxAttention, UnnormalisedAttention, GaussianAttention])
@pytest.mark.parametrize("some", [slice(None), slice(1, 2), slice(2, 4), slice(1, 4)], ids=str)
def test_operators_of_shared_keys_and_operands(kind, some):
    qkv = make(h=6, n=9, n_k=11, dtype=F64)
    shared, own = qkv.shared_k[::3], qkv.shared_k[::3].repeat_interleave(3, 0)
    values = qkv.shared_v[::3]
    grouped, plain = (kind(qkv.q, k, 0.7).heads(some) for k in (shared, own))
    assert close(grouped.dense(), plain.dense())
    x = torch.randn(plain.shape[0], 11, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    y = torch.randn(plain.shape[0], 9, 2, dtype=F64, generator=torch.Generator().manual_seed(1))
    assert close(grouped @ x, plain @ x) and close(grouped.rmatmul(y), plain.rmatmul(y))
    full = kind(qkv.q, shared, 0.7)
    assert close(full.matmul_shared(values), full @ values.repeat_interleave(3, 0))


@pytest.mark.parametrize("causal", [True, False])
def test_exact_outputs_and_statistics_of_shared_keys(causal, captured):
    qkv = captured.replace(causal=causal)
    for function in (exact_output, own_output, eager_output, lambda x: exact(x, "gaussian").dense()):
        assert close(function(qkv), function(alone(qkv)))
    got, expected = input_statistics(qkv), input_statistics(alone(qkv))
    assert all(close(got[name], expected[name]) for name in expected) and unread(qkv)
