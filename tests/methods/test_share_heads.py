"""``share_heads``: the draws that authors share over heads are the same for all, and only those."""

import pytest
import torch
from inputs import entry_band, make, one_head
from twins import TWINS

from attnprobe.errors import UsageError
from attnprobe.methods import METHODS, approximate
from attnprobe.qkv import QKV
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
    band = entry_band(approx.operator, qkv, torch.float64)
    for row in range(3):
        draws = {key: value[row] for key, value in approx.draws.items()}
        twin = TWINS[name](one_head(qkv, row), 6, draws, "softmax")
        assert ((approx.operator.dense()[row] - twin).abs() <= band[row]).all()


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
