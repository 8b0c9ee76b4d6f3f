"""Literal twins of the causal forms, as `twins` has those of the methods; merged nowhere: `CAUSAL` stands beside TWINS.

Where a method says nothing of its own about hidden keys, row i of its masked form is the method's row for query i and
the keys that it sees. These twins take causal and windowed inputs alike.
"""

import torch
from torch import Tensor
from twins import TWINS, exact
from twins_dyadic import CAUSAL as DYADIC
from twins_estimators import TWINS as ESTIMATORS
from twins_lsh import bucket, factors
from twins_quantised import TWINS as QUANTISED
from twins_selection import CAUSAL as SELECTIONS
from twins_sparse import bigbird_mask, longformer_mask, over_mask, tri_shape, window_mask

from attnprobe.qkv import QKV


def seen(qkv: QKV) -> list[list[int]]:
    """The keys that each query sees."""
    return [row.nonzero()[:, 0].tolist() for row in ~qkv.visible.hidden(qkv.n_k)]


def last_rows(twin):
    """The masked twin whose row i is that of ``twin`` for query i and the keys that it sees, all of them."""

    def masked(qkv: QKV, d, draws, target, **options) -> Tensor:
        out = torch.zeros(qkv.n_q, qkv.n_k, dtype=torch.float64)
        for i, keys in enumerate(seen(qkv)):
            one = QKV(qkv.q[:, i : i + 1], qkv.k[:, keys], qkv.v[:, keys], scale=qkv.scale)
            out[i, keys] = twin(one, d, draws, target, **options)[0].to(out)
        return out

    return masked


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
    c = min(d // (2 * rounds), qkv.n_k)
    counts, mask = factors(qkv.n_k, c, buckets), [[False] * qkv.n_k for _ in range(qkv.n_q)]
    for rows in draws["rotations"].tolist():
        keys = [(bucket(x, rows, counts), j) for j, x in enumerate(k)]
        for i, of_row in enumerate(seen(qkv)):
            place = bucket(q[i], rows, counts), qkv.n_k
            for j in looked_back(place, [keys[j] for j in of_row], 2 * c):
                mask[i][j] = True
    return over_mask(qkv, mask)


def reformer(qkv: QKV, d, draws, target, *, rounds=2, buckets=None, logits="unit", duplicates="count") -> Tensor:
    q, n = qkv.q[0].tolist(), qkv.n
    c = min(d // (2 * rounds), n)
    counts, factor = factors(n, c, buckets), qkv.scale if logits == "scaled" else 1.0
    unit = qkv.q[0] / qkv.q[0].norm(dim=-1, keepdim=True)
    out = torch.zeros(n, n, dtype=torch.float64)
    for i, of_row in enumerate(seen(qkv)):
        slots = []
        for rows in draws["rotations"].tolist():
            keys = [(bucket(q[j], rows, counts), j) for j in of_row]
            slots += looked_back((bucket(q[i], rows, counts), n), keys, 2 * c)
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
CAUSAL |= {name: ESTIMATORS[name] for name in ("magicpig", "vattention")}  # which see only what a row sees
CAUSAL |= {
    "bigbird": bigbird,
    "longformer": longformer,
    "tri-shape": tri_shape,
    "lsh-qk": lsh_qk,
    "reformer": reformer,
    "svd": svd,
    "window": window,
}
CAUSAL |= QUANTISED
CAUSAL |= SELECTIONS
CAUSAL |= DYADIC
