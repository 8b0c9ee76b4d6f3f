"""Helpers of the methods that sort tokens by a hash: options, chunk length, draws and scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import Unsupported, UsageError
from ...operators.groups import tokens
from ...qkv import QKV
from ...rng import Streams


def check_hash(method: str, target: str, *, rounds: int, buckets: int | None, **options: Any) -> None:
    """Refuse ``rounds`` and ``buckets`` out of range, and ``eps`` or ``hash`` if the method has them."""
    eps = options.get("eps", 0.0)
    if rounds < 1:
        raise UsageError(f"{method}: rounds={rounds} is not positive")
    if buckets is not None and (buckets < 2 or buckets % 2):
        raise UsageError(f"{method}: buckets={buckets} is not a positive even number")
    if buckets is not None and options.get("hash") == "smyrf":
        raise UsageError(f"{method}: buckets={buckets} belongs to hash=angular, not to hash=smyrf")
    if eps < 0:
        raise UsageError(f"{method}: eps={eps} is negative")


def chunk_length(name: str, d: int, rounds: int, n: int) -> int:
    """The chunk length ``c = ⌊d/(2 rounds)⌋``, at most n: two chunks in each round make d slots."""
    if d < 2 * rounds:
        raise Unsupported(f"{name}: d={d} leaves no chunk for rounds={rounds}; use at most {d // 2}")
    return min(d // (2 * rounds), n)


def rotations(streams: Streams, qkv: QKV, rounds: int, rows: int, width: int) -> Tensor:
    """Standard normal numbers, (h, rounds, rows, width) float64, from a separate stream for each head and round."""
    out = torch.empty(qkv.h, rounds, rows, width, dtype=torch.float64, device="cpu")
    for of_head, head in zip(out, qkv.heads, strict=True):
        for turn, numbers in enumerate(of_head):
            # More rounds then add draws and change none, so that errors of nested rounds can be compared.
            generator = streams.head(head, "rotations", str(turn))
            torch.randn(rows, width, generator=generator, dtype=torch.float64, device="cpu", out=numbers)
    return out


def block_scores(q: Tensor, k: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """``q_i · k_j`` for the queries (h, m, w) and the keys (h, m, u) of each block, as (h, m, w, u).

    The scores of an empty slot, -1, are arbitrary. q is (h, n_q, p), k (h, n_k, p). A block gathers its keys once for
    all its queries.
    """

    def in_blocks(x: Tensor, index: Tensor) -> Tensor:
        return tokens(x, index.flatten(1)).unflatten(1, index.shape[1:])

    return in_blocks(q, queries) @ in_blocks(k, keys).mT


def block_product(weights: Tensor, place: Tensor, width: int, keys: Tensor, v: Tensor) -> Tensor:
    """``Σ_j weights_ij v_j`` over the keys (h, m, u) of the block of each row i, as (h, n, p_v).

    The weights (h, n, u) of row i move to ``place_i`` (h, n) among the rows of all blocks, ``width`` rows each. Then a
    block gathers its values once for all its rows; a product with the sparse matrix would gather them for each row.
    """
    h, m, u = keys.shape
    first = m * width * torch.arange(h, device=place.device)[:, None]
    rows = weights.new_zeros(h * m * width, u).index_copy(0, (place + first).flatten(), weights.flatten(0, 1))
    values = tokens(v, keys.flatten(1)).unflatten(1, (m, u))
    product = rows.view(h, m, width, u) @ values  # (h, m, width, p_v)
    return tokens(product.flatten(1, 2), place)


def repeats(slots: Tensor) -> Tensor:
    """Whether each entry of ``slots`` (…, n, u) repeats an earlier entry of its row, (…, n, u) bool."""
    ordered, order = slots.sort(dim=-1, stable=True)
    again = torch.nn.functional.pad(ordered[..., 1:] == ordered[..., :-1], (1, 0))
    return torch.empty_like(again).scatter_(-1, order, again)
