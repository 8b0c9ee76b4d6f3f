"""Numbers, names and cells as text: three or four significant digits, aligned at the decimal point.

A cell is a format string over a row: ``{cond[median]:brief}``, ``{rank:g}/{size}``, ``{seconds:3ms}``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from string import Formatter
from typing import Any

from ..files import Fields
from ..grammar.lists import options_text

SPREAD = re.compile(r"( ± | – | → | \| | \[| \(|\]|\))")  # what stands between the numbers of one cell
INTEGER_PART = re.compile(r"[-+−<>≤≥≈ \d]*")  # of a number: what stands before its point


def short_hashes(line: str) -> str:
    """``line`` with every SHA-256 cut to its first 12 digits; JSON, Markdown and the manifest have all digits.

    >>> short_hashes("sha256 " + 16 * "53aa")
    'sha256 53aa53aa53aa…'
    """
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1…", line)


def significant(value: float | None, digits: int = 4) -> str:
    """``value`` to so many significant digits, without an exponent between 0.001 and a million; "" for null.

    >>> [significant(x) for x in (0.31236, 55.0, 133.2, 1234.4, 1.8e-5, 4.2e9, 0, None, -math.inf)]
    ['0.3124', '55.00', '133.2', '1234', '1.800e-05', '4.200e+09', '0', '', '-inf']
    """
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    if -4 < exponent < 6:
        return f"{value:.{max(digits - 1 - exponent, 0)}f}"
    return f"{value:.{digits - 1}e}"


def brief(value: float | None) -> str:
    """Three digits, with a short exponent from 10⁴ on and below 10⁻³.

    >>> [brief(x) for x in (0.001, 0.000999, 9999.0, 1e4)]
    ['0.00100', '9.99e-4', '9999', '1.00e4']
    >>> [brief(x) for x in (1.0, 333.3, 4.42e7, 1.5e-16, 0.0, None, float("-inf"))]
    ['1.00', '333', '4.42e7', '1.50e-16', '0', '∞', '−∞']
    >>> [brief(x) for x in (-333.3, -4.42e7, -1.5e-16)]
    ['-333', '-4.42e7', '-1.50e-16']
    """
    if value is None or math.isinf(value) or math.isnan(value):
        return "−∞" if value == -math.inf else "∞"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return significant(value, 3)
    digits, exponent = f"{value:.2e}".split("e")
    return f"{digits}e{int(exponent)}"


def beyond_limit(value: float | None, limit: float) -> str:
    """The `brief` value, or as many digits as show that it is above ``limit``.

    >>> [beyond_limit(x, 0.3) for x in (0.4, 0.30004, 0.30000000000000004, 0.2, None)]
    ['0.400', '0.30004', '0.30000000000000004', '0.200', '∞']
    """
    if value is None or not limit < value < math.inf:
        return brief(value)
    texts = [brief(value), *(significant(value, digits) for digits in range(4, 18))]
    return next(text for text in texts if float(text) > limit)


def per_cent(fraction: float | None) -> str:
    """A share as a percentage to three significant digits, at most two decimals below 1 %.

    >>> [per_cent(x) for x in (1, 0.25, 0.0312, 0.00021, 3e-7, 0, None)]
    ['100%', '25.0%', '3.12%', '0.02%', '<0.01%', '0%', '']
    """
    if fraction is None:
        return ""
    percent = 100 * fraction
    if 0 < percent < 0.01:
        return "<0.01%"
    return f"{percent:.2f}%" if 0 < percent < 1 else f"{significant(percent, 3)}%"


def aligned(column: Sequence[str]) -> list[str]:
    """The strings padded to one width, aligned at their decimal points (or ends).

    In pairs and spreads, such as ``1.5 [0.8 – 2]`` or ``3 ± 0.1``, each number is aligned with its like.

    >>> aligned(["0.3124", "133.2", "", "12%"])
    ['  0.3124', '133.2   ', '        ', ' 12%    ']
    >>> aligned(["1.5 ± 0.25", "-12 ± 1"])
    ['  1.5 ± 0.25', '-12   ± 1   ']
    """
    split = [SPREAD.split(text) if text.lstrip("+-−")[:1].isdigit() else [text] for text in column]
    lines = [""] * len(column)
    for place in range(max(map(len, split), default=0)):
        pieces = [parts[place] if place < len(parts) else "" for parts in split]
        lines = [line + piece for line, piece in zip(lines, _at_the_point(pieces), strict=True)]
    return lines


def _at_the_point(pieces: Sequence[str]) -> list[str]:
    heads = [INTEGER_PART.match(piece)[0] for piece in pieces]  # pyright: ignore[reportOptionalSubscript]: matches all
    left = max(map(len, heads), default=0)
    tails = [piece[len(head) :] for piece, head in zip(pieces, heads, strict=True)]
    right = max(map(len, tails), default=0)
    return [head.rjust(left) + tail.ljust(right) for head, tail in zip(heads, tails, strict=True)]


def method_label(row: Fields) -> str:
    """The method as the command line takes it: ``NAME[:k=v,…]``; empty for a row without a method.

    >>> method_label({"method": "skyformer", "options": {"ridge": 0.001, "inverse": "newton"}})
    'skyformer:inverse=newton,ridge=0.001'
    """
    options = options_text(row.get("options"))
    return (row["method"] or "") + (f":{options}" if options else "")


OPEN = "≈"  # an interval that did not close, and a statistic that is not reproducible
UNITS = {"ms": 1e3, "MiB": 2.0**-20, "G": 1e-9}  # what a value in seconds, bytes or single pieces is multiplied by
NAMED: Mapping[str, Callable[[Any], str]] = {"brief": brief, "share": per_cent}


def formatted(value: Any, specification: str) -> str:
    """A value as tables show it. The specification is one of

    - ``brief`` and ``share``: see `brief` and `per_cent`.
    - ``3``, ``3ms``, ``3MiB``, ``3G``: so many significant digits, in a unit of `UNITS`.
    - ``.2f``, ``+.2f``, ``g``, …: Python's own.
    """
    if specification in NAMED:
        return NAMED[specification](value)
    if specification[:1].isdigit():
        return significant(value * UNITS.get(specification[1:], 1), int(specification[0]))
    return format(value, specification)


def cell_text(templates: Sequence[str], row: Mapping[str, Any]) -> str:
    """A cell from format strings: the first, then those of the others whose fields the row has.

    It is empty where a field of the first is missing or null.

    >>> cell_text(["{rank:g}/{size}"], {"rank": 3.0, "size": 4}), cell_text(["{error:3}"], {"error": None})
    ('3/4', '')
    >>> cell_text(["{seconds:3ms}", " ± {spread:2ms}"], {"seconds": 0.5, "spread": None})
    '500'

    A statistic of a metric that is not reproducible has `OPEN` in front.

    >>> row = {"metrics": {"delta": {"mean": 87.29, "median": 0.5}}, "fragile": {"delta": {"mean": [0.1, math.inf]}}}
    >>> cell_text(["{metrics[delta][mean]:4} and {metrics[delta][median]:4}"], row)
    '≈87.29 and 0.5000'
    """
    texts = [_written(template, row) for template in templates]
    return "".join(text for text in texts if text) if texts[0] else ""


def is_fragile(row: Fields, metric: str, name: str) -> bool:
    """Whether a statistic is not reproducible."""
    return name in (row.get("fragile") or {}).get(metric, ())


def _written(template: str, row: Mapping[str, Any]) -> str:
    text = ""
    for literal, keys, specification in _parsed(template):
        text += literal
        if keys:
            value = row
            for key in keys:
                try:
                    value = value[key]
                except (KeyError, IndexError, TypeError):  # a field is missing, or null where it has parts
                    return ""
            if value is None:
                return ""
            text += OPEN if keys[0] == "metrics" and len(keys) == 3 and is_fragile(row, *keys[1:]) else ""
            text += formatted(value, specification)
    return text


@cache
def _parsed(template: str) -> list[tuple[str, list[Any], str]]:
    """The parts of a template: text, the keys of the field behind it (numbers are places in lists), its format."""
    return [
        (literal, [int(key) if key.isdigit() else key for key in re.findall(r"[^\[\]]+", name or "")], format or "")
        for literal, name, format, _ in Formatter().parse(template)
    ]
