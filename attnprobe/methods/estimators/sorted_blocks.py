"""Exact attention within blocks of queries and keys sorted by a hash, and a sample of keys for all other keys.

b is the number of keys of a block, J the s sampled keys of a head with repeats, P_j the probability of key j in a draw.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...approximation import Approximation, Sampling
from ...errors import UsageError
from ...operators import Columns, Scaled, Sum
from ...operators.groups import tokens
from ...operators.linalg.hashing import sign_codes
from ...qkv import QKV
from ...rng import Streams
from ..sparse_softmax import sparse_softmax


def check_blocks(method: str, target: str, *, bits: int, block: float, **others: object) -> None:
    """Refuse options out of their ranges."""
    if not 1 <= bits <= 16:
        raise UsageError(f"{method}: bits={bits} is not between 1 and 16")
    if not 0 < block <= 1:
        raise UsageError(f"{method}: block={block:g} is not a share above 0 and up to 1")


@dataclass(frozen=True, eq=False)
class SortedBlocks:
    """Queries and keys sorted by their buckets and cut into m blocks each.

    Attributes:
        rotations: the directions of the hash, (h, 1, r, p) float64 on the CPU.
        of_query, of_key: the block of each token, (h, n_q) and (h, n_k).
        keys: the keys of each block, (h, m, b), -1 in empty slots.
    """

    rotations: Tensor
    of_query: Tensor
    of_key: Tensor
    keys: Tensor

    @classmethod
    def of(cls, qkv: QKV, size: int, bits: int, streams: Streams) -> SortedBlocks:
        """Blocks of ``size`` keys, of which the last may be shorter; queries are cut into blocks of equal size.

        Args:
            bits: r, the signs of the hash. streams: for the draws of the directions.
        """
        drawn = [
            torch.randn(1, bits, qkv.p, generator=streams.head(head, "rotations"), dtype=torch.float64, device="cpu")
            for head in qkv.heads
        ]
        rotations = torch.stack(drawn)
        of_q, of_k = (sign_codes(x, rotations[:, 0]).argsort(stable=True) for x in (qkv.q, qkv.k))
        count = -(-qkv.n_k // size)
        # Rank i of n_q ranks belongs to block ⌊i m/n_q⌋, so all m blocks of keys get queries for any n_q.
        by_rank = torch.arange(qkv.n_q, device=qkv.device) * count // qkv.n_q
        of_query = torch.empty_like(of_q).scatter_(1, of_q, by_rank.expand_as(of_q))
        by_rank = torch.arange(qkv.n_k, device=qkv.device) // size
        of_key = torch.empty_like(of_k).scatter_(1, of_k, by_rank.expand_as(of_k))
        keys = torch.nn.functional.pad(of_k, (0, count * size - qkv.n_k), value=-1).unflatten(1, (count, size))
        return cls(rotations, of_query, of_key, keys)

    def others(self, columns: Tensor) -> Tensor:
        """Whether each key of ``columns`` (h, s) is outside of the block of each query, (h, n_q, s) bool."""
        return self.of_key.gather(1, columns)[:, None] != self.of_query[..., None]

    def least_other(self, probability: Tensor) -> Tensor:
        """The smallest ``probability`` (h, n_k) of a key outside of the block of each query, (h, n_q); 1 if none is."""
        h, count, _ = self.keys.shape
        least = probability.new_ones(h, count).scatter_reduce(1, self.of_key, probability, "amin")
        of_block = torch.eye(count, dtype=torch.bool, device=least.device)
        of_others = least[:, None].masked_fill(of_block, 1.0).amin(-1)  # (h, m)
        return of_others.gather(1, self.of_query)


def block_and_sample(
    qkv: QKV, blocks: SortedBlocks, columns: Tensor, probability: Tensor, twice: bool = False
) -> Approximation:
    """``B~_ij = w_ij exp(S_ij) / D~_i``: ``w = 1`` in the block of row i, ``c_j/(s P_j)`` for keys outside.

    c_j is the number of draws of key j, so ``E[w_ij] = 1``, and D~ and N~ are unbiased. ``D~ = D_block + Σ_{j in J,
    outside} exp(S_ij)/(s P_j)``; all queries of a head share J. Cost ``n_q (b + s) p`` multiply-adds a head.

    Args:
        columns: J, (h, s) int64. probability: P, (h, n_k) float64.
        twice: use keys of J in the block too, which then count twice.
    """
    columns = columns.to(qkv.device)
    s = columns.shape[1]
    own = blocks.keys.gather(1, blocks.of_query[..., None].expand(-1, -1, blocks.keys.shape[2]))  # (h, n_q, b)
    inside, log_inside = sparse_softmax(qkv, own)
    log_block = log_inside().double()  # (h, n_q)
    outside = blocks.others(columns)  # (h, n_q, s)
    counted = torch.ones_like(outside) if twice else outside
    weight = 1 / (s * probability.gather(1, columns)) if s else probability[:, :0]
    scores = qkv.scale * (qkv.q @ tokens(qkv.shared_k, columns).mT) if s else qkv.q.new_zeros(counted.shape)
    scores = (scores.double() + weight.log()[:, None]).masked_fill(~counted, -torch.inf)  # (h, n_q, s)
    log_sample = scores.logsumexp(-1) if s else torch.full_like(log_block, -torch.inf)
    operator = Scaled(inside, left=torch.sigmoid(log_block - log_sample).to(inside.dtype))
    if s:
        known = torch.where(counted.any(-1, keepdim=True), scores, 0.0)  # rows without a sampled key have no share
        shares = torch.softmax(known, -1) * torch.sigmoid(log_sample - log_block)[..., None]
        operator = Sum([operator, Columns(shares.to(inside.dtype), columns, qkv.n_k)])
    exactly = (own >= 0).sum(-1).double()  # (h, n_q)
    times, first = _repeats(columns, qkv.n_k)
    used, of_key = weight[:, None] * counted, (times * weight)[:, None]  # of a draw, and of all draws of its key
    squares = exactly + (used * (of_key + 2 * ~outside)).sum(-1)  # (w + 1)² for keys that are in the block too
    stated = {
        "ess": (exactly + used.sum(-1)).square() / squares,
        "inclusion": blocks.least_other(-torch.expm1(s * torch.log1p(-probability))),
    }
    if s > 1:
        stated["variance"] = shares.var(-1) * s  # of s times their mean
    realised = (exactly + (outside & first[:, None]).sum(-1)).mean(-1)
    computed = (exactly + counted.sum(-1)).sum(-1)
    return Approximation.of(
        operator,
        qkv,
        draws={"rotations": blocks.rotations, **({"columns": columns.cpu()} if s else {})},
        diagnostics={"realised_d": realised.cpu(), "visited": computed.cpu()},
        log_normalizer=lambda: torch.logaddexp(log_block, log_sample),
        sampling=Sampling(**stated),
    )


def _repeats(columns: Tensor, n_k: int) -> tuple[Tensor, Tensor]:
    """The number of draws of the key of each draw, and whether it is the key's first one, (h, s) each."""
    times = columns.new_zeros(len(columns), n_k).scatter_add_(1, columns, torch.ones_like(columns)).gather(1, columns)
    ordered, draw = columns.sort(dim=1, stable=True)
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return times, torch.empty_like(starts).scatter_(1, draw, starts)
