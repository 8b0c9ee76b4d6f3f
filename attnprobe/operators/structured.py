"""Structured operators: dense, low rank, rank one, sparse, few columns, identity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..errors import UsageError
from .base import Operator
from .blocks import row_blocks, row_groups
from .precision import ordered_sums
from .products import product

__all__ = ["Columns", "Dense", "Identity", "LowRank", "RankOne", "Sparse"]


class Dense(Operator):
    """A dense matrix, (h, n_q, n_k), for tests, small n and few replaced rows."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        h, n_q, n_k = matrix.shape
        self.shape, self.dtype, self.device = (h, n_q, n_k), matrix.dtype, matrix.device

    def heads(self, index: slice) -> Dense:
        return Dense(self.matrix[index])

    def to(self, dtype: torch.dtype) -> Dense:
        return Dense(self.matrix.to(dtype))

    def _apply(self, x: Tensor) -> Tensor:
        return self.matrix @ x

    def _apply_transpose(self, y: Tensor) -> Tensor:
        return self.matrix.mT @ y

    def _rows(self, start: int, stop: int) -> Tensor:
        return self.matrix[:, start:stop]


class LowRank(Operator):
    """``L M R`` with ``L`` (h, n_q, d), ``M`` (h, d, d) and ``R`` (h, d, n_k).

    ``middle`` is M, or a sequence of factors whose product is M, or None for the identity. Factors are applied one
    after another: a pseudo-inverse that is stored as ``W Wᵀ`` loses ``eps · √cond``, and ``eps · cond`` if it is
    multiplied out. A product with c columns is ``L (M (R x))``: ``(n_q + n_k + d) d c`` multiply-adds. ``L M`` is never
    computed, because it costs ``n_q d²``.
    """

    def __init__(self, left: Tensor, middle: Tensor | Sequence[Tensor] | None, right: Tensor) -> None:
        self.left, self.right = left, right
        self.middle = () if middle is None else (middle,) if isinstance(middle, Tensor) else tuple(middle)
        self.shape = (left.shape[0], left.shape[1], right.shape[2])
        self.dtype, self.device = left.dtype, left.device

    def heads(self, index: slice) -> LowRank:
        return LowRank(self.left[index], [factor[index] for factor in self.middle], self.right[index])

    def to(self, dtype: torch.dtype) -> LowRank:
        middle = [factor.to(dtype) for factor in self.middle]
        return LowRank(self.left.to(dtype), middle, self.right.to(dtype))

    def _apply(self, x: Tensor) -> Tensor:
        x = product(self.right, x)  # (h, d, c)
        for factor in reversed(self.middle):
            x = factor @ x
        return product(self.left, x)

    def _apply_transpose(self, y: Tensor) -> Tensor:
        y = product(y.mT, self.left)  # (h, c, d); the transpose of the product is up to twice as fast
        for factor in self.middle:
            y = y @ factor
        return product(y, self.right).mT

    def _rows(self, start: int, stop: int) -> Tensor:
        block = self.left[:, start:stop]
        for factor in self.middle:
            block = block @ factor
        return product(block, self.right)


class RankOne(Operator):
    """``u wᵀ`` with ``u`` (h, n_q) and ``w`` (h, n_k)."""

    def __init__(self, u: Tensor, w: Tensor) -> None:
        self.u, self.w = u, w
        self.shape = (u.shape[0], u.shape[1], w.shape[1])
        self.dtype, self.device = u.dtype, u.device

    def heads(self, index: slice) -> RankOne:
        return RankOne(self.u[index], self.w[index])

    def to(self, dtype: torch.dtype) -> RankOne:
        return RankOne(self.u.to(dtype), self.w.to(dtype))

    def _apply(self, x: Tensor) -> Tensor:
        return self.u[:, :, None] * (self.w[:, None, :] @ x)

    def _apply_transpose(self, y: Tensor) -> Tensor:
        return self.w[:, :, None] * (self.u[:, None, :] @ y)

    def _rows(self, start: int, stop: int) -> Tensor:
        return self.u[:, start:stop, None] * self.w[:, None, :]


class Identity(Operator):
    """``delta · I`` with one ``delta`` per head, (h,); n_q = n_k = n."""

    def __init__(self, delta: Tensor, n: int) -> None:
        self.delta = delta
        self.shape, self.dtype, self.device = (delta.shape[0], n, n), delta.dtype, delta.device

    def heads(self, index: slice) -> Identity:
        return Identity(self.delta[index], self.shape[1])

    def to(self, dtype: torch.dtype) -> Identity:
        return Identity(self.delta.to(dtype), self.shape[1])

    def _apply(self, x: Tensor) -> Tensor:
        return self.delta[:, None, None] * x

    def _apply_transpose(self, y: Tensor) -> Tensor:
        return self._apply(y)

    def _rows(self, start: int, stop: int) -> Tensor:
        eye = torch.eye(self.shape[1], dtype=self.dtype, device=self.device)[start:stop]
        return self.delta[:, None, None] * eye


class Sparse(Operator):
    """``u`` entries in each row: columns ``index`` (h, ⌈n_q/group⌉, u) with ``weight`` (h, n_q, u).

    Row i has the columns ``index[i // group]``. The rows of a group share their columns, so a product is dense in each
    group and gathers the operand once for it. A column that a row of the group does not have has a weight of zero. A
    negative index is an empty slot; its weight is not used. Entries with the same column in a row add up. A product
    with c columns costs ``n_q u c`` multiply-adds.
    """

    def __init__(self, index: Tensor, weight: Tensor, n_k: int, group: int = 1) -> None:
        h, n_q, u = weight.shape
        if index.shape != (h, -(-n_q // group), u) or int(index.max()) >= n_k:
            shapes = f"index {tuple(index.shape)} does not fit weight {tuple(weight.shape)}"
            raise UsageError(f"sparse: {shapes}, n_k={n_k}, group={group}")
        empty = index < 0
        if empty.any():
            weight = weight.masked_fill(empty.repeat_interleave(group, 1)[:, :n_q], 0)
        self.index, self.weight, self.group = index.clamp(min=0), weight, group
        self.shape = (h, n_q, n_k)
        self.dtype, self.device = weight.dtype, weight.device

    def heads(self, index: slice) -> Sparse:
        return self._made_of(self.index[index], self.weight[index])

    def to(self, dtype: torch.dtype) -> Sparse:
        return self._made_of(self.index, self.weight.to(dtype))

    def _made_of(self, index: Tensor, weight: Tensor) -> Sparse:
        """The same entries in other heads or another dtype, without repeated checks."""
        made = copy(self)
        made.index, made.weight = index, weight
        made.shape, made.dtype = (weight.shape[0], *self.shape[1:]), weight.dtype
        return made

    def _apply(self, x: Tensor) -> Tensor:
        return _Gathered.apply(self.index, self.weight, x, self.group)

    def _apply_transpose(self, y: Tensor) -> Tensor:
        return _scattered(self.index, self.weight, y, self.group, self.shape[2])

    def _rows(self, start: int, stop: int) -> Tensor:
        index = self.index[:, torch.arange(start, stop, device=self.device) // self.group]
        block = self.weight.new_zeros(self.shape[0], stop - start, self.shape[2])
        with ordered_sums(self.device):
            return block.scatter_add(2, index, self.weight[:, start:stop])


def _blocks(
    index: Tensor, weight: Tensor, group: int, n_k: int, columns: int
) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """Yields blocks of rows: heads, rows, places (g, m, u) and weights (g, m, group, u).

    A block has as many rows as may gather ``columns`` numbers for each entry. It has one head on a CPU, where it stays
    in the cache, and all heads on other devices. A place is a column plus n_k times the number of the head in the
    block.
    """
    h, together = len(index), 1 if weight.device.type == "cpu" else len(index)
    heads = torch.arange(together, device=index.device)[:, None, None] * n_k
    for groups, rows in row_groups(weight, weight.shape[1], group, together * index.shape[2] * columns):
        for start, stop in row_blocks(h, together):
            places = index[start:stop, groups] + heads
            yield slice(start, stop), rows, places, weight[start:stop, rows].unflatten(1, (places.shape[1], -1))


def _gathered(x: Tensor, places: Tensor) -> Tensor:
    """The rows of ``x`` (g, n_k, c) at ``places`` (g, m, u), as (g, m, u, c)."""
    return x.flatten(0, 1).index_select(0, places.flatten()).view(*places.shape, x.shape[2])


def _scattered(index: Tensor, weight: Tensor, y: Tensor, group: int, n_k: int) -> Tensor:
    """The product of the transpose with y (h, n_q, c)."""
    out = y.new_zeros(len(index), n_k, y.shape[2])
    for heads, rows, places, of_rows in _blocks(index, weight, group, n_k, y.shape[2]):
        terms = of_rows.mT @ y[heads, rows].unflatten(1, (places.shape[1], -1))  # (g, m, u, c)
        with ordered_sums(y.device):
            out[heads].flatten(0, 1).index_add_(0, places.flatten(), terms.flatten(0, 2))
    return out


class _Gathered(torch.autograd.Function):
    """The product with x (h, n_k, c). Its gradient gathers again, so both hold only one block of the gathered rows.

    Autograd would keep a gradient as large as x for the gather of each block: memory quadratic in n.
    """

    @staticmethod
    def forward(ctx: Any, index: Tensor, weight: Tensor, x: Tensor, group: int) -> Tensor:
        ctx.save_for_backward(index, weight, x)
        ctx.group = group
        out = x.new_empty(len(index), weight.shape[1], x.shape[2])
        for heads, rows, places, of_rows in _blocks(index, weight, group, x.shape[1], x.shape[2]):
            out[heads, rows] = (of_rows @ _gathered(x[heads], places)).flatten(1, 2)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None, Tensor | None, None]:
        index, weight, x = ctx.saved_tensors
        of_weight = of_x = None
        if ctx.needs_input_grad[1]:
            of_weight = torch.empty_like(weight)
            for heads, rows, places, _ in _blocks(index, weight, ctx.group, x.shape[1], x.shape[2]):
                of_rows = gradient[heads, rows].unflatten(1, (places.shape[1], -1))  # (g, m, group, c)
                of_weight[heads, rows] = (of_rows @ _gathered(x[heads], places).mT).flatten(1, 2)
        if ctx.needs_input_grad[2]:
            of_x = _scattered(index, weight, gradient, ctx.group, x.shape[1])
        return None, of_weight, of_x, None


class Columns(Operator):
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

    def heads(self, index: slice) -> Columns:
        return self._made_of(self.weight[index], self.index[index])

    def to(self, dtype: torch.dtype) -> Columns:
        return self._made_of(self.weight.to(dtype), self.index)

    def _made_of(self, weight: Tensor, index: Tensor) -> Columns:
        """The same columns in other heads or another dtype, without repeated checks."""
        made = copy(self)
        made.weight, made.index = weight, index
        made.shape, made.dtype = (weight.shape[0], *self.shape[1:]), weight.dtype
        return made

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
            return block.scatter_add(2, self.index[:, None, :].expand_as(weight), weight)
