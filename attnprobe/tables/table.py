"""Columns over rows: how a command states a table once, for every format."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..records.file import strict_json
from .rows import AnyRow, Named, State

__all__ = [
    "Column",
    "Table",
    "counted",
    "gathered",
    "grouped_by",
    "joined",
    "legend_of",
    "method_key",
    "reasons",
    "table_of",
]

T = TypeVar("T")
Seen = TypeVar("Seen", contravariant=True)
R = TypeVar("R", bound=AnyRow)
Stated = TypeVar("Stated", bound=State)


@dataclass(frozen=True)
class Column(Generic[Seen]):
    """One column of a table.

    Args:
        heading: what stands above it; a terminal breaks it where it has a newline. cell: a row's text; a column that
            is empty in every row is not shown.
        meaning: its line of the legend. spare: a narrow terminal goes without the columns with the largest first,
            never without those at 0.
    """

    heading: str
    cell: Callable[[Seen], str]
    meaning: str = ""
    spare: int = 0

    @classmethod
    def of(cls, name: str, spare: int = 0) -> Column[AnyRow]:
        """The column of a field as it is, empty where it is null."""
        return Column(name, lambda row: "" if row[name] is None else str(row[name]), spare=spare)

    @property
    def title(self) -> str:
        """The heading in one line."""
        return " ".join(self.heading.split())


@dataclass(frozen=True)
class Table:
    """A table as strings: what all formats for people have in common.

    Attributes:
        lines: cells; the first of a line may begin with a mark (``!``, ``✗`` or ``–``) and a space.
        spare: headings that a narrow terminal goes without, in this order. meanings: of headings, for the legend.
        folded: headings as a terminal breaks them into two lines.
        bands: of each line what it belongs to, as a family of methods; ``""`` is none.
    """

    caption: str
    headings: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    spare: Sequence[str] = ()
    meanings: Mapping[str, str] = field(default_factory=dict)
    folded: Mapping[str, str] = field(default_factory=dict)
    bands: Sequence[str] = ()

    @property
    def sides(self) -> list[str]:
        """``l`` for the first column and every one that holds a word, ``r`` for numbers."""
        wordy = [any(line[i][:1].isalpha() for line in self.lines) for i in range(len(self.headings))]
        return ["l" if word or index == 0 else "r" for index, word in enumerate(wordy)]


def table_of(
    caption: str,
    rows: Sequence[T],
    columns: Sequence[Column[T]],
    notes: Sequence[str] = (),
    among: Sequence[T] | None = None,
    band: Callable[[T], str] | None = None,
) -> Table:
    """The table of some rows, with the columns in which one of them has something to say.

    Args:
        among: the rows that decide on the columns, where several tables shall have the same. band: see `Table`.

    >>> table_of("x", [{"d": 8}], [Column("d", lambda row: str(row["d"])), Column("e", lambda row: "")]).headings
    ['d']
    """
    deciding = rows if among is None else among
    shown = [column for column in columns if any(column.cell(row) for row in deciding)]
    return Table(
        caption,
        [column.title for column in shown],
        [[column.cell(row) for column in shown] for row in rows],
        notes,
        [column.title for column in sorted(shown, key=lambda column: -column.spare) if column.spare],
        {column.title: column.meaning for column in shown if column.meaning},
        {column.title: column.heading for column in shown if "\n" in column.heading},
        [band(row) for row in rows] if band else (),
    )


def legend_of(tables: Iterable[Table], headings: Iterable[str] | None = None) -> str:
    """What the headings of some tables mean, each once; of these ``headings`` alone where they are given."""
    meanings = {heading: text for table in tables for heading, text in table.meanings.items()}
    shown = set(meanings if headings is None else headings)
    texts = dict.fromkeys(text for heading, text in meanings.items() if heading in shown)
    return " ".join(f"{text}." for text in texts)


def grouped_by(rows: Iterable[R], *names: str) -> list[list[R]]:
    """The rows that agree in these fields together, in the order of their first appearance.

    >>> grouped_by([{"n": 1, "d": 2}, {"n": 2, "d": 2}, {"n": 1, "d": 3}], "n")
    [[{'n': 1, 'd': 2}, {'n': 1, 'd': 3}], [{'n': 2, 'd': 2}]]
    """

    def key(row: R) -> Hashable:
        values = (row.get(name) for name in names)
        return tuple(strict_json(value) if isinstance(value, (Mapping, list)) else value for value in values)

    return gathered(rows, key)


def gathered(rows: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """The rows with the same key together, in the order of their first appearance."""
    groups: dict[Hashable, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def method_key(row: Named) -> tuple[str | None, str]:
    """A method with its options, as a key."""
    return row["method"], strict_json(row.get("options") or {})


def joined(*parts: str | None) -> str:
    """The parts of a caption."""
    return " · ".join(filter(None, parts))


def counted(rows: Sequence[Mapping[str, Any]], *names: str) -> str:
    """How many heads and windows, or what else ``names`` name, the rows are over.

    >>> counted([{"heads": 12, "windows": 1}])
    '12 heads x 1 window'
    """
    counts = [(max(row[name] for row in rows), name) for name in names or ("heads", "windows")]
    return " x ".join(f"{count} {name if count != 1 else name[:-1]}" for count, name in counts)


def reasons(rows: Iterable[Stated], name_of: Callable[[Stated], str]) -> list[str]:
    """A note for each row that is not ok: its mark, its name, what it is and why; equal ones once."""
    lines = []
    for row in rows:
        if row["status"] != "ok":
            sign = "–" if row["status"] == "skipped" else "✗"
            why = ", ".join(filter(None, [row["status"], row["reason"]]))
            lines.append(f"{' '.join(filter(None, [sign, name_of(row)]))}: {why}")
    return list(dict.fromkeys(lines))
