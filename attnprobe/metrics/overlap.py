"""The overlap of two selections of keys, row by row."""

from __future__ import annotations

import torch
from torch import Tensor

from ..arguments import checked
from ..errors import UsageError


@checked()
def selection_overlap(first: Tensor, second: Tensor) -> Tensor:
    """The Jaccard index ``|S ∩ T| / |S ∪ T|`` of the sets of keys of each row, (h, n_q) float64; 1 for two empty sets.

    Args:
        first, second: keys (h, n_q, k) int64, each at most once, -1 in empty slots: see
            `attnprobe.methods.selection.files.selected_keys`. k may differ. They may belong to two methods, two layers,
            or two heads of a group.

    Cost: a sort of ``k₁ + k₂`` keys in each row.

    Raises:
        UsageError: different numbers of heads or rows.

    >>> selection_overlap(torch.tensor([[[0, 1, -1]]]), torch.tensor([[[1, 2]]]))
    tensor([[0.3333]], dtype=torch.float64)
    """
    if first.shape[:2] != second.shape[:2]:
        raise UsageError(f"overlap: sets of {tuple(first.shape[:2])} heads and rows, and of {tuple(second.shape[:2])}")
    keys = torch.cat([first, second.to(first)], 2).sort(-1).values
    common = ((keys[..., 1:] == keys[..., :-1]) & (keys[..., 1:] >= 0)).sum(-1)
    union = (keys >= 0).sum(-1) - common
    return torch.where(union > 0, common.double() / union.clamp(min=1), 1.0)


@checked()
def neighbour_overlap(keys: Tensor) -> Tensor:
    """`selection_overlap` of the keys (h, n_q, k) of each row and of the row before it, (h, n_q); NaN for the first.

    >>> neighbour_overlap(torch.tensor([[[0, 1], [0, 2]]]))
    tensor([[   nan, 0.3333]], dtype=torch.float64)
    """
    overlap = torch.full(keys.shape[:2], torch.nan, dtype=torch.float64, device=keys.device)
    overlap[:, 1:] = selection_overlap(keys[:, 1:], keys[:, :-1])
    return overlap
