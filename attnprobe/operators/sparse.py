"""Sparse operators: a few entries in each row, in columns of its own or of its group of rows."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..errors import UsageError
from .base import Operator
from .blocks import row_blocks, row_groups
from .precision import ordered_sums

__all__ = ["Sparse"]


class Sparse(Operator):
    """``u`` entries in each row: columns ``index`` (h, ⌈n_q/group⌉, u) with ``weight`` (h, n_q, u).

    Row i has the columns ``index[i // group]``: rows of a group share them, so that a product is dense in each group,
    and gathers the operand once a group. An entry that a row of the group does not have is a weight of zero. A negative
    index is an empty slot, whose weight is not used. Indices that repeat in a row add up. A product costs ``n_q u c``
    multiply-adds.
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
    """Blocks of as many rows as may gather ``columns`` each: heads, rows, places (g, m, u) and weight (g, m, group, u).

    A block has one head on a CPU, where it stays in the cache, and all heads elsewhere. Places count the n_k columns of
    the first head of the block, then those of the next.
    """
    h, together = len(index), 1 if weight.device.type == "cpu" else len(index)
    heads = torch.arange(together, device=index.device)[:, None, None] * n_k
    for groups, rows in row_groups(weight, weight.shape[1], group, together * index.shape[2] * columns):
        for start, stop in row_blocks(h, together):
            places = index[start:stop, groups] + heads
            yield slice(start, stop), rows, places, weight[start:stop, rows].unflatten(1, (places.shape[1], -1))


def _gathered(x: Tensor, places: Tensor) -> Tensor:
    """The rows ``places`` (g, m, u) of ``x`` (g, n_k, c), one after another, as (g, m, u, c)."""
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
    """The product with x (h, n_k, c). Its gradient gathers again, so that both hold only one block of ``n u c``.

    The gradient of each block's gather by itself is as large as x, which would make a product quadratic in n.
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
