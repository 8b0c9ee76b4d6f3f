"""Reformer (Kitaev et al. 2020): tokens sorted by a hash of their queries attend to their chunk and the one before.

q_i are the queries, and the keys are ``k_i = q_i / ‖q_i‖`` (shared QK). R is the rotation of a round of hashing, n_b
its number of buckets, c the chunk length. ``rounds`` is the paper's n_rounds, and ``d = 2 c · rounds``.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Literal

import torch
from torch import Tensor

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
    name="reformer",
    paper="Kitaev, Kaiser & Levskaya, Reformer",
    year=2020,
    family="LSH",
    tags=(*DISTRIBUTIONS, "causal", "local", "own_scale"),
    budget="d slots of each row: two chunks of ⌊d/(2 rounds)⌋ tokens in each round, repeats counted",
    cost="2 n d p + O(n √n p)",
    oracle="transformers LSHSelfAttention, reformer-pytorch LSHAttention",
    limit=lambda n_q, n_k: 4 * n_k,
    limit_name="4 n",
    least=4,
    square=True,
    validate=partial(check_hash, "reformer"),
)
def reformer(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    rounds: int = 2,
    buckets: int | None = None,
    logits: Literal["unit", "scaled"] = "unit",
    duplicates: Literal["count", "once"] = "count",
    eps: float = 0.0,
) -> Approximation:
    """``B~_ij = Σ_{slots of i that hold j} exp(l_ij) / Σ_{all slots of i} exp(l)`` with ``l_ij = q_i · q_j / ‖q_j‖``.

    **K is ignored**: the model has one matrix for queries and keys, and makes the keys unit vectors. So this does not
    approximate softmax(S) of the given K, and its error does not vanish for any budget. It shows the attention of a
    Reformer with these queries. ``lsh-qk`` builds an approximation from the same parts.

    In each round token i falls into the bucket ``argmax [R q_i, -R q_i]``, and the tokens are sorted by bucket (ties by
    position). The sorted tokens of all rounds, one round after another, form one list. It is cut into chunks of ``c =
    ⌊d/(2 rounds)⌋``; the last chunk may be shorter. In each round, a token's slots are its chunk and the one before it,
    cyclically. Buckets only sort: slots of another bucket count. The paper takes a softmax in each round and weights
    the rounds by ``softmax(logsumexp)``, which equals one softmax over the slots of all rounds. A token attends to
    itself only if its slots hold no other token. The published code does this with a logit of -1e5 (transformers) or
    -5e4 (reformer-pytorch), which is the same for ``‖q‖`` below 1e4. Source: Kitaev et al. 2020, section 2 and
    appendix A.

    Causal or windowed: the published model sorts all tokens and masks later ones, so chunks depend on later tokens.
    Here they do not: token i sorts the tokens that it sees. Its slots in a round are the 2c tokens up to its own place
    in that list, cyclically within the round; without a causal mask, up to the last token of its bucket.

    Options:
        rounds: rounds of hashing; each takes an equal share of d.
        buckets: n_b, even. None is the choice of transformers: the power of two up to ``2 ⌊n/c⌋``, as a product of two
            hashes if it is above ``2 max(√(n/c), c)``. reformer-pytorch takes n/c.
        logits: ``unit`` as above, as in transformers; ``scaled`` multiplies by the model's scale too, as in
            reformer-pytorch and by the paper's ``1/√p``.
        duplicates: ``count`` counts a key once for each of its slots, as transformers does, and reformer-pytorch by
            default; ``once`` is the paper's discount of ``log N_ij`` for N_ij repeats, and costs a sort of each row.
        eps: added to the mean square of q_j in its normalisation (transformers has 1e-6).

    Shapes: index and weights (h, n, d), output (h, n, p_v). Draws: ``rotations`` (h, rounds, f, p), R itself, with f
    half the number of buckets (for two hashes, half their sum). Hashing is in float64. A query of zeros is a key of
    zeros. ``visited`` counts slots; ``realised_d`` is their mean. Cost ``n d (p + p_v) + n f p`` and sorting; memory
    O(n d).

    Raises:
        Unsupported: d above 4 n, below 4 or below 2 · rounds; more than 2 n buckets (or 1024); different numbers of
            queries and keys. UsageError: rounds below 1; an odd number of buckets; a negative ``eps``.
    """
    n, chunk = qkv.n, chunk_length("reformer", d, rounds, qkv.n)
    counts = bucket_counts(n, chunk, buckets)
    drawn = rotations(streams, qkv, rounds, sum(counts) // 2, qkv.p)
    order = cross_polytope(qkv.q, drawn, counts).argsort(dim=-1, stable=True)  # (h, rounds, n)
    length = (qkv.q.double().square().sum(-1, keepdim=True) + eps * qkv.p).sqrt()
    keys = (qkv.q.double() / length.clamp(min=torch.finfo(torch.float64).tiny)).to(qkv.dtype)
    queries = qkv.q * qkv.scale if logits == "scaled" else qkv.q
    if qkv.visible is not None:
        return _of_visible(qkv, queries, keys, drawn, counts, 2 * chunk, duplicates == "once")
    starts = n * torch.arange(rounds, device=qkv.device)[:, None]  # the start of each round in the list
    token = torch.arange(n, device=qkv.device)[:, None]
    window = look_back(order.flatten(1), chunk)  # (h, m, 2 c)
    scores = block_scores(queries, keys, window[..., -chunk:], window)  # (h, m, c, 2 c)
    place = (inverse(order) + starts).mT.flatten(1)  # (h, n · rounds), of each token in the list, round by round
    slots = tokens(window, place // chunk).view(qkv.h, n, -1)  # (h, n, 2 c · rounds)
    logit = tokens(scores.flatten(1, 2), place).view(qkv.h, n, -1)
    visited = (slots >= 0).sum((1, 2)).double()
    used = _used(slots, token, duplicates == "once")
    weights = softmax_in_place(logit.masked_fill_(~used, float("-inf")))
    of_rounds = block_product(weights.view(qkv.h, n * rounds, -1), place, chunk, window, qkv.v)
    return Approximation(
        Sparse(slots, weights, n),
        of_rounds.unflatten(1, (n, rounds)).sum(2),
        draws={"rotations": drawn},
        diagnostics={"realised_d": visited / n, "visited": visited},
    )


def _used(slots: Tensor, token: Tensor, once: bool) -> Tensor:
    """The slots (…, n, u) that count: of tokens other than ``token`` (n, 1), or its own where there are no others."""
    filled = slots >= 0
    others = filled & (slots != token)
    used = torch.where(others.any(-1, keepdim=True), others, filled)
    return used & ~repeats(slots) if once else used


def _of_visible(
    qkv: QKV, queries: Tensor, keys: Tensor, drawn: Tensor, counts: tuple[int, ...], width: int, once: bool
) -> Approximation:
    """The masked form for queries and keys (h, n, p): in each round the last ``width`` slots of the keys seen."""
    assert qkv.visible is not None
    hashes, token = cross_polytope(qkv.q, drawn, counts), torch.arange(qkv.n, device=qkv.device)[:, None]
    slots = look_back_within(hashes, hashes, qkv.visible, prod(counts), width).transpose(1, 2).flatten(2)
    visited = (slots >= 0).sum((1, 2)).double().cpu()
    index = slots.masked_fill(~_used(slots, token, once), -1)  # (h, n, width · rounds)
    operator, _ = sparse_softmax(qkv.replace(q=queries, k=keys, scale=1.0), index)
    diagnostics = {"realised_d": visited / qkv.n, "visited": visited}
    return Approximation.of(operator, qkv, draws={"rotations": drawn}, diagnostics=diagnostics)
