"""Keys and values in 8-bit floating point."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..storage import Storage
from .base import Side, cache_format, inverse_of

NUMBERS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
SCALE = 32  # bits


def _storage(number: str, scale: str) -> Storage:
    both = 2.0 * SCALE  # of keys and of values
    return Storage(k=8.0, v=8.0, token=both) if scale == "token" else Storage(k=8.0, v=8.0, head=both)


@cache_format(
    name="fp8",
    paper="Micikevicius et al., FP8 formats for deep learning",
    year=2022,
    tags=("deterministic", "permutation_equivariant", "whole_scale"),
    oracle="torch's cast to float8",
    storage=_storage,
    alone=False,
)
def fp8(
    x: Tensor,
    side: Side,
    *,
    number: Literal["e4m3", "e5m2"] = "e4m3",
    scale: Literal["head", "tensor", "token"] = "head",
) -> Tensor:
    """``x̂ = s · fp8(x / s)`` with ``s = max |x| / m``, where m is the largest finite number: 448, or 57344 of e5m2.

    s is a number in float32 of each KV head. In causal attention it is that of all tokens, as a calibrated scale is.
    Source: Micikevicius et al. 2022, sections 3 and 4.

    Options:
        number: ``e4m3``, four bits of exponent and three of mantissa, or ``e5m2``.
        scale: whose largest number gives a scale: ``head``, a KV head; ``tensor``, the given heads together, so a part
            of them has another scale; ``token``, each token of a KV head.

    Shapes: codes (h_kv, n_k, p), output (h, n_q, p_v). Deterministic; 8 bits a number, cost ``2 n² p``.

    Raises:
        Unsupported: numbers beyond float32. UsageError: options that contradict each other.
    """
    kind = NUMBERS[number]
    largest = torch.finfo(kind).max
    axes = {"head": (-2, -1), "tensor": (0, -2, -1), "token": (-1,)}[scale]
    step = x.abs().amax(axes, keepdim=True) / largest
    codes = x / step.masked_fill(inverse_of(step) == 0, torch.inf)  # 0 where all numbers are, or nearly
    # The quotient may round above the largest number, which float8 would turn into NaN.
    return codes.clamp(-largest, largest).to(kind).float() * step
