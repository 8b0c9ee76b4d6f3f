"""The colours of maps: a logarithmic scale for either sign, and colours for values outside it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

DECADES = 4.0  # of the colour scale, at most
LEVELS = 64  # colours of the scale, for either sign
POSITIVE, NEGATIVE = "YlGnBu", "Oranges"  # none of their colours is like one of those outside the scale
SMALL, ABOVE, BELOW, BROKEN = (255, 255, 255), (0, 0, 0), (170, 0, 120), (154, 154, 154)


@dataclass(frozen=True)
class Scale:
    """The colours of a figure: for either sign logarithmic in the size from ``low`` to ``high``, others outside."""

    low: float
    high: float

    @classmethod
    def of(cls, exact: np.ndarray) -> Scale:
        """The scale of the exact maps; approximations do not change it.

        It ends at their largest mean. It begins at 10⁻⁴ of that, or at their 1 % quantile if that is larger.
        """
        values = exact[np.isfinite(exact) & (exact > 0)]
        if not values.size:
            return cls(10**-DECADES, 1.0)
        high = float(values.max())
        low = max(high * 10**-DECADES, float(np.quantile(values, 0.01)))
        return cls(low if low < high / 2 else high / 10, high)

    def painted(self, values: np.ndarray) -> np.ndarray:
        """The colours of the values, (…, 3) uint8."""
        size = np.clip(np.nan_to_num(np.abs(values)), self.low, self.high)
        level = (np.log(size / self.low) / math.log(self.high / self.low) * LEVELS).astype(int).clip(0, LEVELS - 1)
        out = np.where((values < 0)[..., None], palette(NEGATIVE)[level], palette(POSITIVE)[level])
        for colour, where in self.outside(values).items():
            out[where] = colour
        return out

    def outside(self, values: np.ndarray) -> dict[tuple[int, int, int], np.ndarray]:
        """The masks of values outside the scale, by their colours."""
        finite = np.isfinite(values)
        edge = self.high * (1 + 1e-6)
        return {
            SMALL: finite & (np.abs(values) < self.low),
            ABOVE: finite & (values > edge),
            BELOW: finite & (values < -edge),
            BROKEN: ~finite,
        }


def palette(name: str) -> np.ndarray:
    """The colours of one sign, from the low to the high end of the scale, (levels, 3) uint8."""
    import matplotlib

    levels = (np.arange(LEVELS) + 0.5) / LEVELS
    levels = levels if name == POSITIVE else 0.2 + 0.8 * levels  # the first oranges are nearly white
    return (255 * matplotlib.colormaps[name](levels)[:, :3]).round().astype(np.uint8)


def ticks_of(scale: Scale) -> list[float]:
    """Round numbers on the scale: powers of ten, and 2 and 5 times these where there are few."""
    powers = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), tuple(range(1, 10))):
        values = [step * 10.0**power for power in powers for step in steps]
        values = [value for value in values if scale.low * 0.999 <= value <= scale.high * 1.001]
        if len(values) >= 3:
            break
    return values if len(values) > 1 else [scale.low, scale.high]


def number(value: float) -> str:
    """A value as a label of the scale: three digits, and no zero before an exponent."""
    return re.sub(r"e-0?", "e-", f"{value:.3g}")
