"""Sets of columns and diagonals of the matrix of weights."""

from __future__ import annotations

import torch
from torch import Tensor

from ...operators.linalg.order import largest_scores
from ...operators.precision import ordered_sums
from ...qkv import QKV


def columns_and_diagonals(
    qkv: QKV, weights: Tensor, position: Tensor, vertical: int, slash: int, first: int, near: int, mass: float = 1.0
) -> Tensor:
    """The keys of each row, (h, n_q, u) int64: the best columns, then the best diagonals without these columns.

    Args:
        weights: the exact rows of the probe's queries, (h, probe, n_k). position: their places, (probe,) int64.
        vertical, slash: the largest numbers of columns and of diagonals.
        first, near: the numbers of first columns and of nearest diagonals that come before others, in this order. Of
            equal weights the first column and the nearest diagonal comes first; diagonal o comes before -o.
        mass: the share of the weights at which the columns end, and the diagonals; with 1 they have their largest
            numbers.
    """
    probe = weights.shape[1]
    key = torch.arange(qkv.n_k, device=qkv.device)
    columns = _best(weights.sum(1), key < first, vertical, mass * probe if mass < 1 else None)  # (h, v)
    rank = torch.arange(2 * qkv.n_k - 1, device=qkv.device)
    offset = (rank + 1) // 2 * (2 * (rank % 2) - 1)  # 0, 1, -1, 2, -2 …: the nearest first
    distance = position[:, None] - key  # (probe, n_k)
    diagonal = 2 * distance.abs() - (distance > 0).long()  # its place
    with ordered_sums(qkv.device):
        of_diagonal = weights.new_zeros(qkv.h, len(offset)).index_add_(1, diagonal.flatten(), weights.flatten(1))
    if qkv.causal:
        # Diagonals after the row are hidden keys; -∞ keeps them behind any diagonal of weight 0.
        of_diagonal = of_diagonal.masked_fill(offset < 0, float("-inf"))
    near_first = (offset.abs() < near) & ((offset >= 0) | (not qkv.causal))
    slashes = _best(of_diagonal, near_first, slash, mass * probe if mass < 1 else None)
    along = qkv.query_positions[:, None] - offset[slashes.clamp(min=0)][:, None]  # (h, n_q, s)
    outside = (along < 0) | (along >= qkv.n_k) | (slashes < 0)[:, None]
    is_column = torch.zeros(qkv.h, qkv.n_k + 1, dtype=torch.bool, device=qkv.device).scatter_(1, columns + 1, True)
    taken = is_column[:, 1:].gather(1, along.clamp(0, qkv.n_k - 1).flatten(1)).view(along.shape)
    return torch.cat([columns[:, None].expand(-1, qkv.n_q, -1), along.masked_fill(outside | taken, -1)], 2)


def _best(weight: Tensor, forced: Tensor, count: int, enough: float | None) -> Tensor:
    """The places with the largest weights, forced ones first, until they hold ``enough``, (h, u); -1 is none."""
    best = largest_scores(weight.masked_fill(forced, float("inf")), count)[1]
    if enough is None:
        return best
    slots = best.clamp(min=0)
    held = weight.gather(1, slots)
    return best.masked_fill((held.cumsum(1) - held >= enough) & ~forced.expand_as(weight).gather(1, slots), -1)
