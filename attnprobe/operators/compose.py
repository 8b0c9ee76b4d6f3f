"""Operators composed of operators: sums, diagonal scalings, joined heads, replaced rows, padding, placed blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor

from ..errors import UsageError
from .base import Operator
from .blocks import row_blocks


class Sum(Operator):
    """``Σ_t sign_t · op_t`` of operators of one shape and dtype."""

    def __init__(self, operators: Sequence[Operator], signs: Sequence[float] | None = None) -> None:
        self.operators = tuple(operators)
        self.signs = (1.0,) * len(self.operators) if signs is None else tuple(signs)
        first = self.operators[0]
        for other in self.operators:
            if (other.shape, other.dtype, other.device) != (first.shape, first.dtype, first.device):
                raise UsageError(f"sum: {other!r} does not fit {first!r}")
        self.shape, self.dtype, self.device = first.shape, first.dtype, first.device

    def heads(self, index: slice) -> Sum:
        return Sum([op.heads(index) for op in self.operators], self.signs)

    def to(self, dtype: torch.dtype) -> Sum:
        return Sum([op.to(dtype) for op in self.operators], self.signs)

    def _total(self, terms: Iterable[Tensor]) -> Tensor:
        signed = (sign * term for sign, term in zip(self.signs, terms, strict=True))
        return reduce(torch.add, signed)

    def _apply(self, x: Tensor) -> Tensor:
        return self._total(op._apply(x) for op in self.operators)

    def _apply_transpose(self, y: Tensor) -> Tensor:
        return self._total(op._apply_transpose(y) for op in self.operators)

    def _rows(self, start: int, stop: int) -> Tensor:
        return self._total(op._rows(start, stop) for op in self.operators)


class Scaled(Operator):
    """``diag(left) · op · diag(right)`` with ``left`` (h, n_q) and ``right`` (h, n_k); None is the identity."""

    def __init__(self, operator: Operator, left: Tensor | None = None, right: Tensor | None = None) -> None:
        self.operator, self.left, self.right = operator, left, right
        self.shape, self.dtype, self.device = operator.shape, operator.dtype, operator.device

    def heads(self, index: slice) -> Scaled:
        left, right = (None if x is None else x[index] for x in (self.left, self.right))
        return Scaled(self.operator.heads(index), left, right)

    def to(self, dtype: torch.dtype) -> Scaled:
        left, right = (None if x is None else x.to(dtype) for x in (self.left, self.right))
        return Scaled(self.operator.to(dtype), left, right)

    def _apply(self, x: Tensor) -> Tensor:
        return _times(self.left, self.operator._apply(_times(self.right, x)))

    def _apply_transpose(self, y: Tensor) -> Tensor:
        return _times(self.right, self.operator._apply_transpose(_times(self.left, y)))

    def slots(self, start: int, stop: int) -> tuple[Tensor, Tensor] | None:
        slots = self.operator.slots(start, stop)
        if slots is None or self.left is None or self.right is not None:
            return None
        return slots[0], self.left[:, start:stop, None] * slots[1]

    def _rows(self, start: int, stop: int) -> Tensor:
        block = self.operator._rows(start, stop)
        block = block if self.left is None else self.left[:, start:stop, None] * block
        return block if self.right is None else block * self.right[:, None, :]


class Stacked(Operator):
    """The heads of several operators, concatenated: (h₁ + h₂ + …, n_q, n_k).

    >>> from attnprobe.operators import RankOne
    >>> one = RankOne(torch.ones(1, 2), torch.ones(1, 3))
    >>> Stacked([one, Scaled(one, left=torch.full((1, 2), 2.0))]).row_sums()
    tensor([[3., 3.],
            [6., 6.]])
    """

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.operators = tuple(operators)
        first = self.operators[0]
        for other in self.operators:
            if (other.shape[1:], other.dtype, other.device) != (first.shape[1:], first.dtype, first.device):
                raise UsageError(f"stacked: {other!r} does not fit {first!r}")
        self.shape = (sum(op.shape[0] for op in self.operators), *first.shape[1:])
        self.dtype, self.device = first.dtype, first.device

    def _slices(self) -> list[slice]:
        ends = [0]
        for op in self.operators:
            ends.append(ends[-1] + op.shape[0])
        return [slice(start, stop) for start, stop in pairwise(ends)]

    def heads(self, index: slice) -> Stacked:
        numbers = range(self.shape[0])[index]
        parts = []
        for op, own in zip(self.operators, self._slices(), strict=True):
            inside = [head - own.start for head in numbers if own.start <= head < own.stop]
            if inside:
                parts.append(op.heads(slice(inside[0], inside[-1] + 1, index.step)))
        return Stacked(parts)

    def to(self, dtype: torch.dtype) -> Stacked:
        return Stacked([op.to(dtype) for op in self.operators])

    def _apply(self, x: Tensor) -> Tensor:
        return torch.cat([op._apply(x[own]) for op, own in zip(self.operators, self._slices(), strict=True)])

    def _apply_transpose(self, y: Tensor) -> Tensor:
        return torch.cat([op._apply_transpose(y[own]) for op, own in zip(self.operators, self._slices(), strict=True)])

    def _rows(self, start: int, stop: int) -> Tensor:
        return torch.cat([op._rows(start, stop) for op in self.operators])


class RowOverride(Operator):
    """``base`` with some rows replaced by those of another operator.

    Args:
        base: (h, n_q, n_k).
        index: (h, u) int64, the rows to replace, each at most once per head; a negative number is an empty slot.
        rows: (h, u, n_k), the new rows; those of empty slots are not used.
    """

    def __init__(self, base: Operator, index: Tensor, rows: Operator) -> None:
        if rows.shape != (base.shape[0], index.shape[1], base.shape[2]):
            raise UsageError(f"row override: {rows!r} does not fit {index.shape[1]} rows of {base!r}")
        self.base, self.index, self.new = base, index, rows
        self.shape, self.dtype, self.device = base.shape, base.dtype, base.device
        self.used = index >= 0  # (h, u)
        slots = index.clamp(min=0)
        count = torch.zeros(self.shape[:2], dtype=torch.int64, device=self.device)
        count.scatter_add_(1, slots, self.used.long())
        if (count > 1).any():
            raise UsageError("row override: a row is named twice in one head")
        self.of_base = count == 0  # (h, n_q)
        number = torch.arange(index.shape[1], device=self.device) * self.used
        self.slot = torch.zeros_like(count).scatter_add_(1, slots, number)  # of each row that is replaced, (h, n_q)

    def heads(self, index: slice) -> RowOverride:
        made = self._made_of(self.base.heads(index), self.new.heads(index))
        for name in ("index", "used", "of_base", "slot"):
            setattr(made, name, getattr(self, name)[index])
        return made

    def to(self, dtype: torch.dtype) -> RowOverride:
        return self._made_of(self.base.to(dtype), self.new.to(dtype))

    def _made_of(self, base: Operator, new: Operator) -> RowOverride:
        """The same rows of other operators, without repeated checks."""
        made = copy(self)
        made.base, made.new = base, new
        made.shape, made.dtype = base.shape, base.dtype
        return made

    def _apply(self, x: Tensor) -> Tensor:
        return self._replaced(self.base._apply(x), (self.new @ x).to(self.dtype), 0, 0)

    def _apply_transpose(self, y: Tensor) -> Tensor:
        of_base = torch.where(self.of_base[:, :, None], y, torch.zeros_like(y))
        picked = torch.gather(y, 1, self.index.clamp(min=0)[:, :, None].expand(-1, -1, y.shape[2]))
        picked = torch.where(self.used[:, :, None], picked, torch.zeros_like(picked))  # (h, u, c)
        return self.base._apply_transpose(of_base) + self.new.rmatmul(picked).to(self.dtype)

    def slots(self, start: int, stop: int) -> tuple[Tensor, Tensor] | None:
        """Those of the base, if none of these rows is replaced; a GPU would have to be waited for to know."""
        if self.device.type != "cpu" or not self.of_base[:, start:stop].all():
            return None
        return self.base.slots(start, stop)

    def _rows(self, start: int, stop: int) -> Tensor:
        block = self.base._rows(start, stop)
        for first, last in row_blocks(self.index.shape[1], stop - start):  # slots, as many as there are rows
            if self.device.type != "cpu" or self._taken(start, stop, first, last).any():
                block = self._replaced(block, self.new._rows(first, last).to(self.dtype), start, first)
        return block

    def _replaced(self, rows: Tensor, new: Tensor, start: int, first: int) -> Tensor:
        """Rows of base from row ``start`` on, (h, b, c), replaced by ``new`` (h, u', c), the slots from ``first`` on.

        It reads nothing back from the device.
        """
        if not new.shape[1]:
            return rows
        stop, last = start + rows.shape[1], first + new.shape[1]
        slot = self.slot[:, start:stop] - first
        taken = self._taken(start, stop, first, last)
        head = torch.arange(len(new), device=self.device)[:, None]
        return torch.where(taken[:, :, None], new[head, slot.clamp(0, new.shape[1] - 1)], rows)

    def _taken(self, start: int, stop: int, first: int, last: int) -> Tensor:
        """Whether each of the rows ``start … stop - 1`` is in one of the slots ``first … last - 1``, (h, b) bool."""
        slot = self.slot[:, start:stop]
        return ~self.of_base[:, start:stop] & (slot >= first) & (slot < last)


class Rows(Operator):
    """Some rows of an operator.

    Args:
        operator: (h, n, n_k).
        index: (n_q,) int64, its rows, each at most once.
    """

    def __init__(self, operator: Operator, index: Tensor) -> None:
        self.operator, self.index = operator, index
        self.shape = (operator.shape[0], len(index), operator.shape[2])
        self.dtype, self.device = operator.dtype, operator.device

    def heads(self, index: slice) -> Rows:
        return Rows(self.operator.heads(index), self.index)

    def to(self, dtype: torch.dtype) -> Rows:
        return Rows(self.operator.to(dtype), self.index)

    def _apply(self, x: Tensor) -> Tensor:
        return self.operator._apply(x)[:, self.index]

    def _apply_transpose(self, y: Tensor) -> Tensor:
        all_rows = y.new_zeros(y.shape[0], self.operator.shape[1], y.shape[2])
        return self.operator._apply_transpose(all_rows.index_copy(1, self.index, y))

    def _rows(self, start: int, stop: int) -> Tensor:
        numbers = self.index[start:stop].tolist()
        ends = [place for place in range(1, len(numbers)) if numbers[place] != numbers[place - 1] + 1]
        runs = pairwise([0, *ends, len(numbers)])  # of rows that follow one another
        return torch.cat([self.operator._rows(numbers[a], numbers[b - 1] + 1) for a, b in runs], 1)


class Padded(Operator):
    """An operator on the valid tokens, extended to all tokens: padded rows and columns are zero.

    Args:
        operator: (h, n', n') on the n' valid tokens.
        mask: (n,) bool with n' true entries.
    """

    def __init__(self, operator: Operator, mask: Tensor) -> None:
        self.operator, self.mask = operator, mask
        n = mask.shape[0]
        self.shape = (operator.shape[0], n, n)
        self.dtype, self.device = operator.dtype, operator.device

    def heads(self, index: slice) -> Padded:
        return Padded(self.operator.heads(index), self.mask)

    def to(self, dtype: torch.dtype) -> Padded:
        return Padded(self.operator.to(dtype), self.mask)

    def _spread(self, x: Tensor) -> Tensor:
        out = x.new_zeros(x.shape[0], self.mask.shape[0], x.shape[2])
        out[:, self.mask] = x
        return out

    def _apply(self, x: Tensor) -> Tensor:
        return self._spread(self.operator._apply(x[:, self.mask]))

    def _apply_transpose(self, y: Tensor) -> Tensor:
        return self._spread(self.operator._apply_transpose(y[:, self.mask]))

    def _rows(self, start: int, stop: int) -> Tensor:
        block = torch.zeros(self.shape[0], stop - start, self.shape[2], dtype=self.dtype, device=self.device)
        present = self.mask[start:stop]
        if present.any():
            first = int(self.mask[:start].sum())
            inner = self.operator._rows(first, first + int(present.sum()))  # (h, b', n')
            columns = self.mask.nonzero()[:, 0]
            block[:, present] = block[:, present].index_copy(2, columns, inner)
        return block


def _times(diagonal: Tensor | None, x: Tensor) -> Tensor:
    return x if diagonal is None else diagonal[:, :, None] * x


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
