"""Literal twins of the coresets: pivots and halvings by loops over keys, from the same uniform numbers."""

from math import exp, log, sqrt

import torch
from torch import Tensor
from twins_estimators import scores_of, weighted

from attnprobe.qkv import QKV


def _dot(x, y) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def _chosen(weights: list[float], uniform: float) -> int:
    """The first place at which the running sum is above ``uniform`` of the total."""
    running = 0.0
    for place, weight in enumerate(weights):
        running += weight
        if running > uniform * sum(weights):
            return place
    return len(weights) - 1


def squared_temperature(qkv: QKV, tau=None, temperature="keys") -> float:
    if tau is not None:
        return tau**2

    def longest(x):
        return max(float(row.norm()) for row in x)

    k = qkv.k[0].double()
    return 3.94582 * (longest(k - k.mean(0)) / longest(qkv.q[0].double()) if temperature == "queries" else 1.0)


def wildcat_kernel(qkv: QKV, **options) -> Tensor:
    """``h = exp(β k·k'/τ²)`` of centred keys, divided by its largest entry."""
    k = qkv.k[0].double()
    x = (k - k.mean(0)).tolist()
    products = [[qkv.scale * _dot(a, b) / squared_temperature(qkv, **options) for b in x] for a in x]
    top = max(products[j][j] for j in range(len(x)))
    return torch.tensor([[exp(value - top) for value in row] for row in products], dtype=torch.float64)


def wildcat_pivots(h: Tensor, uniform: list[float]) -> list[int]:
    """Each pivot by the residual's diagonal, from a Schur complement of the scaled kernel made anew at each step."""
    scale = h.diagonal().sqrt()
    g = h / scale[:, None] / scale
    pivots: list[int] = []
    for number in uniform:
        residual = g.diagonal().clone()
        if pivots:
            residual -= (g[:, pivots] @ torch.linalg.pinv(g[pivots][:, pivots]) @ g[pivots]).diagonal()
        residual[pivots] = 0
        weights = [r * float(s) ** 2 if r > 1e-12 else 0.0 for r, s in zip(residual.tolist(), scale, strict=True)]
        if not any(weights):
            weights = [0.0 if j in pivots else 1.0 for j in range(len(h))]
        pivots.append(_chosen(weights, number))
    return pivots


def wildcat(qkv: QKV, d, draws, target, **options) -> Tensor:
    """``exp(β Q K_Sᵀ) h_SS⁺ h_S``, divided by its row sums; in the Gaussian form of h, which differs by diagonals."""
    h = wildcat_kernel(qkv, **options)
    pivots = wildcat_pivots(h, draws["pivot_numbers"].tolist())
    scale = h.diagonal().sqrt()
    g = h / scale[:, None] / scale
    weights = torch.linalg.pinv(g[pivots][:, pivots], hermitian=True) @ g[pivots] * scale / scale[pivots, None]
    scores = torch.tensor(scores_of(qkv), dtype=torch.float64)[:, pivots]
    out = (scores - scores.amax(1, keepdim=True)).exp() @ weights
    return out / out.sum(1, keepdim=True)


def halving(keys: list[int], kernel, uniform: list[float], coin: float, delta: float) -> list[int]:
    """One key of each pair: the second where the pair is turned, or the other of each where the coin says so."""
    pairs = list(zip(keys[::2], keys[1::2], strict=True))

    def inner(left, right):
        return (
            kernel(left[0], right[0])
            - kernel(left[0], right[1])
            - kernel(left[1], right[0])
            + kernel(left[1], right[1])
        )

    norms = [sqrt(max(inner(pair, pair), 0.0)) for pair in pairs]
    signs: list[int] = []
    for i, pair in enumerate(pairs):
        correlation = sum(sign * inner(pairs[j], pair) for j, sign in enumerate(signs))
        bound = norms[i] * max(norms[: i + 1]) * (0.5 + log(2 * len(keys) / delta))
        turned = i > 0 and (2 * uniform[i] - 1) * bound <= correlation
        signs.append(-1 if turned else 1)
    return [pair[(sign < 0) != (coin < 0.5)] for pair, sign in zip(pairs, signs, strict=True)]


def thinformer_keys(qkv: QKV, d: int, numbers: list[float], delta=0.5) -> list[int]:
    count = 1
    while 4 * count <= qkv.n_k:
        count *= 4
    keys = [j * (qkv.n_k // count) for j in range(count)]
    used = 1
    while 2 * used <= min(d, count):
        used *= 2
    k, v = qkv.k[0].double().tolist(), qkv.v[0].double().tolist()
    top = max(qkv.scale * _dot(k[j], k[j]) for j in keys)
    square = max(abs(x) for j in keys for x in v[j]) ** 2

    def kernel(a, b):
        return exp(qkv.scale * _dot(k[a], k[b]) - top) * (_dot(v[a], v[b]) + square)

    oversampling = max(1, used // int(sqrt(count)))  # 2^g
    rounds = (count // used).bit_length() - 1
    size = 4 * oversampling**2
    share = delta / (size * rounds * count) if rounds else 0.0
    numbers = list(numbers)
    for _ in range(rounds):
        size = min(size, len(keys))
        buckets = [keys[start : start + size] for start in range(0, len(keys), size)]
        uniform = [[numbers.pop(0) for _ in range(size // 2)] for _ in buckets]
        coins = [numbers.pop(0) for _ in buckets]
        keys = []
        for bucket, own, coin in zip(buckets, uniform, coins, strict=True):
            keys += halving(bucket, kernel, own, coin, share * size**2)
        size *= 2
    assert len(keys) == used and not numbers
    return keys


def thinformer(qkv: QKV, d, draws, target, **options) -> Tensor:
    keys = thinformer_keys(qkv, d, draws["halving_numbers"].tolist(), **options)
    rows = [weighted(scores, dict.fromkeys(keys, 1.0), qkv.n_k) for scores in scores_of(qkv)]
    return torch.tensor(rows, dtype=torch.float64)


TWINS = {"thinformer": thinformer, "wildcat": wildcat}
