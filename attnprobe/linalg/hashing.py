"""Locality-sensitive hashing of tokens: cross-polytope buckets, and windows over a sorted list. Hashes are float64."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import Unsupported

__all__ = ["bucket_counts", "cross_polytope", "inverse", "look_back"]

FEW = 1024  # buckets that any length may have


def bucket_counts(n: int, chunk: int, buckets: int | None = None) -> tuple[int, ...]:
    """How many buckets each factor of the hash has: ``(buckets,)``, or for None as transformers chooses for Reformer.

    That is the largest power of two ``2^t`` up to ``2 ⌊n / chunk⌋``; above ``2 max(⌊√⌊n/chunk⌋⌋, chunk)`` it is split
    into two hashes of ``2^⌊t/2⌋`` and ``2^⌈t/2⌉`` buckets, so that hashing costs ``n p √(n/chunk)`` and not ``n² p /
    chunk``. (transformers has the longest length that the model allows in the root.)

    Raises:
        Unsupported: more than 2 n buckets (or 1024), which could only be emptier.

    >>> bucket_counts(512, 32), bucket_counts(16384, 32), bucket_counts(512, 32, 6)
    ((32,), (32, 32), (6,))
    """
    if buckets is not None:
        most = max(2 * n, FEW)
        if buckets > most:
            raise Unsupported(f"buckets={buckets} exceeds {most}; choose an even number up to that")
        return (buckets,)
    exponent = (2 * (n // chunk)).bit_length() - 1
    if 2**exponent <= 2 * max(int((n // chunk) ** 0.5), chunk):
        return (2**exponent,)
    return 2 ** (exponent // 2), 2 ** (exponent - exponent // 2)


def cross_polytope(x: Tensor, rotations: Tensor, counts: tuple[int, ...]) -> Tensor:
    """``argmax [x Rᵀ, -x Rᵀ]`` for each head and round, (h, rounds, n) int64: what share a direction share a bucket.

    With two factors it is ``b_1 + counts_1 b_2`` of the hash of each. Lengths do not matter. Source: Andoni et al.
    2015; Kitaev et al. 2020, section 2.

    Args:
        x: (h, n, p). rotations: (h, rounds, f, p), of which each factor takes half as many rows as it has buckets.

    >>> cross_polytope(torch.tensor([[[3.0, 1.0], [0.0, -2.0]]]), torch.eye(2)[None, None], (4,))
    tensor([[[0, 3]]])
    """
    out = torch.zeros(*rotations.shape[:2], x.shape[1], dtype=torch.int64, device=x.device)
    for head, turns in enumerate(rotations.to(x.device).double()):
        for turn, rows in enumerate(turns):
            projected, step = x[head].double() @ rows.mT, 1  # (n, f)
            for count, part in zip(counts, projected.split([count // 2 for count in counts], 1), strict=True):
                nearest = part.abs().argmax(1)  # the axis, and which of its two ends
                away = torch.gather(part, 1, nearest[:, None])[:, 0] < 0
                out[head, turn] += step * (nearest + count // 2 * away)
                step *= count
    return out


def look_back(order: Tensor, chunk: int) -> Tensor:
    """A list (N,) cut into chunks, each after the one before it, (m, 2 chunk) int64; the first follows the last.

    The last chunk is what is left; -1 is an empty slot. A list of one chunk stands alone, (1, chunk).

    >>> look_back(torch.tensor([4, 3, 2, 1, 0]), 2)
    tensor([[ 0, -1,  4,  3],
            [ 4,  3,  2,  1],
            [ 2,  1,  0, -1]])
    """
    count = -(-len(order) // chunk)
    chunks = torch.nn.functional.pad(order, (0, count * chunk - len(order)), value=-1).view(count, chunk)
    return chunks if count == 1 else torch.cat([chunks.roll(1, 0), chunks], 1)


def inverse(order: Tensor) -> Tensor:
    """The place of each number in the permutations ``order`` (…, n).

    >>> inverse(torch.tensor([2, 0, 1]))
    tensor([1, 2, 0])
    """
    place = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, place)
