"""The two methods of ``--pair LEFT=RIGHT``, and their rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError, cut, unknown
from ..frame import Rows
from ..grammar.lists import parts, short_name, with_commas

ARROW = " → "  # between the methods of a pair
NO_NAME = re.compile(r"=|^\d")  # a text that is no method's name, but the value of an option


@dataclass(frozen=True)
class Side:
    """One method of a pair: its name in the frame, and the budget that is asked for; None is every budget."""

    name: str
    method: str
    options: str
    d: int | None = None

    @property
    def label(self) -> str:
        """The side as ``--pair`` takes it."""
        label = f"{self.method}:{self.options}" if self.options else self.method
        return label if self.d is None else f"{label}{',' if self.options else ':'}d={self.d}"

    @property
    def shown(self) -> str:
        """The side as tables show it."""
        return self.name if self.d is None else f"{self.name}{',' if self.options else ':'}d={self.d}"

    def rows(self, frame: Rows) -> Rows:
        """The rows of the side in a frame."""
        of_method = frame[(frame["method"] == self.method) & (frame["options"] == self.options)]
        return of_method if self.d is None else of_method[of_method["d"] == self.d]


def related(a: Rows, b: Rows, pairs: Iterable[str]) -> tuple[Rows, Rows]:
    """The rows of the left method of each pair in A, and of the right method in B, under the name of their pair.

    An option that is not written may have any value, if only one method of the run fits. ``d=N`` among the options
    takes this budget alone, so that two budgets can be compared. If one side alone names a budget, the other side takes
    the same budget. A method without a budget is compared with every budget of the other. Skipped rows belong to no
    side. Two methods at one budget are compared once, also if a later pair names them again, or names them in reverse
    in one run.

    Raises:
        UsageError: a pair of another form, or a pair that does not name two methods of the runs.
    """
    import pandas as pd

    one_run = a is b
    taken: tuple[list[Rows], list[Rows]] = ([], [])
    compared: set[Any] = set()
    for text in pairs:
        left, right = _sides(text, a, b)
        if one_run and left == right:
            raise UsageError(f"--pair {text}: both sides are the same cells")
        rows = [side.rows(_counted(frame)) for side, frame in ((left, a), (right, b))]
        budgets = [set(side["d"].dropna().astype(int)) for side in rows]
        # with d=N on a side, the pair is one line without a budget of its own; else there is a line for each budget
        has_budget = left.d is not None or right.d is not None
        for d in [None] if has_budget else sorted(budgets[0] | budgets[1]) or [None]:
            test = tuple(
                (side.method, side.options, side.d if has_budget else d if of_side else None)
                for side, of_side in zip((left, right), budgets, strict=True)
            )
            if test in compared:
                continue
            compared |= {test, test[::-1]} if one_run else {test}
            name = left.shown + ARROW + right.shown
            for into, of_side in zip(taken, rows, strict=True):
                part = of_side if has_budget or d is None else of_side[(of_side["d"] == d) | of_side["d"].isna()]
                budget = pd.array([d] * len(part), dtype="Int64")
                into.append(part.assign(name=name, line=f"{left.label}={right.label}", d=budget, requested=True))
    return pd.concat(taken[0], ignore_index=True), pd.concat(taken[1], ignore_index=True)


def _counted(frame: Rows) -> Rows:
    """The rows of methods that ran."""
    return frame[(frame["status"] != "skipped") & frame["method"].notna()]


def _sides(text: str, a: Rows, b: Rows) -> tuple[Side, Side]:
    """The two methods of a pair."""
    # options have equals signs too, so each sign is tried as the one between the methods
    positions = [position for position, letter in enumerate(text) if letter == "="]
    splits = [(text[:position], text[position + 1 :]) for position in positions]
    found = [sides for split in splits if all(sides := [_found(split[0], a), _found(split[1], b)])]
    if not splits:
        raise UsageError(f"--pair {text}: write two methods, LEFT=RIGHT, such as skyformer=nystromformer")
    if not found:
        raise _unfit(text, splits, a, b)
    lefts, rights = found[0]
    if len(lefts) > 1 or len(rights) > 1:
        several = ", ".join(dict.fromkeys(side.label for side in (*lefts, *rights)))
        raise UsageError(f"--pair {text} fits several methods, {several}: write their options")
    return _at_budget_of(rights[0], lefts[0], a), _at_budget_of(lefts[0], rights[0], b)


def _unfit(text: str, splits: list[tuple[str, str]], a: Rows, b: Rows) -> UsageError:
    """The error of a pair that does not name two methods; it explains the split that names most methods."""
    known = [list(dict.fromkeys(_counted(frame)["method"])) for frame in (a, b)]

    def likeness(split: tuple[str, str]) -> tuple[int, int]:
        names = [short_name(parts(side)[0]) for side in split]
        count = sum(name in of_run for name, of_run in zip(names, known, strict=True))
        return count, sum(not NO_NAME.search(name) for name in names)

    split = max(splits, key=likeness)
    for side, names, run in zip(split, known, ("A", "B"), strict=True):
        name = short_name(parts(side)[0])
        if name not in names:
            # a method that exists was not measured; another name is a misspelling
            from ..measure import is_method

            if is_method(name):
                has = f"{'the run' if a is b else run} has no {cut(name)}, but {', '.join(names)}"
                return UsageError(f"--pair {text}: {has}; run its command again with {cut(name)} added to --method")
            return UsageError(f"--pair {text}: {unknown('method' if a is b else f'method of {run}', name, names)}")
    for side, frame in zip(split, (a, b), strict=True):
        if (joined := with_commas(side)) != side:
            return UsageError(f"--pair {text}: join options by commas: {joined}")
        if not _found(side, frame):
            rows = _counted(frame)
            rows = rows[rows["method"] == short_name(parts(side)[0])]
            labels = ", ".join(dict.fromkeys(side.label for side in _methods(rows)))
            budgets = ", ".join(map(str, sorted(set(rows["d"].dropna()))))
            at = f", measured at d={budgets}" if budgets else ", without d"
            return UsageError(f"--pair {text}: '{side}' is not among {labels}{at}")
    raise AssertionError(text)  # a split whose sides are both found is no fault


def _at_budget_of(other: Side, side: Side, frame: Rows) -> Side:
    """The side, with the other side's d if it names no budget. A method without a budget stays without."""
    rows = side.rows(_counted(frame))
    if other.d is None or side.d is not None or rows["d"].isna().all():
        return side
    if not (rows["d"] == other.d).any():
        raise UsageError(
            f"--pair: {side.label} has no cell at d={other.d}, which {other.label} names: write its d= too"
        )
    return Side(side.name, side.method, side.options, other.d)


def _methods(frame: Rows) -> list[Side]:
    """The methods of a frame."""
    rows = frame[["name", "method", "options"]].drop_duplicates(["method", "options"])
    return [Side(str(name), str(method), str(options)) for name, method, options in rows.itertuples(index=False)]


def _found(text: str, frame: Rows) -> list[Side]:
    """The methods of a run that a side of a pair may mean, by their name, or by method and options.

    An option that a record lacks has its default. If a method has exactly the options that are written, no other
    method is meant.
    """
    rows = _counted(frame)
    by_name = [side for side in _methods(rows) if side.name == text]
    if by_name:
        return by_name
    name, written = parts(text)
    wanted = _options(written or "")
    d = wanted.pop("d", None)
    if (d is not None and not d.isdecimal()) or not all(wanted.values()):  # a text that was split at another sign
        return []
    of_method = rows[rows["method"] == short_name(name)]
    of_method = of_method if d is None else of_method[of_method["d"] == int(d)]
    sides = [Side(side.name, side.method, side.options, None if d is None else int(d)) for side in _methods(of_method)]
    found = [side for side in sides if _has(_options(side.options), wanted)]
    # records leave out options with their defaults
    if not found and sides:
        from ..measure import defaults_of

        defaults = {key: str(value) for key, value in defaults_of(sides[0].method).items()}
        found = [side for side in sides if _has({**defaults, **_options(side.options)}, wanted)]
    exact = [side for side in found if _options(side.options).keys() <= wanted.keys()]
    return exact[:1] or found


def _options(text: str) -> dict[str, str]:
    """The options of ``k=v,k=v``, by name."""
    pieces = (piece.partition("=") for piece in text.split(",") if piece)
    return {key.strip(): value.strip() for key, _, value in pieces}


def _has(known: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(key in known and _means(value, known[key]) for key, value in wanted.items())


def _means(text: str, value: str) -> bool:
    """Whether the text of an option means a recorded value: 2 and 2e0 mean 2.0, true means True, null means None.

    >>> _means("2", "2.0"), _means("false", "False"), _means("null", "None"), _means("1", "True"), _means("max", "max")
    (True, True, True, False, True)
    """
    words = {"null": "none"}
    if words.get(text.lower(), text.lower()) == value.lower() in ("none", "true", "false"):
        return True
    try:
        return float(text) == float(value)
    except ValueError:
        return text == value
