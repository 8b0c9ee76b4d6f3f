"""The text of cells and numbers."""

from __future__ import annotations

import math

from ..grid import Cell
from ..table import UNITS, Column


def number(value: float, digits: int | None = 3) -> str:
    """A number with ``digits`` significant digits; from 0.001 to 10⁵ it has no exponent.

    With 0 digits the number is whole. With None it has its own digits, at most six.

    >>> [number(x) for x in (0.31236, 133.2, 1234.4, 1.8e-5, 4.2e9, 0.0, -math.inf, 64)]
    ['0.312', '133', '1234', '1.80e-5', '4.20e9', '0', '−∞', '64']
    >>> number(12345.6, 0), number(0.0123, 2), number(0.05, None), number(float("nan"))
    ('12346', '0.012', '0.05', '')
    """
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return "−∞" if value < 0 else "∞"
    # 0 has no exponent to count digits from
    if value == 0 or digits == 0 or isinstance(value, int):
        return f"{value:.0f}"
    if digits is None:
        return f"{value:g}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    if -4 < int(exponent) < 5:
        return f"{value:.{max(digits - 1 - int(exponent), 0)}f}"
    return f"{mantissa}e{int(exponent)}"


def cell_parts(cell: Cell, column: Column) -> list[str]:
    """The text of a cell in parts: sign and number, then its ends, ± or total."""
    if cell.empty:
        return [cell.flag.sign if cell.flag else ""]
    sign = cell.flag.sign if cell.flag else ""
    if sign and isinstance(cell.value, str):  # words need a space behind the sign
        sign += " "
    factor, suffix = UNITS[column.unit], "%" if column.unit == "%" else ""

    def text(value: float | None, digits: int | None) -> str:
        scaled = value if value is None or factor == 1 else value * factor
        return "" if scaled is None else number(scaled, digits) + suffix

    if cell.text or not isinstance(cell.value, (int, float)) or isinstance(cell.value, bool):
        parts = [sign + (cell.text or str(cell.value))]
    else:
        plus = "+" if column.signed and cell.value > 0 else ""
        parts = [sign + plus + text(cell.value, column.digits)]
    ends = column.digits and min(column.digits, 2)
    # an interval of one value says nothing
    if cell.low is not None and cell.high is not None and cell.low != cell.high:
        parts += [f" [{text(cell.low, ends)}", f" – {text(cell.high, ends)}]"]
    if cell.half is not None:
        parts.append(f" ± {text(cell.half, ends)}")
    if cell.of is not None:
        parts.append(f"/{cell.of:.0f}")
    return parts


def cell_text(cell: Cell, column: Column) -> str:
    """The text of a cell.

    >>> cell_text(Cell(0.25, low=0.125, high=0.5), Column("error", "drift.median"))
    '0.250 [0.12 – 0.50]'
    >>> cell_text(Cell(3.0, of=72.0), Column("singular", "cond.count", digits=0))
    '3/72'
    """
    return "".join(cell_parts(cell, column))
