"""The verdict on one difference: one function, `verdict`, and one table of rules, which the docs have too."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..frame.metric import ROUNDING, Metric
from .chance import EQUAL, Evidence, Interval

VERDICTS = ("worse", "better", "same", "undecided")
WON_BY = {"A": "worse", "B": "better"}  # the verdict on B if the numbers of this side are better


@dataclass(frozen=True)
class Difference:
    """The numbers of A and B in one line, and what is known of chance in their difference.

    Attributes:
        metric: of the numbers. statistic: of the numbers. a, b: the numbers; None if a side has no number.
        evidence: of chance. p: corrected for the ``tests`` of the table, None without a test.
        interval: of ``b - a``, with the same correction.
        worse: the reason why B is worse whatever its numbers; empty without such a reason.
        better: the reason why B is better, unless its numbers are worse; empty without such a reason.
        marked: ``A`` or ``B``, the side that alone left bad rows as they are; empty if both or neither did.
    """

    metric: Metric
    a: float | None
    b: float | None
    evidence: Evidence
    p: float | None = None
    tests: int = 0
    interval: Interval | None = None
    statistic: str = "mean"
    worse: str = ""
    better: str = ""
    marked: str = ""


def verdict(of: Difference, tolerance: float, level: float) -> tuple[str, str]:
    """The verdict on B with its reason: the first rule that applies, from the top.

    ====  =========================================================  ======================================
    rule  where                                                      verdict
    ====  =========================================================  ======================================
    1     a cell of B has a worse status, or a finite value is lost  worse
    2     A's numbers are better, but A alone has bad rows, or B     undecided
    3     a cell of B has a better status, or a value is found       better, unless the numbers are worse
    4     neither side has a number, or both are rounding            same
    5     the change is tolerated, and so is its interval            same
    6     the change is tolerated, its interval is wider             undecided
    7     the change is larger, and nothing differs by chance        worse, better
    8     the change is larger, beyond the noise of the rounds       worse, better
    9     the change is larger, and p is at most the level           worse, better
    10    the change is larger, and chance may make it               undecided
    ====  =========================================================  ======================================

    Args:
        tolerance: the share of A's value that counts as no change, on the metric's own scale (see `Metric.tolerated`).

    >>> from attnprobe.frame.metric import METRICS
    >>> kl = METRICS["kl"]
    >>> verdict(Difference(kl, 1.0, 2.0, Evidence(certain=True)), 0.05, 0.05)
    ('worse', '')
    >>> verdict(Difference(kl, 1.0, 2.0, Evidence("windows", 0.2, why="2 windows"), p=0.2, tests=1), 0.05, 0.05)
    ('undecided', 'p = 0.20 over 2 windows')
    """
    if of.worse:
        return "worse", of.worse
    found, reason = _by_numbers(of, tolerance, level)
    if of.better and found != "worse":
        found, reason = "better", of.better
    if found == WON_BY.get(of.marked):
        return "undecided", f"{of.marked} alone has bad rows"
    return found, reason


def _by_numbers(of: Difference, tolerance: float, level: float) -> tuple[str, str]:
    """Rules 4 to 10."""
    if of.a is None or of.b is None:
        return "same", ""
    if of.metric.rounds and max(of.a, of.b) <= ROUNDING:
        return "same", f"both errors may be rounding, at most {ROUNDING:g}"
    change, tolerated = of.metric.cost(of.b) - of.metric.cost(of.a), of.metric.tolerated(of.a, tolerance)
    if abs(change) <= tolerated:
        return ("undecided", _why_wide(of)) if _may_exceed(of, tolerated) else ("same", "")
    direction = "worse" if change > 0 else "better"
    if of.evidence.certain:
        return direction, ""
    if of.evidence.noise is not None:
        beyond = abs(change) > of.evidence.noise
        why = f"within the noise of {of.evidence.why}, {of.evidence.noise:.3g}"
        return (direction, "") if beyond else ("undecided", why)
    if of.p is None:
        return "undecided", of.evidence.why
    if of.p <= level:
        return direction, ""
    reason = f"p = {of.p:#.2g} over {of.evidence.why}"
    if of.evidence.least * of.tests > level:  # no values could have reached the level
        lines = "1 line" if of.tests == 1 else f"{of.tests} lines"
        reason += f", too few for {lines}"
    return "undecided", reason


def _why_wide(of: Difference) -> str:
    """The reason why a tolerated difference is undecided."""
    return of.evidence.why if of.p is None else "its interval is wider than the tolerance"


def _may_exceed(of: Difference, tolerated: float) -> bool:
    """Whether a tolerated difference may be larger than tolerated by chance: its interval ends beyond."""
    assert of.a is not None and of.b is not None
    if of.evidence.certain or of.evidence.test == "rounds":
        return False
    if of.interval is None:
        # equal means leave nothing open; equal medians may hide heads that differ
        return not of.statistic.startswith("mean") or not math.isclose(of.a, of.b, rel_tol=EQUAL)
    return max(map(abs, of.interval)) > tolerated
