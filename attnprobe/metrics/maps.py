"""Attention as a picture: block averages of an operator."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import UsageError
from ..grammar.arguments import checked
from ..operators import Operator
from ..operators.precision import full_precision
from .matrix import at_least_float32

MAP_BLOCKS = 64  # blocks a side: as many as can be distinguished in a small picture


@checked()
@torch.no_grad()
@full_precision()
def attention_maps(operator: Operator, blocks: int = MAP_BLOCKS) -> Tensor:
    """The mean entry of each block of an operator, for a picture of it: float64, (h, b_q, b_k).

    Queries and keys are cut into ``b_q = min(blocks, n_q)`` and ``b_k = min(blocks, n_k)`` consecutive blocks ``I_s``
    and ``J_t`` whose sizes differ by at most one, the larger ones first, and

        ``M_st = Σ_{i in I_s} Σ_{j in J_t} B_ij / (|I_s| |J_t|)``

    With as many blocks as tokens it is B itself, as in Figure 3 of Nyströmformer. Padded rows and columns count as
    zeros.

    The operator is applied once to the indicators of the key blocks, in its own dtype (float32 for half precision) and
    on its device; means are in float64. No n x n matrix is stored, only ``h n_q b_k`` numbers. Cost per head ``n² (p +
    b_k)`` for exact attention, ``2 n d b_k`` for rank d. An entry that is not finite may make all blocks of its row
    NaN, because inf · 0 is NaN.

    Args:
        operator: (h, n_q, n_k).
        blocks: the largest number of blocks along each side.

    Raises:
        UsageError: ``blocks`` below 1.

    >>> from attnprobe.operators import Dense
    >>> attention_maps(Dense(torch.arange(9.0).reshape(1, 3, 3)), blocks=2)
    tensor([[[2.0000, 3.5000],
             [6.5000, 8.0000]]], dtype=torch.float64)
    """
    if blocks < 1:
        raise UsageError(f"blocks={blocks}: choose at least 1")
    operator = at_least_float32(operator)
    h, n_q, n_k = operator.shape
    queries, keys = _sizes(n_q, blocks), _sizes(n_k, blocks)
    counts = torch.tensor(keys, device="cpu")
    indicators = torch.eye(len(keys), dtype=operator.dtype, device="cpu").repeat_interleave(counts, 0)  # (n_k, b_k)
    sums = operator @ indicators.to(operator.device).expand(h, -1, -1)  # (h, n_q, b_k)
    means = torch.stack([rows.double().mean(1) for rows in sums.split(queries, dim=1)], dim=1)  # (h, b_q, b_k)
    return means / counts.to(means)


def _sizes(n: int, blocks: int) -> list[int]:
    """The sizes of at most ``blocks`` blocks of ``n`` tokens."""
    short, longer = divmod(n, min(blocks, n))
    return [short + (block < longer) for block in range(min(blocks, n))]
