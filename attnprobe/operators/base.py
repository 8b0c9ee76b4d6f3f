"""The interface of every operator."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError
from ..visible import Visible

__all__ = ["Operator"]


class Operator:
    """A batch of ``h`` implicit ``n_q x n_k`` matrices.

    ``op @ X`` takes ``X`` (h, n_k, c) to (h, n_q, c); ``op.rmatmul(Y)`` is the product with the transpose;
    ``op.rows(start, stop)`` is a dense block of rows (h, b, n_k); ``op.heads(some)`` is the operator of a slice of the
    heads, ``op.to(dtype)`` that in another dtype and ``op.on(device)`` that on another device. Inputs are taken to the
    operator's own dtype, and the result has it. A subclass sets ``shape``, ``dtype``, ``device`` and writes ``heads``,
    ``to``, ``_apply``, ``_apply_transpose`` and ``_rows``.

    Raises:
        UsageError: an argument whose shape does not fit.
    """

    shape: tuple[int, int, int]
    dtype: torch.dtype
    device: torch.device

    def __matmul__(self, x: Tensor) -> Tensor:
        return self._apply(self._checked(x, self.shape[2]))

    def matmul_shared(self, x: Tensor) -> Tensor:
        """``op @ X`` for X (h_kv, n_k, c), the values of grouped queries: consecutive heads share a KV head."""
        h = self.shape[0]
        if len(x) == h:
            return self @ x
        group = h // len(x)
        starts = range(0, h, group)
        shared = (one.expand(group, -1, -1) for one in x.split(1))
        return torch.cat([self.heads(slice(i, i + group)) @ one for i, one in zip(starts, shared, strict=True)])

    def rmatmul(self, y: Tensor) -> Tensor:
        """``opᵀ @ y``: (h, n_q, c) to (h, n_k, c)."""
        return self._apply_transpose(self._checked(y, self.shape[1]))

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows ``start`` to ``stop`` as a dense block, (h, stop - start, n_k)."""
        if not 0 <= start < stop <= self.shape[1]:
            raise UsageError(f"rows {start}:{stop} are not within 0:{self.shape[1]}")
        return self._rows(start, stop)

    def dense(self) -> Tensor:
        """The whole matrices, (h, n_q, n_k): for tests and small n; h·n_q·n_k numbers of memory."""
        return self.rows(0, self.shape[1])

    def row_sums(self) -> Tensor:
        """``op @ 1``, (h, n_q)."""
        ones = torch.ones(self.shape[0], self.shape[2], 1, dtype=self.dtype, device=self.device)
        return self._apply(ones)[..., 0]

    def heads(self, index: slice) -> Operator:
        """The operator of a slice of the heads, without a copy."""
        raise NotImplementedError

    def to(self, dtype: torch.dtype) -> Operator:
        """The operator in another dtype; exact attention is made anew in it from Q and K."""
        raise NotImplementedError

    def on(self, device: torch.device) -> Operator:
        """The operator on another device, with the same strides on each: tensors that skip memory become dense copies.

        Any other tensor that is there already is shared. Tensors, operators and `Visible` keys are found among the
        attributes, and in tuples, lists and dicts there; an operator that holds them elsewhere writes its own ``on``.
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
    """Whether a copy has the strides of ``x``, in whatever order of the axes."""
    copied = torch.empty_like(x, device="meta").stride()
    return all(a == b or n == 1 for a, b, n in zip(x.stride(), copied, x.shape, strict=True))
