"""Eckart & Young 1936, Mirsky 1960: a method's error against the least error of its rank, for matrix and output.

No matrix of rank r is nearer to B than ``σ_{r+1}(B)`` in the spectral norm, and no operator of rank r has an output
nearer to BV than ``σ_{r+1}(BV)``. The best matrix for B is not the best for BV, and the bound for BV is 0 for r ≥ p_v.
The rank of a method's operator is bounded by its structure; its entries are not examined.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..metrics.matrix import shared_matrix_errors
from ..metrics.output import lower_bound
from ..metrics.spectrum import spectra
from ..operators import Columns, LowRank, Operator, Padded, RankOne, RowOverride, Scaled, Stacked, Sum
from ..operators.linalg.norms import output_norms, tail_singular_values
from ..qkv import QKV
from ..reference import exact, exact_output
from .finding import Finding, Setting, theorem

EPS = torch.finfo(torch.float64).eps


def eckart1936_distance(values: Tensor, rank: Tensor) -> Tensor:
    """``σ_{r+1}``, the distance of a matrix from the nearest matrix of rank r in the spectral norm, (h,).

    Source: Eckart & Young 1936; Mirsky 1960 for this norm.

    Args:
        values: singular values, descending, (h, m). rank: r of each head, (h,); the distance is 0 for r ≥ m.

    >>> eckart1936_distance(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([1]))
    tensor([2.])
    """
    padded = torch.cat([values, values.new_zeros(len(values), 1)], 1)
    index = rank.long().clamp(max=values.shape[1])
    return torch.gather(padded, 1, index[:, None])[:, 0]


def rank_bound(operator: Operator) -> Tensor:
    """An upper bound of the rank of the matrix of each head from its structure, (h,) int64 on the CPU.

    Row normalisers do not increase the rank, replaced rows add their number, and ranks of summands are added. A sparse
    matrix, a multiple of I, and exact attention may have full rank.

    >>> rank_bound(
    ...     Sum([RankOne(torch.ones(1, 5), torch.ones(1, 5)), LowRank(torch.ones(1, 5, 2), None, torch.ones(1, 2, 5))])
    ... )
    tensor([3])
    """
    h, n_q, n_k = operator.shape
    # from the structure alone: a numerical rank would depend on a cutoff
    full = torch.full((h,), min(n_q, n_k), dtype=torch.int64)
    if isinstance(operator, Scaled | Padded):
        return rank_bound(operator.operator)
    if isinstance(operator, Sum):
        return torch.minimum(full, torch.stack([rank_bound(op) for op in operator.operators]).sum(0))
    if isinstance(operator, Stacked):
        return torch.cat([rank_bound(op) for op in operator.operators])
    if isinstance(operator, RowOverride):
        return torch.minimum(full, rank_bound(operator.base) + operator.used.sum(1).cpu())
    if isinstance(operator, Columns):
        return torch.tensor([len(row.unique()) for row in operator.index.cpu()]).clamp(max=min(n_q, n_k))
    if isinstance(operator, RankOne):
        return torch.ones_like(full)
    if isinstance(operator, LowRank):
        widths = [operator.left.shape[2], operator.right.shape[1], *(min(m.shape[1:]) for m in operator.middle)]
        return full.clamp(max=min(widths))
    return full


@theorem(
    "eckart-young",
    paper="Eckart & Young 1936, Mirsky 1960",
    says="no operator of rank d is nearer to B than σ_{d+1}(B), nor its output to BV than σ_{d+1}(BV)",
    cost="the passes of a matrix error, and d leading singular values of B",
    per_method=True,
)
def eckart_young(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The error of each method against the least error of rank d, for the matrix and for the output.

    The slack is the ratio of the two errors. If the structure of a method allows a rank above d (sparse patterns, exact
    rows, a shift by δI), the assumption is not met; ``rank`` is then the possible rank, ``at_rank`` its least error.
    The bound of an output is vacuous for d ≥ p_v, where it is 0. Exact attention is computed in float64.
    """
    wide = qkv.to(dtype=torch.float64)
    target, output = exact(wide, setting.target), exact_output(qkv, setting.target)
    name = "B" if setting.target == "softmax" else "C"
    small = min(qkv.n_q, qkv.n_k)
    # one value beyond the largest d, of which the bound of d is made
    leading = spectra(wide, setting.target, k=max(1, min(max(setting.budgets) + 1, small // 4)))
    values = torch.stack([spectrum.values for spectrum in leading])
    noise = 8 * small * EPS * values[:, 0]
    output_values = tail_singular_values(output).cpu()
    for method in setting.methods:
        approximations = list(setting.runs(method))
        operators = [approx.operator.to(torch.float64) for _, approx in approximations if approx.operator is not None]
        errors = iter(shared_matrix_errors(target, operators) if operators else ())
        for d, approx in approximations:
            rank = torch.full((qkv.h,), small) if approx.operator is None else rank_bound(approx.operator)
            shared = {"d": d, "assumption": f"rank {name}~ ≤ d", "met": rank <= d, "sense": "at least"}
            if approx.operator is not None:
                error = next(errors).metrics
                measured, lower, upper = (error[f"matrix_spectral{end}"].cpu() for end in ("", "_lower", "_upper"))
                bound = eckart1936_distance(values, torch.full_like(rank, d))
                yield Finding(
                    "eckart-young",
                    at={"method": method, "of": "matrix"},
                    promise=f"‖{name} - {name}~‖₂ ≥ σ_{{d+1}}({name})",
                    bound=bound,
                    measured=measured,
                    lower=lower,
                    upper=upper,
                    certified=True,
                    rounding=noise,
                    vacuous=bound <= noise,
                    details={"rank": rank.double(), "at_rank": _at_rank(values, rank, small)},
                    **shared,
                )
            eps = EPS if approx.operator is not None else torch.finfo(approx.output.dtype).eps
            of_v = approx.output.double() if approx.operator is None else approx.operator.to(torch.float64) @ wide.v
            bound = lower_bound(output.cpu(), d, output_values)["output_spectral"]
            rounding = 8 * eps * qkv.n_k * output_values[:, 0]
            yield Finding(
                "eckart-young",
                at={"method": method, "of": "output"},
                promise=f"‖({name} - {name}~)V‖₂ ≥ σ_{{d+1}}({name}V)",
                bound=bound,
                measured=output_norms(output - of_v)[0].cpu(),
                rounding=rounding,
                vacuous=bound <= rounding,
                details={"rank": rank.double(), "at_rank": eckart1936_distance(output_values, rank)},
                **shared,
            )


def _at_rank(values: Tensor, rank: Tensor, size: int) -> Tensor:
    """``σ_{rank+1}(B)``, NaN if too few values are known."""
    known = (rank < values.shape[1]) | (values.shape[1] == size)
    return torch.where(known, eckart1936_distance(values, rank), torch.full_like(values[:, 0], float("nan")))
