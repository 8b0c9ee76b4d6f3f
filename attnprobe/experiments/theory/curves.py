"""Curves of ``attnprobe theory``: dimension against λ and n, failure against ε, rank collapse across layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from ...figures.kit import logarithmic, powers_of_two
from ...figures.looks import COLOURS, looks_of, typeset
from ...figures.methods import SHADE, band_legend, where
from ...figures.panels import Panels, panels_of
from ...records.file import decode_inf
from ...tables.labels import source_heading
from ...tables.long import Row, quantiles
from ...tables.numbers import method_label
from ...tables.table import gathered, grouped_by

Curve = list[tuple[float, dict[str, float]]]  # x, and quantiles of y

MOST_TICKS = 6
MOST_BANDS = 2  # of curves over each other
OF = ("matrix", "output")  # whose errors exceed ε
STYLES = ("-", "--", ":", "-.")
GREY = "#999999"
PALE = {"linewidth": 0.5, "alpha": 0.3}  # of the curve of a head
MEDIAN = {"linewidth": 0.7, "alpha": 0.8}  # of the median over heads
MOST_OF_HEADS = 2  # methods at a budget, whose heads have a curve each
ROWS = {"linewidth": 1.0, "linestyle": ":"}
DOT = {"marker": "o", "markersize": 3.5}
LINE = {"linewidth": 1.6, **DOT}
COLLAPSE = {  # label, colour and kind of line
    "values": (typeset("‖res(V)‖ / ‖V‖"), COLOURS[0], ":"),
    "relative": (typeset("‖res(BV)‖ / ‖BV‖"), COLOURS[1], "--"),
    "measured": (typeset("‖res(BV)‖ / ‖res(V)‖"), COLOURS[2], "-"),
    "bound": ("its bound", GREY, "-"),
}
COLLAPSE_FIELDS = ("measured", "bound")  # of the finding itself


def theory_curves(points: Sequence[Row]) -> list[Panels]:
    """The curves that the findings hold: medians over heads and windows, with bands from p10 to p90.

    ``theory-dimension``: Skyformer's d_stat against λ/‖C‖, a line for each n. ``theory-tokens``: d_stat, the d that
    Theorem 2 requires, and the number 2n of rows, against n, with a colour for each ε. ``theory-ma-OF-nN``: the share
    of seeds whose error of a method's matrix or output exceeds ε, head by head. These figures have a panel for each
    layer and source. ``theory-layers``: the part of V that is not of rank one, after attention, with a panel for each n
    and source.
    """
    figures: list[Panels] = []
    dimension = _first_of([point for point in points if "d_stat" in point["details"] and "epsilon" in point["at"]])
    if dimension:
        figures.append(_dimension(dimension))
        figures += [_tokens(dimension)] if len({point["n"] for point in dimension}) > 1 else []
    errors = [point for point in points if point["theorem"] == "ma-property" and "errors" in point["details"]]
    looks = _looks(errors)
    for of_length in grouped_by(errors, "n"):
        figures += [_failure(group, looks) for group in gathered(of_length, lambda point: str(point["at"].get("of")))]
    collapse = [point for point in points if point["theorem"] == "rank-collapse"]
    if len({point["layer"] for point in collapse}) > 1:
        figures.append(_collapse(collapse))
    return figures


def _panels(points: Sequence[Row], *by: str) -> dict[str, Any]:
    """Panels for each value of a field, layer or n, and each source, those of one value side by side."""
    sources = list(dict.fromkeys(point["source"] for point in points))
    ordered = sorted(points, key=lambda point: (point[by[0]], sources.index(point["source"])))

    def title(point: Row) -> str:
        places = ["n = {n}" if name == "n" else "layer {layer}" for name in by]
        return ", ".join(filter(None, [source_heading(point), *(place.format_map(point) for place in places)]))

    return {"panels": panels_of(ordered, title), "columns": len(sources) if 1 < len(sources) <= 3 else None}


def _first_of(points: Sequence[Row]) -> list[Row]:
    """One point for each source, layer, n, window, head and ε: findings of several budgets or events repeat it."""

    def place(point: Row) -> tuple[Any, ...]:
        return (*(point[name] for name in ("source", "layer", "n", "window", "head")), point["at"]["epsilon"])

    return [group[0] for group in gathered(points, place)]


def _colours(values: Iterable[Any]) -> dict[Any, str]:
    return {value: COLOURS[place % len(COLOURS)] for place, value in enumerate(sorted(set(values)))}


def _dimension(points: Sequence[Row]) -> Panels:
    """d_stat against ε = λ/‖C‖, a line for each n."""
    colours = _colours(point["n"] for point in points)
    ticks = sorted({point["at"]["epsilon"] for point in points})

    def draw(axis: Any, panel: Sequence[Row]) -> None:
        for group in grouped_by(panel, "n"):
            n, colour = group[0]["n"], colours[group[0]["n"]]
            _line(axis, _curve(group, _epsilon, "d_stat"), colour)
            axis.axhline(2 * n, color=colour, **ROWS)
        logarithmic(axis)
        if len(ticks) <= MOST_TICKS:
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])

    return Panels(
        "theory-dimension",
        "Statistical dimension of the lifted kernel against λ: median and p10 – p90 over heads",
        [
            "Statistical dimension d_stat of the lifted kernel against λ / ‖C‖: median over heads and windows, with a "
            "band from p10 to p90. Dotted: 2n, all rows.",
            where(points),
        ],
        draw=draw,
        x=typeset("λ / ‖C‖"),
        y=typeset("d_stat(λ)"),
        legend={f"n = {n}": {"color": colour, **LINE} for n, colour in colours.items()}
        | band_legend(points, colours.values())
        | {"2n": {**ROWS, "color": GREY}},
        **_panels(points, "layer"),
    )


def _tokens(points: Sequence[Row]) -> Panels:
    """d_stat and the sufficient d against n, a colour for each ε."""
    colours = _colours(map(_epsilon, points))
    lengths = sorted({point["n"] for point in points})
    rows = {"color": GREY, **ROWS}
    banded = len(colours) <= MOST_BANDS

    def draw(axis: Any, panel: Sequence[Row]) -> None:
        for group in gathered(panel, _epsilon):
            colour = colours[_epsilon(group[0])]
            _line(axis, _curve(group, _length, "d_stat"), colour, band=banded)
            if "sufficient" in group[0]["details"]:
                _line(axis, _curve(group, _length, "sufficient"), colour, "--", band=False)
        axis.plot(lengths, [2 * n for n in lengths], **rows)
        logarithmic(axis)
        powers_of_two(axis, lengths)

    return Panels(
        "theory-tokens",
        "Statistical dimension, and landmarks that Theorem 2 requires (dashed), against n: median"
        + ", p10 – p90" * banded
        + " over heads",
        [
            f"Statistical dimension of the lifted kernel (solid){', with a band from p10 to p90' * banded}, and the "
            "number of landmarks that Theorem 2 requires (dashed), against n: medians over heads and windows.",
            "Grey: 2n, all rows.",
            where(points),
        ],
        draw=draw,
        x="tokens n",
        y=f"{typeset('d_stat')}, or landmarks",
        legend={f"ε = {epsilon:g}": {"color": colour, "linestyle": "", **DOT} for epsilon, colour in colours.items()}
        | {typeset("d_stat"): {**LINE, "color": GREY}}
        | {"landmarks that Theorem 2 requires": {**LINE, "color": GREY, "linestyle": "--"}}
        | {"2n": rows, **(band_legend(points, colours.values()) if banded else {})},
        **_panels(points, "layer"),
    )


def _failure(points: Sequence[Row], every: Mapping[str, Mapping[str, Any]]) -> Panels:
    """The share of seeds whose error exceeds ε: a thin line for each head and window, a strong one for the worst.

    Of more than `MOST_OF_HEADS` strong lines, the thin ones are the medians over heads and windows.
    """
    of, n = points[0]["at"].get("of"), points[0]["n"]
    what = f"whose {of} is off by more than ε" if of in OF else "whose error exceeds ε"
    title = f"Share of seeds {what}, head by head"
    looks = {name: every[name] for name in map(_at_budget, points)}
    deltas = sorted({point["at"]["delta"] for point in points if "delta" in point["at"]})
    promised = {"color": GREY, "linewidth": 0.8}
    each = len(looks) <= MOST_OF_HEADS
    thin = PALE if each else MEDIAN

    def draw(axis: Any, panel: Sequence[Row]) -> None:
        for group in gathered(panel, _at_budget):
            once = {(point["window"], point["head"]): point for point in group}  # each ε repeats the errors
            heads = [[decode_inf(x) for x in point["details"]["errors"]] for point in once.values()]
            steps = sorted({x for errors in heads for x in errors if 0 < x < math.inf})
            if steps:
                steps = [steps[0] / 2, *steps, steps[-1] * 2]
                shares = [[sum(x > step for x in errors) / len(errors) for step in steps] for errors in heads]
                at_each = [*zip(*shares, strict=True)]
                lines = [(own, thin) for own in (shares if each else [[*map(median, at_each)]])]
                for own, width in [*lines, ([*map(max, at_each)], {})]:
                    axis.step(steps, own, where="post", **looks[_at_budget(group[0])] | width)
        for delta in deltas:
            axis.axhline(delta, zorder=1, **promised)
        logarithmic(axis, "x")
        axis.set_ylim(-0.02, 1.02)

    return Panels(
        f"theory-ma-{of}-n{n}",
        title,
        [
            f"{title}, relative to its norm. Thin: {'each head and window' if each else 'the median of heads'}. "
            "Strong: the largest share of any of them at each ε; no head breaks the promise where it is at most δ.",
            where(points),
        ],
        draw=draw,
        x="ε",
        y=f"share of {of} errors above ε" if of in OF else "share of errors above ε",
        legend={
            f"{name} ({in_seeds(group)})": looks[name]
            for name, group in zip(looks, gathered(points, _at_budget), strict=True)
        }
        | {f"thin: {'each head' if each else 'the median head'}, strong: the worst": {"color": GREY, **thin}}
        | {f"promised: at most δ = {delta:g}": promised for delta in deltas},
        **_panels(points, "layer", "n"),
    )


def in_seeds(points: Sequence[Row]) -> str:
    """The seeds behind a share; a method without draws runs once."""
    seeds = max(len(point["details"].get("errors") or ()) or point["seeds"] or 0 for point in points)
    return f"{seeds} seeds: steps of {1 / seeds:.2g}" if seeds > 1 else "one run, no draws" * seeds


def _looks(points: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """A colour for each method, and a kind of line for each of its budgets."""
    methods = gathered(points, _method)
    colours = looks_of([(label.partition(":")[0], label) for label in map(_method, points)])
    looks: dict[str, dict[str, Any]] = {}
    for group in methods:
        for place, name in enumerate(dict.fromkeys(map(_at_budget, group))):
            look = {"color": colours[_method(group[0])]["color"], "linestyle": STYLES[place % len(STYLES)]}
            looks[name] = {**look, "linewidth": 1.5, "alpha": 1.0}
    return looks


def _collapse(points: Sequence[Row]) -> Panels:
    """Residuals of V and of BV, their quotient and its bound, against the layer."""
    names = [name for name in COLLAPSE if name in COLLAPSE_FIELDS or name in points[0]["details"]]
    detailed = [
        {**row, "details": {**row["details"], **{name: row[name] for name in COLLAPSE_FIELDS}}} for row in points
    ]

    layers = sorted({row["layer"] for row in points})

    def draw(axis: Any, panel: Sequence[Row]) -> None:
        for name in names:
            _, colour, style = COLLAPSE[name]
            _line(axis, _curve(panel, lambda point: point["layer"], name), colour, style)
        logarithmic(axis, "y")
        axis.set_xticks(layers[:: math.ceil(len(layers) / MOST_TICKS)])

    return Panels(
        "theory-layers",
        "What attention leaves of V beyond rank one: median and p10 – p90 over heads",
        [
            "res(M) is what is left of M but for one row that repeats: median over heads and windows, with a band from "
            "p10 to p90, layer by layer.",
            where(points),
        ],
        draw=draw,
        x="layer",
        y="share, or quotient",
        legend={
            COLLAPSE[name][0]: {**LINE, "color": COLLAPSE[name][1], "linestyle": COLLAPSE[name][2]} for name in names
        }
        | band_legend(points),
        **_panels(detailed, "n"),
    )


def _epsilon(point: Row) -> float:
    return point["at"]["epsilon"]


def _length(point: Row) -> int:
    return point["n"]


def _method(point: Row) -> str:
    return point["at"].get("method") or method_label(point)


def _at_budget(point: Row) -> str:
    return f"{_method(point)} d = {point.get('d')}"


def _curve(points: Sequence[Row], x: Callable[[Row], float], name: str) -> Curve:
    """Quantiles over heads and windows at each x, of finite positive values."""
    groups: dict[float, list[float]] = {}
    for point in points:
        value = decode_inf(point["details"][name])
        if 0 < value < math.inf:
            groups.setdefault(x(point), []).append(value)
    return [(at, quantiles(values)) for at, values in sorted(groups.items())]


def _line(axis: Any, curve: Curve, colour: str, style: str = "-", band: bool = True) -> None:
    """Medians, with a band from p10 to p90."""
    if not curve:
        return
    x, quantiles_of_y = zip(*curve, strict=True)
    low, middle, high = ([each[name] for each in quantiles_of_y] for name in ("p10", "median", "p90"))
    if band:
        axis.fill_between(x, low, high, color=colour, alpha=SHADE, linewidth=0)
    axis.plot(x, middle, **{**LINE, "color": colour, "linestyle": style})
