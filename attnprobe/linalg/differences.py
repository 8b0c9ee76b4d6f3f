"""``E_c = B - B~_c`` for many approximations of one exact matrix, applied without holding any of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..operators import GPU_BLOCK, Operator, Streamed, row_blocks

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


class Differences:
    """The matrices ``E_c = B - B~_c``; None among the approximations is 0, so that its E is B itself.

    B is made in blocks of rows of one head, one exponential an entry, and all approximations use a block while it is
    in the cache. Products are ``EX = BX - B~X`` and ``EᵀY = BᵀY - B~ᵀY``, which need no row of B~; norms subtract
    entry by entry, so that they have no cancellation beyond that of E itself.

    Args:
        exact: (h, n_q, n_k). approximations: operators of the same shape.
        dtype: of the passes; exact's own by default.
    """

    def __init__(
        self, exact: Operator, approximations: Sequence[Operator | None], dtype: torch.dtype | None = None
    ) -> None:
        self.dtype = dtype or exact.dtype
        self.exact = exact if exact.dtype == self.dtype else exact.to(self.dtype)
        self.approximations = tuple(approximations)
        self.h, self.n_q, self.n_k = exact.shape

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
            rows = [None if op is None else op.heads(slice(head, head + 1)) for op in self.approximations]
            parts = [self._part(c, head) for c in range(count)]
            minus = self._applied(parts, [v1] * count)
            y, total = torch.empty_like(minus), v1.new_zeros(count * s, self.n_k)
            space = self._space()
            for start, stop, block in self._blocks(head):
                sums = block.sum(1)  # of absolute values too: entries of B are not negative
                columns[head].addmv_(block.mT, torch.ones_like(sums))
                largest[head] = torch.maximum(largest[head], sums.max().double())
                torch.sub((block @ v1).repeat(1, count), minus[start:stop], out=y[start:stop])  # EV₁
                total.addmm_(y[start:stop].mT, block)
                for c, part in enumerate(rows):
                    e = block
                    if part is not None:
                        e = torch.sub(block, part.rows(start, stop)[0].to(block), out=space[: stop - start])
                    squares[c, head] += torch.linalg.vector_norm(e, dim=1).double().square().sum()
                    absolute = sums if part is None else e.abs_().sum(1)
                    infinity[c, head] = torch.maximum(infinity[c, head], absolute.max().double())
            self._transposed(parts, total, y, list(normal[:, head]))
        size = (columns.amax(1).double() * largest).sqrt()
        return FirstPass(normal.flatten(0, 1), squares.flatten(), infinity.flatten(), size.repeat(count))

    def normal(self, x: Tensor, which: Tensor) -> Tensor:
        """``E_iᵀE_i x_i`` for the numbers ``which`` (a,), x (a, n_k, s); (a, n_k, s)."""
        out = torch.empty_like(x)
        heads = (which % self.h).tolist()
        for head in dict.fromkeys(heads):
            mine = [place for place, other in enumerate(heads) if other == head]
            parts = [self._part(int(which[place]) // self.h, head) for place in mine]
            wide = torch.cat([x[place] for place in mine], 1)  # (n_k, a' s)
            minus = self._applied(parts, [x[place] for place in mine])
            y, total = torch.empty_like(minus), wide.new_zeros(wide.shape[1], self.n_k)
            for start, stop, block in self._blocks(head):
                torch.addmm(minus[start:stop], block, wide, beta=-1, out=y[start:stop])  # EX
                total.addmm_(y[start:stop].mT, block)
            self._transposed(parts, total, y, [out[place] for place in mine])
        return out

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

    def _blocks(self, head: int) -> Iterator[tuple[int, int, Tensor]]:
        """``(start, stop, rows)`` of B over one head, the same in every pass; each block overwrites the last."""
        one = self.exact.heads(slice(head, head + 1))
        space = self._space()
        for start, stop in row_blocks(self.n_q, len(space)):
            if isinstance(one, Streamed):
                yield start, stop, one.rows_into(space[None, : stop - start], start, stop)[0]
            else:
                yield start, stop, one.rows(start, stop)[0]

    def _space(self) -> Tensor:
        """Memory for a block of rows of one head, used again for each: it stays in the cache."""
        device = self.exact.device
        rows = CPU_BLOCK if device.type == "cpu" else GPU_BLOCK.rows(self.n_k)
        return torch.empty(min(self.n_q, rows), self.n_k, dtype=self.dtype, device=device)
