"""Figures of ``attnprobe bench``: time and memory against n, and error against each cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...figures.drawing import Drawing
from ...figures.files import chunks, drawn
from ...figures.kit import (
    Sheet,
    canvas,
    legend,
    legend_below,
    legend_columns,
    legend_inches,
    plain_ticks,
    powers_of_two,
)
from ...figures.looks import EXACT, GREY, LOOKS
from ...figures.methods import MOST_IN_PANEL, family_panels, rank_of, styles_of, text_label
from ...figures.words import formula, sentence, symbol
from ...tables.labels import file_tag, source_heading
from ...tables.long import Row
from ...tables.table import gathered, grouped_by
from .growth import FIT_FROM, exponent
from .timing import ERROR

Draw = Callable[[Any], Sheet]  # of a page

COSTS = {  # heading, factor, label
    "seconds": ("time", 1e3, "time, ms"),
    "peak_bytes": ("memory", 2.0**-20, "peak memory beyond Q, K, V, MiB"),
    "flops": ("products", 1e-9, "matrix products, GFLOP"),
    "kv_read": ("keys read", 1.0, "rows of K and V\nread for a query"),
    "scored": ("scores", 1.0, "scores computed to\nchoose the keys of a row"),
}
SPAN = 4.0  # times V-Mean's error; larger errors are drawn at the edge
WIDTH, HEIGHT = 2.1, 2.3  # inches of a panel
BLACK = {"color": LOOKS[EXACT][0], "marker": LOOKS[EXACT][1], "linewidth": 2.0, "markersize": 3.5, "zorder": 2.5}
EXACT_LABEL = "exact attention, fused"


def bench_figures(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw costs and errors, for each (source, layer, target).

    ``bench-time-dD`` and ``bench-memory-dD``: cost against n on logarithmic axes, if there are several n. Every panel
    shows exact attention in black, and dotted guides of slopes 1 and 2 through its last point. The legend has each
    method's exponent. More than 8 methods have panels by family, of at most four methods each. ``bench-pareto-nN``:
    error against time, memory, products, and the keys that a row reads and scores, if errors and these costs were
    measured. A point is a budget, larger for larger ones; steps are the frontier.

    Returns:
        The files' paths.
    """
    paths: list[Path] = []
    places = grouped_by(rows, "source", "layer", "target")
    several = len({group[0]["layer"] for group in places}) > 1
    for group in places:
        source, layer = group[0]["source"], group[0]["layer"]
        timed = [row for row in group if row["seconds"]]
        tag = (f"-layer{layer}" if several else "") + file_tag(source)
        for stem, pages, draw in [*_growths(timed, drawing), *_paretos(timed, drawing)]:
            paths += drawn(pages, draw, Path(out_dir) / f"bench-{stem}{tag}", drawing)
    return paths


def _growths(rows: Sequence[Row], drawing: Drawing) -> Iterator[tuple[str, Sequence[Any], Draw]]:
    """Each cost against n, for each budget: the stem of its files, its pages and how each is drawn."""
    for d in list(dict.fromkeys(row["d"] for row in rows if row["d"] is not None)) or [None]:
        budget = "" if d is None else f", d = {d}"
        group = [row for row in rows if row["d"] in (None, d)]
        for cost in ("seconds", "peak_bytes"):
            if len({row["n"] for row in group if row[cost]}) > 1:
                lead = _lead(rows) + budget
                draw = lambda page, group=group, cost=cost, lead=lead: _growth(group, page, cost, drawing, lead)
                most = _across(drawing) * drawing.sizes.down(HEIGHT)
                pages = chunks(_panels([row for row in group if row[cost] and not row["reference"]]), most)
                yield f"{COSTS[cost][0]}" + ("" if d is None else f"-d{d}"), pages, draw


def _across(drawing: Drawing) -> int:
    return min(3, drawing.sizes.across(WIDTH))


def _panels(rows: Sequence[Row]) -> list[str | None]:
    """The titles of the panels of families; None for one panel of all methods."""
    if len(set(map(text_label, rows))) <= MOST_IN_PANEL:
        return [None]
    return list(dict.fromkeys(family_panels(rows).values()))


def _paretos(rows: Sequence[Row], drawing: Drawing) -> Iterator[tuple[str, Sequence[Any], Draw]]:
    """Error against costs, for each n."""
    for group in grouped_by(rows, "n"):
        if sum(map(_is_drawn, group)) > 1:
            lead = f"{_lead(rows)}, n = {group[0]['n']}"
            draw = lambda page, lead=lead: _pareto(page, drawing, lead)
            yield f"pareto-n{group[0]['n']}", [group], draw


def _lead(rows: Sequence[Row]) -> str:
    """The facts that all panels of a figure share."""
    first, heads = rows[0], max(row["heads"] for row in rows)
    parts = [source_heading(first), f"layer {first['layer']}", f"{heads} head{'s' * (heads != 1)}"]
    parts += [f"target {first['target']}"] if first["target"] != "softmax" else []
    parts += ["forward and gradient"] if any(row["backward"] for row in rows) else []
    return ", ".join(filter(None, parts))


def _growth(rows: Sequence[Row], panels: Sequence[str | None], cost: str, drawing: Drawing, lead: str) -> Sheet:
    """One cost against n."""
    _, factor, label = COSTS[cost]
    priced = [row for row in rows if row[cost]]
    methods = [row for row in priced if not row["reference"]]
    split = panels[0] is not None
    what = label.rpartition(",")[0]
    title = f"{sentence(what)} against n" + (": median over rounds" if cost == "seconds" else "")
    caption = [f"{title}, on logarithmic axes. Black: exact attention, by the framework's fused kernel."]
    caption.append("Dotted and dashed guides through its last point grow as n and as n².")
    if any(_slope(group, cost) is not None for group in gathered(methods, text_label)):
        caption.append(f"In brackets: exponents fitted for n ≥ {FIT_FROM}.")
    caption.append(f"{sentence(lead)}.")
    most = _across(drawing)
    shape = (math.ceil(len(panels) / most), min(most, len(panels)))
    inches = drawing.sizes.inches(shape[1])
    styles = styles_of(methods)
    titles = family_panels(methods)
    longest = max(len({text_label(row) for row in _of(methods, name, titles)}) for name in panels)
    keys = (
        0.16 * longest * shape[0] if split else legend_inches([*styles, EXACT_LABEL, "V-Mean", "∝ n", "∝ n²"], inches)
    )
    sharing = {"sharex": True, "sharey": True}
    sheet, axes = canvas(drawing, title, caption, HEIGHT * shape[0] + 0.3 + keys, shape, len(panels), **sharing)
    lengths = sorted({row["n"] for row in priced})
    exact = _curve([row for row in priced if row["method"] == EXACT], cost, factor)
    vmean = _curve([row for row in priced if row["method"] == "vmean" and row["reference"]], cost, factor)
    lowest, highest = min(factor * row[cost] for row in priced), max(factor * row[cost] for row in priced)
    shared: dict[str, Any] = {}
    for index, (axis, name) in enumerate(zip(axes, panels, strict=True)):
        if exact[0]:
            (shared[EXACT_LABEL],) = axis.plot(*exact, **BLACK)
            _guides(axis, exact, shared)
        if vmean[0]:
            (shared["V-Mean"],) = axis.plot(*vmean, color=GREY, linestyle="--", linewidth=1.2)
        own: dict[str, Any] = {}
        for group in gathered(_of(methods, name, titles), text_label):
            key = text_label(group[0])
            x, y = _curve(group, cost, factor)
            slope = _slope(group, cost)
            own[key + ("" if slope is None else f" ({slope:.2f})")] = axis.plot(x, y, **styles[key])[0]
        _log_axes(axis, lengths)
        axis.set_title(name or "")
        axis.set_ylabel(label if index % shape[1] == 0 else "")
        axis.set_ylim(lowest / 2, highest * 2)
        axis.set_xlabel("n")
        axis.tick_params(labelbottom=True)
        if split:
            legend_below(axis, own)
        else:
            shared = {**own, **shared}
    legend(sheet, shared, legend_columns([*shared], inches))
    return sheet


def _slope(rows: Sequence[Row], cost: str) -> float | None:
    """The exponent of a method's cost."""
    return exponent({row["n"]: row[cost] for row in rows})


def _of(rows: Sequence[Row], panel: str | None, titles: Mapping[str, str]) -> list[Row]:
    """The rows of a panel."""
    return [row for row in rows if panel is None or titles[text_label(row)] == panel]


def _curve(rows: Sequence[Row], cost: str, factor: float) -> tuple[list[int], list[float]]:
    points = sorted((row["n"], factor * row[cost]) for row in rows)
    return [n for n, _ in points], [value for _, value in points]


def _guides(axis: Any, exact: tuple[list[int], list[float]], shared: dict[str, Any]) -> None:
    """Dotted lines of slopes 1 and 2 through exact attention's last point."""
    (first, *_, last), end = exact[0] if len(exact[0]) > 1 else exact[0] * 2, exact[1][-1]
    for power, look in ((1, (0, (1, 1.5))), (2, (0, (4, 2)))):
        values = [end * (n / last) ** power for n in (first, last)]
        (line,) = axis.plot([first, last], values, color="#777777", alpha=0.8, linewidth=0.9, linestyle=look, zorder=1)
        shared["∝ n" if power == 1 else "∝ n²"] = line


def _log_axes(axis: Any, lengths: Sequence[int]) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    short = [f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else str(n) for n in lengths]
    powers_of_two(axis, lengths, short)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(color="#e3e3e3", linewidth=0.6)


def _is_drawn(row: Row) -> bool:
    return not row["reference"] and bool(row["error"]) and math.isfinite(row["error"])


def _pareto(rows: Sequence[Row], drawing: Drawing, lead: str) -> Sheet:
    """Error against every cost that was measured, a panel each."""
    points = [row for row in rows if _is_drawn(row)]
    costs = [cost for cost in COSTS if any(row[cost] for row in points)]
    vmean = next((row["error"] for row in rows if row["method"] == "vmean" and row["error"]), None)
    highest = SPAN * (vmean or sorted(row["error"] or 0.0 for row in points)[len(points) // 2])
    styles = styles_of(points)
    caption = [
        f"Median of the output error, {formula(ERROR)}, against each cost.",
        "A line joins the budgets of a method; its markers grow with d.",
        "Steps: the frontier. Black: the cost of exact attention, by the framework's fused kernel, which has no error.",
        *(["What is at the upper edge lies beyond it."] * any((row["error"] or 0.0) > highest for row in points)),
        f"{sentence(lead)}.",
    ]
    most = min(3, len(costs))
    shape = (math.ceil(len(costs) / most), most)
    inches = drawing.sizes.inches(most)
    tall = 2.6 * shape[0] + legend_inches([*styles, EXACT_LABEL, "V-Mean"], inches)
    title = "Output error against cost: medians"
    sheet, axes = canvas(drawing, title, caption, tall, shape, len(costs), sharey=True)
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
        axis.set_ylabel(symbol(ERROR) if index % most == 0 else "")
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
    legend(sheet, {key: handles[key] for key in order}, legend_columns(order, inches))
    return sheet


def _cloud(
    axis: Any, rows: Sequence[Row], cost: str, highest: float, styles: Mapping[str, Any], handles: dict[str, Any]
) -> None:
    """The points of all methods, joined by method in the order of budgets, and the frontier."""
    factor = COSTS[cost][1]
    priced = [row for row in rows if row[cost]]
    budgets = sorted({row["d"] for row in priced if row["d"] is not None})
    at = lambda row: (factor * row[cost], min(row["error"], 0.97 * highest))
    for group in gathered(priced, text_label):
        label = text_label(group[0])
        axis.plot(*zip(*map(at, group), strict=True), color=styles[label]["color"], linewidth=0.9, alpha=0.45, zorder=2)
        for row in group:
            size = 4 + 3.5 * rank_of(row["d"], budgets)
            look = {**styles[label], "linestyle": "", "markersize": size, "markeredgecolor": "white"}
            (handles[label],) = axis.plot(*at(row), markeredgewidth=0.5, zorder=3, clip_on=False, **look)
    best = frontier(map(at, priced))
    if best:
        x, y = zip(*best, strict=True)
        axis.plot(x, y, drawstyle="steps-post", color="#222222", linewidth=1.0, alpha=0.8, zorder=1.5)


def frontier(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (cost, error) pairs that no other pair beats in both, by cost.

    >>> frontier([(1.0, 0.5), (2.0, 0.6), (3.0, 0.1), (3.0, 0.2)])
    [(1.0, 0.5), (3.0, 0.1)]
    """
    best: list[tuple[float, float]] = []
    for cost, error in sorted(points):
        if not best or error < best[-1][1]:
            best.append((cost, error))
    return best
