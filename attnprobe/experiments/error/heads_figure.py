"""Errors head by head: one heat map of layers x heads for each method and budget, all on one colour scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...figures.drawing import Drawing
from ...figures.files import chunks, drawn, tiles
from ...figures.heat import colour_bar, colours, heat_map
from ...figures.kit import Sheet, canvas
from ...figures.methods import text_label
from ...figures.words import formula, in_words, sentence, symbol
from ...records.file import LOWER_BOUND
from ...tables.labels import file_tag, identity, source_heading, source_labels

if TYPE_CHECKING:
    from .record import ErrorRecord

Place = tuple[str | None, Any, Any]  # source, n, target

ACROSS, DOWN = 5, 6  # budgets and methods of a figure
DECADES = 2.0  # of the colour scale on either side of the median, at most


def head_figures(records: Sequence[ErrorRecord], drawing: Drawing, out_dir: str | Path, metric: str) -> list[Path]:
    """Draw ``metric`` over layers and heads: a figure for each (source, n, target), a panel per method and budget.

    A cell is the mean of its finite values over windows and repeats. A figure has one logarithmic colour scale. It
    reaches at most two decades from the median; values beyond it have the colour of its end. Grey cells were not
    measured or are not finite.

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
    for record in records:
        if record["method"] == LOWER_BOUND:
            continue
        source = labels[identity(record["source"])]
        place = (source, record["n"], record.get("target"))
        if record.get("reference"):
            references.add((place, text_label(record)))
        headings[place] = source_heading({"source": source, "weights": record["source"].get("weights")})
        cells = panels.setdefault(place, {}).setdefault((text_label(record), record.get("d")), {})
        values = record["metrics"].get(metric)
        for head, value in zip(record["heads"], values if isinstance(values, list) else (), strict=False):
            if value is not None and math.isfinite(value):
                cells.setdefault((record["layer"], head), []).append(value)
    paths: list[Path] = []
    for place, by_method in panels.items():
        order = sorted(by_method, key=lambda key: (place, key[0]) in references)  # references last
        by_method = {key: by_method[key] for key in order if by_method[key]}
        layers = sorted({layer for cells in by_method.values() for layer, _ in cells})
        heads = sorted({head for cells in by_method.values() for _, head in cells})
        if len(layers) < 2:
            continue
        stem = Path(out_dir) / f"heads-{metric}-n{place[1]}{file_tag(place[0])}"
        stem = stem if place[2] == "softmax" else stem.with_name(stem.name + file_tag(str(place[2])))
        maps = {key: _matrix(cells, layers, heads) for key, cells in by_method.items()}
        scale = _scale(maps.values())
        place_words = ", ".join(filter(None, [headings[place], f"n = {place[1]}", f"target {place[2]}"]))
        methods = list(dict.fromkeys(method for method, _ in maps))
        budgets = sorted({d for _, d in maps if d is not None}) or [None]

        def draw(page: Any, maps=maps, layers=layers, heads=heads, scale=scale, place_words=place_words) -> Sheet:
            return _figure(maps, page[0], page[1], layers, heads, scale, metric, drawing, place_words)

        down = min(DOWN, drawing.sizes.down(0.6 + 0.12 * len(layers)))
        across = min(ACROSS, drawing.sizes.across(0.5 + 0.12 * max(len(heads), 7)))
        paths += drawn(tiles(methods, budgets, down, across), draw, stem, drawing)
    return paths


def _matrix(cells: Mapping[tuple[int, int], Sequence[float]], layers: Sequence[int], heads: Sequence[int]) -> Any:
    """The means, (layers, heads), NaN where there is none."""
    mean = lambda place: float(np.mean(cells[place])) if place in cells else math.nan
    return np.array([[mean((layer, head)) for head in heads] for layer in layers])


def _scale(maps: Any) -> tuple[float, float]:
    """The ends of the colour scale."""
    values = np.concatenate([one[np.isfinite(one) & (one > 0)] for one in maps] or [np.ones(1)])
    if not values.size:
        return 0.1, 1.0
    middle = float(np.median(values))
    low, high = max(float(values.min()), middle / 10**DECADES), min(float(values.max()), middle * 10**DECADES)
    return (low, high) if high > 1.01 * low else (low / 1.5, high * 1.5)


def _figure(
    maps: Mapping[tuple[str, Any], Any],
    methods: Sequence[str],
    budgets: Sequence[Any],
    layers: Sequence[int],
    heads: Sequence[int],
    scale: tuple[float, float],
    metric: str,
    drawing: Drawing,
    place_words: str,
) -> Sheet:
    shape = (len(methods), len(budgets))
    wide = (drawing.sizes.inches(len(budgets)) - 0.9) / len(budgets)
    cell = min(0.24, (wide - 0.3) / max(len(heads), 7))  # inches
    tall = (0.5 + cell * max(len(layers), 5)) * len(methods) + 0.3
    title = f"{sentence(in_words(metric))} head by head: mean over windows and repeats"
    caption = [
        f"{sentence(in_words(metric))}, {formula(metric)}, of each layer and head: mean over windows and repeats.",
        "One logarithmic colour scale serves all maps, and what lies beyond it has the colour of its end.",
        f"Grey: not measured, or not finite. {sentence(place_words)}.",
    ]
    sheet, panels = canvas(drawing, title, caption, tall, shape)
    mesh, look = None, {**colours(scale), "linewidth": 0.3}
    for down, (method, axes) in enumerate(zip(methods, chunks(panels, len(budgets)), strict=True)):
        row = [maps.get((method, d)) for d in budgets]
        if all(one is None for one in row) and budgets[0] is not None:  # methods without a budget have column 0
            row[0] = maps.get((method, None))
        first = next((place for place, one in enumerate(row) if one is not None), 0)
        for across, (d, values, axis) in enumerate(zip(budgets, row, axes, strict=True)):
            if values is None:
                axis.set_visible(False)
                continue
            positive = np.where(np.isfinite(values), np.maximum(values, scale[0]), math.nan)  # zero has no logarithm
            mesh = heat_map(axis, positive, layers, heads, across == first, down == len(methods) - 1, **look)
            budget = "" if (method, d) not in maps or d is None else f"d = {d}"
            name = method if across == first else ""
            axis.set_title("\n".join(filter(None, [name, budget])) or " ", fontsize="medium")
    colour_bar(sheet, panels, mesh, scale, symbol(metric), extend="both")
    return sheet
