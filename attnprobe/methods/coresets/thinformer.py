"""Thinformer (Carrell et al. 2025): attention to a coreset of keys of equal weights, chosen by kernel halving.

n₀ is the largest power of four up to n_k, S the size of a bucket of keys, and g the paper's oversampling: it selects
``2^g √n₀`` keys.
"""

from __future__ import annotations

from math import log

import torch
from torch import Tensor

from ...approximation import Sampling
from ...errors import UsageError
from ...operators import Columns
from ...operators.groups import tokens
from ...operators.linalg.coresets import halved
from ...operators.linalg.norms import unit_of
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, per_head
from ..registry import DISTRIBUTIONS, KEYS, register
from ..summary import Summary, dyadic


def _check(target: str, *, delta: float) -> None:
    if not 0 < delta < 1:
        raise UsageError(f"thinformer: delta={delta:g} is not a probability above 0 and below 1")


@register(
    name="thinformer",
    paper="Carrell et al., Thinformer: low-rank thinning",
    year=2025,
    family="sampling",
    tags=(*DISTRIBUTIONS, "uses_values", "causal", "decodes"),
    budget="d keys, rounded down to a power of two",
    cost="2 n d p + O(d² p)",
    oracle="unbiased normalisers for n a power of four; inclusion frequencies; the authors' steps",
    **KEYS,
    validate=_check,
)
def thinformer(qkv: QKV, d: int, *, streams: Streams, target: str = "softmax", delta: float = 0.5) -> Approximation:
    """``B~_ij = exp(S_ij) / Σ_{l in J} exp(S_il)`` for the keys j of a coreset J, with equal weights.

    Standard thinning selects every ``⌊n_k/n₀⌋``-th of n_k keys, n₀ keys in all. If n_k is not a power of four, the last
    keys are never used. Then there are rounds of kernel halving. A round halves every bucket of consecutive keys. The
    buckets of the first round have ``4^(g+1)`` keys; their size doubles in each round, so the last round has one
    bucket. The kernel is ``exp(s k·k') (v·v' + b²)``, ``b = max |v|``. Source: Carrell et al. 2025 (KH-Compress), and
    their code.

    A fair coin exchanges the halves of each bucket, so each of the n₀ keys is in J with probability ``d/n₀``. So ``D~ =
    (n_k/d) Σ_J exp(S_ij)`` is unbiased if n_k = n₀. Their code has one coin for all buckets and heads.

    The number of used keys is d, rounded down to a power of two, and at most n₀. The paper has ``d = 2^g √n₀``. For a d
    below ``√n₀`` more rounds halve all remaining keys.

    Options:
        delta: the paper's failure probability. Halving S keys has ``δ_S = δ S² / (4^(g+1) · rounds · n₀)``.

    Shapes: weights (h, n_q, d) in the Q/K/V's dtype; kernels and choices in float64. Draws: ``halving_numbers`` (h, u)
    from [0, 1): in each round one for each pair of keys, then one for each bucket. The operator depends on V through
    the selection. Cost ``2 n d p`` for the attention, and ``4 d²`` entries of kernels in each round.

    Causal inputs have the form of `methods.summary.dyadic`: exact attention to the query's own leaf of ``2 d`` keys,
    and a coreset of d keys of each earlier block.

    Raises:
        Unsupported: d above n_k. UsageError: ``delta`` outside its range.
    """
    if qkv.causal:
        return dyadic(qkv, d, streams, lambda block, own: _summarised(block, d, own, delta))
    index, numbers = _chosen(qkv, d, streams, delta)
    scores = qkv.scale * qkv.q @ tokens(qkv.shared_k, index).mT
    used = index.shape[1]
    thinned = len(_thinned(qkv.n_k))
    inclusion = 0.0 if qkv.n_k > thinned else used / thinned
    rows = torch.ones(qkv.h, qkv.n_q, dtype=torch.float64, device=qkv.device)
    return Approximation.of(
        Columns(torch.softmax(scores, -1), index, qkv.n_k),
        qkv,
        draws={"halving_numbers": numbers},
        diagnostics={"realised_d": per_head(qkv.h, used), "visited": per_head(qkv.h, used * qkv.n_q)},
        log_normalizer=lambda: scores.double().logsumexp(-1) + log(qkv.n_k / used),
        sampling=Sampling(ess=used * rows, inclusion=inclusion * rows),
    )


def _chosen(qkv: QKV, d: int, streams: Streams, delta: float) -> tuple[Tensor, Tensor]:
    """The keys of the coreset (h, d'), and the numbers that chose them."""
    thinned = _thinned(qkv.n_k)
    rounds = _rounds(len(thinned), d, delta)
    count = sum(size // 2 * buckets + buckets for size, buckets, _ in rounds)
    of_heads = [streams.head(head, "halving") for head in qkv.heads]
    numbers = torch.stack(
        [torch.rand(count, generator=generator, dtype=torch.float64, device="cpu") for generator in of_heads]
    )
    index = thinned.to(qkv.device).expand(qkv.h, -1)
    return _coreset(qkv, index, rounds, numbers.to(qkv.device)), numbers


def _summarised(qkv: QKV, d: int, streams: Streams, delta: float) -> tuple[Summary, dict[str, Tensor]]:
    """The coreset with equal weights, as a summary of all keys."""
    index, numbers = _chosen(qkv, d, streams, delta)
    landmarks = tokens(qkv.k, index).double()
    bias = torch.full_like(landmarks[..., 0], log(qkv.n_k / index.shape[1]))
    right = torch.nn.functional.one_hot(index, qkv.n_k).double()
    summary = Summary(landmarks, bias, [], right, torch.ones_like(bias))
    return summary, {"halving_numbers": numbers}


def _thinned(n_k: int) -> Tensor:
    """The keys of standard thinning, (n₀,)."""
    count = 4 ** ((n_k.bit_length() - 1) // 2)
    step = n_k // count
    return torch.arange(0, count * step, step, device="cpu")


def _rounds(count: int, d: int, delta: float) -> list[tuple[int, int, float]]:
    """The rounds of halving from n₀ keys to the largest power of two up to d: size of a bucket, buckets, δ of each."""
    last = min(count, 2 ** (d.bit_length() - 1))
    number = (count // last).bit_length() - 1
    root = round(count**0.5)
    first = 4 * max(1, last // root) ** 2  # 4^(g+1)
    rounds = []
    for index in range(number):
        left = count // 2**index
        size = min(left, first * 2**index)
        rounds.append((size, left // size, delta * size**2 / (first * number * count)))
    return rounds


def _coreset(qkv: QKV, index: Tensor, rounds: list[tuple[int, int, float]], numbers: Tensor) -> Tensor:
    """The keys of ``index`` (h, n₀) that are left after all rounds, (h, d')."""
    k = tokens(qkv.shared_k, index).double().detach()
    v = tokens(qkv.shared_v, index).double().detach()
    v = v / unit_of(v, 2)  # the choice does not depend on their unit
    kept = torch.arange(index.shape[1], device=index.device).expand_as(index)
    # By Cauchy and Schwarz no exponent is above this, so nothing overflows.
    shift = qkv.scale * k.square().sum(-1).amax(-1)[:, None, None, None]  # a factor of the kernel, which cancels
    bound = v.abs().amax((1, 2)).square()[:, None, None, None]  # b²
    used = 0
    for size, buckets, delta in rounds:
        parts = [tokens(x, kept).unflatten(1, (buckets, size)) for x in (k, v)]  # (h, buckets, S, p)
        kernel = (qkv.scale * parts[0] @ parts[0].mT - shift).exp() * (parts[1] @ parts[1].mT + bound)
        pairs = size // 2 * buckets
        uniform = numbers[:, used : used + pairs].unflatten(1, (buckets, size // 2))
        coin = numbers[:, used + pairs : used + pairs + buckets]
        taken = halved(kernel, uniform, coin, delta)  # (h, buckets, S/2)
        kept = kept.unflatten(1, (buckets, size)).gather(2, taken).flatten(1)
        used += pairs + buckets
    return index.gather(1, kept)
