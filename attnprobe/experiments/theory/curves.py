"""Curves of ``attnprobe theory``: dimension against λ and n, failure against ε, rank collapse across layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...figures.drawing import Drawing
from ...figures.files import chunks, drawn
from ...figures.kit import Sheet, columns_of, grid, legend, legend_columns, logarithmic, powers_of_two
from ...figures.looks import COLOURS, looks_of
from ...records.file import decode_inf
from ...tables.labels import source_heading
from ...tables.long import Row
from ...tables.numbers import method_label
from ...tables.rows import Quantiles
from ...tables.statistics import quantiles
from ...tables.table import gathered

Curve = list[tuple[float, Quantiles]]  # x, and quantiles of y


PER_PAGE = 12  # panels
WIDTH, HEIGHT = 2.1, 2.2  # inches of a panel
MOST_TICKS = 6
FEW_DECADES = 100  # an axis that spans less also has labels between the powers of ten
STYLES = ("-", "--", ":", "-.")
GREY = "#999999"


def theory_curves(points: Sequence[Row], drawing: Drawing, out_dir: Path) -> list[Path]:
    """Draw the curves that the findings hold: medians over heads and windows, with bands from p10 to p90.

    ``theory-dimension``: Skyformer's d_stat against λ/‖C‖, a line for each n. ``theory-tokens``: d_stat, the d that
    Theorem 2 requires, and the number 2n of rows, against n, with a colour for each ε. ``theory-ma-OF-nN``: the share
    of relative errors of a method's matrix or output that exceed ε. These figures have a panel for each layer and
    source. ``theory-layers``: the part of V that is not of rank one, after attention, with a panel for each n and
    source.
    """
    layer = lambda point: (point["layer"], f"layer {point['layer']}")
    dimension = _first_of([point for point in points if "d_stat" in point["details"] and "epsilon" in point["at"]])
    paths = _figure(dimension, "theory-dimension", drawing, DIMENSION, layer, _dimension, out_dir)
    if len({point["n"] for point in dimension}) > 1:
        paths += _figure(dimension, "theory-tokens", drawing, TOKENS, layer, _tokens, out_dir)
    errors = [point for point in points if point["theorem"] == "ma-property" and "errors" in point["details"]]
    for n in dict.fromkeys(point["n"] for point in errors):
        of_length = [point for point in errors if point["n"] == n]
        for of in dict.fromkeys(str(point["at"].get("of")) for point in of_length):
            of_matrix = [point for point in of_length if point["at"].get("of") == of]
            stem = f"theory-ma-{of}-n{n}"
            paths += _figure(of_matrix, stem, drawing, _of_length(MA.get(of, EXCEEDED), n), layer, _failure, out_dir)
    collapse = [point for point in points if point["theorem"] == "rank-collapse"]
    if len({point["layer"] for point in collapse}) > 1:
        length = lambda point: (point["n"], f"n = {point['n']}")
        paths += _figure(collapse, "theory-layers", drawing, LAYERS, length, _collapse, out_dir)
    return paths


Words = tuple[str, str]  # title and caption
DIMENSION = (
    "Statistical dimension of the lifted kernel against λ: median and p10 – p90 over heads",
    "Statistical dimension d_stat of the lifted kernel against λ / ‖C‖: median over heads and windows, with a band "
    "from p10 to p90. Dotted: 2n, all rows.",
)
TOKENS = (
    "Statistical dimension, and landmarks that Theorem 2 requires (dashed), against n: median, p10 – p90 over heads",
    "Statistical dimension of the lifted kernel (solid), with a band from p10 to p90, and the number of landmarks that "
    "Theorem 2 requires (dashed), against n: medians over heads and windows. Grey: 2n, all rows.",
)
LAYERS = (
    "What attention leaves of V beyond rank one: median and p10 – p90 over heads",
    "res(M) is what is left of M but for one row that repeats: median over heads and windows, with a band from p10 to "
    "p90, layer by layer.",
)
EXCEEDED = (
    "Share of errors above ε, over seeds and heads",
    "Share of seeds and heads whose error exceeds ε, relative to the norm. Grey: δ.",
)
MA = {
    "matrix": (
        "Share of seeds and heads whose matrix is off by more than ε",
        "Share of seeds and heads whose matrix is off by more than ε, relative to its norm. Grey: δ.",
    ),
    "output": (
        "Share of seeds and heads whose output is off by more than ε",
        "Share of seeds and heads whose output is off by more than ε, relative to its norm. Grey: δ.",
    ),
}


def _of_length(words: Words, n: int) -> Words:
    return words[0], f"{words[1]} n = {n}."


def _first_of(points: Sequence[Row]) -> list[Row]:
    """One point for each source, layer, n, window, head and ε: findings of several budgets or events repeat it."""
    first: dict[tuple[Any, ...], Row] = {}
    for point in points:
        place = (point[name] for name in ("source", "layer", "n", "window", "head"))
        first.setdefault((*place, point["at"]["epsilon"]), point)
    return list(first.values())


def _figure(
    points: Sequence[Row],
    stem: str,
    drawing: Drawing,
    words: Words,
    place_of: Callable[[Row], tuple[int, str]],
    draw: Callable[[Any, Sequence[Row]], dict[str, Any]],
    out_dir: Path,
) -> list[Path]:
    """Pages of panels with one legend: a panel for each place and source, those of one place side by side."""
    sources = list(dict.fromkeys(point["source"] for point in points))
    columns = len(sources) if 1 < len(sources) <= 3 else 3
    place = lambda point: (place_of(point)[0], sources.index(point["source"]))
    panels = sorted(gathered(points, place), key=lambda group: place(group[0]))

    def page(shown: Sequence[Sequence[Row]]) -> Sheet:
        names = [", ".join(filter(None, [source_heading(group[0]), place_of(group[0])[1]])) for group in shown]
        sheet, axes = grid(drawing, words[0], [words[1]], names, WIDTH, HEIGHT, columns)
        handles: dict[str, Any] = {}
        for index, (axis, group) in enumerate(zip(axes, shown, strict=True)):
            handles |= draw(axis, group)
            axis.tick_params(labelbottom=True)
            if index % columns_of(axes):
                axis.set_ylabel("")
        legend(sheet, handles, legend_columns([*handles], sheet.figure.get_figwidth()))
        return sheet

    most = min(PER_PAGE, min(columns, drawing.sizes.across(WIDTH)) * drawing.sizes.down(HEIGHT))
    return drawn(chunks(panels, most), page, out_dir / stem, drawing)


def _dimension(axis: Any, points: Sequence[Row]) -> dict[str, Any]:
    """d_stat against ε = λ/‖C‖, a line for each n."""
    from matplotlib.ticker import LogLocator

    handles = {}
    for place, n in enumerate(sorted({point["n"] for point in points})):
        of_length = [point for point in points if point["n"] == n]
        curve = _curve(of_length, lambda point: point["at"]["epsilon"], "d_stat")
        handles[f"n = {n}"] = _line(axis, curve, COLOURS[place % len(COLOURS)], "-")
        axis.axhline(2 * n, color=COLOURS[place % len(COLOURS)], linewidth=0.6, linestyle=":")
    logarithmic(axis)
    ticks = sorted({point["at"]["epsilon"] for point in points})
    if len(ticks) <= MOST_TICKS:
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_xlabel(r"$\lambda\,/\,\|C\|$")
    axis.set_ylabel(r"$d_{stat}(\lambda)$, dotted: $2n$")
    low, high = axis.get_ylim()
    if high < FEW_DECADES * low:
        axis.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axis.yaxis.set_minor_formatter(lambda value, _: f"{value:g}")
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return handles


def _tokens(axis: Any, points: Sequence[Row]) -> dict[str, Any]:
    """d_stat and the sufficient d against n, a colour for each ε."""
    handles = {}
    lengths = sorted({point["n"] for point in points})
    for place, epsilon in enumerate(sorted({point["at"]["epsilon"] for point in points})):
        of_epsilon = [point for point in points if point["at"]["epsilon"] == epsilon]
        colour = COLOURS[place % len(COLOURS)]
        handles[f"ε = {epsilon:g}"] = _line(axis, _curve(of_epsilon, lambda point: point["n"], "d_stat"), colour, "-")
        if "sufficient" in of_epsilon[0]["details"]:
            _line(axis, _curve(of_epsilon, lambda point: point["n"], "sufficient"), colour, "--", band=False)
    (handles["2n"],) = axis.plot(lengths, [2 * n for n in lengths], color=GREY, linewidth=1.6)
    logarithmic(axis)
    powers_of_two(axis, lengths)
    axis.set_xlabel("tokens n")
    axis.set_ylabel("landmarks")
    return handles


def _failure(axis: Any, points: Sequence[Row]) -> dict[str, Any]:
    """The share of errors above ε, a line for each method and budget."""
    groups: dict[str, list[Row]] = {}
    for point in points:
        method = point["at"].get("method") or method_label(point)
        groups.setdefault(f"{method} d = {point.get('d')}", []).append(point)
    methods = list(dict.fromkeys(name.split(" d = ")[0] for name in groups))
    looks = looks_of((label.partition(":")[0], label) for label in methods)
    handles = {}
    for name, group in groups.items():
        once = {(point["window"], point["head"]): point for point in group}  # each ε repeats the errors
        heads = [[decode_inf(x) for x in point["details"]["errors"]] for point in once.values()]
        steps = sorted({x for errors in heads for x in errors if 0 < x < math.inf})
        if not steps:
            continue
        steps = [steps[0] / 2, *steps, steps[-1] * 2]
        shares = [[sum(x > step for x in errors) / len(errors) for errors in heads] for step in steps]
        place = [key.startswith(name.split(" d = ")[0] + " ") for key in groups]
        style = STYLES[sum(place[: list(groups).index(name)]) % len(STYLES)]
        colour = looks[name.split(" d = ")[0]]["color"]
        (handles[name],) = axis.step(
            steps,
            [sum(share) / len(share) for share in shares],
            where="post",
            color=colour,
            linestyle=style,
            linewidth=1.5,
        )
    for delta in {point["at"]["delta"] for point in points if "delta" in point["at"]}:
        axis.axhline(delta, color=GREY, linewidth=0.8, zorder=1)
    axis.set_xscale("log")
    axis.set_ylim(-0.02, 1.02)
    axis.set_xlabel("ε")
    axis.set_ylabel("share of errors above ε")
    return handles


def _collapse(axis: Any, points: Sequence[Row]) -> dict[str, Any]:
    """Residuals of V and of BV, their quotient and its bound, against the layer."""
    from matplotlib.ticker import MaxNLocator

    handles = {}
    shown = (
        ("values", r"$\|res(V)\|/\|V\|$", ":"),
        ("relative", r"$\|res(BV)\|/\|BV\|$", "--"),
        ("measured", r"$\|res(BV)\|/\|res(V)\|$", "-"),
        ("bound", "its bound", "-"),
    )
    for (name, label, style), colour in zip(shown, (*COLOURS[:3], GREY), strict=True):
        detailed = [
            {**point, "details": {**point["details"], "measured": point["measured"], "bound": point["bound"]}}
            for point in points
        ]
        if name in detailed[0]["details"]:
            handles[label] = _line(axis, _curve(detailed, lambda point: point["layer"], name), colour, style)
    axis.set_yscale("log")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("layer")
    axis.set_ylabel("share, or quotient")
    return handles


def _curve(points: Sequence[Row], x: Callable[[Row], float], name: str) -> Curve:
    """Quantiles over heads and windows at each x, of finite positive values."""
    groups: dict[float, list[float]] = {}
    for point in points:
        value = decode_inf(point["details"][name])
        if 0 < value < math.inf:
            groups.setdefault(x(point), []).append(value)
    return [(at, quantiles(values)) for at, values in sorted(groups.items())]


def _line(axis: Any, curve: Curve, colour: str, style: str, band: bool = True) -> Any:
    """Medians, with a band from p10 to p90."""
    x = [at for at, _ in curve]
    if band:
        axis.fill_between(
            x, [q["p10"] for _, q in curve], [q["p90"] for _, q in curve], color=colour, alpha=0.14, linewidth=0
        )
    (line,) = axis.plot(
        x, [q["median"] for _, q in curve], color=colour, linestyle=style, linewidth=1.6, marker="o", markersize=3.5
    )
    return line
