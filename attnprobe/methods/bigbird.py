"""BigBird (Zaheer et al. 2020): blocks of tokens that see two global, three neighbouring and three random blocks.

b is the paper's block size, r its number of random blocks (3), w its window in blocks (3), g its global blocks (2, the
first and the last); ``d ≈ (r + w + g) b + g b``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..operators import RowOverride, SoftmaxAttention
from ..qkv import QKV
from ..rng import Streams
from .base import Approximation, sparse_softmax
from .registry import register

RANDOM = 3


@register(
    name="bigbird",
    paper="Zaheer et al., BigBird",
    year=2020,
    family="sparse",
    targets=("softmax",),
    kind="method",
    tags=("row_sums_one", "nonnegative", "shift_invariant", "exact_at_full_budget"),
    budget="d n entries in blocks of ⌊d/10⌋ tokens: 8 blocks a row, and 2 blocks of full rows",
    cost="2 n d p",
    oracle="transformers BigBirdBlockSparseAttention",
    limit=lambda n_q, n_k: 10 * max(n_q, n_k),
    limit_name="10 n",
    least=10,
    exact_at=lambda n: (10 * n, {}),
)
def bigbird(qkv: QKV, d: int, *, streams: Streams, target: str = "softmax") -> Approximation:
    """The softmax of block row i over the blocks ``{0, nb-1} ∪ {i-1, i, i+1} ∪ {3 random}``; the end rows are exact.

    Blocks have ``b = ⌊d/10⌋`` tokens, the last one what is left. Rows of the first and of the last block see all keys.
    The random blocks of a row are drawn without replacement from those that it does not see yet, for each head on its
    own; a row that sees all blocks draws none. Source: Zaheer et al. 2020, section 2 and appendix D (the internal
    construction, ITC). The authors' code differs: it draws among the first blocks only for some lengths, rows next to
    the edge may see a block twice, and transformers outside training counts block 0 three more times instead.

    With up to 7 blocks it is exact. With more queries than keys the neighbours of a surplus block are those of the
    last key block.

    Shapes: index and weights (h, n_q, u), u ≤ 8 b and u < n + b; the full rows are an operator (h, 2 b, n_k); output
    (h, n_q, p_v). Draws: ``blocks`` (h, nb - 2, 3) of the block rows 1 … nb - 2, -1 where none was left. Cost ``n d
    (p + p_v)``, memory O(n d). ``realised_d`` is the mean number of entries of a row, ``visited`` their sum.

    Raises:
        Unsupported: d below 10, or above 10 n.
    """
    b = d // 10
    last_q, nb = (qkv.n_q - 1) // b, -(-qkv.n_k // b)  # the last block of queries; the blocks of keys
    seen = _always_seen(last_q, nb)  # (nb_q - 2, 5)
    blocks = torch.stack([_drawn(seen, nb, streams.head(i, "blocks")) for i in qkv.heads])  # (h, nb_q - 2, 3)
    row_block = torch.arange(qkv.n_q, device="cpu") // b
    whole = ((row_block == 0) | (row_block == last_q)).nonzero()[:, 0]  # exact rows
    middle = (row_block > 0) & (row_block < last_q)
    columns = torch.cat([seen.expand(qkv.h, -1, -1), blocks], 2).sort(2, descending=True).values
    columns = columns[:, :, : min(8, nb) if len(seen) else 1, None]  # (h, nb_q - 2, ≤ 8, 1); what is cut off is empty
    tokens = columns * b + torch.arange(b if len(seen) else 1, device="cpu")  # (h, nb_q - 2, ≤ 8, b)
    tokens = torch.where((columns >= 0) & (tokens < qkv.n_k), tokens, torch.full_like(tokens, -1)).flatten(2)
    index = torch.full((qkv.h, qkv.n_q, tokens.shape[2]), -1, device="cpu")
    index[:, middle] = tokens[:, row_block[middle] - 1]
    entries = (index >= 0).sum((1, 2)).double() + len(whole) * qkv.n_k  # (h,)
    whole = whole.to(qkv.device)
    operator = RowOverride(
        sparse_softmax(qkv.q, qkv.k, qkv.scale, index),
        whole.expand(qkv.h, -1),
        SoftmaxAttention(qkv.q[:, whole], qkv.k, qkv.scale),
    )
    diagnostics = {"realised_d": entries / qkv.n_q, "visited": entries}
    return Approximation.of(operator, qkv, draws={"blocks": blocks}, diagnostics=diagnostics)


def _always_seen(last_q: int, nb: int) -> Tensor:
    """Global and neighbouring blocks of the block rows 1 … last_q - 1, (nb_q - 2, 5); -1 for repeats and none."""
    row = torch.arange(1, max(1, last_q), device="cpu").clamp(max=nb - 1)[:, None]
    near = row + torch.arange(-1, 2, device="cpu")
    near = torch.where((near > 0) & (near < nb - 1), near, torch.full_like(near, -1))
    ends = torch.tensor([0, nb - 1 if nb > 1 else -1], device="cpu").expand(len(row), 2)
    return torch.cat([ends, near], 1)


def _drawn(seen: Tensor, nb: int, generator: torch.Generator) -> Tensor:
    """Three more of ``nb`` blocks for each row of ``seen``, one after another, each uniform over those left; (…, 3).

    The number x among those left is the block x plus the seen blocks up to it, counted in ascending order.
    """
    uniform = torch.rand(len(seen), RANDOM, generator=generator, dtype=torch.float64, device="cpu")
    taken = torch.where(seen < 0, torch.full_like(seen, nb), seen)  # nb: none
    for step in range(RANDOM):
        left = nb - (taken < nb).sum(1)  # blocks not seen yet
        block = (uniform[:, step] * left).long()
        for column in taken.sort(1).values.unbind(1):
            block = block + (block >= column)
        block = torch.where(left > 0, block, torch.full_like(block, nb))
        taken = torch.cat([taken, block[:, None]], 1)
    drawn = taken[:, seen.shape[1] :]
    return torch.where(drawn < nb, drawn, torch.full_like(drawn, -1))
