"""Slow literal twins of the feature maps; see `twins`."""

from math import exp, sqrt

import torch
from torch import Tensor

from attnprobe.qkv import QKV


def _dot(x, y) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def normalised(phi_q: list, phi_k: list) -> Tensor:
    """``B~_ij = φ(q_i)·φ(k_j) / Σ_l φ(q_i)·φ(k_l)``."""
    rows = []
    for left in phi_q:
        weights = [_dot(left, right) for right in phi_k]
        rows.append([weight / sum(weights) for weight in weights])
    return torch.tensor(rows, dtype=torch.float64)


def linear(qkv: QKV, d, draws, target, *, scale=False) -> Tensor:
    """Katharopoulos et al. 2020, equation 7: ``φ(x) = elu(x) + 1``."""
    factor = sqrt(qkv.scale) if scale else 1.0

    def phi(x):
        return [t + 1 if t > 0 else exp(t) for t in (factor * value for value in x)]

    return normalised([phi(x) for x in qkv.q[0].tolist()], [phi(x) for x in qkv.k[0].tolist()])


def _softmax(x: list) -> list:
    weights = [exp(value - max(x)) for value in x]
    return [weight / sum(weights) for weight in weights]


def efficient(qkv: QKV, d, draws, target, *, scale=False) -> Tensor:
    """Shen et al. 2021: each row of Q, and each column of K, through a softmax."""
    factor = sqrt(qkv.scale) if scale else 1.0
    rho_q = [_softmax([factor * value for value in x]) for x in qkv.q[0].tolist()]
    columns = [_softmax([factor * value for value in column]) for column in qkv.k[0].T.tolist()]
    rho_k = list(zip(*columns, strict=True))
    return torch.tensor([[_dot(x, y) for y in rho_k] for x in rho_q], dtype=torch.float64)


def _reduced(qkv: QKV, double_norm: bool) -> tuple[list, list]:
    factor = qkv.scale if double_norm else sqrt(qkv.scale)
    return tuple([[factor * value for value in x] for x in rows[0].tolist()] for rows in (qkv.q, qkv.k))


def favor_kernel(q: list, k: list, w: list) -> list:
    """Lemma 1: ``A~_ij = (1/d) Σ_l exp(w_l·q' - |q'|²/2) exp(w_l·k' - |k'|²/2)``."""

    def phi(x):
        return [exp(_dot(row, x) - _dot(x, x) / 2) / sqrt(len(w)) for row in w]

    left, right = [phi(x) for x in q], [phi(x) for x in k]
    return [[_dot(x, y) for y in right] for x in left]


def performer(qkv: QKV, d, draws, target, *, eps=0.0, double_norm=False) -> Tensor:
    """Choromanski et al. 2021, lemma 1; with ``eps`` the shifts and the constant of the authors' code."""
    q, k = _reduced(qkv, double_norm)
    w = draws["projection"].tolist()
    if eps == 0:
        return torch.tensor([[a / sum(row) for a in row] for row in favor_kernel(q, k, w)], dtype=torch.float64)

    def raw(x):
        return [_dot(row, x) for row in w]

    def phi(x, shift):
        return [exp(a - _dot(x, x) / 2 - shift) + eps for a in raw(x)]

    top = max(max(raw(x)) for x in k)
    return normalised([phi(x, max(raw(x))) for x in q], [phi(x, top) for x in k])


def performer_relu(qkv: QKV, d, draws, target, *, eps=1e-3, double_norm=False) -> Tensor:
    """Choromanski et al. 2021, section 2.2, f = relu: ``φ(x') = relu(W x') + eps``."""
    q, k = _reduced(qkv, double_norm)

    def phi(x):
        return [max(_dot(row, x), 0.0) + eps for row in draws["projection"].tolist()]

    return normalised([phi(x) for x in q], [phi(x) for x in k])


TWINS = {"efficient": efficient, "linear": linear, "performer": performer, "performer-relu": performer_relu}
