"""Sparse operators: a few entries in each row, in columns of its own, of its group of rows, or of all rows."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..errors import UsageError
from .base import Operator
from .blocks import reach, row_blocks, row_groups
from .groups import tokens
from .precision import ordered_sums, product

STREAMED = 20  # columns that a CPU reads one after another in the time in which it gathers one
DENSE_COLUMNS = 2**12  # with more columns, a dense block has no fewer rows: few rows do not pay for reading a column


class _Indexed(Operator):
    """Weights at the columns of an index, both with heads first: what `Sparse` and `Columns` have in common."""

    index: Tensor
    weight: Tensor

    def heads(self, index: slice) -> Self:
        return self._made_of(self.index[index], self.weight[index])

    def to(self, dtype: torch.dtype) -> Self:
        return self._made_of(self.index, self.weight.to(dtype))

    def _made_of(self, index: Tensor, weight: Tensor) -> Self:
        """The same columns in other heads or another dtype, without repeated checks."""
        made = copy(self)
        made.index, made.weight = index, weight
        made.shape, made.dtype = (weight.shape[0], *self.shape[1:]), weight.dtype
        return made


class Sparse(_Indexed):
    """``u`` entries in each row: columns ``index`` (h, ⌈n_q/group⌉, u) with ``weight`` (h, n_q, u).

    Row i has the columns ``index[i // group]``. The rows of a group share their columns, so a product gathers the
    operand once for them. A column that a row of the group does not have has a weight of zero. A negative index is an
    empty slot; its weight is not used. Entries with the same column in a row add up. A product with c columns costs
    ``n_q u c`` multiply-adds, or ``n_q n_k c`` where that takes less time (see `SparseBlock`).

    Args:
        zeroed: the weights of empty slots are zero already.
        distinct: no row has a column twice.
    """

    def __init__(
        self,
        index: Tensor,
        weight: Tensor,
        n_k: int,
        group: int = 1,
        zeroed: bool = False,
        distinct: bool = False,
    ) -> None:
        h, n_q, u = weight.shape
        if index.shape != (h, -(-n_q // group), u) or int(index.max()) >= n_k:
            shapes = f"index {tuple(index.shape)} does not fit weight {tuple(weight.shape)}"
            raise UsageError(f"sparse: {shapes}, n_k={n_k}, group={group}")
        if not zeroed and (empty := index < 0).any():
            weight = weight.masked_fill(empty.repeat_interleave(group, 1)[:, :n_q], 0)
        self.index, self.weight, self.group, self.distinct = index, weight, group, distinct
        self.shape = (h, n_q, n_k)
        self.dtype, self.device = weight.dtype, weight.device

    def _apply(self, x: Tensor) -> Tensor:
        return _Product.apply(self.index, self.weight, x, self.group)

    def _apply_transpose(self, y: Tensor) -> Tensor:
        return _transposed(self.index, self.weight, y, self.group, self.shape[2])

    def slots(self, start: int, stop: int) -> tuple[Tensor, Tensor] | None:
        return (self._columns(start, stop), self.weight[:, start:stop]) if self.distinct else None

    def _columns(self, start: int, stop: int) -> Tensor:
        """The columns of rows, (h, stop - start, u)."""
        if self.group == 1:
            return self.index[:, start:stop]
        return self.index[:, torch.arange(start, stop, device=self.device) // self.group]

    def _rows(self, start: int, stop: int) -> Tensor:
        index = self._columns(start, stop).clamp(min=0)
        block = self.weight.new_zeros(self.shape[0], stop - start, self.shape[2])
        with ordered_sums(self.device):
            return block.scatter_add_(2, index, self.weight[:, start:stop])


class Columns(_Indexed):
    """The same few columns in every row: ``A Sel``, with ``weight`` A (h, n_q, d) at the columns ``index`` (h, d).

    Columns that repeat add up. A product gathers d rows of its operand and costs ``n_q d c`` multiply-adds for c
    columns.
    """

    def __init__(self, weight: Tensor, index: Tensor, n_k: int) -> None:
        if index.shape != (weight.shape[0], weight.shape[2]) or int(index.min()) < 0 or int(index.max()) >= n_k:
            raise UsageError(f"columns: index {tuple(index.shape)} for weight {tuple(weight.shape)}, n_k={n_k}")
        self.weight, self.index = weight, index
        self.shape = (weight.shape[0], weight.shape[1], n_k)
        self.dtype, self.device = weight.dtype, weight.device

    def _apply(self, x: Tensor) -> Tensor:
        return product(self.weight, torch.gather(x, 1, self.index[:, :, None].expand(-1, -1, x.shape[2])))

    def _apply_transpose(self, y: Tensor) -> Tensor:
        out = y.new_zeros(self.shape[0], self.shape[2], y.shape[2])
        terms = self.weight.mT @ y
        with ordered_sums(self.device):
            return out.scatter_add(1, self.index[:, :, None].expand(-1, -1, y.shape[2]), terms)

    def _rows(self, start: int, stop: int) -> Tensor:
        weight = self.weight[:, start:stop]
        block = weight.new_zeros(self.shape[0], stop - start, self.shape[2])
        with ordered_sums(self.device):
            return block.scatter_add_(2, self.index[:, None, :].expand_as(weight), weight)


@dataclass(frozen=True, eq=False)
class SparseBlock:
    """A block of rows of a sparse matrix.

    A product with few columns gathers these. With many it reads all columns one after another, and the block is dense
    for as long as that takes.

    Attributes:
        heads, rows: where the block is.
        columns: (g, m, u) int64, of each group of r rows; -1 is an empty slot.
        dense: whether products read all columns.
    """

    heads: slice
    rows: slice
    columns: Tensor
    dense: bool

    def grouped(self, x: Tensor) -> Tensor:
        """The block's part of x (h, n_q, c), as (g, m, r, c)."""
        return x[self.heads, self.rows].unflatten(1, (self.columns.shape[1], -1))

    def scores(self, y: Tensor, x: Tensor) -> Tensor:
        """``y_i · x_j`` for y (g, m, r, c), x (g, n_k, c) and the columns j of each row, (g, m, r, u)."""
        if not self.dense:
            return y @ self._gathered(x).mT
        seen = x[:, : self._reach(x.shape[1])]
        every = product(y.flatten(1, 2), seen.mT).unflatten(1, y.shape[1:3])  # (g, m, r, reach)
        return every.gather(3, self._of_rows(y.shape[2]))

    def product(self, weight: Tensor, x: Tensor) -> Tensor:
        """``Σ_j w_ij x_j`` for weights (g, m, r, u) of the columns j of each row and x (g, n_k, c), (g, m · r, c)."""
        if not self.dense:
            return (weight @ self._gathered(x)).flatten(1, 2)
        seen = x[:, : self._reach(x.shape[1])]
        return product(self._dense(weight, seen.shape[1]), seen)

    def add_transposed(self, out: Tensor, weight: Tensor, y: Tensor) -> None:
        """Add ``Σ_i w_ij y_i`` of y (g, m, r, c) to the columns j of ``out`` (g, n_k, c)."""
        if self.dense:
            seen = out[:, : self._reach(out.shape[1], 64)]
            seen += product(self._dense(weight, seen.shape[1]).mT, y.flatten(1, 2))
            return
        terms = weight.mT @ y  # (g, m, u, c)
        first = out.shape[1] * torch.arange(len(out), device=out.device)[:, None, None]
        with ordered_sums(out.device):
            out.flatten(0, 1).index_add_(0, (self.columns.clamp(min=0) + first).flatten(), terms.flatten(0, 2))

    def _gathered(self, x: Tensor) -> Tensor:
        """The rows of x (g or g_kv, n_k, c) at the columns, (g, m, u, c)."""
        return tokens(x, self.columns.flatten(1)).unflatten(1, (self.columns.shape[1], -1))

    def _reach(self, n_k: int, step: int | None = None) -> int:
        """The number of columns up to the block's last one, see `reach`: causal rows see the first ones."""
        return reach(max(0, int(self.columns.max())), n_k, step)

    def _of_rows(self, group: int) -> Tensor:
        """The columns of each row, (g, m, r, u)."""
        return self.columns.clamp(min=0)[:, :, None].expand(-1, -1, group, -1)

    def _dense(self, weight: Tensor, n_k: int) -> Tensor:
        """The block with all columns, (g, m · r, n_k)."""
        block = weight.new_zeros(*weight.shape[:3], n_k)
        return block.scatter_add_(3, self._of_rows(weight.shape[2]), weight).flatten(1, 2)


def sparse_blocks(of: Tensor, index: Tensor, n_k: int, width: int, group: int = 1) -> Iterator[SparseBlock]:
    """Blocks of the rows of ``of`` (h, n_q, ·) with columns ``index`` (h, ⌈n_q/group⌉, u), for operands of ``width``.

    On a CPU a block has one head, which stays in the cache, and is dense if its rows would gather more than one of
    `STREAMED` columns. On other devices it has all heads and gathers.
    """
    h, n_q = of.shape[:2]
    on_cpu = of.device.type == "cpu"
    together, slots = 1 if on_cpu else h, index.shape[2]
    dense = on_cpu and min(STREAMED, n_q) * slots >= n_k * group
    entries = group * min(n_k, DENSE_COLUMNS) if dense else together * slots * width
    for groups, rows in row_groups(of, n_q, group, entries):
        for start, stop in row_blocks(h, together):
            yield SparseBlock(slice(start, stop), rows, index[start:stop, groups], dense)


def _transposed(index: Tensor, weight: Tensor, y: Tensor, group: int, n_k: int) -> Tensor:
    """The product of the transpose with y (h, n_q, c)."""
    out = y.new_zeros(len(index), n_k, y.shape[2])
    for block in sparse_blocks(weight, index, n_k, y.shape[2], group):
        block.add_transposed(out[block.heads], block.grouped(weight), block.grouped(y))
    return out


class _Product(torch.autograd.Function):
    """The product with x (h, n_k, c). Its gradient is made in blocks too, so both hold only one of them.

    Autograd would keep a gradient as large as x for the gather of each block: memory quadratic in n.
    """

    @staticmethod
    def forward(ctx: Any, index: Tensor, weight: Tensor, x: Tensor, group: int) -> Tensor:
        ctx.save_for_backward(index, weight, x)
        ctx.group = group
        out = x.new_empty(len(index), weight.shape[1], x.shape[2])
        for block in sparse_blocks(weight, index, x.shape[1], x.shape[2], group):
            out[block.heads, block.rows] = block.product(block.grouped(weight), x[block.heads])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None, Tensor | None, None]:
        index, weight, x = ctx.saved_tensors
        of_weight = of_x = None
        if ctx.needs_input_grad[1]:
            of_weight = torch.empty_like(weight)
            for block in sparse_blocks(weight, index, x.shape[1], x.shape[2], ctx.group):
                scores = block.scores(block.grouped(gradient), x[block.heads])
                of_weight[block.heads, block.rows] = scores.flatten(1, 2)
        if ctx.needs_input_grad[2]:
            of_x = _transposed(index, weight, gradient, ctx.group, x.shape[1])
        return None, of_weight, of_x, None
