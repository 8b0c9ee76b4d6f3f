"""``--fail-above METRIC[.STAT]=VALUE``: tolerances that fail closed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import UsageError, unknown
from .numbers import method_label
from .sources import source_heading

__all__ = ["METRICS", "check_gates", "parse_gate"]

METRICS = (
    "output_spectral",
    "output_spectral_relative",
    "output_frobenius",
    "output_frobenius_relative",
    "output_row_relative_max",
    "output_cosine_min",
    "matrix_spectral",
    "matrix_spectral_relative",
    "matrix_frobenius",
    "matrix_frobenius_relative",
    "matrix_infinity",
    "bad_rows",
    "guarded_rows",
    "visited_fraction",
    "inverse_residual",
    "delta",
    "seconds",
)
GATED = ("mean", "se", "median", "p10", "p90", "max")
Gate = tuple[str, str, float]


def parse_gate(text: str) -> Gate:
    """``METRIC[.STAT]=VALUE`` as (metric, statistic, value); the statistic defaults to the mean.

    Raises:
        UsageError: another form, an unknown metric or statistic (with the nearest one), a value that is no finite
            number.

    >>> parse_gate("output_spectral.median=0.5")
    ('output_spectral', 'median', 0.5)
    >>> parse_gate("output_spectral.medain=0.5")
    Traceback (most recent call last):
    attnprobe.errors.UsageError: unknown statistic 'medain'; did you mean 'median'?
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    metric, dot, statistic = name.partition(".")
    if not equals or not metric or (dot and not statistic):
        raise UsageError(f"--fail-above {text}: the form is METRIC[.STAT]=VALUE, as output_spectral.median=0.5")
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    if metric == "output_cosine_min":
        raise UsageError("--fail-above output_cosine_min: larger is better there; gate another metric")
    if dot and statistic not in GATED:
        raise unknown("statistic", statistic, GATED)
    try:
        limit = float(value)
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise UsageError(f"--fail-above {text}: '{value}' is not a finite number")
    return metric, statistic or "mean", limit


def check_gates(rows: Iterable[Mapping[str, Any]], gates: Sequence[Gate]) -> list[str]:
    """One line per failure; none where every requested method's row stays at or below every limit.

    Fails closed: a missing, null or non-finite value, a metric that is null at some head, a row that is not ok, and
    no requested row at all are failures. Where the interval of a matrix error did not close, its upper end is compared.
    """
    rows = [row for row in rows if row.get("requested", not row.get("reference"))]
    if not gates:
        return []
    if not rows:
        return [f"{_gate(gate)}: no row of a requested method to compare" for gate in gates]
    return [
        f"{_gate(gate)}: {_where(row)}: {problem}"
        for gate in gates
        for row in rows
        if (problem := _problem(row, gate)) is not None
    ]


def _problem(row: Mapping[str, Any], gate: Gate) -> str | None:
    """Why the row fails the gate; ``None`` where it passes."""
    metric, statistic, limit = gate
    if row.get("status") != "ok":
        return f"{row.get('status')}: {row.get('reason') or 'no reason given'}"
    metrics = row.get("metrics") or {}
    upper = f"{metric}_upper" in metrics and bool(row.get("matrix_open"))
    found = metrics.get(f"{metric}_upper" if upper else metric)
    if found is None:
        return f"{metric} was not measured"
    value, count = found.get(statistic), found.get("count")
    expected = row.get("cells" if metric == "seconds" else "values")
    if count == 0 or (expected is not None and count != expected):
        return f"only {count} of {expected} values are finite"
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        alone = " (one text window has no standard error)" if statistic == "se" else ""
        return f"no finite value{alone}"
    end = ", the upper end of intervals that did not all close," if upper else ""
    return None if value <= limit else f"{value:.6g}{end} is above {limit:g}"


def _gate(gate: Gate) -> str:
    metric, statistic, limit = gate
    return f"{metric}.{statistic} <= {limit:g}"


def _where(row: Mapping[str, Any]) -> str:
    places = (f"{name}={row[name]}" for name in ("d", "n", "layer") if row.get(name) is not None)
    return " ".join(filter(None, [method_label(row), *places, source_heading(row)]))
