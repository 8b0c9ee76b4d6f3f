"""Products with exponentials of scores, in tiles that never leave the chip. Importing this module needs Triton.

One kernel serves every product. With rows a_i, keys b_j and an operand x it gives

    ``out_i = Σ_j w_ij x_j``  with  ``w_ij = exp(a_i·b_j - row_i - column_j)``,

where hidden pairs have weight 0. A product with the transpose is the same sum with a and b exchanged. If rows are
normalised, ``row_i`` is the largest score so far, and the sums are rescaled when it grows. The kernel returns it and
``Σ_j w_ij``. Every program writes its own rows and adds in the order of the keys, so equal inputs give equal numbers.

Tiles of scores are ``ROWS x KEYS`` (see `attnprobe.operators.fused.tile_of`). The rows a_i of a program stay on the
chip. In float64 products are those of float64; in float32 they are three products in TF32 (about 2⁻²¹), and tiles are
added in float64.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]  (optional)
import triton.language as tl  # pyright: ignore[reportMissingImports]  (optional)
from torch import Tensor

from .fused import MOST_COLUMNS, Shifts, Tile, padded, tile_of

#: how products of tiles are made
PRECISION = {torch.float64: "ieee", torch.float32: "tf32x3"}


@triton.jit
def _product(
    a,  # (h, n_a, p)
    b,  # (h, n_b, p)
    x,  # (h, n_b, c)
    row,  # (h, n_a): shifts; where NORMALISED the largest scores are left there
    column,  # (h, n_b): shifts
    last,  # int64: the last key of each query
    out,  # (h, n_a, c) float64
    total,  # (h, n_a) float64: the sums of weights, where NORMALISED
    n_a,
    n_b,
    c,
    P: tl.constexpr,
    PLACES: tl.constexpr,  # of the head dimension, P and zeros
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
    NORMALISED: tl.constexpr,
    SHIFTED_ROWS: tl.constexpr,
    SHIFTED_COLUMNS: tl.constexpr,
    AT_MOST_ONE: tl.constexpr,
    HIDDEN: tl.constexpr,  # 0: nothing; 1: a has the queries; 2: b has them
):
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    real_rows = rows < n_a
    a += head * n_a * P
    b += head * n_b * P
    x += head * n_b * c
    dtype = a.dtype.element_ty
    sums = tl.zeros([ROWS, COLUMNS], tl.float64)
    weight_sums = tl.zeros([ROWS], tl.float64)
    largest = tl.full([ROWS], float("-inf"), dtype)
    shift = tl.zeros([ROWS], dtype)
    if SHIFTED_ROWS:
        shift = tl.load(row + head * n_a + rows, mask=real_rows, other=0.0)
    end = n_b
    seen = tl.zeros([ROWS], tl.int64)
    if HIDDEN == 1:
        seen = tl.load(last + rows, mask=real_rows, other=0)
        end = tl.minimum(tl.max(seen + 1, 0), n_b).to(tl.int32)
    places = tl.arange(0, PLACES)
    real = places < P
    left = tl.load(a + rows[:, None] * P + places[None, :], mask=real_rows[:, None] & real[None, :], other=0.0)
    for first in range(0, end, KEYS):
        keys = first + tl.arange(0, KEYS)
        real_keys = keys < n_b
        right = tl.load(b + keys[None, :] * P + places[:, None], mask=real_keys[None, :] & real[:, None], other=0.0)
        scores = tl.dot(left, right, input_precision=PRECISION, out_dtype=dtype)
        shown = real_keys[None, :] & (rows >= 0)[:, None]
        if HIDDEN == 1:
            shown = shown & (keys[None, :] <= seen[:, None])
        if HIDDEN == 2:
            ends = tl.load(last + keys, mask=real_keys, other=-1)
            shown = shown & (rows[:, None] <= ends[None, :])
        if NORMALISED:
            scores = tl.where(shown, scores, float("-inf"))
            larger = tl.maximum(largest, tl.max(scores, 1))
            base = tl.where(larger == float("-inf"), 0.0, larger)  # a row whose scores are all -inf so far
            rescale = tl.exp(largest - base)
            weights = tl.exp(scores - base[:, None])
            weight_sums = weight_sums * rescale + tl.sum(weights, 1)
            sums = sums * rescale[:, None]
            largest = larger
        else:
            exponents = scores - shift[:, None]
            if SHIFTED_COLUMNS:
                of_keys = tl.load(column + head * n_b + keys, mask=real_keys, other=0.0)
                exponents = exponents - of_keys[None, :]
            if AT_MOST_ONE:
                exponents = tl.minimum(exponents, 0.0)
            weights = tl.exp(tl.where(shown, exponents, float("-inf")))
        values = tl.load(
            x + keys[:, None] * c + columns[None, :], mask=real_keys[:, None] & (columns < c)[None, :], other=0.0
        )
        sums += tl.dot(weights, values, input_precision=PRECISION, out_dtype=dtype).to(tl.float64)
    places_out = head * n_a * c + rows[:, None] * c + columns[None, :]
    tl.store(out + places_out, sums, mask=real_rows[:, None] & (columns < c)[None, :])
    if NORMALISED:
        tl.store(row + head * n_a + rows, largest, mask=real_rows)
        tl.store(total + head * n_a + rows, weight_sums, mask=real_rows)


def normalised_product(q: Tensor, k: Tensor, x: Tensor, last: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """``softmax(Q Kᵀ) X`` (h, n_q, c) float64, and the largest score and ``Σ_j exp(S_ij - largest)`` of each query.

    Args:
        q: (h, n_q, p), the scale in it. k: (h, n_k, p). x: (h, n_k, c). All float64, or all float32.
        last: the last key that each query sees, (n_q,) int64; None is all keys.
    """
    h, n_q, _ = q.shape
    largest = q.new_empty(h, n_q)
    total = torch.empty(h, n_q, dtype=torch.float64, device=q.device)
    out = _launched(q, k, x, Shifts(largest, None), last, total, hidden=1)
    return out / total[..., None], largest, total


def shifted_product(
    a: Tensor, b: Tensor, x: Tensor, shifts: Shifts, last: Tensor | None, *, transposed: bool
) -> Tensor:
    """``Σ_j exp(a_i·b_j - row_i - column_j) x_j``, (h, n_a, c) float64.

    Args:
        a: (h, n_a, p). b: (h, n_b, p). x: (h, n_b, c). shifts: of the rows a and the keys b.
        last: the last key that each query sees; the queries are a, or b where it is ``transposed``.
    """
    return _launched(a, b, x, shifts, last, None, hidden=2 if transposed else 1)


def settings(
    tile: Tile, dtype: torch.dtype, p: int, columns: int, shifts: Shifts, *, normalised: bool, hidden: int
) -> dict[str, Any]:
    """The constants for which a kernel is compiled: the sizes of its tiles, and the parts that it has."""
    return {
        "P": p,
        "PLACES": padded(p),
        "COLUMNS": padded(columns),
        "ROWS": tile.rows,
        "KEYS": tile.keys,
        "PRECISION": PRECISION[dtype],
        "NORMALISED": normalised,
        "SHIFTED_ROWS": not normalised and shifts.rows is not None,
        "SHIFTED_COLUMNS": shifts.columns is not None,
        "AT_MOST_ONE": shifts.at_most_one,
        "HIDDEN": hidden,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def _launched(
    a: Tensor, b: Tensor, x: Tensor, shifts: Shifts, last: Tensor | None, total: Tensor | None, *, hidden: int
) -> Tensor:
    """The sums of all columns, `MOST_COLUMNS` at a time."""
    (h, n_a, p), n_b, c = a.shape, b.shape[1], x.shape[2]
    a, b = a.contiguous(), b.contiguous()
    row, column = (None if one is None else one.to(a.dtype).contiguous() for one in (shifts.rows, shifts.columns))
    hidden = 0 if last is None else hidden
    tile = tile_of(a.dtype, p, a.device)
    assert tile is not None  # `is_fused` has asked
    kernel: Any = _product
    launch = kernel[(triton.cdiv(n_a, tile.rows), h)]
    out = torch.empty(h, n_a, c, dtype=torch.float64, device=a.device)
    for first in range(0, c, MOST_COLUMNS):
        columns = x[:, :, first : first + MOST_COLUMNS].contiguous()
        part = torch.empty(h, n_a, columns.shape[2], dtype=torch.float64, device=a.device)
        launch(
            a,
            b,
            columns,
            a if row is None else row,  # what a kernel does not read is any pointer
            a if column is None else column,
            a if last is None else last,
            part,
            part if total is None else total,
            n_a,
            n_b,
            columns.shape[2],
            **settings(tile, a.dtype, p, columns.shape[2], shifts, normalised=total is not None, hidden=hidden),
        )
        out[:, :, first : first + MOST_COLUMNS] = part
    return out
