"""Approximate matrix multiplication (Drineas, Kannan & Mahoney 2006): B V from d sampled columns of B and rows of V.

S is the sampling matrix. Its columns are ``e_i / √(d p_i)`` for d indices i drawn independently with probability p_i.
B^(i) is column i of B, V_i row i of V. Our ``d`` is the paper's ``c``.
"""

from __future__ import annotations

from math import log
from typing import Literal

import torch
from torch import Tensor

from ...operators import Columns, SoftmaxAttention
from ...operators.blocks import head_blocks
from ...operators.groups import tokens
from ...operators.linalg.norms import row_norms
from ...operators.linalg.sampling import weighted_with_replacement
from ...operators.precision import product
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, distinct, per_head
from ..registry import INVARIANT, KEYS, register

ROWS = 64  # rows of B in memory at a time


@register(
    name="amm",
    paper="Drineas, Kannan & Mahoney, Fast Monte Carlo algorithms for matrices I",
    year=2006,
    family="sketch",
    tags=("nonnegative", *INVARIANT, "diagnostic"),
    budget="d columns of B, drawn with replacement",
    cost="n² p + 2 n d p",
    oracle="variance identity of each choice of p",
    **KEYS,
)
def amm(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    p: Literal["uniform", "optimal", "vnorm", "pilot"] = "uniform",
    normalizer: Literal["exact", "self"] = "exact",
) -> Approximation:
    """``B~ = B S Sᵀ``: d columns of B with weight ``1/(d p_i)``, drawn independently with replacement.

    ``E[B~ V] = B V`` and ``E‖B~V - BV‖_F² = (Σ_i ‖B^(i)‖² ‖V_i‖² / p_i - ‖BV‖_F²) / d``. Source: Drineas, Kannan &
    Mahoney 2006, their algorithm BasicMatrixMultiplication. A diagnostic: the exact normaliser of the rows costs n² p.

    Options:
        p: the probabilities. ``uniform``; ``optimal`` is proportional to ``‖B^(i)‖ ‖V_i‖``, which minimises the
            expected error above, and costs another ``n² p``; ``vnorm`` is proportional to ``‖V_i‖``; ``pilot`` to
            ``‖B_J^(i)‖ ‖V_i‖`` with d rows J of B drawn uniformly with replacement, and costs ``d n p``. If all weights
            are zero, p is uniform. All but ``uniform`` depend on V and never draw a value of norm zero: then B~ V is
            unbiased but B~ is not.
        normalizer: ``exact`` divides by the true row sums D of A; ``self`` divides by the weighted sum of the sampled
            entries. Its rows sum to 1 and it costs only ``n d p``, but it is biased.

    Shapes: d weighted columns of B, (h, n_q, d), in float64; B is streamed in blocks of rows. Draws: ``columns`` (h,
    d), and ``pilot_rows`` (h, d) with p=pilot. All options use the same random numbers, and each head has its own.
    Cost ``n² p + 2 n d p``.

    ``realised_d`` counts distinct columns; ``visited`` counts the computed entries of A, once per pass.

    Raises:
        Unsupported: d above n_k.

    >>> from attnprobe import approximate
    >>> approximate("amm", QKV(*torch.ones(3, 1, 6, 4)), 3, normalizer="self").operator.row_sums()
    tensor([[1., 1., 1., 1., 1., 1.]], dtype=torch.float64)
    """
    q, k, v = (x.double() for x in (qkv.q, qkv.k, qkv.v))
    draws = {}
    weights = torch.ones(qkv.h, qkv.n_k, dtype=torch.float64, device=q.device) if p == "uniform" else row_norms(v)
    if p == "pilot":
        pilots = [
            torch.randint(qkv.n_q, (d,), generator=streams.head(head, "pilots"), device="cpu") for head in qkv.heads
        ]
        draws["pilot_rows"] = torch.stack(pilots)
        weights = weights * _column_norms(tokens(q, draws["pilot_rows"].to(q.device)), k, qkv.scale)
    elif p == "optimal":
        weights = weights * _column_norms(q, k, qkv.scale)
    # A head whose values are all zero has nothing to prefer.
    weights = torch.where((weights > 0).any(-1, keepdim=True), weights, torch.ones_like(weights))  # (h, n_k)
    of_heads = zip(weights.detach().cpu(), qkv.heads, strict=True)
    drawn = [weighted_with_replacement(of_head, d, streams.head(head, "columns")) for of_head, head in of_heads]
    draws["columns"] = torch.stack(drawn)
    index = draws["columns"].to(q.device)  # (h, d)
    probability = torch.gather(weights / weights.sum(-1, keepdim=True), 1, index)
    keys = tokens(k, index)  # (h, d, p)
    log_weights = -log(d) - probability.log()
    exponent = product(qkv.scale * q, keys.mT) + log_weights[:, None]  # (h, n_q, d)
    if normalizer == "self":
        left = torch.softmax(exponent, -1)
    else:
        left = torch.exp(exponent - SoftmaxAttention(q, k, qkv.scale).log_normalizer()[..., None])
    passes = (normalizer == "exact") + (p == "optimal")
    visited = d * qkv.n_q + passes * qkv.n_q * qkv.n_k + (d * qkv.n_k if p == "pilot" else 0)
    diagnostics = {"realised_d": distinct(draws["columns"]), "visited": per_head(qkv.h, visited)}
    return Approximation.of(Columns(left, index, qkv.n_k), qkv, draws=draws, diagnostics=diagnostics)


def _column_norms(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """The norms of the columns of ``softmax(scale · q kᵀ)``, (h, n_k), by blocks of rows."""
    exact, total = SoftmaxAttention(q, k, scale), k.new_zeros(k.shape[:2])
    for heads, start, stop in head_blocks(exact, ROWS):
        total[heads] += torch.softmax(exact.scores(heads, start, stop), -1).square().sum(1)
    return total.sqrt()
