"""Sentences on the best method against the next one, from the test behind bold cells, and on methods left out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from ..files import Fields
from ..records.file import LOWER_BOUND
from .methods import ROUNDING, YARDSTICKS, competes, is_sound, label, mark, within_budget
from .numbers import significant
from .results import in_words
from .table import Best, Tested

OF_THE_BEST = {"worse": "better", "better": "worse"}  # of the verdict on the other method


def duels(
    rows: Sequence[Any],
    best: Best,
    tested: Tested | None,
    words: str,
    place: Callable[[Any], Hashable] = lambda row: None,
    said: Callable[[Any], bool] = lambda row: True,
) -> list[str]:
    """Sentences on the best method and the next one at each budget, and on what takes no part.

    Rows with a mark or beyond their budget take no part. Yardsticks do if there are two methods in all. Two errors of
    rounding are not compared.

    Args:
        words: the mean of the column. place: what rivals share besides d. said: whether a best row has a sentence.
    """
    if tested is None:
        return []
    sound = [row for row in rows if competes(row)]
    two = len({label(row) for row in sound}) == 2

    def key(row: Any) -> Hashable | None:
        return (row["d"], place(row)) if two or row["method"] not in YARDSTICKS else None

    parts: dict[str, list[str]] = {}
    every = best.leaders(sound, key, tested)
    for leaders in every:
        at, compared = next(iter(leaders.compared.items()), (0, None))
        first, other = sound[leaders.places[0]], sound[at]
        if compared is None or compared["difference"] is None or max(compared["a"], compared["b"]) <= ROUNDING:
            continue
        if said(first):
            parts.setdefault(f"{label(first)} against {label(other)}", []).append(_of_the_best(compared))
    lines = [f"{pair}, by the {words}: {'; '.join(at)}" for pair, at in parts.items()]
    doubts = unproven(row for leaders in every for row in leaders.compared.values() if row is not None)
    return [*lines, *doubts, *left_out(rows)]


def _of_the_best(other: Fields) -> str:
    """The comparison of another method with the best one, as one of the best with it."""
    at = "" if other["d"] is None else f" at d = {other['d']}"
    ends = [] if other["low"] is None else [-other["high"], -other["low"]]
    interval = f", 95 % interval [{' – '.join(significant(end, 3) for end in ends)}]" if ends else ""
    p = ""
    if other["p"] is not None:
        tests = other["tests"]
        corrected = f", {significant(other['p_adjusted'], 2)} after Holm over {tests} pairs" if tests > 1 else ""
        p = f", p = {significant(other['p'], 2)}{corrected}"
    verdict = OF_THE_BEST.get(other["verdict"], other["verdict"])
    return f"{verdict}{at} (difference {significant(-other['difference'], 3)}{interval}{p})"


def unproven(compared: Iterable[Fields]) -> list[str]:
    """Sentences on the methods that pairs test, though it is not known whether their heads share draws."""
    names = dict.fromkeys(name for row in compared for name in row["unknown_draws"] or ())
    return [
        f"{name}: if its heads share random numbers, p is too small; then give it an option share_heads=true"
        for name in names
    ]


def left_out(rows: Sequence[Any]) -> list[str]:
    """Sentences on the methods with rows that do not compete, and why; none of a single method."""
    methods = [row for row in rows if not row.get("reference") and row["method"] != LOWER_BOUND]
    labels = {label(row) for row in methods}
    if len(labels) == 1:
        return []
    why = {
        "where they have bad rows": [row for row in rows if mark(row) == "!"],
        "where they use more than d": [row for row in rows if is_sound(row) and not within_budget(row)],
        "as yardsticks": [row for row in methods if is_sound(row) and row["method"] in YARDSTICKS and len(labels) > 2],
    }
    named = {words: list(dict.fromkeys(map(label, of))) for words, of in why.items()}
    return [f"Not ranked {words}: {in_words(names)}." for words, names in named.items() if names]
