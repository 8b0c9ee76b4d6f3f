"""Literal twins of the methods that weight sampled keys: loops over rows and keys, from the same draws."""

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
    """The own key, the window and sinks first, then the largest scores."""
    count = int(heavy * d)
    sinks = min(sinks, d // 4, count // 2)
    first = near(qkv, i, sinks, min(window, d // 4, count - sinks))
    ordered = sorted(keys, key=lambda j: (j not in first, -scores[j]))
    return set(ordered[:count])


def mixed(x: int) -> int:
    """The next output of SplitMix64 in the state x, in Python's integers."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def uniform(key: int, j: int) -> float:
    """Number j of a key."""
    return (mixed(key % 2**64 ^ mixed(j)) >> 11) / 2**53


def vattention(qkv, d, draws, target, **options) -> Tensor:
    """Heavy keys with weight 1, the drawn ones with the number of others over the number of draws."""
    rows = []
    numbers = [[uniform(key, j) for j in range(qkv.n_k)] for key in draws["row_keys"].tolist()]
    for i, (keys, scores) in enumerate(zip(seen(qkv), scores_of(qkv), strict=True)):
        heavies = heavy_keys(qkv, i, keys, scores, d, **options)
        others = sorted(set(keys) - heavies, key=lambda j: numbers[i][j])  # noqa: B023
        drawn = others[: d - int(options.get("heavy", 0.5) * d)]
        weights = dict.fromkeys(heavies & set(keys), 1.0) | {j: len(others) / len(drawn) for j in drawn}
        rows.append(weighted(scores, weights, qkv.n_k))
    return torch.tensor(rows, dtype=torch.float64)


def chance(c: float, tables: int, least_hits: int = 2) -> float:
    """The probability of at least so many collisions: by the sum of the others, or by its own where they are near 1."""

    def term(hits):
        return comb(tables, hits) * c**hits * (1 - c) ** (tables - hits)

    if tables * c > 1:
        return 1 - sum(term(hits) for hits in range(least_hits))
    return sum(term(hits) for hits in range(least_hits, min(tables, 40) + 1))


def magicpig(qkv, d, draws, target, *, bits=8, tables=None, sinks=4, window=64, floor=0.0, least_hits=2) -> Tensor:
    keys, all_scores = seen(qkv), scores_of(qkv)
    q, k = qkv.q[0].double(), qkv.k[0].double()
    k = k - (k.mean(0) if qkv.visible is None else k[0])
    exactly = [near(qkv, i, min(sinks, d // 4), min(window, d // 4)) & set(keys[i]) for i in range(qkv.n_q)]

    def collide(i, j):
        return (1 - acos(max(-1.0, min(1.0, float(q[i] @ k[j] / (q[i].norm() * k[j].norm()))))) / pi) ** bits

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

    def buckets(x):
        return [tuple((table @ x > 0).tolist()) for table in draws["rotations"][:tables]]

    of_q, of_k = [buckets(x) for x in q], [buckets(x) for x in k]
    rows = []
    for i, scores in enumerate(all_scores):
        weights = dict.fromkeys(exactly[i], 1.0)
        for j in set(keys[i]) - exactly[i]:
            if sum(a == b for a, b in zip(of_q[i], of_k[j], strict=True)) >= least_hits:
                weights[j] = 1 / (chance(c[i][j], tables, least_hits) + floor)
        rows.append(weighted(scores, weights, qkv.n_k))
    return torch.tensor(rows, dtype=torch.float64)


def gray_place(signs: list[bool]) -> int:
    """The place of a bucket when all are listed so that neighbours differ in one sign, the last sign last."""
    order = [[]]
    for _ in signs:
        order = [[*bucket, False] for bucket in order] + [[*bucket, True] for bucket in reversed(order)]
    return order.index(list(signs))


def blocks_of(x: Tensor, rotations: Tensor) -> list[int]:
    """The tokens in the order of their buckets, those of one bucket in their own."""
    places = [gray_place([float(direction @ token) > 0 for direction in rotations]) for token in x.double()]
    return sorted(range(len(places)), key=lambda token: places[token])


def block_and_sample(qkv: QKV, size: int, draws, probability: list[float], twice=False) -> Tensor:
    """Keys of the block at a query's place with weight 1, sampled others with ``c_j/(s P_j)``."""
    of_q, of_k = (blocks_of(x[0], draws["rotations"][0]) for x in (qkv.q, qkv.k))
    blocks = [of_k[start : start + size] for start in range(0, qkv.n_k, size)]
    sample = draws["columns"].tolist() if "columns" in draws else []
    rows = []
    for i, scores in enumerate(scores_of(qkv)):
        own = blocks[of_q.index(i) * len(blocks) // qkv.n_q]
        weights = dict.fromkeys(own, 1.0)
        for j in sample:
            if twice or j not in own:
                weights[j] = weights.get(j, 0.0) + 1 / (len(sample) * probability[j])
        rows.append(weighted(scores, weights, qkv.n_k))
    return torch.tensor(rows, dtype=torch.float64)


def hyper(qkv, d, draws, target, *, block=0.5, count_twice=False, bits=7) -> Tensor:
    return block_and_sample(qkv, max(1, int(block * d)), draws, [1 / qkv.n_k] * qkv.n_k, count_twice)


def value_probabilities(qkv: QKV) -> list[float]:
    """``‖v'_j‖/λ + 1/n``, normalised; λ by the power method."""
    v = [[*row, 1.0] for row in qkv.v[0].double().tolist()]
    norms = [sum(x * x for x in row) ** 0.5 for row in v]
    x = [1.0] * len(v[0])
    for _ in range(2000):
        products = [sum(a * b for a, b in zip(row, x, strict=True)) for row in v]
        x = [sum(product * row[t] for product, row in zip(products, v, strict=True)) for t in range(len(x))]
        largest = sum(a * a for a in x) ** 0.5
        x = [a / largest for a in x]
    weights = [norm / largest + 1 / qkv.n_k for norm in norms]
    return [weight / sum(weights) for weight in weights]


def kdeformer(qkv, d, draws, target, *, block=0.5, bits=7) -> Tensor:
    return block_and_sample(qkv, max(1, int(block * d)), draws, value_probabilities(qkv))


TWINS = {"hyper": hyper, "kdeformer": kdeformer, "magicpig": magicpig, "vattention": vattention}
