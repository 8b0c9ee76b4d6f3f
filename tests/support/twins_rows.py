"""The literal twins of the methods that sample rows and columns: Skeinformer and Informer. See `twins`."""

from math import exp, log, sqrt

import torch
from torch import Tensor


def scores_of(qkv) -> list[list[float]]:
    """``l_ij = scale · q_i·k_j`` of one head, all of them."""
    q, k = qkv.q[0].tolist(), qkv.k[0].tolist()
    return [[qkv.scale * sum(a * b for a, b in zip(x, y, strict=True)) for y in k] for x in q]


def softmax_row(scores: list[float]) -> list[float]:
    weights = [exp(score - max(scores)) for score in scores]
    return [weight / sum(weights) for weight in weights]


def pilot_probabilities(qkv, pilots: list[int]) -> list[float]:
    """Algorithm 1, steps 2 and 3: ``p̂_i ∝ (Σ_{j in J} B_ji²)^½ ‖V_i‖``, a pilot drawn twice counted twice."""
    scores, v = scores_of(qkv), qkv.v[0].tolist()
    b = [softmax_row(scores[j]) for j in pilots]
    weights = [sqrt(sum(row[i] ** 2 for row in b)) * sqrt(sum(x * x for x in v[i])) for i in range(qkv.n_k)]
    return [weight / sum(weights) for weight in weights]


def skeinformer(qkv, d, draws, target, *, ablation="none") -> Tensor:
    """Chen et al. 2022, Algorithm 1, entry by entry: the operator of which step 6 and 7 are the product with V."""
    scores, columns = scores_of(qkv), draws["columns"].tolist()
    assert len(columns) == d and (ablation == "no-norm-weighted" or len(set(columns)) == d)
    assert ("pilot_rows" in draws) == (ablation != "uniform")
    p = pilot_probabilities(qkv, draws["pilot_rows"].tolist()) if "pilot_rows" in draws else None
    out = [[0.0] * qkv.n_k for _ in range(qkv.n_q)]
    for i, row in enumerate(scores):
        shift = max(row[j] for j in columns)
        a = {j: exp(row[j] - shift) for j in columns}  # A', up to a factor of the row that step 6 cancels
        g = exp(sum(row[j] for j in columns) / d - shift)  # the geometric mean of the row of A'
        if ablation == "simple-norm":
            for j in columns:
                out[i][j] = a[j] / sum(a.values())
        elif ablation == "no-norm":
            exact = softmax_row(row)
            for j in columns:
                out[i][j] = exact[j]
        elif ablation == "no-norm-weighted":
            exact = softmax_row(row)
            for j in columns:
                out[i][j] += exact[j] / (d * p[j])
        else:
            mass = sum(a.values()) + (qkv.n_k - d) * g  # step 5
            for j in range(qkv.n_k):
                out[i][j] = a.get(j, g) / mass  # step 6
    if ablation == "none":
        for i in set(draws["pilot_rows"].tolist()):  # step 7
            out[i] = softmax_row(scores[i])
    return torch.tensor(out, dtype=torch.float64)


def sparsity(qkv, sampled, measure="max-mean") -> list[float]:
    """Zhou et al. 2021: M̂ of every query from its own sampled keys."""
    scores, out = scores_of(qkv), []
    for row, keys in zip(scores, sampled.tolist(), strict=True):
        if measure == "max-mean":  # of unscaled products; the sum is divided by all keys, as in the authors' code
            products = [row[j] / qkv.scale for j in keys]
            out.append(max(products) - sum(products) / qkv.n_k)
        else:
            a = [exp(row[j] - max(row)) for j in keys]
            arithmetic = sum(a) / len(a)
            out.append(log(arithmetic) + max(row) - sum(row[j] for j in keys) / len(keys))
    return out


def informer(qkv, d, draws, target, *, measure="max-mean") -> Tensor:
    """Zhou et al. 2021, Algorithm 1: mean of V everywhere, exact rows for the largest M̂."""
    m, rows = sparsity(qkv, draws["sampled_keys"], measure), draws["top_queries"].tolist()
    others = [m[i] for i in range(qkv.n_q) if i not in rows]
    ordered = [m[i] for i in rows] + ([max(others)] if others else [])
    rounding = 1e-13 * max(abs(entry) for row in scores_of(qkv) for entry in row) / min(1.0, qkv.scale)
    assert len(set(rows)) == len(rows) and all(a >= b - rounding for a, b in zip(ordered, ordered[1:], strict=False))
    scores = scores_of(qkv)
    out = [[1 / qkv.n_k] * qkv.n_k for _ in range(qkv.n_q)]
    for i in rows:
        out[i] = softmax_row(scores[i])
    return torch.tensor(out, dtype=torch.float64)


TWINS = {"informer": informer, "skeinformer": skeinformer}
