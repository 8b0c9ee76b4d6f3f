"""The run of ``attnprobe stability``: the first steps of training with each method as the attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from time import perf_counter
from typing import Any

from ...errors import Unsupported, UsageError
from ...grammar.foreign import message
from ...records.file import SCHEMA, RecordWriter
from ...run.folder import recorded
from ...run.limits import time_limit
from ...run.loop import Session
from ...run.plan import told
from ...sources import TASKS, TaskSource
from ..error.measure import Outcome, said
from .plan import (
    LAYERS,
    StabilityCell,
    StabilityPlan,
    StabilityRequest,
    stability_cells,
    stability_prepared,
    why_not,
)
from .training import STEP_METRICS, Step
from .trajectory import Training, Trajectory

__all__ = ["measure_stability"]


def measure_stability(
    request: StabilityRequest,
    *,
    notify: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int, str], None] = lambda done, total, label: None,
) -> Session:
    """Train every cell and leave ``manifest.json`` and ``records.jsonl`` in the run's folder.

    Seed by seed, so that a run that is stopped has compared every method with the seeds that it reached.

    A record is one training: its ``metrics`` hold a list over the steps for each of `STEP_METRICS`, ``conditions``
    those of `Trajectory`. A method that has no gradient or cannot take a task's sequences is ``skipped`` with its
    reason, one that raises ``failed``, one whose numbers stop being finite ``diverged``, with the steps before; the
    loop goes on.

    Raises:
        UsageError, SourceError: as the parts say; nothing is left behind.
    """
    tasks, plan = stability_prepared(request, notify)
    listed = [(task, cell) for task in tasks for cell in stability_cells(request, plan, task)]
    place = {cell.key: index for index, (_, cell) in enumerate(listed)}
    total = len(listed)

    def measure(writer: RecordWriter, done: Mapping[str, dict[str, Any]], run: str) -> Outcome:
        outcome = Outcome()
        for task, cell in sorted(listed, key=lambda pair: (tasks.index(pair[0]), pair[1].repeat)):
            if cell.key in done:
                outcome.records.append(done[cell.key])
                outcome.done_before += 1
                continue
            label = f"{task.name} {cell.name} seed {cell.seed}"
            show = lambda step, label=label: progress(
                len(outcome.records), total, f"{label}, step {step + 1} of {request.steps}"
            )
            outcome.keep({**_head(cell, request, task, run), **_measured(cell, request, task, show)}, writer)
        outcome.records.sort(key=lambda record: place[record["key"]])
        progress(total, total, "")
        return outcome

    outcome, path = recorded(request, "stability", _planned(request, plan, tasks), tasks, notify, measure)
    return Session(outcome, path, tasks)


def _measured(
    cell: StabilityCell, request: StabilityRequest, task: TaskSource, show: Callable[[int], None]
) -> dict[str, Any]:
    """The measured part of a record: status, reason, metrics, conditions, seconds."""
    why = why_not(cell.request, cell.target, task, cell.d)
    if why is not None:
        return _result("skipped", why, Trajectory(*[()] * len(STEP_METRICS)), None)
    training = Training(task, cell.request, cell.target, cell.d, cell.seed, request.condition_tokens)
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
        status, reason = "skipped", message(error)
    except UsageError as error:  # Q, K and V that are not finite are refused by name
        status, reason = (
            ("diverged", f"step {len(steps) + 1}: {message(error)}")
            if "value at head" in message(error)
            else ("failed", said(error))
        )
    except Exception as error:  # whatever a method raises is its result, and the loop goes on
        status, reason = "failed", said(error)
    return _result(status, reason, training.trajectory(steps), perf_counter() - begin)


def _result(status: str, reason: str | None, found: Trajectory, seconds: float | None) -> dict[str, Any]:
    metrics = {name: list(getattr(found, name)) for name in STEP_METRICS if found.tau}
    return {
        "status": status,
        "reason": reason,
        "metrics": metrics,
        "conditions": list(found.conditions),
        "draws_hash": None,
        "seconds": seconds,
    }


def _head(cell: StabilityCell, request: StabilityRequest, task: TaskSource, run: str) -> dict[str, Any]:
    """What a record says before anything is measured."""
    entry = cell.request.entry
    return {
        "schema": SCHEMA,
        "key": cell.key,
        "run": run,
        "command": "stability",
        "task": task.name,
        **told(cell.request),
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
        "n": list(dict.fromkeys(one.n for one in tasks)),
        "d": plan.d,
        "layers": [LAYERS],
        "steps": request.steps,
        "seed": request.seed,
        "seeds": request.seeds,
        "target": request.target,
        "eps": request.eps,
        "condition_tokens": request.condition_tokens,
    }
