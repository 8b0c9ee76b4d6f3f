"""Figures of ``attnprobe inject``: the drift of each layer, and local error against drift."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

from ...figures.drawing import Drawing
from ...figures.files import chunks, drawn
from ...figures.kit import Sheet, columns_of, grid, legend, legend_below, legend_columns, logarithmic
from ...figures.methods import HUGE, MOST_IN_PANEL, styles_of, text_label, where
from ...tables.labels import file_tag
from ...tables.long import Row
from ...tables.methods import family
from ...tables.statistics import rank_correlation
from ...tables.table import grouped_by
from .rows import inject_points, mean

Panel = tuple[int | None, str | None]  # a budget, and a family where each has a panel

WIDTH, HEIGHT = 2.2, 2.2  # inches of a panel
COUNTED = ("windows", "repeats")
LEAST = 1e-16  # a divergence of 0 is drawn here, on its logarithmic axis
SPAN = 1e4  # below the middle: rounding errors of exact methods do not stretch an axis
DRIFT = r"drift $\|\tilde{H}-H\|_F\;/\;\|H\|_F$"
LOCAL = r"local error $\|(B-\tilde{B})V\|_F\;/\;\|BV\|_F$"


def inject_figures(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw the rows of layers that were replaced one by one, for each (source, n).

    ``inject-layers-nN``: the drift of each layer alone, and that of all layers together; a line for each method, a
    panel for each budget. ``inject-local-nN``: local error against drift, a point for each layer, with the rank
    correlation of each method. More than 8 methods have a panel for each family. Drifts four decades below the middle,
    such as those of exact methods, lie outside the panels and are named in the legend. ``inject-steps-nN``: the KL
    divergence of each step of decoding in all layers.

    Returns:
        The files' paths; none if no layer stands alone and nothing was decoded.
    """
    paths: list[Path] = []
    decoded = [row for row in rows if row["steps"] is not None and row["layer"] is None]
    for group in grouped_by(decoded, "source", "n", "prefix"):
        stem = Path(out_dir) / f"inject-steps-n{group[0]['n']}{file_tag(group[0]['source'])}"
        paths += drawn(
            chunks(_budgets(group), drawing.sizes.down(HEIGHT)), partial(_steps, group, drawing), stem, drawing
        )
    drawable = [row for row in rows if 0 < _drift(row) <= HUGE]
    for group in grouped_by(drawable, "source", "n"):
        points = [row for row in group if row["layer"] is not None and _local_error(row) > 0]
        n, source = group[0]["n"], group[0]["source"]
        alone = any(row["layer"] is not None for row in group)
        for name, draw, shown in (("layers", _profile, group), ("local", _local, points if alone else [])):
            if shown and alone:
                stem = Path(out_dir) / f"inject-{name}-n{n}{file_tag(source)}"
                pages = [(shown, panels) for panels in _pages(shown, drawing)]
                paths += drawn(pages, lambda page, draw=draw: draw(*page, drawing), stem, drawing)
    return paths


def _budgets(rows: Sequence[Row]) -> list[int | None]:
    """The budgets, one panel each. Methods without a budget are in every panel."""
    return [*sorted({row["d"] for row in rows if row["d"] is not None})] or [None]


def _steps(rows: Sequence[Row], drawing: Drawing, budgets: Sequence[int | None]) -> Sheet:
    """The KL divergence of each step of decoding, a panel for each budget."""
    title = "KL divergence of each step of decoding: mean over windows and repeats"
    prefix, styles = rows[0]["prefix"] or 0, styles_of(rows)
    caption = [
        "KL(p ‖ p~) of the next word's distribution, of exact attention and with a method in all layers, at the text's "
        f"own tokens behind {prefix} tokens that exact attention read: means. {where(rows, *COUNTED)}"
    ]
    names = ["" if d is None else f"d = {d}" for d in budgets]
    sheet, axes = grid(drawing, title, caption, names, 2 * WIDTH, HEIGHT, 1)
    handles = {}
    for axis, d in zip(axes, budgets, strict=True):
        for row in rows:
            if row["d"] in (None, d):
                label = text_label(row)
                kl = [nan if value is None else max(value, LEAST) for value in (row["steps"] or {})["kl"]]
                places = range(prefix, prefix + len(kl))
                handles[label] = axis.plot(places, kl, **{**styles[label], "marker": None, "linewidth": 1})[0]
        axis.set_yscale("log")
        axis.set_ylabel("KL, nats")
    axes[-1].set_xlabel("token that the step reads")
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    legend(sheet, handles, legend_columns([*handles], drawing.sizes.inches(1)))
    return sheet


def _profile(rows: Sequence[Row], panels: Sequence[Panel], drawing: Drawing) -> Sheet:
    """The drift of each layer alone, and of all layers."""
    title = "Drift with a method in one layer, and in all: mean over windows and repeats"
    caption = [
        "Relative change of the last hidden states, ‖H~ − H‖F / ‖H‖F, with a method in one layer, and in all layers "
        f"together (all): means. {where([{**row, 'layer': None} for row in rows], *COUNTED)}",
    ]
    layers = sorted({row["layer"] for row in rows if row["layer"] is not None})
    spots = {layer: place for place, layer in enumerate(layers)} | {None: len(layers) + 0.3}

    def draw(axis: Any, group: Sequence[Row], style: dict[str, Any]) -> Any:
        alone = sorted((spots[row["layer"]], _drift(row)) for row in group if row["layer"] is not None)
        (line,) = axis.plot(*zip(*alone, strict=True), **style) if alone else axis.plot([], [], **style)
        for row in group:
            if row["layer"] is None:
                axis.plot([spots[None]], [_drift(row)], **{**style, "linestyle": ""})
        return line

    def finish(axis: Any) -> None:
        axis.set_yscale("log")
        axis.set_xticks([*spots.values()], [*map(str, layers), "all"])
        axis.axvline(len(layers) - 0.35, color="#cccccc", linewidth=0.8, zorder=0)
        axis.set_xlim(-0.4, len(layers) + 0.7)
        axis.set_xlabel("layer that is replaced")

    return _figure(rows, panels, drawing, (title, caption), draw, finish, lambda key, group: key)


def _local(rows: Sequence[Row], panels: Sequence[Panel], drawing: Drawing) -> Sheet:
    """Local error against drift, a point for each layer."""
    rho = rank_correlation(*zip(*inject_points(rows), strict=True))
    word = "" if rho is None else f" Over all {len(rows)} points it is {rho:+.2f}."
    title = "Local error of a layer against the drift that it causes: means; ρ: rank correlation"
    caption = [
        "Relative output error of the layer that is replaced, ‖(B − B~)V‖F / ‖BV‖F, against the relative change of the "
        "last hidden states, ‖H~ − H‖F / ‖H‖F: means, a point for each layer.",
        f"ρ is their rank correlation.{word} {where([{**row, 'layer': None} for row in rows], *COUNTED)}",
    ]

    def draw(axis: Any, group: Sequence[Row], style: dict[str, Any]) -> Any:
        points = [(_local_error(row), _drift(row)) for row in group]
        return axis.plot(*zip(*points, strict=True), **{**style, "linestyle": "", "alpha": 0.85})[0]

    def finish(axis: Any) -> None:
        logarithmic(axis)
        axis.set_xlabel(LOCAL)
        errors = [_local_error(row) for row in rows if _drift(row) >= _lowest(rows)]
        axis.set_xlim(min(errors) / 1.6, max(errors) * 1.6)

    def name(key: str, group: Sequence[Row]) -> str:
        own = rank_correlation(*zip(*inject_points(group), strict=True))
        return key if own is None else f"{key}, ρ = {own:+.2f}"

    return _figure(rows, panels, drawing, (title, caption), draw, finish, name)


def _figure(
    rows: Sequence[Row],
    panels: Sequence[Panel],
    drawing: Drawing,
    words: tuple[str, Sequence[str]],
    draw: Callable[[Any, Sequence[Row], dict[str, Any]], Any],
    finish: Callable[[Any], None],
    name: Callable[[str, Sequence[Row]], str],
) -> Sheet:
    """Panels on one scale, each with its legend below it."""
    styles = styles_of(rows)
    budgets = len({d for d, _ in panels})
    lowest = _lowest(rows)
    drifts = [_drift(row) for row in rows if _drift(row) >= lowest]
    shown = {panel: [row for row in rows if _in(row, panel)] for panel in panels}
    most = max(len({text_label(row) for row in group}) for group in shown.values())
    names = [_heading(panel) for panel in panels]
    sheet, axes = grid(drawing, *words, names, WIDTH, HEIGHT + 0.16 * most, budgets if 1 < budgets < 4 else 3)
    columns = columns_of(axes)
    for index, (axis, panel) in enumerate(zip(axes, panels, strict=True)):
        finish(axis)
        handles = {}
        for key, style in styles.items():
            group = [row for row in shown[panel] if text_label(row) == key]
            if group:
                handles[name(key, group) + _beneath(group, lowest)] = draw(axis, group, style)
        axis.set_ylim(min(drifts) / 1.6, max(drifts) * 1.6)
        axis.tick_params(labelbottom=True)
        axis.set_ylabel(DRIFT if index % columns == 0 else "")
        legend_width = min(2, legend_columns([*handles], drawing.sizes.inches(columns) / columns))
        legend_below(axis, handles, columnspacing=1.0, ncols=legend_width)
    return sheet


def _pages(rows: Sequence[Row], drawing: Drawing) -> list[Sequence[Panel]]:
    """The panels of each figure."""
    panels = _panels(rows, len({text_label(row) for row in rows}))
    return chunks(panels, min(3, drawing.sizes.across(WIDTH)) * drawing.sizes.down(HEIGHT))


def _drift(row: Row) -> float:
    return mean(row, "drift") or 0.0


def _local_error(row: Row) -> float:
    return mean(row, "local_error") or 0.0


def _lowest(rows: Sequence[Row]) -> float:
    """The smallest drift that is drawn."""
    ordered = sorted(_drift(row) for row in rows)
    return ordered[len(ordered) // 2] / SPAN


def _beneath(group: Sequence[Row], lowest: float) -> str:
    """The legend's note on a method below its panel."""
    most = max(_drift(row) for row in group)
    return f" (below, {most:.0e})" if most < lowest else ""


def _panels(rows: Sequence[Row], methods: int) -> list[Panel]:
    """A panel for each budget, or each family and budget of many methods. Methods without a budget are in all."""
    families = list(dict.fromkeys(map(family, rows))) if methods > MOST_IN_PANEL else [None]
    return [(d, one) for one in families for d in _budgets(rows)]


def _in(row: Row, panel: Panel) -> bool:
    return row["d"] in (None, panel[0]) and panel[1] in (None, family(row))


def _heading(panel: Panel) -> str:
    return ", ".join(filter(None, [panel[1], None if panel[0] is None else f"d = {panel[0]}"]))
