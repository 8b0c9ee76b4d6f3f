"""The best method against the next one, from the test behind bold cells, and methods that are left out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..files import Fields
from ..records.file import LOWER_BOUND
from .long import Row
from .methods import ROUNDING, YARDSTICKS, competes, is_sound, label, mark, statistic, within_budget
from .numbers import cell_text, formatted, significant
from .results import in_words
from .table import Best, Column, Table, Tested, table_of

OF_THE_BEST = {"worse": "better", "better": "worse"}  # of the verdict on the other method


def _duel(first: Row, other: Row, compared: Fields) -> Row:
    """The comparison of another method with the best one, as one of the best with it."""
    low, high = (None if (end := compared[name]) is None else -end for name in ("high", "low"))
    return {
        **_side(first, compared["a"]),
        "next": _side(other, compared["b"]),
        "verdict": OF_THE_BEST.get(compared["verdict"], compared["verdict"]),
        "difference": -compared["difference"],
        "low": low,
        "high": high,
        **{name: compared[name] for name in ("statistic", "test", "freedom", "p", "p_adjusted", "tests")},
    }


def _side(row: Row, value: float) -> Row:
    costs = {name: statistic(row, name, "mean") for name in COSTS}
    return {"method": row["method"], "options": row["options"], "value": value, **costs}


def with_interval(row: Row) -> str:
    """A difference with its interval, where it has one; a narrow terminal has it below."""
    limits = "" if row["low"] is None else f" [{significant(row['low'], 3)} – {significant(row['high'], 3)}]"
    return significant(row["difference"], 3) + limits


def tested_by(row: Row) -> str:
    """The test of a difference, with its degrees of freedom. That of ``pairs`` is called by what is paired."""
    return "heads" if row["test"] == "pairs" else cell_text(["{test}", ", {freedom:.3g} d.f."], row)


def _costs(name: str, form: str) -> Callable[[Row], str]:
    """The text of a cost of both, where they differ."""

    def text(duel: Row) -> str:
        both = [side[name] for side in (duel, duel["next"])]
        known = ["?" if cost is None else formatted(cost, form) for cost in both]
        return ", ".join(known) if known[0] != known[1] else ""

    return text


COSTS = {"visited_fraction": ("visited", "share"), "kv_read": ("keys read", "3")}  # their columns, and their form
P_ALONE = Column("p of\none row", lambda row: significant(row["p"], 2), "before Holm's correction", spare=5)
VERDICT = "of the best against the next; compare --pair tests two methods that you chose before you saw any number"
P = Column("p by\nHolm", lambda row: significant(row["p_adjusted"], 2), short="p")
DUELS: tuple[Column, ...] = (
    Column("layer", lambda duel: "all" if duel["layer"] is None else str(duel["layer"]), key=True),
    Column("d", "{d}", key=True),
    Column("best", label, "the method with the smallest mean", short="best method", key=True),
    Column(
        "next",
        lambda duel: label({**duel, **duel["next"]}),
        "the one with the second smallest",
        short="next method",
        key=True,
    ),
    Column("verdict", "{verdict}", VERDICT, spare=-1),
    Column(
        "best − next\n[95 %]",
        with_interval,
        "the difference of their means, and its interval, not corrected for other rows",
        short="best − next",
    ),
    P_ALONE,
    replace(
        P,
        meaning="after Holm's correction for all comparisons in a layer: of the best at each d with every other method",
    ),
    Column(
        "test",
        tested_by,
        "heads: a permutation test, which exchanges both methods in each head; windows: Student's",
        spare=4,
    ),
    *(
        Column(
            f"{words}\nbest, next",
            _costs(name, form),
            "of the best and of the next, where they differ",
            short=f"{words} by both",
            spare=3,
        )
        for name, (words, form) in COSTS.items()
    ),
)


def best_methods(
    groups: Iterable[Sequence[Any]],
    best: Best,
    tested: Tested | None,
    words: Callable[[Any], str],
    place: Callable[[Any], Hashable],
    said: Callable[[Any], bool] = lambda row: True,
) -> tuple[list[Row], list[Table]]:
    """The best method against the next one at each place and budget, as rows and as a table of each group of rows.

    Rows with a mark or beyond their budget take no part. Yardsticks do if there are two methods in all. Two errors of
    rounding are not compared. The p-values of a group are corrected together.

    Args:
        words: the caption of a group's table, from its first row.
        place: what rivals share besides d, as ``layer`` of a row; None is all layers. said: whether a best row has one.
    """
    every: list[Row] = []
    tables = []
    for group in groups if tested is not None else ():
        sound = [row for row in group if competes(row)]
        two = len({label(row) for row in sound}) == 2

        def key(row: Any, two: bool = two) -> Hashable | None:
            return (row["d"], place(row)) if two or row["method"] not in YARDSTICKS else None

        found, rivals = [], best.leaders(sound, key, tested)
        for leaders in rivals:
            at, compared = next(iter(leaders.compared.items()), (0, None))
            first, other = sound[leaders.places[0]], sound[at]
            if compared is None or compared["difference"] is None or max(compared["a"], compared["b"]) <= ROUNDING:
                continue
            if said(first):
                place_of = {name: first.get(name) for name in ("source", "n", "target", "prefix", "d")}
                duel = _duel(first, other, compared)
                found.append({**place_of, "layer": place(first), "metric": best.metric, **duel})
        doubts = unproven(row for leaders in rivals for row in leaders.compared.values() if row is not None)
        every += found
        tables += [table_of(f"best against next, by mean {words(group[0])}", found, DUELS, doubts)] if found else []
    return every, tables


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
