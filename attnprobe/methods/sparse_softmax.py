"""The softmax of each row over selected columns, and the keys that its rows read."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor

from ..operators import Sparse
from ..operators.blocks import block_rows, row_blocks, row_groups
from ..operators.groups import of_heads, of_members, tokens
from ..operators.sparse import sparse_blocks
from ..operators.visible import Visible
from ..qkv import QKV

ROWS = 64  # of keys that are counted at a time on a CPU
BAND = 16  # rows of a band that share columns: one dense product, at most 15 columns wider than a row needs


def band(centre: Tensor, n_k: int, left: int, right: int, first: int, group: int) -> tuple[Tensor, Tensor]:
    """The columns ``0 … first - 1`` and ``c - left … c + right`` of each row, by groups of rows.

    Args:
        centre: c of each row, (n_q,) int64; within a group it grows by at most one from row to row.
        n_k: the number of columns of the matrix. group: the number of rows of a group.

    Returns:
        The columns of each group, (⌈n_q/group⌉, u) int64, and whether each row has them, (n_q, u) bool, on the CPU. u
        is at most ``first + left + right + group``, and at most n_k.

    >>> columns, has = band(torch.arange(4), 4, 0, 1, first=1, group=2)
    >>> columns
    tensor([[0, 1, 2, 3],
            [0, 2, 3, 3]])
    >>> has.int()
    tensor([[1, 1, 0, 0],
            [1, 1, 1, 0],
            [1, 1, 1, 0],
            [1, 0, 1, 0]], dtype=torch.int32)
    """
    first, n_q, centre = min(first, n_k), len(centre), centre.cpu()
    start, last = (centre - left).clamp(min=first), (centre + right).clamp(max=n_k - 1)  # (n_q,)
    width = max(0, min(left + right + group, n_k - first))
    columns = start[::group, None] + torch.arange(width, device="cpu")
    has = torch.ones(n_q, first + width, dtype=torch.bool, device="cpu")
    for groups, rows in row_groups(columns, n_q, group, width + 1):
        shared = columns[groups, None]  # (m, 1, u)
        low, high = (x[rows].unflatten(0, (len(shared), -1))[..., None] for x in (start, last))  # (m, group, 1)
        has[rows, first:] = ((shared >= low) & (shared <= high)).flatten(0, 1)
    columns = columns.clamp(max=n_k - 1)  # no row has the columns after the last key
    return torch.cat([torch.arange(first, device="cpu").expand(len(columns), first), columns], 1), has


def banded_softmax(
    qkv: QKV, left: int, right: int, first: int, skip: Tensor | None = None, causal: bool = False
) -> tuple[Sparse, Callable[[], Tensor], int]:
    """`sparse_softmax` of each row over the columns of `band` that it sees, and their number per head.

    The centre of a row is the position of its query. Rows of ``skip`` (n_q,) bool are empty. With ``causal``, a row
    leaves out first columns that come after it, as for causal Q, K, V. Sixteen consecutive rows share their columns, so
    the cost is ``n_q (u + 16) p`` multiply-adds for u columns in a row. Other rows do not share columns.
    """
    centre, visible = qkv.query_positions.cpu(), qkv.visible
    steps = centre.diff()
    # Columns can be shared only where the centre moves by at most one from row to row.
    group = BAND if bool(((steps >= 0) & (steps <= 1)).all()) else 1
    columns, has = band(centre, qkv.n_k, left, right, first, group)
    if visible is None and causal:
        visible = Visible(centre)
    if visible is not None:
        visible, of_group = visible.to(torch.device("cpu")), columns.repeat_interleave(group, 0)[: qkv.n_q]
        has &= ~visible.hides(of_group)
    if skip is not None:
        has[skip.cpu()] = False
    return *sparse_softmax(qkv, columns.expand(qkv.h, -1, -1), group, has, distinct=True), int(has.sum())


def seen_keys(qkv: QKV, index: Tensor, group: int = 1) -> Tensor:
    """The number of slots of `sparse_softmax` with a visible key, for each row, (h, n_q) int64.

    Args:
        index, group: as in `sparse_softmax`.
    """
    index, visible = index.to(qkv.device), qkv.visible
    if visible is None:
        return (index >= 0).sum(2).repeat_interleave(group, 1)[:, : qkv.n_q]
    counts = torch.empty(qkv.h, qkv.n_q, dtype=torch.int64, device=qkv.device)
    for groups, rows in row_groups(qkv.q, qkv.n_q, group, qkv.h * index.shape[2]):
        columns = index[:, groups]  # (h, m, u)
        hidden = visible.of(rows).hides_of_groups(columns).unflatten(1, (columns.shape[1], -1))
        seen = ~hidden & (columns >= 0)[:, :, None]
        counts[:, rows] = seen.view(torch.uint8).sum(3, dtype=torch.int32).flatten(1)
    return counts


def key_costs(qkv: QKV, index: Tensor, group: int = 1) -> dict[str, Callable[[], Tensor]]:
    """Functions that compute the numbers of keys that rows of `sparse_softmax` read, (h,) float64 on the CPU, by name.

    ``realised_d``, ``realised_d_p10`` and ``realised_d_p90`` are the mean and two quantiles over rows of the number of
    visible keys in the slots of a row, and ``visited`` is their sum. ``kv_read`` is the mean over queries of the number
    of distinct keys that the query heads of a KV head read together.
    """
    keys = cache(lambda: seen_keys(qkv, index, group).double())

    def read() -> Tensor:
        rows, keys_of = qkv.kv_rows, index.to(qkv.device)
        first_of = of_members(torch.tensor([members[0] for members in rows], device=qkv.device), rows)
        # whether the heads of a KV head read the same keys; most sets that differ do so in the last rows
        same = len(rows) == qkv.h or all(bool((x == x[first_of]).all()) for x in (keys_of[:, -1], keys_of))
        return (keys() if same else keys_of_groups(qkv, keys_of, group)).mean(1).cpu()

    return {
        "realised_d": lambda: keys().mean(1).cpu(),
        "realised_d_p10": lambda: keys().quantile(0.1, dim=1).cpu(),
        "realised_d_p90": lambda: keys().quantile(0.9, dim=1).cpu(),
        "visited": lambda: keys().sum(1).cpu(),
        "kv_read": read,
    }


def keys_of_groups(qkv: QKV, index: Tensor, group: int = 1) -> Tensor:
    """The number of distinct visible keys that the heads of a KV head read for each query, (h, n_q) float64.

    Args:
        index, group: as in `sparse_softmax`.
    """
    of_row, visible = torch.arange(qkv.n_q, device=qkv.device) // group, qkv.visible
    rows = qkv.kv_rows
    widest = max(map(len, rows))
    padded = [[*members, *members[:1] * (widest - len(members))] for members in rows]  # to read keys twice counts once
    members = torch.tensor(padded, device=qkv.device)
    counts = torch.empty(len(rows), qkv.n_q, dtype=torch.float64, device=qkv.device)
    for start, stop in row_blocks(qkv.n_q, block_rows(qkv.q, qkv.h * max(qkv.n_k, index.shape[2]), cpu=ROWS)):
        first, last = start // group, (stop - 1) // group
        keys = index[members, first : last + 1].transpose(1, 2).flatten(2)  # (h_kv, groups, members · u)
        read = torch.zeros(*keys.shape[:2], qkv.n_k + 1, dtype=torch.uint8, device=qkv.device)
        read.scatter_(2, keys + 1, 1)  # column 0 has the empty slots
        read = read[:, of_row[start:stop] - first, 1:]
        if visible is not None:
            read.masked_fill_(visible.of(slice(start, stop)).hidden(qkv.n_k), 0)
        counts[:, start:stop] = read.sum(-1, dtype=torch.int32)
    return of_members(counts, rows)


def seen_entries(qkv: QKV, index: Tensor, group: int = 1) -> Tensor:
    """The sum of `seen_keys` over the rows of each head, as (h,) float64 on the CPU."""
    return seen_keys(qkv, index, group).sum(1).double().cpu()


def sparse_softmax(
    qkv: QKV, index: Tensor, group: int = 1, has: Tensor | None = None, *, distinct: bool = False
) -> tuple[Sparse, Callable[[], Tensor]]:
    """The softmax of each row over its visible columns, (h, n_q, n_k), and a function that computes ``log D~``.

    ``B~_ij = exp(S_ij - max) / Σ_{j' in row i} exp(S_ij' - max)`` for the columns j of row i, otherwise 0. The shift by
    the maximum of the row cancels. A row without columns is zero. ``log D~_i = log Σ_{j in row i} exp(S_ij)``, (h,
    n_q).

    Args:
        index: the columns of each group of rows, (h, ⌈n_q/group⌉, u) int64; -1 is an empty slot.
        group: the number of rows of a group.
        distinct: no row has and sees a column twice.
        has: whether each row has, and sees, the columns of its group, (n_q, u) bool; None means all that it sees.

    Cost ``n_q u p`` multiply-adds a head; memory ``n_q u`` weights a head, and the gathered keys of one block.
    """
    q, k, visible = qkv.q, qkv.shared_k, qkv.visible
    h, n_q, p = q.shape
    index = index.to(q.device)
    has = None if has is None else has.to(q.device)
    weights = q.new_empty(h, n_q, index.shape[2])  # (h, n_q, u)
    for block in sparse_blocks(q, index, k.shape[1], p, group):
        columns, rows = block.columns, block.rows  # (g, m, u)
        scores = block.scores(qkv.scale * block.grouped(q), of_heads(k, block.heads, h))  # (g, m, group, u)
        if qkv.terms is not None:
            of_rows = columns.repeat_interleave(scores.shape[2], 1)  # (g, r, u)
            scores = qkv.terms.applied_at(scores.flatten(1, 2), block.heads, rows, of_rows).view(scores.shape)
        absent = (columns < 0)[:, :, None]
        if has is not None:
            absent = absent | ~has[rows].unflatten(0, (columns.shape[1], -1))
        elif visible is not None:
            absent = absent | visible.of(rows).hides_of_groups(columns).view(scores.shape)
        scores = scores.masked_fill_(absent, float("-inf"))
        row = torch.softmax(scores, -1)
        # The backward pass of softmax needs its result, which may then not be overwritten.
        fill = row.masked_fill if row.requires_grad else row.masked_fill_
        weights[block.heads, rows] = fill(absent, 0).flatten(1, 2)  # a row without a column was NaN
    operator = Sparse(index, weights, k.shape[1], group, zeroed=True, distinct=distinct)
    return operator, partial(_log_sums, qkv, operator)


def _log_sums(qkv: QKV, softmax: Sparse) -> Tensor:
    """``log D~_i = S_ij - log B~_ij`` at the largest weight of each row, (h, n_q); -∞ for a row without columns."""
    largest, slot = softmax.weight.max(-1)
    head, row = (torch.arange(size, device=qkv.device) for size in slot.shape)
    column = softmax.index[head[:, None], row // softmax.group, slot]
    scores = qkv.scale * (qkv.q * tokens(qkv.shared_k, column)).sum(-1)
    if qkv.terms is not None:
        scores = qkv.terms.applied_at(scores[..., None], slice(None), slice(None), column[..., None])[..., 0]
    return (scores - largest.log()).masked_fill(largest == 0, float("-inf"))
