"""Exact and approximate attention side by side, as block averages; byte for byte the same for the same maps."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError
from ...figures.kit import chunks, drawn, letters, title_lines
from ...records.file import exact_map_path, map_path, mapped
from ...tables.labels import file_tag, identity, source_heading, source_labels
from ...tables.numbers import method_label, significant
from ...tables.table import gathered
from .map_scale import ABOVE, BELOW, BROKEN, NEGATIVE, POSITIVE, SMALL, Scale, number, palette, ticks_of

__all__ = ["map_figures"]

Record = Mapping[str, Any]

HEADS = 12  # rows of a figure
COLUMNS = 8  # of a figure, the exact one included; more go on in the next figure
DPI = 160  # of the PNG, whose pixels blocks and gaps are made of
GAP = 8  # pixels between panels
LEFT, RIGHT = 0.66, 0.12  # inches beside the panels
LINE = 0.16  # inches of a line of text
GREY = "#444444"


@dataclass(frozen=True)
class Column:
    """What stands in one column: its heading, the maps of its heads (h, b_q, b_k), and in words why there is none."""

    heading: tuple[str, ...]
    maps: np.ndarray | None
    empty: str = ""


def map_figures(
    records: Sequence[Record],
    run: str | Path,
    header_line: str,
    out_dir: str | Path,
    missing: Mapping[str, str] | None = None,
) -> list[Path]:
    """Draw the maps that a run's folder holds: a figure for each (source, layer, n), a row per head, a column per cell.

    The first column is exact attention, the others are the requested methods at each budget, of the first window and
    the first seed. All panels share one colour scale, logarithmic in the size of a mean and with other colours for
    negative ones; its ends are those of the exact maps. What is smaller, larger or not finite has colours of its own,
    which a legend names. A column without maps says why. At most the first 12 heads are drawn, and the figure says
    which are not; beyond 7 methods and budgets it goes on in another one, with the exact column again.

    Args:
        records: of a run of ``attnprobe error``. run: its folder, with ``maps/``.
        header_line: the title: the source and every fallback, in one or more lines.
        out_dir: where ``maps-layerL-nN.svg`` and ``.png`` are written (``-2``, … where they go on).
        missing: why a cell has no map, by its key.

    Returns:
        The files' paths; none where no map is there.

    Raises:
        UsageError: a file that is no map.
    """
    paths: list[Path] = []
    labels = source_labels(records)

    def place(record: Record) -> tuple[Any, ...]:
        return labels[identity(record["source"])], record["n"], record["layer"]

    for shown in gathered(mapped(records), place):
        source, n, layer = place(shown[0])
        exact = _read(exact_map_path(run, shown[0]), len(shown[0]["heads"]))
        columns = [_column(record, run, missing or {}) for record in shown]
        if exact is None or all(column.maps is None for column in columns):
            continue
        target, scale = shown[0]["target"], Scale.of(exact[:HEADS])
        first = Column(("exact " + ("B" if target == "softmax" else "C"),), exact)
        every = [record for record in records if place(record) == place(shown[0])]
        lines = _told(every, shown, source, exact.shape)
        pages = [*enumerate(chunks([*zip(columns, shown, strict=True)], COLUMNS - 1), 1)]

        def draw(page: Any, first=first, shown=shown, scale=scale, lines=lines, pages=pages) -> Any:
            number, beside = page
            some, cells = zip(*beside, strict=True)
            told = lines
            if len(pages) > 1:
                which = f"figure {number} of {len(pages)}"
                told = [*lines, f"{which} of these methods and budgets, all on one colour scale"]
            notes, target = _notes(cells, missing or {}), shown[0]["target"]
            return _figure([first, *some], shown[0]["heads"], scale, header_line, told, notes, target)

        paths += drawn(pages, draw, Path(out_dir) / f"maps-layer{layer}-n{n}{file_tag(source)}")
    return paths


def _read(path: Path, heads: int) -> np.ndarray | None:
    if not path.exists():
        return None
    try:
        found = np.load(path, allow_pickle=False)
        if found.ndim != 3 or len(found) != heads or found.dtype.kind != "f":
            raise ValueError
    except (ValueError, OSError, EOFError) as error:
        raise UsageError(f"{path}: this is no map; remove it, and it is made again") from error
    return found.astype(np.float64)


def _column(record: Record, run: str | Path, missing: Mapping[str, str]) -> Column:
    ran = record["status"] in ("ok", "diverged")
    maps = _read(map_path(run, record["key"]), len(record["heads"])) if ran else None
    empty = "" if maps is not None else "no map" if record["status"] == "ok" else record["status"]
    return Column((method_label(record), *_budget(record)), maps, empty)


def _budget(record: Record) -> list[str]:
    """``d = 32``, and what the method made of it on average where that differs."""
    found = [value for value in (record.get("metrics") or {}).get("realised_d") or () if value is not None]
    used = sum(found) / len(found) if found else record["d"]
    parts = [] if record["d"] is None else [f"d = {record['d']}"]
    parts += [] if used == record["d"] or record["d"] is None else [f"(used {used:.1f})".replace(".0)", ")")]
    return parts


def _notes(records: Sequence[Record], missing: Mapping[str, str]) -> list[str]:
    """A line for each column that lacks something; budgets with one reason share it."""
    budgets: dict[tuple[str, str], list[str]] = {}
    for record in records:
        told = missing.get(record["key"])
        if record["status"] != "ok":
            told = f"{record['status']}, {record.get('reason') or 'for no known reason'}"
        if told:
            budgets.setdefault((method_label(record), told), []).append(str(record["d"] or ""))
    return [f"{name}{' d = ' + ', '.join(d) if all(d) else ''}: {told}" for (name, told), d in budgets.items()]


def _told(records: Sequence[Record], here: Sequence[Record], source: str | None, shape: tuple[int, ...]) -> list[str]:
    """What figures show of the records of their place, and what they leave out."""
    one, (_, b_q, b_k) = here[0], shape
    n = one["n"]
    about = "about " if n % b_q or n % b_k else ""
    sizes = " x ".join(f"{n / blocks:.1f}".removesuffix(".0") for blocks in (b_q, b_k))
    what = "every entry" if (b_q, b_k) == (n, n) else f"means of blocks of {about}{sizes} entries"
    heading = source_heading({"source": source, "weights": one["source"].get("weights")})
    parts = [*([heading] if heading else []), f"layer {one['layer']}", f"n = {n}"]
    parts += [] if one["target"] == "softmax" else [f"target {one['target']}"]
    windows = len({record["window"] for record in records})
    seeds = len({record["seed"] for record in records})
    parts += [f"window 0 of {windows}"] if windows > 1 else []
    parts += [f"seed {one['seed']}" + (f", the first of {seeds}" if seeds > 1 else "")]
    lines = [f"{', '.join(parts)}: {what}; queries run downward, keys to the right"]
    left = one["heads"][HEADS:]
    if left:
        lines.append(f"heads {', '.join(map(str, left))} are not drawn; --head chooses which are")
    return lines


def _figure(
    columns: Sequence[Column],
    heads: Sequence[int],
    scale: Scale,
    title: str,
    told: Sequence[str],
    notes: Sequence[str],
    target: str,
) -> Any:
    """One figure, laid out in whole pixels of the PNG so that blocks are squares of one size."""
    from matplotlib.figure import Figure

    heads = heads[:HEADS]
    side = _side(len(columns), len(heads))  # pixels
    inches = max(6.4, LEFT + RIGHT + len(columns) * (side + GAP) / DPI)
    width = round(inches * DPI)
    start = LEFT * DPI + (width - (LEFT + RIGHT) * DPI - len(columns) * (side + GAP)) / 2
    above = [*title_lines(title, letters(inches)), *(part for line in told for part in _wrapped(line, inches))]
    below = [part for line in notes for part in _wrapped(line, inches)]
    headings = [_heading(column.heading, side) for column in columns]
    deep = max(map(len, headings))
    legend = _legend(columns, scale)
    rows = _rows(legend, inches)
    top = round((0.1 + LINE * len(above) + 0.1 + 0.15 * deep) * DPI)
    bottom = round((0.8 + LINE * (len(rows) + len(below)) + (0.06 if below else 0)) * DPI)
    height = top + len(heads) * (side + GAP) + bottom
    figure = Figure(figsize=(width / DPI, height / DPI))
    for line, text in enumerate(above):
        _text(figure, 0.012, 1 - (0.1 + LINE * line) * DPI / height, text, va="top")
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
    negative = any((column.maps[:HEADS] <= -scale.low).any() for column in columns if column.maps is not None)
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
    return figure


def _side(columns: int, heads: int) -> int:
    """Pixels of a panel's side, a multiple of 64: large where there are few."""
    if columns <= 2 and heads <= 2:
        return 6 * 64
    return 4 * 64 if columns <= 4 and heads <= 6 else 3 * 64


def _panel(axis: Any, column: Column, row: int, scale: Scale) -> None:
    """One head of one column; where there is none, why."""
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set(visible=True, color="#999999", linewidth=0.5)
    if column.maps is not None:
        axis.imshow(scale.painted(column.maps[row]), interpolation="none", aspect="auto")
    else:
        axis.text(0.5, 0.5, column.empty, transform=axis.transAxes, ha="center", va="center", fontsize=8, color=GREY)


def _bar(
    figure: Any, scale: Scale, what: str, negative: bool, left: float, wide: float, width: int, height: int, bottom: int
) -> None:
    """The colour scale beneath the panels, with a strip for negative means where there are any."""
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
    axis.set_xticklabels([number(value) for value in ticks], fontsize=8)
    axis.tick_params(length=2.5, pad=2)
    for spine in axis.spines.values():
        spine.set(visible=True, color="#999999", linewidth=0.5)
    signs = "; orange: negative ones of that size" if negative else ""
    axis.set_xlabel(f"{what}{signs}", fontsize=8, labelpad=2)


def _legend(columns: Sequence[Column], scale: Scale) -> list[tuple[tuple[int, int, int], str]]:
    """The colours outside the scale that some panel has, and what they mean."""
    low, high = (number(float(significant(end, 2))) for end in (scale.low, scale.high))
    names = {SMALL: f"smaller than {low} (or 0)", ABOVE: f"above {high}", BELOW: f"below −{high}", BROKEN: "not finite"}
    drawn = [scale.outside(column.maps[:HEADS]) for column in columns if column.maps is not None]
    return [(colour, name) for colour, name in names.items() if any(found[colour].any() for found in drawn)]


def _rows(legend: Sequence[Any], inches: float) -> list[list[Any]]:
    """The legend's entries line by line."""
    beside = max(1, int(inches / 1.5))
    return [list(legend[start : start + beside]) for start in range(0, len(legend), beside)]


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


def _heading(heading: tuple[str, ...], side: int) -> list[str]:
    """A column's heading in lines no wider than its panel: broken after ``:`` and ``,`` where it has to be."""
    letters = max(8, int(side / DPI * 15.5))
    lines = [""]
    for piece in re.findall(r"[^:,]+[:,]?|[:,]", heading[0]):
        for part in textwrap.wrap(piece, letters, break_on_hyphens=False):
            if len(lines[-1]) + len(part) > letters and lines[-1]:
                lines.append("")
            lines[-1] += part
    budget = " ".join(heading[1:])
    return [*lines, *([budget] if len(budget) <= letters else heading[1:])] if budget else lines


def _wrapped(line: str, inches: float) -> list[str]:
    return textwrap.wrap(line, letters(inches), subsequent_indent="    ")


def _text(figure: Any, x: float, y: float, text: str, **look: Any) -> None:
    figure.text(x, y, text, fontsize=8, parse_math=False, **look)
