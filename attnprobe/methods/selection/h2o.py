"""H2O (Zhang et al. 2023): half of the cache has recent keys, the other half those with the largest sums of weights."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...operators.kept import Kept
from ...qkv import QKV
from ...reference import exact
from ...rng import Streams
from .base import Selection, working
from .subsets import Allocation, Sets, check_subset, streamed, subset, subset_selector


@subset_selector(
    name="h2o",
    paper="Zhang et al., H2O",
    year=2023,
    tags=("shift_invariant", "causal"),
    cost="2 n d p + O(n² p)",
    validate=check_subset("h2o", "every", "observe"),
    compress={"every": 1, "streaming": False, "average": True, "forced": False},
)
def h2o(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    streaming: bool = True,
    average: bool | None = None,
    forced: bool | None = None,
    observe: int | None = None,
    every: int = 64,
    sets: Sets = "group",
    allocation: Allocation = "uniform",
    layers: int | None = None,
) -> Selection:
    """The softmax of each row over recent keys, and over older ones with the largest sum of weights ``Σ_i B~_ij``.

    A cache has d keys; the last ⌊d/2⌋ tokens stay. Each new token takes the place of the older key with the smallest
    sum of weights over all queries so far. Evicted keys never return. A sum is not divided by the number of its
    queries, so old keys have an advantage. Source: Zhang et al. 2023, algorithm 1.

    With ``streaming=false``, and for inputs that are not causal, a set is selected at once from all earlier keys, by
    sums of the exact weights ``B_ij``.

    Options:
        streaming: evict one key at each token, as in the paper; ``false`` selects all keys at the start of a segment.
            The other options except ``sets`` are for ``streaming=false`` only.
        average: divide sums by the number of queries that saw the key. By default only in a prompt that is compressed
            once for decoding.
        forced: half of the room is for recent keys. By default not in a prompt that is compressed once: with both
            defaults it keeps there what ObservedAttention of kvpress keeps.
        observe: the number of queries before a segment whose weights are summed; ``none`` is all.
        every: the number of tokens of a segment, at most d/2.
        sets: ``group``: the query heads of a KV head have one set, by their mean weight; ``head``: each has its own.
            The mean is over the given heads, so a part of a group has other sets.
        allocation, layers: the distribution of keys over heads and layers, as in ``snapkv``.

    Shapes: index and weights (h, n_q, d), output (h, n_q, p_v). Deterministic; cost ``n d (p + p_v)``, in n steps if
    streaming, and all exact scores if not; memory O(n d). ``scored`` is 0 if streaming.

    Raises:
        Unsupported: d above max(n_q, n_k) + n_k; queries that are not given.
        UsageError: an option below its least; an allocation without its options.
    """
    numbers = working(qkv)
    if streaming and qkv.causal:
        return streamed(numbers, d, d // 2, accumulate=True, sets=sets)
    total, kept = numbers.q.new_zeros(qkv.h, qkv.n_k), Kept(qkv, qkv.tensors, "h2o")
    done, counted = 0, 0.0  # queries whose weights are summed, and their scores

    def score(observed: QKV, end: int) -> Tensor:
        nonlocal done
        if observe is None:
            # Segments follow each other, so only the rows of new queries are computed, once for all budgets.
            total[:, : observed.n_k] += kept.once((done, observed.n_q), partial(_sums_of, observed, done))
            done = observed.n_q
        sums = total if observe is None else _column_sums(observed)
        return sums[:, :end] / _queries_that_saw(observed, end) if average else sums[:, :end]

    def cost(observed: QKV, end: int) -> float:
        nonlocal counted
        before, counted = counted, float(observed.entries) if observe is None else 0.0
        return observed.entries - before

    return subset(
        numbers,
        d,
        score,
        every=every,
        scored=cost,
        last=0 if forced is False else d // 2,
        observe=observe,
        sets=sets,
        allocation=allocation,
        layers=layers,
    )


def _sums_of(observed: QKV, first: int) -> Tensor:
    """The `_column_sums` of the queries from ``first`` on."""
    return _column_sums(observed.queries(torch.arange(first, observed.n_q, device="cpu")))


def _column_sums(qkv: QKV) -> Tensor:
    """``Σ_i B_ij`` over the given queries and keys, (h, n_k)."""
    return exact(qkv).rmatmul(qkv.q.new_ones(qkv.h, qkv.n_q, 1))[..., 0]


def _queries_that_saw(qkv: QKV, end: int) -> Tensor:
    """The number of the given queries that see each of the first keys, (end,) int64."""
    if not qkv.causal:
        return torch.full((end,), qkv.n_q, device=qkv.device)
    at = torch.bincount(qkv.query_positions, minlength=end)[:end]
    return (qkv.n_q - at.cumsum(0) + at).clamp(min=1)
