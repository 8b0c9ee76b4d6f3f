"""Reformer's hashing with separate queries and keys: exact attention to the keys that hashing puts next to a query.

S = scale · Q Kᵀ and B = softmax(S) as in the glossary. R, n_b, c, ``rounds`` and ``d = 2 c · rounds`` as in
``reformer``. T_i is the set of keys that query i sees.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Literal

import torch
from torch import Tensor

from ...errors import Unsupported
from ...operators import Sparse
from ...operators.groups import tokens
from ...operators.linalg.hashing import bucket_counts, cross_polytope, inverse, look_back, look_back_within
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, softmax_in_place
from ..registry import DISTRIBUTIONS, register
from ..sparse_softmax import sparse_softmax
from .hashed import block_product, block_scores, check_hash, chunk_length, repeats, rotations


@register(
    name="lsh-qk",
    paper="after Kitaev, Kaiser & Levskaya, Reformer",
    year=2020,
    family="LSH",
    tags=(*DISTRIBUTIONS, "exact_at_full_budget", "causal", "local"),
    budget="at most d keys of each row: two chunks of ⌊d/(2 rounds)⌋ keys in each round, repeats dropped",
    cost="2 n d p + O(n √n p)",
    oracle="torch scaled_dot_product_attention under its mask",
    limit=lambda n_q, n_k: 4 * n_k,
    limit_name="4 n_k",
    least=4,
    validate=partial(check_hash, "lsh-qk"),
    exact_at=lambda n: (4 * n, {}),
)
def lsh_qk(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    rounds: int = 2,
    buckets: int | None = None,
    hash: Literal["angular", "smyrf"] = "angular",
) -> Approximation:
    """``B~_ij = exp(S_ij) / Σ_{j' in T_i} exp(S_ij')`` over the set ``T_i`` of keys that hashing puts next to query i.

    In each round one rotation hashes queries and keys, as in ``reformer``. Queries and keys are sorted by their hash
    (ties by position). The keys are cut into chunks of ``c = ⌊d/(2 rounds)⌋``; the last chunk may be shorter. The query
    of rank r is next to the key of rank ``⌊r n_k/n_q⌋``. It sees that key's chunk and the one before it, cyclically.
    ``T_i`` is the union over the rounds: unlike in Reformer, a key of two rounds counts once. More rounds with the same
    c add keys to ``T_i``, so the error of the unnormalised A never grows; that of B may. Exact from ``c = n_k/2`` on.
    Source: Kitaev et al. 2020, section 2, with separate Q and K; the other hash: Daras et al. 2020 (SMYRF).

    Causal or windowed: chunks must not depend on keys that a query does not see. So query i sorts only the keys that it
    sees. Its place is after the last key of its bucket, and it uses the 2c keys before that place, cyclically.

    Options:
        rounds: rounds of hashing; each takes an equal share of d.
        buckets: n_b of hash=angular, even; None as in ``reformer``, with n_k for n.
        hash: ``angular`` is Reformer's hash of directions. It ignores the lengths of keys; if all keys share a large
            common vector, most of them share a bucket. ``smyrf`` sorts by the projections on one random direction
            (E2LSH, not rounded to buckets) of ``[q, 0, √(M - ‖q‖²)]`` and ``[k, √(M - ‖k‖²), 0]``, with ``M = max
            ‖q‖² + max ‖k‖²`` of the head. These vectors keep the inner products of q and k and all have one length, so
            near vectors have large scores. A common vector shifts all projections alike, up to the change of length.

    Shapes: index and weights (h, n_q, 2 c · rounds), output (h, n_q, p_v). Draws: ``rotations`` (h, rounds, f, p), f as
    in ``reformer``, or (h, rounds, 1, p + 2) with hash=smyrf; hashing is in float64. ``visited`` counts the scores
    computed, and ``realised_d`` is the mean size of ``T_i``. Cost ``n d (p + p_v) + n f p`` and sorting; memory O(n d).

    Raises:
        Unsupported: d above 4 n_k, below 4 or below 2 · rounds; more than 2 n_k buckets (or 1024); hash=smyrf with
            causal or windowed inputs, because it needs the lengths of all keys. UsageError: rounds below 1; an odd
            number of buckets; buckets with hash=smyrf.

    >>> from attnprobe import approximate
    >>> qkv = QKV(*torch.randn(3, 1, 8, 4, generator=torch.Generator().manual_seed(0)))
    >>> (approximate("lsh-qk", qkv, 8).operator.dense() > 0).sum(-1).max() <= 8
    tensor(True)
    """
    chunk = chunk_length("lsh-qk", d, rounds, qkv.n_k)
    visible = qkv.visible
    if hash == "smyrf" and visible is not None:
        raise Unsupported("lsh-qk: hash=smyrf needs the lengths of hidden keys too; hash=angular has a masked form")
    if hash == "smyrf":
        drawn = rotations(streams, qkv, rounds, 1, qkv.p + 2)
        hashes = [drawn[:, :, 0].to(qkv.device) @ x.mT for x in _of_equal_length(qkv.q, qkv.k)]
    else:
        counts = bucket_counts(qkv.n_k, chunk, buckets)
        drawn = rotations(streams, qkv, rounds, sum(counts) // 2, qkv.p)
        hashes = [cross_polytope(x, drawn, counts) for x in (qkv.q, qkv.k)]
        if visible is not None:
            return _of_visible(qkv, look_back_within(hashes[0], hashes[1], visible, prod(counts), 2 * chunk), drawn)
    order_q, order_k = (x.argsort(dim=-1, stable=True) for x in hashes)  # (h, rounds, n)
    rank = torch.arange(qkv.n_q, device="cpu")
    chunk_of = rank * qkv.n_k // qkv.n_q // chunk  # the chunk of each rank, ascending
    sizes = torch.bincount(chunk_of, minlength=-(-qkv.n_k // chunk))  # (m,) queries of each chunk
    nth = rank - (sizes.cumsum(0) - sizes)[chunk_of]  # the place of each rank in its chunk
    widest = int(sizes.max())
    chunk_of, row_of = (x.to(qkv.device) for x in (chunk_of, chunk_of * widest + nth))  # of each rank
    ranks, of_key = inverse(order_q), inverse(order_k) // chunk  # (h, rounds, n_q), (h, rounds, n_k)
    of_query, place = chunk_of[ranks], row_of[ranks]  # chunks, like of_key; rows of the chunks' blocks
    q, scores = qkv.scale * qkv.q, []
    visited = torch.zeros(qkv.h, dtype=torch.float64, device=qkv.device)
    windows = [look_back(order, chunk) for order in order_k.unbind(1)]  # (h, m, 2 c) each
    width = windows[0].shape[-1]
    index = order_k.new_empty(qkv.h, qkv.n_q, rounds * width)
    for turn, window in enumerate(windows):
        shown = tokens(window, of_query[:, turn])  # (h, n_q, 2 c)
        visited += (shown >= 0).sum((1, 2))
        for earlier in range(turn):
            of_shown = torch.gather(of_key[:, earlier], 1, shown.clamp(min=0).flatten(1)).view_as(shown)
            # A key that its chunk showed in an earlier round is dropped by chunk numbers: to sort each row costs more.
            back = (of_query[:, earlier, :, None] - of_shown) % len(sizes)
            shown = shown.masked_fill(back <= 1, -1)  # these keys are in an earlier round
        queries = torch.full((qkv.h, len(sizes) * widest), -1, device=qkv.device)
        queries[:, row_of] = order_q[:, turn]
        block = block_scores(q, qkv.k, queries.unflatten(1, (-1, widest)), window)  # (h, m, w, 2 c)
        index[..., turn * width : (turn + 1) * width] = shown
        scores.append(tokens(block.flatten(1, 2), place[:, turn]))
    # Tensors of n · d numbers are freed as soon as they are used: at a long text each is gigabytes.
    del shown
    logit = torch.cat(scores, 2)  # (h, n_q, 2 c · rounds)
    del scores
    weights = softmax_in_place(logit.masked_fill_(index < 0, float("-inf")))
    output = qkv.v.new_zeros(qkv.h, qkv.n_q, qkv.p_v)
    for turn, (window, part) in enumerate(zip(windows, weights.chunk(rounds, 2), strict=True)):
        output = output + block_product(part, place[:, turn], widest, window, qkv.v)
    distinct = (index >= 0).sum((1, 2)).double()
    diagnostics = {"realised_d": distinct / qkv.n_q, "visited": visited}
    return Approximation(Sparse(index, weights, qkv.n_k), output, draws={"rotations": drawn}, diagnostics=diagnostics)


def _of_visible(qkv: QKV, shown: Tensor, drawn: Tensor) -> Approximation:
    """The masked form, from the keys (h, rounds, n_q, 2 c) that each round shows to a query."""
    visited = (shown >= 0).sum((1, 2, 3)).double().cpu()
    index = shown.transpose(1, 2).flatten(2)  # (h, n_q, 2 c · rounds)
    index = index.masked_fill(repeats(index), -1)
    operator, log_normalizer = sparse_softmax(qkv, index)
    diagnostics = {"realised_d": (index >= 0).sum((1, 2)).double().cpu() / qkv.n_q, "visited": visited}
    return Approximation.of(
        operator, qkv, draws={"rotations": drawn}, diagnostics=diagnostics, log_normalizer=log_normalizer
    )


def _of_equal_length(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """``[q, 0, √(M - ‖q‖²)]`` and ``[k, √(M - ‖k‖²), 0]``, (h, n, p + 2) float64, all of length √M."""
    q, k = q.double(), k.double()
    q_square, k_square = (x.square().sum(-1, keepdim=True) for x in (q, k))  # (h, n, 1)
    total = q_square.amax(1, keepdim=True) + k_square.amax(1, keepdim=True)
    q_rest, k_rest = (total - q_square).sqrt(), (total - k_square).sqrt()
    return torch.cat([q, torch.zeros_like(q_rest), q_rest], -1), torch.cat([k, k_rest, torch.zeros_like(k_rest)], -1)
