"""Windowed attention by features: a window is the end of one block of keys and the beginning of the next."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from .base import Operator
from .blocks import block_rows, row_blocks
from .causal import CausalFeatures
from .compose import Scaled, Sum
from .sparse import Sparse

NUMBERS = 2**22  # of the features of keys at a time


@dataclass(frozen=True, eq=False)
class Windows:
    """Query i sees the keys at the ``width`` positions up to ``end_i``, and of the first ``sinks`` keys those before.

    The text is cut into blocks of ``width`` positions. A window consists of the end of one block and the beginning of
    the next. So its sum is a sum of two running sums, not a difference.

    Attributes:
        end: (n_q,) int64, each at most once. It may lie beyond the last key.
        keys: the position of each key, (n_k,) int64, ascending.
    """

    end: Tensor
    width: int
    keys: Tensor
    sinks: int = 0

    @property
    def first(self) -> Tensor:
        """The first key of each window, (n_q,); negative at the beginning of the text."""
        return self.end - self.width + 1

    @property
    def blocks(self) -> int:
        """The number m of blocks of positions."""
        return max(int(self.end.max()), int(self.keys[-1])) // self.width + 1

    @property
    def first_reversed(self) -> Tensor:
        """The place of each window's first position among all positions if each block is reversed, (n_q,)."""
        return self.first // self.width * self.width + (-self.first - 1) % self.width

    def cut(self, numbers: Tensor, fill: float) -> Tensor:
        """Numbers of keys (h, n_k, c), cut into blocks (h, m, w, c); ``fill`` stands at positions without a key."""
        places = numbers.new_full((len(numbers), self.blocks * self.width, numbers.shape[-1]), fill)
        places = places.index_copy(1, self.keys.to(numbers.device), numbers)
        return places.unflatten(1, (self.blocks, self.width))

    def of_keys(self, numbers: Tensor, axis: int) -> Tensor:
        """The numbers of the keys, from those of all positions along an axis."""
        return numbers.index_select(axis, self.keys.to(numbers.device))


class BlockRows(Operator):
    """Rows of an operator on blocks of keys: row i is row ``place_i`` of the rows of all blocks.

    Args:
        operator: (h m, w, w), the m blocks of a head one after another.
        place: (n_q,) int64, below m w.
        windows: the blocks.
        back: the operator has the keys of each block in reversed order.
    """

    def __init__(self, operator: Operator, place: Tensor, windows: Windows, back: bool = False) -> None:
        self.operator, self.place, self.windows, self.back = operator, place, windows, back
        self.shape = (operator.shape[0] // windows.blocks, len(place), len(windows.keys))
        self.dtype, self.device = operator.dtype, operator.device

    def heads(self, index: slice) -> BlockRows:
        start, stop, _ = index.indices(self.shape[0])
        m = self.windows.blocks
        return BlockRows(self.operator.heads(slice(start * m, stop * m)), self.place, self.windows, self.back)

    def to(self, dtype: torch.dtype) -> BlockRows:
        return BlockRows(self.operator.to(dtype), self.place, self.windows, self.back)

    def _apply(self, x: Tensor) -> Tensor:
        blocks = self.windows.cut(x, 0.0)
        blocks = blocks.flip(2) if self.back else blocks
        return self.operator._apply(blocks.flatten(0, 1)).reshape(len(x), -1, x.shape[-1])[:, self.place]

    def _apply_transpose(self, y: Tensor) -> Tensor:
        m, width = self.windows.blocks, self.windows.width
        rows = y.new_zeros(len(y), m * width, y.shape[-1]).index_add(1, self.place, y)
        out = self.operator._apply_transpose(rows.view(-1, width, y.shape[-1])).unflatten(0, (len(y), m))
        out = out.flip(2) if self.back else out
        return self.windows.of_keys(out.flatten(1, 2), 1)

    def _rows(self, start: int, stop: int) -> Tensor:
        m, width, place = self.windows.blocks, self.windows.width, self.place[start:stop]
        out = torch.zeros(self.shape[0], len(place), m, width, dtype=self.dtype, device=self.device)
        for block in (place // width).unique().tolist():
            here = place // width == block
            row = place[here] - block * width
            low, high = int(row.min()), int(row.max()) + 1
            out[:, here, block] = self.operator.heads(slice(block, None, m))._rows(low, high)[:, row - low]
        out = out.flip(3) if self.back else out
        return self.windows.of_keys(out.flatten(2), 2)


def windowed_features(log_q: Tensor, log_k: Tensor, windows: Windows) -> tuple[Operator, Tensor]:
    """``B~_ij = φ(q_i)·φ(k_j) / Σ_l φ(q_i)·φ(k_l)`` over the keys l that query i sees, and the log sums (h, n_q).

    Each part of a window is a row of `CausalFeatures` on a block of keys, with weights that sum to 1. The share of a
    part is its sum over that of all parts. No sum includes a key that the query does not see.

    Args:
        log_q: (h, n_q, f). log_k: (h, n_k, f). -∞ is a feature that is 0. A row whose sum is 0 is NaN.

    Cost: that of two `CausalFeatures`, and ``n_q f`` exponentials for each sink.
    """
    parts = window_sums(log_q, log_k, windows)
    share = torch.softmax(parts, -1).to(torch.promote_types(log_q.dtype, torch.float32))
    blocks = windows.cut(log_k, -inf)
    size = (len(log_q), windows.blocks * windows.width, log_q.shape[-1])
    operators: list[Operator] = []
    for number, (place, keys) in enumerate(((windows.end, blocks), (windows.first_reversed, blocks.flip(2)))):
        place = place.clamp(min=0)
        queries = log_q.new_zeros(size).index_copy(1, place, log_q)
        features = CausalFeatures(queries.view(-1, *blocks.shape[2:]), keys.flatten(0, 1))
        rows = BlockRows(features.with_empty_rows(), place, windows, back=bool(number))
        operators.append(Scaled(rows, share[..., number]))
    if windows.sinks:
        sinks = torch.arange(share.shape[-1] - 2, device=log_q.device).expand(len(log_q), 1, -1)
        operators.append(Sparse(sinks, share[..., 2:], len(windows.keys), group=len(windows.end)))
    return Sum(operators), parts.logsumexp(-1)


def window_sums(log_q: Tensor, log_k: Tensor, windows: Windows) -> Tensor:
    """``log Σ_l φ(q_i)·φ(k_l)`` over the parts of each window, (h, n_q, 2 + sinks) float64; -∞ for a part without keys.

    The parts are the keys in the block of its end, those in the block before, and each sink by itself.
    """
    some = max(1, NUMBERS // log_k[0].numel())
    heads = row_blocks(len(log_q), block_rows(log_q, log_k[0].numel(), some))
    return torch.cat([_sums(log_q[start:stop].double(), log_k[start:stop].double(), windows) for start, stop in heads])


def _sums(log_q: Tensor, log_k: Tensor, windows: Windows) -> Tensor:
    blocks = windows.cut(log_k, -inf)  # (h, m, w, f)
    near = blocks.logcumsumexp(2).flatten(1, 2)[:, windows.end]  # (h, n_q, f)
    far = blocks.flip(2).logcumsumexp(2).flatten(1, 2)[:, windows.first_reversed.clamp(min=0)]
    in_one = (windows.first <= 0) | (windows.first % windows.width == 0)  # its keys are all of one block
    parts = [(log_q + near).logsumexp(-1), (log_q + far).logsumexp(-1).masked_fill(in_one, -inf)]
    for sink, place in enumerate(windows.keys[: windows.sinks]):
        parts.append((log_q + log_k[:, sink, None]).logsumexp(-1).masked_fill(windows.first <= place, -inf))
    return torch.stack(parts, -1)
