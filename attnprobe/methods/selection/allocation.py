"""The distribution of keys over the heads of a layer, or over all layers.

The room is the number of keys before a segment that every head has if the distribution is uniform.
"""

from __future__ import annotations

from math import ceil
from typing import Literal

import torch
from torch import Tensor

from ...errors import UsageError
from ...linalg.order import largest_scores
from ...qkv import QKV
from ..base import ragged

Allocation = Literal["uniform", "ada", "pyramid"]
LEAST = 0.2  # the share of the room that every head has
STEEPNESS = 20  # the room divided by that of the last layer


def check_allocation(method: str, allocation: str, layers: int | None) -> None:
    """Refuse a number of layers without a pyramid, a pyramid without it, and a number below 1.

    Raises:
        UsageError: one of these.
    """
    if (allocation == "pyramid") != (layers is not None):
        raise UsageError(f"{method}: allocation=pyramid and layers, the number of the model's layers, belong together")
    if layers is not None and layers < 1:
        raise UsageError(f"{method}: layers={layers} is not positive")


def room_of_layer(room: int, layer: int | str, layers: int) -> int:
    """The room of a layer in a pyramid: it falls linearly from ``2 room - room/20`` to ``room/20``.

    The mean over layers is ``room`` up to rounding. Source: Cai et al. 2024 (PyramidKV), section 3.2, with β = 20.

    Raises:
        UsageError: a layer that is not among ``layers``.

    >>> [room_of_layer(100, layer, 6) for layer in range(6)]
    [195, 157, 119, 81, 43, 5]
    """
    if not isinstance(layer, int) or layer >= layers:
        raise UsageError(f"allocation=pyramid: layer {layer} is not among layers={layers}")
    if layers == 1:
        return room
    last = room // STEEPNESS
    first = 2 * room - last
    return first - (first - last) * layer // (layers - 1)


def allocated(scores: Tensor, room: int, qkv: QKV, sets: str, allocation: Allocation, layers: int | None) -> Tensor:
    """The selected keys of each head, those with the largest of ``scores`` (h, end), (h, u) int64; -1 is none.

    ``uniform``: every head has ``room`` keys. ``ada``: the sets of the layer have ``room`` keys on average. Each has
    its best ``0.2 room`` keys, and the others are the best of the other keys of all heads together (Feng et al. 2024,
    Ada-KV, algorithm 1, with a safeguard as in AdaKVPress of kvpress). The authors' code has another safeguard: a head
    keeps ``0.8 c + 0.2 room`` keys, rounded, where c are those of the best keys of all heads that are its own.
    ``pyramid``: every head has the room of its layer. Of equal scores, keys with smaller places come first.

    Args:
        sets: the heads that have the same set, and so the same scores, as in `subset`.
        layers: the number of layers, for ``pyramid``.

    Raises:
        UsageError: the layer of ``qkv`` is not among ``layers``.
    """
    if allocation == "pyramid":
        assert layers is not None
        room = room_of_layer(room, qkv.layer, layers)
    room = min(room, scores.shape[1])
    if allocation != "ada":
        return largest_scores(scores, room)[1]
    share = {"head": 1, "group": qkv.group, "layer": qkv.h}[sets]
    of_sets = scores[::share]
    own = largest_scores(of_sets, ceil(LEAST * room))[1]
    pooled = of_sets.scatter(1, own, float("inf")).flatten()
    best = largest_scores(pooled, len(of_sets) * room)[1]
    keeps = torch.zeros_like(pooled, dtype=torch.bool).index_fill(0, best, True).view_as(of_sets)
    return ragged(keeps).repeat_interleave(share, 0)
