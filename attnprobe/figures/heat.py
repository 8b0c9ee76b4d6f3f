"""Errors head by head: one heat map of layers x heads for each method and budget, all on one colour scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..records.file import LOWER_BOUND
from ..tables.labels import file_tag, identity, source_heading, source_labels
from .kit import SYMBOLS, fixed_settings, saved, title_lines
from .panels import text_label

__all__ = ["EMPTY", "head_figures", "head_ticks", "plain_ticks"]

Record = Mapping[str, Any]
Place = tuple[str | None, Any, Any]  # source, n, target

ACROSS, DOWN = 5, 6  # budgets and methods of a figure
DECADES = 2.0  # of the colour scale on either side of the median, at most
EMPTY = "#d9d9d9"  # what was not measured, or is not finite


def head_figures(records: Sequence[Record], header_line: str, out_dir: str | Path, metric: str) -> list[Path]:
    """Draw ``metric`` over layers and heads: a figure for each (source, n, target), a panel per method and budget.

    A cell is the mean over windows and repeats of its finite values. One logarithmic colour scale serves a figure; it
    reaches two decades from the median at most, and what lies beyond has the colour of its end. Grey was not measured
    or is not finite.

    Args:
        records: of ``attnprobe error``. header_line: the title: the source and every fallback.
        out_dir: where ``heads-METRIC-nN.svg`` and ``.png`` are written (``-2``, … beyond 5 budgets or 6 methods).

    Returns:
        The files' paths; none where fewer than two layers hold the metric.
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
    for place, found in panels.items():
        order = sorted(found, key=lambda key: (place, key[0]) in references)  # references last
        found = {key: found[key] for key in order if found[key]}
        layers = sorted({layer for cells in found.values() for layer, _ in cells})
        heads = sorted({head for cells in found.values() for _, head in cells})
        if len(layers) < 2:
            continue
        stem = Path(out_dir) / f"heads-{metric}-n{place[1]}{file_tag(place[0])}"
        stem = stem if place[2] == "softmax" else stem.with_name(stem.name + file_tag(str(place[2])))
        maps = {key: _matrix(cells, layers, heads) for key, cells in found.items()}
        scale = _scale(maps.values())
        told = ", ".join(filter(None, [headings[place], f"n = {place[1]}", f"target {place[2]}"]))
        with fixed_settings():
            for number, (methods, budgets) in enumerate(_pages(maps)):
                figure = _figure(maps, methods, budgets, layers, heads, scale, metric, header_line, told)
                paths += saved(figure, stem.with_name(f"{stem.name}{f'-{number + 1}' if number else ''}"))
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


def _pages(maps: Mapping[tuple[str, Any], Any]) -> list[tuple[list[str], list[Any]]]:
    """Methods and budgets of each figure; what has no budget stands in the first column."""
    methods = list(dict.fromkeys(method for method, _ in maps))
    budgets = sorted({d for _, d in maps if d is not None}) or [None]
    return [
        (methods[i : i + DOWN], budgets[j : j + ACROSS])
        for i in range(0, len(methods), DOWN)
        for j in range(0, len(budgets), ACROSS)
    ]


def _figure(
    maps: Mapping[tuple[str, Any], Any],
    methods: Sequence[str],
    budgets: Sequence[Any],
    layers: Sequence[int],
    heads: Sequence[int],
    scale: tuple[float, float],
    metric: str,
    title: str,
    told: str,
) -> Any:
    import matplotlib
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    cell = min(0.24, max(0.15, (4.6 / len(budgets) - 0.5) / max(len(heads), 7)))  # inches
    wide, high = 0.5 + cell * max(len(heads), 7), 0.55 + cell * max(len(layers), 5)
    inches = max(6.4, wide * len(budgets) + 1.9)
    lines = [*title_lines(title, int(inches * 15.5)), f"{told}: mean over windows and repeats, head by head"]
    tall = high * len(methods) + 0.5 + 0.16 * len(lines)
    figure = Figure(figsize=(inches, tall), layout="constrained")
    panels = figure.subplots(len(methods), len(budgets), squeeze=False)
    colours = matplotlib.colormaps["viridis"].with_extremes(bad=EMPTY)
    norm, mesh = LogNorm(*scale), None
    for down, method in enumerate(methods):
        row = [maps.get((method, d)) for d in budgets]
        if all(one is None for one in row) and budgets[0] is not None:
            row[0] = maps.get((method, None))
        first = next((place for place, one in enumerate(row) if one is not None), 0)
        for across, (d, values, axis) in enumerate(zip(budgets, row, panels[down], strict=True)):
            if values is None:
                axis.set_visible(False)
                continue
            drawn = np.where(np.isfinite(values), np.maximum(values, scale[0]), math.nan)  # zero has no logarithm
            look = {"cmap": colours, "norm": norm, "edgecolors": "white", "linewidth": 0.3}
            mesh = axis.pcolormesh(np.ma.masked_invalid(drawn), **look)
            axis.invert_yaxis()
            axis.set_aspect("equal")
            budget = "" if (method, d) not in maps or d is None else f"d = {d}"
            name = method if across == first else ""
            axis.set_title("\n".join(filter(None, [name, budget])) or " ", fontsize=8.5)
            head_ticks(axis, layers, heads, across == first, down == len(methods) - 1)
            for spine in axis.spines.values():
                spine.set_visible(False)
    place = {"ax": panels.ravel().tolist(), "pad": 0.02, "shrink": min(1.0, 3.2 / tall), "aspect": 24}
    bar = figure.colorbar(mesh, extend="both", **place)
    bar.set_label(SYMBOLS.get(metric, metric.replace("_", " ")))
    bar.outline.set_visible(False)
    plain_ticks(bar.ax.yaxis, scale)
    figure.suptitle("\n".join(lines), x=0.012, ha="left", fontsize=8, parse_math=False)
    return figure


def head_ticks(axis: Any, layers: Sequence[int], heads: Sequence[int], left: bool, lowest: bool) -> None:
    """Layers and heads by their numbers, at most about eight of each."""
    for numbers, set_ticks in ((heads, axis.set_xticks), (layers, axis.set_yticks)):
        step = -(-len(numbers) // 8)
        set_ticks([place + 0.5 for place in range(0, len(numbers), step)], [str(one) for one in numbers[::step]])
    axis.tick_params(length=0, pad=2, labelsize=7.5)
    axis.set_ylabel("layer" if left else "", fontsize=8)
    axis.set_xlabel("head" if lowest else "", fontsize=8)


def plain_ticks(axis: Any, scale: tuple[float, float]) -> None:
    """Round numbers without exponents where they are neither huge nor tiny."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if scale[1] < 300 * scale[0] else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
