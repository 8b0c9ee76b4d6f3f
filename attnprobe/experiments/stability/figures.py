"""Figures of ``attnprobe stability``: quantities over the steps of training, method by method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from ...figures.drawing import Drawing
from ...figures.kit import logarithmic
from ...figures.looks import GREY, sentence
from ...figures.methods import HUGE, SHADE, spread_legend, styles_of, text_label
from ...figures.panels import Panels, draw_figures
from ...tables.labels import file_tag
from ...tables.long import Row
from ...tables.results import at_budget
from ...tables.table import gathered, grouped_by
from .view import SELF_ATTENTION, stability_label

PANELS = {"tau": "instability τ", "loss": "loss", "gradient_norm": "norm of the gradient"}
CONDITION = "condition number of the core, B or C"
UNITS = {
    "tau": r"$\|\Delta f\|_F^2\,/\,\|\Delta W\|_F^2$",
    "loss": "nats",
    "gradient_norm": r"$\|\nabla\|_2$",
    CONDITION: r"$\sigma_1/\sigma_m$",
}
OF_CONDITION = (
    "The condition number is that of the core that a method inverts, of B for self-attention and of C for kernelized "
    "attention: the median over layers and heads."
)
GEOMETRIC = ("tau", CONDITION)  # their means are geometric, and their axes logarithmic
MOST_BANDS = 3  # methods; the curves of more are smoothed
SMOOTHED = 6  # of the steps, the part that a running mean is over
PALE = {"linewidth": 0.7, "alpha": 0.3}  # of the steps under it
EXACT = {SELF_ATTENTION: "B", "kernelized": "C"}  # their matrix in place of a core


def stability_figures(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw ``stability-TASK`` for each task: τ, loss, gradient norm and condition numbers over the steps.

    A line is the mean over the seeds, geometric for τ and condition numbers, in a band of their range. Of more than 3
    methods, it is pale below its running mean. The condition number is that of the core that a method inverts, of B for
    self-attention and of C for kernelized attention: the median over layers and heads. A step at which it is singular
    with some seed has no point.

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
    width = 1 if banded else max(len(values) for row in rows for values in row["per_step"].values()) // SMOOTHED | 1
    caption = [
        "Step by step: means over the seeds, geometric for τ and condition numbers. "
        + ("Bands are their range." if banded else f"Strong lines are their means over {width} steps."),
        *([OF_CONDITION] * (CONDITION in names)),
        f"{sentence(first['task'])}, sequences of at most {first['n']} tokens, batches of {first['batch']}.",
    ]

    def look(row: Row) -> dict[str, Any]:
        return {**styles[text_label(row)], "marker": None, "linewidth": 1.3}

    def draw(axis: Any, name: str) -> None:
        for group in gathered(rows, text_label):
            lists = [_condition(row) if name == CONDITION else row["per_step"].get(name) or [] for row in group]
            _line(axis, lists, look(group[0]), name in GEOMETRIC, banded, width)
        if name in GEOMETRIC:
            logarithmic(axis, "y")
        axis.set_ylabel(UNITS[name])
        axis.xaxis.get_major_locator().set_params(integer=True)

    return Panels(
        stem,
        f"First steps of training on {first['task']}: "
        + (f"mean{' and range' * banded} over {seeds} seeds" if seeds > 1 else "one seed"),
        caption,
        [(PANELS.get(name, name), name) for name in names],
        draw,
        "step",
        legend={at_budget(row, stability_label).replace("$", r"\$"): look(row) for row in rows}
        | (spread_legend("range over seeds", banded) if seeds > 1 and banded else {})
        | ({} if width == 1 else {f"mean of {width} steps": {"color": GREY}, "each step": {"color": GREY, **PALE}}),
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
    width: int,
) -> None:
    """The mean over the seeds at each step that all seeds reached: with their range, or pale below a running mean.

    Args:
        width: the steps of the running mean; of those at the ends, the ones that there are.
    """
    columns = list(zip(*(values for values in lists if values), strict=False))
    points = [(step, values) for step, values in enumerate(columns, 1) if all(0 < (x or 0) < HUGE for x in values)]
    if not points:
        return
    steps = [step for step, _ in points]
    mean = geometric_mean if geometric else fmean
    means = [mean(values) for _, values in points]
    if banded and len(columns[0]) > 1:
        low, high = ([end(values) for _, values in points] for end in (min, max))
        axis.fill_between(steps, low, high, color=style["color"], alpha=SHADE, linewidth=0)
    if width > 1:
        axis.plot(steps, means, **{**style, **PALE})
        means = [mean(means[max(0, place - width // 2) : place + width // 2 + 1]) for place in range(len(means))]
    axis.plot(steps, means, **style)
