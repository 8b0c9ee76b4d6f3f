"""The truncated singular value decomposition, the best matrix of rank d: a yardstick."""

from __future__ import annotations

import torch

from ...operators import LowRank
from ...qkv import QKV
from ...reference import exact
from ...rng import Streams
from ..base import Approximation, per_head
from ..registry import register


@register(
    name="svd",
    paper="Eckart & Young",
    year=1936,
    family="reference",
    targets=("softmax", "gaussian"),
    kind="reference",
    tags=(
        "deterministic",
        "permutation_equivariant",
        "shift_invariant@softmax",
        "exact_at_full_budget",
        "diagnostic",
        "causal_target",
        "biases",
    ),
    budget="rank d",
    cost="O(n³)",
    oracle="Eckart–Young identities",
    limit=lambda n_q, n_k: min(n_q, n_k),
    max_n=2048,
    exact_at=lambda n: (n, {}),
)
def svd(qkv: QKV, d: int, *, streams: Streams, target: str = "softmax") -> Approximation:
    """``B_d = U_d Σ_d W_dᵀ`` from the dense SVD of the exact matrix in float64.

    No matrix of rank d is closer to B in the spectral or the Frobenius norm. Its *output* ``B_d V`` is not optimal: the
    least output error at rank d is σ_{d+1}(BV). For causal inputs it is the SVD of the causal B. Its entries above the
    diagonal are not 0, so it looks ahead and is not a causal form. Source: Eckart & Young 1936.

    Shapes: ``U_d Σ_d`` (h, n_q, d) and ``W_dᵀ`` (h, d, n_k), in float64; output (h, n_q, p_v). Deterministic; cost
    O(n³) for each head, dense: n ≤ 2048.

    Raises:
        Unsupported: n above 2048, or d above n.
    """
    left, right = [], []
    # Head by head: a dense float64 matrix of every head at once would take h times the memory.
    for head in qkv.heads:
        u, s, w = torch.linalg.svd(exact(qkv.select([head]).to(dtype=torch.float64), target).dense()[0])
        left.append(u[:, :d] * s[:d])
        right.append(w[:d])
    operator = LowRank(torch.stack(left), None, torch.stack(right))
    diagnostics = {"visited": per_head(qkv.h, qkv.entries), "realised_d": per_head(qkv.h, d)}
    return Approximation.of(operator, qkv, diagnostics=diagnostics)
