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
from ...figures.kit import Scale, scale_of
from ...figures.looks import formula, in_words, sentence, symbol
from ...figures.methods import best_first, names_of, order_of, overspent, ranked, text_label
from ...figures.panels import Panels, draw_figures
from ...records.file import LOWER_BOUND
from ...tables.labels import file_tag, identity, source_heading, source_labels
from ...tables.long import Row
from ...tables.methods import spoiled_heads
from .heat_maps import Lines, Map, heat_maps, most_lines

if TYPE_CHECKING:
    from .record import ErrorRecord

Place = tuple[str | None, Any, Any]  # source, n, target
Maps = Mapping[tuple[str, Any], Map]  # of methods and budgets, whose lines are layers
Grid = tuple[Lines, list[tuple[str, Map]]]  # the lines of all maps of a figure, and the words and values of each


def head_figures(
    records: Sequence[ErrorRecord], rows: Sequence[Row], drawing: Drawing, out_dir: str | Path, metric: str
) -> list[Path]:
    """Draw ``metric`` over layers and heads: a figure for each (source, n, target).

    If methods are more than layers, they are the lines of a map for each layer and budget, in the order of `ranked`.
    Otherwise layers are the lines of a map for each method and budget.

    A cell is the mean of its finite values over windows and repeats. A figure has one logarithmic colour scale. It
    ends where the whiskers of a box plot of the logarithms end. Values beyond it have the colour of its end and a sign,
    and a map that lies beyond it as a whole says so. Cells with bad rows have ``!``. Grey cells were not measured or
    are not finite.

    Args:
        records: of ``attnprobe error``. rows: of `summarise`.
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
        many = len({method for method, _ in maps}) > len(layers)
        of_place = [row for row in rows if (row["source"], row["n"], row["target"]) == place]
        names = names_of(of_place)
        caption = [
            f"{sentence(in_words(metric))}, {formula(metric)}, of each layer and head: mean over windows and repeats.",
            "One logarithmic colour scale serves all maps; what lies beyond it has the colour of its end and a sign.",
            *([order_of(of_place, "medians")] if many else []),
            f"{sentence(facts)}.",
        ]
        scale = scale_of(np.array([values for values, _ in maps.values()]), symbol(metric))
        grids = (
            _by_method(maps, of_place, layers, facts, drawing)
            if many
            else [_by_layer(maps, names, layers, facts, scale)]
        )
        figures += [
            heat_maps(
                panels_,
                [names[line] if isinstance(line, str) else line for line in lines],
                heads,
                scale,
                len(_budgets(maps)) or 1,
                drawing,
                {names[text_label(row)] for row in of_place if row.get("reference")} if many else (),
                {names[label] for label in overspent(of_place)} if many else (),
                stem=stem,
                title=f"{sentence(in_words(metric))} head by head: mean over windows and repeats",
                caption=caption,
                x="head",
                y=best_first(of_place) if many else "layer",
            )
            for lines, panels_ in grids
        ]
    return draw_figures(figures, drawing, out_dir)


def _means(cells: Mapping[tuple[int, int], Sequence[float]], layers: Sequence[int], heads: Sequence[int]) -> Any:
    """The means, (layers, heads), NaN where there is none."""
    return np.array([[np.mean(cells.get((layer, head), math.nan)) for head in heads] for layer in layers])


def _by_layer(maps: Maps, names: Mapping[str, str], layers: Sequence[int], facts: str, scale: Scale) -> Grid:
    """A map for each method and budget, with a line for each layer; all is missing where a method has no map."""
    panels = []
    for method in dict.fromkeys(method for method, _ in maps):
        for d in [None] if (method, None) in maps else _budgets(maps):
            shown = _of(maps, method, d)
            out = beyond(shown[0].flat, scale.low, scale.high).strip(" ()")
            panels.append((_title(names[method], d, out, facts), shown))
    return layers, panels


def _by_method(maps: Maps, rows: Sequence[Row], layers: Sequence[int], facts: str, drawing: Drawing) -> list[Grid]:
    """A map for each layer and budget, with a line for each method, of as many methods as a page has."""
    measured = [row for row in rows if (text_label(row), row["d"]) in maps]
    methods = ranked(measured, lambda line: float(np.nanmedian(maps[text_label(line[0]), line[0]["d"]][0])))
    grids = []
    for lines in chunks(methods, math.ceil(len(methods) / math.ceil(len(methods) / most_lines(drawing)))):
        panels = []
        for place, layer in enumerate(layers):
            for d in _budgets({key: maps[key] for key in maps if key[0] in lines}) or [None]:
                shown = [_of(maps, method, d) for method in lines]
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
