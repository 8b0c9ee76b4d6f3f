"""Tables as columns over rows, declared once for every format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, TypeVar

from ..files import Fields
from ..records.file import strict_json
from .marks import OF_STATUS
from .numbers import OPEN, cell_text
from .results import Value, best_of

MOST_NAMES = 8  # of rows that share a note
MOST_COLUMNS = 8  # that a page has room for
T = TypeVar("T")
R = TypeVar("R", bound=Fields)


# (metric, pairs of rows) -> the comparison of each pair's right row with its left one; None if no test is possible
Tested = Callable[[str, Sequence[tuple[Any, Any]]], Sequence[Fields | None]]


@dataclass(frozen=True)
class Best:
    """The rule for the best row of a column.

    Attributes:
        value: a row's number, of which the smallest is the best, with its standard error where it has one; a row
            without a number is never the best.
        metric: that a paired test compares; None if the values have no pairs.
    """

    value: Callable[[Any], Value | None]
    metric: str | None = None

    def leaders(
        self, rows: Sequence[T], rivals: Callable[[T], Hashable | None], tested: Tested | None = None
    ) -> list[Leaders]:
        """The best of each group of rivals, with the next ones up to the first that the test tells apart.

        Without a test or a metric, values tie by their standard errors (see `best_of`).

        >>> some = [(1.6, 0.1), (1.0, 0.3), (1.4, 0.4)]
        >>> [one.places for one in Best(lambda row: Value(*row)).leaders(some, lambda row: 0)]
        [[1, 2]]
        """
        values = {place: value for place, row in enumerate(rows) if (value := self.value(row)) is not None}
        competing = [place for place in values if rivals(rows[place]) is not None]
        groups = gathered(competing, lambda place: rivals(rows[place]))
        if tested is None or self.metric is None:
            best = [best_of({place: values[place] for place in group}) for group in groups]
            return [
                Leaders(places, len(places) == len(group), len(group))
                for places, group in zip(best, groups, strict=True)
            ]
        ordered = [sorted(group, key=lambda place: values[place].value) for group in groups]
        pairs = [(rows[group[0]], rows[other]) for group in ordered for other in group[1:]]
        compared = iter(tested(self.metric, pairs))
        leaders = []
        for group in ordered:
            judged = {place: next(compared) for place in group[1:]}
            worse = {place for place, row in judged.items() if is_worse(row)}
            places = [group[0], *takewhile(lambda place, worse=worse: place not in worse, judged)]
            certain = bool(worse) or None not in judged.values()
            every = len(places) == len(group)
            leaders.append(Leaders(places, every, len(group), certain, judged))
        return leaders


def is_worse(compared: Fields | None) -> bool:
    """Whether a test found the right row of a pair worse than the left one."""
    return compared is not None and compared["verdict"] == "worse"


@dataclass(frozen=True)
class Leaders:
    """The places of the best row of some rivals and of those like it, the best first.

    ``every``: all rivals are among them. ``rivals``: how many there are. ``tested``: a test was possible, or none was
    needed. ``compared``: the places of the other rows with their comparisons with the best one, the better first.
    """

    places: list[int]
    every: bool
    rivals: int
    tested: bool = True
    compared: Mapping[int, Fields | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Args:
        heading: a terminal breaks it at a newline. cell: a row's text, as a format string (see `formatted`), as several
            whose later ones may lack their fields (see `cell_text`), or as a function; a column that is empty in every
            row is not shown. meaning: its entry in the legend, in few words. more: further facts for the full legend.
        spare: a narrow terminal drops the column with the largest number first; where folding is not enough, also the
            last columns of numbers at 0; never one below 0.
        short: its name in ``--columns`` and in the legend, if not the heading; related columns share one.
        best: the rule for its best row. key: whether it identifies the row; ``--columns`` always keeps it.
    """

    heading: str
    cell: str | Sequence[str] | Callable[[Any], str]
    meaning: str = ""
    spare: int = 0
    short: str = ""
    more: str = ""
    best: Best | None = None
    key: bool = False

    def text(self, row: Any) -> str:
        """The cell of a row."""
        if callable(self.cell):
            return self.cell(row)
        return cell_text([self.cell] if isinstance(self.cell, str) else self.cell, row)

    @property
    def title(self) -> str:
        """The heading in one line."""
        return " ".join(self.heading.split())

    @property
    def name(self) -> str:
        """Its name in ``--columns`` and the legend."""
        return self.short or self.title


@dataclass(frozen=True)
class Table:
    """A table of strings, for every format that people read.

    Attributes:
        columns: without those that are empty in all rows. lines: cells; the first of a line may begin with a mark
            (``!``, ``✗`` or ``–``) and a space.
        best: the places (line, column) of the best cells of each column. tested: whether a paired test chose them.
        undecided: the columns with rivals for which no test was possible, so that none is bold.
    """

    caption: str
    columns: Sequence[Column]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    best: Collection[tuple[int, int]] = ()
    tested: bool = False
    undecided: Collection[int] = ()

    @property
    def headings(self) -> list[str]:
        """Of each column, in one line."""
        return [column.title for column in self.columns]

    @property
    def spare(self) -> list[str]:
        """Headings that a narrow terminal drops, in this order."""
        spare = [column for column in self.columns if column.spare > 0]
        return [column.title for column in sorted(spare, key=lambda column: -column.spare)]

    @property
    def sides(self) -> list[str]:
        """``l`` for the first column and every one with a word, ``r`` for numbers."""
        wordy = [any(is_word(line[i]) for line in self.lines) for i in range(len(self.columns))]
        return ["l" if word or index == 0 else "r" for index, word in enumerate(wordy)]

    @property
    def needed(self) -> Table:
        """The table without the first of its spare columns, where it has too many for a page."""
        surplus = max(0, len(self.columns) - MOST_COLUMNS)
        spare = [place for place, column in enumerate(self.columns) if column.spare > 0 and not column.key]
        dropped = sorted(spare, key=lambda place: -self.columns[place].spare)[:surplus]
        return self.with_columns([place for place in range(len(self.columns)) if place not in dropped])

    def with_columns(self, places: Sequence[int]) -> Table:
        """The table with the columns at these places, in their order."""
        return replace(
            self,
            columns=[self.columns[place] for place in places],
            lines=[[line[place] for place in places] for line in self.lines],
            best=[(line, new) for new, old in enumerate(places) for line, column in self.best if column == old],
            undecided=[new for new, old in enumerate(places) if old in self.undecided],
        )


def is_word(text: str) -> bool:
    """Whether a cell is a word or a formula, not a number: it begins with a letter or with the bar of a norm.

    >>> [is_word(text) for text in ("holds 1/1", "‖E‖₂/‖B‖₂", "|D~/D − 1|", "1.25", "> 512", "∞", "")]
    [True, True, True, False, False, False, False]
    """
    return text[:1].isalpha() or text[:1] in ("|", "‖")


def table_of(
    caption: str,
    rows: Sequence[T],
    columns: Sequence[Column],
    notes: Sequence[str] = (),
    among: Sequence[T] | None = None,
    rivals: Callable[[T], Hashable | None] | None = None,
    tested: Tested | None = None,
) -> Table:
    """The table of rows, without columns that are empty in all of them, and without notes on ≈ where no cell has it.

    Args:
        among: the rows that decide which columns are shown, if several tables share them.
        rivals: the key that a row shares with the rows that it competes with for the best; None does not compete. Cells
            that read the same as the best one are best too. Where no rival is worse, none is.
        tested: the test that tells rows from the best one.

    >>> table_of("x", [{"d": 8}], [Column("d", lambda row: str(row["d"])), Column("e", lambda row: "")]).headings
    ['d']
    """
    deciding = rows if among is None else among
    shown = [column for column in columns if any(column.text(row) for row in deciding)]
    lines = [[column.text(row) for column in shown] for row in rows]
    if not any(OPEN in text for line in lines for text in line):
        notes = [note for note in notes if not note.startswith(OPEN)]
    if rivals is None:
        return Table(caption, shown, lines, notes, tested=tested is not None)
    keys = [rivals(row) for row in rows]
    marked, undecided = [], []
    for index, column in enumerate(shown):
        for leaders in column.best.leaders(rows, rivals, tested) if column.best is not None else ():
            if not leaders.tested:
                undecided.append(index)
            elif not leaders.every:
                key, texts = keys[leaders.places[0]], {lines[place][index] for place in leaders.places}
                marked += [(at, index) for at in range(len(rows)) if keys[at] == key and lines[at][index] in texts]
    return Table(caption, shown, lines, notes, marked, tested is not None, undecided)


@dataclass(frozen=True)
class Entry:
    """An entry of a legend: a sentence, and the names of the columns that it explains."""

    text: str
    names: Sequence[str] = ()


def legend_of(columns: Iterable[Column], full: bool = False) -> list[Entry]:
    """The meanings of columns, an entry for each: ``names: meaning``; ``full`` adds further facts."""
    names: dict[tuple[str, str], list[str]] = {}
    for column in columns:
        meaning = column.meaning, column.more if full else ""
        if any(meaning) and column.name not in (shared := names.setdefault(meaning, [])):
            shared.append(column.name)
    return [
        Entry(f"{', '.join(shared)}: {'; '.join(filter(None, texts))}.", tuple(shared))
        for texts, shared in names.items()
    ]


def grouped_by(rows: Iterable[R], *names: str) -> list[list[R]]:
    """Rows grouped by these fields, in the order of their first appearance.

    >>> grouped_by([{"n": 1, "d": 2}, {"n": 2, "d": 2}, {"n": 1, "d": 3}], "n")
    [[{'n': 1, 'd': 2}, {'n': 1, 'd': 3}], [{'n': 2, 'd': 2}]]
    """

    written: dict[int, str] = {}  # by identity: the rows of a cell share their options

    def key(row: R) -> Hashable:
        values: list[Any] = [row.get(name) for name in names]
        for place, value in enumerate(values):
            if isinstance(value, (dict, list)):
                values[place] = written.get(id(value)) or written.setdefault(id(value), strict_json(value))
        return tuple(values)

    return gathered(rows, key)


def gathered(rows: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Rows grouped by a key, in the order of their first appearance."""
    groups: dict[Hashable, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def method_key(row: Fields) -> tuple[str | None, str]:
    """A method with its options, as a key."""
    return row["method"], strict_json(row.get("options") or {})


def joined(*parts: str | None) -> str:
    """The parts of a caption."""
    return " · ".join(filter(None, parts))


def counted(rows: Sequence[Mapping[str, Any]], *names: str) -> str:
    """The numbers of heads and windows of the rows, or of other ``names``.

    >>> counted([{"heads": 12, "windows": 1}])
    '12 heads x 1 window'
    """
    counts = [(max(row[name] for row in rows), name) for name in names or ("heads", "windows")]
    return " x ".join(f"{count} {name if count != 1 else name[:-1]}" for count, name in counts)


def equal_tokens(count: int, most: str = "") -> str:
    """A caption's words on tokens whose rows of Q, K and V are those of another one; empty without any.

    >>> equal_tokens(7), equal_tokens(1, "up to "), equal_tokens(0)
    ('7 tokens equal to others in Q, K, V', 'up to 1 token equal to another in Q, K, V', '')
    """
    tokens = "1 token equal to another" if count == 1 else f"{count} tokens equal to others"
    return f"{most}{tokens} in Q, K, V" if count else ""


def reasons(rows: Iterable[Fields], name_of: Callable[[Any], str]) -> list[str]:
    """A note for each row that is not ok: mark, name, status and reason. Rows that are skipped for one reason share it.

    >>> rows = [{"d": d, "status": "skipped", "reason": "x"} for d in (4, 8)]
    >>> reasons([*rows, {"d": 2, "status": "failed", "reason": "x"}], lambda row: f"d = {row['d']}")
    ['– d = 4, d = 8: skipped, x', '✗ d = 2: failed, x']
    """
    names: dict[tuple[str, str, str], dict[str, None]] = {}
    for row in rows:
        if row["status"] != "ok":
            why, name = row["reason"] or "", name_of(row)
            alone = "" if row["status"] == "skipped" else name
            names.setdefault((row["status"], why, alone), {})[name] = None
    lines = []
    for (status, why, _), of in names.items():
        named = [*of][:MOST_NAMES] + [f"{len(of) - MOST_NAMES} more"] * (len(of) > MOST_NAMES)
        text = ", ".join(filter(None, [status, why]))
        lines.append(f"{' '.join(filter(None, [OF_STATUS[status], ', '.join(filter(None, named))]))}: {text}")
    return lines
