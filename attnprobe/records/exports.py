"""A plan of budgets in the formats of other software. ``budgets`` is a file of `inject --plan`, see `read_budgets`."""

from __future__ import annotations

from ..errors import UsageError
from .budgets import Budgets


def kvpress_ratios(budgets: Budgets) -> list[list[float]]:
    """The compression ratio ``1 - d/N`` of each KV head, by layer.

    A press of kvpress that masks keys head by head (``module.masked_key_indices``, as AdaKVPress) drops this share of
    each head's keys. The mean of a layer's list is the layer's ratio in its PerLayerCompressionPress.

    Raises:
        UsageError: the file is of no plan, or lacks a layer or a head.
    """
    return [[1 - share for share in of_layer] for of_layer in _shares(budgets)]


def duo_attention_heads(budgets: Budgets) -> str:
    """``full_attention_heads.tsv`` of DuoAttention: a line for each layer, a number in [0, 1] for each KV head.

    The number is the head's share of the prompt. DuoAttention keeps all keys of the heads of the largest numbers, and
    sinks and recent keys of the others; its ``config.json`` names how many.

    Raises:
        UsageError: as `kvpress_ratios`.
    """
    lines = ["\t".join(f"{share:.6f}" for share in of_layer) for of_layer in _shares(budgets)]
    return "\n".join(lines) + "\n"


def minference_pattern(budgets: Budgets) -> list[dict[str, list[object]]]:
    """The ``best_pattern`` file of MInference, for JSON: by layer and query head
    ``["vertical_and_slash", columns, diagonals, 1.0]``, with half of the head's keys for each, at least one.

    Raises:
        UsageError: as `kvpress_ratios`.
    """
    layers = len(_shares(budgets))
    heads = 1 + max(head for _, head in budgets.d)
    pattern: list[dict[str, list[object]]] = []
    for layer in range(layers):
        keys = [budgets.d[layer, head] or 1 for head in range(heads)]
        pattern.append(
            {str(head): ["vertical_and_slash", max(1, d // 2), max(1, d - d // 2), 1.0] for head, d in enumerate(keys)}
        )
    return pattern


def _shares(budgets: Budgets) -> list[list[float]]:
    """The share of the prompt that each KV head keeps, by layer."""
    prompt, kv_heads = budgets.about.get("prompt"), budgets.about.get("kv_heads")
    if not isinstance(prompt, int) or not isinstance(kv_heads, int) or prompt < 1 or kv_heads < 1:
        raise UsageError("the budgets are of no plan: a file of `attnprobe inject --plan` has a prompt and KV heads")
    layers, heads = (1 + max(place[axis] for place in budgets.d) for axis in (0, 1))
    if missing := [(layer, head) for layer in range(layers) for head in range(heads) if (layer, head) not in budgets.d]:
        raise UsageError(f"the plan lacks layer {missing[0][0]}, head {missing[0][1]}, which the format needs")
    group = heads // kv_heads
    return [
        [(budgets.d[layer, head * group] or prompt) / prompt for head in range(kv_heads)] for layer in range(layers)
    ]
