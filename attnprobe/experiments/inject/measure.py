"""The run of ``attnprobe inject``: the drift of a model with a method in place of its attention, cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import isfinite
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...errors import SourceError, Unsupported
from ...hooks.capture import captured_forward
from ...inject import attention_by, injected
from ...methods import METHODS, approximate
from ...metrics import ExactNorms, exact_norms, shared_matrix_errors
from ...operators import full_precision
from ...qkv import QKV
from ...reference import exact as exact_matrix
from ...replacement import replaced
from ...run.cells import Cells, Done, Place, Result, plan_of_sources
from ...run.costs import Cost, work_of_forward, work_of_inputs, work_of_logits, work_of_method, work_of_passes
from ...run.inputs import InputKeeper
from ...run.limits import with_smaller_blocks
from ...run.plan import Group, MethodRequest, method_facts
from ...sources import AttentionCall
from ...timings import Timings
from . import LAVA, SHUFFLED, InjectRequest
from .allocation import (
    STEPS,
    head_errors,
    lava_budgets,
    of_query_heads,
    planned_budgets,
    shuffled_budgets,
    tried_budgets,
)
from .decoding import Prefix
from .drift import Local, Outputs, answer_metrics, local_errors, local_metrics, model_drift
from .language import LanguageModel, Predictions, Reading, batch_of, open_language_model, rows_of
from .plan import InjectCell, InjectWork, inject_batches, inject_prepared, why_not_decoded
from .policy import PromptPolicy, Steps, evicts, prompt_text
from .record import SHAPE

if TYPE_CHECKING:
    from transformers import Cache

STEP = 10  # the time of a token of a greedy step over that of a token of a long forward
FEW = 1.5  # that of a token of the forward of all other steps


class InjectCells(Cells):
    """Methods in place of a model's attention; a place is a batch of windows, and its layers are read together."""

    command = "inject"
    shape = SHAPE
    blank = {
        "metrics": {},
        "local": {},
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
            for n, windows, works in inject_batches(request, plan, source):
                place = Place(number, Group(n, windows[0]), None)
                self.batches[place] = windows
                every[place] = [cell for cells in works for cell in cells]
        super().__init__(request, [source for source, _ in self.parts], list(every), every.__getitem__)

    def plan(self) -> dict[str, Any]:
        return plan_of_sources(self.parts)

    def heads(self, place: Place) -> Sequence[int]:
        return range(self.sources[place.source].heads)

    def head(self, place: Place, cell: InjectCell) -> dict[str, Any]:
        work, (_, plan) = cell.work, self.parts[place.source]
        own = [] if plan.budgets is None else [d for (layer, _), d in plan.budgets.d.items() if layer in work.layers]
        tried = [d for d in own if d is not None]
        budgets = {
            "mean": sum(tried) / len(tried) if tried else None,
            "heads": len(own),
            "exact": len(own) - len(tried),
        }
        return {
            **method_facts(work.request),
            "family": work.request.entry.family,
            "target": plan.base.target,
            "window": cell.window,
            "layer": work.layer,
            **({} if work.head is None else {"kv_head": work.head}),
            "layers": work.layers,
            "d": work.d,
            "budgets": None if plan.budgets is None else budgets,
            **self._kinds(place),
            "repeat": work.repeat,
            "seed": work.seed,
            "lines": self.request.lines,
            **self._decoding(place),
            "reference": False,
            "requested": True,
        }

    def _kinds(self, place: Place) -> dict[str, Any]:
        """The fields of a record of a model with local and global layers."""
        source = self.sources[place.source]
        if not source.local or not source.global_layers:
            return {}
        return {"model_layers": source.layers, "global_layers": source.global_layers}

    def _decoding(self, place: Place) -> dict[str, Any]:
        """The fields of a record about the steps of decoding."""
        prefix = self.request.prefix_at(place.group.n)
        return {} if prefix is None else {"prefix": prefix, "greedy_steps": self.request.greedy_steps}

    def inputs(self, places: Sequence[Place], keeper: InputKeeper) -> Iterator[tuple[Place, _Bench, Result]]:
        """The unmodified model's outputs and Q, K, V of a batch."""
        for place in places:
            model, (source, plan) = self._model(place.source), self.parts[place.source]
            n, windows = place.group.n, self.batches[place]
            rows = [self.texts[place.source][n][window] for window in windows]
            prefix = self.request.prefix_at(n)
            if prefix is None:
                bench = _Bench(model, rows, windows, plan.base.layers, plan.base.seed, matrices=self.request.per_head)
            elif model.why is not None:
                raise SourceError(f"--phase decode: {model.why}")
            else:
                steps: dict[str, Any] = {"prefix_length": prefix, "greedy_steps": self.request.greedy_steps}
                if self.request.question is not None:
                    end = n - 1 - len(source.layout.after)
                    steps["answers"] = [slice(n - 1 - source.ending(n, window)[1], end) for window in windows]
                bench = _Decoding(model, rows, windows, plan.base.layers, plan.base.seed, **steps)
            if not self.request.lines and self.request.model_dtype == "float32":  # as the other commands read them
                for row, window in enumerate(windows):
                    for layer, call in bench.calls.items():
                        with suppress(Unsupported):  # Q, K and V are not all of it
                            keeper.keep(source, n, window, layer, call.qkv(row))
            yield place, bench, {"predicts": model.kind, "predicts_not": model.why, "model_dtype": model.dtype}

    def _model(self, number: int) -> LanguageModel:
        """The model of a source, cached until another source is requested."""
        if self.model is None or self.model[0] != number:
            self.model = None
            self.show("reading the model")
            self.model = number, open_language_model(self.sources[number], self.request.model_dtype)
            if (why := self.model[1].why) is not None:
                self.notify(f"no loss and no logits: {why}")
        return self.model[1]

    def work_of_inputs(self, place: Place) -> float:
        """A forward of the batch, the exact attention of every layer, and the statistics of their inputs."""
        n, layers = place.group.n, self.parts[place.source][1].base.layers
        heads, windows = len(self.head_numbers(place)), len(self.batches[place])
        exact = work_of_inputs(n, heads, self.request.input_statistics)
        return windows * (self._forward(place) + len(layers) * exact)

    def work(self, place: Place, cell: InjectCell) -> Cost:
        """The method in each of its layers, once in the model and once for its local error, the model's forward, and
        the comparison of its logits.
        """
        n, prefix = place.group.n, self.request.prefix_at(place.group.n)
        work, size = work_of_method(n, cell.d, len(self.head_numbers(place)))
        forward, layers = self._forward(place), len(cell.work.layers)
        if prefix is None:
            logits = work_of_logits(n, self._vocabulary(place))
            passes = layers * work_of_passes(n, cell.d, len(self.head_numbers(place)))
            matrices = passes if self.request.per_head and cell.work.head is None else 0.0
            return 2 * layers * work + forward + logits + matrices, size
        steps = n - prefix + self.request.greedy_steps
        step = forward * (FEW * (n - prefix) + STEP * self.request.greedy_steps) / n
        step += work_of_logits(n - prefix, self._vocabulary(place))
        total, plan = layers * work * (1 + steps / n) + step, self.request.plan
        if plan is not None and cell.work.plan == plan and cell.window == self.batches[place][0] == 0:  # makes the plan
            measured = layers * step if plan == "measured" else 0.0
            inputs = self.work_of_inputs(place) / len(self.batches[place])
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

    def measured(self, place: Place, inputs: _Bench, done: Done) -> Iterator[tuple[InjectCell, Result]]:
        """The windows of a batch share each of its forwards."""
        for work, group in groupby(self.by_place[place], key=lambda cell: cell.work):
            cells = list(group)
            missing = [cell.key for cell in cells if cell.key not in done]
            if not missing:
                continue
            self.show(self.label(place, cells[0]))
            results: list[Result] = [{} for _ in cells]
            with self.attempt(*missing) as tried:
                planned = {} if work.plan is None else self._planned(place, work, inputs)
                given = {"planned": {str(layer): budgets for layer, budgets in planned.items()}} if planned else {}
                budget = of_query_heads(planned, inputs.calls) if planned else work.budget
                results = [result | given for result in inputs.measure(replace(work, budget=budget))]
            for cell, result, length in zip(cells, results, inputs.lengths, strict=True):
                if cell.key in missing:
                    yield cell, {"tokens": length, **(result if tried.ok else tried.state)}

    def _planned(self, place: Place, work: InjectWork, inputs: _Bench) -> dict[int, list[int]]:
        """The budgets of the KV heads of each layer."""
        prompt = self.request.prefix_at(place.group.n)
        assert prompt is not None and work.d is not None and self.request.plan is not None
        if work.plan == LAVA:
            if self.request.batch > 1:
                raise Unsupported("plan=lava: each prompt has its own budgets; choose --batch 1")
            return lava_budgets({layer: inputs.calls[layer].qkv() for layer in work.layers}, prompt, work.d)
        tried = tried_budgets(prompt, work.d)
        sizes = {layer: inputs.calls[layer].kv_heads for layer in work.layers}
        errors = self._errors_of_heads(place, work, tried)
        if self.request.plan == "measured":
            weights = self._sensitivities(place, work)
            errors = errors * torch.cat([weights[layer].expand(size) for layer, size in sizes.items()])[:, None]
        budgets = planned_budgets(errors, tried, work.d * sum(sizes.values()))
        if work.plan == SHUFFLED:
            budgets = shuffled_budgets(budgets, work.seed)
        dealt = iter(budgets)
        return {layer: [next(dealt) for _ in range(size)] for layer, size in sizes.items()}

    def _errors_of_heads(self, place: Place, work: InjectWork, tried: Sequence[int]) -> Tensor:
        """The errors of each KV head of each layer at each number of keys, (heads, numbers): means over the windows.

        Windows are read once for all policies.
        """
        own = self._table_of(place, work, tried)
        if own not in self.tables:
            works = [cell.work for cell in self.by_place[place] if cell.work.d == work.d]
            planned = {self._table_of(place, one, tried): one for one in works if one.plan == self.request.plan}
            found: dict[tuple[Any, ...], list[Tensor]] = {key: [] for key in planned if key not in self.tables}
            for bench in self._plan_benches(place, f"plan at d={work.d}"):
                for key, errors in found.items():
                    with nullcontext() if key == own else suppress(Unsupported):  # its own cell will say why
                        errors.append(bench.errors_of_heads(planned[key], tried, self.request.plan or ""))
            for key, errors in found.items():
                if len(errors) == self.request.plan_windows:
                    self.tables[key] = torch.stack(errors).mean(0)
        return self.tables[own]

    def _table_of(self, place: Place, work: InjectWork, tried: Sequence[int]) -> tuple[Any, ...]:
        """The key of the errors of a policy's heads."""
        return (place.source, place.group.n, work.request.name, repr(sorted(work.options.items())), work.seed, *tried)

    def _sensitivities(self, place: Place, work: InjectWork) -> dict[int, Tensor]:
        """The KL divergence over the residual error of each layer alone with d random keys: sums over the windows."""
        key = ("sensitivities", place.source, place.group.n, work.d, work.seed, work.layers)
        if key not in self.tables:
            probe = MethodRequest("random", METHODS["random"].check("softmax", {}))
            sums = torch.zeros(2, len(work.layers), dtype=torch.float64)
            for bench in self._plan_benches(place, "sensitivity of layers"):
                for number, layer in enumerate(work.layers):
                    alone = InjectWork(probe, work.d, work.d, 0, work.seed, (layer,), layer)
                    got = bench.measure(alone)[0]["metrics"]
                    sums[:, number] += torch.tensor([got["kl"][0], got["residual_error"][0]])
            self.tables[key] = sums[0] / sums[1].clamp(min=torch.finfo(sums.dtype).tiny)
        return dict(zip(work.layers, self.tables[key], strict=True))

    def _plan_benches(self, place: Place, what: str) -> Iterator[_Decoding]:
        """The windows on which plans are made, one by one."""
        n, plan = place.group.n, self.parts[place.source][1]
        rows = self.texts[place.source][n][self.request.windows :]
        for number, row in enumerate(rows):
            self.show(f"n={n} {what}: window {number + 1} of {len(rows)}")
            yield _Decoding(
                self._model(place.source),
                [row],
                [self.request.windows + number],
                plan.base.layers,
                plan.base.seed,
                prefix_length=self.request.prefix_at(n),
                greedy_steps=0,
            )


@dataclass
class _Bench:
    """A batch of rows of tokens, read by the unmodified model once."""

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
    matrices: bool = False  # also the errors of matrices
    norms: dict[tuple[int, int], ExactNorms] = field(default_factory=dict)  # of the exact matrices, by layer and row
    spectral: dict[tuple[Any, ...], list[float] | None] = field(default_factory=dict)

    @full_precision()
    def __post_init__(self) -> None:
        self.reading = batch_of(self.rows, self.model)
        self.predictions = self.model.predictions(self.reading, self.windows, self.seed)
        self.own, calls = captured_forward(self.model.model, self._outputs, self.layers)
        self.calls = {number: _widened(call) for number, call in calls.items()}

    @property
    def lengths(self) -> Sequence[int]:
        return self.reading.lengths

    @full_precision()
    def measure(self, work: InjectWork) -> list[Result]:
        """The results of each window."""
        local = {layer: with_smaller_blocks(lambda layer=layer: self._local(work, layer)) for layer in work.layers}
        begin = perf_counter()
        got = with_smaller_blocks(lambda: self._injected(work))
        seconds = (perf_counter() - begin) / len(self.rows)
        return [
            {
                **self._result(work, row, got[row], {layer: rows[row] for layer, rows in local.items()}),
                "seconds": seconds,
            }
            for row in range(len(self.rows))
        ]

    def _result(self, work: InjectWork, row: int, got: Outputs, local: Mapping[int, Local]) -> Result:
        return self._drift(work, row, got, local)[0]

    def _drift(
        self, work: InjectWork, row: int, got: Outputs, local: Mapping[int, Local]
    ) -> tuple[Result, dict[str, list[float]]]:
        """The result of a row, and the numbers of each predicted word."""
        words = self._words(row)
        drift, steps = model_drift(self.own[row], got, words, self.model.kind == "causal", self.model.encoder)
        drift |= local_metrics([*local.values()])
        result: Result = {
            "metrics": {name: [value] for name, value in drift.items()},
            "local": {str(layer): errors.error for layer, errors in local.items()},
        }
        residual = {str(layer): errors.residual for layer, errors in local.items() if errors.residual is not None}
        if residual:
            result["residual"] = residual
        if work.head is not None:  # lists of all heads have no place for one
            result |= {"local": {}, "residual": None}
        if not isfinite(drift["drift"]):
            result |= {"status": "diverged", "reason": "the last hidden states are not finite"}
        return result, steps

    def _words(self, row: int) -> Tensor | None:
        """The predicted words of a row."""
        return None if self.predictions is None else self.predictions.words[row]

    def _outputs(self) -> list[Outputs]:
        """The model's current outputs for each row, without padding."""
        hidden, logits = self.model.both(self.reading, self.predictions)
        return [
            Outputs(hidden[row, :length], None if logits is None else logits[row])
            for row, length in enumerate(self.lengths)
        ]

    def _injected(self, work: InjectWork) -> list[Outputs]:
        method, options, budget = work.request.entry, work.request.options, work.budget
        if work.head is not None:  # all other heads keep exact attention
            [layer] = work.layers
            alone: dict[int | tuple[int, int], int | None] = {
                (layer, head): None for head in range(self.calls[layer].heads)
            }
            for head in _heads(self.calls[layer], work):
                one = budget.get((layer, head)) if isinstance(budget, Mapping) else budget
                alone[layer, head] = 1 if method.budget is None else one
            budget = alone
        with injected(self.model.model, method, budget, layer=work.layers, seed=work.seed, **options):
            return self._outputs()

    @torch.no_grad()
    def _local(self, work: InjectWork, layer: int) -> list[Local]:
        """The errors of a method on a layer's own Q, K, V, for each row."""
        place = (work.request.name, tuple(sorted(work.request.options.items())), work.d, work.seed, layer, work.head)
        if place not in self.local:
            call = self.calls[layer]
            own = call.output()
            got = replaced(call, work.request.entry, work.budget, seed=work.seed, **work.request.options)
            heads = _heads(call, work)
            found = []
            for row, length in enumerate(self.lengths):
                errors = local_errors(
                    own[row, :length, heads.start : heads.stop],
                    got[row, :length, heads.start : heads.stop],
                    None if call.block is None else call.block.at(row, slice(length)),
                    heads,
                )
                spectral = self._spectral(work, layer, row) if self.matrices else None
                of_heads = None if spectral is None else [spectral[head] for head in heads]
                found.append(replace(errors, spectral=of_heads))
            self.local[place] = found
        return self.local[place]

    def _spectral(self, work: InjectWork, layer: int, row: int) -> list[float] | None:
        """``‖B − B~‖₂ / ‖B‖₂`` of each head of a row; None if the method has no matrix there.

        The heads of a layer are measured together, once.
        """
        request, call = work.request, self.calls[layer]
        place = request.name, tuple(sorted(request.options.items())), work.d, work.seed, layer, row
        if place not in self.spectral:
            self.spectral[place] = None
            if call.beyond() is None and not isinstance(work.budget, Mapping):
                qkv = call.qkv(row)
                got = approximate(request.entry, qkv, work.budget, seed=work.seed, **request.options)
                if got.operator is not None:
                    own = exact_matrix(qkv)
                    if (layer, row) not in self.norms:
                        self.norms[layer, row] = exact_norms(own)
                    [errors] = shared_matrix_errors(own, [got.operator], norms=self.norms[layer, row])
                    self.spectral[place] = errors.metrics["matrix_spectral_relative"].tolist()
        return self.spectral[place]


@dataclass
class _ExactSteps:
    """The exact attention of the steps in one layer.

    Attributes:
        call: with the queries of the steps alone, behind the keys before them. rows: of the batch.
        output: of the steps, (b, n_q, h, p_v) float64. texts: the prompts of rows.
    """

    call: AttentionCall
    rows: Sequence[Steps]
    output: Tensor
    texts: dict[int, QKV] = field(default_factory=dict)


@dataclass(kw_only=True)
class _Decoding(_Bench):
    """The same batch read by exact attention up to a prefix, and then token by token."""

    prefix_length: int
    greedy_steps: int
    answers: Sequence[slice] = ()  # the places of the predictions of each row's answer of a needle
    prefix: Prefix = field(init=False)
    whole: Cache = field(init=False)  # of all tokens
    following: Tensor = field(init=False)  # the likeliest token after the prompt, (b, 1)
    kept: dict[tuple[Any, ...], dict[Any, Tensor]] = field(default_factory=dict)
    exact: dict[int, _ExactSteps] = field(default_factory=dict)

    @full_precision()
    def __post_init__(self) -> None:
        super().__post_init__()
        ids = self.reading.inputs["input_ids"]
        self.prefix = Prefix.of(self.model, ids, self.prefix_length, self.whole, self.following)
        greedy = self.prefix.greedy(self.greedy_steps)
        self.own = [replace(own, greedy=tokens) for own, tokens in zip(self.own, greedy, strict=True)]

    def _outputs(self) -> list[Outputs]:
        """The model's outputs of the steps, read with the prompt in one forward."""
        from transformers import DynamicCache

        self.whole = DynamicCache(config=self.model.model.config)
        inputs = {**self.reading.inputs, "past_key_values": self.whole, "use_cache": True}
        hidden, logits = self.model.ending(inputs, last=self.lengths[0] - self.prefix_length + 1)
        self.following = logits[:, :1].argmax(-1)
        steps = slice(self.prefix_length, -1)  # no word follows the last token
        return [Outputs(*row) for row in zip(hidden[:, steps], logits[:, 1:-1], strict=True)]

    def measure(self, work: InjectWork) -> list[Result]:
        if (why := why_not_decoded(work.request.entry)) is not None:
            raise Unsupported(f"{work.request.name} cannot decode: {why}")
        return super().measure(work)

    @torch.no_grad()
    def _local(self, work: InjectWork, layer: int) -> list[Local]:
        policy, exact = self._policy(work), self._exact(layer)
        errors, call = [], exact.call
        heads = _heads(call, work)
        for row, steps in enumerate(exact.rows):
            got, lost = policy.row(steps)
            block = None if call.block is None else call.block.at(row)
            own = exact.output[row][:, list(heads)]
            found = local_errors(own, got.transpose(0, 1)[:, list(heads)], block, heads)
            errors.append(replace(found, lost=lost[list(heads)].tolist()))
        return errors

    @torch.no_grad()
    @full_precision()
    def errors_of_heads(self, work: InjectWork, tried: Sequence[int], by: str) -> Tensor:
        """The error of each KV head of the first row at each number of keys, (heads of all layers, numbers)."""
        errors = []
        for layer in work.layers:
            exact = self._exact(layer)
            call = exact.call
            if by in ("residual", "measured") and call.block is None:
                raise Unsupported(f"{call.module}: no block around it was verified, so it has no residual error")
            of_layer = []
            for d in tried:
                got, lost = self._policy(replace(work, budget=d)).row(exact.rows[0])
                of_layer.append(head_errors(call, 0, exact.output[0], got.transpose(0, 1), lost, by))
            errors.append(torch.stack(of_layer, 1))
        return torch.cat(errors)

    def _exact(self, layer: int) -> _ExactSteps:
        """The exact attention of the steps in a layer."""
        if layer not in self.exact:
            call, steps = self.calls[layer], self.prefix.steps
            parts = {"q": call.q[:, :, steps], "k": call.k[:, :, : steps.stop], "v": call.v[:, :, : steps.stop]}
            block = None if call.block is None else call.block.at(slice(None), steps)
            alone = replace(call, **parts, visible=None, exact=None, block=block)
            rows = [Steps.of(alone, row, self.prefix_length) for row in range(len(call.q))]
            self.exact[layer] = _ExactSteps(alone, rows, call.output()[:, steps])
        return self.exact[layer]

    def _text(self, layer: int, row: int) -> QKV:
        """The prompt of a row as policies read it."""
        texts = self._exact(layer).texts
        if row not in texts:
            texts[row] = prompt_text(self.calls[layer].qkv(row), self.prefix_length)
        return texts[row]

    def _policy(self, work: InjectWork) -> PromptPolicy:
        request = work.request
        options = work.options
        kept = self.kept.setdefault((request.name, tuple(sorted(options.items())), work.seed), {})
        heads = None if work.head is None else (work.head,)
        return PromptPolicy(request.entry, work.budget, work.seed, options, self.prefix_length, self._text, heads, kept)

    def _words(self, row: int) -> Tensor | None:
        words = super()._words(row)
        return None if words is None else words[self.prefix.steps]

    def _injected(self, work: InjectWork) -> list[Outputs]:
        with attention_by(self.model.model, self._policy(work), work.layers):
            return self.prefix.outputs(self.greedy_steps)

    def _result(self, work: InjectWork, row: int, got: Outputs, local: Mapping[int, Local]) -> Result:
        words, own = self._words(row), self.own[row]
        assert words is not None and own.logits is not None and got.logits is not None  # of a causal model
        result, steps = self._drift(work, row, got, local)
        same = [*steps["top1_agreement"], 0.0]
        read = {layer: self._share(work, layer) for layer in work.layers}
        numbers = {
            "first_divergence": float(same.index(0.0)),
            "cache_bytes": self.prefix.cache_bytes(read if evicts(work.request.entry) else {}),
            "read_bytes": self.prefix.cache_bytes(read),
        }
        if self.answers:
            answer = slice(*(end - self.prefix_length for end in (self.answers[row].start, self.answers[row].stop)))
            numbers |= answer_metrics(own.logits[answer], got.logits[answer], words[answer])
        metrics = result["metrics"] | {name: [value] for name, value in numbers.items()}
        return {**result, "metrics": metrics, "steps": steps}

    def _share(self, work: InjectWork, layer: int) -> float:
        """The share of a layer's prompt that heads keep or read."""
        budget = work.budget
        if isinstance(budget, Mapping):
            of_heads = [budget.get((layer, head), budget.get(layer)) for head in range(self.calls[layer].heads)]
        else:
            of_heads = [budget]
        if work.head is not None:
            of_heads = [*of_heads, *[None] * (self.calls[layer].kv_heads - 1)]
        return sum(1.0 if d is None else min(d / self.prefix_length, 1.0) for d in of_heads) / len(of_heads)


def _heads(call: AttentionCall, work: InjectWork) -> range:
    """The query heads of a layer that a forward replaces: all, or those of one KV head."""
    if work.head is None:
        return range(call.heads)
    group = call.heads // call.kv_heads
    return range(work.head * group, (work.head + 1) * group)


def _widened(call: AttentionCall) -> AttentionCall:
    """The call in float32 at least, as methods run."""
    wide = torch.promote_types(call.q.dtype, torch.float32)
    return replace(call, **{axis: getattr(call, axis).to(wide) for axis in "qkv"})
