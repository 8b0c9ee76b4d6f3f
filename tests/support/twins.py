"""Slow literal twins of the methods: one head, float64, loops, the papers' equations; only the draws are shared.

``TWINS[name](qkv, d, draws, target, **options)`` gives the dense (n_q, n_k) matrix of a one-head ``qkv``; ``draws`` are
those of that head.
"""

from math import exp

import torch
import twins_coresets
import twins_estimators
import twins_features
import twins_lsh
import twins_quantised
import twins_rows
import twins_selection
import twins_shift
import twins_sketches
import twins_sparse
from torch import Tensor

from attnprobe.qkv import QKV


def _table(rows: int, columns: int, entry) -> Tensor:
    return torch.tensor([[entry(i, j) for j in range(columns)] for i in range(rows)], dtype=torch.float64)


def _dot(x, y) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def softmax_of(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """``softmax(scale · x yᵀ)`` of (n, p) and (m, p), row by row."""
    a, b = x.tolist(), y.tolist()
    rows = []
    for left in a:
        scores = [scale * _dot(left, right) for right in b]
        weights = [exp(score - max(scores)) for score in scores]
        rows.append([weight / sum(weights) for weight in weights])
    return torch.tensor(rows, dtype=torch.float64)


def gaussian_of(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """``exp(-‖x_i - y_j‖² · scale/2)`` from the differences, which have no cancellation."""
    a, b = x.tolist(), y.tolist()
    return _table(
        len(a), len(b), lambda i, j: exp(-scale / 2 * sum((s - t) ** 2 for s, t in zip(a[i], b[j], strict=True)))
    )


def softmax_kernel_of(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """``exp(scale · x_i·y_j)``, not shifted."""
    a, b = x.tolist(), y.tolist()
    return _table(len(a), len(b), lambda i, j: exp(scale * _dot(a[i], b[j])))


def exact(qkv: QKV, target: str) -> Tensor:
    of = softmax_of if target == "softmax" else gaussian_of
    return of(qkv.q[0], qkv.k[0], qkv.scale)


def razavi_steps(a: Tensor, z: Tensor, steps: int) -> Tensor:
    """``Z ← ¼ Z (13 I - 15 AZ + 7 (AZ)² - (AZ)³)``, multiplied out."""
    eye = torch.eye(len(a), dtype=a.dtype)
    for _ in range(steps):
        az = a @ z
        z = z @ (13 * eye - 15 * az + 7 * az @ az - az @ az @ az) / 4
    return z


def segments(x: Tensor, count: int) -> Tensor:
    """Means of consecutive segments of (n, p), longer ones first."""
    n, means, first = len(x), [], 0
    for segment in range(count):
        size = n // count + (1 if segment < n % count else 0)
        means.append(sum(x[i] for i in range(first, first + size)) / size)
        first += size
    assert first == n
    return torch.stack(means)


def lifted(qkv: QKV) -> Tensor:
    """X = [Q; K] of one head, (n_q + n_k, p)."""
    return torch.cat([qkv.q[0], qkv.k[0]])


def sampling(indices: Tensor, total: int) -> Tensor:
    """The 0/1 matrix S, (n_q + n_k, d)."""
    s = torch.zeros(total, len(indices), dtype=torch.float64)
    for column, row in enumerate(indices.tolist()):
        s[row, column] = 1
    return s


def skyformer_inverse(core: Tensor, inverse: str, gamma: float, n_iter: int, z0: str, divisor: float | None) -> Tensor:
    """What stands for the inverse of the core; ``divisor`` replaces the column sum of z0=paper."""
    if inverse == "pinv":
        return torch.linalg.pinv(core)
    ridged = core + gamma * torch.eye(len(core), dtype=core.dtype)
    if inverse == "cholesky":
        return torch.linalg.inv(ridged)
    r = torch.diag(torch.tensor([float(row.sum()) ** -0.5 for row in ridged], dtype=torch.float64))
    n = r @ ridged @ r
    if z0 == "identity":
        z = torch.eye(len(core), dtype=core.dtype)
    else:
        z = n.T / (max(float(column.sum()) for column in n.T) if divisor is None else divisor)
    return r @ razavi_steps(n, z, n_iter) @ r


def skyformer_lifted(qkv: QKV, indices: Tensor, middle: Tensor) -> tuple[Tensor, Tensor]:
    """``C̄`` and ``C̄~ = C̄ S W Sᵀ C̄``, (n_q + n_k)² each."""
    x = lifted(qkv)
    kernel = gaussian_of(x, x, qkv.scale)
    s = sampling(indices, len(x))
    return kernel, kernel @ s @ middle @ s.T @ kernel


def skyformer(qkv, d, draws, target, *, inverse=None, gamma=None, n_iter=6, z0="paper", divisor=None) -> Tensor:
    """Chen et al. 2021: the off-diagonal block of ``C̄ S (SᵀC̄S)⁺ Sᵀ C̄``; for softmax times E_K, row-normalised."""
    inverse = inverse or ("schulz" if target == "gaussian" else "pinv")
    gamma = gamma if gamma is not None else (0.0 if inverse == "pinv" else 0.1)
    marks = lifted(qkv)[draws["indices"]] if "indices" in draws else draws["centroids"]
    assert len(marks) == d
    core = gaussian_of(marks, marks, qkv.scale)
    middle = skyformer_inverse(core, inverse, gamma, n_iter, z0, divisor)
    out = gaussian_of(qkv.q[0], marks, qkv.scale) @ middle @ gaussian_of(marks, qkv.k[0], qkv.scale)
    if target == "gaussian":
        return out
    out = out * torch.tensor([exp(qkv.scale / 2 * _dot(key, key)) for key in qkv.k[0].tolist()], dtype=torch.float64)
    return out / out.sum(1, keepdim=True)


def skyformer_raw(qkv: QKV, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Figure 1 as the paper writes it: ``A~ = Ā[Q, S] Ā[S, S]⁺ Ā[S, K]`` on the softmax kernel; and its core."""
    x = lifted(qkv)
    marks = x[indices]
    core = softmax_kernel_of(marks, marks, qkv.scale)
    left = softmax_kernel_of(qkv.q[0], marks, qkv.scale)
    return left @ torch.linalg.pinv(core) @ softmax_kernel_of(marks, qkv.k[0], qkv.scale), core


def nystromformer(qkv, d, draws, target, *, inverse="schulz", n_iter=6, divisor=None) -> Tensor:
    """Xiong et al. 2021, equation 13: ``softmax(QK~ᵀ) Z softmax(Q~Kᵀ)``; ``divisor`` replaces that of z0=paper."""
    q_means, k_means = segments(qkv.q[0], d), segments(qkv.k[0], d)
    f = softmax_of(qkv.q[0], k_means, qkv.scale)
    a = softmax_of(q_means, k_means, qkv.scale)
    w = softmax_of(q_means, qkv.k[0], qkv.scale)
    if inverse == "pinv":
        return f @ torch.linalg.pinv(a) @ w
    columns = max(float(column.sum()) for column in a.T)
    rows = max(float(row.sum()) for row in a)
    return f @ razavi_steps(a, a.T / (columns * rows if divisor is None else divisor), n_iter) @ w


def svd(qkv, d, draws, target) -> Tensor:
    """``Σ_{i ≤ d} σ_i u_i w_iᵀ``, one term after another."""
    u, s, w = torch.linalg.svd(exact(qkv, target))
    return sum(s[i] * torch.outer(u[:, i], w[i]) for i in range(d))


def vmean(qkv, d, draws, target) -> Tensor:
    return _table(qkv.n_q, qkv.n_k, lambda i, j: 1 / qkv.n_k)


TWINS = {
    "softmax": lambda qkv, d, draws, target: exact(qkv, "softmax"),
    "kernelized": lambda qkv, d, draws, target: exact(qkv, "gaussian"),
    "nystromformer": nystromformer,
    "skyformer": skyformer,
    "svd": svd,
    "vmean": vmean,
}
TWINS |= twins_coresets.TWINS
TWINS |= twins_estimators.TWINS
TWINS |= twins_features.TWINS

TWINS |= twins_quantised.TWINS
TWINS |= twins_rows.TWINS
TWINS |= twins_sparse.TWINS
TWINS |= twins_selection.TWINS
TWINS |= twins_sketches.TWINS
TWINS |= twins_lsh.TWINS
TWINS |= twins_shift.TWINS
