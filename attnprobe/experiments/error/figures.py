"""Errors head by head, as heat maps, and row metrics over position."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from ...figures.drawing import Drawing
from ...figures.ends import beyond, lowest, outside, scale
from ...figures.files import chunks
from ...figures.kit import EMPTY, Scale, cell_text, heat_map, logarithmic
from ...figures.looks import formula, in_words, sentence, symbol
from ...figures.methods import (
    BAD,
    HUGE,
    MOST_IN_PANEL,
    flagged,
    legend_text,
    panel_title,
    parts,
    sign_legend,
    styles_of,
    text_label,
    where,
)
from ...figures.panels import Panels, balanced, draw_figures, panels_of
from ...records.file import LOWER_BOUND
from ...tables.labels import file_tag, identity, source_heading, source_labels
from ...tables.long import Row
from ...tables.methods import ROUNDING, spoiled_heads
from ...tables.table import gathered

if TYPE_CHECKING:
    from .record import ErrorRecord

Place = tuple[str | None, Any, Any]  # source, n, target
Map = tuple[Any, Any]  # values, and whether a cell has bad rows, both (layers, heads)

ACROSS = 5  # budgets of a figure
ROW = 3  # panels of mass and error that are one row
MAP = 2.1  # inches of a map at a single budget
CELL = 0.085  # inches of a cell, at least
FITTED = 0.14  # inches of a cell, to which cells shrink so that all maps are on a page
GAP, WORDS, AROUND = 0.14, 0.35, 0.66  # inches between maps, of their titles and numbers, and of all else on a page
WHISKER = 1.5  # ranges of the quartiles that a box plot's whiskers reach beyond them, here of logarithms
ABOVE = 10  # times V-Mean's median error: the end of an axis, unless V-Mean has larger ones
ALL = 0.99  # a method with more mass at every position has no curve of it
MISSING = "not measured, or not finite"
SIGNS = {"!": BAD, "+": "above the scale", "−": "below the scale"}  # in cells
BLANK = {"color": EMPTY, "linestyle": "", "marker": "s", "markersize": 7}
NOTHING = {"linestyle": "", "marker": ""}
EXTENDED = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
PANELS = {"mass": "mass of the keys used, mean", "row_error": "relative error of a row, mean"}


def head_figures(records: Sequence[ErrorRecord], drawing: Drawing, out_dir: str | Path, metric: str) -> list[Path]:
    """Draw ``metric`` over layers and heads: a figure for each (source, n, target), a panel per method and budget.

    A cell is the mean of its finite values over windows and repeats. A figure has one logarithmic colour scale. It
    ends where the whiskers of a box plot of the logarithms end. Values beyond it have the colour of its end and a sign,
    and a map that lies beyond it as a whole says so. Cells with bad rows have ``!``. Grey cells were not measured or
    are not finite.

    Args:
        records: of ``attnprobe error``.
        out_dir: where ``heads-METRIC-nN.svg`` and the like are written (``-2``, … of many budgets or methods).

    Returns:
        The files' paths; none if fewer than two layers hold the metric.
    """
    labels = source_labels(records)
    panels: dict[Place, dict[tuple[str, Any], dict[tuple[int, int], list[float]]]] = {}
    headings: dict[Place, str] = {}
    references: set[tuple[Place, str]] = set()
    spoiled: set[tuple[Any, ...]] = set()  # places of cells with bad rows
    for record in records:
        if record["method"] == LOWER_BOUND:
            continue
        source = labels[identity(record["source"])]
        place = (source, record["n"], record.get("target"))
        if record.get("reference"):
            references.add((place, text_label(record)))
        headings[place] = source_heading({"source": source, "weights": record["source"].get("weights")})
        key = text_label(record), record.get("d")
        spoiled |= {(place, *key, record["layer"], head) for head in spoiled_heads(record)}
        cells = panels.setdefault(place, {}).setdefault(key, {})
        values = record["metrics"].get(metric)
        for head, value in zip(record["heads"], values if isinstance(values, list) else (), strict=False):
            if value is not None:
                cells.setdefault((record["layer"], head), []).append(value)
    figures: list[Panels] = []
    for place, by_method in panels.items():
        order = sorted(by_method, key=lambda key: (place, key[0]) in references)  # references last
        by_method = {key: by_method[key] for key in order if by_method[key]}
        layers = sorted({layer for cells in by_method.values() for layer, _ in cells})
        heads = sorted({head for cells in by_method.values() for _, head in cells})
        if len(layers) < 2:
            continue
        stem = f"heads-{metric}-n{place[1]}{file_tag(place[0])}"
        stem += "" if place[2] == "softmax" else file_tag(str(place[2]))
        maps = {
            key: (
                _means(cells, layers, heads),
                np.array([[(place, *key, layer, head) in spoiled for head in heads] for layer in layers]),
            )
            for key, cells in by_method.items()
        }
        target = "" if place[2] == "softmax" else f"target {place[2]}"
        place_words = ", ".join(filter(None, [headings[place], f"n = {place[1]}", target]))
        caption = [
            f"{sentence(in_words(metric))}, {formula(metric)}, of each layer and head: mean over windows and repeats.",
            "One logarithmic colour scale serves all maps; what lies beyond it has the colour of its end and a sign.",
            f"{sentence(place_words)}.",
        ]
        budgets = sorted({d for _, d in maps if d is not None}) or [None]
        cell = CELL * (1 + drawing.sizes.fixed)  # which is read from afar
        across = min(ACROSS, drawing.sizes.across(0.3 + cell * max(len(heads), 7)))
        for part in chunks(budgets, across):
            figures.append(_heads(maps, part, (layers, heads), stem, caption, place_words, metric, drawing))
    return draw_figures(figures, drawing, out_dir)


def _means(cells: Mapping[tuple[int, int], Sequence[float]], layers: Sequence[int], heads: Sequence[int]) -> Any:
    """The means, (layers, heads), NaN where there is none."""
    return np.array([[np.mean(cells.get((layer, head), math.nan)) for head in heads] for layer in layers])


def _ends(maps: Any) -> tuple[float, float]:
    values = np.concatenate([one[np.isfinite(one) & (one > 0)] for one in maps])
    if not values.size:
        return 0.1, 1.0
    first, third = np.quantile(values, (0.25, 0.75))
    reach = (third / first) ** WHISKER
    low, high = float(max(values.min(), first / reach)), float(min(values.max(), third * reach))
    return (low, high) if high > 1.01 * low else (low / 1.5, high * 1.5)


def _heads(
    maps: Mapping[tuple[str, Any], Map],
    budgets: Sequence[Any],
    places: tuple[Sequence[int], Sequence[int]],
    stem: str,
    caption: Sequence[str],
    facts: str,
    metric: str,
    drawing: Drawing,
) -> Panels:
    """A map for each method and some budgets, grey where all is missing; methods without one are beside each."""
    layers, heads = places
    every = np.array([values for values, _ in maps.values()])
    low, high = _ends(every)
    beyond_it = bool((every < low).any()), bool((every > high).any())
    scale = Scale(low, high, symbol(metric), EXTENDED[beyond_it])
    methods = list(dict.fromkeys(method for method, _ in maps))
    several = len(budgets) > 1  # a row of panels for each method
    columns = len(budgets) if several else balanced(len(methods), drawing.sizes.across(MAP))
    wide = (drawing.sizes.inches(columns) - 0.9) / columns
    rows = math.ceil(len(methods) * len(budgets) / columns)
    spare = AROUND + rows * GAP + WORDS * (1 if several else rows)
    tall = (drawing.sizes.tall - spare) / rows / len(layers)  # inches of a cell, where all maps are on a page
    cell = min(0.24, (wide - 0.3) / max(len(heads), 7), max(FITTED, tall))
    missing = np.full((len(layers), len(heads)), math.nan), np.zeros((len(layers), len(heads)), bool)
    cells = [(method, None if (method, None) in maps else d) for method in methods for d in budgets]
    panels = []
    for method, d in cells:
        shown = maps.get((method, d), missing)
        words = [method, "" if d is None else f"d = {d}", beyond(shown[0].flat, low, high).strip(" ()")]
        panels.append((", ".join(filter(None, [*words, facts])), shown))

    def draw(axis: Any, shown: Map) -> None:
        values, signs = shown[0], _signs(shown, low, high)
        positive = np.where(np.isfinite(values), np.maximum(values, low), math.nan)  # zero has no logarithm
        heat_map(axis, positive, layers, heads, linewidth=0.3, **scale.look)
        for place in zip(*np.nonzero(np.any([*signs.values()], axis=0)), strict=True):
            text = "".join(sign for sign, there in signs.items() if there[place])
            cell_text(axis, place, text, cell, bool(values[place] < math.sqrt(low * high)))
        axis.tick_params(labelleft=axis.get_subplotspec().is_first_col())

    def legend(page: Sequence[Map]) -> dict[str, Any]:
        there = {sign for shown in page for sign, cells in _signs(shown, low, high).items() if cells.any()}
        blank = {MISSING: BLANK} if any(np.isnan(values).any() for values, _ in page) else {}
        return blank | {f"{sign} {words}": NOTHING for sign, words in SIGNS.items() if sign in there}

    return Panels(
        stem,
        f"{sentence(in_words(metric))} head by head: mean over windows and repeats",
        caption,
        panels,
        draw,
        "head",
        "layer",
        width=min(1.3, wide),
        legend=legend,
        height=GAP + WORDS + cell * len(layers),
        columns=columns,
        sharing={"sharex": True},
        scale=scale,
    )


def _signs(shown: Map, low: float, high: float) -> dict[str, Any]:
    """The cells, (layers, heads), that have each of `SIGNS`."""
    values, spoiled = shown
    return dict(zip(SIGNS, (spoiled, values > high, values < low), strict=True))


def positions_figure(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw the mass and the row error of each method over the position of the query.

    A row of panels for each (source, layer, n) and budget, and for each `MOST_IN_PANEL` methods of it beside the user's
    own. Points are means over heads, windows, repeats, and the queries at positions 2^a to 2^(a+1) - 1, counted from 1;
    they stand at the geometric middle of these positions.
    Methods of nearly all mass have no curve of it, and without any other there is no panel of it. References are grey.

    Args:
        out_dir: where ``positions.svg`` and the like are written (``-2``, … where there are many panels).

    Returns:
        The files' paths; none if no requested method has row metrics.
    """
    shown = [row for row in rows if row.get("profile")]
    if all(row.get("reference") for row in shown):
        return []
    groups = _parts(shown)
    styles = styles_of(rows, shown)
    names = [name for name in PANELS if _has(shown, name)]
    yardstick = [y for row in shown if row.get("reference") for y in _errors(row)]
    high = max(ABOVE * median(yardstick), 1.3 * max(yardstick)) if yardstick else HUGE
    notes = outside(shown, _errors, lowest((y for row in shown for y in _errors(row)), high), high)

    def draw(axis: Any, panel: tuple[str, Sequence[Row]]) -> None:
        name, group = panel
        for row in group:
            if points := _curve(row, name):
                at, values = zip(*points, strict=True)
                drawn = values if name == "mass" else [y if y > ROUNDING else math.nan for y in values]
                axis.plot(at, drawn, **{**styles[text_label(row)], "markersize": 4})
        logarithmic(axis, "x")
        axis.set_ylabel(PANELS[name])
        if name == "mass":
            axis.set_ylim(-0.03, 1.03)
        else:
            scale(axis, [y for row in shown if _place(row) == _place(group[0]) for y in _errors(row)], high=high)

    def legend(page: Sequence[tuple[str, Sequence[Row]]]) -> dict[str, Any]:
        there = [row for _, group in page for row in group]
        labels, flags = {text_label(row) for row in there}, flagged(there)
        looks = {legend_text(label, flags) + notes.get(label, ""): styles[label] for label in styles if label in labels}
        return looks | sign_legend(there)

    panels = [[(title, (name, group)) for name in names if _has(group, name)] for title, group in groups]
    alike = gathered(panels, len) if sum(map(len, panels)) > ROW else [panels]  # those without mass are on other pages
    figures = [
        Panels(
            "positions",
            "Mass and row error over position: means",
            _of_positions(shown, names, notes),
            [*chain(*some)],
            draw,
            "position of the query",
            legend=legend,
            columns=2 if set(map(len, some)) == {2} else None,
            sharing={"sharex": True},
        )
        for some in alike
    ]
    return draw_figures(figures, drawing, out_dir)


def _parts(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """The rows of each place and budget, in parts if these are many; the user's methods and references are in all."""
    groups = []
    for place, group in panels_of(rows, _place):
        for d in sorted({row["d"] for row in group if row["d"] is not None}) or [None]:
            of_budget = [row for row in group if row["d"] in (None, d)]
            of_budget.sort(key=lambda row: not _curve(row, "mass"))  # a panel of mass has all of them, if it can
            split = parts(of_budget, MOST_IN_PANEL)
            for number, part in enumerate(split, 1):
                words = [*([f"d = {d}"] * (d is not None)), *([f"part {number} of {len(split)}"] * (len(split) > 1))]
                groups.append(("\n".join(filter(None, [place, ", ".join(words)])), part))
    return groups


def _curve(row: Mapping[str, Any], name: str) -> list[tuple[float, float]]:
    """The points of a row's curve, in the middle of their positions; none of nearly all mass everywhere.

    Where n is a power of two, the mean of the last position alone is left out: it is one query, beside means of many.
    """
    profile, n = row["profile"], row["n"]
    means = zip(profile["keys"], profile.get(name, ()), strict=False)
    points = [(math.sqrt(a * min(2 * a - 1, n)), y) for a, y in means if y is not None and a != n]
    return [] if name == "mass" and all(y > ALL for _, y in points) else points


def _place(row: Row) -> str:
    """The title of the panels of a source, layer and n, which have one scale."""
    return panel_title({**row, "target": "softmax"})


def _errors(row: Mapping[str, Any]) -> list[float]:
    """The errors of a row's curve."""
    return [y for _, y in _curve(row, "row_error")]


def _has(rows: Sequence[Row], name: str) -> bool:
    """Whether a method, other than a reference, has a curve."""
    return any(_curve(row, name) for row in rows if not row.get("reference"))


def _of_positions(rows: Sequence[Row], names: Sequence[str], notes: Mapping[str, str]) -> list[str]:
    lines = ["Mass is the exact weight of the keys that a method uses."] if "mass" in names else []
    lines += [f"Methods without a curve of mass have more than {ALL} everywhere."] if "mass" in names else []
    lines += [
        "The error of a row is ‖o~ − o‖ / ‖o‖." + " The legend names what lies outside the axis." * any(notes.values()),
        *(["Errors of rounding are not drawn."] * any(y <= ROUNDING for row in rows for y in _errors(row))),
        "Points are means over the queries at positions 2^a to 2^(a+1) − 1, at the geometric middle of these.",
    ]
    return [*lines, where(rows, "heads", "windows", "repeats")]
