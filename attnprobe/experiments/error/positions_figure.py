"""Row metrics over position: the attention mass of the selected keys, and the error of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...figures.drawing import Drawing
from ...figures.files import chunks
from ...figures.kit import plain_ticks
from ...figures.methods import HUGE, flagged, legend_text, panel_title, scale, styles_of, text_label, where
from ...figures.panels import Panels, draw_figures, panels_of
from ...tables.long import Row

MOST = 6  # methods of a panel
DEEP = 1e4  # from the largest error of a panel to the lower end of its axis
ALL = 1 - 1e-6  # the mass of methods that use every key
PANELS = {"mass": "mass of the keys used", "row_error": "relative error of a row"}


def positions_figure(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw the mass and the row error of each method over the position of the query.

    A row of panels for each (source, layer, n) and budget, and for each `MOST` methods of it. Points are means over
    heads, windows, repeats, and the queries at positions 2^a to 2^(a+1) - 1, counted from 1. Methods that use every key
    have no curve of mass, and without any other there is no panel of it. References are grey.

    Args:
        out_dir: where ``positions.svg`` and the like are written (``-2``, … where there are many panels).

    Returns:
        The files' paths; none if no requested method has row metrics.
    """
    shown = [row for row in rows if row.get("profile")]
    if all(row.get("reference") for row in shown):
        return []
    styles = styles_of(rows, shown)
    flags = flagged(shown)
    names = [name for name in PANELS if any(_drawn(row, name) for row in shown if not row.get("reference"))]
    lengths = len({row["d"] for row in shown if row["d"] is not None})

    def draw(axis: Any, panel: tuple[str, Sequence[Row]]) -> None:
        name, group = panel
        for row in group:
            if points := _drawn(row, name):
                axis.plot(*zip(*points, strict=True), **{**styles[text_label(row)], "markersize": 4})
        axis.set_xscale("log", base=2)
        plain_ticks(axis.xaxis, axis.get_xlim())
        axis.set_ylabel(PANELS[name])
        if name == "mass":
            axis.set_ylim(-0.03, 1.03)
        else:
            values = [y for row in group for _, y in _drawn(row, name)]
            scale(axis, values, False, max(values, default=1.0) / DEEP, HUGE)
            axis.set_ylim(top=1.3 * max(values, default=1.0))

    figure = Panels(
        "positions",
        "Mass and row error over position: means",
        _caption(shown, names),
        [(title, (name, group)) for title, group in _groups(shown, lengths > 1) for name in names],
        draw,
        "position of the query",
        legend={legend_text(label, flags): style for label, style in styles.items()},
        columns=len(names),
        sharing={"sharex": True},
    )
    return draw_figures([figure], drawing, out_dir)


def _groups(rows: Sequence[Row], with_d: bool) -> list[tuple[str, list[Row]]]:
    """The rows of each place and budget, in parts of at most `MOST` methods; references are in all."""
    groups = []
    for place, group in panels_of(rows, lambda row: panel_title({**row, "target": "softmax"})):
        always = [row for row in group if row.get("reference")]
        methods = [row for row in group if not row.get("reference")]
        for d in sorted({row["d"] for row in methods if row["d"] is not None}) or [None]:
            of_budget = [row for row in methods if row["d"] in (None, d)]
            count = -(-len(of_budget) // MOST)
            parts = chunks(of_budget, -(-len(of_budget) // count))
            for number, part in enumerate(parts, 1):
                title = f"{place}, d = {d}" if with_d else place
                groups.append((f"{title}, {number} of {len(parts)}" if len(parts) > 1 else title, [*part, *always]))
    return groups


def _drawn(row: Row, name: str) -> list[tuple[int, float]]:
    """The points of a row's curve; none of a mass that is 1 everywhere."""
    profile = row["profile"]
    points = [(x, y) for x, y in zip(profile["keys"], profile.get(name, ()), strict=False) if y is not None]
    return [] if name == "mass" and all(y > ALL for _, y in points) else points


def _caption(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    lines = ["Mass is the exact weight of the keys that a method uses."] if "mass" in names else []
    lines += ["Methods without a curve of mass use every key."] if "mass" in names else []
    lines += [
        "The error of a row is ‖o~ − o‖ / ‖o‖; what is 10,000 times smaller than the largest is below the axis.",
        "Points are means over the queries at positions 2^a to 2^(a+1) − 1.",
    ]
    return [*lines, where(rows, "heads", "windows", "repeats")]
