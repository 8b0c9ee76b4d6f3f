"""Quantised caches: what is read back, against other software and the literal twins; what rows read; what is stored."""

import math

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from inputs import draws_of, make
from twins_quantised import READ, SMALL

from attnprobe import QKV, Storage, approximate, exact
from attnprobe.errors import Unsupported, UsageError
from attnprobe.methods import METHODS, get
from attnprobe.operators.linalg.hadamard import hadamard
from attnprobe.operators.linalg.lloyd_max import distortion, lloyd_max
from attnprobe.reference import exact_output
from attnprobe.rng import generator

F64 = torch.float64
FORMATS = sorted(name for name, entry in METHODS.items() if entry.format is not None)
GGML = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4"]
OPTIONS = {
    "fp8": [{"number": "e5m2"}, {"scale": "token"}],
    "kivi": [{"bits": 1, "group": 5}, {"bits": 4, "group": 3}],
    "turboquant": [{"bits": 2, "rotation": "signed"}, {"bits": 3, "variant": "prod"}, {"rotation": "hadamard"}],
}
CASES = [(name, {}) for name in FORMATS] + [(name, some) for name, every in OPTIONS.items() for some in every]
every_format = pytest.mark.parametrize("name", FORMATS)


def numbers(*shape, seed=0):
    """Normal numbers with outlying channels, in float32."""
    x = torch.randn(shape, generator=generator(seed, "quantised", *shape))
    x[..., ::7] *= 8
    return x


def inputs(n=24, p=64, p_v=32, h=2, kv_heads=None, **facts) -> QKV:
    kv = h if kv_heads is None else kv_heads
    return QKV(numbers(h, n, p), numbers(kv, n, p, seed=1), numbers(kv, n, p_v, seed=2), **facts)


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 1e3])
@pytest.mark.parametrize("name", GGML)
def test_what_is_read_back_is_that_of_gguf_to_the_bit(name, size):
    """Heads of 64 and 96 numbers, and of 40, which GGML itself does not take: padded with zeros to 64."""
    kind = GGMLQuantizationType[name.upper()]
    for p, p_v in ((64, 96), (40, 64)):
        qkv = inputs(p=p, p_v=p_v)
        qkv = qkv.replace(k=qkv.k * size, v=qkv.v * size)
        for ours, x in zip(approximate(name, qkv.replace(q=qkv.q / size)).stored, (qkv.k, qkv.v), strict=True):
            padded = torch.nn.functional.pad(x, (0, -x.shape[2] % 32)).numpy()
            with np.errstate(all="ignore"):
                theirs = quants.dequantize(quants.quantize(padded, kind), kind)
            assert np.array_equal(ours.numpy(), theirs[..., : x.shape[2]]), p


@pytest.mark.parametrize("name", GGML)
def test_ties_and_equal_numbers_are_those_of_gguf(name):
    """Numbers at the middle between codes, of equal size and other signs, all equal, all zero."""
    kind = GGMLQuantizationType[name.upper()]
    rows = [torch.arange(-16, 16) / 2, torch.arange(-16, 16) / 4, torch.ones(32), torch.zeros(32), -torch.ones(32)]
    rows += [torch.tensor([6.0, -6.0] * 16), torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -6.0] * 4)]
    rows += [torch.tensor([4.0 - 2.0**-22, *[0.3] * 31]), torch.tensor([16.0 - 2.0**-20, *[0.3] * 31])]
    k = torch.stack(rows)[None]
    theirs = quants.dequantize(quants.quantize(k.numpy(), kind), kind)
    assert np.array_equal(approximate(name, QKV(k, k, k)).stored[0].numpy(), theirs)


@pytest.mark.parametrize("number, kind", [("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)])
def test_fp8_is_torchs_cast(number, kind):
    qkv = inputs()
    for ours, x in zip(approximate("fp8", qkv, number=number).stored, (qkv.k, qkv.v), strict=True):
        scale = x.abs().amax((1, 2), keepdim=True) / torch.finfo(kind).max
        assert torch.equal(ours, (x / scale).to(kind).float() * scale)


@pytest.mark.parametrize("p", [8, 5])
@pytest.mark.parametrize("name, options", CASES)
def test_keys_and_values_are_those_of_the_literal_twin(name, options, p):
    if options.get("rotation") in ("signed", "hadamard") and p == 5:
        with pytest.raises(
            Unsupported, match="a key has 5 numbers, of which there is no Hadamard matrix here; choose rot"
        ):
            approximate(name, make(p=p), **options)
        return
    qkv = make(n=20, p=p, p_v=p, dtype=torch.float32)
    given = {"group": 4, **options, "exact": 0} if name == "kivi" else options
    approx = approximate(name, qkv, **given)
    group = given.get("group", 1)
    whole = 20 // group * group
    own = {key: value for key, value in given.items() if key != "exact"}
    for side, ours, x in zip(("key", "value"), approx.stored, (qkv.k, qkv.v), strict=True):
        for head in range(qkv.h):
            theirs = READ[name](x[head].double(), side, draws_of(approx, head), **own)
            close = (ours[head].double() - theirs)[:whole].abs() <= 4e-7 * x[head].double().abs().max()
            assert close.all(), side
            assert torch.equal(ours[head, whole:], x[head, whole:])  # an incomplete group


@every_format
def test_one_side_alone_leaves_the_other(name):
    qkv, small = inputs(), get(name).small
    keys, values = (approximate(name, qkv, of=of, **small) for of in "kv")
    assert torch.equal(keys.stored[1], qkv.v) and not torch.equal(keys.stored[0], qkv.k)
    assert torch.equal(values.stored[0], qkv.k) and not torch.equal(values.stored[1], qkv.v)
    assert torch.equal(values.operator.dense(), exact(qkv).dense())
    both = approximate(name, qkv, **small)
    assert torch.equal(both.stored[0], keys.stored[0]) and torch.equal(both.stored[1], values.stored[1])


@every_format
def test_the_output_is_exact_attention_to_what_is_read_back(name):
    qkv = inputs(h=4, kv_heads=2).double()
    approx = approximate(name, qkv, **get(name).small)
    k, v = approx.stored
    assert k.shape == qkv.shared_k.shape
    assert (approx.output - exact_output(qkv.replace(k=k, v=v))).abs().max() < 1e-12


@every_format
def test_no_exact_token_is_quantised_and_all_tokens_exact_are_exact_attention(name):
    qkv = inputs(n=24)
    approx = approximate(name, qkv, exact=9, **({"group": 4} if name == "kivi" else {}))
    first = 12 if name == "kivi" else 15  # of exact tokens: a group of 4 tokens that is not complete is exact too
    for ours, x in zip(approx.stored, (qkv.k, qkv.v), strict=True):
        assert torch.equal(ours[:, first:], x[:, first:]) and not torch.equal(ours[:, first - 1], x[:, first - 1])
    whole = approximate(name, qkv, exact=24)
    assert torch.equal(whole.output, approximate("softmax", qkv).output)


@every_format
def test_a_causal_row_reads_its_own_recent_tokens_exactly(name):
    """Row i is that of a query behind the tokens up to i, whose last ones are exact."""
    qkv = inputs(n=21).double().replace(causal=True)
    options = {"exact": 6, **({"group": 4} if name == "kivi" else {})}
    every = approximate(name, qkv, **options)
    for i in (3, 12, 20) if "whole_scale" not in get(name).tags else (20,):
        one = QKV(qkv.q[:, i : i + 1], qkv.k[:, : i + 1], qkv.v[:, : i + 1], causal=True)
        alone = approximate(name, one, **options)
        assert (alone.output[:, 0] - every.output[:, i]).abs().max() < 1e-12
        assert (alone.log_normalizer()[:, 0] - every.log_normalizer()[:, i]).abs().max() < 1e-12
    dense, x = every.operator.dense(), numbers(2, 21, 3).double()
    assert (every.operator @ x - dense @ x).abs().max() < 1e-12
    assert (every.operator.rmatmul(x) - dense.mT @ x).abs().max() < 1e-12
    assert torch.equal(every.operator.heads(slice(1, 2)).dense(), dense[1:])
    assert (every.operator.to(torch.float32).dense() - dense).abs().max() < 1e-4


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("facts", [{}, {"sliding_window": 150, "sinks": 2}])
def test_blocks_of_causal_rows_read_stored_tokens_and_then_exact_ones(facts, is_refused, monkeypatch):
    """More rows than a block has, of selected queries in any order, also where torch refuses its fused kernel."""
    qkv = inputs(n=500, h=4, kv_heads=2).double().replace(causal=True, **facts)
    stored = approximate("kivi", qkv.replace(causal=False, sliding_window=None, sinks=0), exact=0).stored
    qkv = qkv.queries(torch.randperm(500, generator=generator(0, "queries"))[:300])
    if is_refused:
        monkeypatch.setattr("attnprobe.reference.attention", lambda *inputs: (_ for _ in ()).throw(RuntimeError()))
    got = approximate("kivi", qkv, exact=40)
    first = (qkv.query_positions - 39).clamp(min=0) // 32 * 32
    exactly = torch.arange(500) >= first[:, None]
    k, v = (x.repeat_interleave(2, 0) for x in stored)
    scores = qkv.scale * torch.where(exactly, qkv.q @ qkv.k.mT, qkv.q @ k.mT)
    weights = scores.masked_fill(qkv.visible.hidden(500), -math.inf).softmax(-1)
    assert (got.output - (weights * ~exactly) @ v - (weights * exactly) @ qkv.v).abs().max() < 1e-12
    assert (got.operator.dense() - weights).abs().max() < 1e-12
    rows = torch.cat([got.operator.first_keys(i, i + 100, 500).dense() for i in (0, 100, 200)], 1)
    assert (rows - weights).abs().max() < 1e-12


def turned(x, base=100.0):
    """RoPE of pairs (i, i + p/2) at the positions of the tokens."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1])[:, None] * base ** -(torch.arange(half, dtype=F64) / half)
    a, b = x[..., :half].double(), x[..., half:].double()
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


@every_format
def test_before_rope_it_is_the_keys_without_rope_that_are_quantised(name):
    plain = inputs(n=24, p=32)
    qkv = plain.replace(k=turned(plain.k).float(), label={"rope": 100.0})
    options = {"group": 4, "exact": 0} if name == "kivi" else {}
    got = approximate(name, qkv, pre_rope=True, of="k", **options)
    expected = turned(approximate(name, plain, of="k", **options).stored[0])
    moved = (got.stored[0].double() - expected).norm(dim=-1) > 1e-4 * expected.norm(dim=-1)
    assert moved.double().mean() < 0.05  # rounding of the turns may move a number to the next code
    with pytest.raises(Unsupported, match=f"{name}: pre_rope=true needs inputs of a model with a RoPE that is known"):
        approximate(name, plain, pre_rope=True)


@pytest.mark.parametrize("name", ["turboquant", "q4_0"])
def test_a_head_of_a_group_has_the_draws_of_its_kv_head(name):
    qkv = inputs(h=6, kv_heads=2)
    every = approximate(name, qkv)
    part = approximate(name, qkv.select([4, 1]))
    assert torch.equal(part.output, every.output[[4, 1]])
    for key, value in every.draws.items():
        assert value.shape[0] == 6 and torch.equal(value[0], value[2]) and not torch.equal(value[0], value[3])
        assert torch.equal(part.draws[key], value[[4, 1]])


# what is stored


BITS = {"q8_0": 8.5, "q4_0": 4.5, "q4_1": 5.0, "q5_0": 5.5, "q5_1": 6.0, "mxfp4": 4.25, "nvfp4": 4.5}
STORED = [(name, {}, bits) for name, bits in BITS.items()]
STORED += [("kivi", {"group": 64}, 2.5), ("kivi", {"bits": 4}, 5.0), ("fp8", {"scale": "token"}, 8.5)]
STORED += [("fp8", {}, 8.0), ("turboquant", {}, 4.25), ("turboquant", {"bits": 3, "variant": "prod"}, 3.5)]


@pytest.mark.parametrize("name, options, bits", STORED)
def test_bits_of_a_number_are_those_of_the_format(name, options, bits):
    """Of 1024 tokens with 64 numbers; the scales of a head are 64 bits more."""
    entry = get(name)
    stored = entry.stored(None, {**options, "exact": 0})
    head = 64.0 if (name, options) in (("fp8", {}), ("nvfp4", {})) else 0.0
    assert stored.bits(1024, k=64, v=64, own=16) == 1024 * 128 * bits + head
    keys = entry.stored(None, {**options, "exact": 0, "of": "k"})
    assert keys.bits(1024, k=64, v=64, own=16) == 1024 * 64 * (bits + 16) + head / 2


def test_exact_tokens_incomplete_groups_and_padded_blocks_are_counted_in_full():
    assert get("kivi").stored(None, {}) == Storage(k=3.0, v=3.0, exact=128, group=32)
    kept = get("kivi").stored(None, {}).bits(300, k=64, v=64, own=16)
    assert kept == 160 * 128 * 3 + 140 * 128 * 16  # 172 tokens are not recent, and 160 in complete groups
    assert get("q4_0").stored(None, {"exact": 10}).bits(30, k=40, v=64, own=16) == 20 * 128 * 4.5 + 10 * 104 * 16
    for wrong in ({"group": 0}, {"block": 0}):
        with pytest.raises(UsageError, match="is not a finite number of at least 1"):
            Storage(**wrong)


# bad input


@every_format
def test_numbers_beyond_the_format_are_refused_in_one_line(name):
    qkv = inputs(n=32).double()
    huge = qkv.replace(v=qkv.v * 1e160)
    with pytest.raises(Unsupported, match=rf"{name}: values of up to .*e\+16. are beyond the range of its") as refused:
        approximate(name, huge, exact=0)
    assert "\n" not in str(refused.value)
    large = qkv.replace(k=qkv.k * 1e9, q=qkv.q / 1e9)
    if name in ("fp8", "nvfp4", "mxfp4"):  # whose scales are wide
        assert torch.isfinite(approximate(name, large).output).all()
        return
    with pytest.raises(Unsupported, match=rf"{name}: keys of up to .*e\+1. are beyond the range of its"):
        approximate(name, large, exact=0)


@every_format
def test_tiny_numbers_zeros_and_one_token_are_finite(name):
    for size in (0.0, 1e-300, 1e-44, 1e-38, 1e-20):
        qkv = inputs().double()
        approx = approximate(name, qkv.replace(k=qkv.k * size, v=qkv.v * size), exact=0)
        assert torch.isfinite(approx.output).all() and approx.output.abs().max() <= 60 * size + 1e-37, size
    one = approximate(name, inputs(n=1, p=3, p_v=1))
    assert one.output.shape == (2, 1, 1) and torch.isfinite(one.output).all()


@every_format
def test_options_that_contradict_are_refused(name):
    qkv = inputs()
    with pytest.raises(UsageError, match=f"{name}: exact=-1 is negative"):
        approximate(name, qkv, exact=-1)
    with pytest.raises(UsageError, match=f"{name}: pre_rope=true is of keys, and of=v quantises none"):
        approximate(name, qkv, of="v", pre_rope=True)
    with pytest.raises(UsageError, match=f"unknown value of {name}:of 'q'"):
        approximate(name, qkv, of="q")


# the mathematics of TurboQuant


def test_levels_are_means_of_their_cells_and_distortions_are_those_of_max():
    """Max 1960, table 1, to the digits that it gives; the last one of four bits is 0.009501 by any integration."""
    for bits, known in ((1, 0.3634), (2, 0.1175), (3, 0.03454), (4, 0.009497)):
        assert distortion(bits) == pytest.approx(known, rel=6e-4)
    z = torch.linspace(-10, 10, 400_001, dtype=F64)
    density = torch.exp(-z.square() / 2) / math.tau**0.5
    for bits in range(7):
        levels = torch.tensor(lloyd_max(bits), dtype=F64)
        codes = torch.bucketize(z, (levels[1:] + levels[:-1]) / 2)
        error = torch.trapezoid((z - levels[codes]).square() * density, z)
        assert float(error) == pytest.approx(distortion(bits), rel=1e-5)
        mass, mean = (torch.zeros(2**bits, dtype=F64).index_add_(0, codes, x) for x in (density, z * density))
        assert (mean / mass - levels).abs().max() < 2e-3  # the grid has 5e-5 between numbers


def test_more_bits_have_a_quarter_of_the_distortion_at_most_its_bound():
    for bits in range(1, 9):
        assert distortion(bits) <= 3**0.5 * math.pi / 2 * 4.0**-bits
        assert distortion(bits) >= 4.0**-bits


@pytest.mark.parametrize("order", [1, 2, 4, 12, 20, 64, 72, 80, 96, 128, 192, 256])
def test_a_hadamard_matrix_is_orthogonal_and_has_entries_of_one_size(order):
    matrix = hadamard(order)
    assert torch.equal(matrix @ matrix.T, order * torch.eye(order, dtype=F64)) and (matrix.abs() == 1).all()


@pytest.mark.parametrize("rotation", ["haar", "signed"])
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_error_of_a_vector_is_that_of_normal_coordinates(bits, rotation):
    """Its mean over draws is D(b) ‖x‖², up to 1/p, for any vector; a channel alone is an outlier without rotation."""
    x = torch.zeros(1, 4, 64)
    x[0, 0, 3], x[0, 1], x[0, 2], x[0, 3, ::2] = 5.0, 1.0, numbers(64), 2.0
    qkv, draws = QKV(x, x, x), 60
    errors = torch.stack(
        [
            (approximate("turboquant", qkv, bits=bits, rotation=rotation, seed=seed).stored[0] - x).square().sum(-1)[0]
            for seed in range(draws)
        ]
    )
    share = errors / x.square().sum(-1)[0]
    if rotation == "signed":  # of a channel alone every coordinate has one size
        share = share[:, 2:]
    mean, sd = share.mean(0), share.std(0) / draws**0.5
    assert (mean <= 3**0.5 * math.pi / 2 * 4.0**-bits + 4 * sd).all()
    if rotation == "haar":
        assert ((mean - distortion(bits)).abs() <= 4 * sd + 3 * distortion(bits) / 64).all()


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_inner_products_of_prod_are_unbiased_and_those_of_mse_shrink(bits):
    """Theorem 2 of Zandieh et al. 2025 has the variance ``√3 π² 4^-b ‖y‖² ‖x‖² / p``; mse shrinks by 1 - D(b)."""
    x, y, draws, p = numbers(1, 3, 64), numbers(1, 3, 64, seed=5), 400, 64
    qkv = QKV(*(one.expand(draws, -1, -1) for one in (y, x, x)))  # each head draws a rotation of its own

    def products(variant):
        stored = approximate("turboquant", qkv, bits=bits, variant=variant, of="k").stored[0]
        return (stored * y).sum(-1).double()

    true = (x * y).sum(-1)[0].double()
    size = (x.norm(dim=-1) * y.norm(dim=-1))[0].double()
    prod, mse = products("prod"), products("mse")
    near = 4 * prod.std(0) / draws**0.5
    assert ((prod.mean(0) - true).abs() <= near).all()
    assert (prod.var(0) <= 3**0.5 * math.pi**2 * 4.0**-bits * size.square() / p * 1.25).all()
    shrunk = (1 - distortion(bits)) * true
    assert ((mse.mean(0) - shrunk).abs() <= 4 * mse.std(0) / draws**0.5 + 0.02 * true.abs()).all()


def test_small_checks_are_those_of_the_twins():
    assert all(dict(get(name).small) == SMALL.get(name, {}) for name in FORMATS)
