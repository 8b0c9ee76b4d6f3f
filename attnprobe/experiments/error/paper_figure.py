"""The papers' panels: mean error against budget for each weights and n, beside the values that a paper shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...figures.drawing import Drawing
from ...figures.files import chunks, drawn, tiles
from ...figures.kit import Sheet, canvas, legend, legend_columns, legend_inches, powers_of_two
from ...figures.looks import GREY
from ...figures.methods import (
    CROSS,
    HUGE,
    cross_out,
    crossed,
    flagged,
    legend_text,
    marks,
    scale,
    styles_of,
    text_label,
    where,
)
from ...figures.words import formula, in_words, sentence, symbol
from ...tables.labels import source_heading
from ...tables.long import Row
from ...tables.methods import mark
from ...tables.table import gathered
from .papers import METRIC, Reference, folded, paper_values, reference_notes

ACROSS, DOWN = 4, 4  # panels of a figure
HEIGHT = 2.1  # inches of a panel
PAPER = "hollow: paper"


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
    lines = list(dict.fromkeys(map(_line, rows)))
    lengths = sorted({row["n"] for row in rows})
    pages = [
        (page_lines, columns)
        for page_lines, columns in tiles(
            lines, lengths, min(DOWN, drawing.sizes.down(HEIGHT)), min(ACROSS, drawing.sizes.across(1.7))
        )
        if any(_line(row) in page_lines and row["n"] in columns for row in rows)
    ]
    draw = lambda page: _page(page[0], page[1], rows, metric, drawing, references, styles)
    return drawn(pages, draw, Path(out_dir) / f"papers-{metric}", drawing)


def _page(
    lines: Sequence[tuple[Any, ...]],
    lengths: Sequence[int],
    rows: Sequence[Row],
    metric: str,
    drawing: Drawing,
    references: Sequence[Reference],
    styles: Mapping[str, dict[str, Any]],
) -> Sheet:
    from matplotlib.lines import Line2D

    inches = drawing.sizes.inches(len(lengths))
    shown = [row for row in rows if _line(row) in lines and row["n"] in lengths]
    marked = flagged(shown)
    caption = [
        f"{sentence(in_words(metric))}, {formula(metric)}, against the budget d: means, as the papers draw them."
    ]
    if any((row["metrics"].get(metric) or {}).get("se") for row in shown):
        caption.append("Bands: standard error by text window.")
    caption += marks(shown, metric, "Points and methods have !")
    caption += [f"{sentence(note)}." for note in reference_notes(rows, references)]
    caption.append(where(shown, "heads", "windows", "repeats"))
    tall = HEIGHT * len(lines) + 0.3 + legend_inches([*styles, *([PAPER] if references else []), CROSS], inches)
    title = f"{sentence(in_words(metric))} against budget d: mean"
    sheet, panels = canvas(drawing, title, caption, tall, (len(lines), len(lengths)), sharey="row")
    handles: dict[str, Any] = {}
    for line, axes in zip(lines, chunks(panels, len(lengths)), strict=True):
        values: list[float] = []
        used = []
        for n, axis in zip(lengths, axes, strict=True):
            panel_rows = [row for row in shown if _line(row) == line and row["n"] == n]
            if not panel_rows:
                axis.set_visible(False)
                continue
            used.append(axis)
            values += _panel(axis, panel_rows, rows, metric, references, styles, handles)
            axis.set_title(_title(panel_rows[0]))
            axis.set_xlabel("budget d" if line == lines[-1] else "")
        scale(used, [dict.fromkeys(("p10", "median", "p90"), value) for value in values], False)
        used[0].set_ylabel(f"{symbol(metric)}, mean")
        used[0].tick_params(labelleft=True)
    if any(paper_values(row, references, rows) for row in shown):
        handles[PAPER] = Line2D([], [], color=GREY, marker="o", markerfacecolor="white", linestyle=":", linewidth=1)
    order = [label for label in styles if label in handles]
    order = [*(label for label in order if styles[label]["marker"]), *(x for x in order if not styles[x]["marker"])]
    order += [label for label in (PAPER, CROSS) if label in handles]
    legend(sheet, {legend_text(label, marked): handles[label] for label in order}, legend_columns(order, inches))
    return sheet


def _panel(
    axis: Any,
    shown: Sequence[Row],
    rows: Sequence[Row],
    metric: str,
    references: Sequence[Reference],
    styles: Mapping[str, dict[str, Any]],
    handles: dict[str, Any],
) -> list[float]:
    """One panel; returns the values that its axis must hold."""
    from matplotlib.lines import Line2D

    values: list[float] = []
    budgets = {row["d"] for row in shown if row["d"] is not None}
    named: set[str] = set()
    for group in gathered(shown, text_label):
        label = text_label(group[0])
        style = styles[label]
        means = [(row, value) for row in group if (value := _mean(row, metric)) is not None]
        points = [(row["d"], value, row["metrics"][metric].get("se") or 0.0) for row, value in means]
        values += [value for _, value, _ in points]
        if points and points[0][0] is None:
            handles[label] = axis.axhline(points[0][1], **{**style, "marker": None}, zorder=1.5)
        elif points:
            d, mean, se = zip(*points, strict=True)
            low, high = ([m + side * s for m, s in zip(mean, se, strict=True)] for side in (-1, 1))
            axis.fill_between(d, low, high, color=style["color"], alpha=0.18, linewidth=0)
            (handles[label],) = axis.plot(d, mean, **style)
            for x, y in [(row["d"], value) for row, value in means if mark(row) == "!"]:
                axis.annotate("!", (x, y), (4, 3), textcoords="offset points", color=style["color"], weight="bold")
        for row in group:
            if crossed(row, metric):
                handles.setdefault(label, Line2D([], [], **style))
                cross_out(axis, row["d"] or min(budgets, default=1), _mean(row, metric), False, handles, style["color"])
        paper = paper_values(group[0], references, rows) if folded(group[0]["method"]) not in named else []
        named.add(folded(group[0]["method"]))
        if paper:
            budgets |= {one.d for one in paper}
            values += [one.value for one in paper]
            look = {"color": style["color"], "marker": style["marker"] or "o", "markerfacecolor": "white"}
            axis.errorbar(
                [one.d for one in paper],
                [one.value for one in paper],
                [one.uncertainty for one in paper],
                **look,
                linestyle=":",
                linewidth=1.0,
                markersize=6,
                elinewidth=0.8,
                zorder=3,
            )
    ticks = sorted(budgets or {row["d"] for row in rows if row["d"] is not None})
    powers_of_two(axis, ticks)
    axis.set_xlim(ticks[0] / 1.25, ticks[-1] * 1.25)
    return values


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
    weights = _weights(row).replace("$", r"\$")
    place = [f"layer {row['layer']}", f"n = {row['n']}", *([] if row["target"] == "softmax" else [row["target"]])]
    return "\n".join(filter(None, [weights, ", ".join(place)]))
