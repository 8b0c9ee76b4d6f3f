"""Figures of ``attnprobe audit``: measured against promised probabilities, head by head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...figures.drawing import Drawing
from ...figures.files import chunks, drawn
from ...figures.kit import Sheet, grid, legend, legend_columns
from ...figures.looks import COLOURS, GREY
from ...figures.words import sentence
from ...linalg.exceedance import VERDICTS
from ...tables.labels import file_tag, source_heading
from ...tables.long import Row
from ...tables.results import at_budget
from ...tables.table import grouped_by

LOOKS: dict[str, dict[str, Any]] = {
    "holds": {"marker": "o", "markersize": 4.5},
    "violated": {"marker": "X", "markersize": 6},
    "undecided": {"marker": "o", "markersize": 4.5, "markerfacecolor": "none"},
}
PER_PAGE = 12  # panels
WIDTH, HEIGHT = 2.1, 2.2  # inches of a panel
BEYOND = "#f3ece4"  # broken promises
SPREAD = 0.7  # of the width of a δ: how far apart its heads stand
MOST = 1.3  # upper end of the axis of probabilities


def audit_figures(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw ``calibration-nN`` for each (source, n): measured against promised probabilities of an error above ε.

    A panel for each method, budget and quantity, and one dot per head, layer and window (the worst row where rows are
    judged), with its interval. Colours are ε and markers verdicts. The shaded side breaks the promise.

    Returns:
        The files' paths.
    """
    paths: list[Path] = []
    for group in grouped_by([row for row in rows if row["head"] is not None], "source", "n"):
        epsilons = sorted({row["epsilon"] for row in group})
        colours = {epsilon: COLOURS[place % len(COLOURS)] for place, epsilon in enumerate(epsilons)}
        lead = ", ".join(filter(None, [source_heading(group[0]), f"n = {group[0]['n']}"]))
        caption = [
            "The share of repeats with an error above ε against the promised δ, a dot for each head (for its worst row "
            "where rows are judged) with an interval that is right for all together.",
            "Shaded: above δ, more than promised. Colours are ε, markers are verdicts.",
            f"{sentence(lead)}.",
        ]
        draw = lambda page, caption=caption, colours=colours: _page(page, drawing, caption, colours)
        stem = Path(out_dir) / f"calibration-n{group[0]['n']}{file_tag(group[0]['source'])}"
        most = min(PER_PAGE, min(3, drawing.sizes.across(WIDTH)) * drawing.sizes.down(HEIGHT))
        paths += drawn(chunks(grouped_by(group, "method", "options", "d", "quantity"), most), draw, stem, drawing)
    return paths


def _page(page: Sequence[Sequence[Row]], drawing: Drawing, caption: Sequence[str], colours: dict[float, str]) -> Sheet:
    from matplotlib.lines import Line2D

    names = [f"{at_budget(group[0])}\n{group[0]['quantity']}" for group in page]
    title = "Probability of an error above ε, measured against promised"
    sheet, panels = grid(drawing, title, caption, names, WIDTH, HEIGHT, shared=False)
    for axis, group in zip(panels, page, strict=True):
        _panel(axis, group, colours)
    seen = {row["verdict"] for group in page for row in group}
    point: dict[str, Any] = {"linestyle": ""}
    handles = {word: Line2D([], [], color=GREY, **point, **LOOKS[word]) for word in VERDICTS if word in seen}
    handles |= {f"ε = {epsilon:g}": Line2D([], [], marker="s", color=colours[epsilon], **point) for epsilon in colours}
    legend(sheet, handles, legend_columns([*handles], sheet.figure.get_figwidth()))
    return sheet


def _panel(axis: Any, group: Sequence[Row], colours: dict[float, str]) -> None:
    """The heads of one method and quantity, side by side above each δ; a share of zero lies on the lower edge."""
    deltas = sorted({row["delta"] for row in group})
    least = min(1 / (2 * max(row["trials"] for row in group)), deltas[0] / 3)
    axis.set_yscale("log")
    axis.set_ylim(least, MOST)
    axis.set_xlim(-0.5, len(deltas) - 0.5)
    for place, delta in enumerate(deltas):
        ends = [place - 0.5, place + 0.5]
        axis.fill_between(ends, [delta, delta], [MOST, MOST], color=BEYOND, linewidth=0, zorder=0)
        axis.plot(ends, [delta, delta], color="#999999", linewidth=0.8, zorder=1)
    for index, row in enumerate(group):
        x = deltas.index(row["delta"]) + SPREAD * ((index * 0.61803) % 1 - 0.5)
        y, colour = max(row["worst"], least), colours[row["epsilon"]]
        axis.plot([x, x], [max(row["lower"], least), row["upper"]], color=colour, linewidth=0.6, alpha=0.5, zorder=2)
        axis.plot([x], [y], linestyle="", color=colour, alpha=0.8, clip_on=False, zorder=3, **LOOKS[row["verdict"]])
    axis.set_xticks(range(len(deltas)), [f"{delta:g}" for delta in deltas])
    axis.set_xlabel("promised δ")
    axis.set_ylabel("measured")
