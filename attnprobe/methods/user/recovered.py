"""The operator of a function that is linear in V and shows only its output, recovered from what it does to I."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from ...errors import BadResult
from ...operators import Dense, Operator
from ...qkv import QKV
from ...rng import generator

__all__ = ["LARGEST", "Recovered"]

LARGEST = 2**31  # bytes of a matrix that is held


class Recovered(Operator):
    """``B~`` with ``B~ E = f(E)`` for the columns E of the identity, (h, n_q, n_k); held once it is first used.

    ``f`` is called ``n_k / p_v`` times with blocks of I as wide as V, the last filled up with zeros. Before any number
    is taken from it, ``f(X) = B~ X`` is checked for V itself and for a random X: to the square root of the dtype's eps,
    relative to ``‖f(X)‖_F`` of the head, so that rounding passes and a function that looks at V does not.

    Args:
        apply: f, (h, n_k, p_v) to (h, n_q, p_v). qkv: whose V it is. name: for what is said of a false claim.

    Raises:
        BadResult: when it is first used, where f is not linear in V.
    """

    def __init__(self, apply: Callable[[Tensor], Tensor], qkv: QKV, name: str) -> None:
        self.apply, self.v, self.name = apply, qkv.v, name
        self.shape = (qkv.h, qkv.n_q, qkv.n_k)
        self.dtype, self.device = qkv.dtype, qkv.device

    @staticmethod
    def size(qkv: QKV) -> int:
        """Bytes that the matrices of ``qkv`` take."""
        return qkv.h * qkv.n_q * qkv.n_k * qkv.v.element_size()

    @cached_property
    def held(self) -> Dense:
        """The matrices, checked."""
        h, n_q, n_k = self.shape
        width = self.v.shape[2]
        matrix = self.v.new_empty(h, n_q, n_k)
        with torch.no_grad():
            for start in range(0, n_k, width):
                stop = min(start + width, n_k)
                block = torch.zeros_like(self.v)
                block[:, range(start, stop), range(stop - start)] = 1
                matrix[:, :, start:stop] = self.apply(block)[:, :, : stop - start]
            self._check(matrix)
        return Dense(matrix)

    def _check(self, matrix: Tensor) -> None:
        """Refuse a function that is not the matrix: one that is not linear, or chooses by what V holds."""
        random = torch.randn(self.v.shape, generator=generator(0, "linearity"), dtype=torch.float64)
        for what, x in (("V", self.v), ("a random V", random.to(self.v))):
            got, wanted = self.apply(x).double(), matrix.double() @ x.double()
            error, size = (y.norm(dim=(1, 2)) for y in (got - wanted, got))
            bad = error > torch.finfo(self.dtype).eps ** 0.5 * size  # NaN is another matter: a diverged output
            if bad.any():
                head = int(bad.nonzero()[0])
                raise BadResult(
                    f"{self.name} says that it is linear in V, and is not: its output for {what} differs from that of "
                    f"its own matrix, recovered from blocks of the identity, by {float(error[head] / size[head]):.2g} "
                    f"of its norm (head {head} of {self.shape[0]}); drop linear_in_v"
                )

    def heads(self, some: slice) -> Dense:
        return self.held.heads(some)

    def to(self, dtype: torch.dtype) -> Operator:
        return self.held.to(dtype)

    def on(self, device: torch.device) -> Operator:
        return self.held.on(device)

    def _apply(self, x: Tensor) -> Tensor:
        return self.held._apply(x)

    def _apply_transpose(self, y: Tensor) -> Tensor:
        return self.held._apply_transpose(y)

    def _rows(self, start: int, stop: int) -> Tensor:
        return self.held._rows(start, stop)
