"""Shared parts of result sentences: how often each name is the best, and the rows without a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from .numbers import method_label
from .rows import AnyRow
from .ties import Value, best_of

B = TypeVar("B", bound=AnyRow)
S = TypeVar("S", bound=AnyRow)


def led(places: Iterable[Mapping[str, Value]], what: str) -> str:
    """For each name, the number of places where it has the smallest value alone.

    >>> some = [{"a": Value(1.0), "b": Value(2.0)}, {"a": Value(1.0), "b": Value(1.01)}]
    >>> led(some, "the smallest error")
    'a has the smallest error in 1 of 2 tables, 1 is a tie.'
    """
    winners = [best_of(values) for values in places if values]
    counts = Counter(names[0] for names in winners if len(names) == 1)
    ties = len(winners) - sum(counts.values())
    parts = [f"{name} has {what} in {count} of {len(winners)} tables" for name, count in counts.most_common()]
    parts += [f"{ties} {'is a tie' if ties == 1 else 'are ties'}"] if ties else []
    return f"{', '.join(parts)}." if parts else ""


def at_budget(row: B, label: Callable[[B], str] = method_label) -> str:
    """A row's method and budget.

    >>> at_budget({"method": "mss", "options": {}, "d": 8}), at_budget({"method": "vmean", "options": {}, "d": None})
    ('mss d = 8', 'vmean')
    """
    return label(row) + ("" if row["d"] is None else f" d = {row['d']}")


def in_words(names: Sequence[str]) -> str:
    """Names joined by commas and *and*.

    >>> in_words(["a"]), in_words(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def lost(rows: Iterable[S], name_of: Callable[[S], str]) -> str:
    """The methods of rows without a number.

    >>> lost([{"status": "failed", "reason": "x"}, {"status": "ok", "reason": None}], lambda row: "a")
    'Failed or diverged: a.'
    """
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["status"] != "ok":
            word = "Skipped" if row["status"] == "skipped" else "Failed or diverged"
            names.setdefault(word, {})[name_of(row)] = None
    return " ".join(f"{word}: {', '.join(methods)}." for word, methods in names.items())


def sentences(*parts: str) -> str:
    """The parts that are not empty, as one text."""
    return " ".join(filter(None, parts))
