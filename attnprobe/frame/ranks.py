"""Rank correlations of columns."""

from __future__ import annotations

from collections.abc import Sequence

LEAST_RANKED = 6  # pairs; of three unrelated pairs the correlation is 1 or -1 in one of three cases


def rank_correlation(x: Sequence[float], y: Sequence[float], least: int = LEAST_RANKED) -> float | None:
    """Spearman's rank correlation, ties with their mean rank; None for fewer than ``least`` pairs, or equal values.

    >>> rank_correlation([1, 2, 4], [3.0, 2.0, 1.0], least=3), rank_correlation([1, 2, 4], [3.0, 2.0, 1.0])
    (-1.0, None)
    """
    if len(x) < least or len(set(x)) < 2 or len(set(y)) < 2:
        return None
    import numpy as np
    from scipy.stats import rankdata

    return round(float(np.corrcoef(rankdata(x), rankdata(y))[0, 1]), 12)
