"""Two frames merged line by line: what differs, by how much, and whether that may be chance. Call `compare` first.

A line has the windows, repeats and heads of one source, method, options, target, n, d and layer. A row of the result is
one line and one metric.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import UsageError, unknown
from ..frame import Rows
from ..frame.metric import CHOICE, METRICS
from ..frame.records.file import STATUSES
from ..frame.summary import numbers_of
from ..grammar.lists import spans
from .chance import EQUAL, LEVEL, holm, simultaneous
from .pairs import ARROW, related
from .samples import STATISTICS, Measured, Pairing, measured, paired
from .times import of_times
from .verdict import VERDICTS, Difference, verdict

TOLERANCE = 0.05  # the largest change that counts as equal, as a share of A's value
# the columns whose values the lines of a table share; p-values are corrected over the lines of a table
TABLE = ("source", "layer", "layers", "kv_head", "prefix", "backward", "n", "target", "format")
LINE = (*TABLE, "line", "d")  # the columns that tell lines apart
ONLY = {"A": "only in A", "B": "only in B"}  # verdicts on cells of one side
MISSING = "missing"  # the verdict on a requested line of one side
COSTS = ("visited_fraction", "scored", "kv_read", "cache_bytes")  # shown beside the values, and not tested
JUDGED = tuple(name for name in STATISTICS if " " not in name)  # statistics that a user may name


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    Attributes:
        rows: a row for each line and metric that are compared. A row without a metric stands for cells of one side
            alone: its verdict is ``missing`` if the line was requested and is not compared at all, else ``only in A``
            or ``only in B``. The missing rows are the first.
        notes: what a reader should know besides, a line each.

    The fields of a row:

    - ``paired``: how the rows of a line are paired. ``cells`` pairs rows of one window, head and seed. ``windows``
      pairs means over seeds at one window and head: so if the seeds differ, or if two methods are compared and one has
      several seeds. Null is no pairing: the frames share no window or no head.
    - ``a``, ``b``: the ``statistic`` of the pairs whose values are both finite. ``difference`` is ``b - a``, ``ratio``
      is ``b / a``.
    - ``test`` (see `attnprobe.judge.chance`): null if both sides have the same draws, so that nothing differs by
      chance. ``heads`` is a permutation test of pairs: a pair is a row, or for two methods a head in all windows.
      ``windows`` is Student's test of the windows' differences: if a window has one value, or values that depend on one
      another (shared draws, times, other numbers of seeds), or if several windows have fewer than six pairs.
      ``two samples`` is Welch's test, of runs that share no window.
    - ``p_adjusted``: ``p``, corrected by Holm's method over the ``tests`` lines of a table: one metric, source, layer,
      n and target. ``low``, ``high``: the interval of the difference with the same correction (see `simultaneous`).
    - ``verdict``: what `verdict` makes of all these.
    """

    rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)

    @property
    def frame(self) -> Rows:
        """The rows as a frame."""
        import pandas as pd

        frame = pd.DataFrame(self.rows).convert_dtypes()
        budgets = frame["d"].map("{:d}".format, na_action="ignore")
        return frame.assign(
            compared=frame["metric"].notna(), family=pd.NA, at=frame["name"] + (" d=" + budgets).fillna("")
        )

    @property
    def compared(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["metric"] is not None]

    @property
    def regressions(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["verdict"] == "worse"]

    @property
    def undecided(self) -> list[dict[str, Any]]:
        """The rows that chance leaves open, and the `missing` ones."""
        return [row for row in self.rows if row["verdict"] in ("undecided", MISSING)]

    @property
    def missing(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["verdict"] == MISSING]

    def in_words(self) -> str:
        """How many lines have each verdict, and how many are not compared."""
        counts = Counter(row["verdict"] for row in self.compared)
        parts = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]]
        if self.missing:
            parts.append(f"{len(self.missing)} not compared")
        lines = "1 line" if len(self.compared) == 1 else f"{len(self.compared)} lines"
        return ": ".join(filter(None, [f"{lines} compared", ", ".join(parts)]))


def compare(
    a: Rows,
    b: Rows,
    metrics: Sequence[str],
    tolerance: float = TOLERANCE,
    level: float = LEVEL,
    pairs: Sequence[str] = (),
    all_layers: bool = False,
    statistic: str | None = None,
) -> Comparison:
    """Compare frame B with frame A, line by line. With ``pairs``, compare methods of the frames with one another.

    Args:
        a, b: with the columns of `attnprobe.frame`, and two more. ``draws`` is a text that is equal for equal draws.
            ``shares`` is whether the heads of a cell share their draws, missing if that is not known. ``a`` and ``b``
            may be the same frame.
        metrics: metrics with a better direction. Times are rounds of kind ``time``, see `attnprobe.judge.times`.
        tolerance, level: as `verdict` takes them.
        pairs: as `related` takes them.
        all_layers: a line has all layers; a head of each layer is a head.
        statistic: one of `JUDGED`. By default the mean, or what `measured` takes if rounding decides the mean.

    Raises:
        UsageError: frames without a common line, or without a number or a changed status in one; an unknown pair, an
            impossible tolerance or level; with ``all_layers``, sides with different layers.

    >>> import pandas as pd
    >>> place = {"method": "x", "options": "", "name": "x", "n": 8, "d": 2, "layer": 0, "head": 0, "status": "ok"}
    >>> def frame(*values, **more):
    ...     rows = [{**place, "window": w, "key": str(w), "output_spectral": v} for w, v in enumerate(values)]
    ...     return pd.DataFrame(rows).assign(**more)
    >>> (row,) = compare(frame(1.0, 2.0), frame(2.0, 4.0), ["output_spectral"]).rows
    >>> [row[name] for name in ("a", "b", "difference", "se", "freedom", "paired", "verdict", "reason")]
    [1.5, 3.0, 1.5, 0.5, 1.0, 'cells', 'undecided', 'p = 0.20 over 2 windows']
    """
    _refuse_impossible(tolerance, level, statistic)
    one_run = a is b
    a = ready(a, all_layers)
    b = a if one_run else ready(b, all_layers)
    if pairs:
        a, b = related(a, b, pairs)
        _refuse_unmeasured(metrics, a, b)
    lines_a, lines_b = _lines(a), _lines(b)
    requested_a, requested_b = _requested(lines_a), _requested(lines_b)
    common = requested_a & requested_b
    if not common:
        raise _nothing_in_common(bool(pairs))
    if all_layers:
        _refuse_other_layers(common, lines_a, lines_b)
    drafts: list[dict[str, Any]] = []
    alone: list[dict[str, Any]] = []
    for key in sorted({**lines_a, **lines_b}, key=_order(lines_a, lines_b)):
        left, right = lines_a.get(key), lines_b.get(key)
        pairing = None
        if left is not None and right is not None:
            pairing = paired(left, right, bool(pairs))
            drafts += drafts_of(pairing, metrics, statistic, key in common)
        alone += _alone(left, right, pairing, key in requested_a | requested_b, bool(pairs))
    # a table of missing values and equal statuses would look like agreement
    if not any(draft["tells"] for draft in drafts):
        raise UsageError(f"no line of both has a number in {' or '.join(metrics)}: nothing to compare")
    rows = judged(drafts, tolerance, level) + alone
    rows.sort(key=lambda row: row["verdict"] != MISSING)  # a stable sort: the missing rows go to the top
    return Comparison(rows, _notes(rows, level))


def _refuse_impossible(tolerance: float, level: float, statistic: str | None) -> None:
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise UsageError(f"tolerance={tolerance:g}: choose a share of A's value, such as 0.05")
    if not 0 < level < 1:
        raise UsageError(f"level={level:g}: choose a probability above 0 and below 1, such as 0.05")
    if statistic is not None and statistic not in JUDGED:
        raise unknown("statistic", statistic, JUDGED)


def _requested(lines: Mapping[Any, Rows]) -> set[Any]:
    """The lines that a command asked for, and not attnprobe alone, such as V-Mean."""
    return {key for key, rows in lines.items() if rows["requested"].fillna(True).any()}


def _alone(
    left: Rows | None, right: Rows | None, pairing: Pairing | None, requested: bool, pairs: bool
) -> list[dict[str, Any]]:
    """The rows of the result for those cells of a line that only one side has.

    Args:
        left, right: the line in A and in B. pairing: the cells that are compared, None if a side lacks the line.
        requested: whether a command asked for the line. pairs: whether two methods are compared.
    """
    rows = []
    for side, line, compared in (("A", left, pairing and pairing.a), ("B", right, pairing and pairing.b)):
        if line is None:
            continue
        rest = line if compared is None else line[~line["number"].isin(compared["number"])]
        if not len(rest):
            continue
        if pairing is None and requested:
            verdict_of, reason = MISSING, _only_on(side, pairs)
        else:
            verdict_of, reason = ONLY[side], cells_in_words(rest)
        count = rest["key"].nunique()
        rows.append({**_place(rest), **_blank(), "cells": count, "verdict": verdict_of, "reason": reason})
    return rows


def ready(frame: Rows, all_layers: bool) -> Rows:
    """The frame with every column that a comparison reads."""
    import pandas as pd

    absent = {
        name: pd.NA for name in (*TABLE, "seed", "head", "draws", "shares", "window", "reason") if name not in frame
    }
    frame = frame.assign(**absent)
    # the lower bound is no method that could get better or worse
    frame = frame[frame["method"].notna() & (frame["method"] != "lower-bound")]
    defaults = {
        "requested": True,
        "reference": False,
        "name": frame["method"],
        "line": frame["method"] + ":" + frame["options"],
    }
    frame = frame.assign(**{name: value for name, value in defaults.items() if name not in frame})
    # seeds as text: some have more than 64 bits
    seeds = frame["seed"].map(lambda seed: "" if pd.isna(seed) else str(seed)).astype(object)
    # -1 stands for "none", because rows are merged by these columns, and a missing value equals no other
    windows = frame["window"].astype("Int64").fillna(-1)
    layers = frame["layer"].astype("Int64")
    heads = frame["head"].astype("Int64").fillna(-1)
    # a cell that failed has no heads, and they stay missing (see `paired`)
    heads = heads.where((heads >= 0) | (frame["status"] == "ok"), pd.NA)
    frame = frame.assign(seed=seeds, window=windows, of_layer=layers, head=heads, layer=layers.fillna(-1))
    # objects, because texts of arrow are slow to read one by one
    return frame.assign(status=frame["status"].astype(object), together=all_layers, number=range(len(frame)))


def _lines(frame: Rows) -> dict[tuple[Any, ...], Rows]:
    """The rows of each line, by the line's values of the columns `LINE`."""
    import pandas as pd

    names = [name for name in LINE if not (name == "layer" and frame["together"].any())]
    groups = frame.groupby(names, sort=False, dropna=False)
    # None in the keys, because a missing value of pandas equals nothing, and the keys of two frames must meet
    return {tuple(None if pd.isna(value) else value for value in key): rows for key, rows in groups}


def _order(*frames: Mapping[tuple[Any, ...], Rows]) -> Any:
    """The order of lines: by source, layer, n and target, then as the frames list their methods, then by d."""
    seen: dict[Any, int] = {}  # sources and methods, numbered as they come
    ranks: dict[Any, tuple[Any, ...]] = {}
    for lines in frames:
        for key, rows in lines.items():
            first = rows.iloc[0]
            numbers = [-1 if number is None else number for number in (_value(first, "layer"), _value(first, "n"))]
            source, line = (seen.setdefault((name, str(first[name])), len(seen)) for name in ("source", "line"))
            texts = [str(first[name]) for name in ("target", "layers", "kv_head", "prefix", "backward", "format")]
            d = -1 if key[-1] is None else key[-1]
            ranks.setdefault(key, (source, *numbers, *texts, line, d))
    return ranks.__getitem__


def _value(series: Any, name: str) -> Any:
    """A value of a row of a frame; None if it is missing."""
    import pandas as pd

    return None if pd.isna(series[name]) else series[name]


def drafts_of(pairing: Pairing, metrics: Sequence[str], statistic: str | None, counts: bool) -> list[dict[str, Any]]:
    """Rows of the result before their verdicts: one for each metric that a side has, or one if the status decides.

    Args:
        counts: whether the line may be the only one that is compared: both commands asked for it.

    Returns a dictionary for each row: the ``row``, ``of``, its `Difference`, ``table``, the table whose p-values are
    corrected together, and ``tells``, whether there is something to compare.
    """
    a, b = pairing.a, pairing.b
    statuses = [STATUSES[max(map(STATUSES.index, side["status"]))] for side in (a, b)]
    worse, better = (_changed(pairing, fall) for fall in (True, False))
    bad = [name for name, side in (("A", a), ("B", b)) if _spoiled(side)]
    timed = "noise_floor" in a
    drafts: list[dict[str, Any]] = []
    for name in metrics:
        found = of_times(name, pairing) if timed else measured(METRICS[name], pairing, statistic)
        absent = found.a is None and found.b is None
        # a metric that neither side has gives a row only to carry a status, and one row is enough for that
        if absent and (drafts or statuses == ["ok", "ok"]):
            continue
        row = _compared_row(name, pairing, found) | {
            "status_a": statuses[0],
            "status_b": statuses[1],
            "bad": ", ".join(bad) or None,
            "reason": f"{statuses[0]} in both" if absent else None,
        }
        lost = f"no finite value in {found.few} places where A has one" if found.few else ""
        gained = f"a finite value in {found.more} places where A has none" if found.more else ""
        difference = Difference(
            METRICS[name],
            found.a,
            found.b,
            found.evidence,
            statistic=found.statistic,
            worse=worse or lost,
            better=better or gained,
            marked=bad[0] if len(bad) == 1 and name != "bad_rows" else "",
        )
        told = not absent or bool(difference.worse or difference.better)
        drafts.append({"row": row, "of": difference, "tells": counts and told, "table": _table(row)})
    return drafts


def _compared_row(metric: str, pairing: Pairing, found: Measured) -> dict[str, Any]:
    """A row of the result with its place, its numbers and its counts, without statuses and verdict."""
    a, b = pairing.a, pairing.b
    return {
        **_place(a),
        **_blank(),
        **_numbers(found.a, found.b),
        **_costs(a, b),
        "metric": metric,
        "statistic": found.statistic,
        "paired": pairing.kind,
        "cells": max(a["key"].nunique(), b["key"].nunique()),
        "values": found.values,
        "windows": max(side["window"].nunique() for side in (a, b)),
        "heads": max(len({*zip(side["layer"], side["head"], strict=True)}) for side in (a, b)),
        "seeds_a": _seeds(a),
        "seeds_b": _seeds(b),
        # only a test of heads needs independent draws
        "unknown_draws": _unknown_draws(a, b) if found.evidence.test == "heads" else None,
    }


def judged(drafts: Sequence[Mapping[str, Any]], tolerance: float, level: float) -> list[dict[str, Any]]:
    """The rows with their verdicts; p-values are corrected over the lines of each table."""
    p_of_tables: dict[Any, dict[int, float]] = {}  # of each table, by the number of the draft
    for number, draft in enumerate(drafts):
        if draft["of"].evidence.p is not None:
            p_of_tables.setdefault(draft["table"], {})[number] = draft["of"].evidence.p
    corrected = {
        number: p for p_of in p_of_tables.values() for number, p in zip(p_of, holm(p_of.values()), strict=True)
    }
    rows = []
    for number, draft in enumerate(drafts):
        row, difference = draft["row"], draft["of"]
        evidence, p, tests = difference.evidence, corrected.get(number), len(p_of_tables.get(draft["table"], ()))
        # a decided difference has a sign, with which its interval agrees
        sign = 0 if p is None or p > level or row["difference"] is None else int(math.copysign(1, row["difference"]))
        interval = simultaneous(evidence, level, tests, sign)
        outcome, reason = verdict(replace(difference, p=p, tests=tests, interval=interval), tolerance, level)
        low, high = interval or (None, None)
        tested = {"test": evidence.test, "freedom": evidence.freedom, "se": evidence.se, "p": evidence.p}
        tested |= {"p_adjusted": p, "tests": tests if p is not None else None, "low": low, "high": high}
        rows.append({**row, **tested, "verdict": outcome, "reason": reason or row["reason"]})
    return rows


def _table(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The table of a row, whose p-values are corrected together."""
    return row["metric"], *(str(row.get(name)) for name in TABLE)


def _place(rows: Rows) -> dict[str, Any]:
    """The fields of a row of the result that say which line it is of."""
    import pandas as pd

    names = ("name", "method", "target", "n", "d", "weights", "scale_inputs", *TABLE, "options", "reference")
    first: dict[str, Any] = {name: rows[name].array[0] if name in rows else None for name in names}
    known: dict[str, Any] = {name: None if pd.isna(value) else value for name, value in first.items()}
    # numbers of numpy have no JSON form
    fields = {name: value.item() if hasattr(value, "item") else value for name, value in known.items()}
    layers = sorted(int(layer) for layer in rows["of_layer"].dropna().unique())
    together = bool(rows["together"].any())
    pair = ARROW in str(first["name"])
    return {
        **fields,
        "name": str(first["name"]),
        "method": str(first["name"] if pair else first["method"]),
        "options": "" if pair else fields["options"],
        "layer": None if together or not layers else layers[0],
        "layers_together": spans(layers) if together else None,
    }


def _blank() -> dict[str, Any]:
    """The fields of a row that has no comparison, all None."""
    numbers = ("metric", "statistic", "a", "b", "difference", "ratio", "low", "high", "se", "freedom", "test", "p")
    counts = ("p_adjusted", "tests", "paired", "cells", "values", "windows", "heads", "seeds_a", "seeds_b")
    states = ("status_a", "status_b", "bad", "unknown_draws", "verdict", "reason")
    return dict.fromkeys((*numbers, *counts, *states, *(f"{name}_{side}" for name in COSTS for side in "ab")))


def _numbers(a: float | None, b: float | None) -> dict[str, float | None]:
    """The two values, with their difference and their ratio."""
    if a is None or b is None:
        return {"a": a, "b": b}
    # the ratio of values of different signs means nothing
    return {"a": a, "b": b, "difference": b - a, "ratio": b / a if a and a * b >= 0 else None}


def _costs(a: Rows, b: Rows) -> dict[str, float | None]:
    """The mean costs of both sides, None where a side does not state one."""
    found: dict[str, float | None] = {}
    for name in COSTS:
        for side, rows in (("a", a), ("b", b)):
            values = numbers_of(rows, name)
            known = values[~np.isnan(values)]
            found[f"{name}_{side}"] = float(known.mean()) if len(known) else None
    return found


def _seeds(rows: Rows) -> str:
    """The seeds of rows in words."""
    seeds = sorted({int(seed) for seed in rows["seed"] if seed})
    return spans(seeds)


def _unknown_draws(*sides: Rows) -> str | None:
    """The methods of which it is not known whether their heads share draws."""
    names = dict.fromkeys(name for side in sides for name in side.loc[side["shares"].isna(), "method"])
    return ", ".join(names) or None


def doubts_of_draws(names: Iterable[str | None]) -> list[str]:
    """Notes on methods whose heads are tested as independent, though that is not known of their draws."""
    return [
        f"{name}: if its heads share random numbers, p is too small; then give it an option share_heads=true"
        for name in dict.fromkeys(names)
        if name
    ]


def _spoiled(rows: Rows) -> bool:
    """Whether a head has bad rows that no guard replaced."""
    if "bad_rows" not in rows:
        return False
    unguarded = rows if "guarded_rows" not in rows else rows[rows["guarded_rows"].isna()]
    return bool((unguarded["bad_rows"] > 0).fillna(False).any())


def _changed(pairing: Pairing, fall: bool) -> str:
    """How many cells have another status in B than in A, in words; empty if none has.

    Args:
        fall: count the cells whose status got worse; else those whose status got better.
    """
    if len({*pairing.a["status"], *pairing.b["status"]}) == 1:
        return ""
    # the cells of a pairing are compared one by one; else the worst status of all cells is
    on = [name for name in pairing.on if name != "head"] if pairing.kind == "cells" else []
    worst_a, worst_b = (_worst(side, on) for side in (pairing.a, pairing.b))
    suffixes = ("_a", "_b")
    if on:
        both = worst_a.merge(worst_b, on=on, suffixes=suffixes)
    else:
        both = worst_a.merge(worst_b, how="cross", suffixes=suffixes)
    moved = both["rank_b"] - both["rank_a"]
    changed = both[moved > 0 if fall else moved < 0]
    if changed.empty:
        return ""
    largest = changed.loc[moved[changed.index].abs().idxmax()]
    share = f" in {len(changed)} of {len(both)} cells" if len(both) > 1 else ""
    text = f"{largest['status_a']} in A, {largest['status_b']} in B{share}"
    if fall and isinstance(largest["reason_b"], str):
        text += f": {largest['reason_b']}"
    return text


def _worst(rows: Rows, on: list[str]) -> Rows:
    """The row with the worst status of each cell, or without columns that tell cells apart, of all cells."""
    ranked = rows[[*on, "status", "reason"]].assign(rank=rows["status"].map(STATUSES.index))
    ranked = ranked.sort_values("rank", kind="stable")
    return ranked.drop_duplicates(on, keep="last") if on else ranked.tail(1)


def cells_in_words(rows: Rows) -> str:
    """Windows, seeds, layers and heads of rows in words: ``windows 1-2; seed 0; heads 0-2, 7-8``."""
    parts = []
    names = {"window": "window", "seed": "seed"} | ({"of_layer": "layer"} if rows["together"].any() else {})
    for name, word in (names | {"head": "head"}).items():
        numbers = sorted({int(value) for value in rows[name].dropna() if str(value) not in ("", "-1")})
        if numbers:
            plural = word if len(numbers) == 1 else f"{word}s"
            parts.append(f"{plural} {spans(numbers)}")
    return "; ".join(parts)


def _only_on(side: str, pairs: bool) -> str:
    """The reason of a missing line; the sides of a pair are two methods, and not two runs."""
    if pairs:
        return f"only on the {'left' if side == 'A' else 'right'}"
    return ONLY[side]


def _nothing_in_common(pairs: bool) -> UsageError:
    if pairs:
        return UsageError("no pair has both methods at the same target, n, d and layer: nothing to compare")
    hint = "--pair NAME=NAME compares two methods, NAME:d=32=NAME:d=64 two budgets"
    return UsageError(
        "A and B have no requested method at the same options, target, n, d and layer: nothing to compare; " + hint
    )


def _refuse_other_layers(common: Iterable[Any], *frames: Mapping[Any, Rows]) -> None:
    """Refuse lines over all layers whose sides have different layers."""
    for key in common:
        layers = [sorted(set(lines[key]["of_layer"].dropna().astype(int))) for lines in frames]
        if layers[0] != layers[1]:
            first = frames[0][key].iloc[0]
            name = str(first["name"]) + ("" if _value(first, "d") is None else f" d={first['d']}")
            sides = ("on the left", "on the right") if ARROW in name else ("in A", "in B")
            has = " and ".join(f"{spans(numbers)} {side}" for numbers, side in zip(layers, sides, strict=True))
            raise UsageError(f"--all-layers: {name} has layers {has}; measure it in the same layers")


def _refuse_unmeasured(metrics: Sequence[str], *sides: Rows) -> None:
    """Refuse a metric that the methods on one side of the pairs do not have."""
    for name in metrics:
        for side in sides:
            if (side["status"] == "ok").any() and not (name in side and side[name].notna().any()):
                methods = ", ".join(dict.fromkeys(side["method"]))
                raise UsageError(f"--metric {name}: no value of {methods}; compare another metric")


def _notes(rows: Sequence[Mapping[str, Any]], level: float) -> list[str]:
    """Notes on draws that heads may share, methods that use all keys, and a false *worse* in any of several tables."""
    notes = doubts_of_draws(row["unknown_draws"] for row in rows)
    of_choice = [row for row in rows if row["metric"] in CHOICE and row["verdict"] in ("worse", "better")]
    dense = dict.fromkeys(row["metric"] for row in of_choice if 1 - max(row["a"] or 0, row["b"] or 0) < EQUAL)
    if dense:
        why = "a method that uses every key has 1, whatever its weights; compare tv, js or kl"
        notes.append(f"{', '.join(dense)}: {why}")
    tested = [row for row in rows if row["p_adjusted"] is not None]
    tables = len(set(map(_table, tested)))
    if tables < 2:
        return notes
    # a false *worse* is one side of a two-sided test; the bound adds the tables (Bonferroni)
    share = 100 * min(1.0, tables * level / 2)
    way_out = f"--level {level / tables:.2g}"
    if len({row["layer"] for row in tested} - {None}) > 1:
        way_out += " or --all-layers"
    return [
        *notes,
        f"p is corrected in each of {tables} tables: with no change, a false *worse* somewhere has up to {share:.3g} % "
        f"chance; {way_out} lowers it",
    ]
