"""Rotations of vectors before they are quantised, and their inverses after it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, linalg

from ...errors import Unsupported
from ...operators.linalg.hadamard import hadamard
from ...operators.precision import product
from .base import Side

Kind = Literal["haar", "signed", "hadamard"]


def drawn_rotation(kind: str, p: int, side: Side) -> Tensor:
    """The orthogonal matrix of each head, (h or 1, p, p) float64 on the CPU; a vector x becomes ``R x``.

    Raises:
        Unsupported: there is no Hadamard matrix of order p.
    """
    if kind == "haar":
        return side.draw("rotation", lambda stream: _haar(p, stream))
    matrix = hadamard(p)
    if matrix is None:
        raise Unsupported(
            f"{side.method}: a {side.word} has {p} numbers, of which there is no Hadamard matrix here; choose "
            "rotation=haar"
        )
    matrix = (matrix / p**0.5)[None]
    if kind == "signed":
        matrix = matrix * side.draw("signs", lambda stream: _signs(p, stream))[:, None]
    return matrix


def _haar(p: int, stream: torch.Generator) -> Tensor:
    """A uniform orthogonal matrix: Q of a normal matrix ``Q R``, where R has a positive diagonal (Mezzadri 2007)."""
    q, r = linalg.qr(torch.randn(p, p, generator=stream, dtype=torch.float64, device="cpu"))
    return q * r.diagonal().sign()


def _signs(p: int, stream: torch.Generator) -> Tensor:
    return 1 - 2 * torch.randint(2, (p,), generator=stream, device="cpu").double()


def rotated(x: Tensor, matrix: Tensor, back: bool = False) -> Tensor:
    """``R x`` of vectors x (h, …, n, p), or ``Rᵀ x`` to go back, for R (h or 1, p, p); in float64."""
    matrix = matrix.to(x.device).expand(len(x), -1, -1)
    moved = product(x.double().flatten(1, -2), matrix if back else matrix.mT)
    return moved.view(x.shape)
