"""How metrics compare: which way is better, and the scale on which a change is judged."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    """A metric's name, its better direction, and the scale of its changes.

    Attributes:
        better: ``smaller`` or ``larger``; None where no value is better than another.
        scale: what a tolerance is a share of. ``relative``: of the size of a. ``complement``: of that of 1 − a, for
            cosines, whose distance from 1 is the error. ``absolute``: of 1, for shares of rows or heads.
        floor: a change of at most this size counts as none, in the units of `cost`.
        rounds: whether values up to `tables.methods.ROUNDING` may be rounding alone, as relative errors of methods.
        timed: whether two equal runs differ in it, as they do in times.
        steady: whether the normaliser of a method's rows cannot move it: counts, costs, and what exact attention has.
        signed: whether it has no least value, as cosines and errors do.
        of_mean: the metric from whose mean over windows it is computed. It has no other statistic than its mean, and
            runs are compared by that metric.
    """

    name: str
    better: str | None = "smaller"
    scale: str = "relative"
    floor: float = 0.0
    rounds: bool = False
    timed: bool = False
    steady: bool = False
    signed: bool = False
    of_mean: str | None = None

    @property
    def range(self) -> tuple[float, float]:
        """Bounds of its values; shares of weights that can be negative have no upper one.

        >>> METRICS["output_spectral"].range, METRICS["cosine"].range, METRICS["loss_change"].range
        ((0.0, inf), (-1.0, 1.0), (-inf, inf))
        """
        return (-1.0, 1.0) if self.scale == "complement" else (-math.inf if self.signed else 0.0, math.inf)

    def cost(self, value: Any) -> Any:
        """The value, a number or a tensor, as a quantity of which less is better: 1 − x for a cosine.

        >>> METRICS["output_cosine_min"].cost(0.75), Metric("slack", "larger").cost(2.0), METRICS["delta"].cost(0.5)
        (0.25, -2.0, 0.5)
        """
        if self.scale == "complement":
            return 1 - value
        return -value if self.better == "larger" else value

    def tolerated(self, a: float, tolerance: float) -> float:
        """The largest change from ``a`` within a tolerance.

        >>> METRICS["output_spectral"].tolerated(4.0, 0.25), METRICS["cosine"].tolerated(-0.5, 0.5)
        (1.0, 0.75)
        """
        size = 1.0 if self.scale == "absolute" else abs(self.cost(a))
        return max(tolerance * size, self.floor)


def cosine(name: str) -> Metric:
    """A cosine: better near 1. Rounding in float32 moves 1 − x by about the floor."""
    return Metric(name, "larger", "complement", floor=1e-6)


def share(name: str, better: str | None = "smaller") -> Metric:
    """A share of rows or heads."""
    return Metric(name, better, "absolute")


def fact(name: str, better: str | None = "smaller", **facts: Any) -> Metric:
    """A steady metric."""
    return Metric(name, better, steady=True, **facts)


SELECTED = (fact("scored"), fact("kv_read"))  # what methods that select keys compute and read for a row
CHOICE = ("mass", "mass_p10", "mass_efficiency", "recall_k")  # of keys: 1 for a method that uses all of them
NORMED = re.compile("(output|matrix)_(spectral|frobenius)(_relative)?")


def in_words(metric: str) -> str:
    """A metric's name in a title.

    >>> in_words("output_spectral_relative"), in_words("max_abs")
    ('relative output error (spectral norm)', 'max abs')
    """
    normed = NORMED.fullmatch(metric)
    if normed is None:
        return metric.replace("_", " ")
    norm = normed[2].replace("f", "F")
    return f"{'relative ' if normed[3] else ''}{normed[1]} error ({norm} norm)"


ERROR = (  # of `attnprobe error`
    Metric("output_spectral"),
    Metric("output_spectral_relative", rounds=True),
    Metric("output_frobenius"),
    Metric("output_frobenius_relative", rounds=True),
    Metric("output_row_relative_max"),
    cosine("output_cosine_min"),
    Metric("matrix_spectral"),
    Metric("matrix_spectral_relative", rounds=True),
    Metric("matrix_frobenius"),
    Metric("matrix_frobenius_relative", rounds=True),
    Metric("matrix_infinity"),
    fact("bad_rows"),
    fact("guarded_rows"),
    fact("rounded_rows"),
    fact("visited_fraction"),
    *SELECTED,
    fact("inverse_residual"),
    fact("delta", None),  # a shift
    fact("seconds", timed=True),
    cosine("cosine"),
    Metric("max_abs"),
    Metric("relative_frobenius"),
    Metric("row_error_p50"),
    Metric("row_error_p99"),
    Metric("row_error_p99_9"),
    share("rows_within", "larger"),
    Metric("ratio_to_framework"),
    Metric("ratio_to_framework_frobenius"),
    fact("framework_max_abs"),
    fact("framework_relative_frobenius"),
    *(fact(name, "larger", scale="absolute") for name in (*CHOICE, "needle_mass_kept")),
    *(fact(name, None, scale="absolute") for name in ("mass_oracle", "distant_mass", "needle_mass")),
    *(share(name) for name in ("tv", "js")),
    Metric("kl"),
    Metric("log_normaliser_error", None, "absolute", signed=True),  # signed: a bias
    Metric("log_normaliser_error_sd", scale="absolute"),
    Metric("row_error_p90"),
    Metric("row_error_max"),
    Metric("row_error_angle"),
    Metric("residual_error"),
    Metric("tail_gap"),
    *(fact(name, None) for name in ("keys", "support", "k_50", "k_90", "k_99")),
)
BENCH = (  # costs that two runs of `attnprobe bench` are compared by
    fact("ratio_to_exact", timed=True),
    fact("seconds", timed=True),
    fact("peak_bytes", floor=2.0**20),  # the allocator's pages: two equal runs differ by less
    fact("flops"),
)
INJECT = (  # of `attnprobe inject`, of a whole model
    Metric("drift", rounds=True),
    Metric("logits_drift", rounds=True),
    Metric("kl"),
    share("top1_agreement", "larger"),
    Metric("loss"),
    fact("loss_own"),
    Metric("loss_change", signed=True),
    Metric("perplexity", of_mean="loss"),
    fact("perplexity_own", of_mean="loss_own"),
    Metric("perplexity_change", signed=True, of_mean="loss_change"),
    cosine("embedding_cosine"),
    Metric("local_error", rounds=True),
    fact("realised_d", None),
    fact("bad_rows"),
    fact("guarded_rows"),
    fact("rounded_rows"),
    Metric("row_error", rounds=True),
    Metric("spectral_error", rounds=True),
    Metric("residual_error"),
    Metric("residual_heads"),
    Metric("residual_sum"),
    fact("lost_mass", scale="absolute"),
    Metric("first_divergence", better="larger"),
    fact("cache_bytes"),
    fact("read_bytes"),
    Metric("greedy_match", better="larger"),
    Metric("needle_loss"),
    Metric("needle_loss_change", signed=True),
    Metric("needle_rank"),
)
METRICS = {metric.name: metric for metric in (*ERROR, *BENCH, *INJECT)}
