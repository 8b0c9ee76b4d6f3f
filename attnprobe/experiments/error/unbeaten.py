"""The methods that no other beats at their cost, as tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from ...figures.methods import OWN, text_label
from ...files import Fields
from ...tables.long import Row, long_rows, mean_interval
from ...tables.methods import NEAR_COST, ROUNDING, YARDSTICKS, caption, family, is_fragile, is_sound, label, statistic
from ...tables.numbers import significant
from ...tables.results import at_budget
from ...tables.table import Column, Table, gathered, grouped_by, method_key, table_of
from .columns import METHOD_COLUMNS
from .record import SHAPE

if TYPE_CHECKING:
    from .record import ErrorRecord

Errors = Mapping[tuple[Any, ...], float]  # of a row, by layer, window and head
MANY = 5  # requested methods from which on the tables are shown
CLEARLY = 0.995  # below 1 in two digits
COST_ROUNDING = 1e-9  # relative, of a mean over heads
LEAST = 1e-300  # an error of 0, which has no logarithm
MOST_TIES = 3  # methods that are named beside the one that they tie with; the user's own always are
RESIDUAL, OUTPUT = "residual_error", "output_spectral_relative"
WORDS = {
    RESIDUAL: (
        "residual error",
        "size of a head's error beside the residual stream, which predicts the damage to a model better than "
        "‖E‖₂ / ‖BV‖₂, by which best against next ranks",
    ),
    OUTPUT: ("‖E‖₂ / ‖BV‖₂", "the relative error of the output"),
}
COSTS = {"visited_fraction": "entries visited, without scores that only choose keys", "kv_read": "keys and values read"}
HEADINGS = {"visited_fraction": "visited", "kv_read": "keys read"}  # their columns
AXES = {  # of a metric: statistic, factor, label
    "visited_fraction": ("mean", 100.0, "entries visited, % of queries times keys"),
    "kv_read": ("mean", 1.0, "rows of K and V read for a query"),
}
DEAR = "no cheaper than exact attention with the scores that choose keys"
SOFTMAX = "softmax"  # the method that computes exact attention
MOST_ABSENT = 2  # methods without a cost that are named


def judged_by(rows: Sequence[Row]) -> str:
    """The metric that methods are judged by: the residual error where it was measured, else the output error."""
    return RESIDUAL if any(statistic(row, RESIDUAL, "median") is not None for row in rows) else OUTPUT


def exact_share(n: int, causal: bool) -> float:
    """The share of the n x n entries that exact attention computes."""
    return (1 + 1 / n) / 2 if causal else 1.0


class Frontier(NamedTuple):
    """The rows of one (source, n, target) that no other beats at a cost, by the metric that judges all its rows."""

    cost: str
    metric: str
    best: list[Row]
    every: list[Row]


def frontiers(rows: Sequence[Row], records: Sequence[ErrorRecord]) -> list[Frontier]:
    """The methods that no other beats (see `unbeaten`), for each (source, n, target) and each cost.

    There are none for fewer than `MANY` methods. Yardsticks, rows with a mark, medians that are not reproducible,
    errors of rounding alone, and methods no cheaper than exact attention do not compete.
    """
    found = []
    requested = {method_key(record) for record in records if record.get("requested")}
    for group in grouped_by(rows, "source", "n", "target") if len(requested) >= MANY else ():
        metric = judged_by(group)
        errors = errors_of(records, metric)
        for cost in COSTS:
            limit = exact_share(group[0]["n"], is_causal(records)) if cost == "visited_fraction" else math.inf
            cheaper = [row for row in group if _cost(row, cost) < (1 - COST_ROUNDING) * limit]
            best = unbeaten([row for row in cheaper if _competes(row, metric)], cost, metric, errors)
            if not all(row["reference"] for row in best):
                found.append(Frontier(cost, metric, best, group))
    return found


def is_causal(records: Sequence[ErrorRecord]) -> bool:
    return any(record["source"].get("causal") for record in records)


def frontier_tables(found: Sequence[Frontier], causal: bool) -> list[Table]:
    """A table of each frontier. A note names the methods that do not state the cost."""
    tables = []
    for one in found:
        absent = [*chain(*unstated(one.every, [one.cost]).values())]
        names = ", ".join(absent) if len(absent) <= MOST_ABSENT else f"{len(absent)} methods"
        dear = [at_budget(row, label) for row in one.best if _chooses_dearly(row, causal)]
        notes = [f"{DEAR}: {', '.join(dear)}"] if dear else []
        notes += [f"left out, as they do not state this cost: {names}"] if names else []
        heading = f"unbeaten in {COSTS[one.cost]}, by median {WORDS[one.metric][0]} · {caption(one.every)}"
        tables.append(table_of(heading, one.best, frontier_columns(one.metric, one.cost), notes))
    return tables


def frontier_rows(found: Iterable[Frontier]) -> list[Row]:
    """The lines of frontiers as data: place, cost, error, ratio to the line above, and all methods not told apart."""
    return [
        {
            **{name: row[name] for name in ("source", "layer", "n", "target")},
            **_method(row),
            "by": one.cost,
            "cost": _cost(row, one.cost),
            "metric": one.metric,
            **{name: statistic(row, one.metric, name) for name in ("median", "p10", "p90")},
            "ratio": row["ratio"] if row["ratio"]["mean"] else None,
            "not_told_apart": [{**_method(tied), "ratio": middle} for tied, middle in row["ties"]],
        }
        for one in found
        for row in one.best
    ]


def _method(row: Row) -> Row:
    return {name: row[name] for name in ("method", "options", "d")}


def _chooses_dearly(row: Fields, causal: bool) -> bool:
    """Whether the scores of a row that choose its keys and those of its output are as many as exact attention's."""
    share = _cost(row, "visited_fraction") + _cost(row, "scored") / row["n"]
    return share >= (1 - COST_ROUNDING) * exact_share(row["n"], causal)


def _competes(row: Fields, metric: str) -> bool:
    """Whether a row is of no yardstick and has a sound median, which is no rounding error of exact attention."""
    sound = (is_sound(row) and row["method"] not in YARDSTICKS) or row["method"] == "vmean"
    known = _median(row, metric) is not None and not is_fragile(row, metric, "median")
    return sound and known and (_median(row, OUTPUT) or 0.0) > ROUNDING


def unbeaten(rows: Sequence[Fields], cost: str, metric: str, errors: Mapping[tuple[Any, ...], Errors]) -> list[Row]:
    """The rows by rising cost, each with a smaller error than the one before.

    An error is smaller if the 95 % interval of the ratio (see `ratio`) lies below 1. Costs within 10 % are equal: a row
    gives way to a later one of such a cost, which is not left out itself. ``ratio`` of a row is that to the row before.
    ``ties`` has the rows after it that the test does not tell from it, each with the ratio of its error to this row's.
    """
    best: list[Row] = []
    priced = [row for row in rows if _cost(row, cost) or (row["reference"] and cost == "visited_fraction")]
    for row in sorted(priced, key=lambda row: (_cost(row, cost), _median(row, metric))):
        low, middle, high = ratio(errors, row, best[-1]) if best else (0.0, None, 0.0)
        if high < 1:
            best.append({**row, "ties": []})
        elif low <= 1:
            best[-1]["ties"].append((row, middle))
    kept: list[Row] = []
    for row in reversed(best):
        if not kept or _cost(kept[0], cost) > NEAR_COST * _cost(row, cost):
            kept.insert(0, row)
    for row, above in zip(kept, [None, *kept], strict=False):
        low, middle, high = ratio(errors, row, above) if above else (0.0, None, 0.0)
        row["ratio"] = {"low": low, "mean": middle, "high": high}
    return kept


def ratio(errors: Mapping[tuple[Any, ...], Errors], row: Fields, other: Fields) -> tuple[float, float | None, float]:
    """The geometric mean ratio of two rows' errors in the same layers, windows and heads, in its 95 % interval.

    The interval is Student's over heads, each with its mean logarithm over windows, as the ratio of a head is much the
    same in each window. Of a single head it is over windows. Rows without a common place have no mean, and an interval
    of all numbers.
    """
    ours, theirs = errors[_key(row)], errors[_key(other)]
    logs: dict[tuple[Any, ...], list[float]] = {}
    for layer, window, head in ours.keys() & theirs.keys():
        place = layer, window, head
        logs.setdefault((layer, head), []).append(math.log(max(ours[place], LEAST) / max(theirs[place], LEAST)))
    if not logs:
        return 0.0, None, math.inf
    means = [math.fsum(of_head) / len(of_head) for of_head in logs.values()]
    low, high = mean_interval(means if len(means) > 1 else sum(logs.values(), [])) or (-math.inf, math.inf)
    return math.exp(low), math.exp(math.fsum(means) / len(means)), math.exp(min(high, 700.0))


def errors_of(records: Sequence[ErrorRecord], metric: str) -> dict[tuple[Any, ...], Errors]:
    """The errors of each row by layer, window and head: means over repeats."""
    values: dict[tuple[Any, ...], dict[tuple[Any, ...], list[float]]] = {}
    for head in long_rows(records, SHAPE):
        value = head.get(metric)
        if value is not None:
            of_row = values.setdefault(_key(head), {})
            of_row.setdefault((head["layer"], head["window"], head["head"]), []).append(value)
    return {key: {place: sum(x) / len(x) for place, x in of_row.items()} for key, of_row in values.items()}


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["source"], row["n"], row["target"], *method_key(row), row["d"]


def _cost(row: Fields, cost: str) -> float:
    return statistic(row, cost, "mean") or 0.0


def _median(row: Fields, metric: str) -> float | None:
    return statistic(row, metric, "median")


def _of_above(row: Row) -> str:
    digits = 2 if (row["ratio"]["high"] or 0) < CLEARLY else 3  # an end below 1 does not read 1.0
    low, middle, high = (significant(row["ratio"][name], digits) for name in ("low", "mean", "high"))
    return f"{middle} [{low} – {high}]" if middle else ""


def _ties(row: Row) -> str:
    own = [tie for tie in row["ties"] if family(tie[0]) == OWN]
    others = [tie for tie in row["ties"] if family(tie[0]) != OWN]
    room = max(MOST_TIES - len(own), 0)
    named = [f"{at_budget(tied, label)} ({significant(middle, 2)})" for tied, middle in [*own, *others[:room]]]
    return ", ".join([*named, *([f"{len(others) - room} more"] if len(others) > room else [])])


def frontier_columns(metric: str, cost: str = "visited_fraction") -> list[Column]:
    """The columns of the tables of unbeaten methods at a cost, whose column every width keeps."""
    heading, meaning = WORDS[metric]
    of, known = f"metrics[{metric}]", {column.name: column for column in METHOD_COLUMNS}
    return [
        Column("method", label, key=True),
        Column("d", "{d}", key=True),
        *(
            replace(known[name], spare=0 if name == HEADINGS[cost] else spare)
            for name, spare in (("visited", 3), ("scored", 4), ("keys read", 3))
        ),
        Column(
            f"{heading}\nmedian [p10 – p90]",
            f"{{{of}[median]:3}} [{{{of}[p10]:3}} – {{{of}[p90]:3}}]",
            f"over layers, heads, windows: {meaning}",
            short=heading,
        ),
        Column(
            "ratio to the line above,\ngeometric mean [95 %]",
            _of_above,
            "geometric mean of the ratios of single heads; interval over heads",
            short="ratio",
        ),
        Column(
            "not told apart\n(ratio)",
            _ties,
            "cost more than this line, less than the next, if any; the 95 % interval of their ratio to it holds 1",
            spare=1,
            short="not told apart",
        ),
    ]


def unstated(rows: Sequence[Fields], costs: Iterable[str]) -> dict[str, list[str]]:
    """The methods that state no cost, and those that do not state one of ``costs`` that others state, by its words."""
    methods = [row for row in rows if not (row.get("reference") or row["method"] == SOFTMAX)]
    stated = {text_label(group[0]): set(chain(*map(prices, group))) for group in gathered(methods, text_label)}
    lacking = {"cost": [label for label, known in stated.items() if not known]}
    for name in filter(set(chain(*stated.values())).__contains__, dict.fromkeys(costs)):
        words = COSTS[name].partition(",")[0]
        lacking[words] = [label for label, known in stated.items() if known and name not in known]
    return lacking


def prices(row: Fields) -> dict[str, float]:
    known = {name: statistic(row, name, of) for name, (of, _, _) in AXES.items()}
    return {name: AXES[name][1] * value for name, value in known.items() if value}
