"""The marks of one panel: a `Brush` draws series on an axis, and writes into the `Legend` what it drew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps, rcParams
from matplotlib.colors import Normalize, to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ..frame import Rows
from ..frame.correlation import LEAST
from .figure import EACH, Figure
from .looks import (
    EMPTY,
    FIXED,
    FLAGGED,
    FLAT,
    GREY,
    PALE,
    WORDS,
    Look,
    colours_of,
    folded,
    size_of,
    text_of,
    tint,
    value_of,
)
from .points import LOST, VALUE, Data, Panel, ceil_div

FEWEST = {"correlation": LEAST, "exponent": 2}  # a note needs points at so many different values
FEW = 12  # a line of up to so many points has a marker at each
MARKED, SHIFT = 0.27, 0.06  # from a marker of a longer line to the next, and to the next line's, as shares of the axes
OPAQUE = 0.13  # the opacity of bands
SPREADS, MOST_SPREADS = ("band", "bar", "tick"), 4  # these marks of more series would cover one another
LETTERS = 5.5  # the letters of numbers that fit into the width of one name
CORNER = 0.34  # from a cell's number to its flag, as a share of the cell
LIGHT = 0.9  # the least red, green and blue of a pale colour
INSET = 0.08  # from an axis's ends to the points of a series that runs from end to end, as a share of the axis


@dataclass(frozen=True)
class Series:
    """The points of one series of a panel, in one shade.

    Attributes:
        look: of the points, which may have a shade. own: the look of the series. rows: of the whole series.
        faint: whether the series stands in the background. reference: whether it is a yardstick.
    """

    name: Any
    look: Look
    own: Look
    points: Rows
    rows: Rows
    faint: bool = False
    reference: bool = False

    @property
    def is_flat(self) -> bool:
        """Whether the series is a line from end to end: a method without d, or a yardstick of one value."""
        return bool(self.points["along"].isna().all()) or (self.reference and len(self.points) == 1)

    @property
    def dash(self) -> Any:
        return FLAT if self.is_flat and not self.reference else self.look.dash


@dataclass
class Legend:
    """The meaning of the marks of a sheet.

    Attributes:
        series: the handle of each series, by name. others: handles of other marks, by their words.
        points: of each series, for its note. outside: how many points of a series lie beyond an axis.
    """

    series: dict[Any, Any] = field(default_factory=dict)
    points: dict[Any, list[Rows]] = field(default_factory=dict)
    outside: Counter[Any] = field(default_factory=Counter)
    others: dict[str, Any] = field(default_factory=dict)

    def entries(self, names: Sequence[Any], column: str, note: str) -> dict[str, Any]:
        """The texts and handles, in the order of the series."""
        found = {}
        for name in sorted(self.series, key=lambda name: names.index(name) if name in names else len(names)):
            beside = [noted(note, self.points.get(name, []))]
            if self.outside[name]:
                beside.append(f"{self.outside[name]} outside")
            words = "; ".join(filter(None, beside))
            found[value_of(column, name) + (f" ({words})" if words else "")] = self.series[name]
        return found | self.others


def noted(note: str, groups: Sequence[Rows]) -> str:
    """Spearman's ρ of the points of a series, or the exponent of the fit y ~ x^b, with the least exact digits."""
    along, value = (
        np.concatenate([np.empty(0), *(points[name].to_numpy(float) for points in groups)])
        for name in ("along", "value")
    )
    known = np.isfinite(along) & np.isfinite(value)
    along, value = along[known], value[known]
    if not note or len(set(along)) < FEWEST[note]:
        return ""
    if note == "correlation":
        from scipy.stats import spearmanr

        rho: Any = spearmanr(along, value)
        return f"ρ = {rho.statistic:+.2f}".replace("-", "−")
    return f"$n^{{{np.polyfit(np.log(along), np.log(value), 1)[0]:.2f}}}$"


class Brush:
    """Draws one panel. Values run up, or to the right where words stand at y."""

    def __init__(self, axis: Any, data: Data, panel: Panel, looks: dict[Any, Look], legend: Legend) -> None:
        self.axis, self.data, self.panel, self.looks, self.legend = axis, data, panel, looks, legend
        self.figure: Figure = data.figure
        self.along, self.values = data.ends(panel)
        self.stacked = pd.Series([], dtype=float)  # the height of the bars so far, by their position

    def series(self) -> list[Series]:
        """The series of the panel from back to front: those in the background, then yardsticks, then the others."""
        colour = self.figure.colour
        found = []
        for name in self.data.names:
            points, rows = self.panel.points, self.panel.rows
            points, rows = points[points[colour] == name], rows[rows[colour] == name]
            faint = bool(self.panel.names) and name not in self.panel.names
            for look, of_shade in self._shaded(points, self.looks[name]):
                if len(of_shade):
                    found.append(Series(name, look, self.looks[name], of_shade, rows, faint))
        yardsticks = self.panel.yardsticks
        for name in yardsticks[colour].unique() if len(yardsticks) else ():
            look = FIXED.get(str(name), FIXED["vmean"])
            found.append(Series(name, look, look, yardsticks[yardsticks[colour] == name], yardsticks, reference=True))
        # False sorts first: what is drawn first lies behind
        return sorted(found, key=lambda series: (not series.faint, not series.reference))

    def _shaded(self, points: Rows, look: Look) -> Iterator[tuple[Look, Rows]]:
        shades, column = self.data.shades, self.figure.shade
        if len(shades) < 2:
            yield look, points
            return
        for number, shade in enumerate(shades):
            yield tint(look, number, len(shades)), points[(points[column] == shade).fillna(False)]
        yield look, points[points[column].isna()]

    def draw(self) -> None:
        """All marks of the panel."""
        self.guides()
        every = self.series()
        # bands of many series would cover one another, and the lines would not be seen
        crowded = (
            not self.data.sideways and sum(not series.faint and not series.reference for series in every) > MOST_SPREADS
        )
        for number, series in enumerate(every):
            self.explain(series)
            joined = series.reference or any(mark.split()[0] == "line" for mark in self.figure.marks)
            own = ["line" if joined else "point"] if series.reference or series.faint else self.figure.marks
            for mark in own:
                name, *statistics = mark.split()
                if name in SPREADS and crowded:
                    continue
                getattr(self, name)(series, number, *statistics)
            if not series.faint and not series.reference:
                self.lost(series)
        self.overlay()
        if self.data.sideways:
            self.beyond()

    def plot(self, along: Any, value: Any, **look: Any) -> None:
        self.axis.plot(*((value, along) if self.data.sideways else (along, value)), **look)

    def laid(self, series: Series, inset: float = 0.0) -> Rows:
        """The points of a series; one without a place on the axis stands at both of its ends."""
        if not series.is_flat or series.points.empty:
            return series.points
        is_log = self.panel.along in self.figure.log
        low, high = np.log(self.along) if is_log else np.asarray(self.along)
        ends = np.array([low + inset * (high - low), high - inset * (high - low)])
        return series.points.iloc[[0, 0]].assign(along=np.exp(ends) if is_log else ends)

    # -- marks

    def line(self, series: Series, number: int) -> None:
        points = self.laid(series)
        if self.data.is_words(self.panel.along) and self.panel.along in points:
            points = points[points[self.panel.along].notna()]
        look: dict[str, Any] = {"color": series.look.colour, "linestyle": series.dash, "zorder": 2}
        if series.faint:
            look |= {**self._faint(), "zorder": 1.2}
        # a long line has few markers, shifted from series to series so that they do not cover one another
        elif len(points) > FEW and not series.reference:
            look |= {"marker": series.look.marker, "markevery": (SHIFT * number % MARKED, MARKED)}
        self.plot(points["along"], points["value"], **look)

    def _faint(self) -> dict[str, Any]:
        """The look of series in the background: dots where each row is a point, which no line should join."""
        if EACH in self.figure.points:
            return {"color": PALE, "linestyle": "", "marker": "o", "markersize": 0.4 * rcParams["lines.markersize"]}
        return {"color": PALE, "linewidth": 0.6 * rcParams["lines.linewidth"]}

    def point(self, series: Series, _: int) -> None:
        points = self.laid(series, INSET)
        # the line has markers of its own
        if len(points) > FEW and "line" in self.figure.marks:
            return
        scale = opaque = 0.75 if EACH in self.figure.points else 1.0
        for size, of_size in self._by_size(points):
            for fill, part in self._by_flag(of_size):
                look = {"alpha": opaque, "zorder": 3, **filled(series.look.marker or "o", fill, series.look.colour)}
                if series.faint:
                    look |= {"zorder": 1.2, **filled("o", "full", PALE)}
                self.plot(part["along"], part["value"], linestyle="", markersize=scale * size, **look)

    def band(self, series: Series, _: int, low: str, high: str) -> None:
        points = self.laid(series)
        fill = self.axis.fill_betweenx if self.data.sideways else self.axis.fill_between
        ends = (points[name].to_numpy(float) for name in (low, high))
        fill(points["along"], *ends, color=series.look.colour, alpha=OPAQUE, linewidth=0, zorder=1)
        self.legend.others[spread(low, high)] = Patch(color=GREY, alpha=OPAQUE)

    def bar(self, series: Series, _: int, low: str, high: str) -> None:
        points = self.laid(series)
        # one text window has no interval
        points = points[points[[low, high]].notna().all(axis=1)]
        lines = self.axis.hlines if self.data.sideways else self.axis.vlines
        width = (0.6 if EACH in self.figure.points else 1.2) * rcParams["lines.linewidth"]
        look = {"alpha": 0.55, "linewidth": width}
        lines(points["along"], points[low], points[high], color=series.look.colour, zorder=1.8, **look)
        if len(points):
            self.legend.others[spread(low, high)] = drawn_as(color=GREY, **look)

    def tick(self, series: Series, _: int, statistic: str) -> None:
        points, size = self.laid(series, INSET), 1.5 * rcParams["lines.markersize"]
        if EACH in self.figure.points:
            points = self.data.points(series.rows, self.panel.measured, self.panel.along, (self.panel.along,))
            size *= 1.4
        look = {
            "marker": "|" if self.data.sideways else "_",
            "linestyle": "",
            "markeredgewidth": 1.3,
            "markersize": size,
        }
        self.plot(points["along"], points[statistic], color=series.look.colour, zorder=3.5, **look)
        self.legend.others[WORDS.get(statistic, statistic)] = drawn_as(color=GREY, **look)

    def stack(self, series: Series, _: int) -> None:
        """Bars that count rows, above those of the series before."""
        points = series.points
        # the first series stands on the axis
        base = self.stacked.reindex(points["along"]).fillna(0.0).to_numpy()
        bars = self.axis.barh if self.data.sideways else self.axis.bar
        start = {"left" if self.data.sideways else "bottom": base}
        bars(points["along"], points["value"], 0.7, color=series.look.colour, edgecolor=GREY, linewidth=0.4, **start)
        ends = points.groupby("along")["value"].sum()
        self.stacked = self.stacked.add(ends, fill_value=0.0)

    # -- what stands beside the series

    def guides(self) -> None:
        look = {"color": "#999999", "linewidth": 0.8}
        for guide in self.figure.guides:
            dash = "-" if guide.axis in ("equal", "level") else ":"
            if guide.axis == "equal":
                self.axis.plot(self.along, self.along, zorder=1.1, **look)
            elif guide.axis == "level":
                slots = np.round(self.panel.points["along"])
                levels = self.panel.points.groupby(slots)[f"{guide.at}.median"].first()
                self.axis.hlines(levels, levels.index - 0.46, levels.index + 0.46, zorder=1.1, **look)
            else:
                line = self.axis.axvline if guide.axis == "x" else self.axis.axhline
                line(guide.at, linestyle=dash, zorder=1.1, **look)
            self.legend.others[guide.label] = drawn_as(linestyle=dash, **look)

    def lost(self, series: Series) -> None:
        """Crosses at the end of the axis, where cells failed or diverged."""
        points = self.laid(series)
        points = points[points["status"].isin(LOST)]
        if points.empty:
            return
        look = {"linestyle": "", "marker": "x", "markeredgewidth": 1.2}
        self.plot(
            points["along"], [self.values[1]] * len(points), color=series.look.colour, clip_on=False, zorder=4, **look
        )
        self.legend.others["failed or diverged"] = drawn_as(color=GREY, **look)

    def overlay(self) -> None:
        """The papers' values: hollow points on dotted lines."""
        values, colour = self.panel.overlay, self.figure.colour
        look = {"linestyle": (0, (1, 1)), "linewidth": 0.9, "markerfacecolor": "white"}
        for name in self.data.names if len(values) else ():
            of_series = values[values[colour] == name].sort_values(self.panel.along)
            own = self.looks[name]
            look_of_series = look | {"color": own.colour, "marker": own.marker or "o"}
            self.plot(of_series[self.panel.along], of_series[self.panel.measured], **look_of_series)
        if self.data.overlay is not None:
            drawn = {number for panel in self.data.panels if len(panel.overlay) for number in panel.overlay[VALUE]}
            words = f"paper ({len(drawn)} of {len(self.data.overlay)} values)"
            self.legend.others[words] = drawn_as(color=GREY, marker="o", **look)

    def beyond(self) -> None:
        """Beside each word, how many points lie beyond the axis."""
        points = self.panel.points[self._is_beyond(self.panel.points)]
        values = points["value"].to_numpy(float)
        slots = np.round(points["along"].to_numpy(float)).astype(int)
        for slot in sorted({*slots.tolist()}):
            here = values[slots == slot]
            sign, words = (r"$\infty$", "infinite") if np.isinf(here).all() else (r"$\rightarrow$", "beyond the axis")
            if (here < self.values[0]).all():
                sign, words = r"$\leftarrow$", "before the axis"
            look = {"va": "center", "fontsize": rcParams["ytick.labelsize"], "color": GREY}
            beside = {"xycoords": self.axis.get_yaxis_transform()}
            self.axis.annotate(f" {len(here)} {sign}", (1.0, slot), **beside, **look)
            handle = {"marker": sign, "color": GREY, "linestyle": "", "markeredgewidth": 0.0}
            self.legend.others[words] = drawn_as(markersize=1.8 * rcParams["lines.markersize"], **handle)

    def explain(self, series: Series) -> None:
        """The entries of a series in the legend."""
        legend, colour = self.legend, series.own.colour
        drawn = [mark.split()[0] for mark in self.figure.marks]
        if series.faint:
            legend.others["other methods"] = drawn_as(**self._faint())
            return
        named = not (self.data.sideways and self.figure.colour == self.panel.along)
        if "stack" in drawn:
            legend.series[series.name] = Patch(facecolor=colour, edgecolor=GREY, linewidth=0.4)
        elif named or series.reference:
            dash = series.dash if "line" in drawn or series.reference else ""
            marker = "" if series.reference or len(self.data.shades) > 1 else series.own.marker
            marker = marker or ("o" if "point" in drawn and not dash else "")
            dash = dash or ("" if marker else "-")
            legend.series[series.name] = drawn_as(linestyle=dash, **filled(marker, "full", colour))
        if not series.reference:
            noted_of = series.points.query(self.figure.noted) if self.figure.noted else series.points
            legend.points.setdefault(series.name, []).append(noted_of)
            counted = not self.data.sideways and ("line" not in drawn or len(series.points) <= FEW)
            legend.outside[series.name] += int(self._is_beyond(series.points).sum()) if counted else 0
            self._explain_points(drawn)

    def _explain_points(self, drawn: Sequence[str]) -> None:
        figure, others, size = self.figure, self.legend.others, rcParams["lines.markersize"]
        if len(self.data.shades) > 1:
            for number, shade in enumerate(self.data.shades):
                look = tint(Look(GREY), number, len(self.data.shades))
                handle = drawn_as(color=look.colour, marker=look.marker, linestyle="")
                others[value_of(figure.shade, shade)] = handle
        for size, value in zip(self._sizes(), self.data.sizes, strict=False):
            handle = drawn_as(color=GREY, marker="o", linestyle="", markersize=size)
            others[value_of(figure.size, value)] = handle
        if EACH not in figure.points and {"line", "point"} & {*drawn}:
            look = {"linestyle": "-" if "line" in drawn else "", "marker": "o" if "point" in drawn else ""}
            others[WORDS.get(figure.center, figure.center)] = drawn_as(color=GREY, **look)
        for flag, fill in zip(figure.flags, FLAGGED, strict=False):
            if flag in self.panel.points and self.panel.points[flag].any():
                others[figure.flags[flag]] = drawn_as(linestyle="", **filled("o", fill))

    def _is_beyond(self, points: Rows) -> Any:
        """Whether each point lies beyond the ends of an axis."""
        value, along = (points[name].to_numpy(float) for name in ("value", "along"))
        sides = [(value < self.values[0]) | (value > self.values[1]), (along < self.along[0]) | (along > self.along[1])]
        return sides[0] | sides[1]

    def _sizes(self) -> list[float]:
        """The size of a marker for each value of the column of sizes; empty if it has one value."""
        base, count = rcParams["lines.markersize"], len(self.data.sizes)
        return [base * (0.65 + 0.9 * number / (count - 1)) for number in range(count)] if count > 1 else []

    def _by_size(self, points: Rows) -> Iterator[tuple[float, Rows]]:
        sizes, column = self._sizes(), self.figure.size
        for size, value in zip(sizes, self.data.sizes, strict=False):
            yield size, points[(points[column] == value).fillna(False)]
        yield rcParams["lines.markersize"], points[points[column].isna()] if sizes else points

    def _by_flag(self, points: Rows) -> Iterator[tuple[str, Rows]]:
        """The points of each fillstyle; the first flag that is set decides."""
        for flag, fill in zip(self.figure.flags, FLAGGED, strict=False):
            is_set = points[flag].to_numpy(bool) if flag in points else np.zeros(len(points), bool)
            yield fill, points[is_set]
            points = points[~is_set]
        yield "full", points


def drawn_as(**look: Any) -> Line2D:
    """A line or a marker of the legend."""
    return Line2D([], [], **look)


def filled(marker: str, fill: str, colour: Any = GREY) -> dict[str, Any]:
    """The look of a marker in a fillstyle; what is not filled is white, and pale colours have an edge."""
    edge = GREY if min(to_rgb(colour)) > LIGHT else colour
    look: dict[str, Any] = {"marker": marker, "color": colour, "markeredgecolor": edge, "markerfacecoloralt": "white"}
    return look | ({"markerfacecolor": "white"} if fill == "none" else {"fillstyle": fill})


def spread(low: str, high: str) -> str:
    """Two statistics in the words of a legend.

    >>> spread("p10", "p90"), spread("low95", "high95"), spread("min", "max")
    ('p10 – p90', '95 % interval', 'minimum – maximum')
    """
    first, last = (WORDS.get(name, name) for name in (low, high))
    return first if low in ("low95", "lower") else f"{first} – {last}"


def cells(axis: Any, data: Data, panel: Panel, norm: Normalize, legend: Legend, most: int) -> None:
    """Draw a heat map: a cell for each x and y, with the colour of its value. Below are at most ``most`` names."""
    figure, y = data.figure, str(data.figure.y)
    columns, lines = data.words(figure.x), data.words(y)
    places = {"column": data.slots(panel.points[figure.x], figure.x), "line": data.slots(panel.points[y], y)}
    points = panel.points.assign(**places)
    table = np.full((len(lines), len(columns)), np.nan)
    table[points["line"].astype(int), points["column"].astype(int)] = points["value"]
    aspect = "equal" if figure.square else "auto"
    axis.imshow(colours_of(table, norm), aspect=aspect, interpolation="none")
    axis.spines[:].set_visible(figure.square)
    axis.grid(False)
    axis.tick_params(length=0)
    step = ceil_div(len(columns), most)
    if figure.square:
        axis.set(xticks=[], yticks=[])
    else:
        axis.set_xticks(range(0, len(columns), step), [text_of(word) for word in columns[::step]])
        axis.set_yticks(range(len(lines)), [folded(text_of(line, y)) for line in lines])
    beside = CORNER if "number" in figure.marks else 0.0
    for flag, fill in zip(figure.flags, FLAGGED, strict=False):
        flagged = points[points[flag]]
        look = {"markersize": 0.7 * rcParams["lines.markersize"], "linestyle": "", **filled("o", fill)}
        axis.plot(flagged["column"] + beside, flagged["line"] - beside, **look)
        if len(flagged):
            legend.others[figure.flags[flag]] = drawn_as(**look)
    numbers = points[np.isfinite(points["value"])] if "number" in figure.marks else points.iloc[:0]
    texts = [f"{value:g}" for value in numbers["value"]]
    # numbers stand in all cells or in none
    if len(columns) * max(map(len, texts), default=0) > LETTERS * most:
        texts = []  # the cells are too narrow for numbers
    for column, line, value, text in zip(numbers["column"], numbers["line"], numbers["value"], texts, strict=False):
        look = {"ha": "center", "va": "center", "fontsize": 0.85 * size_of("ytick.labelsize")}
        axis.text(column, line, text, color="white" if norm(value) > 0.6 else "black", **look)
    square = {"linestyle": "", "marker": "s"}
    if (table < 0).any():
        legend.others["negative"] = drawn_as(color=colormaps["Oranges"](0.6), **square)
    if not np.isfinite(table).all():
        legend.others["no value"] = drawn_as(color=EMPTY, **square)
