"""Blocks of 4-bit floating-point numbers (e2m1) with a scale of 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from math import nextafter

import torch
from torch import Tensor

from ..storage import Storage
from .base import Side, cache_format, in_blocks, inverse_of, of_blocks

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
TO_SMALL = tuple((a + b) / 2 for a, b in zip(E2M1, E2M1[1:], strict=False))  # the ends of their cells
#: the middle between an odd number and the even one above it belongs to the upper cell
TO_EVEN = tuple(nextafter(end, 0.0) if place % 2 else end for place, end in enumerate(TO_SMALL))
MX_BLOCK, NV_BLOCK = 32, 16
SCALE_BITS = 8
LARGEST_SCALE = torch.finfo(torch.float8_e4m3fn).max


def _e2m1(x: Tensor, ends: Sequence[float]) -> Tensor:
    """The e2m1 number of each number: the one in whose cell it is, with ``ends`` of cells that belong to the lower."""
    cell = torch.bucketize(x.abs().double(), torch.tensor(ends, dtype=torch.float64, device=x.device))
    return torch.tensor(E2M1, device=x.device)[cell].copysign(x)


@cache_format(
    name="mxfp4",
    paper="OCP Microscaling Formats (MX)",
    year=2023,
    tags=("deterministic", "permutation_equivariant", "causal"),
    oracle="gguf.quants, to the bit",
    storage=lambda: Storage(k=4 + SCALE_BITS / MX_BLOCK, v=4 + SCALE_BITS / MX_BLOCK, block=MX_BLOCK),
)
def mxfp4(x: Tensor, side: Side) -> Tensor:
    """Blocks of 32 numbers as ``x̂ = s · e2m1(x / s)`` with ``s = 2^(⌊log₂ max |x|⌋ - 2)``.

    e2m1 has the sizes 0, ½, 1, 1½, 2, 3, 4 and 6; larger numbers become 6, and a tie the smaller size, as in GGML. A
    vector whose length is no multiple of 32 is padded with zeros. Source: OCP Microscaling Formats 1.0, section 6.3.

    Shapes: codes (h_kv, n_k, p), output (h, n_q, p_v). Deterministic; 4.25 bits a number, cost ``2 n² p``.

    Raises:
        Unsupported: numbers beyond float32. UsageError: options that contradict each other.
    """
    blocks = in_blocks(x, MX_BLOCK)
    largest = blocks.abs().amax(-1, keepdim=True)
    exponent = largest.double().log2().float().floor() - 2  # rounded to float32 before the floor, as in GGML
    # E8M0, the type of the scale, has no smaller exponent.
    step = torch.exp2(exponent.clamp(min=-127))
    return of_blocks(_e2m1(blocks / step, TO_SMALL) * step, x.shape[-1])


@cache_format(
    name="nvfp4",
    paper="NVIDIA, NVFP4",
    year=2025,
    tags=("deterministic", "permutation_equivariant", "whole_scale"),
    oracle="torch's cast to float8, and gguf.quants' numbers",
    storage=lambda: Storage(k=4 + SCALE_BITS / NV_BLOCK, v=4 + SCALE_BITS / NV_BLOCK, block=NV_BLOCK, head=64.0),
    alone=False,
)
def nvfp4(x: Tensor, side: Side) -> Tensor:
    """Blocks of 16 numbers as ``x̂ = g s · e2m1(x / (g s))`` with a scale s of each block in e4m3.

    ``g = max |x| / (6 · 448)`` is a number in float32 of each KV head, and ``s = e4m3(max |x| / (6 g))`` with the
    largest number of the block. In causal attention g is that of all tokens, as a calibrated scale is. A tie becomes
    the even number. A vector whose length is no multiple of 16 is padded with zeros. Source: NVIDIA 2025, Pretraining
    LLMs with NVFP4, appendix C.

    Shapes: codes (h_kv, n_k, p), output (h, n_q, p_v). Deterministic; 4.5 bits a number, cost ``2 n² p``.

    Raises:
        Unsupported: numbers beyond float32. UsageError: options that contradict each other.
    """
    blocks = in_blocks(x, NV_BLOCK)
    whole = x.abs().amax((-2, -1), keepdim=True)[..., None] / (E2M1[-1] * LARGEST_SCALE)
    of_block = blocks.abs().amax(-1, keepdim=True) / E2M1[-1] * inverse_of(whole)
    scale = of_block.clamp(max=LARGEST_SCALE).to(torch.float8_e4m3fn).float()
    step = scale * whole
    return of_blocks(_e2m1(blocks * inverse_of(step), TO_EVEN) * step, x.shape[-1])
