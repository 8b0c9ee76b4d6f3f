"""Causal attention by features: prefix sums over the keys, in logarithms, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from .base import Operator
from .blocks import block_rows, row_blocks

CHUNK = 64  # rows; within a chunk the matrix is held
NUMBERS = 2**20  # of the features of keys at a time
NUMBERS_HELD = 8  # float64 tensors of that size that making the parts holds


class CausalFeatures(Operator):
    """``B~_ij = φ(q_i)·φ(k_j) / Σ_{l ≤ i} φ(q_i)·φ(k_l)`` for ``j ≤ i``, otherwise 0, from the logarithms of φ.

    With ``t_if = log Σ_{j ≤ i} φ_f(k_j)`` and ``L_i = softmax_f(log φ_f(q_i) + t_if)`` the entry is ``Σ_f L_if exp(log
    φ_f(k_j) - t_if)``. The weights L sum to 1, and the exponentials are at most 1, because the sum in ``t_if`` includes
    key j. A chunk passes a weighted *mean* to the next: ``exp(t_before - t)`` times the mean before it, plus its own
    part. So no exponent is positive. A shift of the features of all keys, or of one query, cancels in each row. No part
    of row i depends on a later key.

    Between the two halves of a stretch of rows, each exponential splits at m, the last key of the first half: ``exp(log
    φ_f(k_j) - t_m) exp(t_m - t_if)``. Both exponents are at most 0. So a chunk of 64 rows takes six batches of
    products.

    Args:
        log_q, log_k: (h, n, f); -∞ is a feature that is 0. The row of a query is NaN if the query shares no feature
            with a key up to itself.

    A product costs ``2 n f c + 64 n c`` multiply-adds for c columns. Making the operator costs ``32 n f`` multiply-adds
    and ``n f`` logarithms and exponentials. Both take O(n (f + 64)) memory.
    """

    def __init__(self, log_q: Tensor, log_k: Tensor) -> None:
        h, n, f = log_q.shape
        dtype = torch.promote_types(log_q.dtype, torch.float32)
        some = row_blocks(h, block_rows(log_q, NUMBERS_HELD * n * f, max(1, NUMBERS // (n * f))))
        parts = [_of_heads(log_q[start:stop], log_k[start:stop], dtype) for start, stop in some]
        self._put([torch.cat(part) for part in zip(*parts, strict=True)], n)

    def _put(self, parts: Sequence[Tensor], n: int) -> None:
        """triangles (h, m, 64, 64), left and right (h, m, 64, f), carry (h, m, f) of the m chunks of n rows."""
        self.parts = tuple(parts)
        self.triangles, self.left, self.right, self.carry = self.parts
        self.shape, self.dtype, self.device = (len(self.left), n, n), self.left.dtype, self.left.device

    def _made_of(self, parts: Sequence[Tensor]) -> CausalFeatures:
        made = object.__new__(CausalFeatures)
        made._put(parts, self.shape[1])
        return made

    def with_empty_rows(self) -> CausalFeatures:
        """The same operator with rows of 0 in place of rows of NaN."""
        return self._made_of([part.nan_to_num(0.0, inf, -inf) for part in self.parts])

    def heads(self, index: slice) -> CausalFeatures:
        return self._made_of([part[index] for part in self.parts])

    def to(self, dtype: torch.dtype) -> CausalFeatures:
        return self._made_of([part.to(dtype) for part in self.parts])

    def _apply(self, x: Tensor) -> Tensor:
        x, out = _chunked(x, 0.0), []
        means = x.new_zeros(len(x), self.left.shape[-1], x.shape[-1])  # (h, f, c), of all chunks before
        for chunk in range(x.shape[1]):
            block = x[:, chunk]
            out.append(self.triangles[:, chunk] @ block + self.left[:, chunk] @ means)
            means = self.carry[:, chunk, :, None] * means + self.right[:, chunk].mT @ block
        return torch.cat(out, 1)[:, : self.shape[1]]

    def _apply_transpose(self, y: Tensor) -> Tensor:
        y, out = _chunked(y, 0.0), []
        sums = y.new_zeros(len(y), self.left.shape[-1], y.shape[-1])  # (h, f, c), of all chunks behind
        for chunk in reversed(range(y.shape[1])):
            block = y[:, chunk]
            out.append(self.triangles[:, chunk].mT @ block + self.right[:, chunk] @ sums)
            sums = self.carry[:, chunk, :, None] * sums + self.left[:, chunk].mT @ block
        return torch.cat(out[::-1], 1)[:, : self.shape[1]]

    def _rows(self, start: int, stop: int) -> Tensor:
        block = self.left.new_zeros(self.shape[0], stop - start, self.left.shape[1] * CHUNK)
        for chunk in range(start // CHUNK, -(-stop // CHUNK)):
            first = chunk * CHUNK
            in_chunk = slice(max(start - first, 0), min(stop - first, CHUNK))  # rows of the chunk
            rows = slice(first + in_chunk.start - start, first + in_chunk.stop - start)
            block[:, rows, first : first + CHUNK] = self.triangles[:, chunk, in_chunk]
            left = self.left[:, chunk, in_chunk]
            for earlier in reversed(range(chunk)):
                block[:, rows, earlier * CHUNK : (earlier + 1) * CHUNK] = left @ self.right[:, earlier].mT
                left = left * self.carry[:, earlier, None]
        return block[:, :, : self.shape[2]]


def _of_heads(log_q: Tensor, log_k: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The triangles, left, right and carry of some heads, see `CausalFeatures._put`.

    Logarithms and their differences are float64. Exponents are at most 0, so their exponentials lose nothing in
    ``dtype``.
    """
    log_q, log_k = _chunked(log_q.double(), 0.0), _chunked(log_k.double(), -inf)  # (h, m, 64, f)
    total = _running(log_k)  # t
    weights = torch.softmax(log_q + total, -1).to(dtype)  # L
    shift = total.masked_fill(total == -inf, 0.0)  # no key has the feature yet: its weight is 0
    before = torch.nn.functional.pad(total[:, :-1, -1:], (0, 0, 0, 0, 1, 0), value=-inf)  # (h, m, 1, f)
    left = weights * (before - shift).to(dtype).exp()
    right, carry = ((x - shift[:, :, -1:]).to(dtype).exp() for x in (log_k, before))
    triangles = _triangles(*(x.flatten(0, 1) for x in (log_k, total, shift, weights)))
    return triangles.unflatten(0, left.shape[:2]), left, right, carry[:, :, 0]


def _running(log_k: Tensor) -> Tensor:
    """``log Σ_{j ≤ i} exp(log_k_j)`` of chunks (h, m, 64, f)."""
    inside = log_k.logcumsumexp(2)
    totals = inside[:, :, -1].logcumsumexp(1)  # (h, m, f), of all chunks up to each
    before = torch.nn.functional.pad(totals[:, :-1], (0, 0, 1, 0), value=-inf)
    return torch.logaddexp(inside, before[:, :, None])


def _triangles(log_k: Tensor, total: Tensor, shift: Tensor, weights: Tensor) -> Tensor:
    """``Σ_f L_if exp(log φ_f(k_j) - t_if)`` for j ≤ i within each chunk, (m, 64, 64)."""
    dtype = weights.dtype
    own = (weights * (log_k - shift).to(dtype).exp()).sum(-1)
    out = torch.diag_embed(own)
    half = 1
    while half < CHUNK:
        pairs = (-1, 2, half, log_k.shape[-1])  # the two halves of each stretch of 2 half rows
        keys, ends, shifts, rows = (x.reshape(pairs) for x in (log_k, total, shift, weights))
        middle = ends[:, 0, -1:]  # (·, 1, f)
        key = (keys[:, 0] - shifts[:, 0, -1:]).to(dtype).exp()
        row = rows[:, 1] * (middle - shifts[:, 1]).to(dtype).exp()
        count = CHUNK // (2 * half)
        places = out.view(len(out), count, 2 * half, count, 2 * half).diagonal(dim1=1, dim2=3)  # (m, ·, ·, count)
        places[:, half:, :half] = (row @ key.mT).unflatten(0, (-1, count)).permute(0, 2, 3, 1)
        half *= 2
    return out


def _chunked(x: Tensor, fill: float) -> Tensor:
    """The tokens of ``x`` (…, n, c) in chunks, (…, m, 64, c); ``fill`` stands behind the last."""
    return torch.nn.functional.pad(x, (0, 0, 0, -x.shape[-2] % CHUNK), value=fill).unflatten(-2, (-1, CHUNK))
