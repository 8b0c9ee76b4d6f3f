"""Literal twins of the sparse methods: a mask filled entry by entry, then a softmax over it; merged into `twins`."""

from math import exp

import torch
from torch import Tensor

from attnprobe.qkv import QKV


def over_mask(qkv: QKV, mask: list[list[bool]]) -> Tensor:
    """The softmax of each row over the true columns of ``mask``, dense."""
    q, k = qkv.q[0].tolist(), qkv.k[0].tolist()
    out = torch.zeros(qkv.n_q, qkv.n_k, dtype=torch.float64)
    for i in range(qkv.n_q):
        scores = {
            j: qkv.scale * sum(a * b for a, b in zip(q[i], k[j], strict=True)) for j in range(qkv.n_k) if mask[i][j]
        }
        top = max(scores.values())
        total = sum(exp(score - top) for score in scores.values())
        for j, score in scores.items():
            out[i, j] = exp(score - top) / total
    return out


def window_mask(n_q, n_k, d, sinks=4, causal=False) -> list[list[bool]]:
    w = d - sinks
    if causal:  # the w tokens up to the last one that is both a key and no later than i
        return [
            [j <= i and (j < sinks or min(i, n_k - 1) - w < j <= min(i, n_k - 1)) for j in range(n_k)]
            for i in range(n_q)
        ]
    mask = []
    for i in range(n_q):
        c = min(i, n_k - 1)
        mask.append(
            [j < sinks or (j <= c and c - j <= w // 2) or (j > c and j - c <= (w - 1) // 2) for j in range(n_k)]
        )
    return mask


def longformer_mask(n_q, n_k, d, global_tokens=1) -> list[list[bool]]:
    w = 2 * ((d - 1 - 2 * global_tokens) // 2)
    return [
        [i < global_tokens or j < global_tokens or abs(min(i, n_k - 1) - j) <= w / 2 for j in range(n_k)]
        for i in range(n_q)
    ]


def bigbird_mask(n_q, n_k, d, blocks, random_blocks=3) -> list[list[bool]]:
    b = d // (7 + random_blocks)
    last_q, last_k = (n_q - 1) // b, (n_k - 1) // b
    mask = []
    for i in range(n_q):
        row = i // b
        if row in (0, last_q):
            mask.append([True] * n_k)
            continue
        near = min(row, last_k)
        seen = {0, last_k, near - 1, near, near + 1, *blocks[row - 1].tolist()}
        mask.append([j // b in seen for j in range(n_k)])
    return mask


def topk(qkv, d, draws, target, *, renormalize=True) -> Tensor:
    """Sort each row, keep d."""
    scores = qkv.scale * qkv.q[0] @ qkv.k[0].T
    mask = []
    for row in scores.tolist():
        kept = sorted(range(qkv.n_k), key=lambda j: -row[j])[:d]  # noqa: B023
        mask.append([j in kept for j in range(qkv.n_k)])
    if renormalize:
        return over_mask(qkv, mask)
    return over_mask(qkv, [[True] * qkv.n_k] * qkv.n_q) * torch.tensor(mask)


def window(qkv, d, draws, target, **options) -> Tensor:
    return over_mask(qkv, window_mask(qkv.n_q, qkv.n_k, d, **options))


def longformer(qkv, d, draws, target, **options) -> Tensor:
    return over_mask(qkv, longformer_mask(qkv.n_q, qkv.n_k, d, **options))


def bigbird(qkv, d, draws, target) -> Tensor:
    return over_mask(qkv, bigbird_mask(qkv.n_q, qkv.n_k, d, draws["blocks"]))


def tri_shape(qkv, d, draws, target, *, first=1, last=1) -> Tensor:
    """The window of as many keys as leave room for the last rows, whose masks are full."""
    n_k = qkv.n_k
    own = [i + n_k - qkv.n_q if qkv.causal else min(i, n_k - 1) for i in range(qkv.n_q)]
    width = (d - last) * n_k // (n_k - last) - first
    near = window_mask(n_k, n_k, first + width, sinks=first, causal=qkv.causal)
    mask = [[True] * n_k if i >= n_k - last else near[i] for i in own]
    return over_mask(
        qkv,
        [[one and (j <= i or not qkv.causal) for j, one in enumerate(row)] for i, row in zip(own, mask, strict=True)],
    )


TWINS = {"bigbird": bigbird, "longformer": longformer, "topk": topk, "tri-shape": tri_shape, "window": window}
