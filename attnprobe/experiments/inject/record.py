"""The records of ``attnprobe inject``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from ...records.file import strict_json
from ...records.shapes import Count, Number, PerHead, Record, Shape, lists_of, said, unequal


class Budgets(TypedDict):
    """A summary of the budgets of heads."""

    mean: Number | None
    heads: Count
    exact: Count


class InjectRecord(Record):
    """The drift of a model with a method in place of exact attention, in one text window."""

    method: Annotated[str, said("the method")]
    layer: Annotated[Count | None, said("the layer that was replaced alone; null if several were replaced together")]
    kv_head: NotRequired[Annotated[Count, said("the KV head of the layer that was replaced alone")]]
    layers: Annotated[list[Count], said("the layers that were replaced", min_length=1)]
    model_layers: NotRequired[
        Annotated[Count, said("the number of layers of a model of which some have a sliding window")]
    ]
    global_layers: NotRequired[Annotated[list[Count], said("of such a model, the layers without a sliding window")]]
    requested: Annotated[bool, said("false for rows that attnprobe added")]
    metrics: Annotated[
        dict[str, Annotated[PerHead, Field(max_length=1)]],
        said("drift, loss and others of the whole model by name, in a list of one"),
    ]
    local: Annotated[dict[str, PerHead], said("by layer, the output error on that layer's Q, K and V, for each head")]
    residual: NotRequired[
        Annotated[
            dict[str, PerHead] | None,
            said("by layer, the residual error of each head alone; absent where no block was verified"),
        ]
    ]
    planned: NotRequired[Annotated[dict[str, list[Count]], said("with --plan: by layer, the keys of each KV head")]]
    budgets: NotRequired[
        Annotated[Budgets | None, said("with --budgets: mean budget, number of heads, number of exact heads")]
    ]
    tokens: NotRequired[Annotated[Count | None, said("number of tokens that are not padding")]]
    prefix: NotRequired[
        Annotated[Count | None, said("with --phase decode: tokens that exact attention read before the steps")]
    ]
    greedy_steps: NotRequired[Annotated[Count | None, said("with --phase decode: the steps of greedy decoding")]]
    steps: NotRequired[
        Annotated[
            dict[str, list[Number | None]] | None,
            said("with --phase decode: by name, kl, top1_agreement, loss and loss_own of each step"),
        ]
    ]
    lines: NotRequired[Annotated[bool, said("whether a window is a line of the text")]]
    predicts: NotRequired[Annotated[str | None, said("the words that the model predicts: causal (the next) or masked")]]
    predicts_not: NotRequired[Annotated[str | None, said("the reason why the model predicts no words")]]
    model_dtype: NotRequired[Annotated[str | None, said("the dtype of the model")]]


def _problems(record: InjectRecord) -> Iterator[str]:
    yield from unequal("local.", record["local"], record["heads"])
    yield from unequal("residual.", record.get("residual") or {}, record["heads"])


def _rows(record: InjectRecord) -> Iterator[dict[str, Any]]:
    shared: dict[str, Any] = {name: values[0] if values else None for name, values in record["metrics"].items()}
    shared |= {
        "layers": record["layers"],
        **lists_of(record, ["global_layers"]),
        **({"kv_head": record["kv_head"]} if "kv_head" in record else {}),
        "steps": record.get("steps"),
        "budgets": record.get("budgets"),
    }
    if not record.get("greedy_steps"):
        shared.pop("greedy_match", None)  # older records without greedy steps have 0
    residual = record.get("residual") or {}
    for layer, errors in record["local"].items():
        of_heads = residual.get(layer) or [None] * len(errors)
        for head, error, of_head in zip(record["heads"], errors, of_heads, strict=True):
            yield shared | {"head": head, "local_layer": layer, "local": error, "residual": of_head}
    if not record["local"]:
        yield shared


def _tidied(row: dict[str, Any]) -> dict[str, Any]:
    """Lists of layers as JSON, as in CSV, and a column for each step of decoding."""
    steps = row.get("steps") or {}
    return {
        **{name: value for name, value in row.items() if name != "steps"},
        **{name: strict_json(row[name]) for name in ("layers", "global_layers") if name in row},
        **{f"steps[{name}][{step}]": one for name, values in steps.items() for step, one in enumerate(values)},
    }


COLUMNS = {
    "layer": "the layer that was replaced alone; empty if several were replaced together",
    "kv_head": "the KV head that was replaced alone, with --per-head",
    "layers": "the layers that were replaced, a list as JSON",
    "global_layers": "the layers without a sliding window, of a model that has both kinds, a list as JSON",
    "METRIC": "each metric of the whole model, by its name, the same in all rows of a cell",
    "steps[METRIC][STEP]": "the metric at a step of decoding, counted from 0",
    "budgets[NAME]": "a fact of the budgets of heads",
    "local_layer": "a layer that was replaced; a cell has a row for each such layer and head",
    "local": "the output error of the head on that layer's own Q, K, V",
    "residual": "the residual error of the head on the same inputs",
}
SHAPE = Shape(InjectRecord, _problems, _rows, COLUMNS, _tidied)
