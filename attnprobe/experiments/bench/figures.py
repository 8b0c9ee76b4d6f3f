"""Figures of ``attnprobe bench``: time and memory against n, and error against each cost."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...figures.kit import fixed_settings, legend_columns, saved, title_lines
from ...figures.panels import COLOURS, GREY, MARKERS, styles_of, text_label
from ...tables.labels import file_tag, source_heading
from ...tables.methods import family
from .growth import FIT_FROM, exponent
from .rows import EXACT, frontier

__all__ = ["bench_figures"]

Row = Mapping[str, Any]

MOST_IN_PANEL = 8  # methods; the lines of more are drawn family by family
COSTS = {  # heading, factor, label
    "seconds": ("time", 1e3, "time, ms"),
    "peak_bytes": ("memory", 2.0**-20, "peak memory beyond Q, K, V, MiB"),
    "flops": ("products", 1e-9, "matrix products, GFLOP"),
}
SPAN = 4.0  # times V-Mean's error: what lies above is drawn at the edge
BLACK = {"color": "black", "linewidth": 2.0, "marker": "o", "markersize": 3.5, "zorder": 2.5}
EXACT_LABEL = "exact attention, fused"


def bench_figures(rows: Sequence[Row], title: str, out_dir: str | Path) -> list[Path]:
    """Draw what was measured, for each (source, layer, target).

    ``bench-time-dD`` and ``bench-memory-dD``: cost against n on logarithmic axes, where there are several n; exact
    attention in black in every panel, dotted guides of slopes 1 and 2 through its last point, and a method's exponent
    in the legend. More than 8 methods have a panel for each family. ``bench-pareto-nN``: error against time, memory and
    products, where errors were measured; a point for each budget, larger for larger ones, and the frontier as steps.

    Returns:
        The files' paths.
    """
    paths: list[Path] = []
    places = list(dict.fromkeys((row["source"], row["layer"], row["target"]) for row in rows))
    for place in places:
        here = [row for row in rows if (row["source"], row["layer"], row["target"]) == place and row["seconds"]]
        lead = _lead(here, place)
        tag = (f"-layer{place[1]}" if len({one[1] for one in places}) > 1 else "") + file_tag(place[0])
        budgets = list(dict.fromkeys(row["d"] for row in here if row["d"] is not None)) or [None]
        with fixed_settings():
            for d in budgets:
                mine = [row for row in here if row["d"] in (None, d)]
                told = lead + ("" if d is None else f", d = {d}")
                for cost in ("seconds", "peak_bytes"):
                    if len({row["n"] for row in mine if row[cost]}) > 1:
                        stem = f"bench-{COSTS[cost][0]}" + ("" if d is None else f"-d{d}") + tag
                        paths += saved(_growth(mine, cost, title, told), Path(out_dir) / stem)
            for n in dict.fromkeys(row["n"] for row in here):
                some = [row for row in here if row["n"] == n]
                if sum(_drawn(row) for row in some) > 1:
                    figure = _pareto(some, title, f"{lead}, n = {n}")
                    paths += saved(figure, Path(out_dir) / f"bench-pareto-n{n}{tag}")
    return paths


def _lead(rows: Sequence[Row], place: tuple[Any, ...]) -> str:
    """What all panels of a figure share."""
    source = next((source_heading(row) for row in rows), "")
    heads = max((row["heads"] for row in rows), default=0)
    parts = [source, f"layer {place[1]}", f"{heads} head{'s' * (heads != 1)}"]
    parts += [f"target {place[2]}"] if place[2] != "softmax" else []
    parts += ["forward and gradient"] if any(row["backward"] for row in rows) else []
    return ", ".join(filter(None, parts))


def _canvas(panels: int, columns: int, height: float, extra: float, title: str, told: str, **shared: Any) -> Any:
    """A figure under its title, and its panels."""
    from matplotlib.figure import Figure

    lines = math.ceil(panels / columns)
    inches = max(6.4, 2.75 * columns + 0.6)
    heading = [*title_lines(title, int(inches * 15.5)), *textwrap.wrap(told, int(inches * 15.5))]
    size = (inches, height * lines + extra + 0.5 + 0.16 * len(heading))
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(lines, columns, squeeze=False, **shared).flat)
    for axis in axes[panels:]:
        axis.set_visible(False)
    figure.suptitle("\n".join(heading), x=0.012, ha="left", fontsize=8, parse_math=False)
    return figure, axes[:panels], inches


def _growth(rows: Sequence[Row], cost: str, title: str, lead: str) -> Any:
    """One cost against n."""
    _, factor, label = COSTS[cost]
    kept = [row for row in rows if row[cost]]
    methods = [row for row in kept if not row["reference"]]
    split = len({text_label(row) for row in methods}) > MOST_IN_PANEL
    families = list(dict.fromkeys(map(family, methods))) if split else [None]
    statistic = " (median over rounds)" if cost == "seconds" else ""
    told = f"{lead}: {label.rpartition(',')[0]}{statistic} against n"
    if any(_slope(some, cost) is not None for _, some in _lines(methods)):
        told += f"; exponents in brackets are fitted for n ≥ {FIT_FROM}"
    longest = max(sum(1 for _ in _lines(_of(methods, name))) for name in families)
    extra = 0.19 * longest * math.ceil(len(families) / 4) / (1 if split else 2)
    figure, axes, inches = _canvas(
        len(families), min(4, len(families)), 2.3 if split else 3.4, extra, title, told, sharex=True, sharey=True
    )
    lengths = sorted({row["n"] for row in kept})
    exact = _curve([row for row in kept if row["method"] == EXACT], cost, factor)
    vmean = _curve([row for row in kept if row["method"] == "vmean" and row["reference"]], cost, factor)
    lowest, highest = min(factor * row[cost] for row in kept), max(factor * row[cost] for row in kept)
    shared: dict[str, Any] = {}
    for index, (axis, name) in enumerate(zip(axes, families, strict=True)):
        if exact[0]:
            (shared[EXACT_LABEL],) = axis.plot(*exact, **BLACK)
            _guides(axis, exact, shared)
        if vmean[0]:
            (shared["V-Mean"],) = axis.plot(*vmean, color=GREY, linestyle="--", linewidth=1.2)
        own: dict[str, Any] = {}
        here = _of(methods, name)
        styles = styles_of(here)
        for key, some in _lines(here):
            x, y = _curve(some, cost, factor)
            slope = _slope(some, cost)
            own[key + ("" if slope is None else f" ({slope:.2f})")] = axis.plot(x, y, **styles[key])[0]
        _log_axes(axis, lengths)
        axis.set_title(name or "")
        axis.set_ylabel(label if index % 4 == 0 else "")
        axis.set_ylim(lowest / 2, highest * 2)
        axis.set_xlabel("n")
        axis.tick_params(labelbottom=True)
        if split:
            axis.legend(own.values(), own, loc="upper center", bbox_to_anchor=(0.5, -0.22), frameon=False, fontsize=7.5)
        else:
            shared = {**own, **shared}
    figure.legend(
        shared.values(), shared, loc="outside lower center", frameon=False, ncols=legend_columns(list(shared), inches)
    )
    return figure


def _slope(rows: Sequence[Row], cost: str) -> float | None:
    """The exponent of a method's cost."""
    return exponent({row["n"]: row[cost] for row in rows})


def _of(rows: Sequence[Row], name: str | None) -> list[Row]:
    return [row for row in rows if name is None or family(row) == name]


def _lines(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(text_label(row), []).append(row)
    return list(found.items())


def _curve(rows: Sequence[Row], cost: str, factor: float) -> tuple[list[int], list[float]]:
    points = sorted((row["n"], factor * row[cost]) for row in rows)
    return [n for n, _ in points], [value for _, value in points]


def _guides(axis: Any, exact: tuple[list[int], list[float]], shared: dict[str, Any]) -> None:
    """Dotted lines of slopes 1 and 2 through exact attention's last point."""
    (first, *_, last), end = exact[0] if len(exact[0]) > 1 else exact[0] * 2, exact[1][-1]
    for power, look in ((1, (0, (1, 1.5))), (2, (0, (4, 2)))):
        values = [end * (n / last) ** power for n in (first, last)]
        (line,) = axis.plot([first, last], values, color="#999999", linewidth=0.9, linestyle=look, zorder=1)
        shared["∝ n" if power == 1 else "∝ n²"] = line


def _log_axes(axis: Any, lengths: Sequence[int]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    short = [f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else str(n) for n in lengths]
    axis.xaxis.set_major_locator(FixedLocator(lengths))
    axis.set_xticks(lengths, short)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(color="#e3e3e3", linewidth=0.6)


def _drawn(row: Row) -> bool:
    return not row["reference"] and bool(row["error"]) and math.isfinite(row["error"])


def _pareto(rows: Sequence[Row], title: str, lead: str) -> Any:
    """Error against every cost that was measured, a panel each."""
    points = [row for row in rows if _drawn(row)]
    costs = [cost for cost in COSTS if any(row[cost] for row in points)]
    vmean = next((row["error"] for row in rows if row["method"] == "vmean" and row["error"]), None)
    highest = SPAN * (vmean or sorted(row["error"] for row in points)[len(points) // 2])
    styles = _family_styles(points)
    told = f"{lead}: median output error against cost; steps: the frontier, whose methods are named"
    told += "; at the upper edge: beyond it" if any(row["error"] > highest for row in points) else ""
    lines = -(-len(styles) // legend_columns(list(styles), 2.75 * max(3, len(costs))))
    figure, axes, inches = _canvas(len(costs), len(costs), 3.6, 0.17 * lines, title, told, sharey=True)
    handles: dict[str, Any] = {}
    for index, (axis, cost) in enumerate(zip(axes, costs, strict=True)):
        _cloud(axis, points, cost, highest, styles, handles)
        exact = next((row[cost] for row in rows if row["method"] == EXACT and row[cost]), None)
        if exact:
            handles[EXACT_LABEL] = axis.axvline(COSTS[cost][1] * exact, color="black", linewidth=1.4, zorder=1)
        if vmean:
            look = {"color": GREY, "linestyle": "--", "linewidth": 1.2, "zorder": 1}
            handles["V-Mean"] = axis.axhline(vmean, **look)
        axis.set_xlabel(COSTS[cost][2])
        axis.set_ylabel(r"$\|(B-\tilde{B})V\|_2\;/\;\|BV\|_2$" if index == 0 else "")
    low, high = min(row["error"] for row in points), max([vmean or 0, *(row["error"] for row in points)])
    axes[0].set_ylim(low / 1.6, min(highest, 1.6 * high))
    for axis in axes:
        _cost_axes(axis)
    order = [*(label for label in styles if label in handles), *(key for key in handles if key not in styles)]
    figure.legend(
        [handles[key] for key in order],
        order,
        loc="outside lower center",
        frameon=False,
        fontsize=8,
        ncols=legend_columns(order, inches),
    )
    return figure


def _family_styles(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """A colour for each family and, within it, a marker for each method."""
    families = list(dict.fromkeys(map(family, rows)))
    styles: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(families):
        for place, (label, _) in enumerate(_lines(_of(rows, name))):
            styles[label] = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}
    return styles


def _cloud(
    axis: Any, rows: Sequence[Row], cost: str, highest: float, styles: Mapping[str, Any], handles: dict[str, Any]
) -> None:
    """The points of all methods, those of one joined through its budgets, and the frontier."""
    factor = COSTS[cost][1]
    kept = [row for row in rows if row[cost]]
    budgets = sorted({row["d"] for row in kept if row["d"] is not None})
    at = lambda row: (factor * row[cost], min(row["error"], 0.97 * highest))
    for label, some in _lines(kept):
        axis.plot(*zip(*map(at, some), strict=True), color=styles[label]["color"], linewidth=0.9, alpha=0.45, zorder=2)
        for row in some:
            rank = 1.0 if row["d"] is None or len(budgets) < 2 else budgets.index(row["d"]) / (len(budgets) - 1)
            look = {**styles[label], "linestyle": "", "markersize": 4 + 3.5 * rank, "markeredgecolor": "white"}
            (handles[label],) = axis.plot(*at(row), markeredgewidth=0.5, zorder=3, clip_on=False, **look)
    best = frontier(map(at, kept))
    if best:
        x, y = zip(*best, strict=True)
        axis.plot(x, y, drawstyle="steps-post", color="#222222", linewidth=1.3, alpha=0.8, zorder=1.5)
        _name_frontier(axis, kept, best, at)


def _name_frontier(
    axis: Any, rows: Sequence[Row], best: Sequence[tuple[float, float]], at: Callable[[Row], tuple[float, float]]
) -> None:
    """The names of the methods on the frontier, each once, at its cheapest point there."""
    named: set[str] = set()
    for point in best:
        row = next(row for row in rows if at(row) == point)
        if (label := text_label(row)) not in named:
            named.add(label)
            axis.annotate(
                label,
                point,
                xytext=(-3, -9),
                textcoords="offset points",
                fontsize=6.5,
                ha="left",
                color="#222222",
                zorder=4,
            )


def _cost_axes(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.set_yscale("log")
    for each, (low, high) in ((axis.xaxis, axis.get_xlim()), (axis.yaxis, axis.get_ylim())):
        each.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 60 * low else (1.0,)))
        each.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        each.set_minor_formatter(NullFormatter())
    axis.grid(color="#e3e3e3", linewidth=0.6)
