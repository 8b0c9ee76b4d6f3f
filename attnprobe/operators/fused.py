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


@dataclass(frozen=True)
class Shifts:
    """A matrix ``exp(S_ij - rows_i - columns_j)``; ``rows`` (h, n_q), ``columns`` (h, n_k), None is zeros.

    ``at_most_one``: exponents above 0, which rounding makes, are 0.
    """

    rows: Tensor | None
    columns: Tensor | None
    at_most_one: bool = False


def kernels() -> str:
    """The kernels that are chosen: ``torch``, the default, or ``triton``.

    Raises:
        UsageError: another name in ``ATTNPROBE_KERNELS``.
    """
    name = os.environ.get(VARIABLE) or KERNELS[0]
    if name not in KERNELS:
        raise unknown(VARIABLE, name, KERNELS)
    return name


def is_fused(op: Streamed, *operands: Tensor) -> bool:
    """Whether the Triton kernels compute the products of ``op`` with ``operands``.

    They do if they are chosen, in float32 and float64, on CUDA, without gradients and without a sliding window. With
    ``TRITON_INTERPRET=1`` Triton runs them on a CPU instead.

    Raises:
        UsageError: as in `kernels`; Triton is chosen and not installed.
    """
    if kernels() != "triton" or op.dtype not in (torch.float32, torch.float64):
        return False
    if op.visible is not None and op.visible.first is not None:
        return False
    if torch.is_grad_enabled() and any(x.requires_grad for x in (op.q, op.k, *operands)):
        return False
    if op.device.type != ("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"):
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
