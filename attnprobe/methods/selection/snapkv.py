"""SnapKV (Li et al. 2024): it selects the keys to which the last queries of the prompt attend."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from ...qkv import QKV
from ...reference import exact
from ...rng import Streams
from .base import Selection, working
from .subsets import Allocation, Sets, check_subset, subset, subset_selector


@subset_selector(
    name="snapkv",
    paper="Li et al., SnapKV",
    year=2024,
    tags=("shift_invariant", "causal"),
    cost="2 n d p + O(n² p)",
    validate=check_subset("snapkv", "every", "observe", "kernel"),
    compress={"every": 1},
    small={"observe": 3, "kernel": 3},
)
def snapkv(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    observe: int = 64,
    kernel: int = 5,
    every: int = 64,
    sets: Sets = "group",
    allocation: Allocation = "uniform",
    layers: int | None = None,
) -> Selection:
    """The softmax of each row over its segment and the keys before it with the largest pooled weight of recent queries.

    The score of key j is the mean of ``B_ij`` over the last ``observe`` queries i before the segment, averaged over
    ``kernel`` neighbours of j; neighbours beyond the ends count as 0. The last ``observe`` keys before the segment are
    always selected, up to half of the room. Source: Li et al. 2024, section 4, where the prompt is one segment. The
    authors' code has a set for each query head (``sets=head``) and sums over the queries, which gives the same order.
    It pools only keys before the observed window, so the scores of the last two of these differ.

    Options:
        observe: the number of queries that choose the keys.
        kernel: the width of the average over neighbours, odd.
        every: the number of tokens of a segment, at most d/2. Keys of causal rows are selected again at each segment.
            A row keeps room for its segment, so for a small d a smaller ``every`` leaves more room for older keys.
        sets: ``group``: the query heads of a KV head have one set, by their mean score; ``head``: each has its own. The
            mean is over the given heads, so a part of a group has other sets.
        allocation: the distribution of keys. ``uniform``: every head has the same number; ``ada``: d on average, the
            best keys of all heads together, and for each head at least a fifth of its room (Feng et al. 2024, Ada-KV);
            ``pyramid``: fewer keys from layer to layer (Cai et al. 2024, PyramidKV).
        layers: the number of the model's layers, for ``pyramid``.

    Shapes: index (h, ⌈n_q/s⌉, d), weights (h, n_q, d), output (h, n_q, p_v). Deterministic; cost ``n d (p + p_v)`` and
    the ``scored`` scores, those of ``observe`` queries before each segment; memory O(n d).

    Raises:
        Unsupported: d above max(n_q, n_k) + n_k; queries that are not given.
        UsageError: an option below its least; an even ``kernel``; an allocation without its options.
    """
    numbers = working(qkv)

    def score(observed: QKV, end: int) -> Tensor:
        weights = exact(observed).rows(0, observed.n_q)[..., :end].mean(1)
        return functional.avg_pool1d(weights[:, None], kernel, 1, kernel // 2)[:, 0]

    return subset(
        numbers,
        d,
        score,
        every=every,
        scored=lambda observed, end: float(observed.entries),
        last=observe,
        observe=observe,
        sets=sets,
        allocation=allocation,
        layers=layers,
    )
