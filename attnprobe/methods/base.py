"""The small tools that methods share."""

from __future__ import annotations

import torch
from torch import Tensor

from ..approximation import Approximation

__all__ = ["Approximation", "per_head", "ragged", "segment_means"]


def per_head(h: int, value: float) -> Tensor:
    """The same number for each head, (h,) float64 on the CPU."""
    return torch.full((h,), float(value), dtype=torch.float64, device="cpu")


def segment_means(x: Tensor, count: int) -> Tensor:
    """Means of ``count`` consecutive segments of the tokens of ``x`` (h, n, p); (h, count, p).

    Where ``count`` does not divide ``n``, the first ``n mod count`` segments are one token longer.

    >>> segment_means(torch.arange(5.0)[None, :, None], 2)[0, :, 0].tolist()
    [1.0, 3.5]
    """
    n = x.shape[1]
    short, longer = divmod(n, count)
    sizes = torch.full((count,), short, dtype=torch.int64, device="cpu")
    sizes[:longer] += 1
    segment = torch.arange(count, device="cpu").repeat_interleave(sizes).to(x.device)
    sums = x.new_zeros(x.shape[0], count, x.shape[2]).index_add(1, segment, x)
    return sums / sizes.to(x)[:, None]


def ragged(mask: Tensor) -> Tensor:
    """Where a bool ``mask`` (h, n) is true, per head, as (h, u) int64; slots that a head does not need are -1.

    >>> ragged(torch.tensor([[True, False, True], [False, True, False]]))
    tensor([[ 0,  2],
            [ 1, -1]])
    """
    counts = mask.sum(1)
    width = max(1, int(counts.max()))
    order = torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)[:, :width]
    return torch.where(torch.arange(width, device=mask.device) < counts[:, None], order, torch.full_like(order, -1))
