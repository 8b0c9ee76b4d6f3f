"""The rows that gates of ``attnprobe bench`` judge: costs over rounds, and their growth with n."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...tables.rows import Judged, Placed, Statistics, part
from ...tables.statistics import describe
from .gates import GATED
from .rows import BenchRow, BenchSummary

EACH_N = tuple(name for name in GATED.names if name not in GATED.over_all_n)


def bench_judged(rows: Iterable[BenchRow], summary: Iterable[BenchSummary]) -> list[Judged]:
    """Rows for `check`: one for each row of `timed_rows`, and one without n for each entry of `bench_summary`.

    A row's ``metrics`` describe `EACH_N`: times and ratios over the rounds, costs without rounds as one value, and
    errors over heads. An entry's describe the metrics of all n together. ``judges`` names the metrics that a row has,
    so that a gate on an exponent judges only entries.
    """
    rows = list(rows)
    judged: list[Judged] = []
    for row in rows:
        errors: dict[str, Statistics] = {
            name: {**described, "of": row["heads"]} for name, described in row["metrics"].items()
        }
        judged.append({**part(Placed, row), "judges": EACH_N, "metrics": {**errors, **_costs(row)}})
    requested = {_curve_key(row) for row in rows if row["requested"]}
    for entry in summary:
        grown = {name: _described([entry[name]]) for name in GATED.over_all_n}
        judged.append(
            {
                **part(Placed, entry),
                "n": None,
                "status": "ok",
                "requested": _curve_key(entry) in requested,
                "judges": GATED.over_all_n,
                "metrics": grown,
            }
        )
    return judged


def _curve_key(row: BenchRow | BenchSummary) -> tuple[Any, ...]:
    return row["method"], str(row["options"]), row["d"], row["source"], row["layer"], row["target"], row["backward"]


def _costs(row: BenchRow) -> dict[str, Statistics]:
    names = ("peak_bytes", "flops", "visited_fraction", "scored", "kv_read")
    single = {name: _described([row[name]]) for name in names}
    return {"seconds": _described(row["seconds_rounds"]), "ratio_to_exact": _described(row["ratio_rounds"]), **single}


def _described(values: Sequence[float | None]) -> Statistics:
    """Statistics over rounds, each of which is a sample of its own."""
    return {**describe(values, range(len(values))), "of": len(values)}
