"""The kernels that compute products of exact attention: torch's, or those of Triton by ``ATTNPROBE_KERNELS``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..environment import KERNELS as VARIABLE
from ..errors import UsageError, unknown
from ..groups import repeated

if TYPE_CHECKING:
    from .attention import Streamed

KERNELS = ("torch", "triton")
MOST_COLUMNS = 128  # of an operand in one launch: their sums are in registers
LEAST = 16  # columns and places of the head dimension that a product of tiles takes
REDUCED = 2**10  # bytes of maxima and sums over a tile
SHARED = 227 * 2**10  # bytes of shared memory of an H100, where no GPU says how many it has


@dataclass(frozen=True)
class Tile:
    """A tile of scores, and the warps and stages of the pipeline that compute it."""

    rows: int
    keys: int
    warps: int
    stages: int

    def shared_bytes(self, p: int) -> int:
        """The most shared memory: of its rows, of the keys and values of each stage but the last, and of reductions.

        A float32 number of three products in TF32 is held as two.
        """
        keys = self.keys * (padded(p) + MOST_COLUMNS) * max(1, self.stages - 1)
        return 8 * (self.rows * padded(p) + keys) + REDUCED


#: the fastest first. On an H200, one head with p = 128 took 1.6 times the products alone by the first tile in float64.
TILES = {
    torch.float64: (Tile(128, 32, 8, 2), Tile(64, 32, 4, 1), Tile(32, 32, 4, 1), Tile(16, 16, 4, 1)),
    torch.float32: (Tile(32, 64, 4, 2), Tile(32, 32, 4, 1), Tile(16, 16, 4, 1)),
}


@dataclass(frozen=True)
class Shifts:
    """A matrix ``exp(S_ij - rows_i - columns_j)``; ``rows`` (h, n_q), ``columns`` (h, n_k), None is zeros.

    ``at_most_one``: exponents above 0, which rounding makes, are 0.
    """

    rows: Tensor | None
    columns: Tensor | None
    at_most_one: bool = False


def kernels() -> str:
    """The kernels that are chosen: ``torch``, the default, or ``triton``."""
    name = os.environ.get(VARIABLE) or KERNELS[0]
    if name not in KERNELS:
        raise unknown(VARIABLE, name, KERNELS)
    return name


def padded(size: int) -> int:
    """The least power of two, from 16 on, that is at least ``size``: columns or places of a tile.

    >>> padded(5), padded(80)
    (16, 128)
    """
    return max(LEAST, 1 << (size - 1).bit_length())


def tile_of(dtype: torch.dtype, p: int, device: torch.device) -> Tile | None:
    """The first of `TILES` whose operands fit the shared memory of a device, for heads of ``p`` places.

    >>> tile_of(torch.float64, 128, torch.device("cpu"))
    Tile(rows=128, keys=32, warps=8, stages=2)
    """
    has = SHARED
    if device.type == "cuda":
        has = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return next((tile for tile in TILES.get(dtype, ()) if tile.shared_bytes(p) <= has), None)


def is_fused(op: Streamed, *operands: Tensor) -> bool:
    """Whether the Triton kernels compute the products of ``op`` with ``operands``.

    They do if they are chosen, in float32 and float64, on CUDA, without gradients and without a sliding window, where a
    tile fits the chip. With ``TRITON_INTERPRET=1`` Triton runs them on a CPU instead.
    """
    if kernels() != "triton":
        return False
    if op.visible is not None and op.visible.first is not None:
        return False
    if op.is_differentiated(*operands):
        return False
    if op.device.type != ("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"):
        return False
    if tile_of(op.dtype, op.q.shape[2], op.device) is None:
        return False
    try:
        import triton  # noqa: F401  # pyright: ignore[reportMissingImports, reportUnusedImport]  (optional)
    except ImportError as error:
        raise UsageError(f"{VARIABLE}=triton: Triton is not installed; pip install 'attnprobe[triton]'") from error
    return True


def fused_apply(op: Streamed, x: Tensor) -> Tensor:
    """``op @ x``, (h, n_q, c): one sweep over the keys for each tile of rows."""
    from .triton_kernels import normalised_product, shifted_product

    q, k, shifts = op.q * op.scale, repeated(op.k, len(op.q)), op.shifts()
    if shifts is None:
        product = normalised_product(q, k, x, _last(op))[0]
    else:
        product = shifted_product(q, k, x, shifts, _last(op), transposed=False)
    return product.to(op.dtype)


def fused_apply_transpose(op: Streamed, y: Tensor) -> Tensor:
    """``opᵀ @ y``, (h, n_k, c): one sweep over the queries for each tile of keys.

    For a normalised matrix it is ``Σ_i exp(S_ij - m_i) y_i / D_i`` with the largest score m_i and the sum ``D_i = Σ_j
    exp(S_ij - m_i)`` of each row. A first sweep computes these once for an operator.
    """
    from .triton_kernels import normalised_product, shifted_product

    q, k, shifts = op.q * op.scale, repeated(op.k, len(op.q)), op.shifts()
    if shifts is None:
        if op.normaliser is None:
            one = torch.ones(op.shape[0], op.shape[2], 1, dtype=op.dtype, device=op.device)
            op.normaliser = normalised_product(q, k, one, _last(op))[1:]
        largest, total = op.normaliser
        shifts, y = Shifts(largest, None), (y / total[..., None]).to(op.dtype)
    flipped = Shifts(shifts.columns, shifts.rows, shifts.at_most_one)
    return shifted_product(k, q, y, flipped, _last(op), transposed=True).to(op.dtype)


def _last(op: Streamed) -> Tensor | None:
    """The last key that each query sees, (n_q,) int64; None is all keys."""
    return None if op.visible is None else op.visible.last
