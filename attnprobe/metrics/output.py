"""Errors of attention outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, linalg

from ..approximation import Approximation
from ..errors import UsageError
from ..linalg.norms import gram_norms, output_norms, row_norms, tail_singular_values
from ..operators import GaussianAttention, Operator, Padded, SoftmaxAttention, block_rows, full_precision, row_blocks
from ..qkv import QKV
from ..reference import exact_output

__all__ = ["OUTPUT_METRICS", "ExactOutput", "lower_bound", "output_errors"]

OUTPUT_METRICS = {
    "output_spectral": "‖(B - B~) V‖₂, absolute",
    "output_spectral_relative": "‖(B - B~) V‖₂ / ‖B V‖₂",
    "output_frobenius": "‖(B - B~) V‖_F, absolute",
    "output_frobenius_relative": "‖(B - B~) V‖_F / ‖B V‖_F",
    "output_row_relative_max": "the largest ‖row of (B - B~) V‖ / ‖row of B V‖",
    "output_cosine_min": "the smallest cosine between a row of B~ V and the row of B V",
}


CHUNK = 256  # rows of all heads that are compared at once: they stay in the cache
SAFE = 1e-250, 1e250  # squares within are neither lost nor too large, nor are sums and products of two roots of them


@dataclass(frozen=True, eq=False)
class ExactOutput:
    """An exact output ``B V`` with what every error compares with, so that many approximations share it.

    Attributes:
        output: (h, n_q, p_v) float64. norms: its spectral and Frobenius norms, (h,) each. row_sizes: the norms of its
            rows, (h, n_q).
    """

    output: Tensor
    norms: tuple[Tensor, Tensor]
    row_sizes: Tensor

    @classmethod
    def of(cls, output: Tensor) -> ExactOutput:
        """From the output alone."""
        return cls(output, output_norms(output), row_norms(output))


@full_precision()
def output_errors(
    reference: Operator | Tensor | ExactOutput, approx: Approximation | Tensor, qkv: QKV
) -> dict[str, Tensor]:
    """How far the output of an approximation lies from the exact output, per head.

    With ``E = B V - B~ V`` (or C for the Gaussian target), all float64 (h,):

    =============================  ===========================================================================
    ``output_spectral``            ``‖E‖₂``, absolute: the papers' error, in the units of V
    ``output_spectral_relative``   ``‖E‖₂ / ‖B V‖₂``
    ``output_frobenius``           ``‖E‖_F``, absolute
    ``output_frobenius_relative``  ``‖E‖_F / ‖B V‖_F``
    ``output_row_relative_max``    ``max_i ‖E_i‖ / ‖(B V)_i‖``; rows that are zero in both count as 0
    ``output_cosine_min``          ``min_i cos((B V)_i, (B~ V)_i)``; 1 where both rows are zero, 0 where one is
    =============================  ===========================================================================

    Args:
        reference: the exact operator of ``attnprobe.exact``, or its output ``B V`` in float64, (h, n_q, p_v), where
            it is at hand already, or an `ExactOutput` of it.
        approx: an approximation, or its output (h, n_q, p_v) in any dtype.
        qkv: the Q/K/V of both.

    An output that holds a value that is not finite has errors NaN in that head. Cost ``n p_v²`` beside the exact output
    (``2 n² p``), which is made in float64 whatever the dtype of ``qkv``. Accurate to 1e-15 relative.

    Raises:
        UsageError: shapes that differ.

    >>> g = torch.Generator().manual_seed(0)
    >>> qkv = QKV(*torch.randn(3, 1, 32, 8, generator=g, dtype=torch.float64))
    >>> same = output_errors(exact_output(qkv), exact_output(qkv), qkv)
    >>> float(same["output_spectral"]), round(float(same["output_cosine_min"]), 12)
    (0.0, 1.0)
    """
    if not isinstance(reference, ExactOutput):
        reference = ExactOutput.of(reference if isinstance(reference, Tensor) else _exact_output(reference, qkv))
    wanted = reference.output
    got = approx if isinstance(approx, Tensor) else approx.output
    if got.shape != wanted.shape:
        raise UsageError(f"the output has shape {tuple(got.shape)}, the exact one {tuple(wanted.shape)}")
    gram, row_error, cosines = _compared(reference, got)
    spectral, frobenius = gram_norms(gram)
    lost = ~_safe(gram.diagonal(dim1=1, dim2=2)).all(-1)  # squares that were lost or too large, or no numbers
    if lost.any():
        spectral[lost], frobenius[lost] = output_norms(wanted[lost] - got[lost].double())
    size, size_frobenius = reference.norms
    row_relative = torch.where(row_error == 0, row_error, row_error / reference.row_sizes)
    return {
        "output_spectral": spectral,
        "output_spectral_relative": spectral / size,
        "output_frobenius": frobenius,
        "output_frobenius_relative": frobenius / size_frobenius,
        "output_row_relative_max": row_relative.amax(-1),
        "output_cosine_min": cosines.amin(-1),
    }


def lower_bound(wanted: Tensor, d: int, values: Tensor | None = None) -> dict[str, Tensor]:
    """The least output error that any operator of rank ``d`` can have, per head, float64 (h,).

    ``σ_{d+1}(B V)`` in the spectral norm and ``(Σ_{i>d} σ_i(B V)²)^½`` in the Frobenius norm (Eckart & Young 1936,
    for the n x p_v matrix ``B V``), absolute and relative. They are 0 for ``d ≥ p_v``: ``B V`` has rank at most p_v.
    Methods that are not of rank d (sparse ones, those with exact rows) may lie below.

    Args:
        wanted: the exact output ``B V``, (h, n, p_v).
        values: its singular values, (h, r) descending, where they are at hand already.

    >>> wanted = torch.diag(torch.tensor([4.0, 3.0, 0.0], dtype=torch.float64))[None]
    >>> float(lower_bound(wanted, 1)["output_spectral"]), float(lower_bound(wanted, 5)["output_spectral"])
    (3.0, 0.0)
    """
    values = tail_singular_values(wanted) if values is None else values
    size = values[:, 0]
    size_frobenius = row_norms(values)
    tail = values[:, d:]
    spectral = tail[:, 0] if tail.shape[1] else torch.zeros_like(size)
    frobenius = row_norms(tail)
    return {
        "output_spectral": spectral,
        "output_spectral_relative": spectral / size,
        "output_frobenius": frobenius,
        "output_frobenius_relative": frobenius / size_frobenius,
    }


def _exact_output(reference: Operator, qkv: QKV) -> Tensor:
    """``reference @ V`` in float64: by the fused path where it is one of the two exact matrices."""
    mask = reference.mask if isinstance(reference, Padded) else None
    inner = reference.operator if isinstance(reference, Padded) else reference
    for kind, target in ((SoftmaxAttention, "softmax"), (GaussianAttention, "gaussian")):
        if isinstance(inner, kind):
            v = qkv.v if mask is None else qkv.v[:, mask]
            if inner.last is not None and not qkv.causal:  # hidden keys of its own: what it multiplies is what counts
                break
            out = exact_output(QKV(inner.q, inner.k, v.to(inner.q), inner.scale, causal=inner.last is not None), target)
            return out if mask is None else out.new_zeros(qkv.v.shape).index_copy(1, mask.nonzero()[:, 0], out)
    return (reference @ qkv.v).double()


def _compared(reference: ExactOutput, got: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The Gram matrix (h, p_v, p_v) of ``E = wanted - got``, its row norms and the rows' cosines, (h, n_q) each.

    In one pass over rows that the cache holds. The Gram matrix is of plain squares, which may over- or underflow.
    """
    wanted = reference.output
    h, n, p = wanted.shape
    gram = wanted.new_zeros(h, p, p)
    squares, products, row_error = (wanted.new_empty(h, n) for _ in range(3))
    for first, last in row_blocks(n, block_rows(wanted, h * p, CHUNK)):
        x, y = wanted[:, first:last], got[:, first:last].double()
        error = x - y
        gram.baddbmm_(error.mT, error)
        row_error[:, first:last] = row_norms(error)
        squares[:, first:last] = linalg.vecdot(y, y)
        products[:, first:last] = linalg.vecdot(x, y)
    sizes = reference.row_sizes * squares.sqrt()
    cosines = products / sizes
    unsafe = ~(_safe(squares) & _safe(reference.row_sizes**2))  # zero, tiny, huge or not finite
    if unsafe.any():
        cosines[unsafe] = _scaled_cosines(wanted[unsafe], got[unsafe].double())
    return gram, row_error, cosines


def _safe(squares: Tensor) -> Tensor:
    return (squares > SAFE[0]) & (squares < SAFE[1])


def _scaled_cosines(x: Tensor, y: Tensor) -> Tensor:
    """The cosine of each pair of rows (m, p), (m,): 1 where both are zero, 0 where one is; nothing underflows."""
    (x, x_zero), (y, y_zero) = _unit_rows(x), _unit_rows(y)
    norms = x.norm(dim=-1) * y.norm(dim=-1)
    cosine = (x * y).sum(-1) / torch.where(norms == 0, torch.ones_like(norms), norms)
    return torch.where(x_zero & y_zero, torch.ones_like(cosine), cosine)


def _unit_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows over their largest entry, so that no product of them underflows, and which are zero."""
    size = x.abs().amax(-1, keepdim=True)
    return x / torch.where(size > 0, size, torch.ones_like(size)), (size == 0)[..., 0]
