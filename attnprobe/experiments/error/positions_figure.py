"""Row metrics over position: the attention mass of the selected keys, and the error of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...figures.drawing import Drawing
from ...figures.files import chunks, drawn
from ...figures.kit import Sheet, canvas, legend, legend_columns, legend_inches, plain_ticks
from ...figures.methods import flagged, legend_text, panel_title, rank_of, styles_of, text_label, where
from ...tables.labels import source_heading
from ...tables.long import Row

HEIGHT = 2.2  # inches of a panel
PANELS = (("mass", "mass of the keys used"), ("row_error", "relative error of a row"))


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
    places = list(dict.fromkeys(map(_place, shown)))
    draw = lambda page: _page(page, shown, drawing, styles)
    return drawn(chunks(places, drawing.sizes.down(HEIGHT)), draw, Path(out_dir) / "positions", drawing)


def _page(
    places: Sequence[tuple[Any, ...]],
    rows: Sequence[Row],
    drawing: Drawing,
    styles: Mapping[str, dict[str, Any]],
) -> Sheet:
    shown = [row for row in rows if _place(row) in places]
    inches = drawing.sizes.inches(len(PANELS))
    tall, shape = HEIGHT * len(places) + 0.3 + legend_inches([*styles], inches), (len(places), len(PANELS))
    title = "Mass and row error over position: means"
    sheet, panels = canvas(drawing, title, _caption(shown), tall, shape, sharex=True)
    handles: dict[str, Any] = {}
    for place, axes in zip(places, chunks(panels, len(PANELS)), strict=True):
        panel_rows = [row for row in shown if _place(row) == place]
        budgets = sorted({row["d"] for row in panel_rows if row["d"] is not None})
        for (name, label), axis in zip(PANELS, axes, strict=True):
            for row in panel_rows:
                _line(axis, row, name, styles[text_label(row)], budgets, handles)
            axis.set_xscale("log", base=2)
            plain_ticks(axis.xaxis, axis.get_xlim())
            axis.tick_params(labelbottom=True)
            axis.set_xlabel("tokens up to the query" if place == places[-1] else "")
            axis.set_ylabel(label)
            axis.set_title(panel_title(panel_rows[0]))
        axes[0].set_ylim(-0.06, 1.06)
        axes[1].set_ylim(bottom=0)
    order = [label for label in styles if label in handles]
    marked = flagged(shown)
    legend(sheet, {legend_text(label, marked): handles[label] for label in order}, legend_columns(order, inches))
    return sheet


def _line(
    axis: Any,
    row: Row,
    name: str,
    style: Mapping[str, Any],
    budgets: Sequence[int],
    handles: dict[str, Any],
) -> None:
    profile = row.get("profile") or {}
    points = [(x, y) for x, y in zip(profile["keys"], profile.get(name, ()), strict=False) if y is not None]
    if points:
        size = 3.5 + 3 * rank_of(row["d"], budgets)
        (line,) = axis.plot(*zip(*points, strict=True), **{**style, "markersize": size})
        handles[text_label(row)] = line


def _caption(rows: Sequence[Row]) -> list[str]:
    lines = [
        "Left: the exact weight of the keys that a method uses. Right: ‖o~ − o‖ / ‖o‖.",
        "Points are means over the queries with 2^a to 2^(a+1) − 1 tokens up to their own.",
    ]
    budgets = sorted({row["d"] for row in rows if row["d"] is not None})
    lines += ["Larger markers: larger budgets d."] if len(budgets) > 1 else []
    return [*lines, where(rows, "heads", "windows", "repeats")]


def _place(row: Row) -> tuple[Any, ...]:
    return source_heading(row), row.get("layer"), row.get("n")
