"""MagicPIG (Chen et al. 2024): keys that share hash buckets with the query, weighted by their inclusion probability.

K is the number of bits of a table, L the number of tables. ``p_ij = 1 - θ_ij/π`` is the probability that a random
hyperplane does not separate the query and the centred key, ``c_ij = p_ij^K`` that of one collision, u_ij that of
inclusion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from ...approximation import Approximation, Later
from ...errors import UsageError
from ...qkv import QKV
from ...rng import Streams, first_normals
from ..registry import DISTRIBUTIONS, KEYS, register
from .base import KeptRows, Rows, Weighted, estimated, marked, near_keys

MOST = 256  # tables
SPREAD = 64  # rows that determine the number of tables
FEW = 1e-2  # expected collisions below which the law is summed
PROJECTED = 2**18  # projections of tokens at once
QUARTER = 4  # sinks and window take at most this part of d each


def _check(
    target: str, *, bits: int, tables: int | None, sinks: int, window: int, floor: float, least_hits: int
) -> None:
    if not 1 <= bits <= 32:
        raise UsageError(f"magicpig: bits={bits} is not between 1 and 32")
    if tables is not None and not least_hits <= tables <= MOST:
        raise UsageError(f"magicpig: tables={tables} is not between {least_hits} and {MOST}")
    if sinks < 0 or window < 0:
        raise UsageError(f"magicpig: sinks={sinks} or window={window} is negative")
    if floor < 0:
        raise UsageError(f"magicpig: floor={floor:g} is negative")
    if least_hits not in (1, 2):
        raise UsageError(f"magicpig: least_hits={least_hits} is not 1 or 2")


@register(
    name="magicpig",
    paper="Chen et al., MagicPIG: LSH sampling for efficient LLM generation",
    year=2024,
    family="LSH",
    tags=(*DISTRIBUTIONS, "shift_invariant", "diagnostic", "causal", "local"),
    budget="d expected keys a row: sinks, window, and keys that collide with the query",
    cost="2 n² p + O(n d p)",
    oracle="unbiased normalisers; inclusion frequencies against the law of collisions",
    **KEYS,
    least=4,
    validate=_check,
)
def magicpig(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    bits: int = 8,
    tables: int | None = None,
    sinks: int = 4,
    window: int = 64,
    floor: float = 0.0,
    least_hits: int = 2,
) -> Approximation:
    """``B~_ij = w_ij exp(S_ij) / D~_i`` with ``w = 1`` on sinks and window, ``1/u_ij`` on keys that collide.

    A table hashes queries and keys to the signs of K random projections. Keys are centred, which does not change the
    softmax. A key is used if it is in the query's bucket in at least two of L tables:

        ``c = (1 - θ/π)^K``, ``u = 1 - (1 - c)^L - L c (1 - c)^(L-1)``, θ the angle of query and centred key.

    ``E[w_ij] = 1`` for each key, so D~ and N~ are unbiased. The keys of a row are not independent, because they share
    the tables. If u is small, weights are rare and large. Source: Chen et al. 2024.

    Without ``tables``, L is the largest number of tables, up to 256, with an expected number of used keys of at most d.
    This number is the mean over 64 evenly spaced rows of a head. For causal inputs L must not depend on later tokens or
    on other queries. So there the rows are spread over the complete text, and all angles count as π/2. ``realised_d``
    is the expected number.

    Options:
        bits: K, in the paper 8 to 10.
        tables: L, up to 256; none chooses it for d.
        sinks: number of first keys that are always used, at most d/4.
        window: number of keys up to the query's own place that are always used, at most d/4.
        floor: weights are ``1/(u + floor)``. Published code has 1e-4: no weight exceeds 1e4, and D~ is biased
            downwards.
        least_hits: the least number of tables in which a used key collides. For 1, ``u = 1 - (1 - c)^L``.

    Keys are centred by their mean. For causal and windowed inputs they are centred by the first key, so that no later
    key and no other query changes a row. The authors' code uses the mean key of the prompt, also during decoding.

    Shapes: keys and weights (h, n_q, u), in float64. Draws: ``rotations`` (h, 256, K, p) standard normal numbers
    (``tables`` instead of 256 if given); a head uses its first L tables. It states ess, the least u_ij of a row, and
    the variance of D~ over D~² for independent keys. Cost ``2 n² p + (2 K L + d) n p``, because the score and the angle
    of every key are computed, and ``n² L`` comparisons of buckets. For fixed K, K L is O(d). Memory O(n (d + L)).

    Raises:
        Unsupported: d below 4 or above n_k. UsageError: options outside their ranges.

    >>> from attnprobe import approximate
    >>> qkv = QKV(*torch.randn(3, 1, 64, 4, generator=torch.Generator().manual_seed(0)))
    >>> approximate("magicpig", qkv, 16).operator.row_sums().sum().round()
    tensor(64., dtype=torch.float64)
    """
    count = MOST if tables is None else tables
    near = min(sinks, d // QUARTER), min(window, d // QUARTER)
    kept = KeptRows(qkv, "magicpig", d, *near, count, tables is None, bits, least_hits)
    heads = range(qkv.h)
    hashed = [kept.of_rows(("hashed", head), partial(_Hashed.of, qkv, head, bits, least_hits)) for head in heads]

    def tables_of_heads() -> list[tuple[int, float]]:
        spread = _Spread.of(qkv, *near)
        return [of_head.tables(spread, d, count, tables is None) for of_head in hashed]

    used = kept.once("tables", tables_of_heads)

    def drawn(head: int, tables: int) -> Tensor:
        """The rotations of the first tables of a head, (L, K, p)."""
        stream = streams.head(qkv.heads[head], "rotations")
        return first_normals(stream, tables, count, bits, qkv.p)

    @cache
    def buckets(head: int) -> tuple[Tensor, Tensor]:
        """The rotations of the used tables of a head, (L, K, p), and the buckets of its keys, (L, n_k)."""
        rotations = drawn(head, used[head][0]).to(qkv.device)
        return rotations, _codes(hashed[head].k, rotations)

    def law(rows: Rows) -> _Law:
        exactly, u = near_keys(rows, *near), hashed[rows.head].law(rows.index, used[rows.head][0])
        others = rows.visible & ~exactly
        keys = marked(exactly)
        return _Law(keys, rows.at(keys).logsumexp(-1), others, u, u.masked_fill(~others, 1.0).amin(-1))

    def choose(rows: Rows) -> Weighted:
        found = kept.of_rows(("law", rows.head, int(rows.index[0])), partial(law, rows))
        rotations, of_keys = buckets(rows.head)
        collisions = _collisions(_codes(hashed[rows.head].q[rows.index], rotations), of_keys)
        hits = marked((collisions >= least_hits) & found.others)
        u = found.u.gather(1, hits.clamp(min=0))  # of the hits, (b, u)
        weighted = torch.where(hits >= 0, -(u + floor).log(), -torch.inf)
        logits = rows.at(hits) + weighted
        log_sum = torch.logaddexp(found.log_sum, logits.logsumexp(-1))
        squares = (2 * (logits - log_sum[:, None])).exp() * (1 - u)
        variance = torch.where(hits >= 0, squares, 0.0).sum(-1)
        log_weights = torch.cat([torch.where(found.keys >= 0, 0.0, -torch.inf).to(weighted), weighted], 1)
        return Weighted(
            torch.cat([found.keys, hits], 1), log_weights, {"inclusion": found.inclusion, "variance": variance}
        )

    keys = torch.tensor([expected for _, expected in used], dtype=torch.float64, device="cpu")
    draws = Later({"rotations": lambda: torch.stack([drawn(head, count) for head in heads])})  # (h, 256, K, p)
    return estimated(qkv, kept, choose, draws, {"realised_d": keys})


@dataclass(frozen=True, eq=False)
class _Law:
    """What all seeds share for a block of rows.

    Attributes:
        keys: sinks and window in slots, (b, u). log_sum: ``ln Σ exp(S_ij)`` over them, (b,).
        others: the other visible keys; u: u_ij, (b, n_k) each. inclusion: the least u_ij of a row, (b,).
    """

    keys: Tensor
    log_sum: Tensor
    others: Tensor
    u: Tensor
    inclusion: Tensor


@dataclass(frozen=True, eq=False)
class _Spread:
    """The rows that determine the number of tables, the same for all heads.

    Attributes:
        index: their numbers. exactly: the keys that are always used. others: the other visible keys, (b, n_k) each.
    """

    index: Tensor
    exactly: Tensor
    others: Tensor

    @staticmethod
    def of(qkv: QKV, sinks: int, window: int) -> _Spread:
        head = qkv.head(0)
        index = _spread(head.n_k if head.causal else head.n_q, head.device)
        if head.causal:  # of the whole text; their numbers are not used
            rows = head.replace(q=head.k[:, index], positions=index)
        else:
            rows = head.queries(index)
        scores = torch.zeros(rows.n_q, rows.n_k, device=head.device)
        if rows.visible is not None:
            scores = scores.masked_fill(rows.visible.hidden(rows.n_k), -torch.inf)
        block = Rows(rows, 0, torch.arange(rows.n_q, device=head.device), scores, rows.v[0])
        exactly = near_keys(block, sinks, window)
        return _Spread(index, exactly, block.visible & ~exactly)


@dataclass(frozen=True, eq=False)
class _Hashed:
    """What a head hashes, and the law of its collisions.

    Attributes:
        q, k: queries and centred keys, (n, p) float64 each. causal: whether the inputs are causal.
    """

    q: Tensor
    k: Tensor
    causal: bool
    bits: int
    least_hits: int

    @classmethod
    def of(cls, qkv: QKV, head: int, bits: int, least_hits: int) -> _Hashed:
        k = qkv.k[head].double()
        # A mean over all keys would let later keys change earlier rows.
        centred = k - (k.mean(0) if qkv.visible is None else k[0])
        return cls(qkv.q[head].double(), centred, qkv.causal, bits, least_hits)

    def law(self, index: Tensor, tables: int) -> Tensor:
        """u_ij of these rows, (b, n_k)."""
        return self._included(self._collision(index), tables)

    def tables(self, spread: _Spread, d: int, most: int, free: bool) -> tuple[int, float]:
        """L and its expected number of used keys. L is ``most``, or if ``free`` the largest one with at most d keys."""
        if self.causal:
            # At a right angle half of all hyperplanes separate query and key.
            collision = torch.full(spread.exactly.shape, 0.5**self.bits, dtype=torch.float64, device=self.q.device)
        else:
            collision = self._collision(spread.index).detach()
        certain = float(spread.exactly.sum(-1).double().mean())
        collision = collision.masked_fill(~spread.others, 0.0)
        missed = torch.log1p(-collision)

        def expected(number: int) -> float:
            return certain + float(self._roughly_included(collision, missed, number).sum(-1).mean())

        low, high = (self.least_hits, most) if free else (most, most)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if expected(middle) <= d else (low, middle - 1)
        return low, expected(low)

    def _collision(self, index: Tensor) -> Tensor:
        """c_ij of these rows, (b, n_k)."""
        q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (self.q[index], self.k))
        angle = (q @ k.mT).clamp(-1, 1).acos()
        return (1 - angle / math.pi) ** self.bits

    def _included(self, collision: Tensor, tables: int) -> Tensor:
        """u, (b, n_k), from the probability c of one collision, (b, n_k)."""
        if self.least_hits == 1:
            return -torch.expm1(tables * torch.log1p(-collision))
        return at_least_two(collision, tables)

    def _roughly_included(self, collision: Tensor, missed: Tensor, tables: int) -> Tensor:
        """u from c and ``missed = ln(1 - c)``, with the rounding of 1, which is small enough for sums of u."""
        if self.least_hits == 1:
            return -torch.expm1(tables * missed)
        return 1 - torch.exp((tables - 1) * missed) * (1 + (tables - 1) * collision)


def _spread(count: int, device: torch.device) -> Tensor:
    """Up to 64 of ``count`` numbers, spread evenly from 0 on."""
    return torch.arange(0, count, -(-count // SPREAD), device=device)


def at_least_two(c: Tensor, tables: int) -> Tensor:
    """``1 - (1-c)^L - L c (1-c)^(L-1)``, the probability of two or more collisions in L tables, of c (…), (…).

    For small L c the difference cancels; then it is the sum of the probabilities of two, three and four collisions.

    >>> at_least_two(torch.tensor([0.5, 1e-7], dtype=torch.float64), 2)
    tensor([2.5000e-01, 1.0000e-14], dtype=torch.float64)
    """
    none = torch.exp((tables - 1) * torch.log1p(-c))  # (1-c)^(L-1)
    probability = 1 - none * (1 + (tables - 1) * c)
    few = tables * c < FEW
    some = c[few]
    rest = torch.log1p(-some)
    probability[few] = sum(
        (math.comb(tables, hits) * some**hits * torch.exp((tables - hits) * rest) for hits in range(2, 5)),
        torch.zeros_like(some),
    )
    return probability


def _codes(x: Tensor, rotations: Tensor) -> Tensor:
    """The buckets of tokens (n, p) in each of the tables (L, K, p): (L, n) integers of K bits."""
    bits = rotations.shape[1]
    kind = torch.uint8 if bits <= 8 else torch.int16 if bits < 16 else torch.int64
    codes = []
    for some in rotations.split(max(1, PROJECTED // (bits * len(x)))):
        positive = (some.flatten(0, 1) @ x.mT > 0).unflatten(0, (-1, bits)).to(kind)  # (L', K, n)
        code = positive[:, 0].clone()
        for bit in range(1, bits):
            code.add_(positive[:, bit], alpha=1 << bit)
        codes.append(code)
    return torch.cat(codes)


def _collisions(of_queries: Tensor, of_keys: Tensor) -> Tensor:
    """The number of tables in which a key (L, n_k) shares the bucket of a query (L, b), (b, n_k) int16."""
    counts = torch.zeros(of_queries.shape[1], of_keys.shape[1], dtype=torch.int16, device=of_keys.device)
    sums = _quick(counts)
    for own, keys in zip(_quick(of_queries), _quick(of_keys), strict=True):
        sums += own[:, None] == keys
    return counts


def _quick(x: Tensor) -> Any:
    """The same numbers as a numpy array on a CPU, where numpy compares and counts three times as fast."""
    return x.numpy() if x.device.type == "cpu" else x
