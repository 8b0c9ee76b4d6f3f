"""Exact and approximate attention side by side, as block averages; byte for byte the same for the same maps."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError
from ...figures.drawing import Drawing
from ...figures.files import chunks
from ...figures.kit import EMPTY, LEADING, Scale, word_inches
from ...figures.looks import GREY, sentence
from ...figures.panels import Panels, balanced, draw_figures
from ...files import MIB, read_regular, reading
from ...records.file import exact_map_path, map_path, mapped
from ...tables.labels import file_tag, identity, source_heading, source_labels
from ...tables.numbers import method_label
from ...tables.results import at_budget
from ...tables.table import gathered

Record = Any
Values = np.ndarray | str  # the map of a head, (b_q, b_k), or the reason why there is none
Column = tuple[str, Any]  # its heading, and its maps, (h, b_q, b_k), or the reason why there are none
LARGEST = 256 * MIB  # of a file
WIDTH, WIDEST = 0.7, 1.9  # inches of a map, at least and at most
GAP, SPARE = 0.07, 0.1  # inches between two maps of a row, and between two rows
BAR, HEAD = 0.65, 0.2  # inches of the colour scale, and of the names of heads
MOST = 12  # methods and budgets of a page of one head
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
    """Draw the maps that a run's folder holds: a figure for each (source, layer, n), a panel for each head and cell.

    The first map of a head is exact attention. The others are the requested methods at each budget, of the first window
    and the first seed. Several heads have a row each. The maps of one head fill a page as wide as a column of a paper,
    or a slide. All panels share one logarithmic colour scale, whose ends the exact maps give. Negative means are
    orange; values that are smaller, larger or not finite have their own colours. A panel without a map says why. Heads,
    methods and budgets beyond a page go to another one, which repeats exact attention.

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
        budgets = {record["d"] for record in shown} - {None}
        columns = [_column(record, run, len(budgets) > 1) for record in shown]
        if exact is None or all(isinstance(maps, str) for _, maps in columns):
            continue
        source, every = place(shown[0])[0], [record for record in records if place(record) == place(shown[0])]
        caption = [_place(every, shown, source, exact.shape), COLOURS, *_notes(shown, missing or {})]
        facts = [f"layer {shown[0]['layer']}", f"n = {shown[0]['n']}"]
        facts += [f"d = {d}" for d in budgets if len(budgets) == 1]
        figures += _figures(shown[0], exact, columns, ", ".join(facts), caption, file_tag(source), drawing)
    return draw_figures(figures, drawing, out_dir)


def _figures(
    record: Record,
    exact: np.ndarray,
    columns: Sequence[Column],
    facts: str,
    caption: Sequence[str],
    tag: str,
    drawing: Drawing,
) -> list[Panels]:
    """A figure for as many methods and budgets as a page has; the budgets of a method stay together if they fit.

    Args:
        facts: what the titles of all panels say, once on a page.
    """
    sizes, heads = drawing.sizes, record["heads"]
    matrix = "B" if record["target"] == "softmax" else "C"
    scale = _scale(exact, "mean weight of a block" if matrix == "B" else "mean entry of a block")
    size = drawing.small
    words = [word for name, _ in columns for word in re.split("(?<=[-:,])| ", name)]
    least = min(WIDEST, max(WIDTH, *(word_inches(word, size) for word in words))) + GAP  # inches of a panel
    sides = BAR + HEAD * (len(heads) > 1)
    room = int(((sizes.wide if len(heads) > 1 else sizes.narrow) - sides) / least)
    most = max(1, room - 1) if len(heads) > 1 else MOST
    each = max(map(len, gathered(columns, lambda column: column[0].partition(" d = ")[0])))
    figures = []
    for part in chunks(columns, most // each * each or most):
        every = [(f"exact {matrix}", exact), *part]
        across = len(every) if len(heads) > 1 else balanced(len(every), max(1, room))
        width = least + sides / across
        inches = (sizes.inches(1, across * width) - sides) / across
        side = WIDTH if sizes.fixed else min(inches - GAP, WIDEST)  # maps fill a page of fixed size
        panels = [
            (f"{name}\nhead {head}, {facts}", maps if isinstance(maps, str) else maps[place])
            for place, head in enumerate(heads)
            for name, maps in every
        ]
        figures.append(
            Panels(
                f"maps-layer{record['layer']}-n{record['n']}{tag}",
                f"Exact and approximate attention {matrix}",
                caption,
                panels,
                partial(_draw, scale, exact.shape[1:]),
                legend=partial(_outside, scale),
                width=width,
                height=side * exact.shape[1] / exact.shape[2] + SPARE + 2 * size * LEADING / 72,
                columns=across,
                sharing={},
                scale=scale,
                named=inches - GAP,
            )
        )
    return figures


def _outside(scale: Scale, panels: Sequence[Values]) -> dict[str, dict[str, Any]]:
    """The legend of colours that the bar of the scale lacks, of those that panels have."""
    from matplotlib import colormaps

    values = np.concatenate([maps.ravel() for maps in panels if not isinstance(maps, str)])
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


def _draw(scale: Scale, shape: tuple[int, int], axis: Any, values: Values) -> None:
    """The map of one head, or the reason why there is none in a frame of its shape, (b_q, b_k)."""
    if isinstance(values, str):
        look = {"ha": "center", "va": "center", "fontsize": "small", "color": GREY}
        axis.text(0.5, 0.5, values, transform=axis.transAxes, **look)
    else:
        axis.imshow(_colours(scale, values), extent=(0, shape[1], shape[0], 0), interpolation="none")
    axis.set(xlim=(0, shape[1]), ylim=(shape[0], 0), aspect="equal", xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set(visible=True, color="#999999", linewidth=0.5)


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


def _column(record: Record, run: str | Path, several: bool) -> Column:
    """The method's name with the mean budget that it used if that differs, and its budget if there are several."""
    ran = record["status"] in ("ok", "diverged")
    maps = _read(map_path(run, record["key"]), len(record["heads"])) if ran else None
    budgets = [value for value in (record.get("metrics") or {}).get("realised_d") or () if value is not None]
    used = sum(budgets) / len(budgets) if budgets else record["d"]
    heading = at_budget(record) if several else method_label(record)
    if record["d"] is not None and used != record["d"]:
        heading += f" (used {used:.1f})".replace(".0)", ")")
    return heading, maps if maps is not None else "no map" if record["status"] == "ok" else record["status"]


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
