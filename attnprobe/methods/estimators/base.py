"""Rows that are estimated from sampled keys with importance weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from ...approximation import Approximation, Sampling
from ...operators import Sparse
from ...operators.kept import Kept, Made
from ...qkv import QKV
from ..base import per_head

ROWS = 64  # queries of a block; draws come block by block, so the draws of a seed depend on it
KEPT = 2**18  # scores of a head that are kept for other seeds


class KeptRows(Kept):
    """`Kept`, also of what is as large as a block of rows."""

    def __init__(self, qkv: QKV, *settings: object) -> None:
        super().__init__(qkv, qkv.tensors, *settings)
        differentiable = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in qkv.tensors)
        self.few = qkv.n_q <= ROWS and qkv.n_q * qkv.n_k <= KEPT and not differentiable

    def of_rows(self, what: Hashable, make: Callable[[], Made]) -> Made:
        """The same as `once` if a head has a single small block of rows; else what is made now, which is not kept."""
        return self.once(what, make) if self.few else make()


@dataclass(frozen=True, eq=False)
class Rows:
    """A block of rows of one head.

    Attributes:
        head: the row of the head in Q, K and V. index: the numbers of the queries, (b,) int64.
        scores: ``S_ij``, (b, n_k) float64, -∞ for hidden keys. v: the values of the head, (n_k, p_v) float64.
    """

    qkv: QKV
    head: int
    index: Tensor
    scores: Tensor
    v: Tensor

    @property
    def visible(self) -> Tensor:
        """Whether each row sees each key, (b, n_k)."""
        return self.scores > -torch.inf

    def at(self, keys: Tensor) -> Tensor:
        """The scores of keys (b, u), (b, u); -∞ in empty slots, -1."""
        return self.scores.gather(1, keys.clamp(min=0)).masked_fill(keys < 0, -torch.inf)


@dataclass(frozen=True, eq=False)
class Weighted:
    """The used keys of a block of rows.

    Attributes:
        keys: (b, u) int64, each at most once; -1 is an empty slot. log_weights: ``ln w_ij`` of each, (b, u).
        stated: fields of `Sampling`, (b,) each.
    """

    keys: Tensor
    log_weights: Tensor
    stated: dict[str, Tensor] = field(default_factory=dict)


def estimated(
    qkv: QKV,
    kept: KeptRows,
    choose: Callable[[Rows], Weighted],
    draws: Mapping[str, Tensor],
    diagnostics: dict[str, Tensor] | None = None,
) -> Approximation:
    """``B~_ij = w_ij exp(S_ij) / D~_i`` with ``D~_i = Σ_j w_ij exp(S_ij)``, for the weights that ``choose`` gives.

    If ``E[w_ij] = 1`` for each visible key, D~ and ``N~ = D~ B~ V`` are unbiased. B~ itself is a ratio, with a bias of
    O(1/ess). The operator (h, n_q, n_k) is sparse and in float64. ``realised_d`` is the mean number of used keys of a
    row. ``visited`` counts all scores that rows see. Cost ``n_q n_k p`` a head; memory of a block of rows.
    """
    blocks = [_head(qkv, kept, head, choose) for head in range(qkv.h)]
    width = max(part.index.shape[1] for parts in blocks for part in parts)
    index = torch.stack([torch.cat([_wide(part.index, width, -1) for part in parts]) for parts in blocks])
    weight = torch.stack([torch.cat([_wide(part.weight, width, 0.0) for part in parts]) for parts in blocks])
    log_sums = torch.stack([torch.cat([part.log_sums for part in parts]) for parts in blocks])

    def joined(name: str) -> Tensor:
        return torch.stack([torch.cat([part.stated[name] for part in parts]) for parts in blocks])

    sampling = Sampling(**{name: joined(name) for name in blocks[0][0].stated})
    used = (index >= 0).sum((1, 2)).double().cpu() / qkv.n_q
    return Approximation.of(
        Sparse(index, weight, qkv.n_k),
        qkv,
        draws=draws,
        diagnostics={"realised_d": used, "visited": per_head(qkv.h, qkv.entries), **(diagnostics or {})},
        log_normalizer=lambda: log_sums,
        sampling=sampling,
    )


def near_keys(rows: Rows, sinks: int, window: int) -> Tensor:
    """Whether a key is a visible one of the first ``sinks``, or of the ``window`` up to the query, (b, n_k) bool."""
    key = torch.arange(rows.qkv.n_k, device=rows.scores.device)
    position = rows.qkv.query_positions[rows.index, None]
    return ((key < sinks) | ((key > position - window) & (key <= position))) & rows.visible


def marked(mask: Tensor) -> Tensor:
    """The columns that a mask (b, n_k) marks in each row, (b, u) int64; -1 in empty slots."""
    rows, keys = mask.nonzero().unbind(1)
    starts = torch.searchsorted(rows, torch.arange(len(mask) + 1, device=mask.device))
    slots = torch.full((len(mask), max(1, int(starts.diff().max()))), -1, device=mask.device)
    slots[rows, torch.arange(len(rows), device=mask.device) - starts[rows]] = keys
    return slots


@dataclass(frozen=True, eq=False)
class _Part:
    index: Tensor
    weight: Tensor
    log_sums: Tensor
    stated: dict[str, Tensor]


def _head(qkv: QKV, kept: KeptRows, head: int, choose: Callable[[Rows], Weighted]) -> list[_Part]:
    """The blocks of rows of one head, in their order."""
    parts = []
    for start in range(0, qkv.n_q, ROWS):
        rows = Rows(qkv, head, *kept.of_rows(("scores", head, start), partial(_scores, qkv, head, start)))
        chosen = choose(rows)
        logits = rows.at(chosen.keys) + chosen.log_weights  # (b, u)
        width = max(1, int((logits > -torch.inf).sum(-1).max()))
        largest, slots = logits.topk(width)  # empty slots last, so that other rows do not change the order of a sum
        weights = chosen.log_weights.gather(1, slots).exp()
        ess = weights.sum(-1).square() / weights.square().sum(-1)
        keys = chosen.keys.gather(1, slots).masked_fill(largest == -torch.inf, -1)
        weight = torch.softmax(largest, -1)
        parts.append(_Part(keys, weight, largest.logsumexp(-1), {"ess": ess, **chosen.stated}))
    return parts


def _scores(qkv: QKV, head: int, start: int) -> tuple[Tensor, Tensor, Tensor]:
    """The index, the scores and the values of a block of `Rows`."""
    index = torch.arange(start, min(start + ROWS, qkv.n_q), device=qkv.device)
    q, k, v = qkv.q[head, index].double(), qkv.k[head].double(), qkv.v[head].double()
    scores = qkv.scale * q @ k.mT  # (b, n_k)
    if qkv.visible is not None:
        scores = scores.masked_fill(qkv.visible.of(index).hidden(qkv.n_k), -torch.inf)
    return index, scores, v


def _wide(x: Tensor, width: int, empty: float) -> Tensor:
    return torch.nn.functional.pad(x, (0, width - x.shape[1]), value=empty)
