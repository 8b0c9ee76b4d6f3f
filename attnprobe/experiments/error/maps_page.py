"""One page of maps, laid out in whole pixels so that blocks are squares of one size."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...figures.drawing import Drawing
from ...figures.kit import Sheet, letters, title_inches, title_lines
from ...figures.looks import GREY
from ...tables.numbers import significant
from .map_scale import ABOVE, BELOW, BROKEN, NEGATIVE, POSITIVE, SMALL, Scale, number, palette, ticks_of

MOST_HEADS = 12  # rows of a figure
LEAST = 128  # pixels of a panel's side
LINE = 0.15  # inches of a line of text
DPI = 160  # of the PNG, whose pixels blocks and gaps are made of
GAP = 8  # pixels between panels
LEFT, RIGHT = 0.66, 0.12  # inches beside the panels


@dataclass(frozen=True)
class MapColumn:
    """One column: its heading, the maps of its heads (h, b_q, b_k), and the reason if there is none."""

    heading: tuple[str, ...]
    maps: np.ndarray | None
    empty: str = ""


def heads_drawn(drawing: Drawing) -> int:
    """How many heads a figure draws."""
    return min(MOST_HEADS, drawing.sizes.down((LEAST + GAP) / DPI)) if drawing.sizes.fixed else MOST_HEADS


def columns_of_page(drawing: Drawing) -> int:
    """How many columns a figure has at most."""
    return int(((drawing.sizes.wide - LEFT - RIGHT) * DPI) / (LEAST + GAP))


def maps_page(
    columns: Sequence[MapColumn],
    heads: Sequence[int],
    scale: Scale,
    drawing: Drawing,
    caption: Sequence[str],
    notes: Sequence[str],
    target: str,
) -> Sheet:
    """One figure, laid out in whole pixels of the PNG so that blocks are squares of one size."""
    from matplotlib.figure import Figure

    style = drawing.sizes
    heads = heads[: heads_drawn(drawing)]
    inches = style.wide
    width = round(inches * DPI)
    title = f"Exact and approximate attention {'B' if target == 'softmax' else 'C'}, head by head"
    above = title_lines(title, inches, style.size)
    below = [part for line in notes for part in _wrapped(line, inches, style.size)]
    legend = _legend(columns, scale, len(heads))
    rows = _rows(legend, inches)
    bottom = round((0.8 + LINE * (len(rows) + len(below)) + (0.06 if below else 0)) * DPI)
    side = _side(columns, len(heads), drawing, bottom)  # pixels
    start = LEFT * DPI + (width - (LEFT + RIGHT) * DPI - len(columns) * (side + GAP)) / 2
    headings = [heading_lines(column.heading, side) for column in columns]
    deep = max(map(len, headings))
    top = round((0.2 + title_inches(above, style.size) + LINE * deep) * DPI)
    needed = top + len(heads) * (side + GAP) + bottom
    height = max(needed, round(style.tall * DPI)) if style.fixed else needed
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    look = {"va": "top", "fontsize": style.size}
    figure.text(0.04 / inches, 1 - 0.1 * DPI / height, "\n".join(above), parse_math=False, **look)
    for index, (column, heading) in enumerate(zip(columns, headings, strict=True)):
        left = round(start) + index * (side + GAP)
        _text(
            figure,
            (left + side / 2) / width,
            1 - (top - 7) / height,
            "\n".join(heading),
            va="bottom",
            ha="center",
            linespacing=1.25,
        )
        for row, head in enumerate(heads):
            low = height - top - (row + 1) * side - row * GAP
            axis = figure.add_axes((left / width, low / height, side / width, side / height))
            _panel(axis, column, row, scale)
            if index == 0:
                _text(figure, (left - 9) / width, (low + side / 2) / height, f"head {head}", ha="right", va="center")
    negative = any((column.maps[: len(heads)] <= -scale.low).any() for column in columns if column.maps is not None)
    what = "mean weight of a block" if target == "softmax" else "mean entry of a block"
    _bar(figure, scale, what, negative, start / width, len(columns) * (side + GAP) - GAP, width, height, bottom)
    line = bottom - round(0.74 * DPI)
    for entries in rows:
        _keys(figure, entries, round(start), line, width, height)
        line -= round(LINE * DPI)
    line -= round(0.06 * DPI)
    for text in below:
        _text(figure, 0.012, line / height, text, va="center")
        line -= round(LINE * DPI)
    return Sheet(figure, title, [*caption, *(f"{note}." for note in notes)])


def _side(columns: Sequence[MapColumn], heads: int, drawing: Drawing, bottom: int) -> int:
    """Pixels of a panel's side: the largest multiple of 64 that fits, at most 384."""
    wide = ((drawing.sizes.wide - LEFT - RIGHT) * DPI) / len(columns) - GAP
    room = drawing.sizes.tall * DPI - bottom - 0.6 * DPI
    tall = room / heads - GAP
    return min(6, max(LEAST // 64, int(min(wide, tall) // 64))) * 64


def _panel(axis: Any, column: MapColumn, row: int, scale: Scale) -> None:
    """One head of one column, or the reason why it has no map."""
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set(visible=True, color="#999999", linewidth=0.5)
    if column.maps is not None:
        axis.imshow(scale.painted(column.maps[row]), interpolation="none", aspect="auto")
    else:
        axis.text(
            0.5, 0.5, column.empty, transform=axis.transAxes, ha="center", va="center", fontsize="small", color=GREY
        )


def _bar(
    figure: Any, scale: Scale, what: str, negative: bool, left: float, wide: float, width: int, height: int, bottom: int
) -> None:
    """The colour scale below the panels, with a strip for negative means if there are any."""
    from matplotlib.ticker import FixedLocator, NullLocator

    signs = [POSITIVE, NEGATIVE] if negative else [POSITIVE]
    place = (left, (bottom - round(0.22 * DPI)) / height, wide / width, round(0.13 * DPI) / height)
    axis = figure.add_axes(place)
    axis.imshow(np.stack([palette(sign) for sign in signs]), interpolation="none", aspect="auto", extent=(0, 1, 0, 1))
    axis.set_yticks([])
    span = math.log10(scale.high / scale.low)
    ticks = ticks_of(scale)
    axis.xaxis.set_major_locator(FixedLocator([math.log10(value / scale.low) / span for value in ticks]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticklabels([number(value) for value in ticks], fontsize="small")
    axis.tick_params(length=2.5, pad=2)
    for spine in axis.spines.values():
        spine.set(visible=True, color="#999999", linewidth=0.5)
    signs = "; orange: negative ones of that size" if negative else ""
    axis.set_xlabel(f"{what}{signs}", fontsize="small", labelpad=2)


def _legend(columns: Sequence[MapColumn], scale: Scale, heads: int) -> list[tuple[tuple[int, int, int], str]]:
    """The colours outside the scale that some panel has, and what they mean."""
    low, high = (number(float(significant(end, 2))) for end in (scale.low, scale.high))
    names = {SMALL: f"smaller than {low} (or 0)", ABOVE: f"above {high}", BELOW: f"below −{high}", BROKEN: "not finite"}
    drawn = [scale.outside(column.maps[:heads]) for column in columns if column.maps is not None]
    return [(colour, name) for colour, name in names.items() if any(marked[colour].any() for marked in drawn)]


def _rows(legend: Sequence[Any], inches: float) -> list[list[Any]]:
    """The legend's entries line by line."""
    columns = max(1, int(inches / 1.5))
    return [list(legend[start : start + columns]) for start in range(0, len(legend), columns)]


def _keys(figure: Any, entries: Sequence[Any], left: int, middle: int, width: int, height: int) -> None:
    """Patches of colour with their names, side by side."""
    from matplotlib.patches import Rectangle

    for colour, name in entries:
        size = round(0.1 * DPI)
        look = {"facecolor": [part / 255 for part in colour], "edgecolor": "#999999", "linewidth": 0.5}
        corner = (left / width, (middle - size // 2) / height)
        figure.add_artist(Rectangle(corner, size / width, size / height, transform=figure.transFigure, **look))
        _text(figure, (left + 1.5 * size) / width, middle / height, name, va="center")
        left += round((0.4 + 0.06 * len(name)) * DPI)


def heading_lines(heading: tuple[str, ...], side: int) -> list[str]:
    """A column's heading in lines no wider than its panel, broken after ``:`` and ``,``."""
    most = letters(side / DPI, 7)
    lines = [""]
    for piece in re.findall(r"[^:,]+[:,]?|[:,]", heading[0]):
        for part in textwrap.wrap(piece, most, break_on_hyphens=False):
            if len(lines[-1]) + len(part) > most and lines[-1]:
                lines.append("")
            lines[-1] += part
    budget = " ".join(heading[1:])
    return [*lines, *([budget] if len(budget) <= most else heading[1:])] if budget else lines


def _wrapped(line: str, inches: float, size: float) -> list[str]:
    return textwrap.wrap(line, letters(inches, size), subsequent_indent="    ")


def _text(figure: Any, x: float, y: float, text: str, **look: Any) -> None:
    figure.text(x, y, text, fontsize="small", parse_math=False, **look)
