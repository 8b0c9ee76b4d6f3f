"""Figures of ``attnprobe bench``: time and memory against n, and error against each cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...figures.costs import (
    ARROWS,
    DIM,
    STEPS,
    Point,
    beyond,
    cloud,
    coloured,
    frontier,
    names,
    no_panel,
    others_legend,
)
from ...figures.drawing import Drawing
from ...figures.kit import logarithmic, powers_of_two
from ...figures.looks import EXACT, GREY, formula, sentence, symbol
from ...figures.methods import (
    beside,
    family_panels,
    hollow_legend,
    marks,
    panel_title,
    spread_legend,
    styles_of,
    text_label,
    where,
)
from ...figures.panels import Panels, draw_figures
from ...figures.texts import Texts
from ...tables.labels import file_tag
from ...tables.long import Row
from ...tables.methods import mark
from ...tables.table import gathered, grouped_by
from .timing import ERROR, FIT_FROM, exponent, quartiles

COSTS = {  # heading, factor, label
    "seconds": ("time", 1e3, "median time, ms"),
    "peak_bytes": ("memory", 2.0**-20, "peak memory\nbeyond Q, K, V, MiB"),
    "flops": ("products", 1e-9, "matrix products, GFLOP"),
    "kv_read": ("keys read", 1.0, "rows of K and V\nread for a query"),
}
SPAN = 4.0  # times V-Mean's error; larger errors are arrows at the edge
EXACT_LABEL = "exact attention, fused kernel"
BLACK = {"color": "black", "marker": "o", "linewidth": 2.0, "markersize": 3.5, "zorder": 2.5}
LINE = {"color": "black", "linewidth": 1.4, "zorder": 1}  # of the cost of exact attention
VMEAN = {"color": GREY, "linestyle": "--", "linewidth": 1.2, "zorder": 1}
GUIDE: Mapping[str, Any] = {"color": "#b0b0b0", "linewidth": 0.8, "zorder": 0.9}
GUIDES = {1: "∝ n", 2: "∝ n²"}
WIDE = 1.1  # from p25 to p75 of a bar, at least: shorter ones would be specks
APART = 1.25  # from exact attention to a guide at the least n, as a ratio


def bench_figures(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw costs and errors, for each (source, layer, target).

    ``bench-time-dD`` and ``bench-memory-dD``: cost against n on logarithmic axes, if there are several n. Every panel
    shows exact attention in black, and thin guides of slopes 1 and 2 through its last point. The legend has each
    method's exponent. More than 6 methods have panels by family, of at most four methods each. ``bench-pareto-nN``:
    error against time, memory, products, and the keys that a row reads, if errors and these costs were
    measured. A point is a budget, larger for larger ones; steps are the frontier.

    Returns:
        The files' paths.
    """
    figures: list[Panels] = []
    places = grouped_by(rows, "source", "layer", "target")
    several = len({group[0]["layer"] for group in places}) > 1
    methods = [row for row in rows if row["method"] != EXACT]
    for group in places:
        timed = [row for row in group if row["seconds"]]
        tag = (f"-layer{group[0]['layer']}" if several else "") + file_tag(group[0]["source"])
        for d in list(dict.fromkeys(row["d"] for row in timed if row["d"] is not None)) or [None]:
            for cost in ("seconds", "peak_bytes"):
                priced = [row for row in timed if row["d"] in (None, d) and row[cost]]
                if len({row["n"] for row in priced}) > 1:
                    figures.append(_growth(methods, priced, cost, d, tag))
        for of_length in grouped_by(timed, "n"):
            figures += [_pareto(methods, of_length, tag)] if sum(map(_is_drawn, of_length)) > 1 else []
    return draw_figures(figures, drawing, out_dir)


def _where(rows: Sequence[Row]) -> str:
    backward = "; forward and gradient" if any(row["backward"] for row in rows) else ""
    return where(rows, "heads").removesuffix(".") + backward + "."


def _growth(run: Sequence[Row], rows: Sequence[Row], cost: str, d: int | None, tag: str) -> Panels:
    """One cost against n: a panel, or one for each family of many methods."""
    heading, factor, label = COSTS[cost]
    methods = [row for row in rows if not row["reference"]]
    panels = family_panels(methods)
    styles = styles_of(run, methods)
    labels = {}  # the legend's, with exponents
    for group in gathered(methods, text_label):
        slope = exponent({row["n"]: row[cost] for row in group})
        labels[text_label(group[0])] = text_label(group[0]) + ("" if slope is None else f" ({slope:.2f})")
    lengths = sorted({row["n"] for row in rows})
    exact = [row for row in rows if row["method"] == EXACT]
    vmean = [row for row in rows if row["method"] == "vmean" and row["reference"]]

    def bar(row: Row) -> tuple[float, ...]:
        """The ends of a row's bar, and its value between them."""
        ends = quartiles(row["seconds_rounds"]) if cost == "seconds" else ()
        return tuple(factor * one for one in sorted([*ends, row[cost]]))

    ends = [end for row in rows for end in bar(row)]
    first, last = (min(exact, key=_length), max(exact, key=_length)) if exact else ({}, {})

    def guide(n: float, power: int) -> float:
        """A cost that grows with this power of n, and is that of exact attention at its largest."""
        return factor * last[cost] * (n / last["n"]) ** power

    low = min(ends) / 1.5

    def is_clear(power: int) -> bool:
        """Whether a guide stays on the axis and apart from exact attention."""
        start = guide(first["n"], power)
        return start >= low and abs(math.log(start / (factor * first[cost]))) > math.log(APART)

    guides = {power: one for power, one in GUIDES.items() if exact and is_clear(power)}

    def curve(axis: Any, group: Sequence[Row], look: Mapping[str, Any], place: int, count: int) -> Any:
        """The line of some rows, one of so many; times have bars."""
        ordered = sorted(group, key=_length)
        lengths = [row["n"] for row in ordered]
        if cost == "seconds":
            low, high = ([end(bar(row)) for row in ordered] for end in (min, max))
            side = axis.transData + beside(axis, place, count)
            wide = [place for place, ends in enumerate(zip(low, high, strict=True)) if ends[1] > WIDE * ends[0]]
            bars = ([some[place] for place in wide] for some in (lengths, low, high))
            axis.vlines(*bars, color=look["color"], linewidth=1.0, zorder=2.6, transform=side)
        (line,) = axis.plot(lengths, [factor * row[cost] for row in ordered], **look)
        return line

    def draw(axis: Any, panel: Sequence[Row]) -> Mapping[str, Any]:
        own = {}
        curves = gathered(panel, text_label)
        count = len(curves) + bool(exact) + bool(vmean)
        if exact:
            curve(axis, exact, BLACK, count - 1, count)
        for power in guides:
            axis.plot([first["n"], last["n"]], [guide(first["n"], power), guide(last["n"], power)], **GUIDE)
        if vmean:
            curve(axis, vmean, VMEAN, len(curves), count)
        for place, group in enumerate(curves):
            name = text_label(group[0])
            own[labels[name]] = curve(axis, group, styles[name], place, count)
        _log_axes(axis, lengths)
        axis.set_ylim(low, max(ends) * 1.5)
        return own if len(panels) > 1 else {}

    def finish(axis: Any, panel: Sequence[Row]) -> None:
        texts = Texts(axis)
        for power, name in guides.items():
            between = [first["n"] * (last["n"] / first["n"]) ** (part / 8) for part in range(1, 8)]
            texts.write(name, [(n, guide(n, power)) for n in between], DIM["color"])

    what = label.rpartition(",")[0].replace("\n", " ")
    title = f"{sentence(what)} against n"
    place = panel_title({**rows[0], "n": None}, [] if d is None else [d])
    fitted = any(labels[name] != name for name in labels)
    legend = {} if len(panels) > 1 else {labels[name]: style for name, style in styles.items()}
    legend |= {EXACT_LABEL: BLACK} if exact else {}
    legend |= {"V-Mean": VMEAN} if vmean else {}
    legend |= spread_legend("p25 – p75") if any(ends[-1] > WIDE * ends[0] for ends in map(bar, rows)) else {}
    return Panels(
        f"bench-{heading}{'' if d is None else f'-d{d}'}{tag}",
        title,
        [
            f"{title}"
            + ("" if d is None else f" at d = {d}")
            + ", on logarithmic axes. Exact attention is the framework's fused kernel.",
            *(
                [f"Bars run from p25 to p75 of the rounds where these differ by over {WIDE - 1:.0%}."]
                * (cost == "seconds")
            ),
            *([f"Guides through its last point: {', '.join(guides.values())}."] * bool(guides)),
            *([f"In brackets: exponents fitted for n ≥ {FIT_FROM}."] * fitted),
            _where(rows),
        ],
        [("\n".join(filter(None, [place, name])), group) for name, group in panels],
        draw,
        "tokens n",
        label,
        legend,
        height=2.3,
        finish=finish,
    )


def _length(row: Row) -> int:
    return row["n"]


def _log_axes(axis: Any, lengths: Sequence[int]) -> None:
    powers_of_two(axis, lengths)
    logarithmic(axis, "y")


def _is_drawn(row: Row) -> bool:
    return not row["reference"] and bool(row["error"]) and math.isfinite(row["error"])


def _pareto(run: Sequence[Row], rows: Sequence[Row], tag: str) -> Panels:
    """Error against every cost that was measured, a panel each."""
    points = [row for row in rows if _is_drawn(row)]
    vmean = next((row["error"] for row in rows if row["method"] == "vmean" and row["error"]), None)
    errors = sorted(row["error"] for row in points)
    edge = SPAN * (vmean or errors[len(errors) // 2])
    ends = errors[0] / 1.6, min(edge, 1.6 * max(vmean or 0, errors[-1]))
    clouds = {cost: _points(points, cost) for cost in COSTS}
    exact = next((row for row in rows if row["method"] == EXACT), {})
    prices = {cost: COSTS[cost][1] * price for cost in COSTS if (price := exact.get(cost))}
    begin = vmean or math.inf
    best = {cost: frontier(clouds[cost], (prices.get(cost, math.inf), begin)) for cost in COSTS}
    stating = {cost: {point.label for point in clouds[cost]} for cost in COSTS}
    most = max(map(len, stating.values()))
    costs = [cost for cost in COSTS if len(clouds[cost]) > 1 and len(stating[cost]) >= min(2, most)]
    budgets = {row["d"] for row in points} - {None}
    styles, others, words = coloured(run, points, [(clouds[cost], best[cost]) for cost in costs])
    place = panel_title(rows[0], [*budgets] if len(budgets) == 1 else [])

    def within(cost: str) -> list[Point]:
        return [point for point in clouds[cost] if point.error <= edge]

    def out(cost: str) -> list[Point]:
        return [point for point in clouds[cost] if point.error > edge]

    def draw(axis: Any, cost: str) -> None:
        cloud(axis, within(cost), styles, best[cost], begin)
        if cost in prices:
            axis.axvline(prices[cost], **LINE)
        if vmean:
            axis.axhline(vmean, **VMEAN)
        logarithmic(axis)
        axis.set_ylim(ends)
        beyond(axis, out(cost), styles)
        axis.set_xlabel(COSTS[cost][2])

    def finish(axis: Any, cost: str) -> None:
        names(axis, within(cost), styles, len(budgets) > 1, out(cost))

    return Panels(
        f"bench-pareto-n{rows[0]['n']}{tag}",
        "Output error against cost: medians",
        [
            f"Median of the output error, {formula(ERROR)}, against each cost.",
            *words,
            "The upright line: the cost of exact attention, by the framework's fused kernel, which has no error.",
            *no_panel({COSTS[cost][0]: stating[cost] for cost in COSTS if cost not in costs}),
            *marks(rows, ERROR),
            _where(rows),
        ],
        [(place, cost) for cost in costs],
        draw,
        y=f"{symbol(ERROR)}, median",
        legend=others_legend(others)
        | (STEPS if any(best[cost] for cost in costs) else {})
        | (ARROWS if errors[-1] > edge else {})
        | hollow_legend(points)
        | ({EXACT_LABEL: LINE} if prices else {})
        | ({"V-Mean": VMEAN} if vmean else {}),
        height=2.6,
        finish=finish,
        sharing={"sharey": True},
    )


def _points(rows: Sequence[Row], cost: str) -> list[Point]:
    """The points of one cost."""
    factor = COSTS[cost][1]
    return [
        Point(text_label(row), row["d"], factor * row[cost], row["error"], mark(row) == "!")
        for row in rows
        if row[cost]
    ]
