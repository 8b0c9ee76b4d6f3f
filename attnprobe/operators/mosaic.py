"""Operators at places of a larger matrix."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor

from ..errors import UsageError
from .base import Operator


class Mosaic(Operator):
    """The sum of operators at places of a matrix of zeros, (h, n_q, n_k).

    Args:
        parts: operators, each with its first row and its first column; all have h heads and one dtype.
        shape: (h, n_q, n_k).

    Raises:
        UsageError: a part that is not within the matrix.
    """

    def __init__(self, parts: Sequence[tuple[Operator, int, int]], shape: tuple[int, int, int]) -> None:
        self.parts, self.shape = tuple(parts), shape
        first = self.parts[0][0]
        for operator, row, column in self.parts:
            h, n_q, n_k = operator.shape
            if h != shape[0] or row + n_q > shape[1] or column + n_k > shape[2] or min(row, column) < 0:
                raise UsageError(f"mosaic: {operator!r} at row {row} and column {column} is not within {shape}")
        self.dtype, self.device = first.dtype, first.device

    def heads(self, index: slice) -> Mosaic:
        parts = [(operator.heads(index), row, column) for operator, row, column in self.parts]
        return Mosaic(parts, (parts[0][0].shape[0], *self.shape[1:]))

    def to(self, dtype: torch.dtype) -> Mosaic:
        made = copy(self)
        made.parts = tuple((operator.to(dtype), row, column) for operator, row, column in self.parts)
        made.dtype = dtype
        return made

    def _apply(self, x: Tensor) -> Tensor:
        out = x.new_zeros(len(x), self.shape[1], x.shape[2])
        for operator, row, column in self.parts:
            _, n_q, n_k = operator.shape
            out[:, row : row + n_q] += operator._apply(x[:, column : column + n_k])
        return out

    def _apply_transpose(self, y: Tensor) -> Tensor:
        out = y.new_zeros(len(y), self.shape[2], y.shape[2])
        for operator, row, column in self.parts:
            _, n_q, n_k = operator.shape
            out[:, column : column + n_k] += operator._apply_transpose(y[:, row : row + n_q])
        return out

    def _rows(self, start: int, stop: int) -> Tensor:
        block = torch.zeros(self.shape[0], stop - start, self.shape[2], dtype=self.dtype, device=self.device)
        for operator, row, column in self.parts:
            _, n_q, n_k = operator.shape
            first, last = max(start, row), min(stop, row + n_q)
            if first < last:
                block[:, first - start : last - start, column : column + n_k] += operator._rows(first - row, last - row)
        return block
