"""BigBird (Zaheer et al. 2020): blocks of tokens that see two global, three neighbouring and three random blocks.

b is the paper's block size, r its number of random blocks, w its window in blocks (3), g its number of global blocks
(2, the first and the last). ``d ≈ (r + w + g) b + g b``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import Unsupported
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, with_exact_rows
from ..option import at_least
from ..registry import DISTRIBUTIONS, register
from ..sparse_softmax import seen_entries, sparse_softmax

FIXED = 7  # blocks a row besides the random ones: 2 global, 3 near, and 2 for the full rows


@register(
    name="bigbird",
    paper="Zaheer et al., BigBird",
    year=2020,
    family="sparse",
    tags=(*DISTRIBUTIONS, "shift_invariant", "exact_at_full_budget", "causal", "local", "biases"),
    budget="d n entries in blocks of ⌊d/10⌋ tokens: 8 blocks a row, and 2 blocks of full rows",
    cost="2 n d p",
    oracle="transformers BigBirdBlockSparseAttention",
    limit=lambda n_q, n_k: 10 * max(n_q, n_k),
    limit_name="10 n",
    least=10,
    validate=at_least("bigbird", 0, "random_blocks"),
    exact_at=lambda n: (10 * n, {}),
)
def bigbird(qkv: QKV, d: int, *, streams: Streams, target: str = "softmax", random_blocks: int = 3) -> Approximation:
    """The softmax of block row i over the blocks ``{0, nb-1} ∪ {i-1, i, i+1} ∪ {r random}``; the end rows are exact.

    Blocks have ``b = ⌊d/(7 + r)⌋`` tokens; the last one may be shorter. Rows of the first and of the last block see all
    keys. The random blocks of a row are drawn without replacement from the other blocks, separately for each head. A
    row that sees all blocks draws none. Source: Zaheer et al. 2020, section 2 (the internal construction, ITC) and the
    appendix on implementation. The authors' code differs: for some lengths it draws among the first blocks only, and
    rows next to the edge may see a block twice. transformers, outside training, draws nothing and counts block 0 r more
    times.

    With up to ``4 + r`` blocks it is exact. With more queries than keys, a surplus block has the neighbours of the last
    key block. Causal rows see the part of this pattern up to themselves, random blocks included. Their draws are the
    same, and ``realised_d`` is about half.

    Options:
        random_blocks: r. Skyformer and Skeinformer compare with r = 3.

    Shapes: weights (h, n_q, u), u ≤ (5 + r) b and u < n + b, in dense blocks of b rows; the full rows are an operator
    (h, 2 b, n_k); output (h, n_q, p_v). Draws: ``blocks`` (h, nb - 2, r) of the block rows 1 … nb - 2, -1 in an empty
    slot. Cost ``n d (p + p_v)``, memory O(n d). ``realised_d`` is the mean number of entries of a row, ``visited``
    their sum.

    Raises:
        Unsupported: d below 10 or ``7 + random_blocks``, or above 10 n. UsageError: ``random_blocks`` below 0.
    """
    b = d // (FIXED + random_blocks)
    if b == 0:
        raise Unsupported(
            f"bigbird: d={d} leaves no token for a block with random_blocks={random_blocks}; use at most {d - FIXED}"
        )
    placed = qkv.causal or qkv.positions is not None  # each query stands at a key
    row_block = (qkv.query_positions if placed else torch.arange(qkv.n_q, device=qkv.device)) // b
    last_q, nb = ((qkv.n_k if placed else qkv.n_q) - 1) // b, -(-qkv.n_k // b)  # the last block row; key blocks
    seen = _always_seen(last_q, nb)  # (nb_q - 2, 5)
    drawn = [_drawn(seen, nb, random_blocks, streams.head(i, "blocks")) for i in qkv.heads]
    blocks = torch.stack(drawn)  # (h, nb_q - 2, r)
    columns = torch.cat([seen.expand(qkv.h, -1, -1), blocks], 2).sort(2, descending=True).values
    columns = columns[:, :, : min(5 + random_blocks, nb), None]  # (h, nb_q - 2, ≤ 5 + r, 1); cuts off empty slots only
    tokens = columns * b + torch.arange(b, device="cpu")  # (h, nb_q - 2, ≤ 5 + r, b)
    tokens = torch.where((columns >= 0) & (tokens < qkv.n_k), tokens, torch.full_like(tokens, -1)).flatten(2)
    index, group = torch.full((qkv.h, last_q + 1, tokens.shape[2]), -1, device="cpu"), b
    index[:, 1:last_q] = tokens
    if placed and not qkv.square:  # rows that follow one another may be of any blocks
        index, group = index[:, row_block.cpu()], 1
    is_full = (row_block == 0) | (row_block == last_q)
    operator, log_normalizer = sparse_softmax(qkv, index, group, distinct=True)
    operator, log_normalizer, added = with_exact_rows(qkv, operator, log_normalizer, is_full)
    entries = seen_entries(qkv, index, group) + added
    diagnostics = {"realised_d": entries / qkv.n_q, "visited": entries}
    return Approximation.of(
        operator, qkv, draws={"blocks": blocks}, diagnostics=diagnostics, log_normalizer=log_normalizer
    )


def _always_seen(last_q: int, nb: int) -> Tensor:
    """The global and neighbouring blocks of the block rows 1 … last_q - 1, (nb_q - 2, 5). Empty slots are -1."""
    row = torch.arange(1, max(1, last_q), device="cpu").clamp(max=nb - 1)[:, None]
    near = row + torch.arange(-1, 2, device="cpu")
    near = torch.where((near > 0) & (near < nb - 1), near, torch.full_like(near, -1))
    ends = torch.tensor([0, nb - 1 if nb > 1 else -1], device="cpu").expand(len(row), 2)
    return torch.cat([ends, near], 1)


def _drawn(seen: Tensor, nb: int, count: int, generator: torch.Generator) -> Tensor:
    """``count`` further blocks of ``nb`` for each row of ``seen``, each uniform over the blocks that remain.

    A draw x is a rank among the remaining blocks. Its block is x plus the number of seen blocks up to it.
    """
    # As many numbers for every row, whatever it sees, so that a row's draws do not move those of the next.
    uniform = torch.rand(len(seen), count, generator=generator, dtype=torch.float64, device="cpu")
    taken = torch.where(seen < 0, torch.full_like(seen, nb), seen)  # nb marks an empty slot
    for step in range(count):
        left = nb - (taken < nb).sum(1)  # blocks not seen yet
        block = (uniform[:, step] * left).long()
        for column in taken.sort(1).values.unbind(1):
            block = block + (block >= column)
        block = torch.where(left > 0, block, torch.full_like(block, nb))
        taken = torch.cat([taken, block[:, None]], 1)
    drawn = taken[:, seen.shape[1] :]
    return torch.where(drawn < nb, drawn, torch.full_like(drawn, -1))
