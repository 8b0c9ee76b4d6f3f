"""The run of ``attnprobe stability``: the first steps of training with each method as the attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..errors import Unsupported, UsageError
from ..linalg.condition import condition
from ..methods import approximate, get
from ..metrics import core_matrices, exact_matrices
from ..metrics.classifier import Classifier
from ..metrics.training import STEP_METRICS, Step, training_steps
from ..qkv import QKV
from ..records import SCHEMA, RecordWriter
from ..sources import TASKS, SourceSpec, TaskSource, open_task
from .folder import recorded
from .limits import time_limit
from .plan import MethodRequest
from .run import Outcome, said
from .session import Session
from .stability_plan import (
    LAYERS,
    OWN,
    StabilityCell,
    StabilityPlan,
    StabilityRequest,
    own_target,
    stability_cells,
    stability_prepared,
    why_not,
)

__all__ = ["Trajectory", "instability", "measure_stability"]

SHOWN = ("B", "C")  # of the exact matrices, on the Q and K that a method's own training made


@dataclass(frozen=True)
class Trajectory:
    """What the steps of one training measured, one number for each step.

    Attributes:
        tau: the instability τ_i. tau_before_norm, loss, gradient_norm, weight_change, embedding_change: as in
            `attnprobe.metrics.training.Step`.
        conditions: one entry for each matrix, layer and head of the first sequence of each batch, at W_{i-1}: ``matrix``,
            ``inverted`` (whether the method inverts it), ``layer``, ``head``, ``tokens``, and lists over the steps:
            ``cond`` (None where it is numerically singular), ``cond_eff`` and ``rank``. ``B`` and ``C`` are of the first
            ``tokens`` tokens, cores of all.
    """

    tau: tuple[float, ...]
    tau_before_norm: tuple[float, ...]
    loss: tuple[float, ...]
    gradient_norm: tuple[float, ...]
    weight_change: tuple[float, ...]
    embedding_change: tuple[float, ...]
    conditions: tuple[Mapping[str, Any], ...] = ()


def instability(
    method: str,
    task: str | TaskSource = "listops",
    d: int | None = 128,
    *,
    seed: int = 0,
    steps: int = 20,
    n: int | None = None,
    batch: int | None = None,
    rate: float | None = None,
    eps: float = 1e-6,
    target: str = OWN,
    condition_tokens: int = 0,
    text: str | None = None,
    data: str | None = None,
    device: str = "auto",
    dtype: str = "float32",
    progress: Callable[[int], None] = lambda step: None,
    **options: Any,
) -> Trajectory:
    """Train a small transformer with ``method`` as its attention, and measure how far each step moves its embedding.

    ``τ_i = ‖f(x_i, W_i) - f(x_i, W_{i-1})‖²_F / ‖W_i - W_{i-1}‖²_F`` of Chen et al. 2021 (Skyformer), appendix F: f is
    the embedding after two layers and the last layer norm, x_i the i-th batch, W_i the weights that f has. Two layers of
    width 64 and hidden width 128 with 2 heads, mean pooling, Adam. Two methods with the same seed have the same initial
    weights and batches; a ratio of their τ is one of pairs.

    Random are the weights, the batches and the method's draws, all from ``seed``; the draws differ from step to step and
    from sequence to sequence, and are the same at W_{i-1} and W_i. A step costs two forwards and a backward of the batch;
    memory is that of one sequence.

    Args:
        method, d, options: as in `approximate`; a method without a budget ignores d.
        task: ``listops``, ``text``, ``retrieval``, ``pathfinder``, ``image``, or what `attnprobe.sources.open_task` gave.
        n, batch, rate: the most tokens of a sequence, the batch size and the learning rate; None is the paper's.
        target: ``softmax``, ``gaussian``, or ``own``: what the method stands for in a model of its own.
        condition_tokens: of how many tokens condition numbers of attention are taken; 0 measures none at all.
        text, data: what the task reads. device, dtype: where and in what it trains, ``float32`` or ``float64``.
        progress: called with the number of each step.

    Raises:
        Unsupported: a method that does not differentiate, or that cannot take the sequences. UsageError: unknown names
            or impossible values. SourceError: a text or file that is absent or damaged.

    >>> found = instability("skyformer", "listops", d=8, n=64, batch=2, steps=3)
    >>> len(found.tau), all(value > 0 for value in found.tau)
    (3, True)
    """
    if isinstance(task, str):
        spec = SourceSpec(text=text, device=device, dtype=dtype)
        task = open_task(task, spec, n=n, batch=batch, rate=rate, data=data)
    entry = get(method)
    target = own_target(MethodRequest(method)) if target == OWN else target
    one = MethodRequest(method, entry.check(target, options))
    d = None if entry.budget is None else d
    if (why := why_not(one, target, task, d)) is not None:
        raise Unsupported(why)
    training = _Training(task, one, target, d, seed, condition_tokens)
    found = []
    for number, step in enumerate(training.run(steps, eps)):
        found.append(step)
        progress(number)
    return training.trajectory(found)


def measure_stability(
    request: StabilityRequest,
    *,
    notify: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int, str], None] = lambda done, total, label: None,
) -> Session:
    """Train every cell and leave ``manifest.json`` and ``records.jsonl`` in the run's folder.

    A record is one training: its ``metrics`` hold a list over the steps for each of `STEP_METRICS`, ``conditions`` those
    of `Trajectory`. A method that has no gradient or cannot take a task's sequences is ``skipped`` with its reason, one
    that raises ``failed``, one whose numbers stop being finite ``diverged``, with the steps before; the loop goes on.

    Raises:
        UsageError, SourceError: as the parts say; nothing is left behind.
    """
    tasks, plan = stability_prepared(request, notify)
    listed = [(task, stability_cells(request, plan, task)) for task in tasks]
    total = sum(len(cells) for _, cells in listed)

    def measure(writer: RecordWriter, done: Mapping[str, dict[str, Any]], run: str) -> Outcome:
        outcome = Outcome()
        for task, cells in listed:
            for cell in cells:
                if cell.key in done:
                    outcome.records.append(done[cell.key])
                    outcome.done_before += 1
                    continue
                label = f"{task.name} {cell.name} seed {cell.seed}"
                show = lambda step, label=label: progress(
                    len(outcome.records), total, f"{label}, step {step + 1} of {request.steps}")  # fmt: skip
                outcome.keep({**_head(cell, request, task, run), **_measured(cell, request, task, show)}, writer)
        progress(total, total, "")
        return outcome

    outcome, path = recorded(request, "stability", _planned(request, plan, tasks), tasks, notify, measure)
    return Session(outcome, path, tasks)


@dataclass
class _Training:
    """One training, and the condition numbers that are seen on its way."""

    task: TaskSource
    one: MethodRequest
    target: str
    d: int | None
    seed: int
    tokens: int
    found: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)

    def run(self, steps: int, eps: float) -> Iterator[Step]:
        task = self.task
        model = Classifier(task.vocabulary, task.n, task.classes, task.pairs, layers=LAYERS)
        weights = model.initial(self.seed, task.dtype, task.device)
        batches = lambda step: [(one.sequences, one.label) for one in task.batch_of(self.seed, step)]
        yield from training_steps(model, weights, batches, self.attend, steps=steps, rate=task.rate, eps=eps)

    def attend(self, step: int, number: int, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention of one layer on one sequence, (h, n, p)."""
        each = self.task.batch * self.task.pairs
        qkv = QKV(q, k, v, label={"layer": layer, "window": step * each + number})
        approx = approximate(self.one.name, qkv, self.d, seed=self.seed, target=self.target, **self.one.options)
        if torch.is_grad_enabled() and not approx.output.requires_grad:
            raise Unsupported(f"{self.one.name} does not differentiate: no gradient reaches its output")
        if self.tokens and number == 0 and torch.is_grad_enabled():
            with torch.no_grad():
                self._observe(layer, qkv, approx)
        return approx.output

    def _observe(self, layer: int, qkv: QKV, approx: Any) -> None:
        """Condition numbers of B and C on the first tokens, and of the method's cores on all."""
        few = QKV(*(x.detach()[:, : self.tokens] for x in (qkv.q, qkv.k, qkv.v)), scale=qkv.scale)
        for row, head in enumerate(qkv.heads):
            for name, matrix, _ in exact_matrices(few, row):
                if name in SHOWN:
                    self._keep(name, False, layer, head, few.n, matrix)
        whole = QKV(*(x.detach() for x in (qkv.q, qkv.k, qkv.v)), scale=qkv.scale)
        for core in core_matrices(whole, approx, self.one.options) if approx.cores else ():
            for head, matrix in zip(qkv.heads, core.matrix.detach(), strict=True):
                self._keep(core.name, core.inverted, layer, head, qkv.n, matrix)

    def _keep(self, name: str, inverted: bool, layer: int, head: int, tokens: int, matrix: Tensor) -> None:
        place = {"matrix": name, "inverted": inverted, "layer": layer, "head": head}
        entry = self.found.setdefault((name, layer, head), {**place, "tokens": [], "cond": [], "cond_eff": [], "rank": []})
        measured = condition(matrix)
        for key, value in (("tokens", tokens), ("cond", measured.value), ("cond_eff", measured.cond_eff),
                           ("rank", measured.rank)):  # fmt: skip
            entry[key].append(value)

    def trajectory(self, steps: list[Step]) -> Trajectory:
        lists = {name: tuple(getattr(step, name) for step in steps) for name in STEP_METRICS}
        return Trajectory(**lists, conditions=tuple(self.found.values()))


def _measured(
    cell: StabilityCell, request: StabilityRequest, task: TaskSource, show: Callable[[int], None]
) -> dict[str, Any]:
    """The measured part of a record: status, reason, metrics, conditions, seconds."""
    why = why_not(cell.request, cell.target, task, cell.d)
    if why is not None:
        return _result("skipped", why, Trajectory(*[()] * len(STEP_METRICS)), None)
    training = _Training(task, cell.request, cell.target, cell.d, cell.seed, request.condition_tokens)
    steps: list[Step] = []
    status, reason = "ok", None
    begin = perf_counter()
    show(0)
    try:
        with time_limit(request.cell_timeout):
            for step in training.run(request.steps, request.eps):
                steps.append(step)
                if not all(isfinite(getattr(step, name)) for name in STEP_METRICS):
                    status, reason = "diverged", f"step {len(steps)}: loss, gradient or embedding is not finite"
                    break
                if len(steps) < request.steps:
                    show(len(steps))
    except Unsupported as error:
        status, reason = "skipped", str(error)
    except UsageError as error:  # Q, K and V that are not finite are refused by name
        status, reason = ("diverged", f"step {len(steps) + 1}: {error}") if "value at head" in str(error) else (
            "failed", said(error))  # fmt: skip
    except Exception as error:  # whatever a method raises is its result, and the loop goes on
        status, reason = "failed", said(error)
    return _result(status, reason, training.trajectory(steps), perf_counter() - begin)


def _result(status: str, reason: str | None, found: Trajectory, seconds: float | None) -> dict[str, Any]:
    metrics = {name: list(getattr(found, name)) for name in STEP_METRICS if found.tau}
    return {"status": status, "reason": reason, "metrics": metrics, "conditions": list(found.conditions),
            "draws_hash": None, "seconds": seconds}  # fmt: skip


def _head(cell: StabilityCell, request: StabilityRequest, task: TaskSource, run: str) -> dict[str, Any]:
    """What a record says before anything is measured."""
    entry = cell.request.entry
    return {
        "schema": SCHEMA,
        "key": cell.key,
        "run": run,
        "command": "stability",
        "task": task.name,
        "method": cell.request.name,
        "options": dict(cell.request.options),
        "family": entry.family,
        "target": cell.target,
        "source": task.facts,
        "window": 0,
        "layer": LAYERS,
        "heads": [0, 1],
        "n": task.n,
        "batch": task.batch,
        "rate": task.rate,
        "eps": request.eps,
        "steps": request.steps,
        "paper_setting": {name: getattr(TASKS[task.name], name) for name in ("n", "batch", "rate")},
        "condition_tokens": request.condition_tokens,
        "d": cell.d,
        "repeat": cell.repeat,
        "seed": cell.seed,
        "reference": not cell.request.requested,
        "requested": cell.request.requested,
    }


def _planned(request: StabilityRequest, plan: StabilityPlan, tasks: list[TaskSource]) -> dict[str, Any]:
    """The plan as a manifest shows it."""
    return {
        "methods": [{"name": one.name, "options": dict(one.options)} for one in plan.methods],
        "tasks": [{"name": one.name, "n": one.n, "batch": one.batch, "rate": one.rate} for one in tasks],
        "n": list(dict.fromkeys(one.n for one in tasks)), "d": plan.d, "layers": [LAYERS], "steps": request.steps,
        "seed": request.seed, "seeds": request.seeds, "target": request.target, "eps": request.eps,
        "condition_tokens": request.condition_tokens,
    }  # fmt: skip
