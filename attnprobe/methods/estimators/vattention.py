"""vAttention (Desai et al. 2025): exact attention to heavy keys, and a uniform sample of all other keys.

I_i are the heavy keys of row i, T_i the n_T other keys that it sees, b_i the number of keys sampled of T_i, a_ij =
exp(S_ij), N_i and D_i the numerator and the normaliser. Our d is the number of heavy and of sampled keys of a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

from ...errors import UsageError
from ...operators.linalg.order import largest_scores
from ...qkv import QKV
from ...rng import Streams, hashed_integers, mixed
from ..base import Approximation
from ..registry import DISTRIBUTIONS, EVERY_MASK, KEYS, register
from .base import KeptRows, Rows, Weighted, estimated, marked, near_keys

PLACES = 40  # bits of a place in the text
LAST = 2**53  # above all numbers of keys
QUARTER = 4  # sinks and window take at most this part of d each


def _check(target: str, **options: object) -> None:
    heavy, delta, most = (float(str(options[name])) for name in ("heavy", "delta", "most"))
    epsilon = options["epsilon"]
    if not 0 <= heavy < 1:
        raise UsageError(f"vattention: heavy={heavy:g} is not a share from 0 to below 1")
    if not 0 < delta < 1:
        raise UsageError(f"vattention: delta={delta:g} is not a probability above 0 and below 1")
    if not 0 < most <= 1:
        raise UsageError(f"vattention: most={most:g} is not a share above 0 and up to 1")
    if epsilon is not None and float(str(epsilon)) <= 0:
        raise UsageError(f"vattention: epsilon={epsilon} is not positive")
    for name in ("sinks", "window"):
        if int(str(options[name])) < 0:
            raise UsageError(f"vattention: {name}={options[name]} is negative")


@register(
    name="vattention",
    paper="Desai et al., vAttention: verified sparse attention",
    year=2025,
    family="sampling",
    tags=(*DISTRIBUTIONS, "shift_invariant", "exact_at_full_budget", "diagnostic", *EVERY_MASK),
    budget="d keys a row: heavy ones, and a sample of the others",
    cost="n² p + n d p",
    oracle="unbiased normalisers and numerators; inclusion frequencies; coverage of (ε, δ) on rows with known moments",
    **KEYS,
    least=2,
    validate=_check,
    exact_at=lambda n: (n, {}),
)
def vattention(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    heavy: float = 0.5,
    sinks: int = 4,
    window: int = 64,
    epsilon: float | None = None,
    delta: float = 0.05,
    verify: Literal["out", "D", "N"] = "out",
    moments: Literal["independent", "reused", "authors", "exact"] = "independent",
    quantile: Literal["two-sided", "one-sided"] = "two-sided",
    replace: bool = False,
    most: float = 1.0,
) -> Approximation:
    """``B~_ij = w_ij a_ij / D~_i`` with ``w = 1`` on I_i and ``n_T/b_i`` on b_i keys of T_i drawn without replacement.

    ``D~_i = Σ_I a_ij + (n_T/b) Σ_sample a_ij`` and ``N~_i`` alike with ``a_ij v_j``. Each key of T_i is included with
    probability ``b/n_T``, so D~ and N~ are unbiased, with ``Var(D~) = n_T² σ²/b (1 - b/n_T)``, σ² the variance of a
    over T_i with divisor ``n_T - 1``. The output ``N~/D~`` is biased by O(1/b). Source: Desai et al. 2025 (vAttention).

    I_i are ``⌊heavy · d⌋`` keys: the last ``window`` up to the query's own place, the first ``sinks``, at most d/4 of
    each and at most half of I_i for sinks, and those with the largest scores of the row (an oracle: all scores are
    computed). Without ``epsilon``, b is the rest of d. With it, these b keys are a base sample, and each row draws the
    number of keys that the central limit theorem gives:

        ``b_D = (z n_T σ / (ε' D))²`` for the normaliser, ``b_N = (z n_T √tr Cov(a v) / (ε' ‖N‖))²`` for the numerator,

    ``z = Φ⁻¹(1 - δ'/2)``. ``verify=D`` and ``N`` have ``ε' = ε, δ' = δ``. ``out`` takes the larger of both with ``ε' =
    ε/(2 + ε)`` and ``δ' = δ/2``: if both bounds hold, ``‖o~ - o‖ ≤ ‖o‖ 2ε'/(1 - ε') = ε ‖o‖``. b is at least the base
    sample and at most n_T. This split follows from the two bounds; it has not been compared with that of the paper.

    Options:
        heavy: share of d for I_i.
        sinks: number of first keys in I_i, at most d/4 and half of I_i.
        window: number of keys up to the query's own place in I_i, at most d/4 and what the sinks leave of I_i.
        epsilon: the promised relative error; none draws d keys.
        delta: the promised probability of a larger error.
        verify: the quantity of the promise: the output, the normaliser D or the numerator N.
        moments: the source of σ, D and N of the promise. ``independent``: a separate sample. ``reused``: the first keys
            of the sample itself, so that no other keys are read; D~ is then biased downwards, because a sample without
            large weights requires few keys. ``authors``: a sample of all keys but sinks and window, as in published
            code; heavy keys then contribute to σ, and count twice in D. ``exact``: all of T_i.
        quantile: ``one-sided`` has ``z = Φ⁻¹(1 - δ')``, as in published code; it allows twice the failures.
        replace: draw with replacement, and give each drawn key the weight ``n_T/b`` once, as in published code. A key
            is then included with probability ``1 - (1 - 1/n_T)^b``, and D~ is biased downwards. The stated variance has
            the weights and the random number of distinct keys of these draws.
        most: the largest share of T_i that is drawn. Rows that need more are ``capped``.

    Shapes: keys and weights (h, n_q, u) with u the largest number of keys of a row, in float64. Draws: ``row_keys`` (h,
    n_q). From these `attnprobe.rng.hashed_uniform` makes a uniform number for each key of a row; the keys of T_i with
    the b smallest numbers are the sample. The key of a row belongs to its place in the text, so neither other queries
    nor later keys change its sample; queries at the same place have different samples. It states ess, the inclusion
    probability, the variance of D~ over D~² as estimated from the sample, and capped rows. The operator depends on V
    with ``epsilon`` and a ``verify`` other than D. Cost ``n² p`` for the oracle, and ``n d (p + p_v)``.

    Raises:
        Unsupported: d below 2 or above n_k. UsageError: shares and probabilities outside their ranges.

    >>> from attnprobe import approximate
    >>> qkv = QKV(*torch.randn(3, 1, 32, 4, generator=torch.Generator().manual_seed(0)))
    >>> approximate("vattention", qkv, 16).diagnostics["realised_d"]
    tensor([16.], dtype=torch.float64)
    """
    exact_keys = int(heavy * d)
    law = _Law(d - exact_keys, epsilon, delta, verify, moments, quantile, most)
    # Sinks and window leave room for the largest scores, also at a small d.
    first = min(sinks, d // QUARTER, exact_keys // 2)
    last = min(window, d // QUARTER, exact_keys - first)

    kept = KeptRows(qkv, "vattention", exact_keys, first, last)
    places = kept.once("places", partial(_places, qkv))

    @cache
    def row_keys(label: str) -> Tensor:
        """The key of each row, (h, n_q) int64."""
        of_heads = torch.tensor([streams.key(head, label) for head in qkv.heads], device="cpu")
        return mixed(of_heads[:, None] ^ places)

    def numbers(label: str, rows: Rows) -> Tensor:
        """A number for each row of the block and each key, (b, n_k) int64 below 2⁵³."""
        keys = row_keys(label)[rows.head].to(rows.scores.device)
        return hashed_integers(keys[rows.index], rows.scores.shape[1])

    def heavy_keys(rows: Rows) -> _Heavy:
        near = near_keys(rows, first, last)
        mask = near | _largest(rows.scores.masked_fill(near, -torch.inf), exact_keys, exact_keys - near.sum(-1))
        keys, tail = marked(mask), rows.visible & ~mask
        return _Heavy(near, mask, keys, rows.at(keys).logsumexp(-1), tail, tail.sum(-1).double())

    def choose(rows: Rows) -> Weighted:
        found = kept.of_rows(("heavy", rows.head, int(rows.index[0])), partial(heavy_keys, rows))
        tail, size = found.tail, found.size
        order = _marked(numbers("tail", rows), tail)

        def base() -> Tensor:
            """The keys from which a promise takes σ, D and N, (b, n_k)."""
            if moments == "exact":
                return tail
            if moments == "reused":
                return _mask(_least(order, size.clamp(max=law.base)), tail)
            among = tail if moments == "independent" else rows.visible & ~found.near
            numbered = _marked(numbers("base", rows), among)
            return _mask(_least(numbered, among.sum(-1).clamp(max=law.base)), tail)

        count, capped = law.counts(rows, found.mask, size, base)  # b_i
        taken = _least(order, count)
        if replace:
            taken = marked(_drawn_again(order, size, count, numbers("replace", rows)))
        log_weight = (size / count.clamp(min=1)).log()
        weighted = torch.where(taken >= 0, log_weight[:, None], -torch.inf)
        log_weights = torch.cat([torch.where(found.keys >= 0, 0.0, -torch.inf).to(weighted), weighted], 1)
        sampled = rows.at(taken)
        log_sum = torch.logaddexp(found.log_sum, (sampled + weighted).logsumexp(-1))
        variance = _variance((sampled - log_sum[:, None]).exp(), taken >= 0, size, count if replace else None)
        inclusion = _included(size, count) if replace else count / size.clamp(min=1)
        stated = {"inclusion": torch.where(size > 0, inclusion, 1.0), "variance": variance, "capped": capped.double()}
        return Weighted(torch.cat([found.keys, taken], 1), log_weights, stated)

    return estimated(qkv, kept, choose, {"row_keys": row_keys("tail")})


@dataclass(frozen=True, eq=False)
class _Heavy:
    """The heavy keys of a block of rows, which no seed changes.

    Attributes:
        near: sinks and window; mask: I_i; tail: T_i, (b, n_k) bool each. keys: I_i in slots, (b, u).
        log_sum: ``ln Σ_I a_ij``, (b,). size: n_T, (b,).
    """

    near: Tensor
    mask: Tensor
    keys: Tensor
    log_sum: Tensor
    tail: Tensor
    size: Tensor


def _places(qkv: QKV) -> Tensor:
    """The place of each query plus 2⁴⁰ times the number of earlier queries at that place, mixed, (n_q,) int64.

    In decoding they are at the last place of the prompt; ``step`` of the label counts those of earlier calls.
    """
    earlier: Counter[int] = Counter()
    before, places = qkv.label.get("step", 0), []
    for position in qkv.query_positions.tolist():
        places.append(position + ((before + earlier[position]) << PLACES))
        earlier[position] += 1
    return mixed(torch.tensor(places, device="cpu"))


@dataclass(frozen=True)
class _Law:
    """How many keys of the tail a row draws."""

    base: int
    epsilon: float | None
    delta: float
    verify: str
    moments: str
    quantile: str
    most: float

    def counts(self, rows: Rows, heavies: Tensor, size: Tensor, base: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """b_i and whether it is capped, (b,) each; ``base`` draws the base sample (b, n_k) of a promise."""
        least = size.clamp(max=self.base)
        if self.epsilon is None:
            return least, torch.zeros_like(size, dtype=torch.bool)
        epsilon, delta = (self.epsilon, self.delta)
        # Both bounds must hold at once: each may fail with half of δ (a union bound), and errors of a quotient add.
        if self.verify == "out":
            epsilon, delta = epsilon / (2 + epsilon), delta / 2
        z = NormalDist().inv_cdf(1 - delta / (2 if self.quantile == "two-sided" else 1))
        count, sample = torch.zeros_like(rows.scores[:, 0]), base()
        a = (rows.scores - rows.scores.amax(-1, keepdim=True)).exp()  # (b, n_k)
        if self.verify != "N":
            count = torch.maximum(count, _needed(a, None, heavies, size, sample, z / epsilon))
        if self.verify != "D":
            count = torch.maximum(count, _needed(a, rows.v, heavies, size, sample, z / epsilon))
        count = torch.minimum(count.ceil(), size)
        limit = torch.maximum((self.most * size).floor(), least)
        return torch.minimum(torch.maximum(count, least), limit), count > limit


def _needed(a: Tensor, v: Tensor | None, heavies: Tensor, size: Tensor, base: Tensor, factor: float) -> Tensor:
    """``(z n_T s / (ε ‖x‖))²`` of each row (b,): x is D, or N with values, s its spread over the tail."""
    count = base.sum(-1).clamp(min=1)
    inside = torch.where(base, a, 0.0)
    if v is None:
        mean = inside.sum(-1) / count
        square = inside.square().sum(-1) / count - mean.square()
        total = (torch.where(heavies, a, 0.0).sum(-1) + size * mean).abs()
    else:
        means = inside @ v / count[:, None]  # (b, p_v)
        square = inside.square() @ v.square().sum(-1) / count - means.square().sum(-1)
        total = (torch.where(heavies, a, 0.0) @ v + size[:, None] * means).norm(dim=-1)
    variance = square.clamp(min=0) * count / (count - 1).clamp(min=1)
    needed = factor**2 * size**2 * variance / total.square()
    return torch.where(variance == 0, 0.0, needed)


def _included(size: Tensor, count: Tensor) -> Tensor:
    """``1 - (1 - 1/n_T)^b``, the probability of a key to be among b draws with replacement, (b,)."""
    return -torch.expm1(count * torch.log1p(-1 / size.clamp(min=1)))


def _variance(a: Tensor, taken: Tensor, size: Tensor, draws: Tensor | None) -> Tensor:
    """``n_T² s²/b (1 - b/n_T) / D~²`` of each row (b,), s² of the sampled weights; 0 where all of the tail is used.

    With ``draws`` b with replacement, m keys are distinct and have the weight ``n_T/b``: ``(n_T/b)² (m s² (1 - m/n_T) +
    Var(m) a²) / D~²``, where a is the mean of the sampled weights.

    Args:
        a: the sampled weights over D~, (b, u), and in which slots they are (``taken``).
    """
    a, count = torch.where(taken, a, 0.0), taken.sum(-1)
    mean = a.sum(-1) / count.clamp(min=1)
    square = torch.where(taken, (a - mean[:, None]).square(), 0.0).sum(-1) / (count - 1).clamp(min=1)
    if draws is None:
        return size**2 * square / count.clamp(min=1) * (1 - count / size.clamp(min=1))
    weight = size / draws.clamp(min=1)
    pair = 1 - 2 * (1 - _included(size, draws)) + (1 - 2 / size.clamp(min=2)) ** draws  # both of two keys are drawn
    mean_count = size * _included(size, draws)
    of_count = (mean_count + size * (size - 1) * pair - mean_count**2).clamp(min=0)  # Var(m)
    return weight**2 * (count * square * (1 - count / size.clamp(min=1)) + of_count * mean**2)


def _largest(scores: Tensor, most: int, count: Tensor) -> Tensor:
    """The ``count`` (b,) largest finite scores of each row, at most ``most``, as a mask (b, n_k)."""
    keys = largest_scores(scores, most)[1]
    return _mask(keys.masked_fill(torch.arange(keys.shape[1], device=keys.device) >= count[:, None], -1), scores)


def _mask(keys: Tensor, like: Tensor) -> Tensor:
    """Keys (b, u) as a mask of the shape of ``like`` (b, n_k); -1 is an empty slot."""
    number = torch.zeros(like.shape, dtype=torch.uint8, device=like.device)
    return number.scatter_add_(1, keys.clamp(min=0), (keys >= 0).to(torch.uint8)) > 0


def _marked(numbers: Tensor, among: Tensor) -> Tensor:
    """The numbers of the marked keys of each row (b, n_k), and LAST for others. Sorted, they give a random order."""
    return numbers.masked_fill_(~among, LAST)


def _least(order: Tensor, count: Tensor) -> Tensor:
    """The keys with the ``count`` (b,) smallest numbers of each row, (b, u) int64; -1 in empty slots."""
    smallest, keys = order.topk(max(1, int(count.max())), largest=False)  # ascending
    wanted = (smallest < LAST) & (torch.arange(keys.shape[1], device=keys.device) < count[:, None])
    return keys.masked_fill(~wanted, -1)


def _drawn_again(order: Tensor, size: Tensor, count: Tensor, numbers: Tensor) -> Tensor:
    """The marked keys in ``count`` draws with replacement, (b, n_k) bool. A draw is a place in the random order."""
    place = (numbers.double() / LAST * size[:, None]).long()
    drawn = torch.arange(order.shape[1], device=order.device) < count[:, None]
    key = order.argsort(-1).gather(1, place)
    return torch.zeros_like(drawn, dtype=torch.uint8).scatter_add(1, key, drawn.to(torch.uint8)) > 0
