"""Tables as data: a `Table` is a query of a frame, a grouping and columns.

A catalogue, ``show/catalogue/COMMAND.py``, declares the tables of a command. A further column is one `Column`:

    Column("bad\\nrows", "bad_rows.sum", digits=0)

`attnprobe.show.grid.grids` fills tables, and `attnprobe.show.writers` makes text of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, nearest, unknown
from ..frame.metric import METRICS, ROUNDING, Metric
from ..frame.read import found_by

if TYPE_CHECKING:
    from pandas import DataFrame, Series

STATISTICS = {  # of `attnprobe.frame.summary`, and half of the 95 % interval of a mean over windows
    "mean": "mean",
    "median": "median",
    "p10": "10 % quantile",
    "p90": "90 % quantile",
    "min": "least value",
    "max": "largest value",
    "sum": "sum",
    "count": "number of values",
    "se": "standard error over windows",
    "half": "half of the 95 % interval over windows",
}
SOUND = "status == 'ok' and not bad and not over and not reference"  # a query of the lines that may be the best
WHOLE = ("sum", "count")  # statistics that are shown as whole numbers
KEY = 9  # the priority of columns that tell lines apart: a narrow terminal keeps them
UNITS = {"": 1.0, "%": 100.0, "ms": 1e3, "MiB": 2.0**-20, "G": 1e-9}


@dataclass(frozen=True)
class Computed:
    """A value that is made of several columns of the summary.

    Attributes:
        needs: the columns that the function reads.
        function: takes the lines of one grid, and returns a value for each: numbers, words, `Cell`s, or None.
    """

    needs: tuple[str, ...]
    function: Callable[[DataFrame], Series | Sequence[Any]]


def ratio_to(value: str, reference: str) -> Computed:
    """The ratio of a statistic to that of a reference: the line of the same grid that the query ``reference`` finds.

    The ratio is empty without a reference, and if the error of the reference is rounding.
    """

    def ratios(lines: DataFrame) -> Series | Sequence[Any]:
        found = found_by(lines, reference)[value].dropna()
        # a ratio to rounding would be a large number without a meaning
        if not len(found) or found.iloc[0] <= ROUNDING:
            return [None] * len(lines)
        return lines[value] / found.iloc[0]

    return Computed((value,), ratios)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Fields are columns of the summary: ``METRIC.STAT``, with a metric of `attnprobe.frame.metric` and a statistic of
    `STATISTICS`, or the name of a column of words or counts, such as ``name``, ``d``, ``heads``. A number is marked ≈
    if rounding decides its statistic.

    Attributes:
        heading: at most two lines.
        value: a field, or `Computed`. low, high, half, of: fields of a cell's further numbers (see `Cell`).
        limit: a field with the largest value that was tried: an infinite value is shown as ``> limit``.
        flag: a field; the number is marked ≈ too if this field is above 0.
        digits: significant digits; 0 for whole numbers; None for numbers as they are, such as parameters. ``low``,
            ``high`` and ``half`` have at most two digits.
        unit: ``%``, which stands in the cell; or ``ms``, ``MiB``, ``G``, which stand in the heading.
        signed: whether a positive number has a plus.
        words: the words for a value, as ``{"vmean": "V-Mean"}``, or ``{0: ""}`` for an empty cell.
        priority: from 1 to 9. A narrow terminal leaves out the columns of least priority, but never those with `KEY`.
        best: ``smaller`` or ``larger``: the best cell of each group of rivals is bold.
        meaning: one line of at most 100 characters; by default the metric's.
        name: of the column in ``--columns``; by default its field.
        tex: the heading in LaTeX; by default ``heading`` with the metric's symbol in LaTeX.
    """

    heading: str
    value: str | Computed
    low: str = ""
    high: str = ""
    half: str = ""
    of: str = ""
    limit: str = ""
    flag: str = ""
    digits: int | None = 3
    unit: str = ""
    signed: bool = False
    words: Mapping[Any, str] = field(default_factory=dict, hash=False)
    priority: int = 5
    best: str | None = None
    meaning: str = ""
    name: str = ""
    tex: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or (self.value if isinstance(self.value, str) else ""))
        faults = {
            "a heading of more than two lines": self.heading.count("\n") > 1,
            f"unit {self.unit!r}, which is none of {', '.join(filter(None, UNITS))}": self.unit not in UNITS,
            f"best={self.best!r}, which is neither smaller nor larger": self.best not in (None, "smaller", "larger"),
            "no name, which a computed value needs": not self.name,
            "a meaning of more than 100 characters": len(self.meaning) > 100,
        }
        for fault in (fault for fault, is_so in faults.items() if is_so):
            raise ValueError(f"column {self.heading!r} has {fault}")
        object.__setattr__(self, "meaning", self.meaning or self._metric_meaning())

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns of the summary that the column reads."""
        return *self.shown, *filter(None, (self.low, self.high, self.half, self.of, self.limit, self.flag))

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns of the summary that make the number of a cell."""
        return self.value.needs if isinstance(self.value, Computed) else (self.value,)

    @property
    def title(self) -> str:
        """The heading in one line."""
        return " ".join(self.heading.split())

    @property
    def metric(self) -> Metric | None:
        """The metric whose statistic the column shows; None without one."""
        return METRICS.get(self.value.partition(".")[0]) if isinstance(self.value, str) else None

    def _metric_meaning(self) -> str:
        statistic = self.value.partition(".")[2] if isinstance(self.value, str) else ""
        if self.metric is None or not statistic:
            return ""
        return f"{STATISTICS.get(statistic, statistic)}: {self.metric.meaning}"


METHOD = Column(
    "method",
    "name",
    words={"vmean": "V-Mean (mean of V)", "lower-bound": "lower bound (rank d)"},
    priority=KEY,
    meaning="the method with its options; V-Mean replaces attention by the mean of V",
)
BUDGET = Column("d", "d", priority=KEY, meaning="the budget: landmarks, features or keys of a row", tex="$d$")


@dataclass(frozen=True)
class Table:
    """What a table shows of a frame.

    Attributes:
        name: of the table, and of its label in LaTeX. title: the beginning of the caption.
        kind: the kind of rows (see `attnprobe.frame.read`). prepared: makes the table's rows of the rows of that kind,
            such as one row for all steps of a training. rows: a query; the table has the rows that it finds.
        each: columns of the frame whose values have a grid each.
        by: columns of the frame whose values have a line of a grid each. Without ``by``, each row of the frame is a
            line, and fields are columns of the frame.
        within: columns whose values share a grid, unless a reader asks for a grid each. CSV, JSON and gates have a line
            for each of their values.
        columns: the columns that are shown; a column that is empty in all grids is left out.
        more: further columns that ``--columns`` may name; it may name any ``METRIC.STAT`` too.
        metric: the metric whose symbol a caption in LaTeX has.
        main: the name of the column that LaTeX pivots, methods × d.
        of_best: the words for the main metric in the sentence above a grid, which names the best method at each d.
        rivals: columns of ``by``. In a column with ``best``, lines with equal values of these columns compete.
        competes: a query of the summary; only the lines that it finds compete.
        beside: the table of the same kind that has the other rows: gates judge the lines of both together.
        cluster: the column whose values are independent of each other, for standard errors and intervals.
        pooled: columns of which a line has several values, such as ``n`` in a table of growth.
        derived: further columns of the frame, by name, from the frame.
        of_groups: further columns of the summary, by name, each a number or words from the rows of a line, such as a
            rank correlation.
        sentence, notes: the sentence above a grid and the notes below it, from the rows of the grid.
    """

    name: str
    title: str
    kind: str = "head"
    prepared: Callable[[DataFrame], DataFrame] | None = None
    rows: str = ""
    each: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    more: tuple[Column, ...] = ()
    metric: str = ""
    main: str = ""
    of_best: str = ""
    rivals: tuple[str, ...] = ()
    beside: str = ""
    cluster: str = "window"
    pooled: tuple[str, ...] = ()
    competes: str = SOUND
    derived: Mapping[str, Callable[[DataFrame], Any]] = field(default_factory=dict)
    of_groups: Mapping[str, Callable[[DataFrame], Any]] = field(default_factory=dict)
    sentence: Callable[[DataFrame], str] | None = None
    notes: Callable[[DataFrame], Sequence[str]] | None = None

    def __post_init__(self) -> None:
        names = [column.name for column in self.every]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"table {self.name}: two columns are called {name!r}; give one of them another name=")
        if self.main and self.main not in names:
            raise ValueError(f"table {self.name}: main={self.main!r} is no column{nearest(self.main, names)}")
        if self.metric and self.metric not in METRICS:
            raise ValueError(f"table {self.name}: {unknown('metric', self.metric, METRICS)}")
        for column in self.every:
            # here and not where a table is filled: a misspelt field is found when the module is imported
            for name in column.fields:
                self._check(column, name)

    @property
    def every(self) -> tuple[Column, ...]:
        """The columns that may be shown."""
        return *self.columns, *self.more

    def _check(self, column: Column, name: str) -> None:
        """Refuse a misspelt field of a column."""
        metric, dot, statistic = name.partition(".")
        where = f"table {self.name}: column {column.title!r}"
        if dot and metric not in METRICS and metric not in self.derived:
            raise ValueError(f"{where}: {unknown('metric', metric, [*self.derived, *METRICS])}")
        if dot and statistic not in STATISTICS:
            raise ValueError(f"{where}: {unknown('statistic', statistic, STATISTICS)}")

    def chosen(self, names: Sequence[str] | None) -> tuple[Column, ...]:
        """The columns of these names, behind the columns that tell lines apart. Without names, the table's own columns.

        A name is a column's name, or ``METRIC.STAT``. ``METRIC`` alone means the metric's first column, or else its
        median. If all names begin with +, the columns are added to the table's own.

        Raises:
            UsageError: an unknown name.
        """
        if names is None:
            return self.columns
        adds = all(name.startswith("+") for name in names)
        kept = self.columns if adds else tuple(column for column in self.columns if column.priority == KEY)
        named = [self._named(name.removeprefix("+")) for name in names]
        return tuple({column.name: column for column in (*kept, *named)}.values())

    def _named(self, name: str) -> Column:
        """The column that a user names."""
        for column in self.every:
            if name == column.name:
                return column
        for column in self.every:
            if column.name.partition(".")[0] == name and "." in column.name:
                return column
        metric, _, statistic = name.partition(".")
        if metric not in METRICS or not self.by:
            known = [*(column.name for column in self.every), *(METRICS if self.by else ())]
            raise unknown("column", name, known)
        statistic = statistic or "median"
        if statistic not in STATISTICS:
            raise UsageError(f"column {name}: {unknown('statistic', statistic, STATISTICS)}")
        return of_metric(METRICS[metric], statistic)


def of_metric(metric: Metric, statistic: str) -> Column:
    """The column of a statistic of any metric."""
    unit = {"s": "ms", "bytes": "MiB"}.get(metric.unit, "")
    symbol = f"{metric.symbol} ({unit})" if unit else metric.symbol
    heading = f"{symbol}\n{statistic}"
    digits = 0 if statistic in WHOLE else 3
    return Column(heading, f"{metric.name}.{statistic}", digits=digits, unit=unit, signed=metric.signed)
