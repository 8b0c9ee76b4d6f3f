"""TOVA (Oren et al. 2024): the key to which the last query attends least leaves the cache."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ...qkv import QKV
from ...reference import exact
from ...rng import Streams
from .base import Selection, working
from .subsets import check_subset, streamed, subset, subset_selector


@subset_selector(
    name="tova",
    paper="Oren et al., TOVA",
    year=2024,
    tags=("shift_invariant", "causal"),
    cost="2 n d p",
    validate=check_subset("tova", "every"),
    compress={"every": 1, "streaming": False},
    small={"sets": "head"},
)
def tova(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    streaming: bool = True,
    every: int = 64,
    sets: Literal["layer", "group", "head"] = "layer",
) -> Selection:
    """The softmax of each row over a cache of d keys, which each token enters in the place of the least attended one.

    The weights are those of the last query over the cache. They are averaged over the given heads, so a head alone has
    other sets. Evicted keys never return. Source: Oren et al. 2024, section 3.

    With ``streaming=false``, and for inputs that are not causal, a set is selected at once from all earlier keys, by
    the exact weights of the last query before the segment, as in kvpress.

    Options:
        streaming: evict one key at each token, as in the paper; ``false`` selects all keys at the start of a segment.
        every: the number of tokens of a segment, at most d/2, for ``streaming=false``.
        sets: ``layer``: all heads have one set, by their mean weight; ``group``: the query heads of a KV head have one;
            ``head``: each has its own.

    Shapes: index and weights (h, n_q, d), output (h, n_q, p_v). Deterministic; cost ``n d (p + p_v)``, in n steps if
    streaming; memory O(n d). ``scored`` is 0 if streaming, otherwise one score for each key of a selection.

    Raises:
        Unsupported: d above max(n_q, n_k) + n_k; queries that are not given. UsageError: ``every`` below 1.
    """
    numbers = working(qkv)
    if streaming and qkv.causal:
        return streamed(numbers, d, 0, accumulate=False, sets=sets)

    def score(observed: QKV, end: int) -> Tensor:
        return exact(observed).rows(0, 1)[:, 0, :end]

    return subset(numbers, d, score, every=every, observe=1, sets=sets)
