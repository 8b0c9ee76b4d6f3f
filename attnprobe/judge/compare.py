"""Two frames merged line by line: what differs, by how much, and whether that may be chance. `compare` is the door.

A line has the windows, repeats and heads of one source, method, options, target, n, d and layer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import UsageError, unknown
from ..frame import Rows
from ..frame.metric import CHOICE, METRICS
from ..frame.records.file import STATUSES
from ..grammar.lists import spans
from .chance import EQUAL, LEVEL, holm, simultaneous
from .pairs import ARROW, related
from .samples import STATISTICS, Pairing, measured, paired
from .times import of_times
from .verdict import VERDICTS, Difference, verdict

TOLERANCE = 0.05
# lines that are tested together
TABLE = ("source", "layer", "layers", "kv_head", "prefix", "backward", "n", "target", "format", "arithmetic")
LINE = (*TABLE, "line", "d")
ONLY = {"A": "only in A", "B": "only in B"}
MISSING = "missing"
COSTS = ("visited_fraction", "scored", "kv_read", "cache_bytes")
JUDGED = tuple(name for name in STATISTICS if " " not in name)  # statistics that a user may name


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    Attributes:
        rows: one for each line and metric; then those of lines that one side lacks, with the verdict ``missing`` if the
            line was requested and is not compared at all, else ``only in A`` or ``only in B``.
        notes: what a reader should know besides, a line each.
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
        parts = [f"{counts[name]} {name}" for name in VERDICTS if counts[name]]
        parts += [f"{len(self.missing)} not compared"] if self.missing else []
        count = len(self.compared)
        return ": ".join(filter(None, [f"{count} line{'s' * (count != 1)} compared", ", ".join(parts)]))


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
    """Compare frame B with frame A, line by line; with ``pairs``, methods of them with one another.

    The rows of a line are paired (``paired``): ``cells`` are rows of one window, head and seed; ``windows`` are means
    over seeds at one window and head, where seeds differ or two methods are compared of which one has several; null is
    neither. ``a`` and ``b`` are the ``statistic`` of the pairs where both values are finite, ``difference`` is ``b -
    a``, ``ratio`` is ``b / a``. The test (see `attnprobe.judge.chance`) is

    - null where both sides have the same draws, so that nothing differs by chance;
    - ``heads``, a permutation test of pairs: of rows where draws differ, of heads in all windows of two methods;
    - ``windows``, Student's test of the windows' differences, where a window has one value or values that depend on one
      another (shared draws, times, other numbers of seeds), or several windows have fewer than six pairs;
    - ``two samples``, Welch's test, of runs that share no window.

    ``p_adjusted`` is corrected by Holm's method over the ``tests`` lines of a table: one metric, source, layer, n and
    target. ``low`` and ``high`` are the interval of the difference with the same correction (see `simultaneous`), and
    `verdict` makes the verdict of all these.

    Args:
        a, b: with the columns of `attnprobe.frame`, ``draws``, a text that is equal where draws are, and ``shares``,
            whether the heads of a cell share their draws; missing where that is not known. One frame may be both.
        metrics: those with a better direction. Times are rounds of kind ``time``, see `attnprobe.judge.times`.
        all_layers: a line has all layers; a head of each layer is a head.
        statistic: one of `JUDGED`; None is the mean, or what `measured` takes where rounding decides it.

    Raises:
        UsageError: no line of both, none with a number or another status; an unknown pair, an impossible tolerance or
            level; with ``all_layers``, sides with different layers.

    >>> import pandas as pd
    >>> place = {"method": "x", "options": "", "name": "x", "n": 8, "d": 2, "layer": 0, "head": 0, "status": "ok"}
    >>> def frame(*values, **more):
    ...     rows = [{**place, "window": w, "key": str(w), "output_spectral": v} for w, v in enumerate(values)]
    ...     return pd.DataFrame(rows).assign(**more)
    >>> (row,) = compare(frame(1.0, 2.0), frame(2.0, 4.0), ["output_spectral"]).rows
    >>> [row[name] for name in ("a", "b", "difference", "se", "freedom", "paired", "verdict", "reason")]
    [1.5, 3.0, 1.5, 0.5, 1.0, 'cells', 'undecided', 'p = 0.20 over 2 windows']
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise UsageError(f"tolerance={tolerance:g}: choose a share of A's value, such as 0.05")
    if not 0 < level < 1:
        raise UsageError(f"level={level:g}: choose a probability above 0 and below 1, such as 0.05")
    if statistic is not None and statistic not in JUDGED:
        raise unknown("statistic", statistic, JUDGED)
    one_run = a is b
    a = ready(a, all_layers)
    b = a if one_run else ready(b, all_layers)
    if pairs:
        a, b = related(a, b, pairs)
        _refuse_unmeasured(metrics, a, b)
    lines = _lines(a), _lines(b)
    drafts: list[dict[str, Any]] = []
    alone: list[dict[str, Any]] = []
    requested = [{key for key, rows in of.items() if rows["requested"].fillna(True).any()} for of in lines]
    common = requested[0] & requested[1]
    if not common:
        raise _nothing_in_common(bool(pairs))
    _refuse_other_layers(common, lines, all_layers)
    for key in sorted({**lines[0], **lines[1]}, key=_order(*lines)):
        ours, others = (of.get(key) for of in lines)
        pairing = None
        if ours is not None and others is not None:
            pairing = paired(ours, others, bool(pairs))
            drafts += drafts_of(pairing, metrics, statistic, key in common)
        wanted = key in requested[0] | requested[1]
        for name, rows, used in (("A", ours, pairing and pairing.a), ("B", others, pairing and pairing.b)):
            if rows is None:
                continue
            left = rows if used is None else rows[~rows["number"].isin(used["number"])]
            if len(left):
                missing = pairing is None and wanted
                verdict_of = MISSING if missing else ONLY[name]
                why = _alone(name, bool(pairs)) if missing else cells_in_words(left)
                alone.append(
                    {**_place(left), **_blank(), "cells": left["key"].nunique(), "verdict": verdict_of, "reason": why}
                )
    if not any(draft["tells"] for draft in drafts):
        raise UsageError(f"no line of both has a number in {' or '.join(metrics)}: nothing to compare")
    rows = judged(drafts, tolerance, level) + alone
    rows.sort(key=lambda row: row["verdict"] != MISSING)  # these first
    return Comparison(rows, _notes(rows, level))


def ready(frame: Rows, all_layers: bool) -> Rows:
    """The frame with every column that a comparison reads."""
    import pandas as pd

    absent = {
        name: pd.NA for name in (*TABLE, "seed", "head", "draws", "shares", "window", "reason") if name not in frame
    }
    frame = frame.assign(**absent)
    frame = frame[frame["method"].notna() & (frame["method"] != "lower-bound")]
    usual = {
        "requested": True,
        "reference": False,
        "name": frame["method"],
        "line": frame["method"] + ":" + frame["options"],
    }
    frame = frame.assign(**{name: value for name, value in usual.items() if name not in frame})
    seeds = frame["seed"].map(lambda seed: "" if pd.isna(seed) else str(seed))
    heads = frame["head"].astype("Int64").fillna(-1)
    layers = frame["layer"].astype("Int64")
    frame = frame.assign(seed=seeds, window=frame["window"].astype("Int64").fillna(-1), of_layer=layers)
    frame = frame.assign(head=heads.where((heads >= 0) | (frame["status"] == "ok"), pd.NA), layer=layers.fillna(-1))
    return frame.assign(together=all_layers, number=range(len(frame)))


def _lines(frame: Rows) -> dict[tuple[Any, ...], Rows]:
    """The rows of each line, by its place."""
    import pandas as pd

    names = [name for name in LINE if not (name == "layer" and frame["together"].any())]
    groups = frame.groupby(names, sort=False, dropna=False)
    return {tuple(None if pd.isna(part) else part for part in key): rows for key, rows in groups}


def _order(*lines: Mapping[tuple[Any, ...], Rows]) -> Any:
    """Lines by source, layer, n and target, then as the frames list their methods, then by d."""
    first: dict[Any, int] = {}
    places: dict[Any, tuple[Any, ...]] = {}
    for of in lines:
        for key, rows in of.items():
            one = rows.iloc[0]
            numbers = [-1 if number is None else number for number in (_value(one, "layer"), _value(one, "n"))]
            source, line = (first.setdefault((name, str(one[name])), len(first)) for name in ("source", "line"))
            rest = [str(one[name]) for name in ("target", "layers", "kv_head", "prefix", "backward", "format")]
            places.setdefault(key, (source, *numbers, *rest, line, -1 if key[-1] is None else key[-1]))
    return places.__getitem__


def _value(row: Any, name: str) -> Any:
    import pandas as pd

    return None if pd.isna(row[name]) else row[name]


def drafts_of(pairing: Pairing, metrics: Sequence[str], statistic: str | None, counts: bool) -> list[dict[str, Any]]:
    """A row before its verdict for each metric that either side has, or one row if the status decides."""
    a, b = pairing.a, pairing.b
    statuses = [STATUSES[max(map(STATUSES.index, side["status"]))] for side in (a, b)]
    worse, better = (_changed(pairing, fall) for fall in (True, False))
    bad = [name for name, side in (("A", a), ("B", b)) if _spoiled(side)]
    drafts: list[dict[str, Any]] = []
    for name in metrics:
        timed = "noise_floor" in a
        found = of_times(name, pairing) if timed else measured(METRICS[name], pairing, statistic)
        absent = found.a is None and found.b is None
        if absent and (drafts or statuses == ["ok", "ok"]):
            continue
        row = {**_place(a), **_blank(), **_numbers(found.a, found.b), **_costs(a, b)}
        row |= {
            "metric": name,
            "statistic": found.statistic,
            "paired": pairing.kind,
            "cells": max(a["key"].nunique(), b["key"].nunique()),
            "values": found.values,
            "windows": max(side["window"].nunique() for side in (a, b)),
            "heads": max(side[["layer", "head"]].drop_duplicates().shape[0] for side in (a, b)),
            "seeds_a": _seeds(a),
            "seeds_b": _seeds(b),
            "status_a": statuses[0],
            "status_b": statuses[1],
            "bad": ", ".join(bad) or None,
            "unknown_draws": _unknown_draws(a, b) if found.evidence.test == "heads" else None,
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


def judged(drafts: Sequence[Mapping[str, Any]], tolerance: float, level: float) -> list[dict[str, Any]]:
    """The rows with their verdicts; p-values are corrected over the lines of each table."""
    tables: dict[Any, dict[int, float]] = {}
    for number, draft in enumerate(drafts):
        if draft["of"].evidence.p is not None:
            tables.setdefault(draft["table"], {})[number] = draft["of"].evidence.p
    corrected = {n: p for of in tables.values() for n, p in zip(of, holm(of.values()), strict=True)}
    rows = []
    for number, draft in enumerate(drafts):
        row, of = draft["row"], draft["of"]
        evidence, p, tests = of.evidence, corrected.get(number), len(tables.get(draft["table"], ()))
        sign = 0 if p is None or p > level or row["difference"] is None else int(math.copysign(1, row["difference"]))
        interval = simultaneous(evidence, level, tests, sign)
        found, reason = verdict(replace(of, p=p, tests=tests, interval=interval), tolerance, level)
        low, high = interval or (None, None)
        tested = {"test": evidence.test, "freedom": evidence.freedom, "se": evidence.se, "p": evidence.p}
        tested |= {"p_adjusted": p, "tests": tests if p is not None else None, "low": low, "high": high}
        rows.append({**row, **tested, "verdict": found, "reason": reason or row["reason"]})
    return rows


def _table(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["metric"], *(str(row.get(name)) for name in TABLE)


def _place(rows: Rows) -> dict[str, Any]:
    """Where a line stands."""
    import pandas as pd

    first = rows.iloc[0]
    names = ("target", "n", "d", "weights", "scale_inputs", *TABLE, "options", "reference")
    place: dict[str, Any] = {name: None if name not in first or pd.isna(first[name]) else first[name] for name in names}
    place = {name: value.item() if hasattr(value, "item") else value for name, value in place.items()}
    layers = sorted(int(layer) for layer in rows["of_layer"].dropna().unique())
    together = bool(rows["together"].any())
    pair = ARROW in str(first["name"])
    return {
        "name": str(first["name"]),
        "method": str(first["name"] if pair else first["method"]),
        **place,
        "options": "" if pair else place["options"],
        "layer": None if together or not layers else layers[0],
        "layers_together": spans(layers) if together else None,
    }


def _blank() -> dict[str, Any]:
    """The fields of a row without a comparison."""
    numbers = ("metric", "statistic", "a", "b", "difference", "ratio", "low", "high", "se", "freedom", "test", "p")
    counts = ("p_adjusted", "tests", "paired", "cells", "values", "windows", "heads", "seeds_a", "seeds_b")
    states = ("status_a", "status_b", "bad", "unknown_draws", "verdict", "reason")
    return dict.fromkeys((*numbers, *counts, *states, *(f"{name}_{side}" for name in COSTS for side in "ab")))


def _numbers(a: float | None, b: float | None) -> dict[str, float | None]:
    """The two values, with their difference and ratio; the ratio of a change of sign would mean nothing."""
    if a is None or b is None:
        return {"a": a, "b": b}
    return {"a": a, "b": b, "difference": b - a, "ratio": b / a if a and a * b >= 0 else None}


def _costs(a: Rows, b: Rows) -> dict[str, float | None]:
    """The mean costs of both sides, None where a side does not state one."""
    found: dict[str, float | None] = {}
    for name in COSTS:
        for side, rows in (("a", a), ("b", b)):
            known = name in rows and rows[name].notna().any()
            found[f"{name}_{side}"] = float(rows[name].mean()) if known else None
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
    left = rows if "guarded_rows" not in rows else rows[rows["guarded_rows"].isna()]
    return bool((left["bad_rows"] > 0).fillna(False).any())


def _changed(pairing: Pairing, fall: bool) -> str:
    """How many cells have a worse status in B than in A, or without ``fall`` a better one, in words; empty if none."""
    on = [name for name in pairing.on if name != "head"] if pairing.kind == "cells" else []
    names = [*on, "status", "reason"]
    sides = [side[names].assign(rank=side["status"].map(STATUSES.index)) for side in (pairing.a, pairing.b)]
    worst = [
        side.sort_values("rank", kind="stable").drop_duplicates(on, keep="last")
        if on
        else side.sort_values("rank", kind="stable").tail(1)
        for side in sides
    ]
    both = worst[0].merge(worst[1], how="inner" if on else "cross", suffixes=("_a", "_b"), **({"on": on} if on else {}))
    moved = both["rank_b"] - both["rank_a"]
    changed = both[moved > 0 if fall else moved < 0]
    if changed.empty:
        return ""
    one = changed.loc[(changed["rank_b"] - changed["rank_a"]).abs().idxmax()]
    share = f" in {len(changed)} of {len(both)} cells" if len(both) > 1 else ""
    reason = one["reason_b"]
    return f"{one['status_a']} in A, {one['status_b']} in B{share}" + (
        f": {reason}" if fall and isinstance(reason, str) else ""
    )


def cells_in_words(rows: Rows) -> str:
    """Windows, seeds, layers and heads of rows in words: ``windows 1-2; seed 0; heads 0-2, 7-8``."""
    parts = []
    names = {"window": "window", "seed": "seed"} | ({"of_layer": "layer"} if rows["together"].any() else {})
    for name, word in (names | {"head": "head"}).items():
        found = sorted({int(value) for value in rows[name].dropna() if str(value) not in ("", "-1")})
        parts += [f"{word}{'s' * (len(found) > 1)} {spans(found)}"] if found else []
    return "; ".join(parts)


def _alone(side: str, pairs: bool) -> str:
    return f"only on the {'left' if side == 'A' else 'right'}" if pairs else ONLY[side]


def _nothing_in_common(pairs: bool) -> UsageError:
    if pairs:
        return UsageError("no pair has both methods at the same target, n, d and layer: nothing to compare")
    hint = "--pair NAME=NAME compares two methods, NAME:d=32=NAME:d=64 two budgets"
    what = "requested method at the same options, target, n, d and layer"
    return UsageError(f"A and B have no {what}: nothing to compare; {hint}")


def _refuse_other_layers(common: Iterable[Any], lines: Sequence[Mapping[Any, Rows]], all_layers: bool) -> None:
    """Refuse lines over all layers whose sides have different layers."""
    for key in common if all_layers else ():
        layers = [sorted(set(of[key]["of_layer"].dropna().astype(int))) for of in lines]
        if layers[0] != layers[1]:
            one = lines[0][key].iloc[0]
            name = str(one["name"]) + ("" if _value(one, "d") is None else f" d={one['d']}")
            sides = ("on the left", "on the right") if ARROW in name else ("in A", "in B")
            has = " and ".join(f"{spans(of)} {side}" for of, side in zip(layers, sides, strict=True))
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
    judged = [row for row in rows if row["metric"] in CHOICE and row["verdict"] in ("worse", "better")]
    dense = dict.fromkeys(row["metric"] for row in judged if 1 - max(row["a"] or 0, row["b"] or 0) < EQUAL)
    notes = doubts_of_draws(row["unknown_draws"] for row in rows)
    if dense:
        why = "a method that uses every key has 1, whatever its weights; compare tv, js or kl"
        notes.append(f"{', '.join(dense)}: {why}")
    tested = [row for row in rows if row["p_adjusted"] is not None]
    tables, layers = len(set(map(_table, tested))), {row["layer"] for row in tested} - {None}
    if tables < 2:
        return notes
    share = 100 * min(1.0, tables * level / 2)
    return [
        *notes,
        f"p is corrected in each of {tables} tables: with no change, a false *worse* somewhere has up to {share:.3g} % "
        f"chance; --level {level / tables:.2g}{' or --all-layers' * (len(layers) > 1)} lowers it",
    ]
