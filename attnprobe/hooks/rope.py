"""The rotary positions of a model's queries and keys, from its configuration."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

SCALED = ("linear", "llama3", "yarn")  # kinds whose angles do not depend on the length of the text


def rope_of(module: nn.Module, number: int, p: int) -> float | tuple[float, ...] | None:
    """The base θ of the angles ``θ^(-2i/p)`` by which a module turns the pairs ``(x_i, x_{i + p/2})`` at each token.

    Where the configuration scales them, the angles, (p/2,). None: the module has no RoPE, or one that turns other
    pairs, a part of the coordinates, or by angles that depend on the length of the text.

    Args:
        number: of the module's attention call, where it does not say its layer. p: the dimension of a head.
    """
    config: Any = getattr(module, "config", None)
    given = getattr(config, "rope_parameters", None) or {}
    kind = None
    if given and "rope_type" not in given:  # a RoPE for each kind of layer
        layer, kinds = getattr(module, "layer_idx", number), getattr(config, "layer_types", ())
        kind = kinds[layer] if layer < len(kinds) else None
        given = given.get(kind) or {}
    if "rope_theta" not in given or given.get("partial_rotary_factor", 1.0) != 1 or p % 2 or not _turns_halves(module):
        return None
    if given["rope_type"] == "default":
        return float(given["rope_theta"])
    if given["rope_type"] not in SCALED:
        return None
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS[given["rope_type"]](config, torch.device("cpu"), layer_type=kind)
    return tuple(scaled.double().tolist()) if len(scaled) == p // 2 else None


def _turns_halves(module: nn.Module) -> bool:
    """Whether the function of the module's file that turns pairs takes i and i + p/2, as Llama's, not 2i and 2i + 1."""
    turn = getattr(sys.modules[type(module).__module__], "rotate_half", None)
    return turn is not None and turn(torch.arange(4.0)).tolist() == [-2.0, -3.0, 0.0, 1.0]
