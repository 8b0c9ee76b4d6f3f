"""The papers' panels: mean error against budget for each weights and n, beside the values that a paper shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...figures.drawing import Drawing
from ...figures.files import chunks
from ...figures.kit import powers_of_two
from ...figures.looks import GREY
from ...figures.methods import (
    HUGE,
    cross_out,
    crossed,
    marks,
    scale,
    shared_legend,
    styles_of,
    text_label,
    where,
)
from ...figures.panels import Panels, draw_figures
from ...figures.words import formula, in_words, sentence, symbol
from ...tables.labels import source_heading
from ...tables.long import Row
from ...tables.methods import mark
from ...tables.table import gathered
from .papers import METRIC, Reference, folded, paper_values, reference_notes

ACROSS = 4  # panels in a row, at most
WIDTH = 1.7  # inches of a panel
PAPER = "hollow: paper"
HOLLOW_LINE = {"color": GREY, "marker": "o", "markerfacecolor": "white", "linestyle": ":", "linewidth": 1.0}


def paper_figure(
    rows: Sequence[Row],
    drawing: Drawing,
    out_dir: str | Path,
    metric: str = METRIC,
    references: Sequence[Reference] = (),
) -> list[Path]:
    """Draw the mean of ``metric`` against ``d``: a row of panels per (source, layer, target), a column per n.

    Lines are means over heads, windows and repeats, as in Figure 1 of Skyformer and of Skeinformer. Bands are their
    standard errors, clustered by text window. Methods without a budget are horizontal lines. Hollow markers are a
    paper's values, in the style of the run's first method of that name; ``metric`` must be the papers' own.

    Args:
        out_dir: where ``papers-METRIC.svg`` and the like are written (``-2``, … where there are many panels).

    Returns:
        The files' paths; none if fewer than two budgets were measured and no paper's value belongs to them.
    """
    every = rows
    rows = [row for row in rows if _mean(row, metric) is not None or crossed(row, metric)]
    rows = sorted(rows, key=lambda row: bool(row.get("reference")))
    references = references if metric == METRIC else ()
    budgets = {row["d"] for row in rows if row["d"] is not None and _mean(row, metric) is not None}
    if not budgets or (len(budgets) < 2 and not any(paper_values(row, references, rows) for row in rows)):
        return []
    styles = styles_of(every, rows)
    papers = any(paper_values(row, references, rows) for row in rows)
    caption = [
        f"{sentence(in_words(metric))}, {formula(metric)}, against the budget d: means, as the papers draw them."
    ]
    if any((row["metrics"].get(metric) or {}).get("se") for row in rows):
        caption.append("Bands: standard error by text window.")
    caption += marks(rows, metric, "Points and methods have !")
    caption += [f"{sentence(note)}." for note in reference_notes(rows, references)]
    caption.append(where(rows, "heads", "windows", "repeats"))

    def draw(axis: Any, panel: Sequence[Row]) -> None:
        if not panel:
            axis.set_visible(False)
            return
        _panel(axis, panel, rows, metric, references, styles)
        level = [row for row in rows if _line(row) == _line(panel[0])]
        values = [_mean(row, metric) for row in level]
        scale(axis, [*values, *(one.value for row in level for one in paper_values(row, references, rows))])

    lengths = sorted({row["n"] for row in rows})
    figures = []
    for part in chunks(lengths, min(ACROSS, drawing.sizes.across(WIDTH))):
        panels = []
        for level in gathered(rows, _line):
            shown = [[row for row in level if row["n"] == n] for n in part]
            panels += [(_title(group[0]) if group else "", group) for group in shown if any(shown)]
        figures.append(
            Panels(
                f"papers-{metric}",
                f"{sentence(in_words(metric))} against budget d: mean",
                caption,
                panels,
                draw,
                "budget d",
                f"{symbol(metric)}, mean",
                shared_legend(rows, styles, metric) | ({PAPER: HOLLOW_LINE} if papers else {}),
                width=WIDTH,
                columns=len(part),
                sharing={"sharey": "row"},
            )
        )
    return draw_figures(figures, drawing, out_dir)


def _panel(
    axis: Any,
    shown: Sequence[Row],
    rows: Sequence[Row],
    metric: str,
    references: Sequence[Reference],
    styles: Mapping[str, dict[str, Any]],
) -> None:
    """Means with standard errors, and the values of papers beside them."""
    budgets = {row["d"] for row in shown if row["d"] is not None}
    named: set[str] = set()
    for group in gathered(shown, text_label):
        style = styles[text_label(group[0])]
        means = [(row, value) for row in group if (value := _mean(row, metric)) is not None]
        points = [(row["d"], value, row["metrics"][metric].get("se") or 0.0) for row, value in means]
        if points and points[0][0] is None:
            axis.axhline(points[0][1], **{**style, "marker": None}, zorder=1.5)
        elif points:
            d, mean, se = zip(*points, strict=True)
            low, high = ([m + side * s for m, s in zip(mean, se, strict=True)] for side in (-1, 1))
            axis.fill_between(d, low, high, color=style["color"], alpha=0.18, linewidth=0)
            axis.plot(d, mean, **style)
            for x, y in [(row["d"], value) for row, value in means if mark(row) == "!"]:
                axis.annotate("!", (x, y), (4, 3), textcoords="offset points", color=style["color"], weight="bold")
        for row in group:
            if crossed(row, metric):
                cross_out(axis, row["d"] or min(budgets, default=1), _mean(row, metric), style["color"])
        paper = paper_values(group[0], references, rows) if folded(group[0]["method"]) not in named else []
        named.add(folded(group[0]["method"]))
        if paper:
            budgets |= {one.d for one in paper}
            look = {**HOLLOW_LINE, "color": style["color"], "marker": style["marker"] or "o"}
            axis.errorbar(
                [one.d for one in paper],
                [one.value for one in paper],
                [one.uncertainty for one in paper],
                **look,
                markersize=6,
                elinewidth=0.8,
                zorder=3,
            )
    ticks = sorted(budgets or {row["d"] for row in rows if row["d"] is not None})
    powers_of_two(axis, ticks)
    axis.set_xlim(ticks[0] / 1.25, ticks[-1] * 1.25)


def _mean(row: Row, metric: str) -> float | None:
    mean = (row["metrics"].get(metric) or {}).get("mean")
    return mean if mean is not None and mean <= HUGE else None


def _line(row: Row) -> tuple[Any, ...]:
    """The row of panels that a row stands in."""
    return _weights(row), row.get("layer"), row.get("target")


def _weights(row: Row) -> str:
    return source_heading(row) or (f"weights {row['weights']}" if row.get("weights") else "")


def _title(row: Row) -> str:
    """The panel's title, in at most two lines."""
    place = [f"layer {row['layer']}", f"n = {row['n']}", *([] if row["target"] == "softmax" else [row["target"]])]
    return "\n".join(filter(None, [_weights(row), ", ".join(place)]))
