"""Locality-sensitive hashing of tokens: cross-polytope buckets, and windows over a sorted list. Hashes are float64."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import Unsupported
from ..blocks import block_rows, row_blocks
from ..visible import Visible

FEW = 1024  # buckets that any length may have
COUNTS = 2**20  # numbers of tokens x buckets at a time


def bucket_counts(n: int, chunk: int, buckets: int | None = None) -> tuple[int, ...]:
    """The number of buckets of each factor of the hash: ``(buckets,)``, or for None the choice of transformers.

    transformers takes the largest power of two ``2^t`` up to ``2 ⌊n / chunk⌋``. If it is above ``2 max(⌊√⌊n/chunk⌋⌋,
    chunk)``, it is split into two hashes of ``2^⌊t/2⌋`` and ``2^⌈t/2⌉`` buckets. Then hashing costs ``n p √(n/chunk)``
    and not ``n² p / chunk``. (In transformers the root has the longest length of the model in place of n.)

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
    """``argmax [x Rᵀ, -x Rᵀ]`` for each head and round, (h, rounds, n) int64: similar directions share a bucket.

    With two factors the bucket is ``b_1 + counts_1 b_2`` for the buckets b of the two hashes. It does not depend on the
    lengths of x. Source: Andoni et al. 2015; Kitaev et al. 2020, section 2. Cost ``n p f`` multiply-adds a round.

    Args:
        x: (h, n, p). counts: the number of buckets of each factor, even.
        rotations: R, (h, rounds, f, p). A factor uses half as many of its rows as it has buckets.

    >>> cross_polytope(torch.tensor([[[3.0, 1.0], [0.0, -2.0]]]), torch.eye(2)[None, None], (4,))
    tensor([[[0, 3]]])
    """
    rotations = rotations.to(x.device).double()
    h, rounds, f, _ = rotations.shape
    out = torch.zeros(h, rounds, x.shape[1], dtype=torch.int64, device=x.device)
    width = h * rounds * f
    for start, stop in row_blocks(x.shape[1], block_rows(rotations, width, max(1, COUNTS // width))):
        projected, step = x[:, None, start:stop].double() @ rotations.mT, 1  # (h, rounds, b, f)
        for count, part in zip(counts, projected.split([count // 2 for count in counts], -1), strict=True):
            nearest = part.abs().argmax(-1)  # the axis, and which of its two ends
            away = torch.gather(part, -1, nearest[..., None])[..., 0] < 0
            out[..., start:stop] += step * (nearest + count // 2 * away)
            step *= count
    return out


def look_back(order: Tensor, chunk: int) -> Tensor:
    """The chunks of lists (…, N), each preceded by the chunk before it, cyclically; (…, m, 2 chunk) int64.

    The last chunk may be shorter; -1 is an empty slot. A list of one chunk has no predecessor: (…, 1, chunk).

    >>> look_back(torch.tensor([4, 3, 2, 1, 0]), 2)
    tensor([[ 0, -1,  4,  3],
            [ 4,  3,  2,  1],
            [ 2,  1,  0, -1]])
    """
    n = order.shape[-1]
    count = -(-n // chunk)
    chunks = torch.nn.functional.pad(order, (0, count * chunk - n), value=-1).unflatten(-1, (count, chunk))
    return chunks if count == 1 else torch.cat([chunks.roll(1, -2), chunks], -1)


def look_back_within(own: Tensor, of_key: Tensor, visible: Visible, buckets: int, width: int) -> Tensor:
    """The ``width`` keys before each query among the keys that it sees, sorted by bucket and position.

    The place of a query is after the last key of its bucket. Its keys are the latest key of its bucket, then earlier
    ones, then those of the bucket before, cyclically. -1 is an empty slot. Unlike in `look_back`, the result does not
    depend on keys that the query does not see. Returns (…, n_q, width) int64, where ``width`` is at most n_k.

    Args:
        own, of_key: the buckets of the queries (…, n_q) and of the keys (…, n_k), below ``buckets``.
        visible: the keys that each of the n_q queries sees.

    Each query searches for the ends of each bucket in the sorted list: time ``n_q · buckets · log n_k``. Queries come
    in blocks of about 2^20 ends.

    >>> buckets, seen = torch.tensor([0, 1, 0, 1]), Visible(torch.arange(4))
    >>> look_back_within(buckets, buckets, seen, 2, 3)
    tensor([[ 0, -1, -1],
            [ 1,  0, -1],
            [ 2,  0,  1],
            [ 3,  1,  2]])
    """
    n, n_q, lists = of_key.shape[-1], own.shape[-1], own.shape[:-1]
    own, of_key = own.reshape(-1, n_q), of_key.reshape(-1, n)
    ranked = (of_key * n + torch.arange(n, device=of_key.device)).sort(-1).values  # bucket · n + position
    width = min(width, n)
    out = ranked.new_empty(len(own), n_q, width)
    back, slot = torch.arange(buckets, device=own.device), torch.arange(width, device=own.device)

    def place_of(bucket: Tensor, key: Tensor) -> Tensor:
        """The number of entries of sorted lists below ``bucket · n + key``, (m, r, b)."""
        return torch.searchsorted(ranked, (bucket * n + key[:, None]).flatten(1)).view_as(bucket)

    starts = place_of(back.expand(len(own), 1, -1), back.new_zeros(1))[:, 0]  # of each bucket, (m, buckets)
    for start, stop in row_blocks(n_q, max(1, COUNTS // (buckets * len(own)))):
        seen = visible.of(slice(start, stop))
        turned = (own[:, start:stop, None] - back) % buckets  # from a query's own bucket backwards
        begin, sizes = [], []
        for first, last in seen.runs():
            at = starts.gather(-1, turned.flatten(1)).view_as(turned) if first is None else place_of(turned, first)
            begin.append(at)
            sizes.append(place_of(turned, last + 1) - at)
        reach = torch.stack(sizes).sum(0).cumsum(-1)  # the keys that it sees, in its bucket and those before
        passed = torch.searchsorted(reach, slot.expand(*reach.shape[:2], -1).contiguous(), right=True)  # buckets
        past = passed.clamp(max=buckets - 1)
        offset = reach.gather(-1, past) - slot - 1  # of the key among those of its bucket, from the earliest
        place = torch.zeros_like(offset)
        for at, size in zip(begin, sizes, strict=True):
            of_run = size.gather(-1, past)
            place = torch.where((offset >= 0) & (offset < of_run), at.gather(-1, past) + offset, place)
            offset = offset - of_run
        keys = ranked.gather(-1, place.flatten(1)).view_as(place) % n
        out[:, start:stop] = keys.masked_fill(passed == buckets, -1)
    return out.view(*lists, n_q, width)


def inverse(order: Tensor) -> Tensor:
    """The inverse permutations: the index of each number in ``order`` (…, n).

    >>> inverse(torch.tensor([2, 0, 1]))
    tensor([1, 2, 0])
    """
    place = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, place)


def sign_codes(x: Tensor, directions: Tensor) -> Tensor:
    """The place of each row's signs ``x Rᵀ > 0`` in the order of a Gray code, (h, n) int64.

    Buckets at neighbouring places differ in one sign. Bit i of the place is the parity of the signs i and above. Cost
    ``n r p`` multiply-adds.

    Args:
        x: (h, n, p). directions: R, (h, r, p), r up to 62.

    >>> x = torch.tensor([[[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]]])
    >>> sign_codes(x, torch.eye(2)[None])
    tensor([[0, 1, 2, 3]])
    """
    signs = (x.double() @ directions.to(x.device).double().mT > 0).long()  # (h, n, r)
    parities = signs.flip(-1).cumsum(-1).flip(-1) % 2
    return (parities << torch.arange(signs.shape[-1], device=x.device)).sum(-1)
