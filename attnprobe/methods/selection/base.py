"""Helpers of methods that select keys: sets of keys, the exact softmax over them, their size and their cost.

Row i is at position c(i) and sees the keys up to c(i) if attention is causal. Its set has at most d keys, including
forced ones. Page g has the keys ``g P … (g + 1) P - 1``. The own page of a row is the page of its position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from ...operators.blocks import block_rows, row_blocks
from ...operators.groups import as_index, of_members
from ...operators.linalg.order import largest_scores
from ...operators.precision import full_precision, ordered_sums
from ...qkv import QKV
from ..base import Approximation, Counted, per_head
from ..registry import DISTRIBUTIONS, KEYS, register
from ..sparse_softmax import key_costs, sparse_softmax

ROWS = 64  # of one head, whose scores are in memory at a time on a CPU
COMMON_TAGS = ("deterministic", *DISTRIBUTIONS, "exact_at_full_budget", "biases")


@dataclass(frozen=True, eq=False)
class Selection:
    """The selected keys of each group of rows, and the cost of the selection.

    Attributes:
        index: (h, ⌈n_q/group⌉, u) int64, each key at most once; -1 is an empty slot. Keys that a row does not see are
            not in its set.
        group: the number of consecutive rows that share a set.
        scored: the number of scores that the selector computed for all rows of a head; a score is an inner product of p
            numbers.
        draws: see `Approximation`.
    """

    index: Tensor
    group: int
    scored: float
    draws: Mapping[str, Tensor] = field(default_factory=dict)


def selector(**facts: Any) -> Callable[[Callable[..., Approximation]], Callable[..., Approximation]]:
    """`register` for a method that selects keys, with the family, target, limit and claims that all of them have.

    ``deterministic=False`` is for one that draws.
    """
    common = COMMON_TAGS if facts.pop("deterministic", True) else COMMON_TAGS[1:]
    tags = common + tuple(facts.pop("tags"))
    shared = {"family": "selection", **KEYS, "exact_at": lambda n: (n, {})}
    oracle = "torch scaled_dot_product_attention under its mask"
    return register(**{**shared, "oracle": oracle, **facts, "tags": tags})


def attend(qkv: QKV, selection: Selection) -> Approximation:
    """The exact softmax of each row over its set, with the size of the sets and the cost of the selection.

    Its diagnostics are those of `key_costs`, and ``scored``, the mean number of scores that the selector computed for a
    row. Cost ``n_q u p`` multiply-adds a head for sets of u keys.
    """
    operator, log_normalizer = sparse_softmax(qkv, selection.index, selection.group, distinct=True)
    return Approximation.of(operator, qkv, log_normalizer=log_normalizer, **facts_of(qkv, selection))


def facts_of(qkv: QKV, selection: Selection) -> dict[str, Any]:
    """What `attend` states of a selection, as attributes of an `Approximation`."""
    scored = {"scored": lambda: per_head(qkv.h, selection.scored / qkv.n_q)}
    diagnostics = Counted(key_costs(qkv, selection.index, selection.group) | scored)
    return {"draws": selection.draws, "diagnostics": diagnostics, "keys": partial(_keys_of_rows, qkv, selection)}


def _keys_of_rows(qkv: QKV, selection: Selection) -> Tensor:
    """The visible keys of each row in their slots, (h, n_q, u) int64; -1 in other slots."""
    of_row = torch.arange(qkv.n_q, device=qkv.device) // selection.group
    keys = selection.index.to(qkv.device)[:, of_row]
    visible = qkv.visible
    return keys if visible is None else keys.masked_fill(visible.hides(keys), -1)


Share = Literal["head", "group-mean", "group-max"]
AnySets = Literal["layer", "group", "head"]


def rows_of_sets(qkv: QKV, sets: AnySets) -> list[list[int]]:
    """The rows of the given heads that have the same set of keys: all, those of each KV head, or each by itself."""
    if sets == "layer":
        return [[*range(qkv.h)]]
    return qkv.kv_rows if sets == "group" else [[row] for row in range(qkv.h)]


def shared(scores: Tensor, qkv: QKV, share: Share) -> Tensor:
    """Scores (h, …) of query heads, (h, …): their own, or the mean or the largest of the given heads of a KV head."""
    rows = rows_of_sets(qkv, "head" if share == "head" else "group")
    reduced = _reduced(scores, rows, share == "group-mean")
    return reduced if len(rows) == qkv.h else of_members(reduced, rows)


def joint(scores: Tensor, qkv: QKV, sets: AnySets) -> Tensor:
    """Scores (h, …) as means over the given heads with the same set, (h, …): those of the layer, or of a KV head."""
    means, rows = means_of_sets(scores, qkv, sets), rows_of_sets(qkv, sets)
    return means if len(rows) == qkv.h else of_members(means, rows)


def means_of_sets(scores: Tensor, qkv: QKV, sets: AnySets) -> Tensor:
    """The mean of the scores (h, …) of each set of `rows_of_sets`, (m, …)."""
    return _reduced(scores, rows_of_sets(qkv, sets), mean=True)


def _reduced(scores: Tensor, rows: Sequence[Sequence[int]], mean: bool) -> Tensor:
    """The mean or the largest of the scores (h, …) of each set of rows, (m, …)."""
    if len(rows) == len(scores):
        return scores
    parts = [scores[as_index(of_set)] for of_set in rows]
    return torch.stack([part.mean(0) if mean else part.amax(0) for part in parts])


def working(qkv: QKV) -> QKV:
    """``qkv`` without gradients, and in float32 instead of half precision, in which scores of keys would tie."""
    parts = qkv.parts()
    detached = {axis: parts[axis].detach() for axis in "qkv"}
    return widened(qkv.replace(**detached, all_queries=qkv.all_queries))


def observed(qkv: QKV) -> QKV:
    """`working` inputs with the queries that a choice of keys looks at: those of all tokens where they are given."""
    return working(qkv.complete() or qkv)


def last_queries(qkv: QKV, count: int) -> QKV:
    """The inputs of the last ``count`` queries."""
    return qkv.queries(torch.arange(max(0, qkv.n_q - count), qkv.n_q, device="cpu"))


def widened(qkv: QKV) -> QKV:
    """``qkv`` in float32 instead of half precision."""
    return qkv.to(dtype=torch.float32) if qkv.dtype.itemsize < 4 else qkv


def top_pages(scores: Tensor, position: Tensor, d: int, page: int, n_k: int, causal: bool) -> Tensor:
    """The own page of each row, and as many other pages of the largest scores as fit in d keys, (h, b, m); -1 is none.

    A row that sees at most d keys has all of their pages.

    Args:
        scores: (h, b, ⌈n_k/page⌉); -∞ is a page that must not be chosen.
        position: c(i), (b,) int64.
    """
    pages = scores.shape[2]
    own = position // page
    number = torch.arange(pages, device=scores.device)
    later = number > own[:, None] if causal else torch.zeros_like(number, dtype=torch.bool)
    scores = scores.masked_fill(later | (number == own[:, None]), float("-inf"))
    seen = position + 1 if causal else torch.full_like(position, n_k)
    # Only the own page is partly visible: its visible keys alone count against d.
    of_own = torch.minimum(seen - own * page, torch.full_like(seen, page))
    others = ((d - of_own) // page).clamp(min=0)
    others = torch.where(seen <= d, torch.full_like(others, pages), others)
    chosen = largest_scores(scores, (d - 1) // page)[1]  # each has room for a key of its own page too
    rank = torch.arange(chosen.shape[2], device=scores.device)
    chosen = chosen.masked_fill(rank >= others[:, None], -1)
    return torch.cat([own[None, :, None].expand(len(scores), -1, 1), chosen], 2)


def keys_of_pages(pages: Tensor, page: int, n_k: int) -> Tensor:
    """The keys of pages (h, b, m), as (h, b, m · page) int64; -1 in empty slots."""
    keys = (pages[..., None] * page + torch.arange(page, device=pages.device)).clamp_(min=-1)
    return (keys if n_k % page == 0 else keys.masked_fill_(keys >= n_k, -1)).flatten(2)


@full_precision()
def row_pages(
    qkv: QKV, d: int, page: int, queries: Tensor, position: Tensor, score: Callable[[Tensor], Tensor]
) -> Tensor:
    """The `top_pages` of some queries, (h, b, m), from the scores of all pages, for a few queries at a time.

    Args:
        queries: (h, b, p). position: the place of each in the text, (b,) int64.
        score: ``(h, b', p) -> (h, b', pages)``, for some of the queries.
    """
    chosen = []
    for start, stop in row_blocks(len(position), block_rows(queries, len(queries) * -(-qkv.n_k // page), cpu=ROWS)):
        scores = score(queries[:, start:stop])
        chosen.append(top_pages(scores, position[start:stop], d, page, qkv.n_k, qkv.causal))
    return torch.cat(chosen, 1)


def page_means(x: Tensor, page: int, position: Tensor | None = None) -> Tensor:
    """The mean of the tokens of ``x`` (h, n, p) in each page, (h, pages, p); 0 for a page without tokens.

    Args:
        place: the number of each token in the text, (n,) int64; None is 0 … n - 1.
    """
    position = torch.arange(x.shape[1], device=x.device) if position is None else position
    pages = int(position.max()) // page + 1
    with ordered_sums(x.device):
        sums = x.new_zeros(len(x), pages, x.shape[2]).index_add_(1, position // page, x)
    counts = torch.bincount(position // page, minlength=pages).clamp(min=1)
    return sums / counts[:, None].to(x.dtype)


def last_of_blocks(count: int, size: int, qkv: QKV) -> Tensor:
    """The position of the last token of the first ``count`` blocks of tokens, (count,) int64."""
    return (torch.arange(1, count + 1, device=qkv.device) * size - 1).clamp(max=qkv.n_k - 1)


def pages_seen(qkv: QKV, page: int, position: Tensor) -> float:
    """The number of pages of keys that queries at these positions see, summed: the scores of a selector of pages."""
    if qkv.causal:
        return float((position // page + 1).sum())
    return float(len(position) * -(-qkv.n_k // page))


def of_block_rows(qkv: QKV, pages: Tensor, page: int) -> tuple[Tensor, int]:
    """``index`` and ``group`` of the keys of the pages (h, block rows, m) of each block of queries.

    Queries are in the block of their position. They share an index if they fill their blocks.
    """
    keys = keys_of_pages(pages, page, qkv.n_k)
    block = qkv.query_positions // page
    if fills_blocks(qkv, page):
        return keys[:, int(block[0]) : int(block[-1]) + 1], page
    return keys[:, block], 1


def fills_blocks(qkv: QKV, size: int) -> bool:
    """Whether the queries are consecutive from the start of a block of ``size`` tokens on, so that rows share sets."""
    position = qkv.query_positions
    follow = torch.arange(len(position), device=position.device) + position[0]
    return int(position[0]) % size == 0 and torch.equal(position, follow)
