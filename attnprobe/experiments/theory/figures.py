"""Figures of ``attnprobe theory``: measured values against bounds, statement by statement."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...figures.drawing import Drawing
from ...figures.kit import edge_ticks, logarithmic
from ...figures.looks import COLOURS, GREY
from ...figures.methods import HUGE, PROMISED, VACUOUS, facts, fitting, verdicts_legend, where
from ...figures.panels import Panels, draw_figures
from ...tables.labels import LETTERS, file_tag
from ...tables.long import Row
from ...tables.table import gathered, grouped_by
from .curves import theory_curves
from .record import VERDICTS

Colours = Mapping[int | None, str]  # of budgets

LOOKS: dict[str, dict[str, Any]] = {
    "holds": {"marker": "o", "markersize": 5},
    "violated": {"marker": "X", "markersize": 6.5},
    "undecided": {"marker": "D", "markersize": 4.5, "markerfacecolor": "none"},
    "vacuous": {"marker": "o", "markersize": 5, "markerfacecolor": "none"},
    "assumption not met": {"marker": "+", "markersize": 5.5},
}
ROUNDING = 1e-9  # measured values and a bound that are all nearer to 0 are drawn on an axis from -1 to 1
NEAR = 100  # the largest ratio on a linear axis
EDGE = 0.035  # of an axis, from its end to what is 0 or infinite
SLOT = 0.85  # of the space of a layer or ε, that its heads share


def theory_figures(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw the findings, and the curves of `theory_curves`.

    ``theory-bounds-nN``, for each (source, n): measured value against bound, a panel for each theorem, sense and
    statement in words, one point per head, layer and other parameter. The side beyond the bound is shaded. Colours are
    budgets, markers are verdicts. Values that are infinite, or not above 0 on a logarithmic axis, stand at an edge that
    says so; values that were not measured are omitted. Beyond a vacuous bound nothing is shaded. If the statements of a
    panel have several ε, or one bound, its values are drawn ε by ε, or layer by layer, with the bounds as lines.

    Returns:
        The files' paths.
    """
    findings = [row for row in rows if row["head"] is not None]
    known = [row for row in findings if None not in (row["verdict"], row["bound"], row["measured"])]
    bounds = [_bounds(group) for group in grouped_by(known, "source", "n")]
    return draw_figures([*bounds, *theory_curves(findings)], drawing, out_dir)


def _bounds(rows: Sequence[Row]) -> Panels:
    """A panel for each statement."""
    budgets = sorted({row["d"] for row in rows if row["d"] is not None})
    colours = {d: COLOURS[place % len(COLOURS)] for place, d in enumerate(budgets)} | {None: GREY}
    caption = [
        "What was measured against what is promised: a panel for each statement, a point for each head, layer and ε.",
        "Shaded: beyond a bound that is not vacuous. Colours are budgets, markers are verdicts.",
        *dict.fromkeys(f"{in_paper(row['paper'])}: {row['says'] or 'no statement is known'}." for row in rows),
        where(rows),
    ]
    return Panels(
        f"theory-bounds-n{rows[0]['n']}{file_tag(rows[0]['source'])}",
        "Measured against promised, head by head",
        caption,
        _titled(rows),
        partial(_panel, colours),
        legend=partial(verdicts_legend, LOOKS, colours, "measured beyond the bound"),
        width=2.25,
        height=2.3,
        sharing={},
    )


def in_paper(paper: str) -> str:
    """A paper by the name of its method, or else of its authors, and the theorem's place.

    >>> in_paper("Chen et al. 2021 (Skyformer), Theorem 2"), in_paper("Eckart & Young 1936, Mirsky 1960")
    ('Skyformer, Theorem 2', 'Eckart & Young 1936, Mirsky 1960')
    """
    found = re.match(r"(.*?[0-9]{4})(?: \(([^)]*)\))?, (.*)", paper)
    return f"{found[2] or found[1]}, {found[3]}" if found else paper


def _titled(rows: Sequence[Row]) -> list[tuple[str, Sequence[Row]]]:
    """A panel for each theorem, sense and statement in words, such as a method or a sign: what theorems have two of."""
    groups = gathered(rows, lambda row: (row["theorem"], row["sense"], *_in_words(row["at"])))
    count = Counter(group[0]["theorem"] for group in groups)
    panels = []
    for group in groups:
        several = count[group[0]["theorem"]] > 1
        words = ", ".join(_in_words(group[0]["at"])) or group[0]["sense"]
        panels.append((in_paper(group[0]["paper"]) + f"\n{words}" * several + f"\n{facts(rows)}", group))
    return panels


def _in_words(at: Mapping[str, Any]) -> list[str]:
    """The parameters of a statement that are words."""
    words = {name: value for name, value in at.items() if isinstance(value, str)}
    return [value if name in ("method", "of") else f"{name} {value}" for name, value in words.items()]


def _panel(colours: Colours, axis: Any, group: Sequence[Row]) -> None:
    """A statement: measured against bound on logarithmic axes of one range, or `_slots`."""
    sense, bounds = group[0]["sense"], [row["bound"] for row in group]
    varied = [name for name in group[0]["at"] if len({row["at"].get(name) for row in group}) > 1]
    if varied or (len(set(bounds)) == 1 and math.isfinite(bounds[0])):
        _slots(axis, group, varied, colours)
        return
    low, high = _range([row[name] for row in group for name in ("bound", "measured")])
    ends = _within(low, high)
    logarithmic(axis)
    axis.set_xlim(low, high)
    axis.set_ylim(low, high)
    told = _telling(group, ends, low, high)
    axis.fill_between(told, told, high if sense == "at most" else low, color=PROMISED, linewidth=0, zorder=0)
    axis.plot([low, high], [low, high], color="#999999", linewidth=0.8, zorder=1)
    _points(axis, group, colours, lambda row: tuple(np.clip([row["bound"], row["measured"]], *ends)))
    edge_ticks(axis.xaxis, _edges(bounds, ends))
    edge_ticks(axis.yaxis, _edges([row["measured"] for row in group], ends))
    axis.set_xlabel(f"promised: {sense}")
    axis.set_ylabel("measured")


def _telling(group: Sequence[Row], ends: tuple[float, float], low: float, high: float) -> tuple[float, float]:
    """The part of an axis to shade: all of it but the end where all bounds are vacuous."""
    told, vacuous = ([row["bound"] for row in group if (row["verdict"] == VACUOUS) == void] for void in (False, True))
    first, last = (end(np.clip(told, *ends)) if told else None for end in (min, max))
    if first is None or last is None:
        return low, low
    spare = ends[0] / low
    if group[0]["sense"] == "at most":
        return low, last * spare if max(vacuous, default=-math.inf) > last else high
    return first / spare if min(vacuous, default=math.inf) < first else low, high


def _slots(axis: Any, group: Sequence[Row], varied: Sequence[str], colours: Colours) -> None:
    """Measured values side by side for each value of the varied parameters, or else in each layer; bounds as lines."""
    sense = group[0]["sense"]
    measured, bounds = ([row[name] for row in group] for name in ("measured", "bound"))
    values = [value for value in (*measured, *bounds) if math.isfinite(value)] or [1.0]
    low, high = min(values), max(values)
    linear = low < 0 or high <= NEAR * max(low, 0.1)
    if linear:
        spare = max(0.08 * (high - low), 0.05 * abs(high))
        spare = spare if spare > ROUNDING else 1.0
        low, high = low - spare, high + spare
        ends = low + EDGE * (high - low), high - EDGE * (high - low)
        axis.yaxis.set_major_formatter("{x:.4g}")
    else:
        low, high = _range(values)
        ends = _within(low, high)
        logarithmic(axis, "y")

    slots = [tuple(row["at"][name] for name in varied) or (row["layer"],) for row in group]
    places = [(row["layer"] if varied else 0, row["head"], row["window"], row["d"] or 0) for row in group]
    names, order = sorted(set(slots)), sorted(set(places))
    wide, middle = SLOT / len(order), (len(order) - 1) / 2
    x = [names.index(one) + wide * (order.index(place) - middle) for one, place in zip(slots, places, strict=True)]
    lines = np.clip(bounds, low, high)
    told = np.array([row["verdict"] != VACUOUS for row in group])
    height = told * ((high if sense == "at most" else low) - lines)
    axis.bar(x, height, wide, lines, color=PROMISED, edgecolor=PROMISED, linewidth=0.3, zorder=0)
    axis.hlines(lines, np.array(x) - wide / 2, np.array(x) + wide / 2, color="#999999", linewidth=0.8, zorder=1)
    axis.set_ylim(low, high)
    axis.set_xlim(-0.5, len(names) - 0.5)
    x_of = dict(zip(map(id, group), x, strict=True))
    _points(axis, group, colours, lambda row: (x_of[id(row)], np.clip(row["measured"], *ends)), wide)
    axis.grid(False, axis="x")
    word = "{:g}" if varied else "layer {}"
    axis.set_xticks(range(len(names)), ["\n".join(map(word.format, name)) for name in names])
    heads = sorted({row["head"] for row in group})
    beside = f"heads {heads[0]} to {heads[-1]}" if len(heads) > 1 else f"head {heads[0]}"
    beside += ", by layer" if varied and len({row["layer"] for row in group}) > 1 else ""
    axis.set_xlabel("\n".join([*(LETTERS.get(name, name) for name in varied), beside]))
    promise = f"promised: {sense} {bounds[0]:.3g}" if len(set(bounds)) == 1 else f"line: promised, {sense}"
    axis.set_ylabel(f"measured\n{promise}")
    edge_ticks(axis.yaxis, _edges(measured, ends, -math.inf if linear else 0.0))


def _points(
    axis: Any, group: Sequence[Row], colours: Colours, at: Callable[[Row], tuple[float, float]], apart: float = math.inf
) -> None:
    for verdict in VERDICTS:
        for d, colour in colours.items():
            drawn = [at(row) for row in group if row["verdict"] == verdict and row["d"] == d]
            x, y = zip(*drawn, strict=True) if drawn else ((), ())
            look = {**LOOKS[verdict], "markersize": fitting(axis, LOOKS[verdict]["markersize"], apart)}
            axis.plot(x, y, linestyle="", color=colour, alpha=0.75, clip_on=False, in_layout=False, zorder=3, **look)


def _edges(values: Sequence[float], ends: tuple[float, float], least: float = 0.0) -> dict[float, str]:
    """The edges at which values are drawn that are beyond an axis, and what stands there.

    Args:
        least: what is at or below it stands at the lower end; nothing with -∞.
    """
    edges = {}
    if min(values) <= least:
        edges[ends[0]] = "0" if min(values) == 0 else "≤ 0"
    if math.inf in values:
        edges[ends[1]] = "∞"
    return edges


def _within(low: float, high: float) -> tuple[float, float]:
    """Where what is 0 or infinite lies on a logarithmic axis."""
    spare = (high / low) ** EDGE
    return low * spare, high / spare


def _range(values: Iterable[float]) -> tuple[float, float]:
    """From below the smallest positive value to above the largest, with two powers of ten within."""
    values_in_range = [min(max(value, 1 / HUGE), HUGE) for value in values if 0 < value < math.inf]
    low, high = (min(values_in_range), max(values_in_range)) if values_in_range else (0.1, 1.0)
    spare = max(1.6, (high / low) ** 0.08)
    low, high = low / spare, high * spare
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if sum(low <= 10.0**k <= high for k in range(first, last + 1)) < 2:
        low, high = min(low, 10.0**first), max(high, 10.0 ** (first + 1))
    return low, high
