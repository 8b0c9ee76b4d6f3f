"""Values of papers: read from a CSV file, beside the rows of a run, and drawn with them as the papers draw them."""

from __future__ import annotations

import csv
import io
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from reprlib import repr as shown
from typing import Any

from ...errors import UsageError, nearest
from ...figures.drawing import Drawing
from ...figures.ends import lowest, outside, scale
from ...figures.files import chunks
from ...figures.kit import powers_of_two
from ...figures.looks import GREY, formula, in_words, sentence, symbol
from ...figures.methods import (
    HUGE,
    INTERVAL,
    INTERVALS,
    cross_out,
    crossed,
    marks,
    shared_legend,
    sign_legend,
    spread_legend,
    styles_of,
    text_label,
    where,
)
from ...figures.panels import Panels, draw_figures
from ...files import MIB, path_of, read_regular, reading
from ...tables.labels import source_heading
from ...tables.long import Row
from ...tables.methods import half_interval, mark
from ...tables.numbers import method_label
from ...tables.table import gathered

COLUMNS = ("init", "n", "d", "method", "value", "digitisation_uncertainty")
LARGEST = 64 * MIB  # of a file
METRIC = "output_spectral"  # the error of the papers' figures
# the papers' "initialized" is a pretrained embedding with random projections; the others are substitutes
WEIGHTS = {"initialized": ("initialized-qkv", "initialized")}
ACROSS = 4  # panels in a row, at most
WIDTH = 1.7  # inches of a panel
PAPER = "hollow: paper"
HOLLOW_LINE = {"color": GREY, "marker": "o", "markerfacecolor": "white", "linestyle": ":", "linewidth": 1.0}


@dataclass(frozen=True)
class Value:
    """One point of a paper's figure."""

    init: str
    n: int
    d: int
    method: str
    value: float
    uncertainty: float


@dataclass(frozen=True)
class Reference:
    """The points of one file."""

    name: str
    values: Sequence[Value]


def read_reference(path: str | Path) -> Reference:
    """The points of a CSV file with the columns init, n, d, method, value and digitisation_uncertainty."""
    path = path_of(path)
    with reading(f"--reference {path}"):
        lines = csv.DictReader(io.StringIO(read_regular(path, LARGEST).decode("utf-8-sig")))
        names = [name.strip() for name in lines.fieldnames or ()]
        lines.fieldnames = names
        for column in COLUMNS[:-1]:
            if column not in names:
                near = nearest(column, names) if names else ""
                raise UsageError(f"--reference {path}: it has no column '{column}'{near}")
        values = [_value(line, f"--reference {path}:{lines.line_num}") for line in lines]
    if not values:
        raise UsageError(f"--reference {path}: it holds no values")
    return Reference(path.name, values)


def _value(line: Mapping[str, str | None], where: str) -> Value:
    numbers = {}
    for name, kind in (("n", int), ("d", int), ("value", float), ("digitisation_uncertainty", float)):
        text = (line.get(name) or "").strip()
        if not text and name == "digitisation_uncertainty":
            text = "0"
        try:
            numbers[name] = kind(text)
        except ValueError:
            raise UsageError(f"{where}: {name} is {shown(text)}, not a number") from None
        if not 0 <= numbers[name] <= sys.float_info.max:
            raise UsageError(f"{where}: {name} is {shown(numbers[name])}, not a finite number from 0 on")
    words = [(line.get(name) or "").strip() for name in ("init", "method")]
    if not all(words):
        raise UsageError(f"{where}: init or method is empty")
    return Value(words[0], numbers["n"], numbers["d"], words[1], numbers["value"], numbers["digitisation_uncertainty"])


@lru_cache
def folded(name: str) -> str:
    """A method's name without case, accents and hyphens.

    >>> folded("Nyströmformer"), folded("V-Mean")
    ('nystromformer', 'vmean')
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]", "", plain.lower())


def weights_of(init: str, rows: Iterable[Row]) -> str | None:
    """The run's weights that a paper's word for weights means; None if the run lacks them.

    >>> weights_of("initialized", [{"weights": "initialized"}, {"weights": "initialized-qkv"}])
    'initialized-qkv'
    """
    there = {row.get("weights") for row in rows}
    return next((word for word in WEIGHTS.get(init.lower(), (init.lower(),)) if word in there), None)


def paper_values(row: Row, references: Sequence[Reference], rows: Sequence[Row]) -> list[Value]:
    """The paper's points for a row's method, weights and n, by d. Only layer 0 and target softmax have any."""
    if row.get("layer") != 0 or row.get("target") != "softmax":
        return []
    values: dict[int, Value] = {}
    for reference in references:
        for value in reference.values:
            same = value.n == row.get("n") and folded(value.method) == folded(row["method"])
            same = same and row.get("scale_inputs", 1) == 1
            if same and weights_of(value.init, rows) == row.get("weights") is not None:
                values.setdefault(value.d, value)
    return [values[d] for d in sorted(values)]


def reference_rows(rows: Sequence[Row], references: Sequence[Reference]) -> list[dict[str, Any]]:
    """Measured values beside those of a paper's figure, a row for each point of both."""
    entries = []
    for row in rows:
        for value in paper_values(row, references, rows):
            stats = row["metrics"].get(METRIC)
            if row["d"] not in (None, value.d) or stats is None or stats["mean"] is None:
                continue
            ratio = stats["mean"] / value.value if value.value else None
            entries.append(
                {
                    "init": value.init,
                    "weights": row["weights"],
                    "source": row["source"],
                    "n": row["n"],
                    "d": value.d,
                    "method": method_label(row),
                    "error": stats["mean"],
                    "se": stats["se"],
                    "paper": value.value,
                    "uncertainty": value.uncertainty,
                    "ratio": ratio,
                }
            )
    order = list(dict.fromkeys((row["init"], row["source"], row["n"], row["method"]) for row in entries))
    return sorted(
        entries, key=lambda row: (order.index((row["init"], row["source"], row["n"], row["method"])), row["d"])
    )


def reference_notes(rows: Sequence[Row], references: Sequence[Reference]) -> list[str]:
    """A line for each file: the weights that its words mean in this run, and the points that the run lacks."""
    lines = []
    ours = {folded(row["method"]) for row in rows}
    lengths = {row["n"] for row in rows}
    for reference in references:
        words = {value.init: weights_of(value.init, rows) for value in reference.values}
        shown = [f"its '{init}' is weights {weights}" for init, weights in words.items() if weights and weights != init]
        lacking = [init for init, weights in words.items() if not weights]
        methods = dict.fromkeys(value.method for value in reference.values if folded(value.method) not in ours)
        sizes = sorted({value.n for value in reference.values} - lengths)
        parts = [", ".join(shown)] if shown else []
        gone = [f"weights {', '.join(lacking)}"] if lacking else []
        gone += [", ".join(methods)] if methods else []
        gone += [f"n = {', '.join(map(str, sizes))}"] if sizes else []
        parts += [f"not in this run: {'; '.join(gone)}"] if gone else []
        lines.append(f"hollow: {reference.name}, layer 0" + "".join(f"; {part}" for part in parts))
    return lines


def paper_figure(
    rows: Sequence[Row],
    drawing: Drawing,
    out_dir: str | Path,
    metric: str = METRIC,
    references: Sequence[Reference] = (),
) -> list[Path]:
    """Draw the mean of ``metric`` against ``d``: a row of panels per (source, layer, target), a column per n.

    Lines are means over heads, windows and repeats, as in Figure 1 of Skyformer and of Skeinformer. Bars are their
    95 % intervals over text windows, by Student's distribution. Methods without a budget are horizontal lines. Hollow
    markers are a paper's values, in the style of the run's first method of that name; ``metric`` must be the papers'.

    Args:
        out_dir: where ``papers-METRIC.svg`` and the like are written (``-2``, … where there are many panels).

    Returns:
        The files' paths; none if fewer than two budgets were measured and no paper's value belongs to them.
    """
    run, rows = rows, [row for row in rows if _mean(row, metric) is not None or crossed(row, metric)]
    rows = sorted(rows, key=lambda row: bool(row.get("reference")))
    references = references if metric == METRIC else ()
    budgets = {row["d"] for row in rows if row["d"] is not None and _mean(row, metric) is not None}
    if not budgets or (len(budgets) < 2 and not any(paper_values(row, references, rows) for row in rows)):
        return []
    styles = styles_of(run, rows)
    papers = any(paper_values(row, references, rows) for row in rows)
    means = [row for row in rows if _mean(row, metric) is not None]
    notes = outside(means, lambda row: [_mean(row, metric)], lowest(_drawn(rows, rows, metric, references)))
    caption = [
        f"{sentence(in_words(metric))}, {formula(metric)}, against the budget d: means, as the papers draw them."
    ]
    intervals = spread_legend(INTERVAL) if any(half_interval(row, metric) for row in rows) else {}
    others = intervals | sign_legend(rows) | ({PAPER: HOLLOW_LINE} if papers else {})
    caption += [INTERVALS] * bool(intervals)
    caption += marks(rows, metric, "Points and methods have !")
    caption += [f"{sentence(note)}." for note in reference_notes(rows, references)]
    caption.append(where(rows, "heads", "windows", "repeats"))

    def draw(axis: Any, panel: Sequence[Row]) -> None:
        if not panel:
            axis.set_visible(False)
            return
        _panel(axis, panel, rows, metric, references, styles)
        level = [row for row in rows if _line(row) == _line(panel[0])]
        scale(axis, _drawn(level, rows, metric, references))

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
                shared_legend(rows, styles, metric, notes) | others,
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
    """Means with their 95 % intervals over windows, and the values of papers beside them."""
    budgets = {row["d"] for row in shown if row["d"] is not None}
    named: set[str] = set()
    for group in gathered(shown, text_label):
        style = styles[text_label(group[0])]
        means = [(row, value) for row in group if (value := _mean(row, metric)) is not None]
        points = [(row["d"], value, half_interval(row, metric) or 0.0) for row, value in means]
        if points and points[0][0] is None:
            axis.axhline(points[0][1], **{**style, "marker": None}, zorder=1.5)
        elif points:
            axis.errorbar(*zip(*points, strict=True), **style, elinewidth=0.8)
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


def _drawn(rows: Sequence[Row], run: Sequence[Row], metric: str, references: Sequence[Reference]) -> list[float | None]:
    """The means of some rows of a run, and the papers' values of them."""
    papers = [one.value for row in rows for one in paper_values(row, references, run)]
    return [*(_mean(row, metric) for row in rows), *papers]


def _line(row: Row) -> tuple[Any, ...]:
    return _weights(row), row.get("layer"), row.get("target")


def _weights(row: Row) -> str:
    return source_heading(row) or (f"weights {row['weights']}" if row.get("weights") else "")


def _title(row: Row) -> str:
    place = [f"layer {row['layer']}", f"n = {row['n']}", *([] if row["target"] == "softmax" else [row["target"]])]
    return "\n".join(filter(None, [_weights(row), ", ".join(place)]))
