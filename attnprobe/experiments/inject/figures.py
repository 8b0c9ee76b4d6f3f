"""Figures of ``attnprobe inject``: the drift of each layer, and local error against drift."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

from ...figures.costs import LINES, Point, names
from ...figures.drawing import Drawing
from ...figures.ends import lowest, off_axis, outside, scale
from ...figures.kit import logarithmic
from ...figures.looks import GREY
from ...figures.methods import (
    HOLLOW,
    HUGE,
    INTERVAL,
    INTERVALS,
    MANY_POINTS,
    Styles,
    correlated,
    family_panels,
    flagged,
    hollow_legend,
    legend_text,
    markers,
    spread_legend,
    styles_of,
    text_label,
    where,
)
from ...figures.panels import Panels, draw_figures
from ...tables.labels import file_tag
from ...tables.long import LEAST_RANKED, Row, rank_correlation
from ...tables.methods import half_interval, mark
from ...tables.table import gathered, grouped_by
from .rows import inject_points, inject_summary, mean, of_windows

# draws a method's rows on an axis; returns what its legend says besides, and its line
Plot = Callable[[Any, Sequence[Row], Mapping[str, Any]], tuple[str, Any]]

WIDTH = 2.2  # inches of a panel
BARS = {"linestyle": "", "elinewidth": 0.8, "capsize": 2.2, "alpha": 0.7, "zorder": 1.5}
LEAST_WINDOWS = 5  # for an interval; of fewer, each window has a dot
DOT = {"linestyle": "", "marker": "o", "markersize": 2.6, "alpha": 0.6, "zorder": 1.8}
COUNTED = ("windows", "repeats")
MOST_LAYERS = 10  # that an axis names
APART, MARGIN = 0.05, 0.05  # between layers and all, of their number, and beside all points, of their range
ROOM = 0.12  # of an axis, for the d of its first and last points
SPAN = 1e4  # below the middle: rounding errors of exact methods do not stretch an axis
DRIFT = r"mean drift $\|\tilde{H}-H\|_F\;/\;\|H\|_F$"
LOCAL = r"mean local error $\|(B-\tilde{B})V\|_F\;/\;\|BV\|_F$"


def inject_figures(rows: Sequence[Row], drawing: Drawing, out_dir: str | Path) -> list[Path]:
    """Draw the rows of layers that were replaced one by one, for each (source, n).

    ``inject-layers-nN``: the drift of each layer alone, and that of all layers together; a line for each method, a
    panel for each budget. ``inject-local-nN``: local error against drift, a point for each layer, with the rank
    correlation of each method. More than 6 methods have panels of families. Drifts four decades below the middle,
    such as those of exact methods, lie outside the panels and are named in the legend. ``inject-steps-nN``: the mean
    KL divergence of the steps of decoding so far, in all layers. ``inject-bytes-nN``: the KL divergence and the change
    of the loss against the bytes of the prompt that a step reads, where these differ: points stand at their bytes, with
    their d. Of fewer than 5 windows, each has a small dot; of more, means have intervals, which may leave the axis.

    Returns:
        The files' paths; none if no layer stands alone and nothing was decoded.
    """
    figures: list[Panels] = []
    looks = styles_of(rows)
    decoded = [row for row in rows if row["steps"] is not None and row["layer"] is None]
    for group in grouped_by(decoded, "source", "n", "prefix"):
        tag = f"n{group[0]['n']}{file_tag(group[0]['source'])}"
        figures.append(_steps(group, looks, f"inject-steps-{tag}"))
        read = [row for row in group if _read(row) > 0 and (mean(row, "kl") or 0) > 0]
        if len(set(map(_read, read))) > 1:
            figures.append(_bytes(read, looks, f"inject-bytes-{tag}"))
    for group in grouped_by([row for row in rows if 0 < _drift(row) <= HUGE], "source", "n"):
        tag = f"n{group[0]['n']}{file_tag(group[0]['source'])}"
        points = [row for row in group if row["layer"] is not None and _local_error(row) > 0]
        if any(row["layer"] is not None for row in group):
            figures.append(_profile(group, looks, f"inject-layers-{tag}"))
            figures += [_local(points, looks, f"inject-local-{tag}")] if points else []
    return draw_figures(figures, drawing, out_dir)


def _steps(rows: Sequence[Row], styles: Styles, stem: str) -> Panels:
    """The KL divergence of decoding up to each step, a panel for each budget."""
    prefix = rows[0]["prefix"] or 0
    looks = {label: {**style, **MANY_POINTS} for label, style in styles.items()}
    every = [value for row in rows for value in _means_so_far(row)]
    notes = outside(rows, _means_so_far, lowest(every))

    def draw(axis: Any, panel: Sequence[Row]) -> Mapping[str, Any]:
        lines = {}
        for place, row in enumerate(panel):
            kl, label = _means_so_far(row), text_label(row)
            every_step = markers(len(kl), place, len(panel))
            steps = range(prefix, prefix + len(kl))
            (lines[label + notes[label]],) = axis.plot(steps, kl, markevery=every_step, **looks[label])
        scale(axis, every)
        axis.xaxis.get_major_locator().set_params(integer=True)
        return lines

    return Panels(
        stem,
        "KL divergence of decoding: mean over the steps so far, windows and repeats",
        [
            "KL(p ‖ p~) of the next word's distribution, of exact attention and with a method in all layers, at the "
            f"text's own tokens behind {prefix} tokens that exact attention read. A point is the mean over the steps "
            f"up to it; the last one is the mean that the table has. {where(rows, *COUNTED)}"
        ],
        _panels(family_panels(rows)),
        draw,
        "token that the step reads",
        "mean KL so far, nats",
        width=WIDTH,
        columns=_columns(family_panels(rows)),
    )


def _means_so_far(row: Row) -> list[float]:
    """The mean KL divergence of the steps up to each, without those that have none."""
    total, count, means = 0.0, 0, []
    for value in row["steps"]["kl"]:
        if value is not None:
            total, count = total + value, count + 1
        means.append(total / count if count else nan)
    return means


def _bytes(rows: Sequence[Row], styles: Styles, stem: str) -> Panels:
    """KL divergence and change of the loss against bytes: means over windows with 95 % intervals, or their values."""
    groups = family_panels(rows)
    budgets = {row["d"] for row in rows} - {None}
    place = ", ".join([_size(rows), *(f"d = {d}" for d in budgets if len(budgets) == 1)])
    low, high = min(map(_read, rows)), max(map(_read, rows))
    divergences = [mean(row, "kl") or 0.0 for row in rows]
    notes = outside(rows, lambda row: [mean(row, "kl")], lowest(divergences))
    most = max(row["windows"] for row in rows)
    few = most < LEAST_WINDOWS
    own = [value for row in rows for value in of_windows(row["of_windows"], "kl") if few]
    spread = {"each window": {"color": GREY, **DOT}} if few else spread_legend(INTERVAL)

    def draw(axis: Any, panel: Sequence[Row]) -> None:
        metric = panel[0]["drawn"]
        if metric == "kl":
            scale(axis, [*divergences, *own], high=HUGE)
        else:
            axis.margins(y=ROOM)
        for group in gathered(panel, text_label):
            label, ordered = text_label(group[0]), sorted(group, key=_read)
            colour = styles[label]["color"]
            x, y = [_read(row) for row in ordered], [mean(row, metric) or 0.0 for row in ordered]
            dots = [(_read(row), value) for row in ordered for value in of_windows(row["of_windows"], metric)]
            if 1 < most < LEAST_WINDOWS:
                axis.plot(*zip(*dots, strict=True), color=colour, **DOT)
            elif most > 1:
                bars = [half_interval(row, metric) or 0.0 for row in ordered]
                axis.errorbar(x, y, bars, color=colour, **BARS)
            axis.plot(x, y, **styles[label])
        logarithmic(axis, "x")
        axis.set_xlim(low / (high / low) ** MARGIN, high * (high / low) ** MARGIN)

    def finish(axis: Any, panel: Sequence[Row]) -> None:
        points = [Point(text_label(row), row["d"], _read(row), mean(row, row["drawn"]) or 0.0) for row in panel]
        names(axis, sorted(points, key=lambda point: point.cost), styles, several=len(budgets) > 1)

    return Panels(
        stem,
        "KL divergence and change of the loss against the bytes that a step reads: mean over windows and repeats",
        [
            "KL(p ‖ p~) of the next word's distribution, and the loss less that of exact attention on the same "
            "windows, against the bytes of the prompt's keys and values that a step reads: means.",
            *([LINES] * (len(budgets) > 1)),
            *off_axis(notes),
            *([f"Dots: each window; an interval needs {LEAST_WINDOWS}." if few else INTERVALS] * (most > 1)),
            where(rows, *COUNTED),
        ],
        [
            ("\n".join(filter(None, [place, title, name])), known)
            for metric, title in {"kl": "KL divergence", "loss_change": "change of the loss"}.items()
            for name, group in groups
            if (known := [{**row, "drawn": metric} for row in group if mean(row, metric) is not None])
        ],
        draw,
        "MiB that a step reads",
        "mean, nats",
        spread if most > 1 else {},
        width=WIDTH,
        columns=len(groups) if len(groups) > 1 else None,
        sharing={"sharex": True, "sharey": "row" if len(groups) > 1 else False},
        finish=finish,
    )


def _read(row: Row) -> float:
    """MiB of the prompt that a step reads."""
    return (mean(row, "read_bytes") or 0.0) / 2**20


def _profile(rows: Sequence[Row], styles: Styles, stem: str) -> Panels:
    """The drift of each layer alone, and of all layers."""
    layers = sorted({row["layer"] for row in rows if row["layer"] is not None})
    end, every = (1 + APART) * len(layers), -(-len(layers) // MOST_LAYERS)
    looks = {label: {**style, **MANY_POINTS} for label, style in styles.items()} if every > 1 else styles
    spots = {layer: place for place, layer in enumerate(layers)} | {None: end}

    def plot(axis: Any, group: Sequence[Row], style: Mapping[str, Any]) -> tuple[str, Any]:
        alone = sorted((spots[row["layer"]], _drift(row)) for row in group if row["layer"] is not None)
        (line,) = axis.plot(*zip(*alone, strict=True), **style) if alone else axis.plot([], [], **style)
        for row in group:
            if row["layer"] is None:
                axis.plot([spots[None]], [_drift(row)], **{**style, "linestyle": ""})
            if mark(row) == "!":
                axis.plot([spots[row["layer"]]], [_drift(row)], **{**style, **HOLLOW})
        return "", line

    def draw(axis: Any, panel: Sequence[Row]) -> Mapping[str, Any]:
        axis.set_xticks([*range(0, len(layers), every), end], [*map(str, layers[::every]), "all"])
        axis.axvline((len(layers) - 1 + end) / 2, color="#cccccc", linewidth=0.8, zorder=0)
        axis.set_xlim(-MARGIN * (1 + end), MARGIN + (1 + MARGIN) * end)
        return _drawn(axis, panel, rows, looks, plot)

    return Panels(
        stem,
        "Drift with a method in one layer, and in all: mean over windows and repeats",
        [
            "Relative change of the last hidden states, ‖H~ − H‖F / ‖H‖F, with a method in one layer, and in all "
            f"layers of the run together (all): means. {where([{**row, 'layer': None} for row in rows], *COUNTED)}"
        ],
        _panels(family_panels(rows)),
        draw,
        "layer that is replaced",
        DRIFT,
        hollow_legend(rows),
        width=WIDTH,
        columns=_columns(family_panels(rows)),
    )


def _local(rows: Sequence[Row], styles: Styles, stem: str) -> Panels:
    """Local error against drift, a point for each layer."""
    rho = rank_correlation(*zip(*inject_points(rows), strict=True))
    ranked = any(one["spearman"] is not None for one in inject_summary(rows) if one["method"] is not None)
    errors = [_local_error(row) for row in rows if _drift(row) >= _lowest(rows)]

    def plot(axis: Any, group: Sequence[Row], style: Mapping[str, Any]) -> tuple[str, Any]:
        points = [(_local_error(row), _drift(row)) for row in group]
        (line,) = axis.plot(*zip(*points, strict=True), **{**style, "linestyle": "", "alpha": 0.85})
        for row in group:
            if mark(row) == "!":
                axis.plot([_local_error(row)], [_drift(row)], **{**style, **HOLLOW})
        return correlated(rank_correlation(*zip(*inject_points(group), strict=True))), line

    def draw(axis: Any, panel: Sequence[Row]) -> Mapping[str, Any]:
        logarithmic(axis)
        axis.set_xlim(min(errors) / 1.6, max(errors) * 1.6)
        return _drawn(axis, panel, rows, styles, plot)

    return Panels(
        stem,
        "Local error of a layer against the drift that it causes: means" + ("; ρ: rank correlation" if ranked else ""),
        [
            "Relative output error of the layer that is replaced, ‖(B − B~)V‖F / ‖BV‖F, against the relative change of "
            "the last hidden states, ‖H~ − H‖F / ‖H‖F: means, a point for each layer.",
            *([f"ρ is their rank correlation, of {LEAST_RANKED} points or more."] if ranked else []),
            *([] if rho is None else [f"The rank correlation of all {len(rows)} points is {rho:+.2f}."]),
            where([{**row, "layer": None} for row in rows], *COUNTED),
        ],
        _panels(family_panels(rows)),
        draw,
        LOCAL,
        DRIFT,
        hollow_legend(rows),
        width=WIDTH,
        columns=_columns(family_panels(rows)),
    )


def _drawn(axis: Any, panel: Sequence[Row], rows: Sequence[Row], styles: Styles, plot: Plot) -> dict[str, Any]:
    """Draw each method of a panel, on the scale of the rows; returns the legend."""
    lowest, own = _lowest(rows), {}
    notes = outside(rows, lambda row: [_drift(row)], lowest)
    bad = flagged(rows)
    for label, style in styles.items():
        group = [row for row in panel if text_label(row) == label]
        if group:
            words, line = plot(axis, group, style)
            own[legend_text(label, bad) + words + notes[label]] = line
    drifts = [_drift(row) for row in rows if _drift(row) >= lowest]
    logarithmic(axis, "y")
    axis.set_ylim(min(drifts) / 1.6, max(drifts) * 1.6)
    return own


def _panels(groups: Sequence[tuple[str, Sequence[Row]]]) -> list[tuple[str, Sequence[Row]]]:
    """A panel for each of some named groups of rows and each budget. Methods without a budget are in all."""
    panels = []
    for name, rows in groups:
        for d in _budgets(rows):
            title = ", ".join(filter(None, [name, _size(rows), "" if d is None else f"d = {d}"]))
            panels.append((title, [row for row in rows if row["d"] in (None, d)]))
    return panels


def _size(rows: Sequence[Row]) -> str:
    """What titles say of all rows: n, and that they are of one window."""
    return f"n = {rows[0]['n']}" + ", 1 window" * (max(row["windows"] for row in rows) == 1)


def _columns(groups: Sequence[tuple[str, Sequence[Row]]]) -> int | None:
    """The panels in a row of `_panels`: the budgets of a group, where several groups have as many."""
    counts = {len(_budgets(rows)) for _, rows in groups}
    return max(counts) if len(groups) > 1 and len(counts) == 1 and max(counts) > 1 else None


def _budgets(rows: Sequence[Row]) -> Sequence[int | None]:
    return sorted({row["d"] for row in rows if row["d"] is not None}) or [None]


def _drift(row: Row) -> float:
    return mean(row, "drift") or 0.0


def _local_error(row: Row) -> float:
    return mean(row, "local_error") or 0.0


def _lowest(rows: Sequence[Row]) -> float:
    ordered = sorted(_drift(row) for row in rows)
    return ordered[len(ordered) // 2] / SPAN
