"""The data of a figure: its panels, their series and points, computed from a frame without drawing anything.

`Data` is what all panels share; `Data.panels` are the panels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from ..errors import UsageError
from ..frame import Rows
from ..frame.metric import METRICS
from ..frame.summary import COUNTS, STATISTICS, summary
from .figure import EACH, INTERVAL, Figure

Ends = tuple[float, float]
DOUBLE = 16  # decades, the digits of float64
MARGIN = 0.06  # the share of an axis that is left free beyond its values
MOST = 8  # a panel with more series is repeated, each time with other series in front
MOST_IN_GROUP = 4  # series in front
SLOT = 0.76  # the share of a word's space on an axis for its points
SCALES = {"bytes": 2.0**-20}  # factors of values by unit; see `looks.label_of`
VALUE = "number of the value"  # a column of overlays
STATE = {  # columns that `summary` and the panels read
    *("key", "status", "reason", "head", "window", "repeat", "d", "method", "family"),
    *("bad_rows", "guarded_rows", "rounded_rows", "realised_d"),
}
OF_SOURCES = ("weights", "scale_inputs")  # facets that are part of the label of a source
MEASURED, GROUP = "measured", "group"  # facets that are no columns
EXACT = "exact"  # the series of rows without a method
SKIPPED = "skipped"  # the status of points that no panel shows
LOST = ("failed", "diverged")  # statuses of points without a value that a panel marks


@dataclass(frozen=True)
class Panel:
    """One panel: the rows of one combination of values of the facets.

    Attributes:
        line, column: the facets that differ by lines and by columns of panels, with their values.
        measured: the column of the values. along: the column of the other axis.
        names: the series in front; without any, all series are.
    """

    line: tuple[tuple[str, Any], ...]
    column: tuple[tuple[str, Any], ...]
    measured: str
    along: str
    names: tuple[Any, ...]
    rows: Rows
    points: Rows
    yardsticks: Rows
    overlay: Rows


class Data:
    """A figure's rows of a frame, and what its panels share.

    Attributes:
        rows: the rows that the figure shows. yardsticks: the rows of its yardsticks.
        sideways: whether words stand at y, and values run to the right.
    """

    def __init__(self, frame: Rows, figure: Figure, overlay: Rows | None = None) -> None:
        self.figure = figure
        needed = {figure.x, *filter(None, [figure.value])} - {*COUNTS}
        measured = {*figure.measured} - {*COUNTS}
        # without its columns in the frame, the figure has nothing to draw
        frame = frame if needed <= set(frame) and (not measured or measured & set(frame)) else frame.iloc[:0]
        flags = [flag for flag in figure.flags if flag not in ("bad", "over")]
        frame = frame.assign(**{flag: _flagged(frame, flag) for flag in flags if len(frame)})
        columns = {*needed, *figure.measured, *figure.columns, *figure.lines, *figure.points, *figure.of_marks("bar")}
        columns |= {figure.colour, figure.shade, figure.size, figure.several, *flags}
        columns |= {*_levels(figure), *figure.apart, *STATE}
        columns |= set() if overlay is None else {*overlay}  # by which its values find their panels
        self.yardsticks = frame.query(figure.yardsticks) if figure.yardsticks else frame.iloc[:0]
        # yardsticks are drawn as lines, and are no series
        rows = frame.drop(self.yardsticks.index)
        rows = rows.query(figure.rows) if figure.rows and len(rows) else rows
        rows = rows[rows["status"] != SKIPPED] if "status" in rows else rows  # nothing of it is to be drawn
        if len(rows) and not pd.api.types.is_numeric_dtype(rows[figure.colour]):
            rows = rows.assign(**{figure.colour: rows[figure.colour].fillna(EXACT)})
        # without the columns that no panel reads, which `summary` would copy for each panel
        self.rows = rows[[name for name in rows if name in columns]]
        self.yardsticks = self.yardsticks[[name for name in self.yardsticks if name in columns]]
        # one value of `several` leaves nothing to compare
        if figure.several in self.rows and self.rows[figure.several].nunique() < 2:
            self.rows = self.rows.iloc[:0]
        self.sideways = not figure.value and figure.y in frame and self.is_words(str(figure.y))
        self.overlay = overlay
        self._ends: dict[Any, Ends] = {}
        self._words: dict[str, list[Any]] = {}

    def is_words(self, column: str) -> bool:
        """Whether a column's values stand evenly spaced on an axis."""
        return column in self.figure.spaced or not pd.api.types.is_numeric_dtype(self.rows[column])

    @cached_property
    def shades(self) -> list[Any]:
        return sorted(self.rows[self.figure.shade].dropna().unique()) if self.figure.shade in self.rows else []

    @cached_property
    def sizes(self) -> list[Any]:
        return sorted(self.rows[self.figure.size].dropna().unique()) if self.figure.size in self.rows else []

    @cached_property
    def names(self) -> list[Any]:
        """The series in their order: that of the frame, or the least values first."""
        return self._ordered(self.figure.colour)

    def words(self, column: str) -> list[Any]:
        """The values of an axis of words, in their order; on an axis of numbers, a missing value is the last."""
        if column not in self._words:  # each panel asks, and the order may be that of a summary
            if pd.api.types.is_numeric_dtype(self.rows[column]):
                missing = [pd.NA] if self.rows[column].isna().any() and not self.figure.value else []
                self._words[column] = [*sorted(self.rows[column].dropna().unique()), *missing]
            else:
                self._words[column] = self._ordered(column)
        return self._words[column]

    def _ordered(self, column: str) -> list[Any]:
        """The values of a column in the order of the frame, or by their numbers if the figure is ``best_first``."""
        values = self.figure.value or (self.figure.x if self.sideways else self.figure.measured[0])
        if not self.figure.best_first or values not in self.rows:
            return list(self.rows[column].dropna().unique())
        lines = summary(self.rows[self.rows[column].notna()], [column], [values])
        return lines.sort_values(f"{values}.{self.figure.center}", na_position="last", kind="stable")[column].tolist()

    @cached_property
    def panels(self) -> list[Panel]:
        """The panels that have points, line by line."""
        figure = self.figure
        groups = self._groups()
        found = []
        for measured in (name for name in figure.measured if name in self.rows):
            for line, column in self._places():
                rows = at(self.rows, (*line, *column))
                for number, names in enumerate(groups):
                    beside = ((MEASURED, measured),) if len(figure.measured) > 1 else ()
                    beneath = ((GROUP, number),) if names else ()
                    panel = self._panel(rows, measured, (*beneath, *line), (*beside, *column), names)
                    if not panel.points.empty:
                        found.append(panel)
        # panels of one line of facets stand together, whatever metric they show
        order = {line: number for number, line in enumerate(dict.fromkeys(panel.line for panel in found))}
        return sorted(found, key=lambda panel: order[panel.line])

    def _places(self) -> list[tuple[Any, Any]]:
        """The combinations of the facets' values: a line and a column for each."""
        rows = self.rows
        series = {self.figure.colour, self.figure.shade} if not self.figure.value else set()
        used = {self.figure.x, *self.figure.measured, *series}
        lines, columns = (
            [name for name in names if name in rows and name not in used and self._differs(name)]
            for names in (self.figure.lines, (*self.figure.columns, *self.figure.apart))
        )
        columns = [name for name in dict.fromkeys(columns) if name not in lines]
        if "source" in columns:
            columns = [name for name in columns if name not in OF_SOURCES]
        facets = [*lines, *columns]
        if not facets:
            return [((), ())]
        combinations = [tuple(values) for values in rows[facets].drop_duplicates().itertuples(index=False)]
        # rows without a value of a facet are in the panels of all its values, and need no panel of their own
        combinations = [values for values in combinations if not any(_covers(other, values) for other in combinations)]
        places = []
        for values in combinations:
            named = tuple((name, value) for name, value in zip(facets, values, strict=True) if not pd.isna(value))
            places.append((named[: len(lines)], named[len(lines) :]))
        ranks = {name: {value: number for number, value in enumerate(_ordered(rows[name]))} for name in facets}

        def rank(place: tuple[Any, Any]) -> list[int]:
            values = dict((*place[0], *place[1]))
            return [ranks[name].get(values.get(name), -1) for name in facets]

        return sorted(places, key=rank)

    def _differs(self, facet: str) -> bool:
        """Whether rows differ in a facet, and no label of a source tells them apart already."""
        told = facet in OF_SOURCES and self.rows["source"].nunique() > 1
        return self.rows[facet].nunique() > 1 and not told

    def _groups(self) -> list[tuple[Any, ...]]:
        """The series in front of each repetition of a panel with too many series; families stay together if they fit.

        One empty group means that no panel is repeated.
        """
        if self.figure.value or self.sideways or len(self.names) <= MOST or "family" not in self.rows:
            return [()]
        families = (
            self.rows.dropna(subset=[self.figure.colour]).groupby(self.figure.colour)["family"].first().fillna("")
        )
        groups: list[list[Any]] = []
        for family in dict.fromkeys(families[name] for name in self.names):
            members = [name for name in self.names if families[name] == family]
            # a large family is shared out evenly
            size = ceil_div(len(members), ceil_div(len(members), MOST_IN_GROUP))
            for start in range(0, len(members), size):
                part = members[start : start + size]
                if groups and len(groups[-1]) + len(part) <= MOST_IN_GROUP:
                    groups[-1] += part
                else:
                    groups.append(part)
        return [tuple(group) for group in groups]

    def _panel(self, rows: Rows, measured: str, line: Any, column: Any, names: tuple[Any, ...]) -> Panel:
        figure = self.figure
        value, along = (figure.x, measured) if self.sideways else (figure.value or measured, figure.x)
        facets = [(name, of) for name, of in (*line, *column) if name in rows]
        yardsticks = at(self.yardsticks, facets)
        return Panel(
            line,
            column,
            value,
            along,
            names,
            rows,
            self.points(rows, value, along),
            self.points(yardsticks, value, along, (along,)) if len(yardsticks) else DataFrame(),
            self._overlaid(rows, value, along),
        )

    def points(self, rows: Rows, measured: str, along: str, points: Sequence[str] | None = None) -> Rows:
        """A line of a `summary` for each point of each series, with ``along`` and ``value``: where the point stands.

        A method without a budget has no value of an axis of budgets. Its point is drawn as a line from end to end.
        """
        figure = self.figure
        points = points or figure.points or ((figure.x, str(figure.y)) if figure.value else (along,))
        flags = [flag for flag in figure.flags if flag not in ("bad", "over")]
        if EACH in points:
            rows = rows[rows[measured].notna()].assign(**{EACH: lambda measured_rows: np.arange(len(measured_rows))})
        keys = [name for name in (figure.colour, figure.shade, figure.size, *points) if name in rows]
        keys: list[str] = list(dict.fromkeys([*keys, *([along] if EACH in points else [])]))
        bars = [name for name in figure.of_marks("bar") if name in rows]
        columns = [measured, *([] if along in keys else [along]), "realised_d", *bars, *flags, *_levels(figure)]
        lines: Rows = summary(rows, keys, list(dict.fromkeys(columns)))
        # the figure counts rows, and has no statistics of values
        if measured in COUNTS:
            return lines.assign(value=lines[measured].astype(float), along=self._along(lines, along))
        if f"{measured}.count" not in lines:
            return lines.iloc[:0]
        scale = SCALES.get(METRICS[measured].unit, 1.0) if measured in METRICS else 1.0
        for statistic in STATISTICS:
            lines[statistic] = lines[f"{measured}.{statistic}"] * (1.0 if statistic == "count" else scale)
        lines["value"] = lines[figure.center]
        lines["along"] = self._along(lines, along)
        # the 95 % interval as two statistics, for bands and bars
        half = lines[f"{measured}.half"] * scale
        lines = lines.assign(**dict(zip(INTERVAL, (lines["mean"] - half, lines["mean"] + half), strict=True)))
        lines = lines.assign(**{name: lines[f"{name}.{figure.center}"] for name in bars})
        # a point has a flag if any of its rows has it
        lines = lines.assign(**{flag: lines[f"{flag}.max"] > 0 for flag in flags})
        if figure.value:
            lines = lines[lines[[figure.x, str(figure.y)]].notna().all(axis=1)]
        else:
            # a lost point has no value, but a cross
            lines = lines[lines["value"].notna() | lines["status"].isin(LOST)]
        if along not in keys:
            lines = lines[lines["along"].notna()]
        kept = [*keys, "value", "along", *STATISTICS, *INTERVAL, *bars, *flags, "bad", "over", "status"]
        lines = lines[[*dict.fromkeys(kept), *(f"{level}.median" for level in _levels(figure))]]
        return lines if figure.points else lines.sort_values("along", kind="stable")

    def _along(self, lines: Rows, along: str) -> Any:
        """The places of points on the axis that is not measured."""
        if along not in lines:
            unit = METRICS[along].unit if along in METRICS else ""
            return lines[f"{along}.{self.figure.center}"] * SCALES.get(unit, 1.0)
        if not self.is_words(along):
            return lines[along].to_numpy(float, na_value=np.nan)
        slots = self.slots(lines[along], along)
        if EACH in lines:  # side by side
            order, count = lines.groupby(along).cumcount(), lines.groupby(along)[EACH].transform("size")
            return slots + SLOT * ((order + 0.5) / count - 0.5)
        if self.figure.shade in lines and len(self.shades) > 1:
            # the shades of a word stand side by side in its slot
            offsets = lines[self.figure.shade].map({shade: number for number, shade in enumerate(self.shades)})
            offsets = (offsets.astype("Float64") + 0.5) / len(self.shades) - 0.5
            return slots + SLOT * offsets.to_numpy(float, na_value=0.0)
        return slots

    def ends(self, panel: Panel) -> tuple[Ends, Ends]:
        """The ends of the axis along the points, and of the axis of values, shared with other panels or not."""
        value_axis, along_axis = ("x", "y") if self.sideways else ("y", "x")
        like = [other for other in self.panels if other.measured == panel.measured]
        values = self._shared(panel, value_axis, panel.measured, like, self._drawn, self.figure.span is None)
        if self.is_words(panel.along):
            return (-0.5, len(self.words(panel.along)) - 0.5), values
        # an axis of the run's own values, such as budgets, shows all of them
        fenced = panel.along not in panel.points
        along = self._shared(panel, along_axis, panel.along, self.panels, self._laid, fenced)
        # the line of equal values is the diagonal only on equal axes
        if any(guide.axis == "equal" for guide in self.figure.guides):
            along = values = (min(along[0], values[0]), max(along[1], values[1]))
        return along, values

    def _shared(self, panel: Panel, axis: str, column: str, panels: Any, numbers: Any, fenced: bool) -> Ends:
        """The ends of an axis of a panel, or of all panels that share it."""
        shared = axis in self.figure.shared
        key = column if shared else (column, panel.line, panel.column)
        if key not in self._ends:
            every = [numbers(other) for other in (panels if shared else [panel])]
            self._ends[key] = ends_of(np.concatenate(every), column in self.figure.log, fenced)
        return self._ends[key]

    def _laid(self, panel: Panel) -> Any:
        """All numbers that stand along the other axis."""
        return np.array([*panel.points["along"].to_numpy(float), *self._guided("x")])

    def _drawn(self, panel: Panel) -> Any:
        """All numbers that stand on the axis of values."""
        if "stack" in self.figure.marks:
            return np.array([0.0, panel.points.groupby("along")["value"].sum().max()])
        statistics = [name for mark in self.figure.marks for name in mark.split()[1:] if name in panel.points]
        points = [panel.points[name] for name in dict.fromkeys(["value", *statistics])]
        if len(panel.yardsticks):
            points.append(panel.yardsticks["value"])
        if len(panel.overlay):
            points.append(panel.overlay[panel.measured])
        every = np.concatenate([*(values.to_numpy(float, na_value=np.nan) for values in points), self._guided("y")])
        low, high = self.figure.span or (-np.inf, np.inf)
        return every[(every >= low) & (every <= high)]

    def _guided(self, axis: str) -> list[float]:
        """The values of guides on an axis."""
        return [float(guide.at) for guide in self.figure.guides if guide.axis == axis]

    def slots(self, values: Any, column: str) -> Any:
        """The places of values on an axis of words."""
        words = self.words(column)
        places = {word: number for number, word in enumerate(words) if not pd.isna(word)}
        last = len(words) - 1 if len(places) < len(words) else np.nan
        return values.map(places).to_numpy(float, na_value=last)

    def _overlaid(self, rows: Rows, measured: str, along: str) -> Rows:
        """The papers' values that stand in a panel."""
        if self.overlay is None or measured not in self.overlay:
            return DataFrame()
        shared = [name for name in self.overlay if name in rows and name not in (measured, along, "source")]
        series = rows[[*dict.fromkeys([*shared, self.figure.colour])]].drop_duplicates()
        return self.overlay.rename_axis(VALUE).reset_index().merge(series, on=shared) if shared else DataFrame()


def ceil_div(count: int, size: int) -> int:
    """The number of groups of at most ``size`` into which ``count`` panels, columns or series are divided."""
    return -(-count // size)


def ends_of(values: Any, log: bool, fenced: bool = True) -> Ends:
    """The ends of an axis: the least and the largest of its values, and a margin.

    A logarithmic axis has at most 16 decades. If it is ``fenced``, it has only the values within fences: these stand
    two interquartile ranges of the logarithms, and at least 0.7 decades, beyond the quartiles.

    >>> ends_of(np.array([1.0, 2.0, 3.0, np.inf]), log=False)
    (0.88, 3.12)
    """
    values = np.asarray(values, float)
    values = values[np.isfinite(values) & ((values > 0) | (not log))]
    if not values.size:
        return (0.1, 1.0) if log else (0.0, 1.0)
    scaled = np.log10(values) if log else values
    if log and fenced:
        first, third = np.quantile(scaled, (0.25, 0.75))
        reach = max(2 * (third - first), 0.7)
        scaled = scaled[(scaled >= first - reach) & (scaled <= third + reach)]
    low, high = float(scaled.min()), float(scaled.max())
    low = max(low, high - DOUBLE) if log else low
    spare = MARGIN * (high - low) or 0.1
    low, high = low - spare, high + spare
    return (10.0**low, 10.0**high) if log else (low, high)


def at(rows: Rows, facets: Sequence[tuple[str, Any]]) -> Rows:
    """The rows whose facets have these values, or no value."""
    for name, value in facets:
        rows = rows[rows[name].isna() | (rows[name] == value)]
    return rows


def _covers(other: Sequence[Any], values: Sequence[Any]) -> bool:
    """Whether another combination has all of these values, and further values where these are missing."""
    known = [(a, b) for a, b in zip(other, values, strict=True) if not pd.isna(b)]
    more = any(pd.isna(b) and not pd.isna(a) for a, b in zip(other, values, strict=True))
    return more and all(not pd.isna(a) and a == b for a, b in known)


def _ordered(values: Any) -> list[Any]:
    """Different values: numbers ascend, and words have the order of the frame."""
    different = list(values.dropna().unique())
    return sorted(different) if pd.api.types.is_numeric_dtype(values) else different


def _flagged(rows: Rows, query: str) -> Any:
    """Whether each row has a flag: a boolean column, or a query."""
    flags = rows[query] if query in rows else rows.eval(query)
    return flags.fillna(False).astype(bool)


def _levels(figure: Figure) -> list[str]:
    """The columns of the figure's guides of axis ``level``."""
    return [guide.at for guide in figure.guides if guide.axis == "level" and isinstance(guide.at, str)]


def one_panel(panels: Sequence[Panel]) -> None:
    """Refuse several panels where there is one axis."""
    if len(panels) > 1:
        differ = "; ".join(", ".join(f"{name} {value}" for name, value in (*p.line, *p.column)) for p in panels[:6])
        raise UsageError(f"one axis has room for one panel, and this figure has {len(panels)}: {differ}; select rows")
