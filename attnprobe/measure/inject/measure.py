"""The run of ``attnprobe inject``: the drift of a model with a method in place of its attention, cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from ...errors import SourceError, Unsupported
from ...files import JsonObject
from ...frame.rows import HEAD
from ...grammar.arithmetic import FLOAT64
from ...grammar.lists import spans
from ...machine.timings import Timings
from ...methods import METHODS
from ...run.cells import Cells, Done, Place, Result, plan_of_sources
from ...run.costs import (
    LOGITS,
    Cost,
    work_of_forward,
    work_of_inputs,
    work_of_method,
    work_of_passes,
    work_of_steps,
)
from ...run.inputs import InputKeeper
from ...run.plan import Group, MethodRequest, method_facts
from . import EXACT, LAVA, SHUFFLED, InjectRequest
from .allocation import STEPS, lava_budgets, of_query_heads, planned_budgets, shuffled_budgets, tried_budgets
from .bench import Bench
from .decoding import DecodingBench
from .language import LanguageModel, open_language_model, rows_of
from .plan import InjectCell, InjectWork, inject_batches, inject_prepared
from .record import SHAPE

EMULATED = 6  # the time of an emulated run over that of a plain one
STEP = 10  # the time of a token of a greedy step over that of a token of a long forward


class InjectCells(Cells[InjectRequest, InjectCell, Bench]):
    """Methods in place of a model's attention; a place is a batch of windows, and its layers are read together."""

    command = "inject"
    shape = SHAPE
    blank = {
        "draws_hash": None,
        "seconds": None,
        "tokens": None,
        "predicts": None,
        "predicts_not": None,
        "model_dtype": None,
    }

    def __init__(self, request: InjectRequest, notify: Callable[[str], None], timings: Timings) -> None:
        self.parts, self.notify = inject_prepared(request, notify), notify
        request = self.parts[0][1].request  # with the steps behind a prompt without the question
        more = 0 if request.plan is None else request.plan_windows
        self.texts = [
            {n: rows_of(source, n, request.windows + more, request.lines) for n in plan.base.n}
            for source, plan in self.parts
        ]
        self.tables: dict[tuple[Any, ...], Tensor] = {}  # the errors of heads by which budgets are planned
        self.model: tuple[int, LanguageModel] | None = None  # of the last source that was read
        self.batches: dict[Place, tuple[int, ...]] = {}
        every = {}
        for number, (source, plan) in enumerate(self.parts):
            for n, windows, cells in inject_batches(plan, source):
                place = Place(number, Group(n, windows[0]), None)
                self.batches[place] = windows
                every[place] = cells
        super().__init__(request, [source for source, _ in self.parts], list(every), every.__getitem__)

    def plan(self) -> dict[str, Any]:
        return plan_of_sources(self.parts)

    def heads(self, place: Place) -> Sequence[int]:
        return range(self.sources[place.source].heads)

    def head(self, place: Place, cell: InjectCell) -> dict[str, Any]:
        work, (source, plan) = cell.work, self.parts[place.source]
        both_kinds, prefix = source.local and source.global_layers, self.request.prefix_at(place.group.n)
        of_file: Any = {} if plan.budgets is None or work.exact else work.budget  # at this length of the prompt
        own = [d for (layer, _), d in of_file.items() if layer in work.layers]
        tried = [d for d in own if d is not None]
        of_budgets = {
            "budget_mean": sum(tried) / len(tried) if tried else None,
            "budget_heads": len(own),
            "budget_exact": len(own) - len(tried),
        }
        of_method = {**method_facts(work.request), "family": work.request.entry.family}
        if work.exact:
            of_method = {"method": EXACT, "options": {}, "family": "exact"}
        return {
            **of_method,
            "target": plan.base.target,
            "window": cell.window,
            "layer": work.layer,
            "alone": work.layer is not None,
            "kv_head": work.head,
            "layers": spans(work.layers),
            "d": work.d,
            **({} if plan.budgets is None or work.exact else of_budgets),
            **({"model_layers": source.layers, "global_layers": spans(source.global_layers)} if both_kinds else {}),
            "repeat": work.repeat,
            "seed": work.seed,
            "by_line": self.request.lines,
            **({} if prefix is None else {"prefix": prefix, "greedy_steps": self.request.greedy_steps}),
            **({} if work.arithmetic is None else {"format": work.arithmetic}),
            "reference": work.exact,
            "requested": not work.exact and work.arithmetic != FLOAT64.name,
        }

    def inputs(self, places: Sequence[Place], keeper: InputKeeper) -> Iterator[tuple[Place, Bench, Result]]:
        """The unmodified model's outputs and Q, K, V of a batch."""
        for place in places:
            model, (source, plan) = self._model(place.source), self.parts[place.source]
            n, windows = place.group.n, self.batches[place]
            rows = [self.texts[place.source][n][window] for window in windows]
            prefix = self.request.prefix_at(n)
            if prefix is None:
                bench = Bench(model, rows, windows, plan.base.layers, plan.base.seed, matrices=self.request.per_head)
            elif model.why is not None:
                raise SourceError(f"--phase decode: {model.why}")
            else:
                steps: dict[str, Any] = {"prefix_length": prefix, "greedy_steps": self.request.greedy_steps}
                if self.request.question is not None:
                    end = n - 1 - len(source.layout.after)
                    steps["answers"] = [slice(n - 1 - source.ending(n, window)[1], end) for window in windows]
                bench = DecodingBench(model, rows, windows, plan.base.layers, plan.base.seed, **steps)
            if not self.request.lines and self.request.model_dtype == "float32":  # as the other commands read them
                for row, window in enumerate(windows):
                    for layer, call in bench.calls.items():
                        with suppress(Unsupported):  # Q, K and V are not all of it
                            keeper.keep(source, n, window, layer, call.qkv(row))
            yield place, bench, {"predicts": model.kind, "predicts_not": model.why, "model_dtype": model.dtype}

    def _model(self, number: int) -> LanguageModel:
        """The model of a source, cached until another source is requested."""
        if self.model is None or self.model[0] != number:
            # the old model is freed before the next one is read
            self.model = None
            self.show("reading the model")
            self.model = number, open_language_model(self.sources[number], self.request.model_dtype)
            if (why := self.model[1].why) is not None:
                self.notify(f"no loss and no logits: {why}")
        return self.model[1]

    def opens_model(self, place: Place) -> bool:
        return True

    def work_of_inputs(self, place: Place) -> float:
        """A forward of the batch, the exact attention of every layer, and the statistics of their inputs."""
        n, layers = place.group.n, self.parts[place.source][1].base.layers
        heads, windows = len(self.head_numbers(place)), len(self.batches[place])
        exact = work_of_inputs(n, heads, self.measures_statistics(place, layers[0]))
        return windows * (self._forward(place) + len(layers) * exact)

    def work(self, place: Place, cell: InjectCell) -> Cost:
        """The method in each of its layers, once in the model and once for its local error, the model's forward, and
        the comparison of its logits.
        """
        n, prefix, heads = place.group.n, self.request.prefix_at(place.group.n), len(self.head_numbers(place))
        if cell.work.exact:  # its outputs are those of the inputs
            return LOGITS * (n if prefix is None else n - prefix) * self._vocabulary(place), 0.0
        work, size = work_of_method(n, cell.d, heads, cell.work.request.entry.cost)
        forward, layers = self._forward(place), len(cell.work.layers)
        if prefix is None:
            logits = LOGITS * n * self._vocabulary(place)
            passes = layers * work_of_passes(n, cell.d, heads)
            matrices = passes if self.request.per_head and cell.work.head is None else 0.0
            work *= EMULATED if cell.work.arithmetic is not None else 1
            return 2 * layers * work + forward + logits + matrices, size
        reads = cell.work.request.entry.compress is None
        work = work_of_steps(prefix, n - prefix + self.request.greedy_steps, cell.d, heads, reads)
        step = forward * (n - prefix + STEP * self.request.greedy_steps) / n
        step += LOGITS * (n - prefix) * self._vocabulary(place) / 2  # the model's own are read once
        total, plan = 2 * layers * work + step, self.request.plan
        if plan is not None and cell.work.plan == plan and cell.window == self.batches[place][0] == 0:  # makes the plan
            works = [other.work for other in self.by_place[place]]
            shared = len({other.method for other in works if other.plan == plan and other.d == cell.d})
            inputs = self.work_of_inputs(place) / len(self.batches[place]) / shared
            measured = layers * step if plan == "measured" else 0.0
            total += self.request.plan_windows * (inputs + STEPS * layers * work + measured)
        return total, size

    def _forward(self, place: Place) -> float:
        """The multiply-adds of the model's forward on one text window."""
        source = self.sources[place.source]
        hidden = source.config.get_text_config().hidden_size
        return work_of_forward(place.group.n, hidden, source.layers, self._vocabulary(place))

    def _vocabulary(self, place: Place) -> int:
        """The size of the model's vocabulary; 0 if its configuration names no model that predicts words."""
        config = self.sources[place.source].config
        return config.get_text_config().vocab_size if "LM" in "".join(config.architectures or ()) else 0

    def label(self, place: Place, cell: InjectCell) -> str:
        return f"n={place.group.n} {cell.work.name}"

    def measured(self, place: Place, inputs: Bench, done: Done) -> Iterator[tuple[InjectCell, Result]]:
        """The windows of a batch share each of its forwards."""
        for work, group in groupby(self.by_place[place], key=lambda cell: cell.work):
            cells = list(group)
            missing = [cell.key for cell in cells if cell.key not in done]
            if not missing:
                continue
            self.show(self.label(place, cells[0]))
            results: list[Result] = [{} for _ in cells]
            with self.attempt(*missing) as tried:
                work.request.check_claims()
                planned = {} if work.plan is None else self._planned(place, work, inputs)
                budget = of_query_heads(planned, inputs.calls) if planned else work.budget
                results = inputs.measure(replace(work, budget=budget))
                for result in results:
                    result["rows"] += _plan_rows(planned)
            for cell, result, length in zip(cells, results, inputs.lengths, strict=True):
                if cell.key in missing:
                    yield cell, {"tokens": length, **(result if tried.ok else tried.state)}

    def _planned(self, place: Place, work: InjectWork, inputs: Bench) -> dict[int, list[int]]:
        """The budgets of the KV heads of each layer."""
        prompt = self.request.prefix_at(place.group.n)
        assert prompt is not None and work.d is not None and self.request.plan is not None
        if work.plan in (LAVA, SHUFFLED) and self.request.batch > 1:
            raise Unsupported(f"plan={work.plan}: each prompt has its own budgets; choose --batch 1")
        if work.plan == LAVA:
            return lava_budgets({layer: inputs.calls[layer].qkv() for layer in work.layers}, prompt, work.d)
        tried = _tried(work, prompt)
        sizes = {layer: inputs.calls[layer].kv_heads for layer in work.layers}
        errors = self._errors_of_heads(place, work, prompt)
        if self.request.plan == "measured":
            weights = self._sensitivities(place, work)
            errors = errors * torch.cat([weights[layer].expand(size) for layer, size in sizes.items()])[:, None]
        budgets = planned_budgets(errors, tried, work.d * sum(sizes.values()))
        if work.plan == SHUFFLED:
            [window] = self.batches[place]
            budgets = shuffled_budgets(budgets, work.seed, window)
        dealt = iter(budgets)
        return {layer: [next(dealt) for _ in range(size)] for layer, size in sizes.items()}

    def _errors_of_heads(self, place: Place, work: InjectWork, prompt: int) -> Tensor:
        """The errors of each KV head of each layer at each number of keys, (heads, numbers): means over the windows.

        Windows are read once for all policies.
        """
        own = self._table_of(place, work, prompt)
        if own not in self.tables:
            works = [cell.work for cell in self.by_place[place]]
            alike = [other for other in works if other.plan == self.request.plan and other.d == work.d]
            planned = {self._table_of(place, other, prompt): other for other in alike}
            found: dict[tuple[Any, ...], list[Tensor]] = {key: [] for key in planned if key not in self.tables}
            for bench in self._plan_benches(place, f"plan at d={work.d}"):
                for key, errors in found.items():
                    with nullcontext() if key == own else suppress(Unsupported):  # its own cell will say why
                        tried = _tried(planned[key], prompt)
                        errors.append(bench.errors_of_heads(planned[key], tried, self.request.plan or ""))
            for key, errors in found.items():
                if len(errors) == self.request.plan_windows:
                    self.tables[key] = torch.stack(errors).mean(0)
        return self.tables[own]

    def _table_of(self, place: Place, work: InjectWork, prompt: int) -> tuple[Any, ...]:
        """The key of the errors of a policy's heads."""
        return (place.source, place.group.n, *work.method, *_tried(work, prompt))

    def _sensitivities(self, place: Place, work: InjectWork) -> dict[int, Tensor]:
        """The KL divergence over the residual error of each layer alone with d random keys: sums over the windows."""
        key = ("sensitivities", place.source, place.group.n, work.d, work.seed, work.layers)
        if key not in self.tables:
            probe = MethodRequest("random", METHODS["random"].check("softmax", {}))
            sums = torch.zeros(2, len(work.layers), dtype=torch.float64)
            for bench in self._plan_benches(place, "sensitivity of layers"):
                for number, layer in enumerate(work.layers):
                    alone = InjectWork(probe, work.d, work.d, 0, work.seed, (layer,), layer)
                    [got] = [row for row in bench.measure(alone)[0]["rows"] if row["kind"] == HEAD]
                    sums[:, number] += torch.tensor([got["kl"], got["residual_error"]])
            # a sum over windows before the quotient: windows with a small error would make it noisy
            self.tables[key] = sums[0] / sums[1].clamp(min=torch.finfo(sums.dtype).tiny)
        return dict(zip(work.layers, self.tables[key], strict=True))

    def _plan_benches(self, place: Place, what: str) -> Iterator[DecodingBench]:
        """The windows on which plans are made, one by one."""
        n, plan = place.group.n, self.parts[place.source][1]
        prefix = self.request.prefix_at(n)
        assert prefix is not None  # plans are of prompts
        rows = self.texts[place.source][n][self.request.windows :]
        for number, row in enumerate(rows):
            self.show(f"n={n} {what}: window {number + 1} of {len(rows)}")
            yield DecodingBench(
                self._model(place.source),
                [row],
                [self.request.windows + number],
                plan.base.layers,
                plan.base.seed,
                prefix_length=prefix,
                greedy_steps=0,
            )


def _plan_rows(planned: Mapping[int, Sequence[int]]) -> list[JsonObject]:
    """A row for each KV head of a plan."""
    return [
        {"kind": "plan", "layer": layer, "kv_head": head, "planned": keys}
        for layer, of_layer in planned.items()
        for head, keys in enumerate(of_layer)
    ]


def _tried(work: InjectWork, prompt: int) -> list[int]:
    """The numbers of keys at which a plan measures the heads of a policy."""
    assert work.d is not None  # plans are of policies with a budget
    return tried_budgets(prompt, work.d, work.request.entry.least)
