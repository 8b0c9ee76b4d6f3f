"""Bounds of rounding: eps times the norms of the factors in the computation.

They are worst-case bounds; typical errors are 100 times smaller.
"""

from __future__ import annotations

from functools import reduce

import torch

from ..approximation import Approximation
from ..operators import LowRank, Mosaic, Operator, Padded, RowOverride, Scaled, Stacked, Sum
from ..operators.linalg.norms import row_norms
from ..qkv import QKV


def magnitude(operator: Operator) -> torch.Tensor:
    """The scale of rounding of each entry, (h, n_q, n_k): the operator with norms in place of its factors' entries.

    A product of factors is accurate to eps times the product of their norms, not of the result. For ``L M R`` entry (i,
    j) has ``‖L_i‖ ‖M‖_F ‖R_j‖``, which is far above ``|(L M R)_ij|`` if M is an inverse with cancellation. Factors
    without a middle are features, each computed from its own token with its own relative error: ``|L| |R|``, which
    equals the result for positive factors. In two cases the error has one size for all entries: if R has orthonormal
    rows, from a decomposition of the entire matrix; and if L, or L above Rᵀ, is an orthonormal basis of sampled
    columns.
    """
    if isinstance(operator, LowRank):
        rows, columns = row_norms(operator.left.double())[:, :, None], row_norms(operator.right.double().mT)[:, None]
        if not operator.middle:
            right, eye = operator.right.double(), torch.eye(operator.right.shape[1], dtype=torch.float64)
            # features, whose R is no basis: each entry has the error of its own token's features
            if (right @ right.mT - eye).abs().max() > 1e-6:
                return operator.left.double().abs() @ right.abs()
            return rows.amax(1, keepdim=True) * columns.amax(2, keepdim=True) + torch.zeros(operator.shape)
        if _is_basis(operator):
            rows, columns = rows.amax(1, keepdim=True), columns.amax(2, keepdim=True).expand(-1, -1, operator.shape[2])
            rows = rows.expand(-1, operator.shape[1], -1)
        for factor in operator.middle:
            # Frobenius norms: they bound spectral norms, and need no decomposition
            rows = rows * row_norms(factor.double().flatten(1))[:, None, None]
        return rows * columns
    if isinstance(operator, Scaled):
        inner = magnitude(operator.operator)
        inner = inner if operator.left is None else operator.left.double().abs()[:, :, None] * inner
        return inner if operator.right is None else inner * operator.right.double().abs()[:, None, :]
    if isinstance(operator, RowOverride):
        out, new = magnitude(operator.base), magnitude(operator.new)
        for head, slot in operator.used.nonzero().tolist():
            out[head, operator.index[head, slot]] = new[head, slot]
        return out
    if isinstance(operator, Mosaic):
        out = torch.zeros(operator.shape, dtype=torch.float64)
        for part, row, column in operator.parts:
            _, n_q, n_k = part.shape
            out[:, row : row + n_q, column : column + n_k] += magnitude(part)
        return out
    if isinstance(operator, Padded):
        out = torch.zeros(operator.shape, dtype=torch.float64)
        out[:, operator.mask.nonzero(), operator.mask.nonzero()[:, 0]] = magnitude(operator.operator)
        return out
    if isinstance(operator, Stacked):
        return torch.cat([magnitude(op) for op in operator.operators])
    if isinstance(operator, Sum):
        return reduce(torch.add, map(magnitude, operator.operators))
    return operator.dense().double().abs()


def _is_basis(operator: LowRank) -> bool:
    """Whether the columns of L, or of L above Rᵀ, are orthonormal or zero: a Gram matrix that is a projector."""
    left, right = operator.left.double(), operator.right.double()
    gram = left.mT @ left
    return any(float((g @ g - g).abs().max()) < 1e-9 for g in (gram, gram + right @ right.mT))


def factor_of(qkv: QKV) -> float:
    """The allowed error of an operator of ``qkv``, in eps of `magnitude`.

    An exponent is a sum of p products of size at most G, the larger of ``s|q||k|`` and ``s(|q|² + |k|²)/2``. Its
    absolute error is below ``(p + 4) G`` eps, and so is the relative error of its exponential. Two such factors, twice
    for a normaliser, give the 4. The products add one eps per summand, at most n_q + n_k for each of three products. (A
    random feature has ``|w| |x'|`` in its exponent, at most ``2 |w| √G`` for the pair. This is covered for ``|w|``
    below ``1.5 √G``, or twice that because torch's eps is two roundings.)
    """
    q, k = (float(x.double().norm(dim=-1).max()) for x in (qkv.q, qkv.k))
    growth = qkv.scale * max(q * k, (q * q + k * k) / 2)
    return 4 * (qkv.p + 4) * growth + 3 * (qkv.n_q + qkv.n_k) + 16


def eps(dtype: torch.dtype) -> float:  # twice the unit roundoff
    """The distance of 1 from the next number of a dtype."""
    return torch.finfo(dtype).eps


def entry_band(operator: Operator, qkv: QKV, dtype: torch.dtype) -> torch.Tensor:
    """The allowed error of each entry of an operator computed in ``dtype``, (h, n_q, n_k).

    Besides its own error, an entry has the relative error of its row's normaliser, which is the sum of the errors in
    the row. Weights up to n_k times the least normal number may be zero (see `attnprobe.operators.underflow`).
    """
    size = magnitude(operator)
    size = size + operator.dense().double().abs() * size.sum(-1, keepdim=True)
    return eps(dtype) * factor_of(qkv) * size + qkv.n_k * torch.finfo(dtype).tiny


def output_band(approx: Approximation, qkv: QKV, dtype: torch.dtype) -> torch.Tensor:
    """The allowed error of each entry of the output, (h, n_q, p_v).

    It is that of the operator, and the rounding to the output's dtype.
    """
    inner = entry_band(approx.matrix(), qkv, dtype) @ qkv.v.double().abs()
    return inner + eps(qkv.dtype) * approx.output.double().abs()
