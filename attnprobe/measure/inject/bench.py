"""A model and a text on which `attnprobe inject` measures methods: its own outputs, and those with a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from math import isfinite
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from ...approximation import Approximation
from ...files import JsonObject
from ...frame.rows import HEAD
from ...grammar.arithmetic import FLOAT64
from ...inject import attention_by
from ...inject.replacement import EXACT, Replacement
from ...inputs import AttentionCall
from ...inputs.hooks.capture import captured_forward
from ...methods import approximate, get
from ...metrics import ExactNorms, exact_norms, shared_matrix_errors
from ...operators.precision import full_precision
from ...reference import exact as exact_matrix
from ...rounding import Arithmetic
from ...run.cells import Result
from ...run.limits import with_smaller_blocks
from .drift import STATED, ExactOutput, Local, Outputs, added_errors, local_metrics, local_rows, model_drift
from .language import LanguageModel, Predictions, Reading, batch_of
from .plan import InjectWork


@dataclass
class Bench:
    """A batch of text windows, which the unmodified model reads once."""

    model: LanguageModel
    rows: Sequence[Sequence[int]]
    windows: Sequence[int]
    layers: tuple[int, ...]
    seed: int
    reading: Reading = field(init=False)
    predictions: Predictions | None = field(init=False)
    own: list[Outputs] = field(init=False)
    calls: dict[int, AttentionCall] = field(init=False)
    local: dict[tuple[Any, ...], list[Local]] = field(default_factory=dict)
    exact_outputs: dict[tuple[int, int, range], ExactOutput] = field(default_factory=dict)  # by layer, row and heads
    matrices: bool = False  # also the errors of matrices
    norms: dict[tuple[int, int], ExactNorms] = field(default_factory=dict)  # of the exact matrices, by layer and row
    spectral: dict[tuple[Any, ...], list[float] | None] = field(default_factory=dict)
    usual: tuple[InjectWork, list[Outputs]] | None = None  # the last work in float64, with its outputs

    @full_precision()
    def __post_init__(self) -> None:
        self.reading = batch_of(self.rows, self.model)
        self.predictions = self.model.predictions(self.reading, self.windows, self.seed)
        self.own, calls = captured_forward(self.model.model, self._outputs, self.layers, self.first, self._keys)
        self.calls = {layer: widened(self._labelled(call)) for layer, call in calls.items()}

    def _labelled(self, call: AttentionCall) -> AttentionCall:
        """The call with the numbers of its text windows, so that each window has its own draws."""
        return replace(call, windows=self.windows)

    def _attention_by(
        self, function: Callable[[AttentionCall], Tensor], layers: tuple[int, ...]
    ) -> AbstractContextManager[None]:
        """A context in which ``function`` computes the attention of ``layers``, window by window."""
        return attention_by(self.model.model, lambda call: function(self._labelled(call)), layers)

    @property
    def first(self) -> int:
        """The first token at which methods are measured."""
        return 0

    def _keys(self, number: int, module: nn.Module, keys: Tensor) -> None:
        """An attention call of the unmodified model computes with these keys."""

    @property
    def lengths(self) -> Sequence[int]:
        return self.reading.lengths

    @full_precision()
    def measure(self, work: InjectWork) -> list[Result]:
        """The results of each window."""
        if work.exact:
            return [self._result(work, row, got, {}) for row, got in enumerate(self.own)]
        # cached, because works on all layers and on each layer alone share them
        local = {layer: with_smaller_blocks(lambda layer=layer: self._local(work, layer)) for layer in work.layers}
        computed = None if work.arithmetic is None else Arithmetic.read(work.arithmetic)
        begin = perf_counter()
        got = with_smaller_blocks(lambda: self._injected(work, computed))
        seconds = (perf_counter() - begin) / len(self.rows)
        # the forward in float64 is its own reference, and that of the formats that follow
        if work.arithmetic == FLOAT64.name:
            self.usual = work, got
        usual = None if work.in_float64 is None else self._outputs_in_float64(work.in_float64)
        results = []
        for row in range(len(self.rows)):
            result = self._result(work, row, got[row], {layer: rows[row] for layer, rows in local.items()})
            if usual is not None:
                result["rows"][0] |= self._added(row, usual[row], got[row])
            results.append({**rounded_facts(computed), **result, "seconds": seconds})
        return results

    def _outputs_in_float64(self, work: InjectWork) -> list[Outputs]:
        if self.usual is None or self.usual[0] != work:
            self.usual = work, with_smaller_blocks(lambda: self._injected(work, Arithmetic.read(FLOAT64.name)))
        return self.usual[1]

    def _added(self, row: int, usual: Outputs, got: Outputs) -> dict[str, float]:
        """The distance of outputs from those with the same method in float64."""
        drift, _ = model_drift(usual, got, self._words(row), causal=False, encoder=False)
        return {f"rounding_{name}": drift[name] for name in ("drift", "kl") if name in drift}

    def _result(self, work: InjectWork, row: int, got: Outputs, local: Mapping[int, Local]) -> Result:
        return self._drift(work, row, got, local)[0]

    def _drift(
        self, work: InjectWork, row: int, got: Outputs, local: Mapping[int, Local]
    ) -> tuple[Result, dict[str, list[float]]]:
        """The result of a row, and the numbers of each predicted word."""
        words = self._words(row)
        drift, steps = model_drift(self.own[row], got, words, self.model.kind == "causal", self.model.encoder)
        drift |= local_metrics([*local.values()]) if local else {}
        rows: list[JsonObject] = [{"kind": HEAD, "head": None, **drift}]
        for layer, errors in local.items():
            rows.append({"kind": "layer", "layer": layer, **local_metrics([errors])})
            rows += local_rows(layer, replaced_heads(self.calls[layer], work), errors)
        result: Result = {"rows": rows}
        if not isfinite(drift["drift"]):
            result |= {"status": "diverged", "reason": "the last hidden states are not finite"}
        return result, steps

    def _words(self, row: int) -> Tensor | None:
        return None if self.predictions is None else self.predictions.words[row]

    def _outputs(self) -> list[Outputs]:
        hidden, logits = self.model.both(self.reading, self.predictions)
        return [
            Outputs(hidden[row, :length], None if logits is None else logits[row])
            for row, length in enumerate(self.lengths)
        ]

    def _injected(self, work: InjectWork, arithmetic: Arithmetic | None = None) -> list[Outputs]:
        method, options, budget = work.request.entry, work.request.options, work.budget
        if work.head is not None:  # all other heads keep exact attention
            [layer] = work.layers
            alone: dict[int | tuple[int, int], int | None] = {
                (layer, head): None for head in range(self.calls[layer].heads)
            }
            for head in replaced_heads(self.calls[layer], work):
                of_head = budget.get((layer, head)) if isinstance(budget, Mapping) else budget
                # None would keep exact attention; a method without a budget ignores the number
                alone[layer, head] = 1 if method.budget is None else of_head
            budget = alone
        replacement = Replacement(get(method), budget, work.seed, EXACT, {**options}, arithmetic=arithmetic)
        with self._attention_by(replacement, work.layers):
            return self._outputs()

    @torch.no_grad()
    def _local(self, work: InjectWork, layer: int) -> list[Local]:
        """The errors of a method on a layer's own Q, K, V, for each row."""
        key = (*work.method, work.d, layer, work.head, work.arithmetic)
        if key not in self.local:
            call = self.calls[layer]
            own = call.output()
            stated: dict[int, dict[str, list[float]]] = {}

            def observe(row: int, made: Approximation) -> None:
                known = stated.setdefault(row, {})
                for name in STATED:
                    known.setdefault(name, []).extend(made.diagnostics.get(name, torch.empty(0)).tolist())

            got = self._replacement(work, observe)(call)
            usual = None if work.in_float64 is None else self._replacement(work.in_float64)(call)
            heads = replaced_heads(call, work)
            found = []
            for row, length in enumerate(self.lengths):
                exact = self._exact_output(call, own, row, slice(length), heads)
                errors = exact.errors(got[row, :length, heads.start : heads.stop])
                spectral = self._spectral(work, layer, row) if self.matrices and work.arithmetic is None else None
                of_heads = None if spectral is None else [spectral[head] for head in heads]
                part = row, slice(length), slice(heads.start, heads.stop)
                added = None if usual is None else added_errors(own[part], got[part], usual[part])
                found.append(replace(errors, spectral=of_heads, stated=stated.get(row, {}), rounding=added))
            self.local[key] = found
        return self.local[key]

    def _exact_output(self, call: AttentionCall, output: Tensor, row: int, tokens: slice, heads: range) -> ExactOutput:
        """The exact output (b, n, h, p_v) of some heads and tokens of a row, which all methods share."""
        key = call.layer, row, heads
        if key not in self.exact_outputs:
            block = None if call.block is None else call.block.at(row, tokens)
            own = output[row, tokens, heads.start : heads.stop]
            self.exact_outputs[key] = ExactOutput(own, block, heads)
        return self.exact_outputs[key]

    def _replacement(
        self, work: InjectWork, observe: Callable[[int, Approximation], None] | None = None
    ) -> Replacement:
        """The method of a work on a single call."""
        arithmetic = None if work.arithmetic is None else Arithmetic.read(work.arithmetic)
        method, options = get(work.request.entry), {**work.request.options}
        return Replacement(method, work.budget, work.seed, EXACT, options, observe, arithmetic)

    def _spectral(self, work: InjectWork, layer: int, row: int) -> list[float] | None:
        """``‖B − B~‖₂ / ‖B‖₂`` of each head of a row; None if the method has no matrix there.

        The heads of a layer are measured together, once.
        """
        request, call = work.request, self.calls[layer]
        key = (*work.method, work.d, layer, row)
        if key in self.spectral:
            return self.spectral[key]
        found = None
        if call.beyond() is None and not isinstance(work.budget, Mapping):
            qkv = call.qkv(row)
            got = approximate(request.entry, qkv, work.budget, seed=work.seed, **request.options)
            if got.operator is not None:
                own = exact_matrix(qkv)
                if (layer, row) not in self.norms:
                    self.norms[layer, row] = exact_norms(own)
                [errors] = shared_matrix_errors(own, [got.operator], norms=self.norms[layer, row])
                found = errors.metrics["matrix_spectral_relative"].tolist()
        self.spectral[key] = found  # not before: a try that ran out of memory is made again
        return found


def replaced_heads(call: AttentionCall, work: InjectWork) -> range:
    """The query heads of a layer that a forward replaces: all, or those of one KV head."""
    if work.head is None:
        return range(call.heads)
    group = call.heads // call.kv_heads
    return range(work.head * group, (work.head + 1) * group)


def rounded_facts(arithmetic: Arithmetic | None) -> Result:
    """How many results a forward rounded. A forward that rounded none has failed."""
    if arithmetic is None or arithmetic.format == FLOAT64:
        return {}
    report = arithmetic.report
    parts = {"operations": report.emulated, "as_written": report.as_written}
    facts: Result = {name: sum(counts.values()) for name, counts in parts.items()}
    if report.unrounded is None:
        return facts
    return {"reason": report.unrounded, **facts, **({} if report.emulated else {"status": "failed"})}


def widened(call: AttentionCall) -> AttentionCall:
    """The call in float32 at least, as methods run."""
    wide = torch.promote_types(call.q.dtype, torch.float32)
    return replace(call, **{axis: getattr(call, axis).to(wide) for axis in "qkv"})
