"""The metrics and statistics that gates of ``attnprobe bench`` limit."""

from __future__ import annotations

from ...gates.check import Gated
from ...tables.metrics import BENCH, METRICS, SELECTED, Metric

COSTS = (*BENCH, METRICS["visited_fraction"], *SELECTED)
GROWTH = (Metric("time_exponent"), Metric("memory_exponent"), Metric("faster_from"), Metric("smaller_from"))
ERRORS = tuple(
    METRICS[name]
    for name in (
        "output_spectral",
        "output_spectral_relative",
        "output_frobenius",
        "output_frobenius_relative",
        "output_row_relative_max",
        "output_cosine_min",
        "bad_rows",
    )
)
GATED = Gated((*COSTS, *GROWTH, *ERRORS), over_all_n=tuple(metric.name for metric in GROWTH))
