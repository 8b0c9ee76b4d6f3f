"""The rows of exact softmax attention, which row metrics of many approximations share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, linalg
from torch.nn import functional

from ..errors import Unsupported
from ..operators import Operator, Padded, Scaled, SoftmaxAttention
from ..operators.blocks import block_rows, row_blocks
from ..operators.groups import of_heads, repeated
from ..qkv import QKV
from .residual import heads_alone

if TYPE_CHECKING:
    from ..operators.block import Block

EPSILONS = {"k_50": 0.5, "k_90": 0.1, "k_99": 0.01}
SINKS, NEAR = 4, 64  # keys that are not distant: the first, and those up to the query
ENTRIES = 2**18  # of a block of rows, which fits in the cache
FEWEST = 16  # rows of a block
TEMPORARY = 16  # numbers of 4 bytes that a block has for each entry on another device
KEPT = 2**30  # bytes of exact rows that are kept for further approximations
COLUMNS = 24  # of float64 that MKL multiplies at a time: 72 of them take less time than 64
LEAST = -1e4  # stands for the logarithm of a weight of zero, whose product with the weight is zero


@dataclass(frozen=True, eq=False)
class ExactBlock:
    """Some exact rows of heads at the m keys that one of them sees, and at the sink, which is one more key.

    b counts the rows of all heads, one head after the other.

    Attributes:
        log_p, p: ``ln P``, -∞ where a key is hidden, and P, (b, m + 1) or (b, m + 2). Behind the keys is an empty
            column, `LEAST` and 0, to which empty slots point, and then that of the sink.
        log_sum: ``ln D``, (b,).
        output: ``P V``, (b, p_v).
        ordered: ``ln P`` of keys and sink with ascending rows; held: the mass of the 1, 2, … largest of them.
        keys: m.
        values: the metrics that depend on P alone, (b,) each, by name.
    """

    log_p: Tensor
    p: Tensor
    log_sum: Tensor
    output: Tensor
    ordered: Tensor
    held: Tensor
    keys: int
    values: Mapping[str, Tensor]

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (self.log_p, self.p, self.ordered, self.held))


class ExactRows:
    """The rows of exact softmax attention of ``qkv``, to be shared by many approximations (see `row_metrics`).

    Rows are computed in float64 when they are needed. Up to 1 GiB of them is kept.
    """

    def __init__(self, qkv: QKV) -> None:
        self.shape = (qkv.h, qkv.n_q, qkv.n_k)
        self.qkv = qkv.compressed()
        self._kept: dict[tuple[int, int], ExactBlock] = {}
        self._room = KEPT
        self._wide: tuple[slice, Tensor, Tensor] | None = None  # heads, and their keys and values
        self._memory: Tensor | None = None

    @classmethod
    def of(cls, reference: Operator, qkv: QKV) -> ExactRows:
        """The rows of an exact operator.

        Raises:
            Unsupported: a reference that is not softmax attention, because its rows are not distributions.
            UsageError: a reference of another shape.
        """
        operator = reference.operator if isinstance(reference, Padded) else reference
        softmax = operator.operator if isinstance(operator, Scaled) else operator
        if not isinstance(softmax, SoftmaxAttention):
            raise Unsupported("rows are compared with exact softmax attention, whose rows are distributions")
        made = cls(qkv)
        made.shape = reference.shape
        return made

    def blocks(self) -> list[tuple[int, int]]:
        """``(start, stop)`` of consecutive blocks of rows."""
        return list(row_blocks(self.qkv.n_q, self._step))

    def heads(self) -> list[slice]:
        """The heads that a block has together: one on a CPU, elsewhere those that fit, which are as many operations."""
        together = block_rows(self.qkv.q, TEMPORARY * self._step * self.qkv.n_k, cpu=1)
        return [slice(start, stop) for start, stop in row_blocks(self.qkv.h, together)]

    @property
    def _step(self) -> int:
        """The number of rows of a block."""
        return max(FEWEST, ENTRIES // self.qkv.n_k)

    @cached_property
    def sinks(self) -> Tensor | None:
        """The sink of each head, (h,) float64."""
        return None if self.qkv.sink_logits is None else self.qkv.sink_logits.double()

    @cached_property
    def wide_block(self) -> Block | None:
        """What each head alone adds to the residual stream, in float64."""
        return self.qkv.block and heads_alone(self.qkv.block, self.qkv.p_v)

    def block(self, heads: slice, rows: slice) -> ExactBlock:
        """The rows of a block at the keys that one of its queries sees."""
        key = heads.start, rows.start
        if key not in self._kept:
            visible = self.qkv.visible
            keys = self.qkv.n_k if visible is None else int(visible.last[rows].max()) + 1
            made = self.computed(heads, rows, keys)
            # too large to keep: the next approximation computes it again
            if made.nbytes > self._room:
                return made
            self._kept[key] = made
            self._room -= made.nbytes
        return self._kept[key]

    def computed(self, heads: slice, rows: slice, keys: int) -> ExactBlock:
        """Some rows at the first ``keys`` keys."""
        qkv, sinks, (k, v) = self.qkv, self.sinks, self._keys_and_values(heads)
        q = qkv.q[heads, rows].double() * qkv.scale  # (g, r, p)
        log_p = product_of_heads(q.flatten(0, 1), k[:, :keys].mT)
        if qkv.terms is not None:
            terms = qkv.terms.of(heads, rows, slice(keys))
            log_p = terms.applied(log_p.view(len(q), -1, keys)).view(log_p.shape)
        if qkv.visible is not None:
            log_p.view(len(q), -1, keys).masked_fill_(qkv.visible.of(rows).hidden(keys), -torch.inf)
        if sinks is not None:
            log_p = torch.cat([log_p, sinks[heads].repeat_interleave(q.shape[1])[:, None]], 1)
        log_sum = log_p.logsumexp(-1)
        log_p -= log_sum[:, None]
        p = log_p.exp()
        ordered = _sorted(log_p)
        held = ordered.exp().flip(-1).cumsum_(-1)
        position, key = qkv.query_positions[rows, None], torch.arange(keys, device=qkv.device)
        distant = (key >= SINKS) & ((key <= position - NEAR) | (key >= position + NEAR))  # (r, keys)
        values = {
            "support": (-linalg.vecdot(p, log_p.clamp(min=LEAST))).exp(),
            "distant_mass": (p[:, :keys].unflatten(0, (len(q), -1)) * distant).sum(-1).flatten(),
        }
        for name, epsilon in EPSILONS.items():
            # against the mass that is held and not 1, so that a sum's rounding cannot ask for one key more
            values[name] = (held < (1 - epsilon) * held[:, -1:]).sum(-1).double() + 1
        output = product_of_heads(p[:, :keys], v[:, :keys])[:, : qkv.p_v]
        log_p, p = _with_empty(log_p, keys, LEAST), _with_empty(p, keys, 0.0)
        return ExactBlock(log_p, p, log_sum, output, ordered, held, keys, values)

    def values_of(self, heads: slice, keys: int) -> Tensor:
        """The first values of heads in float64, then ones, by which a product has its rows' sums, (g, m, p_v + 1 …)."""
        return self._keys_and_values(heads)[1][:, :keys]

    def memory(self, of: Tensor) -> Tensor:
        """Memory for a block of the shape of ``of``, used again for each: it stays in the cache."""
        if self._memory is None or self._memory.numel() < of.numel():
            self._memory = of.new_empty(of.numel())
        return self._memory[: of.numel()].view(of.shape)

    def _keys_and_values(self, heads: slice) -> tuple[Tensor, Tensor]:
        if self._wide is None or self._wide[0] != heads:
            shared = (of_heads(x, heads, self.qkv.h).double() for x in (self.qkv.shared_k, self.qkv.shared_v))
            k, v = (repeated(x, heads.stop - heads.start) for x in shared)
            v = functional.pad(functional.pad(v, (0, 1), value=1.0), (0, -(v.shape[2] + 1) % COLUMNS))
            self._wide = heads, k, v
        return self._wide[1:]


def product_of_heads(x: Tensor, y: Tensor) -> Tensor:
    """The product of the rows x (g r, m) of g heads with the matrix of each, y (g, m, c), as (g r, c)."""
    return x @ y[0] if len(y) == 1 else (x.unflatten(0, (len(y), -1)) @ y).flatten(0, 1)


def _with_empty(x: Tensor, keys: int, value: float) -> Tensor:
    """``x`` (b, m) with a column of ``value`` behind the keys."""
    return torch.cat([x[:, :keys], x.new_full((len(x), 1), value), x[:, keys:]], 1)


def _sorted(x: Tensor) -> Tensor:
    """``x`` (b, n) with ascending rows. On a CPU numpy sorts ten times faster, because it computes no indices."""
    if x.device.type == "cpu":
        return torch.from_numpy(np.sort(x.numpy(), axis=-1))
    return x.sort(-1).values
