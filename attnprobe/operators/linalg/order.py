"""The order of scores, and medians.

Larger scores come first, and of equal scores the one with the smaller place. Everything that selects by scores uses
this order, because torch's ``topk`` returns equal scores in any order, which depends on the device and on ``count``.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

FEW = 128  # scores of a row; for fewer, topk is as fast
LOWEST = -0x7F800001  # the key of -∞ among `_keys`; only a NaN with a sign has a smaller one


def largest_scores(scores: Tensor, count: int, above: float = float("-inf")) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of ``scores`` (…, n) above a bound and their places, (…, min(count, n)) each.

    They are sorted: larger scores first, and of equal scores the one with the smaller place. A `TorchFunctionMode` sees
    the function as one of torch's. A score that is not above
    ``above`` is not selected; its slot comes last and has the place -1. Places are int64. Gradients of the scores pass.

    Cost: a ``topk`` of ``count + 1`` scores, and for rows with equal scores among these O(n + count log count). On a
    CPU, many float32 scores take a selection and a sort of 64-bit keys, in half of the time.

    >>> scores = torch.tensor([[1.0, 3.0, 3.0, float("-inf"), 3.0]])
    >>> largest_scores(scores, 2)
    (tensor([[3., 3.]]), tensor([[1, 2]]))
    >>> largest_scores(scores, 5)[1]
    tensor([[ 1,  2,  4,  0, -1]])
    """
    if torch.overrides.has_torch_function_unary(scores):
        return torch.overrides.handle_torch_function(largest_scores, (scores,), scores, count, above)
    count = min(count, scores.shape[-1])
    if scores.device.type == "cpu" and scores.dtype == torch.float32 and scores.shape[-1] >= FEW and count:
        places = _largest_of_keys(scores.detach(), count)
        if places is not None:
            values = scores.gather(-1, places)
            return values, places.masked_fill(values <= above, -1)
    values, places = scores.topk(min(count + 1, scores.shape[-1]), dim=-1)
    tied = ((values[..., 1:] == values[..., :-1]) & (values[..., 1:] > above)).any(-1)
    values, places = values[..., :count], places[..., :count]
    if count and tied.any():
        some = _ordered(scores.detach()[tied], values.detach()[tied][:, -1:], count)
        places = places.masked_scatter(tied[..., None], some)
        values = scores.gather(-1, places)
    return values, places.masked_fill(values <= above, -1)


def median(x: Tensor, dim: int) -> Tensor:
    """The medians of ``x`` (…) along a dimension, which is removed; of an even count the mean of the middle two.

    torch's own median of an even count is the lower of the two. A NaN makes its median NaN.

    >>> median(torch.tensor([[1.0, 5.0, 2.0, 4.0]]), 1)
    tensor([3.])
    """
    ordered, last = x.sort(dim).values, x.shape[dim] - 1
    middle = (ordered.select(dim, last // 2) + ordered.select(dim, last - last // 2)) / 2
    return torch.where(x.isnan().any(dim), torch.nan, middle)


def _largest_of_keys(scores: Tensor, count: int) -> Tensor | None:
    """The places of the ``count`` largest float32 ``scores`` (…, n) in their order; None if one is NaN with a sign.

    A key has the bits of a score above those of its place. Keys have the order of the scores, and no two are equal.
    """
    n = scores.shape[-1]
    bits = (scores + 0.0).view(torch.int32).numpy()  # -0.0 + 0.0 is 0.0
    bits ^= (bits >> 31) & 0x7FFFFFFF  # larger numbers for larger scores
    if bits.size and bits.min() < LOWEST:
        return None
    keys = bits.astype(np.int64)
    keys <<= 32
    keys |= np.arange(n - 1, -1, -1)
    keys.partition(n - count, axis=-1)
    best = np.sort(keys[..., n - count :], axis=-1)[..., ::-1]
    return torch.from_numpy(n - 1 - (best & 0xFFFFFFFF))


def _ordered(scores: Tensor, least: Tensor, count: int) -> Tensor:
    """The places of the ``count`` largest ``scores`` (r, n), of which ``least`` (r, 1) is the smallest, (r, count)."""
    larger, equal = ~(scores <= least), scores == least  # NaN is larger, as for topk
    room = count - larger.sum(-1, keepdim=True)
    selected = larger | (equal & (equal.cumsum(-1) <= room))
    places = selected.nonzero()[:, 1].view(-1, count)  # ascending
    order = scores.gather(1, places).sort(dim=1, descending=True, stable=True).indices
    return places.gather(1, order)
