"""Literal twins of the methods that weight sampled keys: loops over rows and keys, from the same draws."""

from __future__ import annotations

from math import acos, comb, exp, pi

import torch
from torch import Tensor

from attnprobe.qkv import QKV


def seen(qkv: QKV) -> list[list[int]]:
    """The keys that each query sees."""
    if qkv.visible is None:
        return [list(range(qkv.n_k)) for _ in range(qkv.n_q)]
    hidden = qkv.visible.hidden(qkv.n_k).tolist()
    return [[j for j in range(qkv.n_k) if not row[j]] for row in hidden]


def scores_of(qkv: QKV) -> list[list[float]]:
    q, k = qkv.q[0].double().tolist(), qkv.k[0].double().tolist()
    return [[qkv.scale * sum(a * b for a, b in zip(left, right, strict=True)) for right in k] for left in q]


def near(qkv: QKV, i: int, sinks: int, window: int) -> set[int]:
    place = int(qkv.query_positions[i])
    return set(range(sinks)) | set(range(place - window + 1, place + 1))


def weighted(scores: list[float], weights: dict[int, float], n_k: int) -> list[float]:
    """``w_j exp(S_j) / Σ``, dense."""
    top = max(scores[j] for j in weights)
    parts = {j: weight * exp(scores[j] - top) for j, weight in weights.items()}
    return [parts.get(j, 0.0) / sum(parts.values()) for j in range(n_k)]


def heavy_keys(
    qkv: QKV, i: int, keys: list[int], scores: list[float], d: int, heavy=0.5, sinks=4, window=64
) -> set[int]:
    """Sinks and window first, then the largest scores."""
    first = near(qkv, i, min(sinks, d // 4), min(window, d // 4))
    ordered = sorted(keys, key=lambda j: (j not in first, -scores[j]))
    return set(ordered[: int(heavy * d)])


def vattention(qkv, d, draws, target, **options) -> Tensor:
    """Heavy keys with weight 1, the drawn ones with the number of others over the number of draws."""
    rows = []
    generators = [torch.Generator().manual_seed(seed) for seed in draws["generator_seed"].tolist()]
    numbers = [torch.rand(qkv.n_k, generator=one, dtype=torch.float64).tolist() for one in generators]
    for i, (keys, scores) in enumerate(zip(seen(qkv), scores_of(qkv), strict=True)):
        heavies = heavy_keys(qkv, i, keys, scores, d, **options)
        others = sorted(set(keys) - heavies, key=lambda j: numbers[i][j])  # noqa: B023
        drawn = others[: d - int(options.get("heavy", 0.5) * d)]
        weights = dict.fromkeys(heavies & set(keys), 1.0) | {j: len(others) / len(drawn) for j in drawn}
        rows.append(weighted(scores, weights, qkv.n_k))
    return torch.tensor(rows, dtype=torch.float64)


def chance(c: float, tables: int, least_hits: int = 2) -> float:
    """The probability of at least so many collisions: by the sum of the others, or by its own where they are near 1."""
    term = lambda hits: comb(tables, hits) * c**hits * (1 - c) ** (tables - hits)
    if tables * c > 1:
        return 1 - sum(term(hits) for hits in range(least_hits))
    return sum(term(hits) for hits in range(least_hits, min(tables, 40) + 1))


def magicpig(qkv, d, draws, target, *, bits=8, tables=None, sinks=4, window=64, floor=0.0, least_hits=2) -> Tensor:
    keys, all_scores = seen(qkv), scores_of(qkv)
    q, k = qkv.q[0].double(), qkv.k[0].double()
    k = k - (k.mean(0) if qkv.visible is None else k[0])
    exactly = [near(qkv, i, min(sinks, d // 4), min(window, d // 4)) & set(keys[i]) for i in range(qkv.n_q)]
    collide = lambda i, j: (
        (1 - acos(max(-1.0, min(1.0, float(q[i] @ k[j] / (q[i].norm() * k[j].norm()))))) / pi) ** bits
    )
    c = [{j: collide(i, j) if float(k[j].norm()) > 0 else 0.5**bits for j in keys[i]} for i in range(qkv.n_q)]
    if tables is None:
        planned, assumed = qkv, c
        if qkv.causal:  # every token of the text as a query, with right angles
            planned = qkv.replace(q=qkv.k, positions=torch.arange(qkv.n_k))
            assumed = [dict.fromkeys(row, 0.5**bits) for row in seen(planned)]
        always = [near(planned, i, min(sinks, d // 4), min(window, d // 4)) & set(row) for i, row in enumerate(assumed)]

        def expected(count):
            return sum(
                len(kept) + sum(chance(row[j], count) for j in row if j not in kept)
                for row, kept in zip(assumed, always, strict=True)
            )

        tables, too_many = 2, 257
        while too_many - tables > 1:  # the expected number of keys grows with that of tables
            middle = (tables + too_many) // 2
            tables, too_many = (middle, too_many) if expected(middle) <= d * planned.n_q else (tables, middle)
    buckets = lambda x: [tuple(bool(float(r @ x) > 0) for r in table) for table in draws["rotations"][:tables]]
    of_q, of_k = [buckets(x) for x in q], [buckets(x) for x in k]
    rows = []
    for i, scores in enumerate(all_scores):
        weights = dict.fromkeys(exactly[i], 1.0)
        for j in set(keys[i]) - exactly[i]:
            if sum(a == b for a, b in zip(of_q[i], of_k[j], strict=True)) >= least_hits:
                weights[j] = 1 / (chance(c[i][j], tables, least_hits) + floor)
        rows.append(weighted(scores, weights, qkv.n_k))
    return torch.tensor(rows, dtype=torch.float64)


TWINS = {"magicpig": magicpig, "vattention": vattention}
