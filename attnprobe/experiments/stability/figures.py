"""Figures of ``attnprobe stability``: quantities over the steps of training, method by method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from ...figures.drawing import Drawing
from ...figures.kit import logarithmic
from ...figures.looks import sentence
from ...figures.methods import HUGE, MANY_POINTS, SHADE, markers, spread_legend, styles_of, text_label
from ...figures.panels import Panels, draw_figures
from ...tables.labels import file_tag
from ...tables.long import Row
from ...tables.results import at_budget
from ...tables.table import gathered, grouped_by
from .view import SELF_ATTENTION, stability_label

PANELS = {"tau": "instability τ", "loss": "loss", "gradient_norm": "norm of the gradient"}
CONDITION = "condition number of the core, B or C"
UNITS = {"tau": "τ", "loss": "nats", "gradient_norm": r"$\|\nabla\|_2$", CONDITION: r"$\sigma_1/\sigma_m$"}
OF_CONDITION = (
    "The condition number is that of the core that a method inverts, of B for self-attention and of C for kernelized "
    "attention: the median over layers and heads."
)
GEOMETRIC = ("tau", CONDITION)  # their means are geometric, and their axes logarithmic
MOST_BANDS = 2  # methods; of more, a step has the ranges of some
EXACT = {SELF_ATTENTION: "B", "kernelized": "C"}  # their matrix in place of a core


def stability_figures(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw ``stability-TASK`` for each task: τ, loss, gradient norm and condition numbers over the steps.

    A line is the mean over the seeds, geometric for τ and condition numbers. Its band is the range over the seeds; of
    more than 2 methods, each has bars at steps of its own where there are enough. The condition number is that of the
    core that a method inverts, of B for self-attention and of C for kernelized attention: the median over layers and
    heads. A step at which it is singular with some seed has no point.

    Returns:
        The files' paths.
    """
    figures = []
    places = grouped_by(rows, "task", "source")
    tasks = [group[0]["task"] for group in places]
    for task, group in zip(tasks, places, strict=True):
        stem = f"stability-{task}" + (file_tag(group[0]["source"]) if tasks.count(task) > 1 else "")
        trained = [row for row in group if row["per_step"]]
        figures += [_figure(rows, trained, stem)] if trained else []
    return draw_figures(figures, drawing, out_dir)


def _figure(run: Sequence[Row], rows: Sequence[Row], stem: str) -> Panels:
    """A panel for each quantity, a line for each method."""
    first, styles, seeds = rows[0], styles_of(run, rows), len({row["seed"] for row in rows})
    names = [*PANELS, *([CONDITION] if any(_condition(row) for row in rows) else [])]
    banded = len(styles) <= MOST_BANDS
    caption = [
        "Step by step: means over the seeds, geometric for τ and condition numbers. "
        + ("Bands are their range." if banded else "Bars are their range, at some steps of each method."),
        *([OF_CONDITION] * (CONDITION in names)),
        f"{sentence(first['task'])}, sequences of at most {first['n']} tokens, batches of {first['batch']}.",
    ]

    def look(row: Row) -> dict[str, Any]:
        return {**styles[text_label(row)], **MANY_POINTS}

    def draw(axis: Any, name: str) -> None:
        groups = gathered(rows, text_label)
        for place, group in enumerate(groups):
            lists = [_condition(row) if name == CONDITION else row["per_step"].get(name) or [] for row in group]
            _line(axis, lists, look(group[0]), name in GEOMETRIC, banded, (place, len(groups)))
        if name in GEOMETRIC:
            logarithmic(axis, "y")
        axis.set_ylabel(UNITS[name])
        axis.xaxis.get_major_locator().set_params(integer=True)

    return Panels(
        stem,
        f"First steps of training on {first['task']}: "
        + (f"mean and range over {seeds} seeds" if seeds > 1 else "one seed"),
        caption,
        [(PANELS.get(name, name), name) for name in names],
        draw,
        "step",
        legend={at_budget(row, stability_label).replace("$", r"\$"): look(row) for row in rows}
        | (spread_legend("range over seeds", banded) if seeds > 1 else {}),
        width=3.0,
        columns=2,
        sharing={},
    )


def _condition(row: Row) -> Sequence[float | None]:
    """The condition number of the matrix that the method inverts, step by step."""
    inverted = [name for name, entry in row["conditions"].items() if entry["inverted"]]
    name = inverted[-1] if inverted else EXACT.get(row["method"])
    return row["cond_per_step"].get(name or "") or []


def _line(
    axis: Any,
    lists: Sequence[Sequence[float | None]],
    style: Mapping[str, Any],
    geometric: bool,
    banded: bool,
    turn: tuple[int, int],
) -> None:
    """The mean over the seeds and their range, at each step that all seeds reached.

    Args:
        turn: the place of the method among so many, which have markers, and bars without a band, at steps in turn.
    """
    columns = list(zip(*(values for values in lists if values), strict=False))
    points = [(step, values) for step, values in enumerate(columns, 1) if all(0 < (x or 0) < HUGE for x in values)]
    if not points:
        return
    steps = [step for step, _ in points]
    mean = geometric_mean if geometric else fmean
    if len(columns[0]) > 1:
        low, high = ([end(values) for _, values in points] for end in (min, max))
        if banded:
            axis.fill_between(steps, low, high, color=style["color"], alpha=SHADE, linewidth=0)
        else:
            place, count = turn
            every = min(count, max(1, len(steps) // 2))
            some = slice(place % every, None, every)
            axis.vlines(steps[some], low[some], high[some], color=style["color"], alpha=0.7, linewidth=1.4)
    axis.plot(steps, [mean(values) for _, values in points], markevery=markers(len(steps), *turn), **style)
