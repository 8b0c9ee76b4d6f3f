"""``E_c = B - B~_c`` for many approximations of one exact matrix, applied without storing any of these matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from .. import Operator, Streamed
from ..blocks import block_rows, block_shape, row_blocks
from ..precision import product
from ..threads import side_by_side
from .norms import unit_of_squares

CPU_BLOCK, LEAST_ROWS = 256, 64  # rows of one head on a CPU
CPU_ENTRIES = 2**18  # of a block with more rows than the least: it stays in the cache


@dataclass(frozen=True)
class FirstPass:
    """The results of the first pass over all entries, for N = C h matrices: C approximations of h heads.

    Matrix number ``c h + head`` is approximation c of that head.

    Attributes:
        normal: ``E_cᵀE_c V₁ / ε_c²``, (N, n_k, s). unit: ε_c, a power of two, float64 (N,); 1 where no square of E_c
            that counts under- or overflows. frobenius2: ``‖E_c/ε_c‖_F²``, at least ``tiny`` if E_c is not 0, float64
            (N,).
        frobenius: ``‖E_c‖_F``, float64 (N,). infinity: the largest row sum of absolute values, float64 (N,). size: an
            upper bound ``√(‖B‖₁ ‖B‖_∞)`` of ``‖B‖₂``, float64 (N,).
    """

    normal: Tensor
    unit: Tensor
    frobenius2: Tensor
    frobenius: Tensor
    infinity: Tensor
    size: Tensor


class Differences:
    """The matrices ``E_c = B - B~_c``; None among the approximations is 0, so that its E is B itself.

    B is computed in blocks of rows, with one exponential for each entry. All approximations use a block while it is in
    the cache. On a CPU a block has one head, and threads compute several heads side by side. On other devices it has
    all heads that fit: a pass takes as many operations for many heads as for one, and does not wait for the device.
    Products are ``EX = BX - B~X`` and ``EᵀY = BᵀY - B~ᵀY``, which need no row of B~. Norms subtract entry by entry, so
    their only cancellation is that of E itself. If squares of a matrix under- or overflow, `in_units` finds a power of
    two, its unit, by which further passes divide it.

    Args:
        exact: (h, n_q, n_k). approximations: operators of the same shape.
    """

    def __init__(self, exact: Operator, approximations: Sequence[Operator | None]) -> None:
        self.dtype = exact.dtype
        self.exact = exact
        self.approximations = tuple(approximations)
        self.h, self.n_q, self.n_k = exact.shape
        heads = block_shape(exact, CPU_BLOCK)[0]
        self.groups = [slice(*pair) for pair in row_blocks(self.h, heads)]  # heads that a block has together
        self.units: Tensor | None = None  # of the matrices in products, (C, h); None is 1 for all
        self.units_of_entries: Tensor | None = None  # and in sums of squares of entries

    def in_units(self, v1: Tensor) -> FirstPass:
        """`first`; once more, with units, if squares of a matrix under- or overflow."""
        first = self.first(v1)
        rounding = torch.finfo(self.dtype).eps * first.size  # of a product, which a smaller unit would make too large
        units = unit_of_squares(torch.maximum(first.infinity, rounding), self.dtype)
        of_entries = unit_of_squares(first.infinity, self.dtype)
        if ((units == 1) & (of_entries == 1)).all():
            return first
        self.units, self.units_of_entries = (x.unflatten(0, (-1, self.h)) for x in (units, of_entries))
        return self.first(v1)

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
            divisor = self._divisor(range(count), heads, s)
            sums = self._first_sums(heads, start, minus, y, divisor)
            total, columns, squares[:, heads], infinity[:, heads], largest = sums
            size[heads] = columns.amax(1).double().sqrt() * largest.sqrt()
            applied = _divided(self._transposed(parts, total, y), divisor)
            normal[:, heads] = applied.unflatten(2, (count, s)).movedim(2, 0)

        side_by_side([partial(of, heads) for heads in self.groups], self.exact.device)
        units, of_entries = (torch.ones_like(squares) if x is None else x for x in (self.units, self.units_of_entries))
        frobenius2 = squares * (of_entries / units).square()
        frobenius2 = torch.where(squares > 0, frobenius2.clamp(min=torch.finfo(squares.dtype).tiny), frobenius2)
        return FirstPass(
            normal.flatten(0, 1),
            units.flatten(),
            frobenius2.flatten(),
            (squares.sqrt() * of_entries).flatten(),
            infinity.flatten(),
            size.repeat(count),
        )

    def normal(self, x: Tensor, which: Tensor) -> Tensor:
        """``E_iᵀE_i x_i / ε_i²`` of the matrices ``which`` (a,) int64, for x (a, n_k, s), as (a, n_k, s).

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
            divisor = self._divisor(approximations, heads, s)
            total = self._normal_sums(heads, wide, minus, y, divisor)
            applied = _divided(self._transposed(parts, total, y), divisor)
            out[place] = applied.unflatten(2, (len(parts), s))[row, :, column]

        jobs = []
        for group in self.groups:
            places = [place for place, (_, head) in enumerate(numbers) if group.start <= head < group.stop]
            if places:
                columns_read = [numbers[place][1] for place in places]
                jobs.append(partial(of, slice(min(columns_read), max(columns_read) + 1), places))
        side_by_side(jobs, self.exact.device)
        return out

    def _first_sums(
        self, heads: slice, v1: Tensor, minus: Tensor, y: Tensor, divisor: Tensor | None
    ) -> tuple[Tensor, ...]:
        """The sums of the first pass over g heads; it fills ``y`` with EV₁ over its units.

        They are BᵀY, transposed (g, C s, n_k), the column sums of B (g, n_k), sums of squares (C, g), and the largest
        row sums of each ``|E_c|`` (C, g) and of B (g,).
        """
        exact = self.exact.heads(heads)
        rows = [None if op is None else op.heads(heads) for op in self.approximations]
        count, spaces = len(rows), (self._space(len(v1)), self._space(len(v1)))
        total, columns = v1.new_zeros(len(v1), minus.shape[2], self.n_k), v1.new_zeros(len(v1), self.n_k)
        squares = torch.zeros(count, len(v1), dtype=torch.float64, device=v1.device)
        infinity, largest = torch.zeros_like(squares), torch.zeros_like(squares[0])
        units = None if self.units_of_entries is None else self.units_of_entries[:, heads, None, None]
        for begin, end, block in self._blocks(exact, spaces[0]):
            absolute_b = block if isinstance(exact, Streamed) else block.abs()  # those of attention are not negative
            sums = absolute_b.sum(2)
            columns += absolute_b.sum(1)
            largest = torch.maximum(largest, sums.amax(1).double())
            torch.sub(product(block, v1).repeat(1, 1, count), minus[:, begin:end], out=y[:, begin:end])
            total += product(_divided(y[:, begin:end], divisor).mT, block)
            for c, part in enumerate(rows):
                e = block
                if part is not None:
                    e = torch.sub(block, part.rows(begin, end).to(self.dtype), out=spaces[1][:, : end - begin])
                own = e if units is None else e / units[c]
                squares[c] += torch.linalg.vector_norm(own, dim=2).double().square().sum(1)
                absolute = sums if part is None else e.abs_().sum(2)
                infinity[c] = torch.maximum(infinity[c], absolute.amax(1).double())
        return total, columns, squares, infinity, largest

    def _normal_sums(self, heads: slice, wide: Tensor, minus: Tensor, y: Tensor, divisor: Tensor | None) -> Tensor:
        """BᵀY of a later pass over g heads, transposed (g, a s, n_k); it fills ``y`` with EX over its units."""
        exact, space = self.exact.heads(heads), self._space(len(wide))
        total = wide.new_zeros(len(wide), wide.shape[2], self.n_k)
        for begin, end, block in self._blocks(exact, space):
            torch.sub(product(block, wide), minus[:, begin:end], out=y[:, begin:end])
            total += product(_divided(y[:, begin:end], divisor).mT, block)
        return total

    def _divisor(self, approximations: Sequence[int], heads: slice, s: int) -> Tensor | None:
        """The unit of each column of products of approximations side by side, (g, 1, a s); None if all are 1."""
        if self.units is None:
            return None
        return self.units[list(approximations), heads].T.repeat_interleave(s, 1)[:, None]

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

    def _blocks(self, op: Operator, space: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """Yields ``(begin, end, rows of B)`` of g heads, the same in every pass.

        A block may overwrite the one before it.
        """
        for begin, end in row_blocks(self.n_q, space.shape[1]):
            if isinstance(op, Streamed):
                block = op.rows_into(space[:, : end - begin], begin, end)
            else:
                block = op.rows(begin, end)
            yield begin, end, block

    def _space(self, heads: int) -> Tensor:
        """Memory for a block of rows, used again for each: it stays in the cache."""
        row = torch.empty(0, dtype=self.dtype, device=self.exact.device)
        rows = min(self.n_q, block_rows(row, heads * self.n_k, _cpu_rows(self.n_k)))
        return row.new_empty(heads, rows, self.n_k)


def _divided(products: Tensor, divisor: Tensor | None) -> Tensor:
    """Products (g, n, a s) over the units of their columns, in their memory."""
    return products if divisor is None else products.div_(divisor.to(products))


def _cpu_rows(n_k: int) -> int:
    """The number of rows of a block on a CPU: fewer if rows are long, but enough for products."""
    rows = CPU_BLOCK
    while rows > LEAST_ROWS and rows * n_k > CPU_ENTRIES:
        rows //= 2
    return rows
