"""Two runs side by side as tables of strings, for every format that people read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..frame.metric import in_words
from ..grammar.lists import spans
from ..judge.junit import Case
from ..tables.console import Header
from ..tables.duels import P_ALONE, P, tested_by, with_interval
from ..tables.labels import layer_in_words, sources_words
from ..tables.long import Row
from ..tables.methods import label
from ..tables.numbers import formatted, method_label, short_hashes, significant
from ..tables.results import TOLERANCE
from ..tables.table import Column, Table, gathered, joined, table_of
from ..tables.view import View
from .chance import LEVEL
from .costs import CHOOSING, NONE, differing, stated
from .pairs import ARROW
from .verdicts import FIELDS, MISSING, ONLY

TITLE = "Comparison of methods"
ON_SIDE = {ONLY["A"]: "only on the left", ONLY["B"]: "only on the right"}  # of the arrow of a pair
TESTS = {
    "pairs": "p, heads: the permutation test of the differences of heads and windows. It is about these texts, and "
    "assumes that no heads share draws",
    "windows": "p, windows: Student's test of the differences of windows, one more than its degrees of freedom. It is "
    "about texts like these, and assumes normal differences",
    "two samples": "p, two samples: Welch's test of window means, as the runs share no window",
}


def comparison_view(
    rows: Sequence[Row], header: Header, sources: Sequence[Mapping[str, Any]] = (), runs: Sequence[str] = ()
) -> View:
    """The view of a comparison of runs, of which these are the facts of sources and the paths."""
    pairs = [row["method"] for row in rows if ARROW in row["method"]]
    names = list(dict.fromkeys(Path(run).name for run in runs))
    if len(names) < 2:  # one run, or two folders of one name
        names = list(dict.fromkeys(map(str, runs)))
    of_runs = f"{names[0]} (A) and {names[1]} (B)" if len(names) > 1 else ""
    what = " of ".join(filter(None, [TITLE, of_runs])) if pairs else f"Comparison of {of_runs or 'runs'}"
    title = ", ".join(filter(None, [what, sources_words(sources)]))
    stem = "-".join(dict.fromkeys([*(Path(run).name for run in runs), *pairs]))
    limits = {name: header.source[name] for name in ("tolerance", "level") if name in header.source}
    tables, legend = comparison_tables(rows), comparison_legend(rows, **limits)
    return View("compare", header, rows, tables, legend, COMPARED, FIELDS, title=title, stem=stem)


def comparison_tables(rows: Sequence[Row]) -> list[Table]:
    """Tables of requested rows that one run lacks, then of each metric, then of other cells that only one run has.

    There is one for each source, layer, n and target. The notes are the reasons behind verdicts.
    """
    alone = gathered([row for row in rows if row["metric"] is None], _caption)
    lone = [table_of(_caption(group[0]), group, [*PLACE, *ALONE]) for group in alone]
    first = sum(group[0]["verdict"] == MISSING for group in alone)
    tables = lone[:first]
    metrics = dict.fromkeys(row["metric"] for row in rows if row["metric"] is not None)
    for group in gathered([row for row in rows if row["metric"] is not None], _caption):
        difference = WITH_INTERVAL if any(row["low"] is not None for row in group) else DIFFERENCE
        corrected = any(row["p"] != row["p_adjusted"] for row in group)
        columns = [*PLACE, *_value_columns(group), difference, *(TESTED if corrected else TESTED[1:])]
        columns += [COSTS[name] for name in differing(group)]
        notes = [*_reasons(group, named=len(metrics) > 1), *_at_equal_cost(group)]
        tables.append(table_of(_caption(group[0]), group, columns, notes))
    return tables + lone[first:]


def _reasons(rows: Sequence[Row], named: bool) -> list[str]:
    """The reasons behind verdicts; budgets of one method with one reason share a line. ``named``: say the metric."""
    budgets: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row["reason"]:
            key = method_label(row), row["verdict"], row["reason"]
            budgets.setdefault(key, []).append("" if row["d"] is None else str(row["d"]))
    at = {key: f" d={', '.join(every)}" if all(every) else "" for key, every in budgets.items()}
    of = f" in {in_words(rows[0]['metric'])}" if named else ""
    return [f"{key[0]}{at[key]} is {key[1]}{of}: {key[2]}" for key in budgets]


def _at_equal_cost(rows: Sequence[Row]) -> list[str]:
    """Notes on costs that differ: the options that compare budgets of about equal cost, or that none were measured."""
    named = [row for row in rows if row["at_equal_cost"] not in (None, NONE)]
    pairs = dict.fromkeys(row["at_equal_cost"] for row in named)
    notes = [f"nearer in cost: {' '.join(f'--pair {pair}' for pair in pairs)}"] if pairs else []
    for group in gathered([row for row in rows if row["at_equal_cost"] == NONE], method_label):
        at = ", ".join(str(row["d"]) for row in group)
        notes.append(f"no pair of equal cost was measured: {method_label(group[0])} d={at}")
    return notes


def comparison_legend(rows: Sequence[Row], tolerance: float = TOLERANCE, level: float = LEVEL) -> list[str]:
    """The meaning of the columns and verdicts."""
    compared = [row for row in rows if row["metric"] is not None]
    if any(row["test"] == "rounds" for row in compared) or all(row["windows"] is None for row in rows):
        return [
            "A, B: medians of the rounds, of memory and products the one number measured.",
            f"worse, better: beyond the tolerance, {tolerance:g} of A, of times also beyond the spreads of both runs' "
            "rounds, of memory beyond 1 MiB.",
            "undecided: beyond the tolerance, within the spreads.",
        ]
    paired = any(ARROW in row["method"] for row in compared)
    of_model = any("layers" in row for row in compared)
    sides = "A, B: left and right of the arrow" if paired else "A, B: the runs"
    judged = "the right method, B" if paired else "run B"
    places = "windows" if of_model else "heads, windows"
    one = {row["statistic"] for row in compared} <= {None, "mean"}
    parts = [f"worse, better: {judged}, beyond tolerance {tolerance:g}, at level {level:g}."]
    if any(row["verdict"] == "undecided" for row in compared):
        parts.append("undecided: chance may make or hide the difference, or the better side alone has bad rows.")
    parts.append(f"{sides}, {'means' if one else 'by the statistic'} over {places}, seeds.")
    if not one:
        parts.append(
            "statistic: not the mean where rounded rows carry it. A median here is of means over seeds, and a test of "
            "windows has its mean over windows; tables of error have the median of all at once, so signs may differ."
        )
    tests = [text for test, text in TESTS.items() if any(row["test"] == test for row in compared)]
    if tests:
        lacking = [row for row in compared if row["test"] is not None and row["low"] is None]
        medians = [row for row in lacking if row["statistic"] == "median"]
        why = ["a median is judged"] * bool(medians)
        why += ["the heads are too few for one"] * (len(lacking) > len(medians))
        parts += [f"No interval: {' or '.join(why)}."] if why else []
        parts.append("p: two-sided, by Holm's method over the rows of the table.")
        if any(row["low"] is not None for row in compared):
            parts.append(f"interval: {100 * (1 - level):g} %, of this row alone, not corrected.")
        units = "heads in all windows" if paired else "heads and windows"
        parts += [f"{test.replace('heads and windows', units)}." for test in tests]
    if any(row["test"] is None and row["verdict"] != "undecided" for row in compared):
        parts.append("Rows without p: equal inputs and draws, or equal values, so nothing differs by chance.")
    return parts


def missing_lines(rows: Iterable[Row]) -> list[str]:
    """A line for each method, or pair, that was requested and stands in one run, or on one side, only; with budgets.

    >>> place = {"method": "mss", "options": {}, "reason": "only in A"}
    >>> missing_lines([{**place, "d": 8}, {**place, "d": 16}])
    ['mss d=8, 16 is only in A']
    >>> missing_lines([{**place, "d": None}])
    ['mss is only in A']
    """
    budgets: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        known = budgets.setdefault((method_label(row), _sided(row, "reason")), {})
        if row["d"] is not None:
            known[str(row["d"])] = None
    names = {key: f"{key[0]} d={', '.join(d)}" if d else key[0] for key, d in budgets.items()}
    return [f"{name} is {where}" for (_, where), name in names.items()]


def alone_lines(rows: Iterable[Row]) -> list[str]:
    """A line on the cells of each run, or of each side of a pair, that are in no mean."""
    alone = gathered([row for row in rows if row["verdict"] in ONLY.values()], lambda row: _sided(row, "verdict"))
    counts = [(_sided(group[0], "verdict"), sum(row["cells"] for row in group)) for group in alone]
    return [f"in no mean, because {where}: {count} cell{'s' * (count > 1)}" for where, count in sorted(counts)]


def _sided(row: Row, name: str) -> str:
    """A text of a row; the runs that it names are the sides of a pair."""
    text = str(row[name] or "")
    return ON_SIDE.get(text, text) if ARROW in row["method"] else text


def comparison_line(row: Row) -> str:
    """A row as a line of a log."""
    return f"{_named(row)} ({_caption(row)}): {_change(row)}"


def _change(row: Row) -> str:
    a, b = (significant(row[side]) or "no value" for side in ("a", "b"))
    ends = f"{a} on the left, {b} on the right" if ARROW in row["method"] else f"{a} became {b}"
    why = f" ({row['reason']})" if row["reason"] else ""
    return f"{ends}{why}"


def comparison_cases(rows: Iterable[Row], strict: bool = False) -> list[Case]:
    """A test case for each compared or missing row. A worse one failed; the undecided are skipped.

    Args:
        strict: undecided and missing rows failed.
    """
    cases = []
    for row in rows:
        verdict, subject = row["verdict"], row["metric"] or MISSING
        name = f"{_named(row)} ({_caption(row)})"
        if verdict in ("same", "better"):
            cases.append(Case(subject, name))
        elif verdict not in ONLY.values():
            why = _change(row) if row["metric"] else _sided(row, "reason")
            cases.append(Case(subject, name, why, verdict, skipped=verdict != "worse" and not strict))
    return cases


def _named(row: Row) -> str:
    return method_label(row) + ("" if row["d"] is None else f" d={row['d']}")


def _caption(row: Row) -> str:
    one = "method" if ARROW in row["method"] else "run"
    alone = f"requested, but in one {one} only" if row["verdict"] == MISSING else f"cells of one {one} alone"
    facts = (
        f"{name.replace('_', ' ')} {short_hashes(str(fact))}"
        for name, fact in row["source"].items()
        if fact is not None
    )
    target = "" if "layers" in row else f"target {row['target']}"
    return joined(in_words(row["metric"]) if row["metric"] else alone, _layers(row), f"n = {row['n']}", target, *facts)


def _layers(row: Row) -> str:
    """The layer of a row; of a whole model those that were replaced, and the prompt before decoding."""
    if together := row.get("layers_together"):
        return layer_in_words(spans(together)) + " together" * (len(together) > 1)
    if "layers" not in row:
        return f"layer {row['layer']}"
    layers = "all replaced layers" if row["layer"] is None else f"layer {row['layer']} alone"
    head = f", KV head {row['kv_head']}" if "kv_head" in row else ""
    return joined(f"{layers}{head}", f"decoding behind {row['prefix']} tokens" if "prefix" in row else "")


def _value_columns(rows: Sequence[Row]) -> Sequence[Column]:
    """The columns of both sides, whose headings say the statistic if all rows have one."""
    statistics = {row["statistic"] for row in rows if row["windows"] is not None}  # bench has one number a cell
    if not statistics:
        return VALUES[1:]
    one = statistics.pop()
    if statistics or one not in ("mean", "median"):
        return VALUES
    sides = [replace(side, heading=f"{one}\nof {side.name}", short=side.name) for side in SIDES]
    return [*sides, *VALUES[1 + len(SIDES) :]]


PLACE: tuple[Column, ...] = (
    Column("method", label, key=True),
    Column("verdict", lambda row: _sided(row, "verdict")),
    Column("d", "{d}", key=True),
)
SIDES = Column("A", lambda row: significant(row["a"])), Column("B", lambda row: significant(row["b"]))
VALUES: tuple[Column, ...] = (
    Column("statistic", "{statistic}", spare=3, key=True),
    *SIDES,
    Column("B / A", lambda row: significant(row["ratio"]), spare=2),
)
TESTED: tuple[Column, ...] = (
    P_ALONE,
    replace(P, spare=-1),
    Column("test", lambda row: "" if row["p_adjusted"] is None else tested_by(row), spare=4),
)
DIFFERENCE = Column("B − A", with_interval, short="difference", spare=-1)
WITH_INTERVAL = replace(DIFFERENCE, heading="B − A\n[interval]")


def _costs(name: str, form: str) -> Callable[[Row], str]:
    """The text of a cost of both sides, with ? where one is unknown."""

    def text(row: Row) -> str:
        return " → ".join("?" if cost is None else formatted(cost, form) for cost in stated(row, name) or ())

    return text


COST = "cost of A → of B; ?: a method that states none"
COSTS = {
    "visited_fraction": Column("visited\nof n_q·n_k", _costs("visited_fraction", "share"), COST, short="visited"),
    CHOOSING: Column("scored\na row", _costs(CHOOSING, "3"), COST, short="scored"),
    "kv_read": Column("keys\nread", _costs("kv_read", "3"), COST),
    "cache_bytes": Column("kept\nMiB", _costs("cache_bytes", "3MiB"), COST, short="kept"),
}
ALONE: tuple[Column, ...] = (Column("cells", "{cells}"), Column("which", lambda row: _sided(row, "reason")))
COMPARED = (*PLACE, *VALUES, DIFFERENCE, *TESTED, *COSTS.values(), *ALONE)
