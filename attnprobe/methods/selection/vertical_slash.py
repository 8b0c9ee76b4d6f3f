"""The vertical-slash pattern of MInference (Jiang et al. 2024): a few columns and a few diagonals for all rows.

A probe of the last queries scores columns j and diagonals. The diagonal o holds the keys at distance o before a query.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import UsageError
from ...qkv import QKV
from ...reference import exact
from ...rng import Streams
from ..base import Approximation
from .base import Selection, attend, selector, working


def _check(target: str, *, vertical: float, probe: int, first: int, near: int) -> None:
    if not 0 < vertical < 1:
        raise UsageError(f"vertical-slash: vertical={vertical} is not between 0 and 1")
    for name, value, least in (("probe", probe, 1), ("first", first, 0), ("near", near, 1)):
        if value < least:
            raise UsageError(f"vertical-slash: {name}={value} is below {least}")


@selector(
    name="vertical-slash",
    paper="Jiang et al., MInference (vertical-slash head)",
    year=2024,
    tags=("shift_invariant", "prefill"),
    budget="at most d keys of each row: d · vertical columns, and diagonals",
    cost="2 n d p",
    oracle="torch scaled_dot_product_attention under its mask",
    limit=lambda n_q, n_k: 2 * n_k,
    limit_name="2 n_k",
    exact_at=lambda n: (2 * n, {}),
    validate=_check,
    small={"probe": 3, "first": 1, "near": 1},
)
def vertical_slash(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    vertical: float = 0.5,
    probe: int = 64,
    first: int = 30,
    near: int = 100,
) -> Approximation:
    """The softmax of each row over the columns and the diagonals on which the last queries have the largest weights.

    P are the exact rows of the last ``probe`` queries. Kept are the ``⌊d · vertical⌋`` columns with the largest
    ``Σ_i P_ij``, and as many diagonals o as make d with the largest ``Σ_i P_i,c(i)-o``. The first columns and the
    nearest diagonals come before all others. Source: Jiang et al. 2024, section 3; ``first`` and ``near`` are those of
    the authors' code as it runs. Its search for patterns has 30 near diagonals, and leaves out 1/√p in the probe.

    The probe sees the end of the text, so that the choice of earlier rows looks ahead. No key after a row has weight.
    Inputs that are not causal have diagonals on both sides.

    Options:
        vertical: the share of the budget that columns have.
        probe: the number of last queries that are computed exactly.
        first: the number of first columns that are kept before others.
        near: the number of nearest diagonals that are kept before others.

    Shapes: index and weights (h, n_q, d), output (h, n_q, p_v). Deterministic; cost ``probe · n_k p`` for the probe and
    ``n d (p + p_v)``, memory O(n d). ``scored`` is the scores of the probe.

    Raises:
        Unsupported: d above 2 n_k. UsageError: an option out of its range.
    """
    numbers = working(qkv)
    columns, probe = max(1, int(d * vertical)), min(probe, qkv.n_q)
    weights = exact(numbers.queries(torch.arange(qkv.n_q - probe, qkv.n_q, device="cpu"))).rows(0, probe)
    index = columns_and_diagonals(numbers, weights, columns, d - columns, first, near)
    return attend(qkv, Selection(index, 1, float(probe * qkv.n_k)))


def columns_and_diagonals(
    qkv: QKV, weights: Tensor, vertical: int, slash: int, first: int, near: int, mass: float = 1.0
) -> Tensor:
    """The keys of each row: the best columns, then the best diagonals that are no such column, (h, n_q, u).

    Args:
        weights: of the last queries, (h, probe, n_k).
        vertical, slash: the largest numbers of columns and of diagonals. mass: the share of the weights after which no
            more columns, or diagonals, are taken; 1 is none.
        first, near: the numbers of first columns and of nearest diagonals that come before others.
    """
    probe = weights.shape[1]
    key = torch.arange(qkv.n_k, device=qkv.device)
    columns = _best(weights.sum(1), key < first, vertical, mass * probe if mass < 1 else None)  # (h, v)
    offset = torch.arange(1 - qkv.n_k, qkv.n_k, device=qkv.device)
    diagonal = qkv.query_positions[-probe:, None] - key + qkv.n_k - 1  # (probe, n_k), from 0
    of_diagonal = weights.new_zeros(qkv.h, 2 * qkv.n_k - 1).index_add_(1, diagonal.flatten(), weights.flatten(1))
    if qkv.causal:
        of_diagonal = of_diagonal.masked_fill(offset < 0, float("-inf"))
    near_first = (offset.abs() < near) & ((offset >= 0) | (not qkv.causal))
    slashes = _best(of_diagonal, near_first, min(slash, qkv.n_k), mass * probe if mass < 1 else None)
    along = qkv.query_positions[:, None] - (slashes[:, None] + 1 - qkv.n_k)  # (h, n_q, s)
    outside = (along < 0) | (along >= qkv.n_k) | (slashes < 0)[:, None]
    is_column = torch.zeros(qkv.h, qkv.n_k + 1, dtype=torch.bool, device=qkv.device).scatter_(1, columns + 1, True)
    taken = is_column[:, 1:].gather(1, along.clamp(0, qkv.n_k - 1).flatten(1)).view(along.shape)
    return torch.cat([columns[:, None].expand(-1, qkv.n_q, -1), along.masked_fill(outside | taken, -1)], 2)


def _best(weight: Tensor, forced: Tensor, count: int, enough: float | None) -> Tensor:
    """The places with the largest weights, forced ones first, until they hold ``enough``, (h, u); -1 is none."""
    place = weight.masked_fill(forced, float("inf")).topk(min(count, weight.shape[1]), dim=-1).indices
    if enough is None:
        return place
    held = weight.gather(1, place)
    return place.masked_fill((held.cumsum(1) - held >= enough) & ~forced.expand_as(weight).gather(1, place), -1)
