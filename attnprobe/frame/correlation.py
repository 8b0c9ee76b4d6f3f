"""Rank correlations of two columns of numbers, also within groups: `rank_correlation`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

LEAST = 6  # pairs; of three unrelated pairs, one in three has a correlation of 1 or -1


def rank_correlation(
    x: Any, y: Any, groups: Sequence[Any] | None = None, least: int = LEAST
) -> tuple[float, float] | None:
    """Spearman's ρ of pairs, and its two-sided p-value; None for fewer than ``least`` pairs or constant values.

    With groups, numbers are ranked within their group, so that groups may have any levels. With the centred ranks a, b
    of a group of n pairs, each divided by n + 1,

        ``ρ = Σ a·b / sqrt(Σ |a|² · Σ |b|²)``,   sums over groups.

    If x and y are independent within groups, all orders of y within each group are as likely. Then Σ a·b has mean 0 and
    variance ``Σ |a|² |b|² / (n − 1)``. The p-value is that of a normal distribution with this variance.

    Args:
        x, y: as many numbers; pairs with one that is not finite are left out. groups: a label for each pair.

    >>> rank_correlation([1, 2, 3, 4, 5, 6], [1, 3, 2, 4, 5, 6])[0] > 0.9
    True
    >>> rank_correlation([1, 2, 3, 11, 12, 13], [13, 12, 11, 3, 2, 1], "aaabbb")[0]
    -1.0
    >>> rank_correlation([1, 2], [1, 2])
    """
    import numpy as np
    from scipy.stats import rankdata

    x, y = np.asarray(x, float), np.asarray(y, float)
    known = np.isfinite(x) & np.isfinite(y)
    labels = np.zeros(len(x), int) if groups is None else np.unique([*map(str, groups)], return_inverse=True)[1]
    if known.sum() < least:
        return None

    def centred(values: np.ndarray) -> np.ndarray:
        ranks = rankdata(values)
        return (ranks - ranks.mean()) / (len(ranks) + 1)

    product = squares_x = squares_y = variance = 0.0
    for label in np.unique(labels[known]):
        here = known & (labels == label)
        a, b = centred(x[here]), centred(y[here])
        product, squares_x, squares_y = product + a @ b, squares_x + a @ a, squares_y + b @ b
        variance += (a @ a) * (b @ b) / max(len(a) - 1, 1)
    if not variance:
        return None
    # two-sided: P(|N(0, 1)| > z) = erfc(z / √2)
    p = math.erfc(abs(product) / math.sqrt(2 * variance))
    return float(np.clip(product / math.sqrt(squares_x * squares_y), -1, 1)), p
