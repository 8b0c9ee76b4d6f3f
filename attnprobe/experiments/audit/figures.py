"""Figures of ``attnprobe audit``: measured against promised probabilities, head by head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...figures.drawing import Drawing
from ...figures.kit import edge_label, logarithmic
from ...figures.looks import COLOURS
from ...figures.methods import PROMISED, verdicts_legend, where
from ...figures.panels import Panels, draw_figures, panels_of
from ...tables.labels import file_tag
from ...tables.long import Row
from ...tables.results import at_budget
from ...tables.table import grouped_by

LOOKS: dict[str, dict[str, Any]] = {
    "holds": {"marker": "o", "markersize": 4.5},
    "violated": {"marker": "X", "markersize": 6},
    "undecided": {"marker": "o", "markersize": 4.5, "markerfacecolor": "none"},
}
SPREAD = 0.8  # of the width of a δ: how far apart its heads stand
MOST = 1.3  # upper end of the axis of probabilities, and below the least one as much room
CLEAR = 0.85  # of the space between neighbours, that a marker takes at most
SMALLEST = 0.35  # of the size of a marker


def audit_figures(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw ``calibration-nN`` for each (source, n): measured against promised probabilities of an error above ε.

    A panel for each method, budget and quantity, and one dot per head, layer and window (the worst row where rows are
    judged), with its interval. Colours are ε and markers verdicts. The shaded side breaks the promise.

    Returns:
        The files' paths.
    """
    rows = [row for row in rows if row["head"] is not None]
    return draw_figures(map(_figure, grouped_by(rows, "source", "n")), drawing, out_dir)


def _figure(rows: Sequence[Row]) -> Panels:
    """A panel for each method, budget and quantity."""
    epsilons = sorted({row["epsilon"] for row in rows})
    colours = {epsilon: COLOURS[place % len(COLOURS)] for place, epsilon in enumerate(epsilons)}
    shares = [row[name] for row in rows for name in ("worst", "upper")]
    least = min(share for share in [*shares, *(row["delta"] / 2 for row in rows)] if share > 0) / MOST
    caption = [
        "The share of repeats with an error above ε against the promised δ, a dot for each head (for its worst row "
        "where rows are judged) with its confidence interval, simultaneous for all heads and rows.",
        "Shaded: above δ, more than promised. Colours are ε, markers are verdicts.",
        where(rows),
    ]
    return Panels(
        f"calibration-n{rows[0]['n']}{file_tag(rows[0]['source'])}",
        "Probability of an error above ε, measured against promised",
        caption,
        panels_of(rows, lambda row: f"{at_budget(row)}\n{row['quantity']}"),
        partial(_panel, colours, least),
        "promised δ",
        "share of seeds above ε",
        partial(verdicts_legend, LOOKS, "epsilon", colours, "more than promised"),
        width=1.6,
        columns=len({row["quantity"] for row in rows}),
        sharing={"sharey": True},
    )


def _panel(colours: Mapping[float, str], least: float, axis: Any, group: Sequence[Row]) -> None:
    """The heads of one method and quantity, side by side above each δ; a share of zero lies at the lower edge."""
    deltas = sorted({row["delta"] for row in group})
    logarithmic(axis, "y")
    axis.grid(False, axis="x")
    axis.set_ylim(least / MOST, MOST)
    axis.set_xlim(-0.5, len(deltas) - 0.5)
    if any(row["worst"] == 0 for row in group):
        edge_label(axis, "0", y=least, inside=True)
    for place, delta in enumerate(deltas):
        ends = [place - 0.5, place + 0.5]
        axis.fill_between(ends, [delta, delta], [MOST, MOST], color=PROMISED, linewidth=0, zorder=0)
        axis.plot(ends, [delta, delta], color="#999999", linewidth=0.8, zorder=1)
    order = sorted({(row["epsilon"], row["layer"], row["head"], row["window"]) for row in group})
    points = axis.get_window_extent().width / axis.figure.dpi * 72
    space = CLEAR * SPREAD * points / len(deltas) / len(order)
    for row in group:
        place = order.index((row["epsilon"], row["layer"], row["head"], row["window"]))
        x = deltas.index(row["delta"]) + SPREAD * (place / max(len(order) - 1, 1) - 0.5)
        y, colour = max(row["worst"], least), colours[row["epsilon"]]
        axis.plot([x, x], [max(row["lower"], least), row["upper"]], color=colour, linewidth=0.6, alpha=0.5, zorder=2)
        look = LOOKS[row["verdict"]]
        size = min(look["markersize"], max(space, SMALLEST * look["markersize"]))
        axis.plot(
            [x], [y], linestyle="", color=colour, alpha=0.8, clip_on=False, zorder=3, **{**look, "markersize": size}
        )
    axis.set_xticks(range(len(deltas)), [f"{delta:g}" for delta in deltas])
