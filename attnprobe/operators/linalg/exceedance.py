"""Verdicts on a promise that an error exceeds its bound with probability at most δ, from counts of exceedances.

Counts are arrays of any shape, with an entry for each statement (head, or head and query). There are two null
hypotheses about the probability p of an exceedance. ``at_most`` is ``p ≤ δ``: a small p-value of it says
*violated*. ``above`` is ``p > δ``: a small p-value of it says *holds*. Beside them, the interval of a probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log, log1p

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import UsageError

VERDICTS = HOLDS, VIOLATED, UNDECIDED = "holds", "violated", "undecided"
PRIOR = 0.5  # both parameters of the beta mixture: Jeffreys' prior
BISECTIONS = 60
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PValues:
    """P-values of two null hypotheses: ``at_most`` is ``p ≤ δ``, and ``above`` is ``p > δ``."""

    at_most: Floats
    above: Floats

    def least(self, other: PValues) -> PValues:
        """The smaller p-values of each statement, for an anytime-valid test at two times."""
        return PValues(np.minimum(self.at_most, other.at_most), np.minimum(self.above, other.above))


def exact_p_values(happened: ArrayLike, trials: int, delta: float) -> PValues:
    """The binomial tails at ``p = δ``: ``P(X ≥ k)`` against ``p ≤ δ``, and ``P(X ≤ k)`` against ``p > δ``.

    They are valid if the number of trials does not depend on the data.

    Args:
        happened: k, the number of exceedances of each statement in ``trials``, of any shape.

    Raises:
        UsageError: impossible counts, or a δ outside (0, 1).

    >>> p = exact_p_values([0, 5, 20], 100, 0.05)
    >>> p.at_most.round(6).tolist(), p.above.round(6).tolist()
    ([1.0, 0.564019, 0.0], [0.005921, 0.615999, 1.0])
    """
    from scipy.special import bdtr, bdtrc

    k = _counts(happened, trials, delta)
    return PValues(np.where(k > 0, bdtrc(k - 1, trials, delta), 1.0), bdtr(k, trials, delta))


def anytime_p_values(happened: ArrayLike, trials: int, delta: float) -> PValues:
    """P-values that are valid at any time, also if the number of trials depends on earlier results.

    For each q, ``Π_i (q/δ)^{x_i} ((1-q)/(1-δ))^{1-x_i}`` is a supermartingale under ``p ≤ δ`` if ``q > δ``, and under
    ``p > δ`` if ``q < δ``. So is its mixture M over the beta(½, ½) distribution of q, cut off at δ:

        ``M_n = B(k + ½, n - k + ½) P(q > δ | k, n) / (B(½, ½) P(q > δ) δ^k (1-δ)^(n-k))``

    with ``P(· | k, n)`` of beta(k + ½, n - k + ½). By Ville's inequality the probability that M ever exceeds ``1/α`` is
    at most α. So ``1/M`` is a p-value at every time, and so is its minimum over times. Source: Robbins 1970.

    Raises:
        UsageError: impossible counts, or a δ outside (0, 1).

    >>> p = anytime_p_values([0, 5, 20], 100, 0.05)
    >>> (p.at_most < 0.01).tolist(), bool((p.at_most >= exact_p_values([0, 5, 20], 100, 0.05).at_most).all())
    ([False, False, True], True)
    """
    from scipy.special import betainc, betaln

    k = _counts(happened, trials, delta)
    a, b = k + PRIOR, trials - k + PRIOR
    ratio = betaln(a, b) - betaln(PRIOR, PRIOR) - k * np.log(delta) - (trials - k) * np.log1p(-delta)
    with np.errstate(divide="ignore"):
        above = ratio + np.log(betainc(b, a, 1 - delta)) - np.log(betainc(PRIOR, PRIOR, 1 - delta))
        below = ratio + np.log(betainc(a, b, delta)) - np.log(betainc(PRIOR, PRIOR, delta))
    return PValues(np.exp(-np.maximum(above, 0.0)), np.exp(-np.maximum(below, 0.0)))


def confidence_sequence(happened: ArrayLike, trials: int, confidence: float) -> tuple[Floats, Floats]:
    """Intervals of probabilities that hold at all times together with probability ``confidence``.

    An interval contains the p for which ``B(k + ½, n - k + ½) / (B(½, ½) p^k (1-p)^(n-k))`` is below ``1/(1 -
    confidence)``. This is a martingale if p is the probability. Source: Robbins 1970.

    Raises:
        UsageError: impossible counts, or a confidence outside (0, 1).

    >>> low, high = confidence_sequence([0, 50], 100, 0.95)
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.0, 0.338], [0.057, 0.662])
    """
    from scipy.special import betaln, xlog1py, xlogy

    k = _counts(happened, trials, confidence)
    mixed = betaln(k + PRIOR, trials - k + PRIOR) - betaln(PRIOR, PRIOR)

    def excluded(p: np.ndarray) -> np.ndarray:
        return mixed - xlogy(k, p) - xlog1py(trials - k, -p) >= -np.log1p(-confidence)

    share = k / trials
    ends = []
    for edge in (0.0, 1.0):
        outside, inside = np.full_like(share, edge), share.copy()
        for _ in range(BISECTIONS):
            middle = (outside + inside) / 2
            out = excluded(middle)
            outside, inside = np.where(out, middle, outside), np.where(out, inside, middle)
        ends.append(np.where(excluded(np.full_like(share, edge)), outside, edge))
    return ends[0], ends[1]


def holm(p: ArrayLike) -> Floats:
    """The p-values of all statements of an array, adjusted by Holm (1979).

    Rejecting hypotheses with adjusted p ≤ α rejects a true one with probability at most α, however the
    p-values depend on one another. NaN stays NaN and is no statement.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, dtype=np.float64)
    flat = values.ravel()
    known = np.flatnonzero(~np.isnan(flat))
    order = known[np.argsort(flat[known], kind="stable")]
    adjusted = flat.copy()
    left = len(order) - np.arange(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(left * flat[order]), 1.0)
    return adjusted.reshape(values.shape)


def verdicts(p: PValues, confidence: float) -> NDArray[np.str_]:
    """One of `VERDICTS` for each statement: all are right together with probability at least ``confidence``.

    Each of the two null hypotheses is tested for all statements by Holm's procedure, at half of ``1 - confidence``.

    >>> verdicts(exact_p_values([0, 5, 20], 100, 0.05), 0.9).tolist()
    ['holds', 'undecided', 'violated']
    """
    level = (1 - confidence) / 2
    decided = np.where(holm(p.above) <= level, HOLDS, UNDECIDED)
    return np.where(holm(p.at_most) <= level, VIOLATED, decided)


def bias_z(mean: ArrayLike, square: ArrayLike, cube: ArrayLike, trials: int) -> Floats:
    """``t + γ t²/(3√n) + γ² t³/(27 n) + γ/(6√n)``, ``t = m √n / s``, of errors with the means of their three powers.

    γ is their skewness. Importance weights are skewed: most samples miss the few large terms, so t alone would call
    such an estimate biased. The transformation is monotone in t, and its result is nearly normal. Source: Hall 1992.

    NaN for fewer than two trials, and for errors that are all 0; infinite for errors that are not 0 and as equal as
    rounding lets their mean powers say, ``s² ≤ n eps Σx²/n``.

    >>> round(float(bias_z(-0.1, 0.26, 0.3, 100)), 2), round(float(bias_z(-0.1, 0.26, -0.077, 100)), 2)
    (-1.57, -1.99)
    """
    m, squares, cubes = (np.asarray(power, dtype=np.float64) for power in (mean, square, cube))
    if trials < 2:
        return np.full_like(m, np.nan)
    variance = squares - m**2
    variance = np.where(variance <= trials * np.finfo(np.float64).eps * squares, 0.0, variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = m / np.sqrt(variance / (trials - 1))
        skewness = (cubes - 3 * m * squares + 2 * m**3) / variance**1.5
        corrected = t + skewness * t**2 / (3 * np.sqrt(trials)) + skewness**2 * t**3 / (27 * trials)
        corrected = corrected + skewness / (6 * np.sqrt(trials))
    return np.where(np.isinf(t) | np.isnan(t), t, corrected)


def normal_p_value(z: ArrayLike) -> Floats:
    """The two-sided p-value of a standard normal z.

    >>> normal_p_value([0.0, 1.959964]).round(6).tolist()
    [1.0, 0.05]
    """
    from scipy.special import erfc

    return erfc(np.abs(np.asarray(z, dtype=np.float64)) / np.sqrt(2))


def _counts(happened: ArrayLike, trials: int, probability: float) -> Floats:
    """The counts as float64, if they are possible."""
    counts = np.asarray(happened, dtype=np.float64)
    if trials < 1 or (counts < 0).any() or (counts > trials).any():
        raise UsageError(f"counts of {trials} trials are between 0 and {trials}, and there is at least one trial")
    if not 0 < probability < 1:
        raise UsageError(f"{probability} is not a probability above 0 and below 1")
    return counts


CONFIDENCE = 0.95


def clopper_pearson(happened: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact interval of Clopper & Pearson (1934) for a probability, from ``happened`` events in ``trials``.

    At the lower end, ``happened`` or more events have the probability ``(1 - confidence)/2``; at the upper end,
    ``happened`` or fewer have it. Both ends are quantiles of beta distributions. The interval contains the true
    probability with probability at least ``confidence``.

    >>> [round(end, 4) for end in clopper_pearson(4, 20)]
    [0.0573, 0.4366]
    >>> [round(end, 4) for end in clopper_pearson(0, 10)]
    [0.0, 0.3085]
    """
    from scipy.special import betaincinv

    if not 0 <= happened <= trials or trials < 1 or not 0 < confidence < 1:
        raise UsageError(
            f"{happened} of {trials} trials at confidence {confidence}: choose counts from 0 to all of at least one "
            "trial, and a confidence above 0 and below 1"
        )
    tail, missed = (1 - confidence) / 2, trials - happened
    lower = float(betaincinv(happened, missed + 1, tail)) if happened else 0.0
    upper = float(betaincinv(happened + 1, missed, 1 - tail)) if missed else 1.0
    return lower, upper


def least_trials(probability: float, confidence: float = CONFIDENCE, statements: int = 1) -> int:
    """The least number of trials without any event whose `clopper_pearson` interval ends at ``probability`` or below.

    It is the least integer N with ``(1 - probability)^N ≤ (1 - confidence)/2``, a bound that is divided by the number
    of ``statements`` that are decided together.

    >>> least_trials(0.1), clopper_pearson(0, 35)[1] > 0.1 >= clopper_pearson(0, 36)[1]
    (36, True)
    """
    if not 0 < probability < 1 or not 0 < confidence < 1:
        raise UsageError(f"probability {probability}, confidence {confidence}: choose numbers above 0 and below 1")
    return ceil(log((1 - confidence) / 2 / statements) / log1p(-probability))
