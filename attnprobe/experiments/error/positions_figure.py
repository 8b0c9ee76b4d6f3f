"""Row metrics over position: the attention mass of the selected keys, and the error of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...figures.drawing import Drawing
from ...figures.kit import plain_ticks
from ...figures.methods import flagged, legend_text, panel_title, rank_of, styles_of, text_label, where
from ...figures.panels import Panels, draw_figures, panels_of
from ...tables.long import Row

PANELS = {"mass": "mass of the keys used", "row_error": "relative error of a row"}


def positions_figure(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw the mass and the row error of each method over the position of the query.

    A row of panels for each (source, layer, n), a line for each method and budget; larger budgets have larger markers.
    Points are means over heads, windows, repeats, and the queries at positions 2^a to 2^(a+1) - 1, counted from 1.
    References are grey.

    Args:
        out_dir: where ``positions.svg`` and the like are written (``-2``, … where there are many panels).

    Returns:
        The files' paths; none if no requested method has row metrics.
    """
    shown = [row for row in rows if row.get("profile")]
    if all(row.get("reference") for row in shown):
        return []
    shown.sort(key=lambda row: bool(row.get("reference")))
    styles = styles_of(rows, shown)
    flags = flagged(shown)

    def title(row: Row) -> str:
        return panel_title({**row, "target": "softmax"})

    def draw(axis: Any, panel: tuple[str, Sequence[Row]]) -> None:
        name, group = panel
        budgets = sorted({row["d"] for row in group if row["d"] is not None})
        for row in group:
            _line(axis, row, name, styles[text_label(row)], budgets)
        axis.set_xscale("log", base=2)
        plain_ticks(axis.xaxis, axis.get_xlim())
        axis.set_ylabel(PANELS[name])
        axis.set_ylim(*((-0.06, 1.06) if name == "mass" else (0, None)))

    figure = Panels(
        "positions",
        "Mass and row error over position: means",
        _caption(shown),
        [(place, (name, group)) for place, group in panels_of(shown, title) for name in PANELS],
        draw,
        "tokens up to the query",
        legend={legend_text(label, flags): style for label, style in styles.items()},
        columns=len(PANELS),
        sharing={"sharex": True},
    )
    return draw_figures([figure], drawing, out_dir)


def _line(
    axis: Any,
    row: Row,
    name: str,
    style: Mapping[str, Any],
    budgets: Sequence[int],
) -> None:
    profile = row.get("profile") or {}
    points = [(x, y) for x, y in zip(profile["keys"], profile.get(name, ()), strict=False) if y is not None]
    if points:
        size = 3.5 + 3 * rank_of(row["d"], budgets)
        axis.plot(*zip(*points, strict=True), **{**style, "markersize": size})


def _caption(rows: Sequence[Row]) -> list[str]:
    lines = [
        "Left: the exact weight of the keys that a method uses. Right: ‖o~ − o‖ / ‖o‖.",
        "Points are means over the queries with 2^a to 2^(a+1) − 1 tokens up to their own.",
    ]
    budgets = sorted({row["d"] for row in rows if row["d"] is not None})
    lines += ["Larger markers: larger budgets d."] if len(budgets) > 1 else []
    return [*lines, where(rows, "heads", "windows", "repeats")]
