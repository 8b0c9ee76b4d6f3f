"""Errors head by head, as heat maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...figures.drawing import Drawing
from ...figures.ends import beyond
from ...figures.files import chunks
from ...figures.kit import EMPTY, cell_text, heat_map, scale_of
from ...figures.looks import formula, in_words, sentence, symbol
from ...figures.methods import BAD, text_label
from ...figures.panels import Panels, balanced, draw_figures
from ...records.file import LOWER_BOUND
from ...tables.labels import file_tag, identity, source_heading, source_labels
from ...tables.methods import spoiled_heads

if TYPE_CHECKING:
    from .record import ErrorRecord

Place = tuple[str | None, Any, Any]  # source, n, target
Map = tuple[Any, Any]  # values, and whether a cell has bad rows, both (layers, heads)

ACROSS = 5  # budgets of a figure
MAP = 2.1  # inches of a map at a single budget
CELL = 0.085  # inches of a cell, at least
FITTED = 0.14  # inches of a cell, to which cells shrink so that all maps are on a page
GAP, WORDS, AROUND = 0.14, 0.35, 0.66  # inches between maps, of their titles and numbers, and of all else on a page
MISSING = "not measured, or not finite"
SIGNS = {"!": BAD, "+": "above the scale", "−": "below the scale"}  # in cells
BLANK = {"color": EMPTY, "linestyle": "", "marker": "s", "markersize": 7}
NOTHING = {"linestyle": "", "marker": ""}


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
    scale = scale_of(every, symbol(metric))
    low, high = scale.low, scale.high
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
