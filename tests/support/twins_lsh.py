"""Literal twins of the methods that hash and sort; merged into `twins`. Slots, chunks and rounds are loops."""

from math import exp, log, sqrt

import torch
from torch import Tensor
from twins_sparse import over_mask

from attnprobe.qkv import QKV


def factors(n: int, c: int, buckets: int | None) -> list[int]:
    """transformers' choice of the number of buckets, with n for the longest length of its model."""
    if buckets is not None:
        return [buckets]
    power = 0
    while 2 ** (power + 1) <= 2 * (n // c):
        power += 1
    root = 0
    while (root + 1) ** 2 <= n // c:
        root += 1
    if 2**power <= 2 * max(root, c):
        return [2**power]
    return [2 ** (power // 2), 2 ** (power - power // 2)]


def bucket(x: list, rotations: list, counts: list[int]) -> int:
    """Where the largest entry of ``[x R, -x R]`` is; of two factors, ``b_1 + counts_1 b_2``."""
    number, step, first = 0, 1, 0
    for count in counts:
        half = [sum(a * b for a, b in zip(x, row, strict=True)) for row in rotations[first : first + count // 2]]
        both = half + [-value for value in half]
        number += step * both.index(max(both))
        step, first = step * count, first + count // 2
    return number


def sorted_by_bucket(x: list, rotations: list, counts: list[int]) -> list[int]:
    keys = [(bucket(row, rotations, counts), i) for i, row in enumerate(x)]
    return [i for _, i in sorted(keys)]


def chunks_of(order: list, c: int) -> list[list]:
    return [order[start : start + c] for start in range(0, len(order), c)]


def with_previous(chunks: list[list], t: int) -> list:
    return chunks[t] if len(chunks) == 1 else chunks[t - 1] + chunks[t]


def reformer(
    qkv: QKV, d, draws, target, *, rounds=2, buckets=None, logits="unit", eps=0.0, duplicates="count"
) -> Tensor:
    """Kitaev et al. 2020: a softmax in each round, its own logit -1e5, and the rounds weighted by their logsumexp."""
    n, p, q = qkv.n, qkv.p, qkv.q[0].tolist()
    c = min(d // (2 * rounds), n)
    counts, rotations = factors(n, c, buckets), draws["rotations"].tolist()
    flat = [(turn, i) for turn in range(rounds) for i in sorted_by_bucket(q, rotations[turn], counts)]
    chunks = chunks_of(flat, c)
    root = [sqrt(sum(x * x for x in row) / p + eps) for row in q]
    keys = [[x / r / sqrt(p) if r else 0.0 for x in row] for row, r in zip(q, root, strict=True)]
    factor = qkv.scale if logits == "scaled" else 1.0
    out = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        seen = []  # of each round
        for turn in range(rounds):
            (t,) = (t for t, chunk in enumerate(chunks) if (turn, i) in chunk)
            seen.append([j for _, j in with_previous(chunks, t)])
        repeats = {j: sum(row.count(j) for row in seen) for row in seen for j in row}
        parts, totals = [], []
        for row in seen:
            values = []
            for j in row:
                value = -1e5 if j == i else factor * sum(a * b for a, b in zip(q[i], keys[j], strict=True))
                values.append(value - (log(repeats[j]) if duplicates == "once" else 0.0))
            top = max(values)
            totals.append(top + log(sum(exp(value - top) for value in values)))
            parts.append([exp(value - totals[-1]) for value in values])
        top = max(totals)
        every = top + log(sum(exp(total - top) for total in totals))
        for row, part, total in zip(seen, parts, totals, strict=True):
            for j, weight in zip(row, part, strict=True):
                out[i, j] += exp(total - every) * weight
    return out


def lsh_mask(qkv: QKV, d, rotations, *, rounds=2, buckets=None, hash="angular") -> list[list[bool]]:
    """Which keys each query sees in some round."""
    q, k = qkv.q[0].tolist(), qkv.k[0].tolist()
    c = min(d // (2 * rounds), qkv.n_k)
    if hash == "smyrf":

        def square(x):
            return sum(value * value for value in x)

        total = max(map(square, q)) + max(map(square, k))
        q = [[*x, 0.0, sqrt(total - square(x))] for x in q]
        k = [[*x, sqrt(total - square(x)), 0.0] for x in k]

    def by_hash(x: list, rows: list) -> list[int]:
        if hash == "angular":
            return sorted_by_bucket(x, rows, factors(qkv.n_k, c, buckets))
        return sorted(range(len(x)), key=lambda i: sum(a * b for a, b in zip(x[i], rows[0], strict=True)))

    mask = [[False] * qkv.n_k for _ in range(qkv.n_q)]
    for rows in rotations.tolist():
        chunks = chunks_of(by_hash(k, rows), c)
        for rank, i in enumerate(by_hash(q, rows)):
            for j in with_previous(chunks, rank * qkv.n_k // qkv.n_q // c):
                mask[i][j] = True
    return mask


def lsh_qk(qkv: QKV, d, draws, target, **options) -> Tensor:
    return over_mask(qkv, lsh_mask(qkv, d, draws["rotations"], **options))


TWINS = {"lsh-qk": lsh_qk, "reformer": reformer}
