"""Figures of ``attnprobe stability``: quantities over the steps of training, method by method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from ...figures.drawing import Drawing
from ...figures.kit import logarithmic
from ...figures.looks import sentence, typeset
from ...figures.methods import HUGE, left_out, styles_of, text_label
from ...figures.panels import Panels, draw_figures
from ...tables.labels import file_tag
from ...tables.long import Row
from ...tables.results import at_budget
from ...tables.table import gathered, grouped_by
from .view import SELF_ATTENTION, is_self_attention, stability_label

PANELS = {"tau": "instability τ", "loss": "loss", "gradient_norm": "norm of the gradient"}
CONDITION = "condition number of the core"
UNITS = {
    "tau": typeset("‖Δf‖_F² / ‖ΔW‖_F²"),
    "loss": "nats",
    "gradient_norm": typeset("‖∇‖₂"),
    CONDITION: typeset("σ_1 / σ_m"),
}
OF_CONDITION = (
    "The condition number is that of the core that a method inverts, or of B or C itself: the median over layers and "
    "heads."
)
GEOMETRIC = ("tau", CONDITION)  # their means are geometric, and their axes logarithmic
SMOOTHED = 6  # of the steps, the part that a running mean is over
CURVE = {"marker": None, "linewidth": 1.3}
PALE = {"linewidth": 0.7, "alpha": 0.5}  # of a seed
ASIDE = {"color": "#aaaaaa", "linewidth": 0.6, "alpha": 0.6, "zorder": 1}  # of other methods
EXACT = {SELF_ATTENTION: "B", "kernelized": "C"}  # their matrix in place of a core


def stability_figures(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw ``stability-TASK`` for each task: τ, loss, gradient norm and condition numbers over the steps.

    A line is the mean over the seeds and some steps, geometric for τ and condition numbers. τ has a panel for each
    method, with its seeds and the other methods behind. The condition number is that of the core that a method inverts,
    of B for self-attention and of C for kernelized attention: the median over layers and heads. A step at which it is
    singular with some seed has no point.

    Returns:
        The files' paths.
    """
    figures = []
    places = grouped_by(rows, "task", "source")
    tasks = [group[0]["task"] for group in places]
    for task, group in zip(tasks, places, strict=True):
        stem = f"stability-{task}" + (file_tag(group[0]["source"]) if tasks.count(task) > 1 else "")
        trained = [row for row in group if row["per_step"]]
        figures += _figures(rows, trained, stem) if trained else []
    return draw_figures(figures, drawing, out_dir)


def _figures(run: Sequence[Row], rows: Sequence[Row], stem: str) -> list[Panels]:
    """A panel for each quantity, a line for each method; τ has a figure of small multiples."""
    from matplotlib.lines import Line2D

    first, styles, seeds = rows[0], styles_of(run, rows), len({row["seed"] for row in rows})
    groups = {_name(group[0]): group for group in gathered(rows, text_label)}
    looks = {name: {**styles[text_label(group[0])], **CURVE} for name, group in groups.items()}
    yardstick = [name for name, group in groups.items() if is_self_attention(group[0])]
    without = [name for name, group in groups.items() if not any(map(_condition, group))]
    names = [*PANELS, *([CONDITION] if len(without) < len(groups) else [])]
    exact = [f"{name}: of {core}" for name, group in groups.items() if (core := _core(group[0])) in EXACT.values()]
    blank = [name for name, group in groups.items() if not _means(_per_step(group, CONDITION), True)[0]]
    why = f"without a line: no core{' or singular' * (len(blank) > len(without))}"
    notes = [*filter(None, [", ".join(exact), why if blank else ""])]
    lost = left_out(run, rows, _name)
    width = max(len(values) for row in rows for values in row["per_step"].values()) // SMOOTHED | 1
    alone = [name for name in groups if name not in yardstick]
    caption = [
        f"Means over the seeds{f' and over {width} steps' * (width > 1)}, geometric for τ and condition numbers."
        + " Thin: each seed of the method of a panel." * (seeds > 1),
        *([OF_CONDITION] * (CONDITION in names)),
        *([f"Without a core: {', '.join(without)}."] if CONDITION in names and without else []),
        f"{sentence(first['task'])}, sequences of at most {first['n']} tokens, batches of {first['batch']}.",
        *lost.sentences,
    ]

    def draw(axis: Any, panel: tuple[str, str]) -> dict[str, Any]:
        quantity, own = panel
        geometric = quantity in GEOMETRIC
        every = {name: _means(_per_step(group, quantity), geometric) for name, group in groups.items()}
        means = {name: one for name, one in every.items() if one[0]}
        if geometric:
            logarithmic(axis, "y")
        for name, (steps, of_seeds, values) in means.items():
            look = looks[name] if own in ("", name) or name in yardstick else ASIDE
            for one in zip(*of_seeds, strict=True) if own == name and seeds > 1 else ():
                axis.plot(steps, _smooth(one, width, geometric), **{**look, **PALE})
            axis.plot(steps, _smooth(values, width, geometric), **look)
        if not own:
            axis.set_ylabel(UNITS[quantity])
        axis.xaxis.get_major_locator().set_params(integer=True)
        return {words: Line2D([], [], linestyle="") for words in notes} if quantity == CONDITION else {}

    def legend(panels: Sequence[tuple[str, str]]) -> dict[str, Any]:
        shown = {own for _, own in panels}
        own = [looks[name] for name in looks if name in shown]
        return (
            {name: look for name, look in looks.items() if {"", name} & shown or name in yardstick}
            | ({f"means of {width} steps": {"linestyle": ""}} if width > 1 else {})
            | ({"each seed": {**own[0], **PALE}} if own and seeds > 1 else {})
            | ({"other methods": ASIDE} if own and len(alone) > 1 else {})
            | lost.legend
        )

    multiples = Panels(
        stem,
        f"First steps of training on {first['task']}: " + (f"mean over {seeds} seeds" if seeds > 1 else "one seed"),
        caption,
        [(f"{PANELS['tau']}\n{name}", ("tau", name)) for name in alone],
        draw,
        "step",
        UNITS["tau"],
        legend=legend,
    )
    panels = [(PANELS.get(name, name), (name, "")) for name in names if name != "tau" or not alone]
    return [*([multiples] * bool(alone)), replace(multiples, panels=panels, y="", sharing={})]


def _name(row: Row) -> str:
    return at_budget(row, stability_label).replace("$", r"\$")


def _per_step(group: Sequence[Row], quantity: str) -> list[Sequence[float | None]]:
    """A quantity of each seed, step by step."""
    return [_condition(row) if quantity == CONDITION else row["per_step"].get(quantity) or [] for row in group]


def _condition(row: Row) -> Sequence[float | None]:
    """The condition number of the matrix that the method inverts, step by step."""
    return row["cond_per_step"].get(_core(row)) or []


def _core(row: Row) -> str:
    """The name of the matrix that the method inverts, or of its own, or nothing."""
    inverted = [name for name, entry in row["conditions"].items() if entry["inverted"]]
    return inverted[-1] if inverted else EXACT.get(row["method"], "")


Means = tuple[list[int], list[Sequence[float]], list[float]]  # steps, and the values of the seeds and their mean there


def _means(lists: Sequence[Sequence[float | None]], geometric: bool) -> Means:
    """The mean over the seeds at each step that all seeds reached."""
    columns = zip(*(values for values in lists if values), strict=False)
    points = {step: values for step, values in enumerate(columns, 1) if all(0 < (x or 0) < HUGE for x in values)}
    mean = geometric_mean if geometric else fmean
    return [*points], [*points.values()], [mean(values) for values in points.values()]


def _smooth(values: Sequence[float], width: int, geometric: bool) -> list[float]:
    """Means over so many steps; of those at the ends, the ones that there are."""
    mean = geometric_mean if geometric else fmean
    return [mean(values[max(0, place - width // 2) : place + width // 2 + 1]) for place in range(len(values))]
