"""The best method against the next one, from the test behind bold cells, and methods that are left out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from ..files import Fields
from ..records.file import LOWER_BOUND
from .long import Row
from .methods import ROUNDING, YARDSTICKS, competes, is_sound, label, mark, within_budget
from .numbers import significant
from .results import in_words
from .table import Best, Column, Table, Tested, table_of

OF_THE_BEST = {"worse": "better", "better": "worse"}  # of the verdict on the other method


def duels(
    rows: Sequence[Any],
    best: Best,
    tested: Tested | None,
    place: Callable[[Any], Hashable],
    said: Callable[[Any], bool] = lambda row: True,
) -> tuple[list[Row], list[str]]:
    """The best method and the next one at each place and budget, and a sentence on each method of unknown draws.

    Rows with a mark or beyond their budget take no part. Yardsticks do if there are two methods in all. Two errors of
    rounding are not compared. Their p-values are corrected together.

    Args:
        place: what rivals share besides d, as ``layer`` of the duel; None is all layers. said: whether a best row has
            a duel.
    """
    if tested is None:
        return [], []
    sound = [row for row in rows if competes(row)]
    two = len({label(row) for row in sound}) == 2

    def key(row: Any) -> Hashable | None:
        return (row["d"], place(row)) if two or row["method"] not in YARDSTICKS else None

    every = best.leaders(sound, key, tested)
    found = []
    for leaders in every:
        at, compared = next(iter(leaders.compared.items()), (0, None))
        first, other = sound[leaders.places[0]], sound[at]
        if compared is None or compared["difference"] is None or max(compared["a"], compared["b"]) <= ROUNDING:
            continue
        if said(first):
            found.append(_duel(first, other, place(first), compared))
    return found, unproven(row for leaders in every for row in leaders.compared.values() if row is not None)


def _duel(first: Row, other: Row, place: Any, compared: Fields) -> Row:
    """The comparison of another method with the best one, as one of the best with it."""
    known = compared["low"] is not None
    return {
        **{name: first.get(name) for name in ("source", "n", "target", "prefix")},
        "layer": place,
        **{name: first[name] for name in ("d", "method", "options")},
        "next": {name: other[name] for name in ("method", "options")},
        "verdict": OF_THE_BEST.get(compared["verdict"], compared["verdict"]),
        "difference": -compared["difference"],
        "low": -compared["high"] if known else None,
        "high": -compared["low"] if known else None,
        **{name: compared[name] for name in ("p", "p_adjusted", "tests")},
    }


def _interval(duel: Row) -> str:
    return "" if duel["low"] is None else f"[{significant(duel['low'], 3)} – {significant(duel['high'], 3)}]"


DUELS: tuple[Column, ...] = (
    Column("layer", lambda duel: "all" if duel["layer"] is None else str(duel["layer"]), key=True),
    Column("d", "{d}", key=True),
    Column("best", label, "the method with the smallest mean", short="best method"),
    Column(
        "next", lambda duel: label({**duel, **duel["next"]}), "the one with the second smallest", short="next method"
    ),
    Column("verdict", "{verdict}", "on the best; compare --pair tests one pair alone"),
    Column("best\n− next", lambda duel: significant(duel["difference"], 3), "of their means", spare=1),
    Column("interval\n95 %", _interval, "of best − next, of this pair alone", spare=2, short="interval"),
    Column("p of\none row", lambda duel: significant(duel["p"], 2), "not corrected", spare=5),
    Column(
        "p\n(Holm)",
        lambda duel: significant(duel["p_adjusted"], 2),
        "corrected over the pairs of the best methods with all others, of a layer",
        short="p",
        spare=-1,
    ),
    Column("pairs", "{tests}", "over which p is corrected", spare=4),
)


def duels_table(caption: str, found: Sequence[Row], doubts: Sequence[str]) -> list[Table]:
    """The table of duels; none without a duel."""
    return [table_of(caption, found, DUELS, doubts)] if found else []


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
