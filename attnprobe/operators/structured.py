"""Structured operators: dense, low rank, rank one, identity."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .base import Operator
from .precision import product


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
