"""HyperAttention (Han et al. 2024): exact blocks of a sorted hash, and uniformly sampled keys for all other keys."""

from __future__ import annotations

from functools import partial

import torch

from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation
from ..registry import DISTRIBUTIONS, KEYS, register
from .sorted_blocks import SortedBlocks, block_and_sample, check_blocks


@register(
    name="hyper",
    paper="Han et al., HyperAttention",
    year=2024,
    family="LSH",
    tags=(*DISTRIBUTIONS, "exact_at_full_budget"),
    budget="d keys a row: a block of a sorted hash, and sampled keys",
    cost="2 n d p + 14 n p",
    oracle="unbiased normalisers; inclusion frequencies; exact at one block",
    **KEYS,
    least=2,
    validate=partial(check_blocks, "hyper"),
    exact_at=lambda n: (n, {"block": 1.0}),
)
def hyper(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    bits: int = 7,
    block: float = 0.5,
    count_twice: bool = False,
) -> Approximation:
    """``B~_ij = w_ij exp(S_ij) / D~_i``: ``w = 1`` in the block of row i, ``c_j n_k/s`` for sampled keys outside.

    Queries and keys are sorted by the signs of r random projections, in the order of a Gray code, in which neighbouring
    buckets differ in one sign. The sorted keys are cut into blocks of b keys, and the sorted queries into the same
    number of blocks. A block of queries attends exactly to the block of keys at its place. All other keys are estimated
    from s keys of the head, drawn uniformly with replacement; c_j is the number of draws of key j. So ``E[w_ij] = 1``,
    D~ and N~ are unbiased, and ``Var(D~) = n_k² σ²/s``. Here σ² is the variance over all keys of ``exp(S_ij)``, with 0
    for keys of the block. ``b + s = d``. Source: Han et al. 2024, and their code.

    Options:
        bits: r. The paper's code has 7.
        block: share of d for b; the rest is s.
        count_twice: sampled keys in the block count too, as in the authors' code on a GPU. D~ is then biased upwards.

    The authors' code uses the Gray code of a bucket as its place in the order, so some neighbours differ in two signs.
    Below 4096 tokens it is exact. It treats causal inputs by recursive halving.

    Shapes: weights (h, n_q, b) and (h, n_q, s) in the Q/K/V's dtype, scores in float64 for their sums. Draws:
    ``rotations`` (h, 1, r, p), ``columns`` (h, s). It states ess, the inclusion probability ``1 - (1 - 1/n_k)^s`` of
    keys outside of the block, and the variance of D~ over D~² from the sample. Cost ``2 n d p``, and ``2 n r p`` for
    the hashes; memory O(n d).

    Raises:
        Unsupported: d below 2 or above n_k. UsageError: options outside their ranges.

    >>> from attnprobe import approximate
    >>> qkv = QKV(*torch.randn(3, 1, 64, 4, generator=torch.Generator().manual_seed(0)))
    >>> approximate("hyper", qkv, 16).operator.row_sums().sum().round()
    tensor(64.)
    """
    size = max(1, int(block * d))
    blocks = SortedBlocks.of(qkv, size, bits, streams)
    drawn = [
        torch.randint(qkv.n_k, (d - size,), generator=streams.head(head, "columns"), device="cpu") for head in qkv.heads
    ]
    uniform = torch.full((qkv.h, qkv.n_k), 1 / qkv.n_k, dtype=torch.float64, device=qkv.device)
    return block_and_sample(qkv, blocks, torch.stack(drawn), uniform, count_twice)
