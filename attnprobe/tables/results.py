"""Shared parts of results: the best of some values and those that tie with it, and the sentences that say so."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..files import Fields
from .numbers import method_label, significant

CONFIDENCE = 0.95  # of an interval of a mean over few repeats

K = TypeVar("K", bound=Hashable)

TOLERANCE = 0.05  # of a value: smaller differences are the same
NEAR = 0.05  # two values without standard errors that differ by no more, relative to the smaller, are a tie
DIGITS = 3  # what reads the same in a table is a tie
MOST_ALIKE = 4  # names of methods that a test does not tell from the best
UNTESTED = "too few heads and windows for a paired test"


@dataclass(frozen=True)
class Value:
    """A number and its standard error, None if unknown."""

    value: float
    error: float | None = None

    @classmethod
    def of(cls, value: float | None, error: float | None = None) -> Value | None:
        """A value that may be unknown."""
        return None if value is None else cls(value, error)

    def ties(self, other: Value) -> bool:
        """Whether two values read the same, or differ by no more than √(s₁² + s₂²), their standard errors.

        Where one has no standard error, they tie if they differ by no more than `NEAR`.

        >>> [Value(1.0, 0.3).ties(Value(1.4, error)) for error in (0.4, None)], Value(1.0).ties(Value(1.4, 0.4))
        ([True, False], False)
        >>> Value(1.0).ties(Value(1.04)), Value(1.0).ties(Value(1.06))
        (True, False)
        >>> Value(0.3021, 1e-9).ties(Value(0.3024, 1e-9)), Value(0.3024, 1e-9).ties(Value(0.3026, 1e-9))
        (True, False)
        """
        if significant(self.value, DIGITS) == significant(other.value, DIGITS):
            return True
        apart = abs(self.value - other.value)
        if self.error is None or other.error is None:
            return apart <= NEAR * min(abs(self.value), abs(other.value))
        return apart <= math.hypot(self.error, other.error)


def student_reach(se: float, count: int) -> float:
    """Half of the 95 % interval of a mean of ``count`` values, at least 2, with the standard error ``se``."""
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * se


def best_of(values: Mapping[K, Value]) -> list[K]:
    """The names with the smallest value, and those that tie with it, the smallest first.

    >>> best_of({"a": Value(2.0), "b": Value(1.0), "c": Value(1.04)})
    ['b', 'c']
    """
    ordered = sorted(values, key=lambda name: values[name].value)
    return [name for name in ordered if values[name].ties(values[ordered[0]])]


def led(winners: Sequence[Sequence[str]], what: str, places: str = "tables") -> str:
    """For each name, the number of tables, or other places, where it wins alone; then the number where no name does.

    >>> led([["a"], ["a", "b"]], "the smallest error")
    'a alone has the smallest error in 1 of 2 tables; in 1 no method is alone.'
    >>> led([["a", "b"], []], "the smallest error")
    'No method alone has the smallest error in any of 2 tables.'
    """
    if not winners:
        return ""
    counts = Counter(names[0] for names in winners if len(names) == 1)
    if not counts:
        return f"No method alone has {what} in any of {len(winners)} {places}."
    (first, count), *others = counts.most_common()
    ties = len(winners) - counts.total()
    rest = "".join(f", {name} in {count}" for name, count in others) + (
        f"; in {ties} no method is alone" if ties else ""
    )
    return f"{first} alone has {what} in {count} of {len(winners)} {places}{rest}."


def at_budget(row: Fields, label: Callable[[Any], str] = method_label) -> str:
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


def beside(names: Sequence[str]) -> str:
    """The clause on names that a test does not find worse than the best, by more than `TOLERANCE`.

    >>> beside([]), beside(["b"])
    ('', '; b is not shown to be over 5 % worse')
    """
    named = [*names[:MOST_ALIKE], *([f"{len(names) - MOST_ALIKE} more"] if len(names) > MOST_ALIKE else [])]
    verb = "is" if len(names) == 1 else "are"
    return f"; {in_words(named)} {verb} not shown to be over {100 * TOLERANCE:g} % worse" if names else ""


def lost(rows: Iterable[Fields], name_of: Callable[[Any], str] = method_label) -> str:
    """The methods of rows without a number, with the budgets if others of theirs have one.

    >>> rows = [{"status": "failed", "d": 8}, {"status": "ok", "d": 16}, {"status": "failed", "d": 32}]
    >>> lost(rows, lambda row: "a"), lost(rows[:1], lambda row: "a")
    ('Failed or diverged: a d = 8 and 32.', 'Failed or diverged: a.')
    """
    budgets: dict[str, dict[str, dict[str, None]]] = {}  # by what became of them, and by method
    whole: dict[str, bool] = {}
    for row in rows:
        name, ok = name_of(row), row["status"] == "ok"
        whole[name] = whole.get(name, True) and not ok
        if not ok:
            word = "Skipped" if row["status"] == "skipped" else "Failed or diverged"
            of_method = budgets.setdefault(word, {}).setdefault(name, {})
            of_method |= {} if row.get("d") is None else {f"{row['d']}": None}
    texts = []
    for word, methods in budgets.items():
        names = [
            name + (f" d = {in_words([*some])}" if some and not whole[name] else "") for name, some in methods.items()
        ]
        texts.append(f"{word}: {', '.join(names)}.")
    return " ".join(texts)


def sentences(*parts: str) -> str:
    """The parts that are not empty, as one text."""
    return " ".join(filter(None, parts))


def too_few_repeats(promises: Iterable[tuple[float, int, int]]) -> list[str]:
    """A note for each δ on promises that no outcome of their repeats could show to be kept.

    Args:
        promises: δ, the number of repeats, and the least that could show it.

    >>> too_few_repeats([(0.05, 100, 60), (0.05, 100, 121), (0.05, 100, 119)])
    ['undecided: too few repeats to show a probability of at most 0.05; choose --repeats 121']
    """
    short: dict[float, int] = {}
    for delta, repeats, least in promises:
        if repeats < least:
            short[delta] = max(least, short.get(delta, 0))
    return [
        f"undecided: too few repeats to show a probability of at most {delta:g}; choose --repeats {least}"
        for delta, least in short.items()
    ]
