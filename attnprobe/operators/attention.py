"""The exact attention matrices, streamed in row blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from .base import Operator
from .blocks import head_blocks, reach
from .groups import folded, of_heads, repeated, unfolded
from .precision import full_precision, product
from .terms import Terms
from .underflow import exp_, least_exponent, softmax
from .visible import Visible

CPU_BLOCK = 64  # rows of one head: a block of 64 x n stays in the L2 cache
CPU_PRODUCT = 128  # rows of one head that are multiplied in place: twice as many in the same memory
UNSHIFTED_KEYS = 8192  # of a block whose rows are divided by their sums at the end
LARGEST_EXPONENT = 500  # of float64 exponentials without a shift: their sums, times an operand up to 1e80, are finite


class Streamed(Operator):
    """A matrix whose rows are computed from ``q`` and ``k`` when they are needed, (h, n_q, n_k).

    Products are computed block by block. Memory is O(n_k) for each row of a block.

    Args:
        q: queries, (h, n_q, p).
        k: keys, (h_kv, n_k, p); ``h / h_kv`` consecutive query heads share a KV head.
        scale: the factor on ``Q Kᵀ``.
        visible: the keys that each query sees; the scores of other keys are -∞. None means all keys.
        terms: the cap and the bias of the scores; None for none.
    """

    def __init__(
        self, q: Tensor, k: Tensor, scale: float, visible: Visible | None = None, terms: Terms | None = None
    ) -> None:
        self.q, self.k, self.scale, self.terms = q, k, scale, terms
        self.visible = None if visible is None else visible.to(q.device)
        self.shape = (q.shape[0], q.shape[1], k.shape[1])
        self.dtype, self.device = q.dtype, q.device

    def heads(self, index: slice) -> Streamed:
        return type(self)(self.q[index], self._keys(index), self.scale, self.visible, self._terms_of(index))

    def _terms_of(self, heads: slice) -> Terms | None:
        return None if self.terms is None else self.terms.of(heads)

    def _keys(self, index: slice) -> Tensor:
        """The keys that a slice of the query heads read, (h_kv, n_k, p)."""
        return of_heads(self.k, index, len(self.q))

    def to(self, dtype: torch.dtype) -> Streamed:
        terms = None if self.terms is None else self.terms.to(dtype)
        return type(self)(self.q.to(dtype), self.k.to(dtype), self.scale, self.visible, terms)

    def scores(self, heads: slice, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        """Rows ``start … stop - 1`` of the scores ``scale · Q Kᵀ`` of some heads, with cap and bias, (g, b, n_k).

        They are -∞ for hidden keys.
        """
        q, k = self.q[heads, start:stop] * self.scale, self._keys(heads)
        scores = product(q, k.mT, out) if len(q) == len(k) else unfolded(product(folded(q, len(k)), k.mT), len(q))
        if self.terms is not None:
            scores = self.terms.of(heads, slice(start, stop)).applied(scores)
        if self.visible is None:
            return scores
        visible, seen = self.visible.of(slice(start, stop)), 0
        if visible.first is None and visible.last.device.type == "cpu":  # a GPU would have to be waited for to know
            seen = int(visible.last.min()) + 1  # keys that every row sees
        scores[..., seen:].masked_fill_(visible.hidden(self.shape[2], seen), float("-inf"))
        return scores

    def seen(self, start: int, stop: int) -> int:
        """The number of first keys among which are all that rows ``start … stop - 1`` see, in multiples of `KEYS`.

        A GPU would have to be waited for to know, so there it is the number of all keys.
        """
        if self.visible is None or self.device.type != "cpu":
            return self.shape[2]
        return reach(int(self.visible.last[start:stop].max()), self.shape[2])

    def first_keys(self, start: int, stop: int, seen: int) -> Self:
        """Rows ``start … stop - 1``, (h, stop - start, seen), which see none but the first ``seen`` keys."""
        rows = slice(start, stop)
        part = copy(self)
        part._underflows = self._underflows  # of all rows and keys: those of the part would cost a pass over its keys
        part.q, part.k = self.q[:, rows], self.k[:, :seen]
        part.visible = None if self.visible is None else self.visible.of(rows)
        part.terms = None if self.terms is None else self.terms.of(rows=rows, keys=slice(seen))
        part.shape = (self.shape[0], stop - start, seen)
        return part

    @full_precision()
    def rows_into(self, out: Tensor, start: int, stop: int) -> Tensor:
        """`rows`, (h, stop - start, n_k), which may use the memory of ``out``, of the same shape.

        A caller that passes the same ``out`` for each block keeps it in the cache.
        """
        return self._block(slice(None), start, stop, out)

    def is_differentiated(self, *operands: Tensor) -> bool:
        """Whether a product with ``operands`` needs a gradient."""
        return torch.is_grad_enabled() and any(x.requires_grad for x in (self.q, self.k, *operands))

    def _block(self, heads: slice, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        """Rows ``start … stop - 1`` of some heads, (g, b, n_k), which may use the memory of ``out``."""
        raise NotImplementedError

    def _lowest(self) -> Tensor:
        """A lower bound of the exponents of each head, (h,), from norms: cost ``(n_q + n_k) p``."""
        raise NotImplementedError

    def _largest_score(self) -> Tensor:
        """An upper bound of the absolute scores of each head, (h,), from norms: cost ``(n_q + n_k) p``."""
        largest_k = repeated(_largest_norm(self.k), len(self.q))
        return abs(self.scale) * _largest_norm(self.q) * largest_k + self._largest_bias

    @property
    def _largest_bias(self) -> float:
        return 0.0 if self.terms is None else self.terms.largest

    @cached_property
    def _underflows(self) -> list[bool]:
        """Whether exponentials of each head may be subnormal. Most heads are flat and have none."""
        least = least_exponent(self.q, self.shape[2])
        if least == -math.inf:
            return [False] * self.shape[0]
        return [not bool(lowest > least) for lowest in self._lowest()]  # NaN may be anything

    def _may_underflow(self, heads: slice) -> bool:
        """Whether exponentials of one of these heads may be subnormal."""
        return any(self._underflows[heads])

    def _blocks(self, x: Tensor, rows: int = CPU_BLOCK) -> Iterator[tuple[slice, int, int, Tensor]]:
        """Yields ``(heads, start, stop, block)`` for all blocks of the matrix, to be multiplied with ``x``.

        On a CPU a block overwrites the one before it, unless a gradient is needed: its memory stays in the cache.
        """
        memory = None
        if self.device.type == "cpu" and not self.is_differentiated(x):
            memory = self.q.new_empty(1, min(rows, self.shape[1]), self.shape[2])
        for heads, start, stop in head_blocks(self, rows):
            out = None if memory is None else memory[:, : stop - start]
            yield heads, start, stop, self._block(heads, start, stop, out)

    @full_precision()
    def _apply(self, x: Tensor) -> Tensor:
        out = x.new_empty(self.shape[0], self.shape[1], x.shape[2])  # (h, n_q, c)
        for heads, start, stop, block in self._blocks(x, CPU_PRODUCT):
            out[heads, start:stop] = product(block, x[heads])
        return out

    @full_precision()
    def _apply_transpose(self, y: Tensor) -> Tensor:
        out = y.new_zeros(self.shape[0], self.shape[2], y.shape[2])  # (h, n_k, c)
        for heads, start, stop, block in self._blocks(y):
            out[heads] += product(block.mT, y[heads, start:stop])
        return out

    @full_precision()
    def _rows(self, start: int, stop: int) -> Tensor:
        return self._block(slice(None), start, stop)


class SoftmaxAttention(Streamed):
    """``B = softmax(scale · Q Kᵀ)``, (h, n_q, n_k), row by row.

    A product with c columns costs ``n_q n_k (p + c)`` multiply-adds and an exponential for each entry. Its memory is a
    block of rows: 64 rows of one head on a CPU, on other devices a share of the free memory (see
    `attnprobe.operators.blocks`).

    >>> B = SoftmaxAttention(torch.zeros(1, 2, 4), torch.zeros(1, 5, 4), scale=0.5)
    >>> B @ torch.ones(1, 5, 1)
    tensor([[[1.],
             [1.]]])
    """

    @property
    def needs_no_shift(self) -> bool:
        """Whether norms bound the scores so that exponentials of all keys are normal float64 numbers, on a GPU."""
        plain = self.visible is None and self.terms is None
        if self.device.type == "cpu" or self.dtype != torch.float64 or not plain:
            return False
        return bool((self._largest_score() < LARGEST_EXPONENT).all())

    @full_precision()
    def product_once(self, x: Tensor) -> Tensor:
        """``B @ X``, (h, n_q, c), for X (h, n_k, c), without a gradient; on a GPU it waits for a bound of the scores.

        In float64 a GPU then computes ``Σ_j exp(S_ij) x_j / Σ_j exp(S_ij)`` where norms bound S by 500. No pass over
        the scores looks for their maxima. It takes three quarters of the time of a product.
        """
        if not self.needs_no_shift:
            return self @ x
        out = x.new_zeros(self.shape[0], self.shape[1], x.shape[2])
        sums = x.new_zeros(self.shape[0], self.shape[1], 1)
        for first in range(0, self.shape[2], UNSHIFTED_KEYS):
            keys = slice(first, first + UNSHIFTED_KEYS)
            part = SoftmaxAttention(self.q, self.k[:, keys], self.scale)
            for heads, start, stop in head_blocks(part, CPU_BLOCK):
                weights = part.scores(heads, start, stop).exp_()
                sums[heads, start:stop] += weights.sum(-1, keepdim=True)
                out[heads, start:stop].baddbmm_(weights, x[heads, keys])
        return out.div_(sums)

    def _lowest(self) -> Tensor:
        k = self.k.detach()
        farthest = repeated(_largest_norm(k - k.mean(1, keepdim=True)), len(self.q))
        spread = 2 * farthest  # a row's scores differ by no more than that times ‖q‖
        added = 0.0 if self.terms is None else self.terms.spread
        return -abs(self.scale) * _largest_norm(self.q) * spread - added

    def _block(self, heads: slice, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        scores = self.scores(heads, start, stop, out)
        out = None if out is None else scores
        if self._may_underflow(heads):
            return softmax(scores, out)
        return torch.softmax(scores, dim=-1, out=out)

    @full_precision()
    def log_normalizer(self) -> Tensor:
        """``log D_i = logsumexp_j S_ij``, (h, n_q)."""
        out = self.q.new_empty(self.shape[:2])
        for heads, start, stop in head_blocks(self, CPU_BLOCK):
            out[heads, start:stop] = self.scores(heads, start, stop).logsumexp(-1)
        return out


class UnnormalisedAttention(Streamed):
    """``exp(scale · Q Kᵀ - shift)`` with one shift per head, (h, n_q, n_k): A in its log-scale form, row by row.

    A is ``e^shift`` times this matrix. One shift for a head changes no ratio of singular values; one for each row would
    change the matrix. By default ``shift`` (h,) is the largest score of each head, so that no entry is above 1. It
    takes a pass of ``n_q n_k p`` multiply-adds. A product costs as much as one with `SoftmaxAttention`.

    >>> q = torch.tensor([[[0.0], [1000.0]]])
    >>> A = UnnormalisedAttention(q, torch.ones(1, 1, 1), scale=1.0)
    >>> A.dense(), A.shift
    (tensor([[[0.],
             [1.]]]), tensor([1000.]))
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        scale: float,
        shift: Tensor | None = None,
        visible: Visible | None = None,
        terms: Terms | None = None,
    ) -> None:
        super().__init__(q, k, scale, visible, terms)
        self.shift = self._largest() if shift is None else shift.to(q)

    def heads(self, index: slice) -> UnnormalisedAttention:
        q, k, shift = self.q[index], self._keys(index), self.shift[index]
        return UnnormalisedAttention(q, k, self.scale, shift, self.visible, self._terms_of(index))

    def to(self, dtype: torch.dtype) -> UnnormalisedAttention:
        terms = None if self.terms is None else self.terms.to(dtype)
        return UnnormalisedAttention(self.q.to(dtype), self.k.to(dtype), self.scale, self.shift, self.visible, terms)

    @full_precision()
    def _largest(self) -> Tensor:
        out = self.q.new_full(self.shape[:1], float("-inf"))
        for heads, start, stop in head_blocks(self, CPU_BLOCK):
            out[heads] = torch.maximum(out[heads], self.scores(heads, start, stop).amax((1, 2)))
        return out

    def _lowest(self) -> Tensor:
        return -self._largest_score() - self.shift

    def _block(self, heads: slice, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        exponents = self.scores(heads, start, stop, out).sub_(self.shift[heads, None, None])
        return exp_(exponents) if self._may_underflow(heads) else exponents.exp_()


class GaussianAttention(Streamed):
    """``C_ij = exp(-‖q_i - k_j‖² · scale/2)``, (h, n_q, n_k), row by row; not row-normalised.

    The three terms of the square are one exponent, which is at most 0 up to rounding, so nothing overflows. A product
    costs as much as one with `SoftmaxAttention`.

    >>> q = torch.tensor([[[0.0], [2.0]]])
    >>> GaussianAttention(q, q, scale=1.0).dense()
    tensor([[[1.0000, 0.1353],
             [0.1353, 1.0000]]])
    """

    def __init__(
        self, q: Tensor, k: Tensor, scale: float, visible: Visible | None = None, terms: Terms | None = None
    ) -> None:
        super().__init__(q, k, scale, visible, terms)
        half_q, half_k = ((x * x).sum(-1) * (scale / 2) for x in (q, k))
        self.half_q, self.half_k = half_q, repeated(half_k, len(q))  # (h, n)

    def first_keys(self, start: int, stop: int, seen: int) -> Self:
        part = super().first_keys(start, stop, seen)
        part.half_q, part.half_k = self.half_q[:, start:stop], self.half_k[:, :seen]
        return part

    def _lowest(self) -> Tensor:
        largest = _largest_norm(self.q) + repeated(_largest_norm(self.k), len(self.q))
        return -abs(self.scale) / 2 * largest**2 - self._largest_bias

    def _block(self, heads: slice, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        exponent = self.scores(heads, start, stop, out)
        exponent = exponent.sub_(self.half_q[heads, start:stop, None]).sub_(self.half_k[heads, None, :])
        exponent = exponent.clamp_(max=0)
        return exp_(exponent) if self._may_underflow(heads) else exponent.exp_()


def _largest_norm(x: Tensor) -> Tensor:
    """The largest norm of a row of each head, (h,)."""
    return x.detach().norm(dim=-1).amax(-1)
