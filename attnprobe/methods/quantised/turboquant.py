"""TurboQuant (Zandieh et al. 2025): random rotations, and the best quantiser of their normal coordinates."""

from __future__ import annotations

from math import pi
from typing import Literal

import torch
from torch import Tensor

from ...errors import UsageError
from ...operators.linalg.lloyd_max import MOST, lloyd_max
from ..storage import Storage
from .base import UNIT, Side, cache_format
from .rotation import Kind, drawn_rotation, rotated

Variant = Literal["mse", "prod"]


def _check(target: str, *, bits: int, variant: str, rotation: str) -> None:
    if not 1 <= bits <= MOST:
        raise UsageError(f"turboquant: bits={bits} is not in 1..{MOST}")


def _storage(bits: int, variant: str, rotation: str) -> Storage:
    norms = 2 if variant == "prod" else 1  # of a vector, and of its residual
    return Storage(k=float(bits), v=float(bits), token=2.0 * norms * UNIT)


@cache_format(
    name="turboquant",
    paper="Zandieh et al., TurboQuant",
    year=2025,
    tags=("causal",),
    oracle="the distortions of Max 1960 and the bounds of the paper",
    storage=_storage,
    validate=_check,
)
def turboquant(x: Tensor, side: Side, *, bits: int = 4, variant: Variant = "mse", rotation: Kind = "haar") -> Tensor:
    """``x̂ = ‖x‖ Rᵀ c(R x / ‖x‖)`` with a random rotation R and the Lloyd–Max quantiser c of N(0, 1/p) with b bits.

    The coordinates of a rotated unit vector are nearly normal, so that ``E ‖x̂ - x‖² ≤ (√3 π / 2) 4^-b ‖x‖²``. This
    ``variant=mse`` shrinks inner products. ``variant=prod`` has b - 1 bits for ``x̂`` and one for the signs of the
    residual ``r = x - x̂``: ``x̃ = x̂ + √(π/2) / p · ‖r‖ Gᵀ sign(G r)`` with a normal matrix G (p, p). Its inner products
    are unbiased. Norms are in float16. Source: Zandieh et al. 2025, algorithms 1 and 2.

    Options:
        bits: b, from 1 to 8.
        variant: ``mse`` or ``prod``.
        rotation: ``haar``, uniform over all rotations, of each KV head; ``signed``, a Hadamard matrix behind random
            signs of each KV head; ``hadamard``, a Hadamard matrix without draws.

    Shapes: codes (h_kv, n_k, p), output (h, n_q, p_v). The draws are (h, p, p) or (h, p) of keys and of values. ``b +
    16/p`` bits a number, ``b + 32/p`` of ``prod``; cost ``2 n² p + n p²``.

    Raises:
        Unsupported: a norm beyond float16; a Hadamard matrix of an order that has none. UsageError: ``bits`` out of its
            limits.
    """
    x, p = x.double(), x.shape[-1]
    matrix = drawn_rotation(rotation, p, side)
    if variant == "mse":
        return _quantised(x, matrix, bits)
    near = _quantised(x, matrix, bits - 1)
    rest = x - near
    normal = side.draw(
        "projection", lambda stream: torch.randn(p, p, generator=stream, dtype=torch.float64, device="cpu")
    )
    signs = torch.where(rotated(rest, normal) < 0, -1.0, 1.0)
    size = rest.norm(dim=-1, keepdim=True).half().double()
    return near + (pi / 2) ** 0.5 / p * size * rotated(signs, normal, back=True)


def _quantised(x: Tensor, matrix: Tensor, bits: int) -> Tensor:
    """``x̂`` of the variant ``mse``, in float64."""
    size, root = x.norm(dim=-1, keepdim=True), x.shape[-1] ** 0.5
    levels = torch.tensor(lloyd_max(bits), dtype=x.dtype, device=x.device)
    # Times √p, because the levels are those of N(0, 1) and coordinates are N(0, 1/p).
    unit = rotated(x / size.masked_fill(size == 0, 1.0), matrix) * root
    codes = torch.bucketize(unit, (levels[1:] + levels[:-1]) / 2)
    return rotated(levels[codes], matrix, back=True) * (size.half().double() / root)
