"""Figures of ``attnprobe stability``: quantities over the steps of training, method by method."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...figures.drawing import Drawing
from ...figures.files import chunks, drawn
from ...figures.kit import Sheet, grid, legend, legend_columns, legend_inches
from ...figures.methods import HUGE, styles_of, text_label
from ...figures.words import sentence
from ...tables.labels import file_tag
from ...tables.long import Row
from ...tables.table import gathered, grouped_by
from .view import SELF_ATTENTION, stability_label

PANELS = {"tau": "instability τ", "loss": "loss", "gradient_norm": "norm of the gradient"}
HEIGHT = 2.1  # inches of a panel
CONDITION = "condition number of the inverted core, B or C"
EXACT = {SELF_ATTENTION: "B", "kernelized": "C"}  # their matrix in place of a core


def stability_figures(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw ``stability-TASK`` for each task: τ, loss, gradient norm and condition numbers over the steps.

    A line is the mean over the seeds, geometric for τ and condition numbers. Its band is the range over the seeds. The
    condition number is that of the core that a method inverts, of B for self-attention and of C for kernelized
    attention: the median over layers and heads. A step at which it is singular with some seed has no point.

    Returns:
        The files' paths.
    """
    paths: list[Path] = []
    places = grouped_by(rows, "task", "source")
    tasks = [group[0]["task"] for group in places]
    for task, group in zip(tasks, places, strict=True):
        stem = f"stability-{task}" + (file_tag(group[0]["source"]) if tasks.count(task) > 1 else "")
        trained = [row for row in group if row["per_step"]]
        pages = _pages(trained, drawing) if trained else []
        draw = lambda names, trained=trained: _figure(trained, names, drawing)
        paths += drawn(pages, draw, Path(out_dir) / stem, drawing)
    return paths


def _pages(rows: Sequence[Row], drawing: Drawing) -> list[Sequence[str]]:
    """The quantities of each figure."""
    names = [*PANELS, *([CONDITION] if any(_condition(row) for row in rows) else [])]
    return chunks(names, 2 * drawing.sizes.down(HEIGHT))


def _figure(rows: Sequence[Row], names: Sequence[str], drawing: Drawing) -> Sheet:
    from matplotlib.ticker import MaxNLocator

    first = rows[0]
    seeds = len({row["seed"] for row in rows})
    title = f"First steps of training on {first['task']}: mean and range over {seeds} seed{'s' * (seeds != 1)}"
    caption = [
        "Step by step: means over the seeds, geometric for τ and condition numbers, and bands over their range.",
        *(["The condition number is of the core that a method inverts, the median over heads."] * (CONDITION in names)),
        f"{sentence(first['task'])}, sequences of at most {first['n']} tokens, batches of {first['batch']}.",
    ]
    labels = list(dict.fromkeys(map(stability_label, rows)))
    height = HEIGHT + legend_inches(labels, drawing.sizes.wide) / 2
    headings = [PANELS.get(name, name) for name in names]
    sheet, panels = grid(drawing, title, caption, headings, 3.0, height, columns=2, shared=False)
    styles, handles = styles_of(rows), {}
    for group in gathered(rows, text_label):
        style = {**styles[text_label(group[0])], "markersize": 3}
        for axis, name in zip(panels, names, strict=True):
            lists = [_condition(row) if name == CONDITION else row["per_step"].get(name) or [] for row in group]
            line = _line(axis, lists, style, name in ("tau", CONDITION))
            if line is not None:
                handles.setdefault(stability_label(group[0]).replace("$", r"\$"), line)
    for axis, name in zip(panels, names, strict=True):
        if name in ("tau", CONDITION):
            axis.set_yscale("log")
        axis.set_xlabel("step")
        axis.set_ylabel({"tau": "τ", CONDITION: r"$\sigma_1/\sigma_m$"}.get(name, PANELS.get(name)))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(sheet, handles, legend_columns([*handles], drawing.sizes.wide))
    return sheet


def _condition(row: Row) -> Sequence[float | None]:
    """The condition number of the matrix that the method inverts, step by step."""
    inverted = [name for name, entry in row["conditions"].items() if entry["inverted"]]
    name = inverted[-1] if inverted else EXACT.get(row["method"])
    return row["cond_per_step"].get(name or "") or []


def _line(axis: Any, lists: Sequence[Sequence[float | None]], style: Mapping[str, Any], geometric: bool) -> Any:
    """The mean over the seeds and their range, at each step that all seeds reached; None if there is no step."""
    columns = list(zip(*(values for values in lists if values), strict=False))
    points = [(step, values) for step, values in enumerate(columns, 1) if all(_drawable(value) for value in values)]
    if not points:
        return None
    steps = [step for step, _ in points]
    mean: Callable[[Sequence[float]], float] = (
        _geometric if geometric else lambda values: math.fsum(values) / len(values)
    )
    if len(columns[0]) > 1:
        low, high = ([end(values) for _, values in points] for end in (min, max))
        axis.fill_between(steps, low, high, color=style["color"], alpha=0.09, linewidth=0)
    return axis.plot(steps, [mean(values) for _, values in points], **style)[0]


def _drawable(value: float | None) -> bool:
    return value is not None and 0 < value < HUGE


def _geometric(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))
