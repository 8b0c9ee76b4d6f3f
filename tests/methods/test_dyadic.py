"""The dyadic form: rows equal literal twins, decode, depend on nothing later, and cost n d log n entries."""

import math

import pytest
import torch
from inputs import assert_twin, make
from twins_dyadic import CAUSAL

from attnprobe import QKV, approximate
from attnprobe.errors import Unsupported
from attnprobe.methods import get
from attnprobe.methods.summary import Summary
from attnprobe.reference import exact, exact_output
from attnprobe.rng import Streams

FORMS = [(name, target) for name in CAUSAL for target in get(name).targets]
every_form = pytest.mark.parametrize("name, target", FORMS)
D = 3  # a leaf of 6 keys: 23 tokens have blocks of 6, 12 and 6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@every_form
def test_rows_equal_their_literal_twin(name, target, dtype):
    qkv = make(n=23, dtype=dtype).replace(causal=True)
    approx = approximate(name, qkv, D, target=target)
    assert_twin(approx, qkv, CAUSAL[name], D, target)


@pytest.mark.parametrize(
    "name, options",
    [
        ("wildcat", {"temperature": "queries"}),
        ("nystromformer", {"inverse": "pinv"}),
        ("skeinformer", {"ablation": "simple-norm"}),
        ("skeinformer", {"ablation": "uniform"}),
    ],
)
def test_options_mean_what_they_mean(name, options):
    qkv = make(h=1, n=17).replace(causal=True)
    approx = approximate(name, qkv, D, **options)
    twin = CAUSAL[name](qkv, D, {key: value[0] for key, value in approx.draws.items()}, "softmax", **options)
    assert torch.allclose(approx.matrix().dense()[0], twin, rtol=1e-8, atol=1e-10)


@every_form
def test_no_later_token_moves_an_earlier_row_that_has_summaries(name, target):
    qkv = make(h=1, n=23).replace(causal=True)
    later = [x.clone() for x in (qkv.q, qkv.k, qkv.v)]
    for x in later:
        x[:, 16:] = 100.0
    rows = [approximate(name, x, D, target=target).output for x in (qkv, QKV(*later, causal=True))]
    assert torch.equal(rows[0][:, :16], rows[1][:, :16]) and not torch.equal(rows[0][:, 16:], rows[1][:, 16:])


@pytest.mark.parametrize("name", [name for name in CAUSAL if "decodes" in get(name).tags])
def test_a_decoded_row_has_the_same_summaries(name):
    qkv = make(h=2, n=23).replace(causal=True)
    all_rows = approximate(name, qkv, D).output
    for step in (5, 6, 14, 22):
        one = QKV(qkv.q[:, step : step + 1], qkv.k[:, : step + 1], qkv.v[:, : step + 1], causal=True)
        assert torch.allclose(approximate(name, one, D).output[:, 0], all_rows[:, step], atol=1e-12)
    some = approximate(name, qkv.queries(torch.tensor([20, 3, 12])), D).output
    assert torch.allclose(some, all_rows[:, [20, 3, 12]], atol=1e-12)


@pytest.mark.parametrize("name", [name for name in CAUSAL if "decodes" not in get(name).tags])
def test_a_summary_of_queries_needs_all_of_them(name):
    qkv = make(h=1, n=23).replace(causal=True)
    with pytest.raises(Unsupported, match="give all queries of the text"):
        approximate(name, qkv.queries(torch.arange(8, 23)), D)


def test_refusals_of_causal_forms():
    qkv = make(h=1, n=23).replace(causal=True)
    for name, options in (("skeinformer", {"ablation": "no-norm"}), ("skyformer", {"guard": "vmean"})):
        with pytest.raises(Unsupported, match="causal form"):
            approximate(name, qkv, D, **options)


@every_form
def test_a_text_of_one_leaf_is_exact(name, target):
    qkv = make(n=2 * D).replace(causal=True)
    approx = approximate(name, qkv, D, target=target)
    assert torch.allclose(approx.output, exact_output(qkv, target), atol=1e-12) and not approx.draws


def test_blocks_of_few_different_keys_are_exact():
    """Pivots of each key that a block repeats reproduce it, so parts of a normaliser add up to all of it."""
    k = torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).repeat_interleave(6, 0)[None]
    qkv = make(h=1, n=24).replace(k=k, causal=True)
    approx = approximate("wildcat", qkv, D)
    assert torch.allclose(approx.matrix().dense(), exact(qkv).dense(), atol=1e-12)
    assert approx.log_normalizer is not None
    scores = (qkv.scale * qkv.q @ k.mT).masked_fill(torch.ones(24, 24, dtype=torch.bool).triu(1), -torch.inf)
    assert torch.allclose(approx.log_normalizer(), scores.logsumexp(-1), atol=1e-12)


@pytest.mark.parametrize("name", list(CAUSAL))
def test_entries_are_n_d_log_n(name):
    n, d = 512, 8
    approx = approximate(name, make(h=1, n=n, p=4).replace(causal=True), d)
    assert float(approx.diagnostics["visited"]) <= n * (2 * d + (d + 1) * math.log2(n / (2 * d)))
    assert float(approx.diagnostics["realised_d"]) == d


def test_blocks_have_draws_of_their_own():
    draws = approximate("wildcat", make(n=23).replace(causal=True), D).draws
    assert set(draws) == {"pivot_numbers:0-6", "pivot_numbers:12-18", "pivot_numbers:0-12"}
    assert len({float(x[0, 0]) for x in draws.values()}) == 3


def test_streams_of_parts_are_their_own():
    streams = Streams(0, "wildcat")
    part = streams.part("0-8")
    seeds = {one.head(0, "pivots").initial_seed() for one in (streams, part, part.part("x"), streams.part("8-16"))}
    assert len(seeds) == 4 and part.shared().initial_seed() != streams.shared().initial_seed()


def test_the_floor_of_a_normaliser_is_that_of_its_terms():
    one = torch.ones(1, 2, 1, dtype=torch.float64)
    right = torch.tensor([[[1.0, 1.0], [-1.0, -1.0]]], dtype=torch.float64)
    summary = Summary.normalised(one, one[..., 0], [], right)
    left = torch.ones(1, 3, 2, dtype=torch.float64)
    assert not summary.normaliser(left).any() and (summary.floor(left) > 0).all()
