"""Slow literal twins of the spectral shifting family and of Nyströmformer over centroids; see `twins`.

Matrices are lists of rows and products sums of products, as the formulas are written, with the pseudo-inverses and the
eigenvalues of numpy: no orthonormal basis, no scaled columns, no factored inverse.
"""

from math import exp

import numpy as np
import torch
from torch import Tensor


def _dot(x, y) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def _of(rows, columns, entry) -> np.ndarray:
    return np.array([[entry(x, y) for y in columns] for x in rows])


def _softmax(x, y, scale) -> np.ndarray:
    scores = _of(x, y, lambda a, b: scale * _dot(a, b))
    weights = np.array([[exp(score - max(row)) for score in row] for row in scores.tolist()])
    return weights / weights.sum(1, keepdims=True)


def lifted_kernel(qkv) -> np.ndarray:
    """``C̄_ij = exp(-s/2 ‖x_i - x_j‖²)`` over X = [Q; K]."""
    x = qkv.q[0].tolist() + qkv.k[0].tolist()
    return _of(x, x, lambda a, b: exp(-qkv.scale / 2 * sum((s - t) ** 2 for s, t in zip(a, b, strict=True))))


def _means(x, count) -> list[list[float]]:
    """Of consecutive segments, the first ``n mod count`` one token longer."""
    x, means, first = x.tolist(), [], 0
    for segment in range(count):
        size = len(x) // count + (segment < len(x) % count)
        means.append([sum(column) / size for column in zip(*x[first : first + size], strict=True)])
        first += size
    return means


def _six_steps(a: np.ndarray, steps=6) -> np.ndarray:
    """Nyströmformer's iteration from ``Aᵀ / (‖A‖₁ ‖A‖_∞)``, multiplied out."""
    eye, z = np.eye(len(a)), a.T / (a.sum(0).max() * a.sum(1).max())
    for _ in range(steps):
        z = z @ (13 * eye - 15 * a @ z + 7 * a @ z @ a @ z - a @ z @ a @ z @ a @ z) / 4
    return z


def nystromformer_kmeans(qkv, d, draws, target, *, inverse="schulz") -> Tensor:
    """Xiong et al. 2021, equation 13, with the centroids for Q~ and K~."""
    q, k = qkv.q[0].tolist(), qkv.k[0].tolist()
    q_marks, k_marks = draws["query_centroids"].tolist(), draws["key_centroids"].tolist()
    assert len(q_marks) == len(k_marks) == d
    a = _softmax(q_marks, k_marks, qkv.scale)
    z = np.linalg.pinv(a) if inverse == "pinv" else _six_steps(a)
    return torch.tensor(_softmax(q, k_marks, qkv.scale) @ z @ _softmax(q_marks, k, qkv.scale))


def lloyd(x, start, steps) -> list[list[float]]:
    """Centroids after ``steps`` of Lloyd's algorithm from the tokens ``start``; an empty cluster stays."""
    centroids = [x[i] for i in start]
    for _ in range(steps):
        members = [[] for _ in centroids]
        for point in x:
            distances = [sum((s - t) ** 2 for s, t in zip(point, c, strict=True)) for c in centroids]
            members[distances.index(min(distances))].append(point)
        centroids = [
            [sum(column) / len(own) for column in zip(*own, strict=True)] if own else old
            for own, old in zip(members, centroids, strict=True)
        ]
    return centroids


def mss_delta(a: np.ndarray, g: np.ndarray) -> float:
    """``[tr A - tr(G A²)] / [d - tr(G A)]``, 0 for 0/0, not negative."""
    below = len(a) - np.trace(g @ a)
    return 0.0 if abs(below) < 1e-8 * len(a) else max(0.0, float((np.trace(a) - np.trace(g @ a @ a)) / below))


def mss(
    qkv,
    d,
    draws,
    target,
    *,
    form="eq8",
    identity=True,
    inverse="pinv",
    rank=None,
    rtol=1e-3,
    n_iter=6,
    delta_override=None,
) -> Tensor:
    """Verma 2021, equations 8 or 4, ``F G (I - δ G) W`` or ``F G (I - δ A) W``, and the ``δ I`` of the model."""
    q, k = qkv.q[0].tolist(), qkv.k[0].tolist()
    q_marks, k_marks = _means(qkv.q[0], d), _means(qkv.k[0], d)
    a = _softmax(q_marks, k_marks, qkv.scale)
    if inverse == "schulz":
        g = _six_steps(a, n_iter)
    elif rank is not None:
        u, s, v = np.linalg.svd(a)
        g = sum(np.outer(v[i], u[:, i]) / s[i] for i in range(rank))
    else:
        g = np.linalg.pinv(a) if rtol is None else np.linalg.pinv(a, rcond=rtol)
    delta = mss_delta(a, g) if delta_override is None else delta_override
    inner = np.eye(d) - delta * (g if form == "eq8" else a)
    out = _softmax(q, k_marks, qkv.scale) @ g @ inner @ _softmax(q_marks, k, qkv.scale)
    if identity:
        for i in range(qkv.n_q):
            out[i, min(i, qkv.n_k - 1)] += delta
    return torch.tensor(out)


def mss_literal(qkv, d, draws, target) -> Tensor:
    """Verma 2021, equations 4 to 10 with the pseudo-inverse and its rank: ``U = A⁺ - δ (A²)⁺`` once δ is known."""
    a = _softmax(_means(qkv.q[0], d), _means(qkv.k[0], d), qkv.scale)
    inverse, missing = np.linalg.pinv(a), d - np.linalg.matrix_rank(a)
    delta = (np.trace(a) - np.trace(inverse @ a @ a)) / missing if missing else 0.0
    u = inverse - delta * np.linalg.pinv(a @ a)
    left = _softmax(qkv.q[0].tolist(), _means(qkv.k[0], d), qkv.scale)
    return torch.tensor(left @ u @ _softmax(_means(qkv.q[0], d), qkv.k[0].tolist(), qkv.scale))


def prototype(qkv, d, draws, target) -> Tensor:
    """``C (C⁺ B R⁺) R``; for gaussian the block of ``C (C⁺ C̄ (C⁺)ᵀ) Cᵀ``."""
    order, n_q = draws["order"].tolist(), qkv.n_q
    if target == "softmax":
        b = _softmax(qkv.q[0].tolist(), qkv.k[0].tolist(), qkv.scale)
        c = b[:, [i - n_q for i in order if i >= n_q][:d]]
        r = b[[i for i in order if i < n_q][:d]]
        return torch.tensor(c @ (np.linalg.pinv(c) @ b @ np.linalg.pinv(r)) @ r)
    kernel = lifted_kernel(qkv)
    c = kernel[:, order[:d]]
    inverse = np.linalg.pinv(c)
    return torch.tensor((c @ (inverse @ kernel @ inverse.T) @ c.T)[:n_q, n_q:])


def shifted_kernel(kernel: np.ndarray, columns, shift="two-stage") -> tuple[np.ndarray, float]:
    """Wang et al. 2014: ``C~ U C~ᵀ + δ I`` of any symmetric matrix, and δ."""
    total, d = len(kernel), len(columns)
    largest = sorted(np.linalg.eigvalsh(kernel), reverse=True)[:d]
    bar = (np.trace(kernel) - sum(largest)) / (total - d) if shift == "two-stage" and d < total else 0.0
    c = (kernel - bar * np.eye(total))[:, list(columns)]
    inverse, rank = np.linalg.pinv(c), np.linalg.matrix_rank(c)
    delta = (np.trace(kernel) - np.trace(inverse @ kernel @ c)) / (total - rank) if rank < total else 0.0
    u = inverse @ kernel @ inverse.T - delta * np.linalg.pinv(c.T @ c)
    return c @ u @ c.T + delta * np.eye(total), float(delta)


def spectral_shift(qkv, d, draws, target, *, shift="two-stage") -> Tensor:
    """The block of the above with queries for rows and keys for columns."""
    whole, _ = shifted_kernel(lifted_kernel(qkv), draws["indices"].tolist(), shift)
    return torch.tensor(whole[: qkv.n_q, qkv.n_q :])


TWINS = {
    "nystromformer-kmeans": nystromformer_kmeans,
    "mss": mss,
    "mss-literal": mss_literal,
    "prototype": prototype,
    "spectral-shift": spectral_shift,
}
