"""Spectra as figures: how values decay, and how their sum grows; byte for byte the same for the same rows."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...figures.kit import canvas, chunks, columns_for, drawn, escaped, legend, legend_columns
from ...figures.methods import COLOURS, GREY, MARKERS
from ...tables.table import counted, gathered
from .rows import SpectrumRow, matrix_label, moduli

__all__ = ["spectrum_figures"]

Place = tuple[int, int]  # layer, n

PANELS = 12  # per figure
LINES = ("-", "--", ":", "-.")  # of the weights
ROUNDING = 2.0**-52
FLOOR = ROUNDING / 32  # relative; what lies below is noise, and not drawn
POINTS = 400  # of a line: more cannot be seen
EXACT = ("softmax", "unnormalised", "gaussian", "lifted-softmax", "lifted-gaussian", "output")
NAMES = {
    "softmax": r"softmax $B$",
    "unnormalised": r"unnormalised $A$",
    "gaussian": r"Gaussian $C$",
    "lifted-softmax": r"lifted $\bar{A}$",
    "lifted-gaussian": r"lifted $\bar{C}$",
    "output": r"output $BV$",
}


def spectrum_figures(rows: Sequence[SpectrumRow], header_line: str, out_dir: str | Path) -> list[Path]:
    """Draw ``decay`` and ``cumulative``: one panel per (layer, n), one line per matrix and weights.

    ``decay`` is ``σ_i / σ₁`` (or ``|λ_i| / |λ₁|``) against i, both logarithmic; ``cumulative`` is ``Σ_{j≤i} |λ_j| /
    Σ |λ|`` (or of σ) against i, as in Figure 2 of Beyond Nyströmformer, and has only spectra that are known in full.
    Lines are medians over heads and windows, bands run from p10 to p90. Colours and markers tell matrices apart, the
    kind of line tells weights apart.

    Args:
        header_line: the title: the sources and every fallback, in one or more lines.
        out_dir: where ``spectrum-decay.svg`` and ``.png`` and the same of ``cumulative`` are written (``-2``, …
            beyond 12 panels).

    Returns:
        The files' paths; none where no row has values.
    """
    good = [row for row in rows if row["status"] == "ok" and any(moduli(row)[:1])]
    known = set(map(id, good))
    lost = dict.fromkeys(matrix_label(row) for row in rows if id(row) not in known)
    if lost:
        header_line += f"\nnot drawn, as some heads are zero, failed or skipped: {', '.join(lost)}"
    looks = _looks(good)
    paths: list[Path] = []
    for name, kept in (("decay", good), ("cumulative", [row for row in good if row["complete"]])):
        places = list(dict.fromkeys((row["layer"], row["n"]) for row in sorted(kept, key=lambda row: row["layer"])))
        draw = lambda page, name=name, kept=kept: _page(page, kept, name, header_line, looks)
        paths += drawn(chunks(places, PANELS), draw, Path(out_dir) / f"spectrum-{name}")
    return paths


def _page(
    places: Sequence[Place], rows: Sequence[SpectrumRow], name: str, title: str, looks: Mapping[Any, dict]
) -> Any:
    columns = columns_for([n for _, n in places])
    lines = math.ceil(len(places) / columns)
    inches = max(6.4, 3.3 * columns + 0.6)
    shown = [row for row in rows if (row["layer"], row["n"]) in places]
    told = [_over(shown)]
    if name == "cumulative" and rows[0]["kind"] != "eigen":
        told.append("shares of Σσ; the table's ranks are for shares of Σσ²")
    keys = _keys(shown, looks)
    beside = _in_a_row([re.sub(r"\\bar|[${}]", "", label) for label in keys], inches)
    tall = (2.5 if lines > 1 else 3.0) * lines + 0.7 + 0.18 * math.ceil(len(keys) / beside)
    same = name == "decay"
    figure, panels = canvas(title, told, inches, tall, (lines, columns), len(places), sharey=True, sharex=same)
    eigen = rows[0]["kind"] == "eigen"
    one, top = (r"|\lambda_i|", r"|\lambda_1|") if eigen else (r"\sigma_i", r"\sigma_1")
    value = one.replace("_i", "_j")
    label = f"${one}\\,/\\,{top}$" if same else f"$\\sum_{{j\\leq i}}{value}\\;/\\;\\sum_j{value}$"
    for index, (axis, place) in enumerate(zip(panels, places, strict=True)):
        here = [row for row in shown if (row["layer"], row["n"]) == place]
        for some in gathered(here, _look):
            (_decay if same else _cumulative)(axis, some, looks[_look(some[0])])
        axis.set_title(f"layer {place[0]}, n = {place[1]}")
        axis.grid(color="#dddddd", linewidth=0.6)
        axis.tick_params(labelbottom=True)
        axis.set_xlabel("rank i" if index + columns >= len(places) else "")
        axis.set_ylabel(label if index % columns == 0 else "")
    (_decay_scale if same else _cumulative_scale)(panels, shown)
    legend(figure, keys, beside)
    return figure


def _decay(axis: Any, rows: Sequence[SpectrumRow], look: Mapping[str, Any]) -> None:
    """Median and band of ``σ_i / σ₁``, drawn at ranks that are even on a logarithmic axis."""
    values = _stacked(rows)
    i = np.unique(np.round(np.geomspace(1, values.shape[1], POINTS)).astype(int))
    band = np.quantile(np.maximum(values[:, i - 1] / values[:, :1], FLOOR), [0.1, 0.5, 0.9], axis=0)
    band[:, band[1] <= FLOOR] = np.nan
    at = 4.0 ** (np.arange(1, 12) + look["place"] % 3 / 3)  # so that lines that coincide show each its own marks
    marks = [int(np.argmin(np.abs(i - one))) for one in at if one <= i[-1]]
    _banded(axis, i, band, look, marks)


def _cumulative(axis: Any, rows: Sequence[SpectrumRow], look: Mapping[str, Any]) -> None:
    """Median and band of the growing share, from 0 at rank 0."""
    sums = np.cumsum(_stacked(rows), axis=1)
    shares = np.concatenate([np.zeros((len(sums), 1)), sums / sums[:, -1:]], axis=1)
    i = np.unique(np.round(np.linspace(0, sums.shape[1], POINTS)).astype(int))
    band = np.quantile(shares[:, i], [0.1, 0.5, 0.9], axis=0)
    step = max(1, len(i) // 6)
    _banded(axis, i, band, look, list(range(step // 4 + look["place"] % 3 * step // 3, len(i), step)))


def _banded(axis: Any, i: Any, band: Any, look: Mapping[str, Any], marks: Sequence[int]) -> None:
    low, middle, high = band
    light = 0.13 if look["linestyle"] == "-" else 0.07
    axis.fill_between(i, low, high, color=look["color"], alpha=light, linewidth=0)
    shown = {name: value for name, value in look.items() if name != "place"}
    if look["linestyle"] == "--":  # of dashes that coincide, some of each are seen
        shown["linestyle"] = (3.5 * look["place"], (3.5, 3.5))
    axis.plot(i, middle, **shown, markevery=marks)


def _decay_scale(panels: Sequence[Any], rows: Sequence[SpectrumRow]) -> None:
    """Logarithmic axes; where what is drawn reaches float64's rounding, the panel says from where on it is noise."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    most = max(len(moduli(row)) for row in rows)
    ends: dict[Any, list[float]] = {}
    for row in rows:
        values = moduli(row)
        ends.setdefault((matrix_label(row), row.get("weights"), row["layer"]), []).append(values[-1] / values[0])
    smallest = max(FLOOR, min(float(np.quantile(found, 0.1)) for found in ends.values()))
    noisy = smallest < 10 * ROUNDING
    bits = (most - 1).bit_length()
    ticks = [2**power for power in range(bits + 1) if bits < 8 or power % 2 == 0]
    for panel in panels:
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xlim(0.9, most * 1.12)
        panel.xaxis.set_major_locator(FixedLocator(ticks))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        panel.set_ylim(max(smallest / 3, FLOOR), 2)
        if noisy:
            panel.axhspan(FLOOR, ROUNDING, color="#eeeeee", zorder=0, linewidth=0)
            panel.axhline(ROUNDING, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
        if smallest < 1e-3:
            panel.yaxis.set_major_locator(LogLocator(numticks=8))
            panel.yaxis.set_minor_locator(NullLocator())
    if noisy:
        look = {"fontsize": 7, "color": GREY, "va": "top"}
        panels[0].text(1, ROUNDING / 1.5, "float64 rounding", **look)


def _cumulative_scale(panels: Sequence[Any], rows: Sequence[SpectrumRow]) -> None:
    from matplotlib.ticker import FixedLocator, PercentFormatter

    for panel in panels:
        panel.set_ylim(0, 1.02)
        panel.set_xlim(0)
        panel.margins(x=0)
        panel.yaxis.set_major_locator(FixedLocator([0, 0.2, 0.4, 0.6, 0.8, 0.9, 1]))
        panel.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _looks(rows: Sequence[SpectrumRow]) -> dict[Any, dict[str, Any]]:
    """The look of each (matrix, weights) in every panel: exact matrices always have the same colours."""
    labels = list(dict.fromkeys(matrix_label(row) for row in rows))
    labels.sort(key=lambda label: label not in EXACT)  # stable: exact ones first, as asked for
    weights = list(dict.fromkeys(row.get("weights") for row in rows))
    return {
        (label, one): {
            "color": COLOURS[place % len(COLOURS)],
            "marker": MARKERS[place % len(MARKERS)],
            "linestyle": LINES[weights.index(one) % len(LINES)],
            "linewidth": 1.6 if place < len(COLOURS) else 1.1,
            "markersize": 4,
            "place": place,
        }
        for place, label in enumerate(labels)
        for one in weights
    }


def _keys(rows: Sequence[SpectrumRow], looks: Mapping[Any, dict[str, Any]]) -> dict[str, Any]:
    """The legend: a colour and marker for each matrix and, where there are several, a kind of line for the weights."""
    from matplotlib.lines import Line2D

    there = list(dict.fromkeys(map(_look, rows)))
    keys: dict[str, Any] = {}
    weights = [one for one in dict.fromkeys(key[1] for key in looks) if any(key[1] == one for key in there)]
    for key in looks:
        if any(key[0] == other[0] for other in there):
            look = {name: value for name, value in looks[key].items() if name != "place"}
            look |= {"linestyle": "-"} if len(weights) > 1 else {}
            keys.setdefault(NAMES.get(key[0]) or escaped(key[0]), Line2D([], [], **look))
    if len(weights) > 1:
        for one in weights:
            line = next(look["linestyle"] for key, look in looks.items() if key[1] == one)
            keys[escaped(str(one))] = Line2D([], [], color=GREY, linestyle=line, linewidth=1.6)
    return keys


def _in_a_row(labels: Sequence[str], inches: float) -> int:
    """How many legend entries stand side by side: all where they fit."""
    whole = sum(0.62 + 0.065 * len(label) for label in labels)
    return len(labels) if whole <= inches else legend_columns(labels, inches)


def _look(row: SpectrumRow) -> tuple[str, Any]:
    """What tells lines apart: matrix and weights."""
    return matrix_label(row), row.get("weights")


def _stacked(rows: Sequence[SpectrumRow]) -> Any:
    """The moduli of all heads, (rows, values); the shortest decides where lengths differ."""
    values = [moduli(row) for row in rows]
    shortest = min(map(len, values))
    return np.array([one[:shortest] for one in values])


def _over(rows: Sequence[SpectrumRow]) -> str:
    counts = {f"{name}s": len({row[name] for row in rows}) for name in ("head", "window")}
    return f"median and p10 – p90 over {counted([counts])}"
