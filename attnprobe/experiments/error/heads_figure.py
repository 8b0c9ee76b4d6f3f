"""Errors head by head, as heat maps whose lines are methods or layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...figures.drawing import Drawing
from ...figures.ends import beyond
from ...figures.files import chunks
from ...figures.kit import EMPTY, LEADING, Scale, cell_text, heat_map, panel_name, scale_of, word_inches
from ...figures.looks import formula, in_words, sentence, symbol
from ...figures.methods import BAD, text_label
from ...figures.panels import Panels, balanced, draw_figures
from ...records.file import LOWER_BOUND
from ...tables.labels import file_tag, identity, source_heading, source_labels
from ...tables.methods import spoiled_heads

if TYPE_CHECKING:
    from .record import ErrorRecord

Place = tuple[str | None, Any, Any]  # source, n, target
Map = tuple[Any, Any]  # values, and whether a cell has bad rows, both (lines, heads)
Maps = Mapping[tuple[str, Any], Map]  # of methods and budgets, whose lines are layers
Lines = Sequence[int | str]  # of a map, layers or names of methods
Grid = tuple[Lines, list[tuple[str, Map]]]  # the lines of all maps of a figure, and the words and values of each

CELL, WIDEST = 0.085, 0.4  # inches of a cell's width, at least and at most
HIGHEST = 0.24  # inches of its height, at most, on a page that is no slide
CLEAR = {False: 0.12, True: 0.17}  # inches beyond which cells need not be larger, by whether the page is a slide
FEWEST = 7  # heads that a map has room for, at least
GAP, WORDS, AROUND = 0.14, 0.35, 0.9  # inches between maps, of their titles and numbers, and of all else on a page
NAMES = 0.3  # of the width of a page, that names of methods have at most
BAR, ROW = 0.75, 0.2  # inches of the colour scale, and of the names of rows of maps
MISSING = "not measured, or not finite"
SIGNS = {"!": BAD, "+": "above the scale", "−": "below the scale"}  # in cells
BLANK = {"color": EMPTY, "linestyle": "", "marker": "s", "markersize": 7}
NOTHING = {"linestyle": "", "marker": ""}
RANKED = "Methods stand by rising medians at the largest d; those without d stand below, once for each layer."


def head_figures(records: Sequence[ErrorRecord], drawing: Drawing, out_dir: str | Path, metric: str) -> list[Path]:
    """Draw ``metric`` over layers and heads: a figure for each (source, n, target).

    If methods are more than layers, they are the lines of a map for each layer and budget. They stand by rising medians
    at their largest budget, and those without one stand below, once for each layer. Otherwise layers are the lines of a
    map for each method and budget.

    A cell is the mean of its finite values over windows and repeats. A figure has one logarithmic colour scale. It
    ends where the whiskers of a box plot of the logarithms end. Values beyond it have the colour of its end and a sign,
    and a map that lies beyond it as a whole says so. Cells with bad rows have ``!``. Grey cells were not measured or
    are not finite.

    Args:
        records: of ``attnprobe error``.
        out_dir: where ``heads-METRIC-nN.svg`` and the like are written (``-2``, … of many maps or methods).

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
        last = sorted(by_method, key=lambda key: (key[1] is None, (place, key[0]) in references))
        by_method = {key: by_method[key] for key in last if by_method[key]}
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
        facts = ", ".join(filter(None, [headings[place], f"n = {place[1]}", target]))
        ranked = len({method for method, _ in maps}) > len(layers)
        caption = [
            f"{sentence(in_words(metric))}, {formula(metric)}, of each layer and head: mean over windows and repeats.",
            "One logarithmic colour scale serves all maps; what lies beyond it has the colour of its end and a sign.",
            *([RANKED] if ranked else []),
            f"{sentence(facts)}.",
        ]
        scale = scale_of(np.array([values for values, _ in maps.values()]), symbol(metric))
        for grid in _by_method(maps, layers, facts, drawing) if ranked else [_by_layer(maps, layers, facts, scale)]:
            figures.append(_figure(grid, heads, len(_budgets(maps)) or 1, scale, stem, caption, metric, drawing))
    return draw_figures(figures, drawing, out_dir)


def _means(cells: Mapping[tuple[int, int], Sequence[float]], layers: Sequence[int], heads: Sequence[int]) -> Any:
    """The means, (layers, heads), NaN where there is none."""
    return np.array([[np.mean(cells.get((layer, head), math.nan)) for head in heads] for layer in layers])


def _by_layer(maps: Maps, layers: Sequence[int], facts: str, scale: Scale) -> Grid:
    """A map for each method and budget, with a line for each layer; all is missing where a method has no map."""
    panels = []
    for method in dict.fromkeys(method for method, _ in maps):
        for d in [None] if (method, None) in maps else _budgets(maps):
            shown = _of(maps, method, d)
            out = beyond(shown[0].flat, scale.low, scale.high).strip(" ()")
            panels.append((_title(method, d, out, facts), shown))
    return layers, panels


def _by_method(maps: Maps, layers: Sequence[int], facts: str, drawing: Drawing) -> list[Grid]:
    """A map for each layer and budget, with a line for each method, of as many methods as a page has.

    Those without a budget are the last lines, and only the first map of a layer has them.
    """
    medians: dict[str, float] = {}
    for (method, _), (values, _) in sorted(maps.items(), key=lambda one: one[0][1] or 0):
        medians[method] = float(np.nanmedian(values))  # at last, that of the largest budget
    flat = [method for method, d in maps if d is None]
    methods = [*sorted({*medians} - {*flat}, key=lambda method: (medians[method], method)), *flat]
    most = int((drawing.sizes.tall - AROUND - WORDS - GAP) / (drawing.small * LEADING / 72))
    grids = []
    for lines in chunks(methods, math.ceil(len(methods) / math.ceil(len(methods) / most))):
        panels = []
        for place, layer in enumerate(layers):
            for number, d in enumerate(_budgets({key: maps[key] for key in maps if key[0] in lines}) or [None]):
                shown = [_of(maps, method, d) for method in lines if number == 0 or method not in flat]
                values, spoiled = (np.array([one[place] for one in part]) for part in zip(*shown, strict=True))
                panels.append((_title(f"layer {layer}", d, facts), (values, spoiled)))
        grids.append((lines, panels))
    return grids


def _title(first: str, d: int | None, *more: str) -> str:
    return ", ".join(filter(None, [first, "" if d is None else f"d = {d}", *more]))


def _of(maps: Maps, method: str, d: int | None) -> Map:
    """The map of a method at a budget, or its only one; all is missing where it has none."""
    missing = np.full_like(next(iter(maps.values()))[0], math.nan)
    return maps.get((method, None)) or maps.get((method, d)) or (missing, np.zeros(missing.shape, bool))


def _budgets(maps: Maps) -> list[int]:
    return sorted({d for _, d in maps if d is not None})


def _figure(
    grid: Grid,
    heads: Sequence[int],
    budgets: int,
    scale: Scale,
    stem: str,
    caption: Sequence[str],
    metric: str,
    drawing: Drawing,
) -> Panels:
    """A map for each panel, with the budgets of a line of blocks beside each other."""
    (lines, panels), low, high = grid, scale.low, scale.high
    named = isinstance(lines[0], str)
    if named:
        lines = [panel_name(str(line), NAMES * drawing.sizes.wide, drawing.small) for line in lines]
    columns, wide, tall = _sizes(lines, heads, len(panels), budgets, drawing)

    def draw(axis: Any, shown: Map) -> None:
        values, signs = shown[0], _signs(shown, low, high)
        positive = np.where(np.isfinite(values), np.maximum(values, low), math.nan)  # zero has no logarithm
        heat_map(axis, positive, lines, heads, tall / wide, linewidth=0.3, **scale.look)
        for place in zip(*np.nonzero(np.any([*signs.values()], axis=0)), strict=True):
            text = "".join(sign for sign, there in signs.items() if there[place])
            cell_text(axis, place, text, min(wide, tall), bool(values[place] < math.sqrt(low * high)))
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
        "" if named else "layer",
        width=0.99 * drawing.sizes.wide / columns,
        legend=legend,
        height=GAP + WORDS + tall * len(lines),
        columns=columns,
        sharing={"sharex": True},
        scale=scale,
    )


def _sizes(lines: Lines, heads: Sequence[int], panels: int, budgets: int, drawing: Drawing) -> tuple[int, float, float]:
    """Maps in a row, and the width and height of a cell, in inches.

    A row has all budgets of as many blocks as have room, unless cells are larger with fewer. If one block has no room,
    a row has a part of its budgets.
    """
    sizes, letter, names = drawing.sizes, drawing.small, [str(line).splitlines() for line in lines]
    room = sizes.wide - BAR - ROW - max(word_inches(word, letter) for name in names for word in name)
    blocks, clear = math.ceil(panels / budgets), CLEAR[sizes.fixed]

    def cell(columns: int) -> tuple[float, float]:
        wide = min(WIDEST, (room / columns - GAP) / max(len(heads), FEWEST))
        fitting = ((sizes.tall - AROUND) / math.ceil(panels / columns) - WORDS - GAP) / len(lines)  # on one page
        return wide, min(2 * wide if sizes.fixed else min(HIGHEST, wide), fitting)

    parts = [part for part in range(budgets, 0, -1) if budgets % part == 0]
    whole = [balanced(blocks, most) * budgets for most in range(blocks, 1, -1)] + parts[:1]
    possible = [columns for columns in whole if cell(columns)[0] >= CELL]
    columns = max(possible, key=lambda columns: min(*cell(columns), clear), default=0)
    columns = columns or next((part for part in parts if cell(part)[0] >= CELL), 1)
    wide, tall = cell(columns)
    return columns, wide, max(tall, max(map(len, names)) * letter * LEADING / 72)


def _signs(shown: Map, low: float, high: float) -> dict[str, Any]:
    """The cells, (lines, heads), that have each of `SIGNS`."""
    values, spoiled = shown
    return dict(zip(SIGNS, (spoiled, values > high, values < low), strict=True))
