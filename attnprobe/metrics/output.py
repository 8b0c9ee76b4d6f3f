"""Errors of attention outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, linalg

from ..approximation import Approximation
from ..errors import UsageError
from ..grammar.arguments import checked
from ..operators import GaussianAttention, Operator, Padded, SoftmaxAttention
from ..operators.blocks import block_rows, row_blocks
from ..operators.linalg.norms import gram_norms, output_norms, row_norms, tail_singular_values, unit_of
from ..operators.precision import full_precision
from ..qkv import QKV
from ..reference import exact_output

OUTPUT_METRICS = {
    "output_spectral": "‖(B - B~) V‖₂, absolute",
    "output_spectral_relative": "‖(B - B~) V‖₂ / ‖B V‖₂",
    "output_frobenius": "‖(B - B~) V‖_F, absolute",
    "output_frobenius_relative": "‖(B - B~) V‖_F / ‖B V‖_F",
    "output_row_relative_max": "the largest ‖row of (B - B~) V‖ / ‖row of B V‖",
    "output_cosine_min": "the smallest cosine between a row of B~ V and the row of B V",
}


CHUNK = 256  # rows of all heads compared at a time: they fit in the cache
SAFE = 1e-250, 1e250  # squares within this range, and products of two of their roots, are accurate


@dataclass(frozen=True, eq=False)
class ExactOutput:
    """An exact output ``B V`` with its norms, to be shared by many approximations.

    Attributes:
        output: (h, n_q, p_v) float64.
        norms: its spectral and Frobenius norms, (h,) each.
        row_sizes: the norms of its rows, (h, n_q).
    """

    output: Tensor
    norms: tuple[Tensor, Tensor]
    row_sizes: Tensor

    @classmethod
    def of(cls, output: Tensor) -> ExactOutput:
        """Computes the norms of an output.

        Raises:
            UsageError: it does not have three axes.
        """
        if output.dim() != 3:
            raise UsageError(f"the exact output has shape {tuple(output.shape)}; (h, n_q, p_v) is needed")
        output = output.detach().double()
        return cls(output, output_norms(output), row_norms(output))


@checked()
@full_precision()
def output_errors(
    reference: Operator | Tensor | ExactOutput, approx: Approximation | Tensor, qkv: QKV
) -> dict[str, Tensor]:
    """The errors of an approximation's output against the exact output, per head.

    With ``E = B V - B~ V`` (or C for the Gaussian target). All are float64 (h,):

    =============================  ===========================================================================
    ``output_spectral``            ``‖E‖₂``, absolute: the papers' error, in the units of V
    ``output_spectral_relative``   ``‖E‖₂ / ‖B V‖₂``
    ``output_frobenius``           ``‖E‖_F``, absolute
    ``output_frobenius_relative``  ``‖E‖_F / ‖B V‖_F``
    ``output_row_relative_max``    ``max_i ‖E_i‖ / ‖(B V)_i‖``; 0 for a row that is zero in both
    ``output_cosine_min``          ``min_i cos((B V)_i, (B~ V)_i)``; 1 if both rows are zero, 0 if one is
    =============================  ===========================================================================

    Args:
        reference: the exact operator of ``attnprobe.exact``, its output ``B V`` in float64, (h, n_q, p_v), or an
            `ExactOutput` of that output.
        approx: an approximation, or its output (h, n_q, p_v) in any dtype.
        qkv: the Q/K/V of both.

    A head with an output that is not finite has errors NaN. Cost ``n_q p_v²`` multiply-adds a head, and ``n_q n_k (p +
    p_v)`` for the exact output, which is computed in float64 for every dtype of ``qkv``. The relative error is 1e-15.

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
    exact = reference.output
    output = approx if isinstance(approx, Tensor) else approx.output
    if output.shape != exact.shape:
        raise UsageError(f"the output has shape {tuple(output.shape)}, the exact one {tuple(exact.shape)}")
    gram, row_error, cosines = _compare_rows(reference, output)
    spectral, frobenius = gram_norms(gram)
    inaccurate = ~_safe(gram.diagonal(dim1=1, dim2=2)).all(-1)  # squares underflowed, overflowed or are NaN
    if inaccurate.any():
        spectral[inaccurate], frobenius[inaccurate] = output_norms(exact[inaccurate] - output[inaccurate].double())
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


@checked()
def lower_bound(exact: Tensor, d: int, values: Tensor | None = None) -> dict[str, Tensor]:
    """The least output error of any operator of rank d, by the names of `output_errors`, (h,) float64 each.

    It is ``σ_{d+1}(B V)`` in the spectral norm and ``(Σ_{i>d} σ_i(B V)²)^½`` in the Frobenius norm (Eckart & Young
    1936, for the n_q x p_v matrix ``B V``), absolute and relative. It is 0 for ``d ≥ p_v``, because the rank of ``B V``
    is at most p_v. Methods with a rank above d (sparse methods, methods with exact rows) may have smaller errors.

    Args:
        exact: the exact output ``B V``, (h, n_q, p_v).
        values: its singular values, (h, r) descending, to avoid computing them again.

    Cost ``n_q p_v²`` for the singular values.

    >>> output = torch.diag(torch.tensor([4.0, 3.0, 0.0], dtype=torch.float64))[None]
    >>> float(lower_bound(output, 1)["output_spectral"]), float(lower_bound(output, 5)["output_spectral"])
    (3.0, 0.0)
    """
    if d < 0:
        raise UsageError(f"lower_bound: d={d} is negative")
    values = tail_singular_values(exact) if values is None else values.double()
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
    """``reference @ V`` in float64, (h, n_q, p_v), by `exact_output` if it is one of the two exact matrices."""
    operator = reference.operator if isinstance(reference, Padded) else reference
    inner = qkv.compressed()
    for kind, target in ((SoftmaxAttention, "softmax"), (GaussianAttention, "gaussian")):
        if isinstance(operator, kind) and (operator.visible is None) == (inner.visible is None):
            wide = inner.to(dtype=operator.dtype)
            out = exact_output(wide.replace(q=operator.q, k=operator.k, scale=operator.scale, sink_logits=None), target)
            if qkv.mask is None:
                return out
            return out.new_zeros(qkv.h, qkv.n_q, qkv.p_v).index_copy(1, qkv.mask.nonzero()[:, 0], out)
    return reference.to(torch.float64).matmul_shared(qkv.shared_v)


def _compare_rows(reference: ExactOutput, output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The Gram matrix (h, p_v, p_v) of the error ``B V - output``, its row norms and the cosines of rows, (h, n_q).

    It takes one pass over blocks of rows. The squares in the Gram matrix may overflow or underflow.
    """
    exact = reference.output
    h, n, p = exact.shape
    gram = exact.new_zeros(h, p, p)
    squares, products, row_error = (exact.new_empty(h, n) for _ in range(3))
    for first, last in row_blocks(n, block_rows(exact, h * p, CHUNK)):
        x, y = exact[:, first:last], output[:, first:last].double()
        error = x - y
        gram.baddbmm_(error.mT, error)
        row_error[:, first:last] = row_norms(error)
        squares[:, first:last] = linalg.vecdot(y, y)
        products[:, first:last] = linalg.vecdot(x, y)
    sizes = reference.row_sizes * squares.sqrt()
    cosines = products / sizes
    unsafe = ~(_safe(squares) & _safe(reference.row_sizes**2))  # zero, tiny, huge or not finite
    if unsafe.any():
        cosines[unsafe] = _scaled_cosines(exact[unsafe], output[unsafe].double())
    return gram, row_error, cosines


def _safe(squares: Tensor) -> Tensor:
    return (squares > SAFE[0]) & (squares < SAFE[1])


def _scaled_cosines(x: Tensor, y: Tensor) -> Tensor:
    """The cosine of each pair of rows (m, p), as (m,), without underflow: 1 if both are zero, 0 if one is."""
    x, y = x / unit_of(x), y / unit_of(y)
    norm_x, norm_y = x.norm(dim=-1), y.norm(dim=-1)
    cosine = (x * y).sum(-1) / (norm_x * norm_y)
    zero = (norm_x == 0) | (norm_y == 0)
    return torch.where(zero, (norm_x == norm_y).to(cosine), cosine)
