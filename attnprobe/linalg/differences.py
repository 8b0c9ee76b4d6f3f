"""``E_c = B - B~_c`` for many approximations of one exact matrix, applied without holding any of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..operators import Operator, SoftmaxAttention, row_blocks

__all__ = ["Differences", "FirstPass"]

CPU_BLOCK = 64  # rows of one head: a block of 64 x n stays in the L2 cache
CUDA_BLOCK_ENTRIES = 2**26


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
    in the cache. `first` subtracts entry by entry, so that its norms have no cancellation beyond that of E itself;
    `normal` applies ``EX = BX - B~X`` and ``EᵀY = BᵀY - B~ᵀY``, which needs no row of B~.

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
        self.logs: Tensor | None = None  # log normalisers of softmax rows, made by the first pass over them

    def first(self, v1: Tensor) -> FirstPass:
        """The first product, with the start block ``V₁`` (n_k, s) that all share, and the norms that entries give.

        Cost ``n_q n_k`` times the head dimension, and for each approximation what its rows cost and ``2 s``.
        """
        count, s = len(self.approximations), v1.shape[1]
        normal = v1.new_zeros(count, self.h, self.n_k, s)
        squares = torch.zeros(count, self.h, dtype=torch.float64, device=v1.device)
        infinity, columns = torch.zeros_like(squares), torch.zeros(self.h, self.n_k, dtype=v1.dtype, device=v1.device)
        largest = torch.zeros(self.h, dtype=torch.float64, device=v1.device)
        for head in range(self.h):
            parts = [None if op is None else op.heads(slice(head, head + 1)) for op in self.approximations]
            for start, stop, block in self._blocks(head):
                columns[head] += block.sum(0)
                largest[head] = torch.maximum(largest[head], block.sum(1).max().double())
                for c, part in enumerate(parts):
                    e = block if part is None else block - part.rows(start, stop)[0].to(block)
                    squares[c, head] += torch.linalg.vector_norm(e, dim=1).double().square().sum()
                    infinity[c, head] = torch.maximum(
                        infinity[c, head], torch.linalg.vector_norm(e, 1, dim=1).max().double()
                    )
                    normal[c, head].addmm_(e.mT, e @ v1)
        size = (columns.amax(1).double() * largest).sqrt()  # entries of B are not negative
        return FirstPass(normal.flatten(0, 1), squares.flatten(), infinity.flatten(), size.repeat(count))

    def normal(self, x: Tensor, which: Tensor) -> Tensor:
        """``E_iᵀE_i x_i`` for the numbers ``which`` (a,), x (a, n_k, s); (a, n_k, s)."""
        out = torch.empty_like(x)
        heads = (which % self.h).tolist()
        for head in dict.fromkeys(heads):
            mine = [place for place, other in enumerate(heads) if other == head]
            parts = [self._part(int(which[place]) // self.h, head) for place in mine]
            s = x.shape[2]
            wide = torch.cat([x[place] for place in mine], 1)  # (n_k, a' s)
            minus = x.new_zeros(self.n_q, len(mine) * s)  # B~X
            for i, (part, place) in enumerate(zip(parts, mine, strict=True)):
                if part is not None:
                    minus[:, i * s : (i + 1) * s] = (part @ x[place][None])[0]
            total, y = torch.zeros_like(wide), torch.empty_like(minus)
            for start, stop, block in self._blocks(head):
                torch.addmm(minus[start:stop], block, wide, beta=-1, out=y[start:stop])  # EX
                total.addmm_(block.mT, y[start:stop])
            for i, (part, place) in enumerate(zip(parts, mine, strict=True)):
                columns = slice(i * s, (i + 1) * s)
                back = 0 if part is None else part.rmatmul(y[:, columns][None])[0].to(x)
                out[place] = total[:, columns] - back
        return out

    def _part(self, c: int, head: int) -> Operator | None:
        op = self.approximations[c]
        return None if op is None else op.heads(slice(head, head + 1)).to(torch.float64)

    def _blocks(self, head: int) -> Iterator[tuple[int, int, Tensor]]:
        """``(start, stop, rows)`` of B over one head, the same numbers in every pass."""
        one = self.exact.heads(slice(head, head + 1))
        on_cpu = self.exact.device.type == "cpu"
        size = CPU_BLOCK if on_cpu else max(1, CUDA_BLOCK_ENTRIES // self.n_k)
        if not isinstance(one, SoftmaxAttention):
            for start, stop in row_blocks(self.n_q, size):
                yield start, stop, one.rows(start, stop)[0]
            return
        if self.logs is None:
            self.logs = torch.full((self.h, self.n_q), float("nan"), dtype=self.dtype, device=self.exact.device)
        known = not bool(self.logs[head].isnan().any())
        for start, stop in row_blocks(self.n_q, size):
            scores = one.scores(slice(None), start, stop)[0]
            if not known:
                self.logs[head, start:stop] = scores.logsumexp(-1)
            yield start, stop, scores.sub_(self.logs[head, start:stop, None]).exp_()
