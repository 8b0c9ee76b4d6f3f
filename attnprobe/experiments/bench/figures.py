"""Figures of ``attnprobe bench``: time and memory against n, and error against each cost."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...figures.kit import (
    canvas,
    drawn,
    legend,
    legend_below,
    legend_columns,
    letters,
    plain_ticks,
    powers_of_two,
    symbol,
)
from ...figures.methods import COLOURS, GREY, MARKERS, MOST_IN_PANEL, rank_of, styles_of, text_label
from ...tables.labels import file_tag, source_heading
from ...tables.methods import family
from ...tables.table import gathered, grouped_by
from .growth import FIT_FROM, exponent
from .rows import ERROR, EXACT, BenchRow, frontier

__all__ = ["bench_figures"]

Draw = Callable[[str], Any]  # a figure under a title

COSTS = {  # heading, factor, label
    "seconds": ("time", 1e3, "time, ms"),
    "peak_bytes": ("memory", 2.0**-20, "peak memory beyond Q, K, V, MiB"),
    "flops": ("products", 1e-9, "matrix products, GFLOP"),
}
SPAN = 4.0  # times V-Mean's error: what lies above is drawn at the edge
BLACK = {"color": "black", "linewidth": 2.0, "marker": "o", "markersize": 3.5, "zorder": 2.5}
EXACT_LABEL = "exact attention, fused"


def bench_figures(rows: Sequence[BenchRow], title: str, out_dir: str | Path) -> list[Path]:
    """Draw what was measured, for each (source, layer, target).

    ``bench-time-dD`` and ``bench-memory-dD``: cost against n on logarithmic axes, where there are several n; exact
    attention in black in every panel, dotted guides of slopes 1 and 2 through its last point, and a method's exponent
    in the legend. More than 8 methods have a panel for each family. ``bench-pareto-nN``: error against time, memory and
    products, where errors were measured; a point for each budget, larger for larger ones, and the frontier as steps.

    Returns:
        The files' paths.
    """
    paths: list[Path] = []
    places = grouped_by(rows, "source", "layer", "target")
    several = len({some[0]["layer"] for some in places}) > 1
    for some in places:
        source, layer = some[0]["source"], some[0]["layer"]
        here = [row for row in some if row["seconds"]]
        tag = (f"-layer{layer}" if several else "") + file_tag(source)
        figures = [*_growths(here), *_paretos(here)]
        for stem, draw in figures:
            paths += drawn([stem], lambda _, draw=draw: draw(title), Path(out_dir) / f"bench-{stem}{tag}")
    return paths


def _growths(rows: Sequence[BenchRow]) -> Iterator[tuple[str, Draw]]:
    """Each cost against n, for each budget."""
    for d in list(dict.fromkeys(row["d"] for row in rows if row["d"] is not None)) or [None]:
        budget = "" if d is None else f", d = {d}"
        mine = [row for row in rows if row["d"] in (None, d)]
        for cost in ("seconds", "peak_bytes"):
            if len({row["n"] for row in mine if row[cost]}) > 1:
                lead = _lead(rows) + budget
                draw = lambda title, mine=mine, cost=cost, lead=lead: _growth(mine, cost, title, lead)
                yield f"{COSTS[cost][0]}" + ("" if d is None else f"-d{d}"), draw


def _paretos(rows: Sequence[BenchRow]) -> Iterator[tuple[str, Draw]]:
    """Error against costs, for each n."""
    for some in grouped_by(rows, "n"):
        if sum(map(_is_drawn, some)) > 1:
            lead = f"{_lead(rows)}, n = {some[0]['n']}"
            yield f"pareto-n{some[0]['n']}", lambda title, some=some, lead=lead: _pareto(some, title, lead)


def _lead(rows: Sequence[BenchRow]) -> str:
    """What all panels of a figure share."""
    first, heads = rows[0], max(row["heads"] for row in rows)
    parts = [source_heading(first), f"layer {first['layer']}", f"{heads} head{'s' * (heads != 1)}"]
    parts += [f"target {first['target']}"] if first["target"] != "softmax" else []
    parts += ["forward and gradient"] if any(row["backward"] for row in rows) else []
    return ", ".join(filter(None, parts))


def _canvas(
    shape: tuple[int, int], panels: int, height: float, extra: float, title: str, told: str, **shared: Any
) -> Any:
    """A figure under its title, its panels and its width."""
    inches = max(6.4, 2.75 * shape[1] + 0.6)
    lines = textwrap.wrap(told, letters(inches))
    figure, axes = canvas(title, lines, inches, height * shape[0] + extra + 0.5, shape, panels, **shared)
    return figure, axes, inches


def _growth(rows: Sequence[BenchRow], cost: str, title: str, lead: str) -> Any:
    """One cost against n."""
    _, factor, label = COSTS[cost]
    kept = [row for row in rows if row[cost]]
    methods = [row for row in kept if not row["reference"]]
    split = len({text_label(row) for row in methods}) > MOST_IN_PANEL
    families = list(dict.fromkeys(map(family, methods))) if split else [None]
    statistic = " (median over rounds)" if cost == "seconds" else ""
    told = f"{lead}: {label.rpartition(',')[0]}{statistic} against n"
    if any(_slope(some, cost) is not None for some in gathered(methods, text_label)):
        told += f"; exponents in brackets are fitted for n ≥ {FIT_FROM}"
    longest = max(len({text_label(row) for row in _of(methods, name)}) for name in families)
    extra = 0.19 * longest * math.ceil(len(families) / 4) / (1 if split else 2)
    shape, height = (math.ceil(len(families) / 4), min(4, len(families))), 2.3 if split else 3.4
    figure, axes, inches = _canvas(shape, len(families), height, extra, title, told, sharex=True, sharey=True)
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
        for some in gathered(here, text_label):
            key = text_label(some[0])
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
            legend_below(axis, own, 0.22)
        else:
            shared = {**own, **shared}
    legend(figure, shared, legend_columns(list(shared), inches))
    return figure


def _slope(rows: Sequence[BenchRow], cost: str) -> float | None:
    """The exponent of a method's cost."""
    return exponent({row["n"]: row[cost] for row in rows})


def _of(rows: Sequence[BenchRow], name: str | None) -> list[BenchRow]:
    return [row for row in rows if name is None or family(row) == name]


def _curve(rows: Sequence[BenchRow], cost: str, factor: float) -> tuple[list[int], list[float]]:
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
    from matplotlib.ticker import FuncFormatter, NullFormatter

    short = [f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else str(n) for n in lengths]
    powers_of_two(axis, lengths, short)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(color="#e3e3e3", linewidth=0.6)


def _is_drawn(row: BenchRow) -> bool:
    return not row["reference"] and bool(row["error"]) and math.isfinite(row["error"])


def _pareto(rows: Sequence[BenchRow], title: str, lead: str) -> Any:
    """Error against every cost that was measured, a panel each."""
    points = [row for row in rows if _is_drawn(row)]
    costs = [cost for cost in COSTS if any(row[cost] for row in points)]
    vmean = next((row["error"] for row in rows if row["method"] == "vmean" and row["error"]), None)
    highest = SPAN * (vmean or sorted(row["error"] or 0.0 for row in points)[len(points) // 2])
    styles = _family_styles(points)
    told = f"{lead}: median output error against cost; steps: the frontier, whose methods are named"
    told += "; at the upper edge: beyond it" if any((row["error"] or 0.0) > highest for row in points) else ""
    lines = -(-len(styles) // legend_columns(list(styles), 2.75 * max(3, len(costs))))
    figure, axes, inches = _canvas((1, len(costs)), len(costs), 3.6, 0.17 * lines, title, told, sharey=True)
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
        axis.set_ylabel(symbol(ERROR) if index == 0 else "")
    errors = [row["error"] or 0.0 for row in points]
    low, high = min(errors), max(vmean or 0, *errors)
    axes[0].set_ylim(low / 1.6, min(highest, 1.6 * high))
    for axis in axes:
        axis.set_xscale("log")
        axis.set_yscale("log")
        plain_ticks(axis.xaxis, axis.get_xlim())
        plain_ticks(axis.yaxis, axis.get_ylim())
        axis.grid(color="#e3e3e3", linewidth=0.6)
    order = [*(label for label in styles if label in handles), *(key for key in handles if key not in styles)]
    legend(figure, {key: handles[key] for key in order}, legend_columns(order, inches), fontsize=8)
    return figure


def _family_styles(rows: Sequence[BenchRow]) -> dict[str, dict[str, Any]]:
    """A colour for each family and, within it, a marker for each method."""
    families = list(dict.fromkeys(map(family, rows)))
    styles: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(families):
        for place, label in enumerate(dict.fromkeys(map(text_label, _of(rows, name)))):
            styles[label] = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}
    return styles


def _cloud(
    axis: Any, rows: Sequence[BenchRow], cost: str, highest: float, styles: Mapping[str, Any], handles: dict[str, Any]
) -> None:
    """The points of all methods, those of one joined through its budgets, and the frontier."""
    factor = COSTS[cost][1]
    kept = [row for row in rows if row[cost]]
    budgets = sorted({row["d"] for row in kept if row["d"] is not None})
    at = lambda row: (factor * row[cost], min(row["error"], 0.97 * highest))
    for some in gathered(kept, text_label):
        label = text_label(some[0])
        axis.plot(*zip(*map(at, some), strict=True), color=styles[label]["color"], linewidth=0.9, alpha=0.45, zorder=2)
        for row in some:
            size = 4 + 3.5 * rank_of(row, budgets)
            look = {**styles[label], "linestyle": "", "markersize": size, "markeredgecolor": "white"}
            (handles[label],) = axis.plot(*at(row), markeredgewidth=0.5, zorder=3, clip_on=False, **look)
    best = frontier(map(at, kept))
    if best:
        x, y = zip(*best, strict=True)
        axis.plot(x, y, drawstyle="steps-post", color="#222222", linewidth=1.3, alpha=0.8, zorder=1.5)
        _name_frontier(axis, kept, best, at)


def _name_frontier(
    axis: Any,
    rows: Sequence[BenchRow],
    best: Sequence[tuple[float, float]],
    at: Callable[[BenchRow], tuple[float, float]],
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
