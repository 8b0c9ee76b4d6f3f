"""Helpers of the methods that sort tokens by a hash: options, chunk length, draws and scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...errors import Unsupported, UsageError
from ...qkv import QKV
from ...rng import Streams

__all__ = ["block_scores", "chunk_length", "options_of", "repeats", "rotations"]


def options_of(name: str) -> Callable[..., None]:
    """A `validate` function for a method with ``rounds`` and ``buckets``, and optionally ``eps`` or ``hash``."""

    def check(target: str, **options: Any) -> None:
        rounds, buckets, eps = options["rounds"], options["buckets"], options.get("eps", 0.0)
        if rounds < 1:
            raise UsageError(f"{name}: rounds={rounds} is not positive")
        if buckets is not None and (buckets < 2 or buckets % 2):
            raise UsageError(f"{name}: buckets={buckets} is not a positive even number")
        if buckets is not None and options.get("hash") == "smyrf":
            raise UsageError(f"{name}: buckets={buckets} belongs to hash=angular, not to hash=smyrf")
        if eps < 0:
            raise UsageError(f"{name}: eps={eps} is negative")

    return check


def chunk_length(name: str, d: int, rounds: int, n: int) -> int:
    """The chunk length ``c = ⌊d/(2 rounds)⌋``, at most n: two chunks in each round make d slots.

    Raises:
        Unsupported: d is too small for one token a chunk.
    """
    if d < 2 * rounds:
        raise Unsupported(f"{name}: d={d} leaves no chunk for rounds={rounds}; use at most {d // 2}")
    return min(d // (2 * rounds), n)


def rotations(streams: Streams, qkv: QKV, rounds: int, rows: int, width: int) -> Tensor:
    """Standard normal numbers, (h, rounds, rows, width) float64, from a separate stream for each head and round."""
    return torch.stack(
        [
            torch.stack(
                [
                    torch.randn(
                        rows,
                        width,
                        generator=streams.head(head, "rotations", str(turn)),
                        dtype=torch.float64,
                        device="cpu",
                    )
                    for turn in range(rounds)
                ]
            )
            for head in qkv.heads
        ]
    )


def block_scores(q: Tensor, k: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """``q_i · k_j`` for the queries (m, w) and the keys (m, u) of each block, as (m, w, u).

    Scores of an empty slot, -1, are arbitrary. q (n_q, p) and k (n_k, p) belong to one head. A block gathers its keys
    once for all its queries.
    """
    return q[queries.clamp(min=0)] @ k[keys.clamp(min=0)].mT


def repeats(slots: Tensor) -> Tensor:
    """Marks the entries that repeat an earlier entry of their row, (n, u) bool."""
    ordered, order = slots.sort(dim=-1, stable=True)
    again = torch.nn.functional.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))
    return torch.empty_like(again).scatter_(-1, order, again)
