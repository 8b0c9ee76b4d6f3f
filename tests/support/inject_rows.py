"""The rows of cells of inject, as tests read them: by layer, by step, and the numbers of the whole model."""

from pathlib import Path
from types import SimpleNamespace

from attnprobe.frame.read import frame_of
from attnprobe.grammar.lists import options_of
from attnprobe.machine.timings import Timings
from attnprobe.measure.inject import EXPERIMENT
from attnprobe.measure.inject.bench import Bench
from attnprobe.measure.inject.measure import InjectCells
from attnprobe.run.inputs import InputKeeper
from attnprobe.show.shown import Shown

PLACES = ("kind", "key", "head", "layer", "kv_head", "step")


def of_kind(cell, kind):
    return [row for row in cell["rows"] if row["kind"] == kind]


def requested(cells):
    """The cells without those of exact attention."""
    return [cell for cell in cells if cell["requested"]]


def metrics(cell):
    """The numbers of the whole model."""
    [row] = of_kind(cell, "head") or [{}]
    return {name: value for name, value in row.items() if name not in PLACES}


def without_reasons(request):
    """The numbers of the first window of each method, also of those that a run skips as no test."""
    cells = InjectCells(request, print, Timings())
    [place] = cells.places
    [(_, bench, _)] = cells.inputs([place], InputKeeper(request, Path(request.out), "r"))
    exact, *works = (cell.work for cell in cells.by_place[place] if cell.window == 0)
    bench.measure(exact)
    return [metrics(Bench.measure(bench, work)[0]) for work in works]


def by_layer(cell, kind, name):
    """A number of each row of a layer, in lists by layer."""
    found = {}
    for row in of_kind(cell, kind):
        if name in row:
            found.setdefault(row["layer"], []).append(row[name])
    return found


def local(cell):
    """The local error of each head, by layer."""
    return by_layer(cell, "local", "local_error")


def planned(cell):
    """The planned keys of each KV head, by layer."""
    return by_layer(cell, "plan", "planned")


def steps(cell):
    """The numbers of each step, by metric."""
    rows = of_kind(cell, "step")
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else {}) if name not in PLACES}


def plan_of(cell):
    """The option ``plan``; None without one."""
    return options_of(cell["options"]).get("plan")


def shown_of(cells):
    """What is shown of cells of one source."""
    cells = list(cells)
    labels = {cell["key"]: "" for cell in cells}

    def frame(kind):
        return frame_of(cells, EXPERIMENT.shape, kind, labels)

    return Shown("inject", EXPERIMENT.catalogue, frame, SimpleNamespace())


def lines_of(cells, table):
    """The lines of a table in full precision."""
    return [row for row in shown_of(cells).rows if row["table"] == table]
