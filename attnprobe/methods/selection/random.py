"""Random keys: the floor of every choice of keys."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...qkv import QKV
from ...rng import Streams, hashed_uniform
from .base import Selection, working
from .subsets import Sets, check_subset, subset, subset_selector


@subset_selector(
    name="random",
    paper="random keys beside the sinks of StreamingLLM, a floor",
    year=2024,
    tags=("causal", "decodes"),
    deterministic=False,
    cost="2 n d p",
    validate=check_subset("random", "first", "every"),
    compress={"every": 1},
)
def random(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    first: int = 4,
    every: int = 64,
    sets: Sets = "group",
) -> Selection:
    """The softmax of each row over its segment, the first keys, and keys before it that are drawn at random.

    A method that chooses keys must beat it.

    Options:
        first: the number of first keys, attention sinks, that stay.
        every: the number of tokens of a segment, at most d/2.
        sets: ``group``: the query heads of a KV head have one set; ``head``: each has its own.

    Shapes: index (h, ⌈n_q/s⌉, d), weights (h, n_q, d), output (h, n_q, p_v). The draws ``scores`` are (h, n_k); keys of
    the largest are kept. Cost ``n d (p + p_v)``, memory O(n d).

    Raises:
        Unsupported: d above max(n_q, n_k) + n_k. UsageError: ``every`` below 1, or a negative ``first``.
    """
    first_of = [heads[0] for heads in qkv.kv_groups]  # of the source, so that a part of a group has the same draws
    drawn = [first_of[number] for number in qkv.kv_numbers] if sets == "group" else qkv.heads
    keys = torch.tensor([streams.key(head) for head in drawn], device="cpu")
    scores = hashed_uniform(keys, qkv.n_k)

    def score(observed: QKV, end: int) -> Tensor:
        return scores[:, :end].to(qkv.device)

    selection = subset(working(qkv), d, score, every=every, first=first, sets=sets)
    return replace(selection, draws={"scores": scores})
