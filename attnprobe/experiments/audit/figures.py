"""Figures of ``attnprobe audit``: measured against promised probabilities, head by head."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from ...figures.drawing import Drawing
from ...figures.kit import edge_ticks, logarithmic
from ...figures.looks import COLOURS
from ...figures.methods import BROKEN, PROMISED, facts, fitting, spread_legend, where
from ...figures.panels import Panels, draw_figures, panels_of
from ...linalg.exceedance import HOLDS, UNDECIDED, VIOLATED
from ...tables.labels import file_tag
from ...tables.long import Row, known
from ...tables.results import at_budget
from ...tables.table import grouped_by

LOOKS: dict[str, dict[str, Any]] = {
    HOLDS: {"marker": "o", "markersize": 4.5, "color": COLOURS[2]},
    VIOLATED: {"marker": "X", "markersize": 6, "color": COLOURS[1]},
    UNDECIDED: {"marker": "D", "markersize": 4.5, "color": COLOURS[0], "markerfacecolor": "none"},
}
SPREAD = 0.86  # of the width of an ε, that its heads share
ZERO = 2.0  # from the least share to the place of zero
MOST = 1.3  # upper end of the axis of probabilities, and below the least one as much room


def audit_figures(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw ``calibration-nN`` for each (source, n): measured against promised probabilities of an error above ε.

    A panel for each method, budget and quantity, and one dot per head, layer and window (the worst row where rows are
    judged), with its interval, above each ε. Colours and markers are verdicts. The shaded side breaks the promise. The
    interval of a decided head ends at δ where Bonferroni's, unlike Holm's test, does not decide.

    Returns:
        The files' paths.
    """
    rows = [row for row in rows if row["head"] is not None]
    return draw_figures(map(_figure, grouped_by(rows, "source", "n")), drawing, out_dir)


def _figure(rows: Sequence[Row]) -> Panels:
    """A panel for each method, budget and quantity."""
    deltas = sorted({row["delta"] for row in rows})
    broken = f"above δ = {deltas[0]:g}" if len(deltas) == 1 else "above δ"
    shares = [row[name] for row in rows for name in ("worst", "upper")]
    least = min(share for share in [*shares, *(row["delta"] / 2 for row in rows)] if share > 0) / ZERO
    levels = "".join(f"{100 * level:g} % " for level in sorted(set(known(rows, "confidence"))))
    dots = f"a dot: a head; bar: its {levels}interval"
    caption = [
        "The share of repeats with an error above ε, a dot for each head (for its worst row where rows are judged), "
        "side by side above each promised ε, with its confidence interval, simultaneous for all heads and rows.",
        "Shaded: above δ, more than promised. Verdicts are by Holm's tests: the interval of a decided head ends at δ "
        "where it would hold it.",
        where(rows),
    ]
    return Panels(
        f"calibration-n{rows[0]['n']}{file_tag(rows[0]['source'])}",
        "Probability of an error above ε, measured against promised",
        caption,
        panels_of(rows, lambda row: f"{at_budget(row)}\n{row['quantity']}\n{facts(rows)}"),
        partial(_panel, least),
        "promised ε",
        "share of seeds above ε",
        lambda panels: _legend({row["verdict"] for row in chain(*panels)}) | {broken: BROKEN} | spread_legend(dots),
        width=2.1,
        columns=len({row["quantity"] for row in rows}),
        sharing={"sharey": True},
    )


def _legend(verdicts: Container[str]) -> dict[str, Any]:
    """The legend of these verdicts."""
    return {word: {"linestyle": "", **look} for word, look in LOOKS.items() if word in verdicts}


def _panel(least: float, axis: Any, group: Sequence[Row]) -> None:
    """The heads of one method and quantity, side by side above each δ and ε; a share of zero is at the lower edge."""
    slots = sorted({(row["delta"], row["epsilon"]) for row in group})
    logarithmic(axis, "y")
    axis.grid(False, axis="x")
    axis.set_ylim(least / MOST, MOST)
    axis.set_xlim(-0.5, len(slots) - 0.5)
    edge_ticks(axis.yaxis, {least: "0"})
    for place, (delta, _) in enumerate(slots):
        ends = [place - 0.5, place + 0.5]
        axis.fill_between(ends, [delta, delta], [MOST, MOST], color=PROMISED, linewidth=0, zorder=0)
        axis.plot(ends, [delta, delta], color="#999999", linewidth=0.8, zorder=1)
    order = sorted({(row["layer"], row["head"], row["window"]) for row in group})
    for row in group:
        place = (order.index((row["layer"], row["head"], row["window"])) + 0.5) / len(order)
        x = slots.index((row["delta"], row["epsilon"])) + SPREAD * (place - 0.5)
        look = LOOKS[row["verdict"]]
        bar = {"color": look["color"], "linewidth": 0.7, "alpha": 0.6, "zorder": 2}
        lower = max(row["lower"], row["delta"]) if row["verdict"] == VIOLATED else row["lower"]
        upper = min(row["upper"], row["delta"]) if row["verdict"] == HOLDS else row["upper"]
        axis.plot([x, x], [max(lower, least), upper], **bar)
        size = fitting(axis, look["markersize"], SPREAD / len(order))
        point = {**look, "markersize": size, "linestyle": "", "alpha": 0.8, "clip_on": False, "zorder": 3}
        axis.plot([x], [max(row["worst"], least)], **point)
    axis.set_xticks(range(len(slots)), [f"{epsilon:g}" for _, epsilon in slots])
    places = {delta: [place for place, slot in enumerate(slots) if slot[0] == delta] for delta, _ in slots}
    if len(places) > 1:  # each δ once, in a line below its ε
        middles = [fmean(some) for some in places.values()]
        axis.set_xticks(middles, [f"\nδ = {delta:g}" for delta in places], minor=True)
        axis.tick_params(axis="x", which="minor", length=0, pad=axis.xaxis.get_tick_padding() + 2)
        axis.xaxis.remove_overlapping_locs = False
