"""Errors of kernels, implementations of exact attention, next to the errors of the framework's own attention."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from ..approximation import Approximation
from ..errors import UsageError
from ..grammar.arguments import checked
from ..operators.blocks import block_rows, row_blocks
from ..operators.linalg.norms import row_norms, unit_of
from ..operators.precision import full_precision
from ..qkv import QKV
from ..reference import exact_output

KERNEL_METRICS = {
    "cosine": "the cosine between the whole output of a head and the exact one",
    "max_abs": "the largest |entry of O~ - O|",
    "relative_frobenius": "‖O~ - O‖_F / ‖O‖_F",
    "row_error_p50": "the median over rows of ‖row of O~ - O‖ / ‖row of O‖",
    "row_error_p99": "the row error that 1 % of the rows exceed",
    "row_error_p99_9": "the row error that 0.1 % of the rows exceed",
    "rows_within": "the share of rows whose row error is at most the tolerance",
    "ratio_to_framework": "max_abs over that of eager softmax attention in the same dtype",
    "ratio_to_framework_frobenius": "relative_frobenius over that of eager softmax attention in the same dtype",
    "framework_max_abs": "max_abs of eager softmax attention in the same dtype",
    "framework_relative_frobenius": "relative_frobenius of eager softmax attention in the same dtype",
}
ROW_TOLERANCES = {torch.bfloat16: 1.6e-2, torch.float16: 1e-3, torch.float32: 1.3e-6, torch.float64: 1e-7}
QUANTILES = 0.5, 0.99, 0.999  # of the row errors
ROWS = 256  # query rows whose scores are in memory at a time


@full_precision()
def eager_output(qkv: QKV) -> Tensor:
    """``softmax(scale · (Q Kᵀ)) V`` computed eagerly by torch, every step rounded to the dtype of ``qkv``.

    That is ``torch.softmax(q @ k.mT * scale, -1) @ v`` for the valid tokens, (h, n_q, p_v), with -∞ for hidden keys,
    and one more score where a head has a sink. It runs by blocks of rows of one head, so no n x n matrix is stored.
    Cost ``2 n² p``.
    """
    inner = qkv.compressed()
    output = inner.q.new_empty(inner.h, inner.n_q, inner.p_v)
    visible = inner.visible
    for head in range(inner.h):
        of_head = inner.head(head)
        for first, last in row_blocks(inner.n_q, block_rows(output, inner.n_k, ROWS)):
            scores = of_head.q[0, first:last] @ of_head.k[0].mT * inner.scale
            if inner.terms is not None:
                scores = inner.terms.of(slice(head, head + 1), slice(first, last)).applied(scores[None])[0]
            if visible is not None:
                scores = scores.masked_fill(visible.of(slice(first, last)).hidden(inner.n_k), -inf)
            if inner.sink_logits is not None:
                sink = inner.sink_logits[head].expand(last - first, 1)
                scores = torch.cat([scores, sink], -1)
            output[head, first:last] = torch.softmax(scores, -1)[:, : inner.n_k] @ of_head.v[0]
    return output


@dataclass(frozen=True, eq=False)
class KernelReference:
    """The exact output and the framework's error for one dtype, shared by its kernels; on the valid tokens.

    Attributes:
        dtype: the dtype to which Q, K and V are rounded.
        exact: the exact output O of the rounded inputs, (h, n_q, p_v) float64.
        max_abs: the largest entry of the framework's error, (h,).
        frobenius: the Frobenius norm of the framework's error over that of O, (h,).
    """

    dtype: torch.dtype
    exact: Tensor
    max_abs: Tensor
    frobenius: Tensor

    @classmethod
    def of(cls, qkv: QKV, dtype: torch.dtype | None = None) -> KernelReference:
        """The reference for Q, K and V rounded to ``dtype``; None keeps their own dtype.

        Inputs that overflow in the dtype have a reference of NaN.
        """
        dtype = dtype or qkv.dtype
        inner = qkv.compressed()
        if not all(torch.isfinite(x.to(dtype)).all() for x in (inner.q, inner.shared_k, inner.shared_v)):
            lost = torch.full((inner.h,), torch.nan, dtype=torch.float64, device=inner.device)
            return cls(dtype, lost[:, None, None].expand(inner.h, inner.n_q, inner.p_v), lost, lost)
        rounded = inner.to(dtype=dtype)
        exact = exact_output(rounded)
        with torch.no_grad():  # rounded to the dtype of Q, K and V too, as a kernel's output is
            error = eager_output(rounded).to(qkv.dtype).double() - exact
        return cls(dtype, exact, error.abs().amax((1, 2)), row_norms(error, 2) / row_norms(exact, 2))


@checked()
def kernel_errors(
    approx: Approximation | Tensor,
    qkv: QKV,
    *,
    dtype: torch.dtype | None = None,
    row_tolerance: float | None = None,
    reference: KernelReference | None = None,
) -> dict[str, Tensor]:
    """The errors of a kernel's output against exact softmax attention, by the measures of kernel authors.

    O~ is the output. O is the exact float64 output of Q, K and V *rounded to* ``dtype``. ``r_i = ‖O~_i - O_i‖ / ‖O_i‖``
    are the row errors, 0 if both rows are zero. All results are float64 (h,):

    ================================  ==========================================================================
    ``cosine``                        ``<O~, O>_F / (‖O~‖_F ‖O‖_F)``; 1 if both are zero, 0 if one is
    ``max_abs``                       ``max |O~ - O|``, in the units of V
    ``relative_frobenius``            ``‖O~ - O‖_F / ‖O‖_F``
    ``row_error_p50``, ``_p99``,      quantiles of the r_i, interpolated linearly
    ``_p99_9``
    ``rows_within``                   the share of rows with ``r_i ≤ row_tolerance``
    ``ratio_to_framework``            ``max_abs`` over that of `eager_output` on the same rounded inputs
    ``ratio_to_framework_frobenius``  ``relative_frobenius`` over that of `eager_output`
    ``framework_max_abs``, …          the denominators of these two
    ================================  ==========================================================================

    The inputs are rounded first because that loss is not the kernel's: it would hide the kernel's error and pull every
    ratio to 1. A ratio is 1 if both errors are 0, infinite if only the framework's error is 0, and 0 if the framework's
    output is not finite and the kernel's is. Padding is left out.

    Args:
        approx: a kernel's result, or its output (h, n_q, p_v) in any dtype.
        dtype: the dtype of the rounding; None is that of ``qkv``.
        row_tolerance: None is `torch.testing.assert_close`'s relative tolerance for the dtype: 1.6e-2 for bfloat16,
            1e-3 for float16, 1.3e-6 for float32, 1e-7 for float64.
        reference: a `KernelReference` of the same inputs, to avoid computing it again; its dtype is used.

    Cost ``n p_v``, and ``4 n² p`` for the reference. An output that is not finite gives NaN, and its rows are not
    within the tolerance.

    Raises:
        UsageError: shapes that differ, or a tolerance that is not positive.

    >>> g = torch.Generator().manual_seed(0)
    >>> qkv = QKV(*torch.randn(3, 1, 64, 16, generator=g))
    >>> q, k, v = (x.bfloat16() for x in (qkv.q, qkv.k, qkv.v))
    >>> errors = kernel_errors(torch.softmax(q @ k.mT * qkv.scale, -1) @ v, qkv, dtype=torch.bfloat16)
    >>> float(errors["ratio_to_framework"]), float(errors["rows_within"])
    (1.0, 1.0)
    """
    reference = reference or KernelReference.of(qkv, dtype)
    tolerance = ROW_TOLERANCES[reference.dtype] if row_tolerance is None else row_tolerance
    if not tolerance > 0:
        raise UsageError(f"row-tolerance={tolerance:g}: choose a relative error above 0, such as 0.01")
    output = approx if isinstance(approx, Tensor) else approx.output
    output = output if qkv.mask is None else output[:, qkv.mask]
    exact = reference.exact
    if output.shape != exact.shape:
        raise UsageError(f"the output has shape {tuple(output.shape)}, the exact one {tuple(exact.shape)}")
    output = output.double()
    error = output - exact
    rows = _ratio(row_norms(error), row_norms(exact), 0.0)  # (h, n_q)
    p50, p99, p99_9 = torch.quantile(rows, rows.new_tensor(QUANTILES), dim=-1)
    max_abs, frobenius = error.abs().amax((1, 2)), _ratio(row_norms(error, 2), row_norms(exact, 2), 0.0)
    # powers of two, so that no square of the cosine under- or overflows
    output, exact = output / unit_of(output, 2), exact / unit_of(exact, 2)
    sizes = output.norm(dim=(1, 2)), exact.norm(dim=(1, 2))
    zero = (sizes[0] == 0) | (sizes[1] == 0)
    cosine = (output * exact).sum((1, 2)) / (sizes[0] * sizes[1])
    return {
        "cosine": torch.where(zero, (sizes[0] == sizes[1]).to(cosine), cosine),
        "max_abs": max_abs,
        "relative_frobenius": frobenius,
        "row_error_p50": p50,
        "row_error_p99": p99,
        "row_error_p99_9": p99_9,
        "rows_within": (rows <= tolerance).double().mean(-1),
        "ratio_to_framework": _ratio(max_abs, reference.max_abs.nan_to_num(nan=inf), 1.0),
        "ratio_to_framework_frobenius": _ratio(frobenius, reference.frobenius.nan_to_num(nan=inf), 1.0),
        "framework_max_abs": reference.max_abs,
        "framework_relative_frobenius": reference.frobenius,
    }


def _ratio(above: Tensor, below: Tensor, both: float) -> Tensor:
    """``above / below``, or ``both`` if both are 0."""
    return torch.where((above == 0) & (below == 0), torch.full_like(above, both), above / below)
