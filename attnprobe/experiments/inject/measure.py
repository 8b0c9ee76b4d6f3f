"""The run of ``attnprobe inject``: what a model loses with a method in place of its attention, cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ...errors import Unsupported, UsageError
from ...grammar.foreign import message
from ...inject import injected, replaced
from ...metrics import Outputs, local_errors, model_drift
from ...records.file import SCHEMA, RecordWriter
from ...run.folder import recorded
from ...run.inputs import InputKeeper
from ...run.limits import time_limit, with_smaller_blocks
from ...run.loop import Session
from ...run.plan import told
from ...sources import (
    AttentionCall,
    LanguageModel,
    Predictions,
    Reading,
    batch_of,
    capture,
    open_language_model,
    rows_of,
)
from ..error.measure import Outcome, said
from .plan import InjectCell, InjectPlan, InjectRequest, InjectWork, inject_batches, inject_prepared

__all__ = ["InjectRequest", "measure_drift"]


def measure_drift(
    request: InjectRequest,
    *,
    notify: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int, str], None] = lambda done, total, label: None,
) -> Session:
    """Measure every cell and leave ``manifest.json`` and ``records.jsonl`` in the run's folder.

    A cell is a method with its budget and seed in some layers of the model that reads one window of the text. Its
    record's ``metrics`` are those of `attnprobe.experiments.inject.drift`, one number each, and ``local`` holds the
    relative Frobenius output error of the method on the Q, K, V of each replaced layer of the unmodified model, per
    head. ``layers`` are replaced together, ``layer`` is the one that is replaced by itself, else null. Windows of a
    batch share its forwards. A method that the model's attention has no form for is ``skipped`` with its reason, one
    whose output is not finite ``diverged``, one that raises ``failed``; the loop goes on.

    Raises:
        UsageError, SourceError: as the parts say; nothing is left behind.
    """
    parts = inject_prepared(request, notify)
    sources = [source for source, _ in parts]
    texts = [{n: rows_of(source, n, request.windows, request.lines) for n in plan.base.n} for source, plan in parts]
    listed = [(source, plan, inject_batches(request, plan, source)) for source, plan in parts]
    total = sum(len(cells) for _, _, batches in listed for _, _, some in batches for cells in some)

    def measure(writer: RecordWriter, done: Mapping[str, dict[str, Any]], run: str) -> Outcome:
        outcome = Outcome()
        for (source, plan, batches), rows in zip(listed, texts, strict=True):
            loop = _Loop(
                request,
                plan,
                source,
                rows,
                writer,
                done,
                run,
                outcome,
                notify,
                lambda label: progress(len(outcome.records), total, label),
            )
            loop.measure(batches)
        progress(total, total, "")
        return outcome

    plans = [_planned(request, plan) for _, plan in parts]
    plan = plans[0] if len(parts) == 1 else {s.facts["weights"]: p for s, p in zip(sources, plans, strict=True)}
    outcome, path = recorded(request, "inject", plan, sources, notify, measure)
    return Session(outcome, path, sources)


def _planned(request: InjectRequest, plan: InjectPlan) -> dict[str, Any]:
    """The plan as a manifest shows it."""
    budgets = None if plan.budgets is None else [[*place, d] for place, d in sorted(plan.budgets.d.items())]
    return plan.base.told() | {"per_layer": request.per_layer, "batch": request.batch, "budgets": budgets}


@dataclass
class _Loop:
    """The batches of one source."""

    request: InjectRequest
    plan: InjectPlan
    source: Any
    rows: Mapping[int, Sequence[Sequence[int]]]
    writer: RecordWriter
    done: Mapping[str, dict[str, Any]]
    run: str
    outcome: Outcome
    notify: Callable[[str], None]
    show: Callable[[str], None]
    model: LanguageModel | None = None
    keeper: InputKeeper = field(init=False)

    def __post_init__(self) -> None:
        asked = self.request  # a line's Q, K, V and those of another dtype are not those that the other commands read
        wanted = asked.input_statistics and not asked.lines and asked.model_dtype == "float32"
        self.keeper = InputKeeper(self.writer.path.parent, self.run, wanted, asked.force)

    def measure(self, batches: Sequence[tuple[int, tuple[int, ...], list[list[InjectCell]]]]) -> None:
        for n, windows, works in batches:
            bench = None
            for cells in works:
                self.show(f"n={n} {cells[0].work.name}")
                results: Sequence[dict[str, Any] | None] = [None] * len(cells)
                if any(cell.key not in self.done for cell in cells):
                    bench = bench or self._bench(n, windows)
                    results = bench.measure(cells[0].work, self.request.cell_timeout)
                for place, (cell, result) in enumerate(zip(cells, results, strict=True)):
                    if cell.key in self.done:
                        self.outcome.records.append(self.done[cell.key])
                        self.outcome.done_before += 1
                    else:
                        self.outcome.keep({**self._head(cell, bench.lengths[place]), **result}, self.writer)

    def _bench(self, n: int, windows: Sequence[int]) -> _Bench:
        """The unmodified model's outputs and Q, K, V of a batch."""
        if self.model is None:
            self.show("reading the model")
            self.model = open_language_model(self.source, self.request.model_dtype)
            if self.model.why is not None:
                self.notify(f"no loss and no logits: {self.model.why}")
        some = [self.rows[n][window] for window in windows]
        bench = _Bench(self.model, some, windows, self.plan.base.layers, self.plan.base.seed)
        for row, window in enumerate(windows):
            for layer, call in bench.calls.items():
                with suppress(Unsupported):  # Q, K and V are not all of it
                    self.keeper.keep(self.source, n, window, layer, call.qkv(row))
        return bench

    def _head(self, cell: InjectCell, length: int) -> dict[str, Any]:
        """What a record says before anything is measured."""
        work, model, budgets = cell.work, self.model, self.plan.budgets
        own = [] if budgets is None else [d for (layer, _), d in budgets.d.items() if layer in work.layers]
        tried = [d for d in own if d is not None]
        return {
            "schema": SCHEMA,
            "key": cell.key,
            "run": self.run,
            "command": "inject",
            **told(work.request),
            "family": work.request.entry.family,
            "target": self.plan.base.target,
            "source": self.source.facts,
            "window": cell.window,
            "tokens": length,
            "layer": work.layer,
            "layers": work.layers,
            "heads": list(range(self.source.heads)),
            "n": cell.n,
            "d": work.d,
            "budgets": None
            if budgets is None
            else {
                "mean": sum(tried) / len(tried) if tried else None,
                "heads": len(own),
                "exact": len(own) - len(tried),
            },
            "repeat": work.repeat,
            "seed": work.seed,
            "lines": self.request.lines,
            "predicts": model.kind,
            "predicts_not": model.why,
            "model_dtype": model.dtype,
            "reference": False,
            "requested": True,
            "draws_hash": None,
        }


@dataclass
class _Bench:
    """A batch of rows of tokens, read by the unmodified model once."""

    model: LanguageModel
    rows: Sequence[Sequence[int]]
    windows: Sequence[int]
    layers: tuple[int, ...]
    seed: int
    reading: Reading = field(init=False)
    asked: Predictions | None = field(init=False)
    own: list[Outputs] = field(init=False)
    calls: dict[int, AttentionCall] = field(init=False)
    exact: dict[int, Tensor] = field(default_factory=dict)
    local: dict[tuple[Any, ...], list[list[float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reading = batch_of(self.rows, self.model)
        self.asked = self.model.asked(self.reading, self.windows, self.seed)
        self.own = self._outputs()
        found = capture(self.model.model, self.model.taken(self.reading.inputs), self.layers)
        self.calls = {call.number: _widened(call) for call in found.values()}

    @property
    def lengths(self) -> Sequence[int]:
        return self.reading.lengths

    def measure(self, work: InjectWork, limit: float | None) -> list[dict[str, Any]]:
        """The measured parts of a record for each window: status, reason, metrics, local, seconds."""
        try:
            with time_limit(limit):
                local = {
                    layer: with_smaller_blocks(lambda layer=layer: self._local(work, layer)) for layer in work.layers
                }
                begin = perf_counter()
                got = with_smaller_blocks(lambda: self._injected(work))
        except Unsupported as error:
            return [_result("skipped", message(error)) for _ in self.rows]
        except UsageError as error:  # Q, K or V of a later layer is not finite: what was asked for is checked before
            return [_result("diverged", message(error)) for _ in self.rows]
        except Exception as error:  # whatever a method raises is its result, and the loop goes on
            return [_result("failed", said(error)) for _ in self.rows]
        seconds = (perf_counter() - begin) / len(self.rows)
        return [
            self._measured(row, got[row], {layer: rows[row] for layer, rows in local.items()}, seconds)
            for row in range(len(self.rows))
        ]

    def _measured(self, row: int, got: Outputs, local: Mapping[int, list[float]], seconds: float) -> dict[str, Any]:
        words = None if self.asked is None else self.asked.words[row]
        found = model_drift(self.own[row], got, words, self.model.kind == "causal", self.model.encoder)
        heads = [value for values in local.values() for value in values]
        found["local_error"] = sum(heads) / len(heads)
        lost = not isfinite(found["drift"])
        status = ("diverged", "the last hidden states are not finite") if lost else ("ok", None)
        return _result(*status, {name: [value] for name, value in found.items()}, local, seconds)

    def _outputs(self) -> list[Outputs]:
        """What the model gives now for each row, padding left out."""
        hidden, logits = self.model.both(self.reading, self.asked)
        return [
            Outputs(hidden[row, :length], None if logits is None else logits[row])
            for row, length in enumerate(self.lengths)
        ]

    def _injected(self, work: InjectWork) -> list[Outputs]:
        method, options = work.request.entry, work.request.options
        with injected(self.model.model, method, work.budget, layer=work.layers, seed=work.seed, **options):
            return self._outputs()

    @torch.no_grad()
    def _local(self, work: InjectWork, layer: int) -> list[list[float]]:
        """The error of a method on a layer's own Q, K, V, for each row per head."""
        place = (work.request.name, tuple(sorted(work.request.options.items())), work.d, work.seed, layer)
        if place not in self.local:
            call = self.calls[layer]
            if layer not in self.exact:
                self.exact[layer] = call.output()
            got = replaced(call, work.request.entry, work.budget, seed=work.seed, **work.request.options)
            wanted = self.exact[layer]
            self.local[place] = [
                local_errors(wanted[row, :length], got[row, :length]).tolist()
                for row, length in enumerate(self.lengths)
            ]
        return self.local[place]


def _widened(call: AttentionCall) -> AttentionCall:
    """The call in float32 at least, as methods run."""
    wide = torch.promote_types(call.q.dtype, torch.float32)
    return replace(call, **{axis: getattr(call, axis).to(wide) for axis in "qkv"})


def _result(
    status: str,
    reason: str | None,
    metrics: Mapping[str, list[float]] | None = None,
    local: Mapping[int, list[float]] | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    told = {str(layer): values for layer, values in (local or {}).items()}
    return {"status": status, "reason": reason, "metrics": metrics or {}, "local": told, "seconds": seconds}
