"""Numbers that are said to predict rounding, beside which the estimate of `estimate` stands."""

from __future__ import annotations

import torch
from torch import Tensor

from ..operators import Operator, SoftmaxAttention
from ..operators.blocks import row_blocks
from ..operators.linalg.condition import condition
from .computation import Computation

BLOCK = 256  # rows at a time


def predictors(computation: Computation) -> dict[str, Tensor]:
    """What condition numbers and sizes say of each head, (h,) float64 on the CPU; NaN where the method has no such.

    ``cond`` is the largest condition number of the cores that the method inverts, infinite for a singular core;
    ``inverse_norm`` the largest ``‖Z‖₂`` of the inverses that it uses; ``score_max`` is ``max |S_ij|``; and
    ``cancellation`` is ``max_i Σ_j |B~_ij| / |Σ_j B~_ij|``.

    Cost: O(d³), and ``n_q n_k (p + d)`` multiply-adds.
    """
    approx, qkv = computation.approximation, computation.qkv.compressed()
    nan = torch.full((qkv.h,), torch.nan, dtype=torch.float64)
    conds = [torch.tensor([_cond(of_head) for of_head in core]) for core in approx.cores.values() if _is_core(core)]
    norms = [torch.linalg.matrix_norm(z, 2).cpu() for z in approx.inverses.values() if _is_core(z)]
    scores = SoftmaxAttention(qkv.q, qkv.shared_k, qkv.scale, terms=qkv.terms)
    largest = [
        scores.scores(slice(0, qkv.h), first, last).abs().amax((1, 2)).cpu()
        for first, last in row_blocks(qkv.n_q, BLOCK)
    ]
    return {
        "cond": torch.stack(conds).double().amax(0) if conds else nan,
        "inverse_norm": torch.stack(norms).amax(0) if norms else nan,
        "score_max": torch.stack(largest).amax(0),
        "cancellation": nan if approx.operator is None else _cancellation(approx.operator),
    }


def _cond(core: Tensor) -> float:
    value = condition(core).value
    return torch.inf if value is None else value


def _is_core(x: Tensor) -> bool:
    return x.dim() == 3 and x.shape[1] == x.shape[2] and bool(torch.isfinite(x).all())


def _cancellation(operator: Operator) -> Tensor:
    most = torch.zeros(operator.shape[0], dtype=torch.float64)
    for first, last in row_blocks(operator.shape[1], BLOCK):
        rows = operator.rows(first, last).double()
        sums = rows.sum(-1)
        # a row of hidden keys only has no cancellation
        ratio = torch.where(sums == 0, torch.ones_like(sums), rows.abs().sum(-1) / sums.abs())
        most = torch.maximum(most, ratio.amax(-1).cpu())
    return most
