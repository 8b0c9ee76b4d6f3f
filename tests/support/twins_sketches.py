"""Slow literal twins of the sketching methods; see `twins`."""

from math import exp, sqrt

import torch
from torch import Tensor


def _dot(x, y) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def _product(a, b) -> list[list[float]]:
    """``a b`` of two matrices, entry by entry."""
    columns = list(zip(*b, strict=True))
    return [[_dot(row, column) for column in columns] for row in a]


def _transposed(a) -> list[list[float]]:
    return [list(column) for column in zip(*a, strict=True)]


def _softmax_rows(scores) -> list[list[float]]:
    out = []
    for row in scores:
        weights = [exp(score - max(row)) for score in row]
        out.append([weight / sum(weights) for weight in weights])
    return out


def _attention(qkv) -> list[list[float]]:
    scores = _product(qkv.q[0].tolist(), _transposed(qkv.k[0].tolist()))
    return _softmax_rows([[qkv.scale * score for score in row] for row in scores])


def linformer(qkv, d, draws, target) -> Tensor:
    """Wang et al. 2020, equation 7: ``softmax(s Q (Eᵀ K)ᵀ)`` times Fᵀ."""
    e = draws["sketch"].tolist()
    f = draws.get("sketch_values", draws["sketch"]).tolist()
    keys = _product(_transposed(e), qkv.k[0].tolist())  # (d, p)
    scores = _product(qkv.q[0].tolist(), _transposed(keys))
    p_bar = _softmax_rows([[qkv.scale * score for score in row] for row in scores])
    return torch.tensor(_product(p_bar, _transposed(f)), dtype=torch.float64)


def amm_probabilities(qkv, draws, p) -> list[float]:
    """Of each column, from the definition."""
    b, n_k = _attention(qkv), qkv.n_k
    norms = [sqrt(_dot(value, value)) for value in qkv.v[0].tolist()]
    rows = [b[i] for i in draws["pilot_rows"].tolist()] if p == "pilot" else b
    columns = [sqrt(sum(row[j] ** 2 for row in rows)) for j in range(n_k)]
    weights = {
        "uniform": [1.0] * n_k,
        "vnorm": norms,
        "optimal": [x * y for x, y in zip(columns, norms, strict=True)],
        "pilot": [x * y for x, y in zip(columns, norms, strict=True)],
    }[p]
    return [weight / sum(weights) for weight in weights]


def amm(qkv, d, draws, target, *, p="uniform", normalizer="exact") -> Tensor:
    """``Σ_t B^(i_t) e_{i_t}ᵀ / (d p_{i_t})``, one drawn column after another."""
    b, probability = _attention(qkv), amm_probabilities(qkv, draws, p)
    out = torch.zeros(qkv.n_q, qkv.n_k, dtype=torch.float64)
    assert len(draws["columns"]) == d
    for j in draws["columns"].tolist():
        for i in range(qkv.n_q):
            out[i, j] += b[i][j] / (d * probability[j])
    return out / out.sum(1, keepdim=True) if normalizer == "self" else out


def linformer_jlt(qkv, d, draws, target) -> Tensor:
    """``B (S Sᵀ)``, with S Sᵀ multiplied out first."""
    s = draws["sketch"].tolist()
    return torch.tensor(_product(_attention(qkv), _product(s, _transposed(s))), dtype=torch.float64)


TWINS = {"linformer": linformer, "amm": amm, "linformer-jlt": linformer_jlt}
