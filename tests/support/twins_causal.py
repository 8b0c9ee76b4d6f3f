"""Literal twins of the causal forms, as `twins` has those of the methods; merged nowhere: `CAUSAL` stands beside TWINS.

Where a method says nothing of its own about the future, row i of its causal form is the last row of the method on the
tokens up to i.
"""

from __future__ import annotations

import torch
from torch import Tensor
from twins import TWINS, exact
from twins_estimators import TWINS as ESTIMATORS
from twins_lsh import bucket, factors
from twins_selection import CAUSAL as SELECTIONS
from twins_sparse import bigbird_mask, longformer_mask, over_mask, window_mask

from attnprobe.qkv import QKV


def prefix(qkv: QKV, n: int) -> QKV:
    """The first n tokens, not causal: their last query sees all of them."""
    return qkv.replace(q=qkv.q[:, :n], k=qkv.k[:, :n], v=qkv.v[:, :n], causal=False)


def last_rows(twin):
    """The causal twin whose row i is the last row of ``twin`` on the tokens up to i."""

    def causal(qkv: QKV, d, draws, target, **options) -> Tensor:
        out = torch.zeros(qkv.n, qkv.n, dtype=torch.float64)
        for i in range(qkv.n):
            out[i, : i + 1] = twin(prefix(qkv, i + 1), d, draws, target, **options)[-1]
        return out

    return causal


def below(mask: list[list[bool]]) -> list[list[bool]]:
    """A mask without what lies behind the diagonal."""
    return [[seen and j <= i for j, seen in enumerate(row)] for i, row in enumerate(mask)]


def window(qkv, d, draws, target, *, sinks=4) -> Tensor:
    return over_mask(qkv, window_mask(qkv.n, qkv.n, d, sinks, causal=True))


def longformer(qkv, d, draws, target, **options) -> Tensor:
    return over_mask(qkv, below(longformer_mask(qkv.n, qkv.n, d, **options)))


def bigbird(qkv, d, draws, target, **options) -> Tensor:
    return over_mask(qkv, below(bigbird_mask(qkv.n, qkv.n, d, draws["blocks"], **options)))


def looked_back(place: tuple, keys: list[tuple], width: int) -> list[int]:
    """The tokens of the ``width`` keys (bucket, token) up to a place in their sorted list, the first after the last."""
    ordered = sorted(keys)
    before = [key for key in ordered if key <= place]
    turned = before[::-1] + [key for key in ordered if key > place][::-1]
    return [token for _, token in turned[:width]]


def lsh_qk(qkv: QKV, d, draws, target, *, rounds=2, buckets=None) -> Tensor:
    q, k = qkv.q[0].tolist(), qkv.k[0].tolist()
    c = min(d // (2 * rounds), qkv.n)
    counts, mask = factors(qkv.n, c, buckets), [[False] * qkv.n for _ in range(qkv.n)]
    for rows in draws["rotations"].tolist():
        keys = [(bucket(x, rows, counts), j) for j, x in enumerate(k)]
        for i in range(qkv.n):
            for j in looked_back((bucket(q[i], rows, counts), i), keys[: i + 1], 2 * c):
                mask[i][j] = True
    return over_mask(qkv, mask)


def reformer(qkv: QKV, d, draws, target, *, rounds=2, buckets=None, logits="unit", duplicates="count") -> Tensor:
    q, n = qkv.q[0].tolist(), qkv.n
    c = min(d // (2 * rounds), n)
    counts, factor = factors(n, c, buckets), qkv.scale if logits == "scaled" else 1.0
    unit = qkv.q[0] / qkv.q[0].norm(dim=-1, keepdim=True)
    out = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        slots = []
        for rows in draws["rotations"].tolist():
            keys = [(bucket(q[j], rows, counts), j) for j in range(i + 1)]
            slots += looked_back(keys[i], keys, 2 * c)
        others = [j for j in slots if j != i] or slots
        others = list(dict.fromkeys(others)) if duplicates == "once" else others
        weights = torch.softmax(torch.stack([factor * (qkv.q[0, i] * unit[j]).sum() for j in others]), 0)
        for j, weight in zip(others, weights, strict=True):
            out[i, j] += weight
    return out


def svd(qkv, d, draws, target) -> Tensor:
    """The truncated SVD of the causal matrix, which is not causal."""
    u, s, w = torch.linalg.svd(last_rows(lambda some, *_: exact(some, target))(qkv, d, draws, target))
    return sum(s[i] * torch.outer(u[:, i], w[i]) for i in range(d))


CAUSAL = {
    name: last_rows(TWINS[name])
    for name in ("kernelized", "linear", "performer", "performer-relu", "softmax", "topk", "vmean")
}
CAUSAL |= ESTIMATORS  # which see only what a row sees
CAUSAL |= {
    "bigbird": bigbird,
    "longformer": longformer,
    "lsh-qk": lsh_qk,
    "reformer": reformer,
    "svd": svd,
    "window": window,
}
CAUSAL |= SELECTIONS
