"""Exact and approximate attention side by side, as block averages; byte for byte the same for the same maps."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError
from ...figures.drawing import Drawing
from ...figures.files import chunks
from ...figures.kit import EMPTY, Scale, type_size
from ...figures.looks import GREY, sentence
from ...figures.panels import Panels, draw_figures
from ...files import MIB, read_regular, reading
from ...records.file import exact_map_path, map_path, mapped
from ...tables.labels import file_tag, identity, source_heading, source_labels
from ...tables.numbers import method_label
from ...tables.table import gathered

Record = Any
Column = tuple[str, Any]  # its heading, and its maps, (h, b_q, b_k), that of a head, or the reason why there are none
LARGEST = 256 * MIB  # of a file
WIDTH, WIDEST, SIDES = 0.9, 1.9, 1.1  # inches of a map, at least and at most, and of what is beside all
SPARE, LINE = 0.1, 0.14  # inches between two heads, and of a line of the headings
LETTERS = 14  # of a line of a heading that can be broken
LETTER = 0.0079  # inches of a letter of a heading, for each point of its type
GAP = 0.07  # between two maps, of a map
SQUARE = {"linestyle": "", "marker": "s", "markersize": 7, "markeredgecolor": "#999999", "markeredgewidth": 0.5}
SMALLEST = 1e-4  # of the largest mean: the least low end of the scale
COLOURS = (
    "Orange: negative means of that size. White: smaller, or 0. Black: larger, or negative and larger. "
    "Grey: not finite."
)


def map_figures(
    records: Sequence[Record],
    run: str | Path,
    drawing: Drawing,
    out_dir: str | Path,
    missing: Mapping[str, str] | None = None,
) -> list[Path]:
    """Draw the maps that a run's folder holds: a figure for each (source, layer, n), a row per head, a column per cell.

    The first column is exact attention. The others are the requested methods at each budget, of the first window and
    the first seed. All panels share one logarithmic colour scale, whose ends the exact maps give. Negative means are
    orange; values that are smaller, larger or not finite have their own colours. A column without maps says why. Heads,
    methods and budgets beyond a page go to another one, which repeats the exact column.

    Args:
        records: of a run of ``attnprobe error``. run: its folder, with ``maps/``.
        out_dir: where ``maps-layerL-nN.svg`` and the like are written (``-2``, … where they go on).
        missing: why a cell has no map, by its key.

    Returns:
        The files' paths; none if there is no map.

    Raises:
        UsageError: a file that is not a map.
    """
    labels = source_labels(records)

    def place(record: Record) -> tuple[Any, ...]:
        return labels[identity(record["source"])], record["n"], record["layer"]

    figures: list[Panels] = []
    for shown in gathered(mapped(records), place):
        exact = _read(exact_map_path(run, shown[0]), len(shown[0]["heads"]))
        columns = [_column(record, run) for record in shown]
        if exact is None or all(isinstance(maps, str) for _, maps in columns):
            continue
        source, every = place(shown[0])[0], [record for record in records if place(record) == place(shown[0])]
        caption = [_place(every, shown, source, exact.shape), COLOURS, *_notes(shown, missing or {})]
        pages = _pages(columns, drawing.sizes.across(WIDTH) - 1)
        figures += [_figure(shown[0], exact, part, caption, file_tag(source), drawing) for part in pages]
    return draw_figures(figures, drawing, out_dir)


def _pages(columns: Sequence[Column], most: int) -> list[Sequence[Column]]:
    """The columns of each page, at most so many; the budgets of a method stay together if they fit on a page."""
    each = max(map(len, gathered(columns, lambda column: column[0].partition("\nd = ")[0])))
    return chunks(columns, most // each * each or most)


def _figure(
    record: Record, exact: np.ndarray, columns: Sequence[Column], caption: Sequence[str], tag: str, drawing: Drawing
) -> Panels:
    """A panel for each head: its exact map, and those of some methods and budgets."""
    matrix = "B" if record["target"] == "softmax" else "C"
    scale = _scale(exact, "mean weight of a block" if matrix == "B" else "mean entry of a block")
    every = [(f"exact {matrix}\nlayer {record['layer']}\nn = {record['n']}", exact), *columns]
    panels = [
        ("", (f"head {head}", [(name, maps if isinstance(maps, str) else maps[place]) for name, maps in every]))
        for place, head in enumerate(record["heads"])
    ]
    width = SIDES + WIDTH * len(every)
    side = (drawing.sizes.inches(1, width) - SIDES) / len(every) / (1 + GAP)
    height = min(side, WIDEST) * exact.shape[1] / exact.shape[2] + SPARE
    letters = max(len(line) for heading, _ in every for line in heading.split("\n"))
    size = side / LETTER / (letters + 0.5)
    headings = LINE * max(1 + heading.count("\n") for heading, _ in every)
    return Panels(
        f"maps-layer{record['layer']}-n{record['n']}{tag}",
        f"Exact and approximate attention {matrix}, head by head",
        caption,
        panels,
        partial(_draw, scale, size),
        legend=partial(_outside, scale),
        width=width,
        height=height + headings / min(len(panels), drawing.sizes.down(height)),
        columns=1,
        sharing={},
        scale=scale,
    )


def _outside(scale: Scale, panels: Sequence[tuple[str, Sequence[Column]]]) -> dict[str, dict[str, Any]]:
    """The legend of colours that the bar of the scale lacks, of those that panels have."""
    from matplotlib import colormaps

    maps = [values.ravel() for _, columns in panels for _, values in columns if not isinstance(values, str)]
    values = np.concatenate(maps)
    sizes = np.abs(values[np.isfinite(values)])
    colours = {
        "negative": (colormaps["Oranges"](0.6), bool((values < 0).any())),
        "below the scale, or 0": ("white", bool((sizes < scale.low).any())),
        "above the scale": ("black", bool((sizes > scale.high).any())),
        "not finite": (EMPTY, sizes.size < values.size),
    }
    return {name: {**SQUARE, "markerfacecolor": colour} for name, (colour, there) in colours.items() if there}


def _scale(exact: np.ndarray, label: str) -> Scale:
    """The scale of the exact maps; approximations do not change it.

    It ends at their largest mean. It begins at 10⁻⁴ of that, or at their 1 % quantile if that is larger.
    """
    values = exact[np.isfinite(exact) & (exact > 0)]
    high = float(values.max()) if values.size else 1.0
    low = max(high * SMALLEST, float(np.quantile(values, 0.01))) if values.size else 0.0
    low = low if 0 < low < high / 2 else high / 10
    return Scale(low, high, label, "both", "YlGnBu", {"under": "white", "over": "black"})


def _draw(scale: Scale, size: float, axis: Any, panel: tuple[str, Sequence[Column]]) -> None:
    """The maps of one head side by side, or the reason why there is none; the first row of a page has the headings.

    Args:
        size: of the headings' type at most, in points.
    """
    from matplotlib.patches import Rectangle

    head, columns = panel
    tall, wide = columns[0][1].shape
    lefts = [place * (1 + GAP) * wide for place in range(len(columns))]
    for left, (_, values) in zip(lefts, columns, strict=True):
        if isinstance(values, str):
            look = {"ha": "center", "va": "center", "fontsize": "small", "color": GREY}
            axis.text(left + wide / 2, tall / 2, values, **look)
        else:
            axis.imshow(_colours(scale, values), extent=(left, left + wide, tall, 0), interpolation="none")
        axis.add_patch(Rectangle((left, 0), wide, tall, fill=False, edgecolor="#999999", linewidth=0.5, clip_on=False))
    axis.set(xlim=(0, lefts[-1] + wide), ylim=(tall, 0), aspect="equal", ylabel=head, yticks=[], frame_on=False)
    first = axis.get_subplotspec().is_first_row()
    axis.set_xticks([left + wide / 2 for left in lefts] if first else [])
    axis.tick_params(labelbottom=False, labeltop=True, length=0, labelsize=min(size, type_size("font.size") / 1.2))
    axis.set_xticklabels([name for name, _ in columns] if first else [], parse_math=False)
    axis.grid(False)


def _colours(scale: Scale, values: np.ndarray) -> np.ndarray:
    """The colours of a map, (b_q, b_k, 4)."""
    import matplotlib
    from matplotlib.colors import to_rgba

    norm, positive = scale.look["norm"], scale.look["cmap"]
    negative = matplotlib.colormaps["Oranges"].with_extremes(under="white", over="black")
    sizes = norm(np.maximum(np.abs(np.nan_to_num(values)), scale.low / 2))  # zero has no logarithm
    colours = np.where(values[..., None] < 0, negative(sizes), positive(sizes))
    return np.where(np.isfinite(values)[..., None], colours, to_rgba(EMPTY))


def _read(path: Path, heads: int) -> np.ndarray | None:
    if not path.exists():
        return None
    with reading(path, UsageError, ": not a map; delete it, and the next run writes it again"):
        blocks = np.load(io.BytesIO(read_regular(path, LARGEST)), allow_pickle=False)
        if blocks.ndim != 3 or len(blocks) != heads or blocks.dtype.kind != "f" or not blocks.size:
            raise ValueError(f"an array {blocks.shape} of {blocks.dtype}, not maps of {heads} heads")
    return blocks.astype(np.float64)


def _column(record: Record, run: str | Path) -> Column:
    ran = record["status"] in ("ok", "diverged")
    maps = _read(map_path(run, record["key"]), len(record["heads"])) if ran else None
    parts = re.split("(?<=[:,])", method_label(record))
    lines = [line for part in parts for line in textwrap.wrap(part, LETTERS, break_long_words=False)]
    heading = "\n".join([*lines, *_budget(record)])
    return heading, maps if maps is not None else "no map" if record["status"] == "ok" else record["status"]


def _budget(record: Record) -> list[str]:
    """``d = 32``, and the mean budget that the method used if that differs."""
    budgets = [value for value in (record.get("metrics") or {}).get("realised_d") or () if value is not None]
    used = sum(budgets) / len(budgets) if budgets else record["d"]
    parts = [] if record["d"] is None else [f"d = {record['d']}"]
    parts += [] if used == record["d"] or record["d"] is None else [f"(used {used:.1f})".replace(".0)", ")")]
    return parts


def _notes(records: Sequence[Record], missing: Mapping[str, str]) -> list[str]:
    """A line for each column that lacks maps. Budgets with the same reason share a line."""
    budgets: dict[tuple[str, str], list[str]] = {}
    for record in records:
        reason = missing.get(record["key"])
        if record["status"] != "ok":
            reason = f"{record['status']}, {record.get('reason') or 'for no known reason'}"
        if reason:
            budgets.setdefault((method_label(record), reason), []).append(str(record["d"] or ""))
    return [f"{name}{' d = ' + ', '.join(d) if all(d) else ''}: {reason}." for (name, reason), d in budgets.items()]


def _place(records: Sequence[Record], shown: Sequence[Record], source: str | None, shape: tuple[int, ...]) -> str:
    one, (_, b_q, b_k) = shown[0], shape
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
    return f"{sentence(', '.join(parts))}: {what}; queries run downward, keys to the right."
