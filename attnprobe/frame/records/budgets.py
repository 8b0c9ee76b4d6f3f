"""A file of budgets by head: `attnprobe budget` writes it, `attnprobe inject --budgets` reads it.

Beside ``d``, an entry of ``budgets`` has ``no_counterexample``, which is not read. A plan of budgets, from `attnprobe
inject --plan`, can also be written in formats of other software.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from ...errors import UsageError
from ...files import MIB, Fields, path_of, read_json, reading
from ...grammar.validation import Budget, Count, Facts
from .shapes import Shape


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
    """
    lines = ["\t".join(f"{share:.6f}" for share in of_layer) for of_layer in _shares(budgets)]
    return "\n".join(lines) + "\n"


def minference_pattern(budgets: Budgets) -> list[dict[str, list[object]]]:
    """The ``best_pattern`` file of MInference, for JSON: an entry for each layer and query head.

    An entry is ``["vertical_and_slash", columns, diagonals, 1.0]``. Columns and diagonals each have half of the head's
    keys, at least one.
    """
    layers = len(_shares(budgets))
    heads = 1 + max(head for _, head in budgets.d)
    pattern: list[dict[str, list[object]]] = []
    for layer in range(layers):
        keys = [budgets.d[layer, head] or budgets.about["prompt"] for head in range(heads)]
        # MInference chooses columns and diagonals separately, so that a head's keys are divided between both
        pattern.append(
            {str(head): ["vertical_and_slash", max(1, d // 2), max(1, d - d // 2), 1.0] for head, d in enumerate(keys)}
        )
    return pattern


def _shares(budgets: Budgets) -> list[list[float]]:
    """The share of the prompt that each KV head keeps, by layer."""
    prompt, kv_heads = budgets.about.get("prompt"), budgets.about.get("kv_heads")
    # A ratio needs the prompt that the keys are a share of, which only a plan states.
    if not isinstance(prompt, int) or not isinstance(kv_heads, int) or prompt < 1 or kv_heads < 1:
        raise UsageError(
            "the budgets are not of a plan: use a file of `attnprobe inject --plan`, with prompt and KV heads"
        )
    layers, heads = 1 + max(layer for layer, _ in budgets.d), 1 + max(head for _, head in budgets.d)
    if missing := [(layer, head) for layer in range(layers) for head in range(heads) if (layer, head) not in budgets.d]:
        raise UsageError(f"the plan lacks layer {missing[0][0]}, head {missing[0][1]}, which the format needs")
    group = heads // kv_heads
    return [
        [(budgets.d[layer, head * group] or prompt) / prompt for head in range(kv_heads)] for layer in range(layers)
    ]


SCHEMA = 1
LARGEST = 64 * MIB


@dataclass(frozen=True)
class Budgets:
    """Budgets of one method.

    Attributes:
        method, options: the method of the budgets.
        d: by (layer, head); None keeps exact attention, because every budget that was tried is too small.
        about: other keys of the file, such as ``metric``, ``epsilon``, ``n``.
    """

    method: str
    options: Fields
    d: Mapping[tuple[int, int], int | None]
    about: Fields = field(default_factory=dict)

    @property
    def item(self) -> str:
        """The method as ``--method`` takes it.

        >>> Budgets("skyformer", {"sampler": "rls", "share_heads": True}, {}).item
        'skyformer:sampler=rls,share_heads=true'
        """

        def word(value: object) -> str:
            return str(value).lower() if value is None or isinstance(value, bool) else str(value)

        options = ",".join(f"{name}={word(value)}" for name, value in self.options.items())
        return f"{self.method}:{options}" if options else self.method


class Entry(TypedDict):
    """The budget of a head."""

    layer: Count
    head: Count
    d: Budget | None


class Contents(TypedDict):
    """The checked fields of a file of budgets; it has others."""

    schema: NotRequired[Annotated[int, Field(ge=1, le=SCHEMA)]]
    method: Annotated[str, Field(min_length=1)]
    options: NotRequired[Facts | None]
    budgets: Annotated[list[Entry], Field(min_length=1)]


def _repeated(contents: Contents) -> Iterator[str]:
    seen: set[tuple[int, int]] = set()
    for number, entry in enumerate(contents["budgets"]):
        layer, head = entry["layer"], entry["head"]
        if (layer, head) in seen:
            yield f"field budgets[{number}]: layer {layer}, head {head} is listed twice"
        seen.add((layer, head))


CONTENTS = Shape(Contents, _repeated)


def read_budgets(path: str | Path) -> Budgets:
    """Read a file of budgets: ``{"schema": 1, "method": …, "options": {…}, "budgets": [{"layer", "head", "d"}, …]}``.

    ``about`` has all other keys.
    """
    with reading(path):
        contents = read_json(path_of(path), LARGEST)
    if (problem := CONTENTS.problem(contents)) is not None:
        raise UsageError(f"{path}: {problem}")
    d = {(entry["layer"], entry["head"]): entry["d"] for entry in contents["budgets"]}
    about = {name: value for name, value in contents.items() if name not in CONTENTS.fields}
    return Budgets(contents["method"], contents.get("options") or {}, d, about)
