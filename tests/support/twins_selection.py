"""Literal twins of the methods that select keys: sets made key by key, then a softmax over them; merged into `twins`.

``TWINS`` has them with the options that the methods have on few tokens (``small``), and ``CAUSAL`` for causal inputs,
with all queries of the text.
"""

from __future__ import annotations

import torch
from torch import Tensor
from twins_sparse import over_mask

from attnprobe.qkv import QKV

EVERYTHING = None  # what a row of inputs that are not causal sees


def _dot(x, y) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def seen_by(qkv: QKV) -> list[list[int]]:
    """The keys that each row sees."""
    if not qkv.causal:
        return [list(range(qkv.n_k))] * qkv.n_q
    return [list(range(i + qkv.n_k - qkv.n_q + 1)) for i in range(qkv.n_q)]


def own_key(qkv: QKV, i: int) -> int:
    """The key at the place of query i."""
    return i + qkv.n_k - qkv.n_q if qkv.causal else min(i, qkv.n_k - 1)


def pages_of(keys: list[int], size: int) -> dict[int, list[int]]:
    pages: dict[int, list[int]] = {}
    for key in keys:
        pages.setdefault(key // size, []).append(key)
    return pages


def best_pages(score: dict[int, float], own: int, pages: dict[int, list[int]], d: int, size: int) -> list[int]:
    """The keys of the own page, and of the best others while whole pages fit in d; all if d has room for all."""
    seen = sum(map(len, pages.values()))
    if seen <= d:
        return [key for page in pages.values() for key in page]
    kept, room = list(pages[own]), d - len(pages[own])
    for page in sorted((page for page in pages if page != own), key=lambda page: -score[page]):
        if room >= size:
            kept, room = kept + pages[page], room - size
    return kept


def over(qkv: QKV, sets: list[list[int]]) -> Tensor:
    """The softmax of each row over its set of keys, dense."""
    return over_mask(qkv, [[j in set(keys) for j in range(qkv.n_k)] for keys in sets])


def quest(qkv: QKV, d, draws, target, *, page=3, share="head") -> Tensor:
    sets = []
    for i, seen in enumerate(seen_by(qkv)):
        q, pages = qkv.q[0, i].tolist(), pages_of(seen, page)
        bounds = {}
        for number, keys in pages.items():
            columns = list(zip(*(qkv.k[0, j].tolist() for j in keys), strict=True))
            bounds[number] = sum(max(x * min(column), x * max(column)) for x, column in zip(q, columns, strict=True))
        sets.append(best_pages(bounds, own_key(qkv, i) // page, pages, d, page))
    return over(qkv, sets)


def topp(qkv: QKV, d, draws, target, *, p=0.95) -> Tensor:
    sets = []
    for i, seen in enumerate(seen_by(qkv)):
        row = torch.softmax(
            torch.tensor([qkv.scale * _dot(qkv.q[0, i].tolist(), qkv.k[0, j].tolist()) for j in seen]), 0
        )
        kept, mass = [], 0.0
        for j in sorted(seen, key=lambda j: -row[j]):  # noqa: B023
            if (mass < p or p == 1) and len(kept) < d:
                kept, mass = [*kept, j], mass + float(row[j])
        sets.append(kept)
    return over(qkv, sets)


def mean_of(x: Tensor, tokens: list[int]) -> list[float]:
    return [sum(column) / len(tokens) for column in zip(*(x[j].tolist() for j in tokens), strict=True)]


def block_topk(qkv: QKV, d, draws, target, *, block=3) -> Tensor:
    sets = []
    seen = seen_by(qkv)
    for i in range(qkv.n_q):
        own = own_key(qkv, i) // block
        together = [j for j in range(qkv.n_q) if own_key(qkv, j) // block == own]
        query = mean_of(qkv.q[0], together)
        last = min(own * block + block, qkv.n_k)
        pages = pages_of(list(range(last)) if qkv.causal else list(range(qkv.n_k)), block)
        score = {number: _dot(query, mean_of(qkv.k[0], keys)) for number, keys in pages.items()}
        sets.append([j for j in best_pages(score, own, pages, d, block) if j in seen[i]])
    return over(qkv, sets)


TWINS = {"block-topk": block_topk, "quest": quest, "topp": topp}
CAUSAL = TWINS
