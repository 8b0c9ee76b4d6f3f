"""The operator of a function that is linear in V, recovered from the function's values for the identity."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from ...errors import BadResult
from ...operators import Dense, Operator
from ...qkv import QKV
from ...rng import generator

LARGEST = 2**31  # bytes of the largest matrix to recover


class Recovered(Operator):
    """``B~`` with ``B~ E = f(E)`` for the columns E of the identity, (h, n_q, n_k); computed at first use and stored.

    ``f`` is called ``⌈n_k / p_v⌉`` times with blocks of I as wide as V; the last one is padded with zeros. Then ``f(X)
    = B~ X`` is checked for V itself and for a random X. The tolerance is the square root of the dtype's eps, relative
    to ``‖f(X)‖_F`` of the head. It allows rounding, but no other dependence on V.

    Args:
        apply: f, from (h, n_k, p_v) to (h, n_q, p_v). qkv: the inputs with V. name: the function's name in errors.

    Raises:
        BadResult: at first use, if f is not linear in V.
    """

    def __init__(self, apply: Callable[[Tensor], Tensor], qkv: QKV, name: str) -> None:
        self.apply, self.v, self.name = apply, qkv.v, name
        self.shape = (qkv.h, qkv.n_q, qkv.n_k)
        self.dtype, self.device = qkv.dtype, qkv.device

    @staticmethod
    def size(qkv: QKV) -> int:
        """The bytes of the matrices of ``qkv``."""
        return qkv.h * qkv.n_q * qkv.n_k * qkv.v.element_size()

    @cached_property
    def held(self) -> Dense:
        """The matrices, after the check of linearity."""
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
        """Refuse a function whose outputs differ from ``matrix`` times its inputs."""
        random = torch.randn(self.v.shape, generator=generator(0, "linearity"), dtype=torch.float64)
        for label, x in (("V", self.v), ("a random V", random.to(self.v))):
            output, product = self.apply(x).double(), matrix.double() @ x.double()
            error, size = (y.norm(dim=(1, 2)) for y in (output - product, output))
            bad = error > torch.finfo(self.dtype).eps ** 0.5 * size  # false for NaN: a diverged output is not refused
            if bad.any():
                head = int(bad.nonzero()[0])
                raise BadResult(
                    f"{self.name} claims to be linear in V, and is not: its output for {label} differs from the output "
                    f"of its matrix, recovered from blocks of the identity, by {float(error[head] / size[head]):.2g} "
                    f"of its norm (head {head} of {self.shape[0]}); drop linear_in_v"
                )

    def heads(self, index: slice) -> Dense:
        return self.held.heads(index)

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
