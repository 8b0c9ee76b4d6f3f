"""What gates of ``attnprobe bench`` may be about."""

from __future__ import annotations

from ...gates.check import Gated

__all__ = ["COST_METRICS", "ERROR_METRICS", "GATED", "GROWTH_METRICS"]

GROWTH_METRICS = ("time_exponent", "memory_exponent", "faster_from", "smaller_from")
COST_METRICS = ("seconds", "ratio_to_exact", "peak_bytes", "flops", "visited_fraction")
ERROR_METRICS = (
    "output_spectral",
    "output_spectral_relative",
    "output_frobenius",
    "output_frobenius_relative",
    "output_row_relative_max",
    "output_cosine_min",
    "bad_rows",
)
GATED = Gated((*COST_METRICS, *GROWTH_METRICS, *ERROR_METRICS), whole=GROWTH_METRICS)
