"""Skeinformer (Chen et al. 2022): pilot rows, then columns sampled by them, then a row normaliser that is filled up.

J are the paper's pilot rows and B_J their exact softmax rows, p̂_i its sampling probabilities, J' the sampled columns,
``A' = exp(l)`` the exact scores of all queries at those columns (its ``A^{J'}``), g the geometric mean of a row of A'
(its adaptive row normalisation), D̂ the normaliser, R its output. Our d is both the number of pilots and of columns.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..linalg.sampling import weighted_with_replacement, weighted_without_replacement
from ..operators import Columns, Operator, RankOne, RowOverride, Scaled, SoftmaxAttention, Sum
from ..qkv import QKV
from ..rng import Streams
from .base import Approximation, distinct, per_head, ragged, tokens
from .registry import register


@register(
    name="skeinformer",
    paper="Chen et al., Skeinformer",
    year=2022,
    family="sampling",
    targets=("softmax",),
    kind="method",
    tags=(
        "row_sums_one", "nonnegative", "uses_values", "permutation_equivariant", "shift_invariant",
        "exact_at_full_budget",
    ),
    budget="d pilot rows and d columns",
    cost="4 n d p",
    oracle="steps of Algorithm 1; laws of its draws",
    limit=lambda n_q, n_k: n_k,
    limit_name="n_k",
    exact_at=lambda n: (n, {}),
)  # fmt: skip
def skeinformer(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    ablation: Literal["none", "uniform", "no-norm", "simple-norm", "no-pilot-reuse", "no-norm-weighted"] = "none",
) -> Approximation:
    """``B~ = diag(1/D̂) (A' Selᵀ + g (1 - 1_J')ᵀ)`` with the rows J replaced by those of B.

    Chen et al. 2022, Algorithm 1, by its steps:

    1. J: d pilot rows, uniform with replacement.
    2. ``B_J = softmax(scale · Q_J Kᵀ)``.
    3. ``p̂_i ∝ (Σ_{j in J} B_ji²)^½ ‖V_i‖``.
    4. J': d columns drawn one after another without replacement, by p̂.
    5. ``l = scale · Q K_J'ᵀ``, ``A' = exp(l)``, ``g_i = exp(mean_j l_ij)``, ``D̂_i = Σ_j A'_ij + (n_k - d) g_i``.
    6. ``R = diag(1/D̂) (A' V_J' + g (Σ_i V_i - Σ_{i in J'} V_i))``.
    7. Rows J of R are ``B_J V``.

    The largest l of each row is taken out of A' and g; it cancels in the quotient, so large scores stay finite (the
    authors' code has no such shift and overflows at 88 in float32). p̂ is found in float64 whatever the dtype. A
    V that is zero everywhere makes p̂ uniform, and a column of weight zero counts as 1e-12 of the heaviest, so that d
    columns can always be drawn. The paper's error bound assumes columns with replacement and weights 1/(d p̂), so it
    does not cover this: B~ is biased.

    Options:
        ablation: ``none`` is the algorithm, and these are the authors' modules of the paper's table, as coded:
            ``no-pilot-reuse`` leaves out step 7; ``uniform`` has a constant p̂, hence no pilots and no step 7 (and no
            look at V); ``simple-norm`` is the softmax over the columns J' alone, no step 7 (the paper calls it
            Informer's normalisation); ``no-norm`` is ``B[:, J']`` with the exact D, which costs n² p, no step 7 and
            no weights, so B~ is too small. ``no-norm-weighted`` is what the paper's formula says instead: columns
            with replacement and weights 1/(d p̂), exact D, without bias.

    The authors share the pilots over heads, and cut d at n - 1; here heads draw on their own and d = n_k is exact.

    Shapes: A' (h, n_q, d), g and D̂ (h, n_q), in the Q/K/V's dtype. Draws: ``pilot_rows`` (h, d) with repeats (none
    for ``uniform``), ``columns`` (h, d). The operator depends on V through the columns. Cost ``4 n d p``, memory
    O(n d); ``visited`` counts the entries of B_J and A'.

    Raises:
        Unsupported: d above n_k.
    """
    draws, probability = _draw(qkv, d, streams, ablation)
    columns = draws["columns"].to(qkv.device)
    picked = tokens(qkv.k, columns)  # (h, d, p)
    scores = (qkv.scale * qkv.q) @ picked.mT  # l, (h, n_q, d)
    visited = d * qkv.n_q + (d * qkv.n_k if "pilot_rows" in draws else 0)
    if ablation in ("no-norm", "no-norm-weighted"):
        exact = SoftmaxAttention(qkv.q, qkv.k, qkv.scale)
        weight = torch.exp(scores - exact.log_normalizer()[..., None])
        if ablation == "no-norm-weighted":
            weight = weight / (d * torch.gather(probability, 1, columns))[:, None, :].to(weight)
        operator = Columns(weight, columns, qkv.n_k)
        visited += qkv.n_q * qkv.n_k
    elif ablation == "simple-norm":
        operator = Columns(torch.softmax(scores, -1), columns, qkv.n_k)
    else:
        operator = _filled(scores, columns, qkv.n_k)
    if ablation == "none":
        operator = _with_rows(operator, qkv, draws["pilot_rows"])
    diagnostics = {"realised_d": distinct(draws["columns"]), "visited": per_head(qkv.h, visited)}
    return Approximation.of(operator, qkv, draws=draws, diagnostics=diagnostics)


def _draw(qkv: QKV, d: int, streams: Streams, ablation: str) -> tuple[dict[str, Tensor], Tensor]:
    """Steps 1 to 4: the draws of every head, and p̂ (h, n_k) float64."""
    pilots, columns, probabilities = [], [], []
    for row, head in enumerate(qkv.heads):
        if ablation == "uniform":
            p = torch.full((qkv.n_k,), 1 / qkv.n_k, dtype=torch.float64, device=qkv.device)
        else:
            pilots.append(torch.randint(qkv.n_q, (d,), generator=streams.head(head, "pilot_rows"), device="cpu"))
            j = pilots[-1].to(qkv.device)
            q, k, v = (x[row].double() for x in (qkv.q, qkv.k, qkv.v))
            b = torch.softmax(qkv.scale * q[j] @ k.mT, -1)  # (d, n_k)
            p = b.norm(dim=0) * v.norm(dim=1)  # (n_k,)
            p = p / p.sum() if p.sum() > 0 else torch.full_like(p, 1 / qkv.n_k)
        with_repeats = ablation == "no-norm-weighted"
        sample = weighted_with_replacement if with_repeats else weighted_without_replacement
        columns.append(sample(p, d, streams.head(head, "columns")))
        probabilities.append(p)
    draws = {"pilot_rows": torch.stack(pilots)} if pilots else {}
    return draws | {"columns": torch.stack(columns)}, torch.stack(probabilities)


def _filled(scores: Tensor, columns: Tensor, n_k: int) -> Operator:
    """Steps 5 and 6: the columns J', and every other entry of a row the geometric mean of those, normalised."""
    scores = scores - scores.amax(-1, keepdim=True)
    a, g = torch.exp(scores), torch.exp(scores.mean(-1))  # (h, n_q, d), (h, n_q)
    others = torch.ones(scores.shape[0], n_k, dtype=a.dtype, device=a.device).scatter(1, columns, 0.0)  # 1 - 1_J'
    mass = a.sum(-1) + (n_k - columns.shape[1]) * g  # D̂, (h, n_q): at least 1 by the shift
    return Scaled(Sum([Columns(a, columns, n_k), RankOne(g, others)]), left=1 / mass)


def _with_rows(operator: Operator, qkv: QKV, pilots: Tensor) -> Operator:
    """Step 7: the pilot rows are exact. A row drawn twice is replaced once."""
    drawn = torch.zeros(qkv.h, qkv.n_q, dtype=torch.bool, device=qkv.device).scatter(1, pilots.to(qkv.device), True)
    rows = ragged(drawn)  # (h, at most d)
    return RowOverride(operator, rows, SoftmaxAttention(tokens(qkv.q, rows), qkv.k, qkv.scale))
