"""From the arguments that transformers passes to an attention function to an `AttentionCall`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .call import AttentionCall
from .interface import is_cross
from .masks import Pattern, pattern_of, split_mask


def call_of(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    extras: Mapping[str, Any],
    where: tuple[str, int, int],
    masks: dict[tuple[int, bool], tuple[Any, ...]] | None = None,
) -> AttentionCall:
    """The attention call that transformers hands over, not yet verified. ``where`` is its module, call and number.

    ``masks`` caches the analysis of a mask, because models pass one tensor to all layers.
    """
    path, call, number = where
    visible, bias, pattern, cross = _mask_of(module, path, query, key, mask, {} if masks is None else masks)
    position = extras.get("position_bias")
    if position is not None:
        bias = position if bias is None else bias + position
        bias = bias if bool((bias != 0).any()) else None
    sinks = extras.get("s_aux")
    sinks = getattr(module, "sinks", None) if sinks is None else sinks
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    return AttentionCall(
        path,
        call,
        number,
        type(module).__name__,
        query,
        key,
        value,
        scale,
        visible,
        bias,
        extras.get("softcap"),
        sinks,
        pattern,
        cross,
        extras.get("sliding_window"),
    )


def _mask_of(
    module: torch.nn.Module,
    path: str,
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    masks: dict[tuple[int, bool], tuple[Any, ...]],
) -> tuple[Tensor | None, Tensor | None, Pattern, bool]:
    """The visible keys and the bias of a mask, its pattern, and whether the call is cross attention."""
    n_q, n_k = query.shape[2], key.shape[2]
    stated = is_cross(module, path, n_q, n_k, causal=True)  # as far as the module itself says
    if (id(mask), stated) not in masks:
        visible, bias = split_mask(mask, (query.shape[0], n_q, n_k))
        masks[id(mask), stated] = (visible, bias, pattern_of(visible, stated), mask)  # a reference keeps the id unique
    visible, bias, pattern, _ = masks[id(mask), stated]
    cross = is_cross(module, path, n_q, n_k, pattern.causal or pattern.band)
    return visible, bias, pattern, cross
