"""Figures of heat maps on one colour scale: a line for each method or layer, a column for each head or position."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ...figures.drawing import Drawing
from ...figures.kit import EMPTY, LEADING, Scale, cell_text, heat_map, panel_name, word_inches
from ...figures.methods import BAD
from ...figures.panels import Panels, balanced
from ...tables.methods import ROUNDING

Map = tuple[Any, Any]  # values, and whether a cell has bad rows, both (lines, columns)
Lines = Sequence[int | str]  # of a map, layers or names of methods

CELL, WIDEST = 0.085, 0.4  # inches of a cell's width, at least and at most
HIGHEST = 0.24  # inches of its height, at most, on a page that is no slide
CLEAR = {False: 0.12, True: 0.17}  # inches beyond which cells need not be larger, by whether the page is a slide
FEWEST = 7  # columns that a map has room for, at least
GAP, WORDS, AROUND = 0.14, 0.35, 0.9  # inches between maps, of their titles and numbers, and of all else on a page
NAMES = 0.3  # of the width of a page, that names of methods have at most
BAR, ROW = 0.75, 0.2  # inches of the colour scale, and of the names of rows of maps
MISSING = "not measured, or not finite"
LEAST = f"at most {ROUNDING:.0e}".replace("e-0", "e-")
SIGNS = {"!": BAD, "+": "above the scale", "−": "below the scale", "·": LEAST}  # in cells
BLANK = {"color": EMPTY, "linestyle": "", "marker": "s", "markersize": 7}
NOTHING = {"linestyle": "", "marker": ""}
RULE = {"color": "white", "linewidth": 3.5}


def heat_maps(
    panels: Sequence[tuple[str, Map]],
    lines: Lines,
    columns: Lines,
    scale: Scale,
    budgets: int,
    drawing: Drawing,
    strong: Collection[str] = (),
    last: Collection[str] = (),
    **words: Any,
) -> Panels:
    """A map for each panel, with the budgets of a line of blocks beside each other.

    Values beyond the scale have the colour of its end and a sign. Cells with bad rows have ``!``. Grey cells have no
    finite value.

    Args:
        strong: names of lines in bold type. last: those of the last lines, which a rule sets apart. words: fields of
            `Panels`.
    """
    low, high = scale.low, scale.high
    above = sum(line not in last for line in lines)
    bold, flagged = [line in strong for line in lines], any(" !" in str(line) for line in lines)
    lines = [
        panel_name(line, NAMES * drawing.sizes.wide, drawing.small) if isinstance(line, str) else line for line in lines
    ]
    across, wide, tall = _sizes(lines, columns, len(panels), budgets, drawing)

    def draw(axis: Any, shown: Map) -> None:
        values, signs = shown[0], _signs(shown, low, high)
        positive = np.where(np.isfinite(values), np.maximum(values, low), math.nan)  # zero has no logarithm
        heat_map(axis, positive, lines, columns, tall / wide, linewidth=0.3, **scale.look)
        for place in zip(*np.nonzero(np.any([*signs.values()], axis=0)), strict=True):
            text = "".join(sign for sign, there in signs.items() if there[place])
            cell_text(axis, place, text, min(wide, tall), bool(values[place] < math.sqrt(low * high)))
        if 0 < above < len(lines):
            axis.axhline(above, **RULE)
        if any(bold):
            for text, one in zip(axis.get_yticklabels(), bold, strict=False):  # none within a row
                text.set_fontweight("bold" if one else "normal")
        axis.tick_params(labelleft=axis.get_subplotspec().is_first_col())

    def legend(page: Sequence[Map]) -> dict[str, Any]:
        there = {sign for shown in page for sign, cells in _signs(shown, low, high).items() if cells.any()}
        there |= {"!"} if flagged else set()
        blank = {MISSING: BLANK} if any(np.isnan(values).any() for values, _ in page) else {}
        return blank | {f"{sign} {meaning}": NOTHING for sign, meaning in SIGNS.items() if sign in there}

    return Panels(
        panels=panels,
        draw=draw,
        width=0.99 * drawing.sizes.wide / across,
        legend=legend,
        height=GAP + WORDS + tall * len(lines),
        columns=across,
        sharing={"sharex": True},
        scale=scale,
        named=wide * max(len(columns), FEWEST),
        **words,
    )


def most_lines(drawing: Drawing) -> int:
    """How many lines with names a page has."""
    return int((drawing.sizes.tall - AROUND - WORDS - GAP) / (drawing.small * LEADING / 72))


def _sizes(lines: Lines, cells: Lines, panels: int, budgets: int, drawing: Drawing) -> tuple[int, float, float]:
    """Maps in a row, and the width and height of a cell, in inches.

    A row has all budgets of as many blocks as have room, unless cells are larger with fewer. If one block has no room,
    a row has a part of its budgets.
    """
    sizes, letter, names = drawing.sizes, drawing.small, [str(line).splitlines() for line in lines]
    room = sizes.wide - BAR - ROW - max(word_inches(word, letter) for name in names for word in name)
    blocks, clear = math.ceil(panels / budgets), CLEAR[sizes.fixed]

    def cell(columns: int) -> tuple[float, float]:
        wide = min(WIDEST, (room / columns - GAP) / max(len(cells), FEWEST))
        fitting = ((sizes.tall - AROUND) / math.ceil(panels / columns) - WORDS - GAP) / len(lines)  # on one page
        return wide, min(2 * wide if sizes.fixed else min(HIGHEST, wide), fitting)

    parts = [part for part in range(budgets, 0, -1) if budgets % part == 0]
    whole = [balanced(blocks, most) * budgets for most in range(blocks, 1, -1)] + parts[:1]
    possible = [columns for columns in whole if cell(columns)[0] >= CELL]
    columns = max(possible, key=lambda columns: min(*cell(columns), clear), default=0)
    columns = columns or next((part for part in parts if cell(part)[0] >= CELL), 1)
    wide, tall = cell(columns)
    return columns, wide, max(tall, max(map(len, names)) * letter * LEADING / 72)


def _signs(shown: Map, low: float, high: float) -> dict[str, Any]:
    """The cells, (lines, columns), that have each of `SIGNS`."""
    values, spoiled = shown
    below, least = values < low, values <= ROUNDING
    return dict(zip(SIGNS, (spoiled, values > high, below & ~least, below & least), strict=True))
