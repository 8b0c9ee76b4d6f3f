"""Informer (Zhou et al. 2021): ProbSparse attention, with exact rows for the queries farthest from uniform attention.

M(q_i) is the paper's sparsity measurement, M̂ its estimate from sampled keys. L_Q, L_K are our n_q, n_k. u is the
number of exact rows, ``sample_k`` the number of sampled keys per query. Our d is both.
"""

from __future__ import annotations

from functools import partial
from math import ceil, log
from typing import Literal

import torch
from torch import Tensor

from ...operators import RankOne, RowOverride, SoftmaxAttention
from ...operators.blocks import block_rows, row_blocks
from ...operators.groups import tokens
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, per_head
from ..registry import DISTRIBUTIONS, register

BLOCK_ENTRIES = 2**19  # numbers of gathered keys in memory at a time: they fit in the cache
GATHERED = 8  # keys whose products with a query take as long as one whose numbers are gathered


@register(
    name="informer",
    paper="Zhou et al., Informer",
    year=2021,
    family="sampling",
    tags=(*DISTRIBUTIONS, "permutation_equivariant", "exact_at_full_budget"),
    budget="d exact rows, chosen by d sampled keys per query",
    cost="3 n d p",
    oracle="transformers InformerProbSparseAttention",
    limit=lambda n_q, n_k: n_q,
    limit_name="n_q",
    exact_at=lambda n: (n, {}),
)
def informer(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    measure: Literal["max-mean", "log-ratio"] = "max-mean",
    authors_factor: bool = False,
    share_heads: bool = False,
) -> Approximation:
    """``B~ = (1/n_k) 1 1ᵀ`` with the rows of the u queries of largest ``M̂`` replaced by those of B.

    Each query draws ``sample_k`` keys, uniform with replacement. Over this sample ``M̂_i = max_j q_i·k_j - (1/n_k) Σ_j
    q_i·k_j``. The outputs of the other queries are the mean of V. Source: Zhou et al. 2021, equation 4 and Algorithm 1
    (in its appendix). The sum is divided by n_k and not by the size of the sample, as in the authors' code: the paper
    counts pairs that were not drawn as zero. Scores are not scaled, which does not change their order. The choice is
    that of M̂ in float64 for every dtype. Before that, M̂ in float32 with a bound of its rounding excludes most
    queries.

    Options:
        measure: ``max-mean`` is the M̂ above. ``log-ratio`` is the quantity that it approximates, the logarithm of the
            arithmetic over the geometric mean of the sampled entries of A: ``M̂_i = ln((1/sample_k) Σ_j exp(s q_i·k_j))
            - (1/sample_k) Σ_j s q_i·k_j``. The paper's equation 2 has a sum for the first mean, which adds a constant.
        authors_factor: the authors' sizes, ``u = f ⌈ln n_q⌉`` and ``sample_k = f ⌈ln n_k⌉`` with ``f = ⌈d / ln n⌉``,
            n the larger of n_q and n_k. They are at most n_q and n_k, so u = 21 for d = 16 at n = 512. Otherwise both
            are d.
        share_heads: the same sampled keys for all heads, as in the authors' code; otherwise each head draws its own.

    Adding one vector c to every key can change the choice of rows with ``max-mean`` (M̂_i changes by ``(1 -
    sample_k/n_k) q_i·c``), not with ``log-ratio``. With a padding mask, keys are sampled and V is averaged over the
    valid tokens (Chen et al. 2022, Skeinformer, section 4.4). Without one, padding counts as tokens, as in the paper.

    Shapes: output (h, n_q, p_v), in the Q/K/V's dtype. Draws: ``sampled_keys`` (h, n_q, sample_k) with repeats;
    ``top_queries`` (h, u), the exact rows by descending M̂, ties by position. Cost ``3 n d p``; memory O(n d) for the
    draws. ``visited`` counts the sampled scores and the exact rows of this definition. Up to ``n_k = 8 sample_k`` all
    scores are computed to find the sampled ones, which takes less time than to gather their keys.

    Raises:
        Unsupported: d above n_q.
    """
    u, sample_k = _sizes(d, qkv.n_q, qkv.n_k) if authors_factor else (d, d)
    sampled = torch.empty(qkv.h, qkv.n_q, sample_k, dtype=torch.int64, device="cpu")
    for row, head in enumerate(qkv.heads):
        stream = (streams.shared if share_heads else partial(streams.head, head))("sampled_keys")
        sampled[row] = torch.randint(qkv.n_k, (qkv.n_q, sample_k), generator=stream, device="cpu")
    rows = _top(qkv, sampled, measure, u)
    draws = {"sampled_keys": sampled, "top_queries": rows.cpu()}
    ones = torch.ones(qkv.h, qkv.n_q, dtype=qkv.dtype, device=qkv.device)
    mean = torch.full((qkv.h, qkv.n_k), 1 / qkv.n_k, dtype=qkv.dtype, device=qkv.device)
    operator = RowOverride(RankOne(ones, mean), rows, SoftmaxAttention(tokens(qkv.q, rows), qkv.shared_k, qkv.scale))
    diagnostics = {"realised_d": per_head(qkv.h, u), "visited": per_head(qkv.h, sample_k * qkv.n_q + u * qkv.n_k)}
    return Approximation.of(operator, qkv, draws=draws, diagnostics=diagnostics)


def _sizes(d: int, n_q: int, n_k: int) -> tuple[int, int]:
    """The authors' numbers of exact rows and of sampled keys per query.

    >>> [_sizes(d, 512, 512)[0] for d in (16, 32, 64)]
    [21, 42, 77]
    """
    factor = ceil(d / log(max(n_q, n_k, 2)))
    queries, keys = (min(n, max(1, factor * ceil(log(n)))) for n in (n_q, n_k))
    return queries, keys


def _top(qkv: QKV, sampled: Tensor, measure: str, u: int) -> Tensor:
    """The u queries of largest M̂ of each head, (h, u) int64, by descending M̂, ties by position.

    Only queries that may be among them by M̂ in float32, with a bound of its error, are computed in float64.
    """
    q, k = qkv.q.detach(), qkv.k.detach()  # a choice of rows has no gradient
    sampled = sampled.to(q.device)
    near = _near(q.float(), k.float(), sampled, qkv.scale, measure)
    error = _error(q, k, sampled.shape[2], qkv.scale, measure)
    least = (near - error).topk(u).values[:, -1:]  # u queries have at least this M̂
    rows = (~(near + error < least)).flatten().nonzero()[:, 0]  # NaN may be anything; the only wait for a GPU
    exact = near.new_full((qkv.h * qkv.n_q,), float("-inf"), dtype=torch.float64)
    exact[rows] = _gathered(q.double(), k.double(), sampled, rows, qkv.scale, measure)
    return exact.view(qkv.h, qkv.n_q).sort(descending=True, stable=True).indices[:, :u]


def _error(q: Tensor, k: Tensor, sample_k: int, scale: float, measure: str) -> Tensor:
    """A bound of the rounding of M̂ of every query in float32, (h, n_q): dot products of p terms, sums of sample_k."""
    largest = q.float().norm(dim=-1) * k.float().norm(dim=-1).amax(-1, keepdim=True)  # of a product
    if measure == "max-mean":
        size = largest * (1 + sample_k / k.shape[1])
    else:
        size = 2 * scale * largest + log(sample_k) + 1
    return torch.finfo(torch.float32).eps * (q.shape[2] + sample_k + 8) * size


def _near(q: Tensor, k: Tensor, sampled: Tensor, scale: float, measure: str) -> Tensor:
    """M̂ of all queries, (h, n_q), as for `_gathered`: from products with all keys where that is faster."""
    (h, n_q, _), n_k = q.shape, k.shape[1]
    if n_k > GATHERED * sampled.shape[2]:
        return _gathered(q, k, sampled, None, scale, measure).view(h, n_q)
    parts = []
    for start, stop in row_blocks(n_q, block_rows(q, h * n_k, max(1, BLOCK_ENTRIES // (h * n_k)))):
        products = q[:, start:stop] @ k.mT  # (h, b, n_k)
        parts.append(_measure(products.gather(2, sampled[:, start:stop]), n_k, scale, measure))
    return torch.cat(parts, 1)


def _gathered(q: Tensor, k: Tensor, sampled: Tensor, rows: Tensor | None, scale: float, measure: str) -> Tensor:
    """M̂ in the dtype of q (h, n_q, p) and k (h, n_k, p), from ``sampled`` (h, n_q, sample_k), as a vector.

    Of ``rows`` (m,), where the queries of all heads are numbered one after another; None is all of them.
    """
    (h, n_q, p), n_k, entries = q.shape, k.shape[1], sampled.shape[2] * q.shape[2]
    q, k, sampled = (x.flatten(0, 1) for x in (q, k, sampled))
    first_key = (n_k * torch.arange(h, device=q.device)).repeat_interleave(n_q)[:, None]  # of each query's head
    out = q.new_empty(len(q) if rows is None else len(rows))
    for start, stop in row_blocks(len(out), block_rows(q, entries, max(1, BLOCK_ENTRIES // entries))):
        some = slice(start, stop) if rows is None else rows[start:stop]
        index = sampled[some] + first_key[some]  # (b, sample_k)
        keys = k.index_select(0, index.flatten()).view(*index.shape, p)
        products = (q[some, None] @ keys.mT)[:, 0]  # (b, sample_k); keys times a column takes four times as long
        out[start:stop] = _measure(products, n_k, scale, measure)
    return out


def _measure(products: Tensor, n_k: int, scale: float, measure: str) -> Tensor:
    """M̂ of queries, (…,), from their products with sampled keys, (…, sample_k)."""
    if measure == "max-mean":
        return products.amax(-1) - products.sum(-1) / n_k
    scores = scale * products
    return scores.logsumexp(-1) - log(scores.shape[-1]) - scores.mean(-1)
