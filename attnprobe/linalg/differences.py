"""``E_c = B - B~_c`` for many approximations of one exact matrix, applied without storing any of these matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..operators import SPAN, Operator, Streamed, block_rows, in_spans, is_fused, located, row_blocks

__all__ = ["Differences", "FirstPass"]

CPU_BLOCK = 256  # rows of one head: as few products as pay for their threads' meeting, and still in the cache


@dataclass(frozen=True)
class FirstPass:
    """What one pass over all entries gives; C approximations of h heads, N = C h, number ``c h + head``.

    Attributes:
        normal: ``E_cᵀE_c V₁``, (N, n_k, s). frobenius2: ``‖E_c‖_F²`` float64 (N,). infinity: the largest row sum of
            absolute values, float64 (N,). size: an upper bound ``√(‖B‖₁ ‖B‖_∞)`` of ``‖B‖₂``, float64 (N,).
    """

    normal: Tensor
    frobenius2: Tensor
    infinity: Tensor
    size: Tensor


@dataclass(frozen=True)
class _Sums:
    """What a span of rows leaves: tensors that are added to those of the spans before it, or the larger of both."""

    added: tuple[Tensor, ...]
    largest: tuple[Tensor, ...] = ()

    def take(self, later: _Sums) -> None:
        for mine, other in zip(self.added, later.added, strict=True):
            mine.add_(other)
        for mine, other in zip(self.largest, later.largest, strict=True):
            torch.maximum(mine, other, out=mine)

    def to(self, device: torch.device) -> _Sums:
        return _Sums(*(tuple(x.to(device) for x in kind) for kind in (self.added, self.largest)))


class Differences:
    """The matrices ``E_c = B - B~_c``; None among the approximations is 0, so that its E is B itself.

    B is made in blocks of rows of one head, one exponential an entry, and all approximations use a block while it is
    in the cache. Products are ``EX = BX - B~X`` and ``EᵀY = BᵀY - B~ᵀY``, which need no row of B~; norms subtract
    entry by entry, so that they have no cancellation beyond that of E itself.

    With ``devices``, rows are made on all of them at once, in spans of `SPAN` whose sums are added in the order of the
    rows. The numbers are the same to the last bit for any number of devices of one kind with as many threads each.
    Those of all rows at once are the same terms in another order: entries of ``BᵀY`` differ by at most ``2 n_q u
    |B|ᵀ|Y|``, u the unit roundoff of the passes, ``‖E‖_F²`` by a relative ``2 n_q 2⁻⁵³``, row sums not at all. Where a
    GPU's blocks of rows end elsewhere, or Q, K or a factor was a view that skips memory, entries round differently
    besides. A device holds one head of Q, K and all B~, two blocks of rows, and ``C s`` sums of ``n_k`` numbers of each
    of two spans, one being made and one to be added; products with B~ and all else stay where ``exact`` is.

    Args:
        exact: (h, n_q, n_k). approximations: operators of the same shape.
        dtype: of the passes; exact's own by default.
        devices: where rows are made (see `in_spans`); None is exact's own, all rows at once.
    """

    def __init__(
        self,
        exact: Operator,
        approximations: Sequence[Operator | None],
        dtype: torch.dtype | None = None,
        devices: Sequence[torch.device | str] | None = None,
    ) -> None:
        self.dtype = dtype or exact.dtype
        self.exact = exact if exact.dtype == self.dtype else exact.to(self.dtype)
        self.approximations = tuple(approximations)
        self.devices = located(devices)
        self.h, self.n_q, self.n_k = exact.shape
        self._heads: dict[int, Streamed] = {}

    def first(self, v1: Tensor) -> FirstPass:
        """The first product, with the start block ``V₁`` (n_k, s) that all share, and the norms that entries give.

        Cost ``n_q n_k`` times the head dimension and ``s``, and for each approximation what its rows cost and ``s``.
        """
        count, s = len(self.approximations), v1.shape[1]
        normal = v1.new_empty(count, self.h, self.n_k, s)
        squares = torch.zeros(count, self.h, dtype=torch.float64, device=v1.device)
        infinity, largest = torch.zeros_like(squares), torch.zeros_like(squares[0])
        columns = v1.new_zeros(self.h, self.n_k)
        for head in range(self.h):
            parts = [self._part(c, head) for c in range(count)]
            minus = self._applied(parts, [v1] * count)
            y = torch.empty_like(minus)
            found = self._summed(partial(self._first_on, head, v1, minus, y))
            total, columns[head], squares[:, head] = found.added
            infinity[:, head], largest[head] = found.largest
            self._transposed(parts, total, y, list(normal[:, head]))
        size = (columns.amax(1).double() * largest).sqrt()
        return FirstPass(normal.flatten(0, 1), squares.flatten(), infinity.flatten(), size.repeat(count))

    def normal(self, x: Tensor, which: Tensor) -> Tensor:
        """``E_iᵀE_i x_i`` for the numbers ``which`` (a,), x (a, n_k, s); (a, n_k, s)."""
        out = torch.empty_like(x)
        numbers = which.tolist()
        heads = [number % self.h for number in numbers]
        for head in dict.fromkeys(heads):
            mine = [place for place, other in enumerate(heads) if other == head]
            parts = [self._part(numbers[place] // self.h, head) for place in mine]
            wide = torch.cat([x[place] for place in mine], 1)  # (n_k, a' s)
            minus = self._applied(parts, [x[place] for place in mine])
            if (one := self._fused(head)) is not None:
                y = (one @ wide[None])[0] - minus  # EX
                total = one.rmatmul(y[None])[0].mT
            else:
                y = torch.empty_like(minus)
                (total,) = self._summed(partial(self._normal_on, head, wide, minus, y)).added
            self._transposed(parts, total, y, [out[place] for place in mine])
        return out

    def _fused(self, head: int) -> Streamed | None:
        """One head of B where fused kernels make its products, the same object in every pass; None where blocks do.

        Float64 alone: the fused products of float32 are three products in TF32, whose rounding is eight times what the
        ends of an interval allow for.
        """
        if self.devices is not None or self.dtype != torch.float64 or not isinstance(self.exact, Streamed):
            return None
        if not is_fused(self.exact):
            return None
        if head not in self._heads:
            self._heads[head] = self.exact.heads(slice(head, head + 1))
        return self._heads[head]

    def _first_on(
        self, head: int, v1: Tensor, minus: Tensor, y: Tensor, device: torch.device
    ) -> Callable[[int, int], _Sums]:
        """What makes spans of the first pass over one head on ``device``, their rows of ``y`` too.

        Sums are of BᵀY, transposed (C s, n_k), of the columns of B (n_k,) and of squares (C,); largest are the row
        sums of each ``|E_c|`` (C,) and of B.
        """
        exact = self._on(self.exact, head, device)
        rows = [None if op is None else self._on(op, head, device) for op in self.approximations]
        count, v1, spaces = len(rows), v1.to(device), (self._space(device), self._space(device))

        def work(start: int, stop: int) -> _Sums:
            total, columns = v1.new_zeros(minus.shape[1], self.n_k), v1.new_zeros(self.n_k)
            squares = torch.zeros(count, dtype=torch.float64, device=device)
            infinity, largest = torch.zeros_like(squares), torch.zeros_like(squares[0])
            less, into = minus[start:stop].to(device), _rows_on(device, y, start, stop)
            for some, begin, end, block in self._blocks(exact, spaces[0], start, stop):
                sums = block.sum(1)  # of absolute values too: entries of B are not negative
                columns.addmv_(block.mT, torch.ones_like(sums))
                largest = torch.maximum(largest, sums.max().double())
                torch.sub((block @ v1).repeat(1, count), less[some], out=into[some])  # EV₁
                total.addmm_(into[some].mT, block)
                for c, part in enumerate(rows):
                    e = block
                    if part is not None:
                        e = torch.sub(block, part.rows(begin, end)[0].to(self.dtype), out=spaces[1][: end - begin])
                    squares[c] += torch.linalg.vector_norm(e, dim=1).double().square().sum()
                    absolute = sums if part is None else e.abs_().sum(1)
                    infinity[c] = torch.maximum(infinity[c], absolute.max().double())
            return self._home(y, start, stop, into, _Sums((total, columns, squares), (infinity, largest)))

        return work

    def _normal_on(
        self, head: int, wide: Tensor, minus: Tensor, y: Tensor, device: torch.device
    ) -> Callable[[int, int], _Sums]:
        """What makes spans of a later pass over one head on ``device``; the sum is of BᵀY, transposed (a s, n_k)."""
        exact, wide, space = self._on(self.exact, head, device), wide.to(device), self._space(device)

        def work(start: int, stop: int) -> _Sums:
            total = wide.new_zeros(wide.shape[1], self.n_k)
            less, into = minus[start:stop].to(device), _rows_on(device, y, start, stop)
            for some, _, _, block in self._blocks(exact, space, start, stop):
                torch.addmm(less[some], block, wide, beta=-1, out=into[some])  # EX
                total.addmm_(into[some].mT, block)
            return self._home(y, start, stop, into, _Sums((total,)))

        return work

    def _summed(self, begin: Callable[[torch.device], Callable[[int, int], _Sums]]) -> _Sums:
        """The sums of all rows, span after span."""
        found: list[_Sums] = []

        def take(span: _Sums) -> None:
            if found:
                found[0].take(span)
            else:
                found.append(span)

        in_spans(self.n_q, self.exact.device, self.devices, begin, take)
        return found[0]

    def _home(self, y: Tensor, start: int, stop: int, into: Tensor, sums: _Sums) -> _Sums:
        """The rows of ``y`` that were made elsewhere, put in their place, and the sums beside them."""
        if into.device != y.device:
            y[start:stop] = into
        return sums.to(y.device)

    def _applied(self, parts: Sequence[Operator | None], x: Sequence[Tensor]) -> Tensor:
        """``B~X`` of one head's approximations side by side, (n_q, a s) for a blocks x (n_k, s)."""
        s = x[0].shape[1]
        out = x[0].new_zeros(self.n_q, len(parts) * s)
        for i, (part, one) in enumerate(zip(parts, x, strict=True)):
            if part is not None:
                out[:, i * s : (i + 1) * s] = (part @ one[None])[0]
        return out

    def _transposed(self, parts: Sequence[Operator | None], total: Tensor, y: Tensor, out: Sequence[Tensor]) -> None:
        """``BᵀY - B~ᵀY`` into a blocks (n_k, s), from the transpose ``total`` of ``BᵀY`` (a s, n_k) and y (n_q, a s).

        The transpose, because a product adds to a few long rows faster than to many short ones.
        """
        s = out[0].shape[1]
        for i, (part, one) in enumerate(zip(parts, out, strict=True)):
            columns = slice(i * s, (i + 1) * s)
            one.copy_(total[columns].mT)
            if part is not None:
                one -= part.rmatmul(y[:, columns][None])[0].to(one)

    def _part(self, c: int, head: int) -> Operator | None:
        op = self.approximations[c]
        return None if op is None else op.heads(slice(head, head + 1)).to(torch.float64)

    def _on(self, op: Operator, head: int, device: torch.device) -> Operator:
        """One head of an operator where its rows are made."""
        one = op.heads(slice(head, head + 1))
        return one if self.devices is None else one.on(device)

    def _blocks(self, one: Operator, space: Tensor, start: int, stop: int) -> Iterator[tuple[slice, int, int, Tensor]]:
        """``(rows of the span, begin, end, rows of B)`` of one head over a span, the same in every pass.

        Each block overwrites the last.
        """
        for first, last in row_blocks(stop - start, len(space)):
            begin, end = start + first, start + last
            if isinstance(one, Streamed):
                block = one.rows_into(space[None, : end - begin], begin, end)[0]
            else:
                block = one.rows(begin, end)[0]
            yield slice(first, last), begin, end, block

    def _space(self, device: torch.device) -> Tensor:
        """Memory for a block of rows of one head, used again for each: it stays in the cache."""
        row = torch.empty(0, dtype=self.dtype, device=device)
        most = self.n_q if self.devices is None else min(self.n_q, SPAN)
        return row.new_empty(min(most, block_rows(row, self.n_k, CPU_BLOCK)), self.n_k)


def _rows_on(device: torch.device, y: Tensor, start: int, stop: int) -> Tensor:
    """Where rows of ``y`` are made on a device: in their place, or beside it on another device."""
    rows = y[start:stop]
    return rows if device == y.device else torch.empty_like(rows, device=device)
