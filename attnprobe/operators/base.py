"""The interface of every operator."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError
from .visible import Visible


class Operator:
    """A batch of h implicit n_q x n_k matrices.

    Operands are cast to the operator's own dtype, which is also that of the result. A subclass sets ``shape``,
    ``dtype`` and ``device``, and implements ``heads``, ``to``, ``_apply``, ``_apply_transpose`` and ``_rows``.

    ========================  ====================================================  ============
    ``op @ X``                the product with X (h, n_k, c)                        (h, n_q, c)
    ``op.rmatmul(Y)``         the product of the transpose with Y (h, n_q, c)       (h, n_k, c)
    ``op.rows(start, stop)``  rows ``start … stop - 1`` as a dense block            (h, b, n_k)
    ``op.row_sums()``         the sum of each row                                   (h, n_q)
    ``op.dense()``            the matrices themselves                               (h, n_q, n_k)
    ``op.heads(slice)``       the operator of some heads
    ``op.to(dtype)``          the operator in another dtype
    ``op.on(device)``         the operator on another device
    ========================  ====================================================  ============

    Attributes:
        shape: (h, n_q, n_k).
        dtype, device: those of every product.

    Raises:
        UsageError: an operand whose shape does not fit.
    """

    shape: tuple[int, int, int]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def fault(value: Operator) -> str | None:
        """What an operator lacks, of what every subclass sets; None for a complete one."""
        try:
            sizes, dtype, device = tuple(value.shape), value.dtype, value.device
        except Exception as error:  # of a user's class
            return f" is incomplete: {type(error).__name__} for its shape, dtype or device"
        if len(sizes) != 3 or not all(isinstance(size, int) and size >= 0 for size in sizes):
            return f" has shape {sizes}; (h, n_q, n_k) is needed"
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            return f" has dtype {dtype}; a floating-point dtype is needed"
        if not isinstance(device, torch.device):
            return f" has device {device!r}; a torch.device is needed"
        return None

    def __matmul__(self, x: Tensor) -> Tensor:
        return self._apply(self._checked(x, self.shape[2]))

    def matmul_shared(self, x: Tensor) -> Tensor:
        """``op @ X``, (h, n_q, c), for X (h_kv, n_k, c) of grouped queries: ``h / h_kv`` consecutive heads share one X.

        Raises:
            UsageError: X has another number of keys.
        """
        h = self.shape[0]
        if len(x) == h:
            return self @ x
        group = h // len(x)
        starts = range(0, h, group)
        shared = (one.expand(group, -1, -1) for one in x.split(1))
        return torch.cat([self.heads(slice(i, i + group)) @ one for i, one in zip(starts, shared, strict=True)])

    def rmatmul(self, y: Tensor) -> Tensor:
        """``opᵀ @ y``, (h, n_k, c), for y (h, n_q, c)."""
        return self._apply_transpose(self._checked(y, self.shape[1]))

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows ``start … stop - 1`` as a dense block, (h, stop - start, n_k).

        Raises:
            UsageError: rows that do not exist, or none.
        """
        if not 0 <= start < stop <= self.shape[1]:
            raise UsageError(f"rows {start}:{stop} are not within 0:{self.shape[1]}")
        return self._rows(start, stop)

    def slots(self, start: int, stop: int) -> tuple[Tensor, Tensor] | None:
        """The columns and weights of rows ``start … stop - 1``, (h, stop - start, u) each; None for rows without slots.

        A row has the column of a weight that is not zero in one slot only. Other slots have any column, or -1.
        """
        return None

    def dense(self) -> Tensor:
        """The dense matrices, (h, n_q, n_k), for tests and small n. Memory: ``h n_q n_k`` numbers."""
        return self.rows(0, self.shape[1])

    def row_sums(self) -> Tensor:
        """``op @ 1``, (h, n_q)."""
        ones = torch.ones(self.shape[0], self.shape[2], 1, dtype=self.dtype, device=self.device)
        return self._apply(ones)[..., 0]

    def heads(self, index: slice) -> Operator:
        """The operator of a slice of the heads. Its tensors are views, so nothing is copied."""
        raise NotImplementedError

    def to(self, dtype: torch.dtype) -> Operator:
        """The operator in another dtype. Exact attention casts Q and K, and computes its entries in that dtype."""
        raise NotImplementedError

    def on(self, device: torch.device) -> Operator:
        """The operator on another device. Its tensors have the same strides on every device.

        A tensor that is on the device already is shared. A view that skips memory is copied to a dense tensor. The
        tensors, operators and `Visible` keys are those among the attributes, and in tuples, lists and dicts there. An
        operator that holds them elsewhere implements its own ``on``.
        """
        there, known = copy(self), {}
        for name, value in vars(self).items():
            vars(there)[name] = _on(value, device, known)
        return there

    def _checked(self, x: Tensor, n: int) -> Tensor:
        if x.dim() != 3 or x.shape[:2] != (self.shape[0], n):
            raise UsageError(f"an operand of shape ({self.shape[0]}, {n}, c) is needed, got {tuple(x.shape)}")
        return x.to(self.dtype)

    def _apply(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _apply_transpose(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def _rows(self, start: int, stop: int) -> Tensor:
        raise NotImplementedError

    def __repr__(self) -> str:
        h, n_q, n_k = self.shape
        return f"{type(self).__name__}(h={h}, n_q={n_q}, n_k={n_k}, dtype={str(self.dtype)[6:]})"


def _on(value: Any, device: torch.device, known: dict[int, Any]) -> Any:
    """The value of an attribute, on ``device``. ``known`` maps identities, so that shared tensors are moved once."""
    if isinstance(value, torch.device):
        return device
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, Tensor):
        moved = value.to(device)
        if moved is value and not _dense(value):
            moved = value.clone()
    elif isinstance(value, Operator):
        moved = value.on(device)
    elif isinstance(value, Visible):
        moved = value.to(device)
    elif type(value) in (tuple, list):
        moved = type(value)(_on(inner, device, known) for inner in value)
    elif type(value) is dict:
        moved = {key: _on(inner, device, known) for key, inner in value.items()}
    else:
        return value
    known[id(value)] = moved
    return moved


def _dense(x: Tensor) -> bool:
    """Whether a copy has the strides of ``x``, for any order of the axes."""
    copied = torch.empty_like(x, device="meta").stride()
    return all(a == b or n == 1 for a, b, n in zip(x.stride(), copied, x.shape, strict=True))
