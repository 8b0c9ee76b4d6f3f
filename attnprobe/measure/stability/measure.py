"""The run of ``attnprobe stability``: the first steps of training with each method as the attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf, isfinite
from time import perf_counter
from typing import Any

from ...errors import NotFinite, Unsupported
from ...files import JsonObject
from ...machine.timings import Timings
from ...run.cells import Cells, Place, Result, title
from ...run.costs import Cost, work_of_method
from ...run.inputs import InputKeeper
from ...run.plan import Group, method_facts
from . import StabilityRequest
from .naming import TASKS
from .plan import LAYERS, StabilityCell, stability_cells, stability_prepared, unsupported_reason
from .record import SHAPE, STEP_METRICS
from .tasks import TaskSource
from .training import Step, Training

HEADS = (0, 1)


class StabilityCells(Cells[StabilityRequest, StabilityCell, TaskSource]):
    """Trainings. A place is a task with a seed; all methods share its batches."""

    command = "stability"
    shape = SHAPE
    blank = {"draws_hash": None, "seconds": None}
    gradients = True

    def __init__(self, request: StabilityRequest, notify: Callable[[str], None], timings: Timings) -> None:
        tasks, self.methods, self.budgets = stability_prepared(request, notify)
        every = {}
        for number, task in enumerate(tasks):
            for repeat in range(request.seeds):
                place = Place(number, Group(task.n, repeat), LAYERS)
                every[place] = stability_cells(request, self.methods, self.budgets, task, repeat)
        super().__init__(request, tasks, list(every), every.__getitem__)

    def plan(self) -> dict[str, Any]:
        request, tasks = self.request, self.sources
        names = ("steps", "seed", "seeds", "target", "eps", "condition_tokens")
        return {
            "methods": [{"name": method.name, "options": dict(method.options)} for method in self.methods],
            "tasks": [{"name": task.name, "n": task.n, "batch": task.batch, "rate": task.rate} for task in tasks],
            "n": list(dict.fromkeys(task.n for task in tasks)),
            "d": self.budgets,
            "layers": [LAYERS],
            **{name: getattr(request, name) for name in names},
        }

    def ordered(self) -> list[StabilityCell]:
        """The cells of a task method by method, each with all of its seeds."""
        cells_in_order = []
        for number in range(len(self.sources)):
            by_seed = [cells for place, cells in self.by_place.items() if place.source == number]
            cells_in_order += [cell for seeds_of_method in zip(*by_seed, strict=True) for cell in seeds_of_method]
        return cells_in_order

    def heads(self, place: Place) -> Sequence[int]:
        return HEADS

    def head(self, place: Place, cell: StabilityCell) -> dict[str, Any]:
        request, task = self.request, self.sources[place.source]
        paper = TASKS[task.name]
        return {
            "task": task.name,
            "layer": None,  # a cell has both layers together
            **method_facts(cell.request),
            "family": cell.request.entry.family,
            "target": cell.target,
            "window": 0,
            "batch": task.batch,
            "learning_rate": task.rate,
            "eps": request.eps,
            "steps": request.steps,
            "paper_n": paper.n,
            "paper_batch": paper.batch,
            "paper_learning_rate": paper.rate,
            "condition_tokens": request.condition_tokens,
            "d": cell.d,
            "repeat": cell.repeat,
            "seed": cell.seed,
            "reference": not cell.request.requested,
            "requested": cell.request.requested,
        }

    def inputs(self, places: Sequence[Place], keeper: InputKeeper) -> Iterator[tuple[Place, TaskSource, Result]]:
        for place in places:
            yield place, self.sources[place.source], {}

    def label(self, place: Place, cell: StabilityCell) -> str:
        return f"{self.sources[place.source].name} {title(cell)} seed {cell.seed}"

    def source_name(self, place: Place) -> str:
        return self.sources[place.source].name

    def opens_model(self, place: Place) -> bool:
        return False

    def work_of_inputs(self, place: Place) -> float:
        return 0.0

    def work(self, place: Place, cell: StabilityCell) -> Cost:
        """Four passes a step over every sequence of a batch, with heads half as wide as `work_of_method` counts."""
        task = self.sources[place.source]
        length = (task.shortest + task.n) // 2  # the mean of the shortest and the longest
        once, size = work_of_method(length, cell.d or length // 4, len(HEADS), cell.request.entry.cost)
        return 2 * self.request.steps * task.batch * task.pairs * LAYERS * once, size

    def measure_cell(self, place: Place, cell: StabilityCell, inputs: TaskSource, result: Result) -> None:
        if (why := unsupported_reason(cell.request, cell.target, inputs, cell.d)) is not None:
            raise Unsupported(why)
        request, steps = self.request, []
        training = Training(inputs, cell.request, cell.target, cell.d, cell.seed, request.condition_tokens)
        begin = perf_counter()
        try:
            for step in training.run(request.steps, request.eps):
                steps.append(step)
                # later steps would train on weights that are not finite
                if not all(isfinite(getattr(step, name)) for name in STEP_METRICS):
                    reason = f"step {len(steps)}: loss, gradient or embedding is not finite"
                    result |= {"status": "diverged", "reason": reason}
                    break
                if len(steps) < request.steps:
                    label = f"{self.label(place, cell)}, step {len(steps) + 1} of {request.steps}"
                    self.show(label, {cell.key: len(steps) / request.steps})
        except NotFinite as error:
            raise NotFinite(f"step {len(steps) + 1}: {error}") from error
        finally:
            # the steps before an error are shown
            result |= {"rows": _rows(training, steps), "seconds": perf_counter() - begin}


def _rows(training: Training, steps: Sequence[Step]) -> list[JsonObject]:
    """The rows of the steps, then those of each matrix of each head."""
    rows: list[JsonObject] = [
        {"kind": "step", "step": number, **{name: getattr(step, name) for name in STEP_METRICS}}
        for number, step in enumerate(steps, 1)
    ]
    for entry in training.trajectory(list(steps)).conditions:
        matrix = {name: entry[name] for name in ("matrix", "inverted", "layer", "head")}
        columns = {name: entry[name] for name in ("tokens", "cond", "cond_eff", "rank")}
        for number, values in enumerate(zip(*columns.values(), strict=True), 1):
            numbers = dict(zip(columns, values, strict=True))
            cond = inf if numbers["cond"] is None else numbers["cond"]  # None is a singular matrix
            rows.append({"kind": "condition", "step": number, **matrix, **numbers, "cond": cond})
    return rows
