"""The cases of the packs: real heads of packaged models, and hard inputs from whole numbers.

A pack has the same bytes on every machine. Random numbers are sums of hashed whole numbers, which no order of sums
changes. Real heads come from a forward pass in float64 and are rounded to half precision: two machines differ by some
1e-15, and the chance that this moves a number over the middle between two others is below 1e-4 for a pack.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from math import prod, sqrt

import torch
from torch import Tensor

from ...errors import unknown
from ...inputs.packaged import MINILM
from ...rng import Streams, hashed_integers
from .case import Case
from .pack import Pack

PACKS = ("smoke", "full")
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
SHORT = {F32: "fp32", F16: "fp16", BF16: "bf16"}
UNIFORM = 12  # uniform numbers whose sum is nearly normal, with variance 1
BITS = 16  # of each


@dataclass(frozen=True)
class Hard:
    """The shape and the trap of one family of hard inputs.

    Attributes:
        n_q, n_k: the numbers of queries and keys; n_q = None is as many. h, h_kv, p, p_v: heads, KV heads, dimensions.
        causal, window, sink_tokens, softcap: see `Case`. sinks: the scores of the sinks of the heads, in turn.
        scale: times 1/√p. scores: a factor on the scores. offset: what is added to every score.
        spread: whether queries stand at scattered positions. length: keys before the padding.
        keys: ``ties``, all equal; ``peaks``, for each query a key with all of its weight. largest: V has the largest
            finite number of its dtype at one key of each head.
        dtypes: a case for each. smoke: those that are in the small pack too.
    """

    n_k: int = 128
    n_q: int | None = None
    h: int = 2
    h_kv: int = 1
    p: int = 64
    p_v: int | None = None
    causal: bool = True
    window: int | None = None
    sink_tokens: int = 0
    softcap: float | None = None
    sinks: tuple[float, ...] = ()
    scale: float = 1.0
    scores: float = 1.0
    offset: float = 0.0
    spread: bool = False
    length: int | None = None
    keys: str = ""
    largest: bool = False
    dtypes: tuple[torch.dtype, ...] = (BF16, F16)
    smoke: tuple[torch.dtype, ...] = field(default=())


ALL = (F32, F16, BF16)
HARD = {
    "causal": Hard(n_k=130, dtypes=ALL, smoke=(F32, BF16)),
    "causal-long": Hard(n_k=520, dtypes=(F16, BF16)),
    "full": Hard(n_k=100, causal=False, smoke=(F16,)),
    "full-odd-length": Hard(n_k=257, causal=False, h=3, h_kv=3, dtypes=ALL),
    "one-query": Hard(n_q=1, n_k=200, smoke=(BF16,), dtypes=ALL),
    "one-query-long": Hard(n_q=1, n_k=2049),
    "five-queries": Hard(n_q=5, n_k=133, smoke=(F16,), dtypes=ALL),
    "chunk": Hard(n_q=48, n_k=150, smoke=(BF16,), dtypes=ALL),
    "chunk-windowed": Hard(n_q=48, n_k=150, window=32, smoke=(F16,)),
    "more-queries-than-keys": Hard(n_q=96, n_k=40, causal=False),
    "scattered-positions": Hard(n_q=24, n_k=144, spread=True, smoke=(BF16,)),
    "length-1": Hard(n_k=96, causal=False, length=1),
    "length-63": Hard(n_k=96, length=63, smoke=(F16,)),
    "length-64": Hard(n_k=96, causal=False, length=64),
    "length-65": Hard(n_k=128, causal=False, length=65, smoke=(BF16,), dtypes=ALL),
    "length-127": Hard(n_k=128, length=127),
    "decode-length-77": Hard(n_q=1, n_k=128, causal=False, length=77),
    "window-1": Hard(n_k=100, window=1),
    "window-16": Hard(n_k=130, window=16, smoke=(BF16,), dtypes=ALL),
    "window-64": Hard(n_k=200, window=64),
    "window-all-but-one": Hard(n_k=130, window=129, smoke=(F32,), dtypes=ALL),
    "window-all": Hard(n_k=130, window=130),
    "window-both-sides": Hard(n_k=130, window=24, causal=False, smoke=(F16,)),
    "window-sink-tokens": Hard(n_k=130, window=16, sink_tokens=4, smoke=(BF16,)),
    "sinks-decide": Hard(n_k=96, h=4, h_kv=2, p=32, sinks=(6.0, 1.0), smoke=(BF16,), dtypes=ALL),
    "sinks-weak": Hard(n_k=96, h=4, h_kv=2, p=32, sinks=(-4.0, 0.0)),
    "sinks-windowed": Hard(n_k=130, window=16, sinks=(4.0, 2.0)),
    "softcap": Hard(n_k=100, softcap=2.0, scores=4.0, smoke=(BF16,), dtypes=ALL),
    "scores-4": Hard(n_k=130, scores=4.0, smoke=(F16,), dtypes=ALL),
    "scores-16": Hard(n_k=130, scores=16.0),
    "scores-near-minus-50000": Hard(n_k=96, offset=-5e4, smoke=(BF16,), dtypes=ALL),
    "scores-near-minus-90000": Hard(n_k=96, offset=-9e4, dtypes=ALL),
    "scores-near-300": Hard(n_k=96, offset=300.0, smoke=(F16,), dtypes=ALL),
    "scores-near-40000": Hard(n_k=96, offset=4e4),
    "one-key-has-all": Hard(n_k=130, keys="peaks", smoke=(BF16,), dtypes=ALL),
    "ties": Hard(n_k=160, keys="ties", causal=False, smoke=(F16,), dtypes=ALL),
    "ties-long": Hard(n_q=8, n_k=1500, keys="ties", dtypes=ALL),
    "largest-value": Hard(n_k=96, largest=True, dtypes=(F16, BF16), smoke=(F16,)),
    "own-heads": Hard(n_k=96, h=3, h_kv=3, p=32, smoke=(BF16,)),
    "grouped-8-on-2": Hard(n_k=96, h=8, h_kv=2, p=32, dtypes=ALL, smoke=(F16,)),
    "grouped-6-on-3": Hard(n_k=96, h=6, h_kv=3, p=32),
    "head-size-40": Hard(n_k=96, p=40),
    "head-size-80": Hard(n_k=96, p=80),
    "head-size-96-values-64": Hard(n_k=96, p=96, p_v=64, smoke=(BF16,)),
    "head-size-128": Hard(n_k=130, p=128, dtypes=ALL),
    "head-size-192-values-128": Hard(n_k=96, p=192, p_v=128),
    "head-size-256": Hard(n_k=96, p=256, dtypes=ALL),
    "scale-2": Hard(n_k=96, scale=2.0, dtypes=ALL, smoke=(F32,)),
    "scale-tenth": Hard(n_k=96, scale=0.1),
}


@dataclass(frozen=True)
class Real:
    """Heads of MiniLM on the packaged text: the layer, the heads, the numbers of keys and queries, and whether causal.

    Its forward in float64 is float64 throughout. That of Llama and others computes norms and RoPE in float32, so that a
    few of thousands of its numbers differ between processors.
    """

    layer: int
    heads: tuple[int, ...]
    n: int
    n_q: int | None = None
    causal: bool = False
    smoke: bool = False


REAL = {
    "minilm-layer-0": Real(0, (1, 7), 192),
    "minilm-layer-3": Real(3, (0, 5), 128, smoke=True),
    "minilm-layer-5": Real(5, (2, 11), 250),
    "minilm-layer-0-causal": Real(0, (3, 8), 250, causal=True),
    "minilm-layer-3-causal": Real(3, (4, 9), 160, causal=True, smoke=True),
    "minilm-layer-5-causal": Real(5, (0, 6), 192, causal=True),
    "minilm-layer-3-one-query": Real(3, (2, 7), 300, n_q=1),
    "minilm-layer-5-chunk": Real(5, (4, 9), 300, n_q=40, causal=True),
}


def made(name: str) -> Pack:
    """The pack of a name of `PACKS`.

    Raises:
        UsageError: an unknown name. SourceError: the packaged model is not installed.
    """
    if name not in PACKS:
        raise unknown("pack", name, PACKS)
    small = name == "smoke"
    return Pack(name, [*hard_cases(small), *real_cases(small)])


def hard_cases(small: bool) -> Iterator[Case]:
    for family, hard in HARD.items():
        for dtype in hard.smoke if small else hard.dtypes:
            yield hard_case(f"{family}.{SHORT[dtype]}", hard, dtype)


def hard_case(name: str, hard: Hard, dtype: torch.dtype) -> Case:
    """The case of some hard inputs in a dtype."""
    n_q, p_v = hard.n_q or hard.n_k, hard.p_v or hard.p
    q = normal(f"{name}.q", hard.h, n_q, hard.p) * hard.scores**0.5
    k = normal(f"{name}.k", hard.h_kv, hard.n_k, hard.p) * hard.scores**0.5
    v = normal(f"{name}.v", hard.h_kv, hard.n_k, p_v)
    scale = hard.scale / sqrt(hard.p)
    if hard.keys == "ties":
        k = k[:, :1].expand_as(k).clone()
    if hard.keys == "peaks":  # the key of query i is that of a query of the group, six times as long
        # 7 divides no n_k here, so this is a permutation, and few queries have their key at their own place
        order = torch.arange(hard.n_k) * 7 % hard.n_k
        k = 6 * q[:: hard.h // hard.h_kv, order]
    if hard.offset:  # one coordinate adds the same to all scores; powers of two keep it exact in every dtype
        q[..., 0], k[..., 0] = 512.0, _rounded_to_power(hard.offset / (512.0 * scale))
    if hard.largest:
        v[:, 3] = torch.where(v[:, 3] > 0, 1.0, -1.0) * torch.finfo(dtype).max
    first = hard.n_k - n_q if hard.causal else 0
    # queries beyond the last key stand at it
    positions = torch.arange(first, first + n_q).clamp(max=hard.n_k - 1)
    if hard.spread:
        positions = torch.arange(n_q) * 5 + torch.arange(n_q) % 3
    seen = None
    if hard.length is not None:
        seen = torch.arange(hard.n_k) < hard.length
        k[:, ~seen], v[:, ~seen] = 7.0, 1e4  # what a kernel that reads padding cannot miss
    sinks = torch.tensor([sink for _, sink in zip(range(hard.h), cycle(hard.sinks), strict=False)])
    return Case(
        name,
        *(x.to(dtype).contiguous() for x in (q, k, v)),
        scale=scale,
        positions=positions,
        causal=hard.causal,
        window=hard.window,
        sink_tokens=hard.sink_tokens,
        sink_logits=sinks.float() if hard.sinks else None,
        softcap=hard.softcap,
        keys_seen=seen,
    )


def normal(name: str, *shape: int) -> Tensor:
    """Nearly normal numbers with variance 1, the same bits on every machine: sums of 12 uniform numbers of 16 bits."""
    keys = torch.tensor([Streams(0, "pack").key(0, name)])
    numbers = hashed_integers(keys, UNIFORM // 3 * prod(shape))[0].view(-1, UNIFORM // 3)
    # of the 53 random bits of an integer, three numbers of 16 bits; whole numbers add up alike in every order
    parts = [(numbers >> BITS * part) & (2**BITS - 1) for part in range(3)]
    total = torch.stack(parts).sum((0, -1))
    return ((2 * total - UNIFORM * (2**BITS - 1)).double() * 2.0 ** -(BITS + 1)).view(shape)


def _rounded_to_power(value: float) -> float:
    """A number with eight significant bits near a value."""
    return float(torch.tensor(value).to(BF16))


def real_cases(small: bool) -> Iterator[Case]:
    """The cases of real heads, in bfloat16, float16 and float32 in turn."""
    from ...inputs import SourceSpec, resolve

    source = resolve(SourceSpec(model=MINILM, text="embedded", dtype="float64", device="cpu", cache=False))
    for (name, real), dtype in zip(REAL.items(), cycle((BF16, F16, F32)), strict=False):
        if small and not real.smoke:
            continue
        [qkv] = source.qkv(real.n, [real.layer], 0).values()
        part = qkv.select(real.heads)
        first = real.n - (real.n_q or real.n)
        yield Case(
            f"{name}.{SHORT[dtype]}",
            # float16 first, also for float32: the rounding hides the last bits, in which processors differ
            *(x.to(F16).to(dtype).contiguous() for x in (part.q[:, first:], part.shared_k, part.shared_v)),
            scale=part.scale,
            positions=torch.arange(first, real.n),
            causal=real.causal,
        )
