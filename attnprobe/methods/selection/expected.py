"""Expected attention (Devoto et al. 2025): it selects keys by their expected weight under Gaussian queries.

μ and Σ are the mean and the covariance of the queries. ``E exp(s q·k) = exp(s μ·k + s²/2 kᵀΣk)``. RoPE turns a pair of
coordinates ``(q_i, q_j)`` of a query at position c by c times the angle of the pair: ``θ^(-2i/p)`` for j = i + p/2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import UsageError
from ...operators.blocks import block_rows, row_blocks
from ...operators.groups import repeated
from ...operators.linalg.norms import row_norms
from ...operators.precision import product
from ...qkv import QKV
from ...rng import Streams
from ..rope import MODEL, Turns
from .base import Selection, working
from .subsets import Allocation, Sets, check_subset, subset, subset_selector

KEYS = 2**12  # of each head, scored at a time on a CPU: they stay in the cache
AHEAD = 512  # positions over which RoPE is averaged


def _check(target: str, **options: Any) -> None:
    """Refuse options out of their limits, and another word for ``rope``."""
    if isinstance(options["rope"], str):
        if options["rope"] != MODEL:
            raise UsageError(f"expected: rope={options['rope']} is neither {MODEL} nor the base of a RoPE")
        options = {**options, "rope": None}
    check_subset("expected", "every", "first", "observe", "rope")(target, **options)


@subset_selector(
    name="expected",
    paper="Devoto et al., Expected Attention",
    year=2025,
    tags=("uses_values", "causal"),
    cost="2 n d p + O(n² p)",
    validate=_check,
    compress={"every": 1},
    small={"observe": 3, "first": 1},
)
def expected(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    observe: int = 64,
    first: int = 4,
    rope: float | str | None = None,
    every: int = 64,
    sets: Sets = "group",
    allocation: Allocation = "uniform",
    layers: int | None = None,
) -> Selection:
    """The softmax of each row over its segment and the keys before it with the largest ``softmax_j(log E_j) · ‖v_j‖``.

    ``log E_j = s μ·k_j + s²/2 k_jᵀ Σ k_j`` with the scale s. By default μ and Σ are those of the last ``observe``
    queries before the segment, as captured, after RoPE. With ``rope`` they are those of the paper and of kvpress'
    ``ExpectedAttentionPress``: of all queries but the ``first`` ones, turned back by RoPE and then by its mean over the
    next 512 positions; the softmax is over the keys behind the ``first`` ones. Source: Devoto et al. 2025, section 3.

    Options:
        observe: the number of queries to which the Gaussian is fitted, without ``rope``.
        first: the number of first keys that are always selected.
        rope: ``model`` takes the pairs and angles of the layer's own RoPE, as they were measured: scaled ones, other
            pairs and a part of the coordinates too; a number is the base θ of the angles ``θ^(-2i/p)`` of the pairs
            (i, i + p/2), such as 100000.
        every: the number of tokens of a segment, at most d/2. Keys of causal rows are selected again at each segment.
            A row keeps room for its segment, so for a small d a smaller ``every`` leaves more room for older keys.
        sets: ``group``: the query heads of a KV head have one set, by their mean weight; ``head``: each has its own.
            The mean is over the given heads, so a part of a group has other sets.
        allocation, layers: the distribution of keys over heads and layers, as in ``snapkv``.

    Shapes: index (h, ⌈n_q/s⌉, d), weights (h, n_q, d), output (h, n_q, p_v). Deterministic; cost ``n d (p + p_v)`` and
    ``p² n`` for each segment; memory O(n d). ``scored`` is p + 1 scores for each key of a selection.

    Raises:
        Unsupported: d above max(n_q, n_k) + n_k; queries that are not given; a base with an odd p; ``rope=model`` for
            a layer without RoPE, one whose queries depend on the position in another way, and inputs without a model.
        UsageError: an option below its least; another word than ``model``; an allocation without its options.
    """
    numbers = working(qkv)
    lengths = repeated(row_norms(numbers.shared_v), qkv.h)
    turns = None
    if rope is not None:
        turns = Turns.of(qkv, rope, "expected", f"rope={rope}", "leave rope out, or name a base")

    def score(observed: QKV, end: int) -> Tensor:
        queries = observed.q
        if turns is not None:
            spared = first if first < min(end, observed.n_q) else 0
            places = observed.in_text(observed.query_positions)
            behind = int(observed.in_text(torch.tensor([end - 1], device=qkv.device))) + 1
            queries = _ahead(queries, places, behind, turns)[:, spared:]
        mean = queries.mean(1, keepdim=True)  # (h, 1, p)
        away = queries - mean
        covariance = away.mT @ away / queries.shape[1]  # (h, p, p)
        log_weights = []
        for start, stop in row_blocks(end, block_rows(numbers.q, qkv.h * qkv.p, cpu=KEYS)):
            keys = qkv.scale * repeated(numbers.shared_k[:, start:stop], qkv.h)  # (h, b, p)
            log_weights.append((keys @ mean.mT)[..., 0] + (product(keys, covariance) * keys).sum(-1) / 2)
        scores = torch.cat(log_weights, 1)
        if rope is not None and first < end:
            scores[:, :first] = float("-inf")
        return scores.softmax(-1) * lengths[:, :end]

    return subset(
        numbers,
        d,
        score,
        every=every,
        scored=lambda observed, end: float(end * (qkv.p + 1)),
        first=first,
        observe=observe if rope is None else None,
        sets=sets,
        allocation=allocation,
        layers=layers,
    )


def _ahead(queries: Tensor, positions: Tensor, end: int, turns: Turns) -> Tensor:
    """Queries (h, n, p) turned back by the RoPE of their positions, and by its mean over the positions from ``end``."""
    later = torch.arange(end, end + AHEAD, device=queries.device)
    return turns.turned(queries, turns.phases(-positions) * turns.phases(later).mean(0))
