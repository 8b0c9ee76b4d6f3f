"""The rows of ``attnprobe inject``.

Kind ``head`` is the whole model, one row a cell; ``layer`` is a replaced layer, ``local`` a head of one, ``plan`` a KV
head with its planned keys, ``step`` a step of decoding.
"""

from __future__ import annotations

from typing import Annotated

from ...frame.metric import INJECT, metrics
from ...frame.rows import CellLine, HeadRow, Row, RowTypes, Value, with_metrics
from ...grammar.validation import Count, said


class InjectLine(CellLine):
    """A model with a method in place of exact attention, in one text window."""

    layers: Annotated[str | None, said("the layers that were replaced, as 0-3, 7")] = None
    alone: Annotated[bool | None, said("whether one layer, or one KV head of it, was replaced alone")] = None
    kv_head: Annotated[Count | None, said("with --per-head: the KV head that was replaced alone")] = None
    model_layers: Annotated[Count | None, said("the layers of a model of which some have a sliding window")] = None
    global_layers: Annotated[str | None, said("of such a model, the layers without a sliding window")] = None
    budget_mean: Annotated[Value, said("with --budgets: the mean budget of the replaced heads")] = None
    budget_heads: Annotated[Count | None, said("with --budgets: the number of these heads")] = None
    budget_exact: Annotated[Count | None, said("with --budgets: how many of them keep exact attention")] = None
    tokens: Annotated[Count | None, said("tokens that are not padding")] = None
    prefix: Annotated[Count | None, said("with --phase decode: tokens that exact attention read before the steps")] = (
        None
    )
    greedy_steps: Annotated[Count | None, said("with --phase decode: the steps of greedy decoding")] = None
    by_line: Annotated[bool | None, said("whether a window is a line of the text")] = None
    predicts: Annotated[str | None, said("the words that the model predicts: causal (the next) or masked")] = None
    predicts_not: Annotated[str | None, said("why the model predicts no words")] = None
    model_dtype: Annotated[str | None, said("the dtype of the model")] = None
    format: Annotated[str | None, said("with --arithmetic: the format in which the method runs, or float64")] = None
    arithmetic: Annotated[str | None, said("with --arithmetic: what is rounded: every, tensor-cores, autocast")] = None
    operations: Annotated[Count | None, said("with --arithmetic: results that were computed in the arithmetic")] = None
    as_written: Annotated[
        Count | None, said("with --arithmetic: results that the method's code computes in a dtype of its own")
    ] = None


class ModelRow(HeadRow):
    """The whole model: its distance from the unmodified one, and the means of local errors."""


class LayerRow(Row):
    """A replaced layer on its own exact Q, K and V: means and sums over its replaced heads."""

    layer: Annotated[Count, said("the layer")]


class LocalRow(HeadRow):
    """A head of a replaced layer, on the layer's own exact Q, K and V."""

    layer: Annotated[Count, said("the layer")]


class PlanRow(Row):
    """A KV head with planned keys."""

    layer: Annotated[Count, said("the layer")]
    kv_head: Annotated[Count, said("the KV head")]
    planned: Annotated[Count | None, said("the keys of the prompt that the plan gives it")] = None


class StepRow(Row):
    """A step of decoding: a token behind the prompt, and the word that it predicts."""

    step: Annotated[Count, said("the number of the step, from 0")]


OF_LAYERS = metrics(
    *("local_error", "row_error", "spectral_error", "residual_error", "residual_heads", "residual_sum", "lost_mass"),
    *("realised_d", "bad_rows", "guarded_rows", "rounded_rows", "rounding_local"),
)
SHAPE = RowTypes(
    {
        "head": with_metrics("InjectModel", ModelRow, INJECT),
        "layer": with_metrics("InjectLayer", LayerRow, OF_LAYERS),
        "local": with_metrics("InjectLocal", LocalRow, metrics("local_error", "residual_error", "rounding_local")),
        "plan": PlanRow,
        "step": with_metrics("InjectStep", StepRow, metrics("kl", "kl_so_far", "top1_agreement", "loss", "loss_own")),
    },
    InjectLine,
)
