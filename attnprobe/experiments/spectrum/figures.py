"""Spectra as figures: how values decay, and how their sum grows; byte for byte the same for the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...figures.drawing import Drawing
from ...figures.ends import lowest, outside, scale
from ...figures.looks import GREY, escaped, looks_of
from ...figures.methods import band_legend, rank_of, where
from ...figures.panels import Panels, draw_figures, panels_of
from ...tables.labels import source_heading
from ...tables.long import Row
from ...tables.numbers import method_label
from ...tables.table import counted, gathered
from .view import matrix_label, moduli

TITLES = {
    ("decay", True): "Decay of eigenvalues",
    ("decay", False): "Decay of singular values",
    ("cumulative", True): "Cumulative share of eigenvalues",
    ("cumulative", False): "Cumulative share of squared singular values",
}
CAPTIONS = {
    ("decay", True): "Eigenvalues |λ_i| / |λ_1|",
    ("decay", False): "Singular values σ_i / σ_1",
    ("cumulative", True): "The sum of the first i |λ_j| over the sum of all",
    ("cumulative", False): "The sum of the first i σ_j² over the sum of all",
}
MOST_BANDS = 3  # matrices; those of more would overlap
LINES = ("-", "--", ":", "-.")  # of the weights
POINTS = 400  # of a line; more are not visible
NAMES = {  # of exact matrices
    "softmax": r"softmax $B$",
    "unnormalised": r"unnormalised $A$",
    "gaussian": r"Gaussian $C$",
    "lifted-softmax": r"lifted $\bar{A}$",
    "lifted-gaussian": r"lifted $\bar{C}$",
    "output": r"output $BV$",
}


def spectrum_figures(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw ``decay`` and ``cumulative``: one panel per (layer, n), one line per matrix and weights.

    ``decay`` is ``σ_i / σ₁`` (or ``|λ_i| / |λ₁|``) against i, on logarithmic axes (see `scale`). The legend has the
    ranks at which a median is float64's rounding alone. ``cumulative`` shows complete spectra: ``Σ_{j≤i} σ_j² / Σ σ²``
    against i, as in the table's ranks, or ``Σ_{j≤i} |λ_j| / Σ |λ|``, as in Figure 2 of Beyond Nyströmformer. Lines are
    medians over heads and windows; bands of up to 3 matrices run from p10 to p90. Matrices differ by colour and marker,
    weights by line style.

    Args:
        out_dir: where ``spectrum-decay.svg``, ``spectrum-cumulative.svg`` and the like are written (``-2``, … if there
            are many panels).

    Returns:
        The files' paths; none if no row has values.
    """
    good = [row for row in rows if row["status"] == "ok" and any(moduli(row)[:1])]
    known = set(map(id, good))
    lost = list(dict.fromkeys(matrix_label(row) for row in rows if id(row) not in known))
    looks = _looks(good)
    complete = [row for row in good if row.get("complete")]
    figures = [
        _figure(name, shown, looks, lost) for name, shown in (("decay", good), ("cumulative", complete)) if shown
    ]
    return draw_figures(figures, drawing, out_dir)


def _figure(name: str, rows: Sequence[Row], looks: Mapping[Any, dict[str, Any]], lost: Sequence[str]) -> Panels:
    same, eigen = name == "decay", rows[0]["kind"] == "eigen"
    bands = len({matrix_label(row) for row in rows}) <= MOST_BANDS
    caption = [f"{CAPTIONS[name, eigen]} against the rank i: {_over(rows, bands)}.", *_kinds(rows)]
    caption.append(where([{**row, "source": None} for row in rows]))
    if lost:
        caption.append(f"Not drawn, as some heads are zero, failed or skipped: {', '.join(lost)}.")
    one, top = (r"|\lambda_i|", r"|\lambda_1|") if eigen else (r"\sigma_i", r"\sigma_1")
    value = r"|\lambda_j|" if eigen else r"\sigma_j^2"
    label = f"${one}\\,/\\,{top}$" if same else f"$\\sum_{{j\\leq i}}{value}\\;/\\;\\sum_j{value}$"
    ordered = sorted(rows, key=lambda row: row["layer"])
    lengths = {row["n"] for row in rows}
    points = _points(rows) if same else []
    medians = [point["value"] for point in points]
    zero = 2.0**-52 * max(len(moduli(row)) for row in rows)  # as in the usual numerical rank
    notes = outside(points, lambda point: [point["value"]], zero, by="i")
    if min(medians, default=1.0) < lowest(medians):
        caption.append(f"The axis leaves out values below {lowest(medians):.0e}.")
    if any(notes.values()):
        caption.append("The legend has the ranks at which a median is float64's rounding alone.")

    def draw(axis: Any, panel: Sequence[Row]) -> None:
        for group in gathered(panel, _look):
            ranks, quantiles = (_decay if same else _cumulative)(group)
            _drawn(axis, ranks, quantiles, looks[_look(group[0])], bands)
        if same:
            scale(axis, medians)
        else:
            _shares(axis)
        _rank_scale(axis, rows)

    return Panels(
        f"spectrum-{name}",
        f"{TITLES[name, eigen]}: median" + " and p10 – p90" * bands,
        caption,
        panels_of(ordered, "layer {layer}, n = {n}".format_map),
        draw,
        "rank i",
        label,
        _keys(rows, looks, notes) | (band_legend(rows) if bands else {}),
        columns=len(lengths) if 1 < len(lengths) <= 4 and len({row["layer"] for row in rows}) > 1 else None,
        sharing={"sharex": True, "sharey": True},
    )


def _decay(rows: Sequence[Row]) -> tuple[Any, Any]:
    """Ranks i, and p10, median and p90 of ``σ_i / σ₁``."""
    values = _stacked(rows)
    i = _ranks(values.shape[1])
    return i, np.quantile(values[:, i - 1] / values[:, :1], [0.1, 0.5, 0.9], axis=0)


def _points(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The median of ``σ_i / σ₁`` at every rank i, of each curve."""
    points: list[dict[str, Any]] = []
    for group in gathered(rows, lambda row: (*_look(row), row["layer"], row["n"])):
        values = _stacked(group)
        name = {"method": matrix_label(group[0]), "options": {}}
        middle = np.median(values / values[:, :1], axis=0).tolist()
        points += [{**name, "i": i, "value": value} for i, value in enumerate(middle, 1)]
    return points


def _cumulative(rows: Sequence[Row]) -> tuple[Any, Any]:
    """The ranks of `_decay`, and p10, median and p90 of the growing share."""
    sums = np.cumsum(_stacked(rows) ** (1 if rows[0]["kind"] == "eigen" else 2), axis=1)
    i = _ranks(sums.shape[1])
    return i, np.quantile(sums[:, i - 1] / sums[:, -1:], [0.1, 0.5, 0.9], axis=0)


def _ranks(size: int) -> Any:
    """Ranks from 1 to a matrix's, evenly spaced on a logarithmic axis."""
    return np.unique(np.round(np.geomspace(1, size, POINTS)).astype(int))


def _drawn(axis: Any, i: Any, quantiles: Any, look: Mapping[str, Any], band: bool) -> None:
    low, middle, high = quantiles
    at = 4.0 ** (np.arange(12) + look["stagger"])  # markers of coinciding lines are staggered
    marks = [int(np.argmin(np.abs(i - one))) for one in at if one <= i[-1]]
    light = 0.13 if look["linestyle"] == "-" else 0.07
    if band:
        axis.fill_between(i, low, high, color=look["color"], alpha=light, linewidth=0)
    shown = _drawable(look)
    if look["linestyle"] == "--":  # keeps some dashes of each coinciding line visible
        shown["linestyle"] = (3.5 * look["place"], (3.5, 3.5))
    axis.plot(i, middle, **shown, markevery=marks)


def _rank_scale(axis: Any, rows: Sequence[Row]) -> None:
    """A logarithmic axis of ranks with plain numbers."""
    from matplotlib.ticker import FixedLocator, NullLocator

    most = max(len(moduli(row)) for row in rows)
    bits = (most - 1).bit_length()
    axis.grid(True, axis="x")
    axis.set_xscale("log", base=2)
    axis.set_xlim(0.9, most * 1.12)
    axis.xaxis.set_major_locator(FixedLocator([2**power for power in range(bits + 1) if bits < 8 or power % 2 == 0]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter("{x:.0f}")


def _shares(axis: Any) -> None:
    from matplotlib.ticker import FixedLocator, PercentFormatter

    axis.set_ylim(0, 1.02)
    axis.yaxis.set_major_locator(FixedLocator([0, 0.2, 0.4, 0.6, 0.8, 0.9, 1]))
    axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _looks(rows: Sequence[Row]) -> dict[Any, dict[str, Any]]:
    """The style of each (matrix, weights): colour and marker of the matrix or method, line style of the weights.

    Budgets of a method share its style; smaller ones are paler.
    """
    ordered = sorted(rows, key=lambda row: row["of"] not in NAMES)  # exact ones first, in the order requested
    matrices = looks_of([(row["of"], method_label(_method(row))) for row in rows])
    weights = list(dict.fromkeys(row.get("source") for row in rows))
    looks: dict[Any, dict[str, Any]] = {}
    groups = gathered(ordered, matrix_label)
    for place, group in enumerate(groups):
        row = group[0]
        of = method_label(_method(row))
        budgets = sorted({d for other in rows if method_label(_method(other)) == of and (d := other.get("d"))})
        share = rank_of(row.get("d"), budgets)
        for one in weights:
            looks[matrix_label(row), one] = {
                **matrices[of],
                "linestyle": LINES[weights.index(one) % len(LINES)],
                "linewidth": 1.6,
                "markersize": 4,
                "alpha": 0.45 + 0.55 * share if share < 1 else None,
                "place": place,
                "stagger": (place + 1) / len(groups),
            }
    return looks


def _drawable(look: Mapping[str, Any]) -> dict[str, Any]:
    """What matplotlib knows of a look."""
    return {name: value for name, value in look.items() if name not in ("place", "stagger")}


def _method(row: Row) -> Row:
    return {"method": row["of"], "options": row.get("options") or {}}


def _keys(rows: Sequence[Row], looks: Mapping[Any, dict[str, Any]], notes: Mapping[str, str]) -> dict[str, Any]:
    """The legend: a colour and marker for each matrix, and a line style for each of several weights.

    Args:
        notes: of `outside`.
    """
    there = set(map(_look, rows))
    matrices = {matrix for matrix, _ in there}
    weights = [one for one in dict.fromkeys(one for _, one in looks) if any(one == other for _, other in there)]
    keys: dict[str, Any] = {}
    for (matrix, _), look in looks.items():
        if matrix in matrices:
            shown = _drawable(look) | ({"linestyle": "-"} if len(weights) > 1 else {})
            name = escaped(matrix)
            keys.setdefault(NAMES.get(matrix, name) + notes.get(name, ""), shown)
    if len(weights) > 1:
        for one in weights:
            line = next(look["linestyle"] for (_, other), look in looks.items() if other == one)
            keys[escaped(str(one))] = {"color": GREY, "linestyle": line, "linewidth": 1.6}
    return keys


def _look(row: Row) -> tuple[str, Any]:
    return matrix_label(row), row.get("source")


def _stacked(rows: Sequence[Row]) -> Any:
    """The moduli of all heads, (rows, values), cut at the shortest."""
    values = [moduli(row) for row in rows]
    shortest = min(map(len, values))
    return np.array([one[:shortest] for one in values])


def _kinds(rows: Sequence[Row]) -> list[str]:
    """The weights, which differ by line style."""
    headings = list(dict.fromkeys(heading for row in rows if (heading := source_heading(row))))
    return [f"Kinds of line: {', '.join(headings)}."] if len(headings) > 1 else []


def _over(rows: Sequence[Row], bands: bool) -> str:
    counts = {f"{name}s": len({row[name] for row in rows}) for name in ("head", "window")}
    return f"median{', with a band from p10 to p90,' if bands else ''} over {counted([counts])}"
