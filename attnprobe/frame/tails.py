"""The tail of a number over steps in several text windows: its quantiles, and their intervals over windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

RESAMPLES = 1000  # of windows
LEVEL = 0.95


def quantile(values: ArrayLike, share: float) -> float | None:
    """The quantile of a share of values, linear between two values; None without values, or if a value is missing.

    >>> quantile([4.0, 0.0, 1.0], 0.75), quantile([1.0, float("nan")], 1.0)
    (2.5, None)
    """
    import numpy as np

    numbers = np.asarray(values, float)
    return float(np.quantile(numbers, share)) if numbers.size and not np.isnan(numbers).any() else None


def rms(values: ArrayLike) -> float | None:
    """The root of the mean square; None as in `quantile`."""
    import numpy as np

    numbers = np.asarray(values, float)
    return float(np.sqrt(np.mean(numbers**2))) if numbers.size and not np.isnan(numbers).any() else None


def quantile_ends(values: ArrayLike, windows: ArrayLike, share: float) -> tuple[float, float] | None:
    """The 95 % interval of `quantile` over windows, by resampled windows; None of one window or of missing values.

    A resample is W draws from the W windows, each with all of its steps. The ends are quantiles over `RESAMPLES`
    resamples, which are drawn from one seed. The interval of a quantile that few steps decide is too short. The
    interval of the maximum ends at the maximum.

    >>> quantile_ends([0.0, 0.0, 4.0, 4.0], [0, 0, 1, 1], 0.5)
    (0.0, 4.0)
    """
    import numpy as np

    numbers, codes, counts = _resampled(values, windows)
    if counts is None:
        return None
    order = np.argsort(numbers, kind="stable")
    passed = counts[:, codes[order]].cumsum(1)  # (resamples, values): how many values a resample has up to here
    position = share * (passed[:, -1] - 1)
    below = np.floor(position)
    # the first value at which a resample has passed the position
    low, high = (numbers[order][(passed > rank[:, None]).argmax(1)] for rank in (below, np.ceil(position)))
    return _ends(low + (position - below) * (high - low))


def rms_ends(values: ArrayLike, windows: ArrayLike) -> tuple[float, float] | None:
    """The 95 % interval of `rms` over windows, as `quantile_ends` finds it."""
    import numpy as np

    numbers, codes, counts = _resampled(values, windows)
    if counts is None:
        return None
    sums, sizes = np.bincount(codes, numbers**2), np.bincount(codes)
    return _ends(np.sqrt((counts @ sums) / (counts @ sizes)))


def _resampled(values: ArrayLike, windows: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The values, the number of the window of each, and how often each resample has each window, (resamples, W)."""
    import numpy as np

    numbers = np.asarray(values, float)
    known, codes = np.unique(np.asarray(windows), return_inverse=True)
    if len(known) < 2 or np.isnan(numbers).any():
        return numbers, codes, None
    # how often each window is drawn says all: its steps come and go together
    draws = np.random.default_rng(0).multinomial(len(known), np.full(len(known), 1 / len(known)), RESAMPLES)
    return numbers, codes, draws


def _ends(values: np.ndarray) -> tuple[float, float]:
    """The ends of the interval that has the share `LEVEL` of values."""
    import numpy as np

    low, high = np.quantile(values, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)
