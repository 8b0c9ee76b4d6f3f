"""``E_c = B - B~_c`` for many approximations of one exact matrix, applied without storing any of these matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..operators import Operator, Streamed
from ..operators.blocks import block_rows, block_shape, row_blocks
from ..operators.precision import product
from ..operators.threads import SPAN, in_spans, located, side_by_side

CPU_BLOCK, LEAST_ROWS = 256, 64  # rows of one head on a CPU
CPU_ENTRIES = 2**18  # of a block with more rows than the least: it stays in the cache


@dataclass(frozen=True)
class FirstPass:
    """The results of the first pass over all entries, for N = C h matrices: C approximations of h heads.

    Matrix number ``c h + head`` is approximation c of that head.

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
    """The sums of a span of rows. Those of two spans are added, or the larger of both is taken."""

    added: tuple[Tensor, ...]
    largest: tuple[Tensor, ...] = ()

    def take(self, later: _Sums) -> None:
        for own, other in zip(self.added, later.added, strict=True):
            own.add_(other)
        for own, other in zip(self.largest, later.largest, strict=True):
            torch.maximum(own, other, out=own)

    def to(self, device: torch.device) -> _Sums:
        return _Sums(*(tuple(x.to(device) for x in kind) for kind in (self.added, self.largest)))


class Differences:
    """The matrices ``E_c = B - B~_c``; None among the approximations is 0, so that its E is B itself.

    B is computed in blocks of rows, with one exponential for each entry. All approximations use a block while it is in
    the cache. On a CPU a block has one head, and threads compute several heads side by side. On other devices it has
    all heads that fit: a pass takes as many operations for many heads as for one, and does not wait for the device.
    Products are ``EX = BX - B~X`` and ``EᵀY = BᵀY - B~ᵀY``, which need no row of B~. Norms subtract entry by entry, so
    their only cancellation is that of E itself.

    With ``devices``, all of them compute rows at once, in spans of `SPAN` rows. The sums of spans are added in the
    order of the rows. So results are the same to the last bit for any number of devices of one kind with the same
    number of threads each. Without ``devices`` the same terms are added in another order. Then entries of ``BᵀY``
    differ by at most ``2 n_q u |B|ᵀ|Y|`` with the unit roundoff u of the passes, and ``‖E‖_F²`` by a relative ``2 n_q
    2⁻⁵³``; row sums do not differ. Entries round differently too, if blocks of a GPU end at other rows, or if Q, K or a
    factor was a view that skips memory. A device holds one head of Q, K and all B~, two blocks of rows, and ``C s n_k``
    sums of each of two spans. Products with B~ and all other work stay on the device of ``exact``.

    Args:
        exact: (h, n_q, n_k). approximations: operators of the same shape.
        devices: the devices that compute rows (see `in_spans`); None is exact's own, all rows at once.
    """

    def __init__(
        self,
        exact: Operator,
        approximations: Sequence[Operator | None],
        devices: Sequence[torch.device | str] | None = None,
    ) -> None:
        self.dtype = exact.dtype
        self.exact = exact
        self.approximations = tuple(approximations)
        self.devices = located(devices)
        self.h, self.n_q, self.n_k = exact.shape
        heads = 1 if self.devices is not None else block_shape(exact, CPU_BLOCK)[0]
        self.groups = [slice(*pair) for pair in row_blocks(self.h, heads)]  # heads that a block has together

    def first(self, v1: Tensor) -> FirstPass:
        """The first product, with the start block ``V₁`` (n_k, s) that all matrices share, and the norms of entries.

        Cost ``n_q n_k (p + s (1 + C))`` multiply-adds a head for C approximations, and all rows of each of these.
        """
        count, s = len(self.approximations), v1.shape[1]
        normal = v1.new_empty(count, self.h, self.n_k, s)
        squares = torch.zeros(count, self.h, dtype=torch.float64, device=v1.device)
        infinity, size = torch.zeros_like(squares), torch.zeros_like(squares[0])

        def of(heads: slice) -> None:
            parts = [self._part(c, heads) for c in range(count)]
            start = v1.expand(heads.stop - heads.start, -1, -1)
            minus = self._applied(parts, start.repeat(1, 1, count))
            y = torch.empty_like(minus)
            sums = self._summed(partial(self._first_on, heads, start, minus, y))
            total, columns, squares[:, heads] = sums.added
            infinity[:, heads], largest = sums.largest
            size[heads] = (columns.amax(1).double() * largest).sqrt()
            normal[:, heads] = self._transposed(parts, total, y).unflatten(2, (count, s)).movedim(2, 0)

        self._each([partial(of, heads) for heads in self.groups])
        return FirstPass(normal.flatten(0, 1), squares.flatten(), infinity.flatten(), size.repeat(count))

    def normal(self, x: Tensor, which: Tensor) -> Tensor:
        """``E_iᵀE_i x_i`` of the matrices ``which`` (a,) int64, for x (a, n_k, s), as (a, n_k, s).

        Cost ``n_q n_k (p + 2 s a')`` multiply-adds a head for its a' matrices, and two products with each B~.
        """
        out, s = torch.empty_like(x), x.shape[2]
        numbers = [divmod(number, self.h) for number in which.tolist()]  # (c, head) of each place

        def of(heads: slice, places: list[int]) -> None:
            approximations = list(dict.fromkeys(numbers[place][0] for place in places))
            parts = [self._part(c, heads) for c in approximations]
            place = torch.tensor(places, device=x.device)
            row = torch.tensor([numbers[place][1] - heads.start for place in places], device=x.device)
            column = torch.tensor([approximations.index(numbers[place][0]) for place in places], device=x.device)
            wide = x.new_zeros(heads.stop - heads.start, self.n_k, len(parts), s)  # zero where a matrix is done
            wide[row, :, column] = x[place]
            wide = wide.flatten(2)  # (g, n_k, a' s)
            minus = self._applied(parts, wide)
            y = torch.empty_like(minus)
            (total,) = self._summed(partial(self._normal_on, heads, wide, minus, y)).added
            out[place] = self._transposed(parts, total, y).unflatten(2, (len(parts), s))[row, :, column]

        jobs = []
        for group in self.groups:
            places = [place for place, (_, head) in enumerate(numbers) if group.start <= head < group.stop]
            if places:
                columns_read = [numbers[place][1] for place in places]
                jobs.append(partial(of, slice(min(columns_read), max(columns_read) + 1), places))
        self._each(jobs)
        return out

    def _each(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Run all jobs of a pass; with ``devices`` one after another, because each job uses all devices."""
        if self.devices is None:
            side_by_side(jobs, self.exact.device)
            return
        for job in jobs:
            job()

    def _first_on(
        self, heads: slice, v1: Tensor, minus: Tensor, y: Tensor, device: torch.device
    ) -> Callable[[int, int], _Sums]:
        """A function that computes spans of the first pass over g heads on ``device``, and their rows of ``y``.

        Its sums are BᵀY, transposed (g, C s, n_k), the column sums of B (g, n_k) and sums of squares (C, g). Its
        largest numbers are the row sums of each ``|E_c|`` (C, g) and of B (g,).
        """
        exact = self._on(self.exact, heads, device)
        rows = [None if op is None else self._on(op, heads, device) for op in self.approximations]
        count, v1, spaces = len(rows), v1.to(device), (self._space(device, len(v1)), self._space(device, len(v1)))

        def work(start: int, stop: int) -> _Sums:
            total, columns = v1.new_zeros(len(v1), minus.shape[2], self.n_k), v1.new_zeros(len(v1), self.n_k)
            squares = torch.zeros(count, len(v1), dtype=torch.float64, device=device)
            infinity, largest = torch.zeros_like(squares), torch.zeros_like(squares[0])
            less, into = minus[:, start:stop].to(device), _rows_on(device, y, start, stop)
            for index, begin, end, block in self._blocks(exact, spaces[0], start, stop):
                sums = block.sum(2)  # of absolute values too: entries of B are not negative
                columns += block.sum(1)
                largest = torch.maximum(largest, sums.amax(1).double())
                torch.sub(product(block, v1).repeat(1, 1, count), less[:, index], out=into[:, index])  # EV₁
                total += product(into[:, index].mT, block)
                for c, part in enumerate(rows):
                    e = block
                    if part is not None:
                        e = torch.sub(block, part.rows(begin, end).to(self.dtype), out=spaces[1][:, : end - begin])
                    squares[c] += torch.linalg.vector_norm(e, dim=2).double().square().sum(1)
                    absolute = sums if part is None else e.abs_().sum(2)
                    infinity[c] = torch.maximum(infinity[c], absolute.amax(1).double())
            return self._home(y, start, stop, into, _Sums((total, columns, squares), (infinity, largest)))

        return work

    def _normal_on(
        self, heads: slice, wide: Tensor, minus: Tensor, y: Tensor, device: torch.device
    ) -> Callable[[int, int], _Sums]:
        """A function that computes spans of a later pass over g heads on ``device``: BᵀY, transposed (g, a s, n_k)."""
        exact, wide, space = self._on(self.exact, heads, device), wide.to(device), self._space(device, len(wide))

        def work(start: int, stop: int) -> _Sums:
            total = wide.new_zeros(len(wide), wide.shape[2], self.n_k)
            less, into = minus[:, start:stop].to(device), _rows_on(device, y, start, stop)
            for index, _, _, block in self._blocks(exact, space, start, stop):
                torch.sub(product(block, wide), less[:, index], out=into[:, index])  # EX
                total += product(into[:, index].mT, block)
            return self._home(y, start, stop, into, _Sums((total,)))

        return work

    def _summed(self, begin: Callable[[torch.device], Callable[[int, int], _Sums]]) -> _Sums:
        """The sums of all rows, span after span."""
        sums: list[_Sums] = []

        def take(span: _Sums) -> None:
            if sums:
                sums[0].take(span)
            else:
                sums.append(span)

        in_spans(self.n_q, self.exact.device, self.devices, begin, take)
        return sums[0]

    def _home(self, y: Tensor, start: int, stop: int, into: Tensor, sums: _Sums) -> _Sums:
        """Copy rows of ``y`` from another device to their place, and move the sums to the device of ``y``."""
        if into.device != y.device:
            y[:, start:stop] = into
        return sums.to(y.device)

    def _applied(self, parts: Sequence[Operator | None], x: Tensor) -> Tensor:
        """``B~X`` of approximations side by side, (g, n_q, a s) for the blocks x (g, n_k, a s) of each."""
        out, s = x.new_zeros(len(x), self.n_q, x.shape[2]), x.shape[2] // len(parts)
        for i, part in enumerate(parts):
            columns = slice(i * s, (i + 1) * s)
            if part is not None:
                out[:, :, columns] = part @ x[:, :, columns]
        return out

    def _transposed(self, parts: Sequence[Operator | None], total: Tensor, y: Tensor) -> Tensor:
        """``BᵀY - B~ᵀY``, (g, n_k, a s), from the transpose ``total`` of ``BᵀY`` (g, a s, n_k) and y (g, n_q, a s).

        ``total`` is a transpose, because a product adds to a few long rows faster than to many short ones.
        """
        out, s = total.mT.contiguous(), y.shape[2] // len(parts)
        for i, part in enumerate(parts):
            columns = slice(i * s, (i + 1) * s)
            if part is not None:
                out[:, :, columns] -= part.rmatmul(y[:, :, columns]).to(out)
        return out

    def _part(self, c: int, heads: slice) -> Operator | None:
        op = self.approximations[c]
        return None if op is None else op.heads(heads).to(torch.float64)

    def _on(self, op: Operator, heads: slice, device: torch.device) -> Operator:
        """Some heads of an operator on the device that computes their rows."""
        part = op.heads(heads)
        return part if self.devices is None else part.on(device)

    def _blocks(self, op: Operator, space: Tensor, start: int, stop: int) -> Iterator[tuple[slice, int, int, Tensor]]:
        """Yields ``(rows of the span, begin, end, rows of B)`` of g heads, the same in every pass.

        A block may overwrite the one before it.
        """
        for first, last in row_blocks(stop - start, space.shape[1]):
            begin, end = start + first, start + last
            if isinstance(op, Streamed):
                block = op.rows_into(space[:, : end - begin], begin, end)
            else:
                block = op.rows(begin, end)
            yield slice(first, last), begin, end, block

    def _space(self, device: torch.device, heads: int) -> Tensor:
        """Memory for a block of rows, used again for each: it stays in the cache."""
        row = torch.empty(0, dtype=self.dtype, device=device)
        most = self.n_q if self.devices is None else min(self.n_q, SPAN)
        return row.new_empty(heads, min(most, block_rows(row, heads * self.n_k, _cpu_rows(self.n_k))), self.n_k)


def _cpu_rows(n_k: int) -> int:
    """The number of rows of a block on a CPU, a divisor of `SPAN`: fewer if rows are long, but enough for products."""
    rows = CPU_BLOCK
    while rows > LEAST_ROWS and rows * n_k > CPU_ENTRIES:
        rows //= 2
    return rows


def _rows_on(device: torch.device, y: Tensor, start: int, stop: int) -> Tensor:
    """The memory for rows of ``y`` on a device: their place in ``y``, or new memory on another device."""
    rows = y[:, start:stop]
    return rows if device == y.device else torch.empty_like(rows, device=device)
