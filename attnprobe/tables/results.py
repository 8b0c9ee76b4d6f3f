"""What the sentences of result share: which rows are best, and which are lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

__all__ = ["NEAR", "best_of", "led", "listed", "lost", "sentences"]

Row = Any
NEAR = 0.05  # two values that differ by less, relative to the smaller, are not told apart


def best_of(values: Mapping[str, float]) -> list[str]:
    """The names with the smallest value, and those that are within `NEAR` of it, the smallest first.

    >>> best_of({"a": 2.0, "b": 1.0, "c": 1.04})
    ['b', 'c']
    """
    ordered = sorted(values, key=lambda name: values[name])
    return [name for name in ordered if values[name] <= (1 + NEAR) * values[ordered[0]]]


def led(places: Iterable[Mapping[str, float]], what: str) -> str:
    """In how many of several places each name has the smallest value; places without one winner are ties.

    >>> led([{"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 3.0}, {"a": 1.0, "b": 1.01}], "the smallest error")
    'a has the smallest error in 2 of 3 tables, 1 is a tie.'
    """
    winners = [best_of(values) for values in places if values]
    counts = Counter(names[0] for names in winners if len(names) == 1)
    ties = len(winners) - sum(counts.values())
    parts = [f"{name} has {what} in {count} of {len(winners)} tables" for name, count in counts.most_common()]
    parts += [f"{ties} {'is a tie' if ties == 1 else 'are ties'}"] if ties else []
    return f"{', '.join(parts)}." if parts else ""


def listed(names: Sequence[str]) -> str:
    """Names as words.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def lost(rows: Iterable[Row], name_of: Callable[[Row], str]) -> str:
    """Which methods have rows without a number.

    >>> lost([{"status": "failed"}, {"status": "ok"}], lambda row: "a")
    'Failed or diverged: a.'
    """
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["status"] != "ok":
            word = "Skipped" if row["status"] == "skipped" else "Failed or diverged"
            found.setdefault(word, {})[name_of(row)] = None
    return " ".join(f"{word}: {', '.join(names)}." for word, names in found.items())


def sentences(*parts: str) -> str:
    """The parts that say something."""
    return " ".join(filter(None, parts))
