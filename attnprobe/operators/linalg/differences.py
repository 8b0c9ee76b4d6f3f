"""``E_c = B - B~_c`` for many approximations of one exact matrix, applied without storing any of these matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock

import torch
from torch import Tensor

from .. import Operator, Streamed
from ..blocks import block_rows, block_shape, row_blocks
from ..precision import product
from ..threads import side_by_side
from .norms import unit_of_squares

CPU_BLOCK, LEAST_ROWS = 256, 64  # rows of one head on a CPU
CPU_ENTRIES = 2**18  # of a block with more rows than the least: it stays in the cache
KEPT = 2**27  # bytes of blocks that a CPU keeps for later passes: it reads them ten times faster than it makes them


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
    the cache. On a CPU a block has one head, and threads compute several heads side by side; the first `KEPT` bytes of
    blocks are kept for later passes, and the others computed again. On other devices a block has all heads that fit: a
    pass takes as many operations for many heads as for one, and does not wait for the device.
    Products are ``EX = BX - B~X`` and ``EᵀY = BᵀY - B~ᵀY``, which need no row of B~. Of a `Streamed` B~ they would
    compute all rows, twice and in float64; there E is a block of rows of B less those of B~, in the dtype of B. Norms
    subtract entry by entry, so their only cancellation is that of E itself. If squares of a matrix under- or overflow,
    `in_units` finds a power of two, its unit, by which further passes divide it.

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
        self.kept = _Kept(KEPT if exact.device.type == "cpu" else 0)
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
            products = self._products(range(count), heads, parts, start.repeat(1, 1, count))
            columns, squares[:, heads], infinity[:, heads], largest = self._first_sums(heads, parts, start, products)
            size[heads] = columns.amax(1).double().sqrt() * largest.sqrt()
            applied = self._transposed(parts, products)
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
            products = self._products(approximations, heads, parts, wide)
            self._normal_sums(approximations, heads, parts, wide, products)
            applied = self._transposed(parts, products)
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
        self, heads: slice, parts: Sequence[Operator | None], v1: Tensor, products: _Products
    ) -> tuple[Tensor, ...]:
        """Add to the products of the first pass over g heads, and take the sums of entries.

        These are the column sums of B (g, n_k), sums of squares (C, g), and the largest row sums of each ``|E_c|``
        (C, g) and of B (g,).
        """
        s, blocks = v1.shape[2], _Blocks(self, heads, parts)
        rows = [one if isinstance(one, Streamed) else self._op(c, heads) for c, one in enumerate(parts)]
        count, spare = len(parts), self._space(len(v1))
        columns = v1.new_zeros(len(v1), self.n_k)
        squares = torch.zeros(count, len(v1), dtype=torch.float64, device=v1.device)
        infinity, largest = torch.zeros_like(squares), torch.zeros_like(squares[0])
        units = None if self.units_of_entries is None else self.units_of_entries[:, heads, None, None]
        for begin, end in blocks.rows():
            block = blocks.exact(begin, end)
            # weights of attention are not negative
            absolute_b = block if isinstance(self.exact, Streamed) else block.abs()
            sums = absolute_b.sum(2)
            columns[:, : block.shape[2]] += absolute_b.sum(1)
            largest = torch.maximum(largest, sums.amax(1).double())
            for at in _by_products(parts, s):
                products.add(begin, end, at, block, times(block, v1).repeat(1, 1, (at.stop - at.start) // s))
            for c, part in enumerate(rows):
                if isinstance(part, Streamed):
                    e = blocks.less(c, part, begin, end)
                    products.add(begin, end, _columns(c, s), e, times(e, v1))
                else:
                    e = block if part is None else less(block, part, begin, part_of(spare, end - begin, self.n_k))
                own = e if units is None else e / units[c]
                squares[c] += torch.linalg.vector_norm(own, dim=2).double().square().sum(1)
                absolute = sums if part is None else torch.abs(e, out=part_of(spare, *e.shape[1:])).sum(2)
                infinity[c] = torch.maximum(infinity[c], absolute.amax(1).double())
        return columns, squares, infinity, largest

    def _normal_sums(
        self,
        approximations: Sequence[int],
        heads: slice,
        parts: Sequence[Operator | None],
        wide: Tensor,
        products: _Products,
    ) -> None:
        """Add to the products of a later pass over g heads."""
        s, blocks = wide.shape[2] // len(parts), _Blocks(self, heads, parts)
        by_products = [(at, wide[..., at].contiguous()) for at in _by_products(parts, s)]
        streamed = [
            (c, part, _columns(i, s), wide[..., _columns(i, s)].contiguous())
            for i, (c, part) in enumerate(zip(approximations, parts, strict=True))
            if isinstance(part, Streamed)
        ]
        for begin, end in blocks.rows():
            for at, x in by_products:
                block = blocks.exact(begin, end)
                products.add(begin, end, at, block, times(block, x))
            for c, part, at, x in streamed:
                e = blocks.less(c, part, begin, end)
                products.add(begin, end, at, e, times(e, x))

    def _products(
        self, approximations: Sequence[int], heads: slice, parts: Sequence[Operator | None], x: Tensor
    ) -> _Products:
        """The products of a pass with the blocks x (g, n_k, a s) of approximations side by side, before its blocks."""
        minus, s = x.new_zeros(len(x), self.n_q, x.shape[2]), x.shape[2] // len(parts)
        for i, part in enumerate(parts):
            if part is not None and not isinstance(part, Streamed):
                minus[:, :, _columns(i, s)] = part @ x[:, :, _columns(i, s)]
        divisor = None
        if self.units is not None:
            divisor = self.units[list(approximations), heads].T.repeat_interleave(s, 1)[:, None]
        return _Products(minus, divisor, torch.empty_like(minus), x.new_zeros(len(x), x.shape[2], self.n_k))

    def _transposed(self, parts: Sequence[Operator | None], products: _Products) -> Tensor:
        """``EᵀY`` over the units, (g, n_k, a s), from the products of all blocks."""
        y, out = products.y, products.total.mT.contiguous()
        s = y.shape[2] // len(parts)
        for i, part in enumerate(parts):
            if part is not None and not isinstance(part, Streamed):
                out[:, :, _columns(i, s)] -= part.rmatmul(y[:, :, _columns(i, s)]).to(out)
        return _divided(out, products.divisor)

    def _op(self, c: int, heads: slice) -> Operator | None:
        op = self.approximations[c]
        return None if op is None else op.heads(heads)

    def _part(self, c: int, heads: slice) -> Operator | None:
        """Some heads of an approximation: in float64, or in the dtype of B where rows are subtracted."""
        op = self._op(c, heads)
        return None if op is None else op.to(self.dtype if isinstance(op, Streamed) else torch.float64)

    def _space(self, heads: int) -> Tensor:
        """Memory for a block of rows, used again for each: it stays in the cache."""
        row = torch.empty(0, dtype=self.dtype, device=self.exact.device)
        rows = min(self.n_q, block_rows(row, heads * self.n_k, _cpu_rows(self.n_k)))
        return row.new_empty(heads, rows, self.n_k)


class _Kept:
    """Blocks of rows that later passes read again, for all threads.

    Args:
        room: bytes.
    """

    def __init__(self, room: int) -> None:
        self.room, self.lock = room, Lock()
        self.blocks: dict[tuple[int | None, int, int], Tensor] = {}  # by approximation (None: B), head and row

    def fits(self, size: int) -> bool:
        """Whether a block of ``size`` bytes has room, which it then takes."""
        with self.lock:
            fits = size <= self.room
            self.room -= size if fits else 0
        return fits


class _Blocks:
    """Blocks of rows of g heads in one pass: kept ones, or computed ones, which the next one may overwrite.

    A block, (g, b, w), has the first w keys: of causal matrices those that its rows see.

    Args:
        parts: the approximations of the pass. B itself is kept for those that are not streamed.
    """

    def __init__(self, matrices: Differences, heads: slice, parts: Sequence[Operator | None]) -> None:
        self.kept, self.heads, self.operator = matrices.kept, heads, matrices.exact.heads(heads)
        self.streamed = [part for part in (self.operator, *parts) if isinstance(part, Streamed)]
        self.keeps_exact = not all(isinstance(part, Streamed) for part in parts)
        self.spaces = tuple(matrices._space(heads.stop - heads.start) for _ in range(2))
        self.current: tuple[int, Tensor] | None = None  # the first row of the block of B, and the block

    def rows(self) -> Iterator[tuple[int, int]]:
        """The first and the last row, plus one, of each block; the same in every pass."""
        return row_blocks(self.operator.shape[1], self.spaces[0].shape[1])

    def exact(self, begin: int, end: int) -> Tensor:
        """Rows of B."""
        if self.current is None or self.current[0] != begin:
            made = self._block(None, begin, end, self.keeps_exact, lambda out: rows_of(self.operator, out, begin))
            self.current = begin, made
        return self.current[1]

    def less(self, c: int, part: Streamed, begin: int, end: int) -> Tensor:
        """Rows of B less those of approximation c."""
        return self._block(c, begin, end, True, lambda out: less(self.exact(begin, end), part, begin, out))

    def _block(self, c: int | None, begin: int, end: int, keep: bool, make: Callable[[Tensor], Tensor]) -> Tensor:
        place = c, self.heads.start, begin
        if (known := self.kept.blocks.get(place)) is not None:
            return known
        seen = self.operator.shape[2]
        if isinstance(self.operator, Streamed):
            seen = max(one.seen(begin, end) for one in self.streamed)
        out = part_of(self.spaces[0 if c is None else 1], end - begin, seen)
        if not keep or not self.kept.fits(out.nbytes):
            return make(out)
        made = self.kept.blocks[place] = make(torch.empty_like(out))
        return made


def part_of(space: Tensor, rows: int, keys: int) -> Tensor:
    """The memory of a block (g, b, n_k) for one of fewer rows and keys, (g, rows, keys)."""
    return space.flatten()[: len(space) * rows * keys].view(len(space), rows, keys)


def rows_of(op: Operator, out: Tensor, begin: int) -> Tensor:
    """Rows of an operator from ``begin`` on: as many as ``out`` (g, b, w) has, perhaps in its memory.

    Of a streamed operator the first w keys; of others all.
    """
    end = begin + out.shape[1]
    if isinstance(op, Streamed):
        return op.first_keys(begin, end, out.shape[2]).rows_into(out, 0, end - begin)
    return op.rows(begin, end)


def less(block: Tensor, op: Operator, begin: int, out: Tensor) -> Tensor:
    """A block of rows of B, (g, b, w), less those of an approximation, in ``out``; keys from w on are zero in B."""
    rows, seen = rows_of(op, out, begin).to(block.dtype), block.shape[2]
    if rows.shape == block.shape:
        return torch.sub(block, rows, out=out)
    torch.neg(rows, out=out)
    out[..., :seen] += block
    return out


def times(block: Tensor, x: Tensor) -> Tensor:
    """A block of rows with the first w keys, (g, b, w), times x (g, n_k, s)."""
    return product(block, x[:, : block.shape[2]])


@dataclass(frozen=True, eq=False)
class _Products:
    """Products of a pass over g heads, with the columns of a approximations side by side.

    Attributes:
        minus: ``B~X``, (g, n_q, a s); 0 for streamed approximations, whose rows are subtracted from those of B.
        divisor: the unit of each column, (g, 1, a s); None if all are 1.
        y: EX over its units, (g, n_q, a s). total: the sums of ``EᵀY`` of streamed approximations and of ``BᵀY`` of the
            others, transposed, (g, a s, n_k): a product adds to a few long rows faster than to many short ones.
    """

    minus: Tensor
    divisor: Tensor | None
    y: Tensor
    total: Tensor

    def add(self, begin: int, end: int, at: slice, e: Tensor, made: Tensor) -> None:
        """Take in a block of rows: ``made`` is its product ``e x`` with the columns ``at`` of X."""
        own = torch.sub(made, self.minus[:, begin:end, at], out=made)
        own = _divided(own, None if self.divisor is None else self.divisor[..., at])
        self.y[:, begin:end, at] = own
        self.total[:, at, : e.shape[2]] += product(own.mT, e)


def _columns(i: int, s: int) -> slice:
    """The columns of approximation i of those side by side."""
    return slice(i * s, (i + 1) * s)


def _by_products(parts: Sequence[Operator | None], s: int) -> list[slice]:
    """The columns of approximations that are not streamed; neighbours are together."""
    runs: list[slice] = []
    for i, part in enumerate(parts):
        if isinstance(part, Streamed):
            continue
        at = _columns(i, s)
        if runs and runs[-1].stop == at.start:
            at = slice(runs.pop().start, at.stop)
        runs.append(at)
    return runs


def _divided(products: Tensor, divisor: Tensor | None) -> Tensor:
    """Products (g, n, a s) over the units of their columns, in their memory."""
    return products if divisor is None else products.div_(divisor.to(products))


def _cpu_rows(n_k: int) -> int:
    """The number of rows of a block on a CPU: fewer if rows are long, but enough for products."""
    rows = CPU_BLOCK
    while rows > LEAST_ROWS and rows * n_k > CPU_ENTRIES:
        rows //= 2
    return rows
