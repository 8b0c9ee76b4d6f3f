"""Exact and approximate attention side by side, as block averages; byte for byte the same for the same maps."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError
from ...figures.drawing import Drawing
from ...figures.files import chunks
from ...figures.heat import Scale
from ...figures.looks import GREY
from ...figures.panels import Panels, draw_figures
from ...figures.words import sentence
from ...files import MIB, read_regular, reading
from ...records.file import exact_map_path, map_path, mapped
from ...tables.labels import file_tag, identity, source_heading, source_labels
from ...tables.numbers import method_label
from ...tables.table import gathered

Record = Any
Column = tuple[str, Any]  # its heading, and its maps, (h, b_q, b_k), or the reason why there are none
LARGEST = 256 * MIB  # of a file
WIDTH, HEIGHT, LINE = 0.98, 0.9, 0.14  # inches of a panel, and of a line of its heading
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
        for part in chunks(columns, drawing.sizes.across(WIDTH) - 1):
            figures.append(_figure(shown[0], exact, part, caption, file_tag(source)))
    return draw_figures(figures, drawing, out_dir)


def _figure(record: Record, exact: np.ndarray, columns: Sequence[Column], caption: Sequence[str], tag: str) -> Panels:
    """A row of panels for each head: its exact map, and those of some methods and budgets."""
    matrix = "B" if record["target"] == "softmax" else "C"
    scale = _scale(exact, "mean weight of a block" if matrix == "B" else "mean entry of a block")
    panels: list[tuple[str, Any]] = []
    for place, head in enumerate(record["heads"]):
        panels.append((f"exact {matrix}", (f"head {head}", exact[place])))
        panels += [(heading, ("", maps if isinstance(maps, str) else maps[place])) for heading, maps in columns]
    return Panels(
        f"maps-layer{record['layer']}-n{record['n']}{tag}",
        f"Exact and approximate attention {matrix}, head by head",
        caption,
        panels,
        partial(_draw, scale),
        width=WIDTH,
        height=HEIGHT,
        columns=1 + len(columns),
        headings=LINE * max(1 + heading.count("\n") for heading, _ in columns),
        sharing={},
        scale=scale,
    )


def _scale(exact: np.ndarray, label: str) -> Scale:
    """The scale of the exact maps; approximations do not change it.

    It ends at their largest mean. It begins at 10⁻⁴ of that, or at their 1 % quantile if that is larger.
    """
    values = exact[np.isfinite(exact) & (exact > 0)]
    high = float(values.max()) if values.size else 1.0
    low = max(high * SMALLEST, float(np.quantile(values, 0.01))) if values.size else 0.0
    low = low if 0 < low < high / 2 else high / 10
    return Scale(low, high, label, "both", "YlGnBu", {"under": "white", "over": "black"})


def _draw(scale: Scale, axis: Any, panel: tuple[str, Any]) -> None:
    """One head of one column, or the reason why it has no map."""
    import matplotlib

    head, values = panel
    axis.set_ylabel(head)
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set(visible=True, color="#999999", linewidth=0.5)
    if isinstance(values, str):
        look = {"ha": "center", "va": "center", "fontsize": "small", "color": GREY}
        axis.text(0.5, 0.5, values, transform=axis.transAxes, **look)
        axis.set_box_aspect(1)
        return
    negative = matplotlib.colormaps["Oranges"].with_extremes(bad=(0, 0, 0, 0), under="white", over="black")
    sizes = np.maximum(np.abs(values), scale.low / 2)  # zero has no logarithm
    broken = ~np.isfinite(values)
    for colours, hidden in ((scale.look["cmap"], broken), (negative, broken | (values >= 0))):
        axis.imshow(np.ma.array(sizes, mask=hidden), cmap=colours, norm=scale.look["norm"], interpolation="none")


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
    broken = method_label(record).replace(":", ":\n").replace(",", ",\n")
    heading = "\n".join([broken, *_budget(record)])
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
    """What the figures show of the records of their place."""
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
