"""Grouped queries (GQA): consecutive query heads that share a head of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import gcd

import torch  # noqa: F401  (in the examples)
from torch import Tensor


def shared_heads(heads: Sequence[int], group: int) -> list[int]:
    """The KV heads that some query heads read, each once for as many consecutive query heads as possible.

    Query head i reads KV head ``i // group``. Every KV head of the result belongs to the same number of query heads.

    >>> shared_heads([0, 1, 2, 3], group=2), shared_heads([4, 5, 6], group=4), shared_heads([1, 2], group=2)
    ([0, 1], [1], [0, 1])
    >>> shared_heads([2, 3, 4], group=4)
    [0, 0, 1]
    """
    read = [head // group for head in heads]
    together = gcd(*(len(list(same)) for _, same in groupby(read)))
    return read[::together]


def as_index(rows: Sequence[int]) -> list[int] | slice:
    """The rows as an index: a slice, which copies nothing, if they are consecutive; otherwise a list."""
    rows = list(rows)
    if rows == list(range(rows[0], rows[-1] + 1)):
        return slice(rows[0], rows[-1] + 1)
    return rows


def of_heads(x: Tensor, some: slice, heads: int) -> Tensor:
    """The KV heads of x (h_kv, n, ·) that a slice of ``heads`` query heads read.

    It is a view if the slice consists of entire groups or is within one group.

    >>> of_heads(torch.arange(3.0)[:, None, None], slice(2, 4), heads=6).flatten()
    tensor([1.])
    """
    return x[as_index(shared_heads(range(heads)[some], heads // len(x)))]


def repeated(x: Tensor, heads: int) -> Tensor:
    """x (h_kv, …) of KV heads, repeated for each of h query heads, (h, …)."""
    return x if len(x) == heads else x.repeat_interleave(heads // len(x), 0)


def of_members(x: Tensor, rows: Sequence[Sequence[int]]) -> Tensor:
    """The part of x (m, …) of each set for its members, (h, …); ``rows`` are the members of the m sets.

    >>> of_members(torch.tensor([10, 20]), [[0, 2], [1]])
    tensor([10, 20, 10])
    """
    set_of = {row: number for number, members in enumerate(rows) for row in members}
    return x[torch.tensor([set_of[row] for row in range(len(set_of))], device=x.device)]


def folded(x: Tensor, kv_heads: int) -> Tensor:
    """The rows of the query heads of each group, concatenated: (…, h, b, ·) as (…, h_kv, group · b, ·)."""
    return x if x.shape[-3] == kv_heads else x.unflatten(-3, (kv_heads, -1)).flatten(-3, -2)


def unfolded(x: Tensor, heads: int) -> Tensor:
    """The inverse of `folded`: (…, h_kv, group · b, ·) as (…, h, b, ·). Contiguous rows are not copied."""
    group = heads // x.shape[-3]
    return x if group == 1 else x.unflatten(-2, (group, -1)).flatten(-4, -3)


def tokens(x: Tensor, index: Tensor) -> Tensor:
    """The rows ``index`` (h, u) of ``x`` (h or h_kv, n, p), as (h, u, p). An empty slot, -1, gets row 0."""
    h_kv, n, p = x.shape
    heads = torch.arange(len(index), device=x.device)[:, None] // (len(index) // h_kv)
    first = n * heads  # of the rows of all heads, one after another
    return x.reshape(h_kv * n, p).index_select(0, (index.clamp(min=0) + first).flatten()).view(*index.shape, p)
