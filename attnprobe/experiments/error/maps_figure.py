"""Exact and approximate attention side by side, as block averages; byte for byte the same for the same maps."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError
from ...figures.drawing import Drawing
from ...figures.files import chunks, drawn
from ...figures.kit import Sheet
from ...figures.words import sentence
from ...files import MIB, read_regular, reading
from ...records.file import exact_map_path, map_path, mapped
from ...tables.labels import file_tag, identity, source_heading, source_labels
from ...tables.numbers import method_label
from ...tables.table import gathered
from .map_scale import Scale
from .maps_page import MapColumn, columns_of_page, heads_drawn, maps_page

Record = Any
LARGEST = 256 * MIB  # of a file


def map_figures(
    records: Sequence[Record],
    run: str | Path,
    drawing: Drawing,
    out_dir: str | Path,
    missing: Mapping[str, str] | None = None,
) -> list[Path]:
    """Draw the maps that a run's folder holds: a figure for each (source, layer, n), a row per head, a column per cell.

    The first column is exact attention. The others are the requested methods at each budget, of the first window and
    the first seed. All panels share one colour scale, logarithmic in the size of a mean, with other colours for
    negative means. The exact maps give its ends. Values that are smaller, larger or not finite have their own colours,
    named in a legend. A column without maps shows the reason. At most the first 12 heads are drawn, and the caption
    names the others. Further methods and budgets go to another figure, which repeats the exact column.

    Args:
        records: of a run of ``attnprobe error``. run: its folder, with ``maps/``.
        out_dir: where ``maps-layerL-nN.svg`` and the like are written (``-2``, … where they go on).
        missing: why a cell has no map, by its key.

    Returns:
        The files' paths; none if there is no map.

    Raises:
        UsageError: a file that is not a map.
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
        target, scale = shown[0]["target"], Scale.of(exact[: heads_drawn(drawing)])
        first = MapColumn(("exact " + ("B" if target == "softmax" else "C"),), exact)
        every = [record for record in records if place(record) == place(shown[0])]
        lines = _caption(every, shown, source, exact.shape, heads_drawn(drawing))
        pages = [*enumerate(chunks([*zip(columns, shown, strict=True)], columns_of_page(drawing) - 1), 1)]

        def draw(page: Any, first=first, shown=shown, scale=scale, lines=lines, pages=pages) -> Sheet:
            number, neighbours = page
            others, cells = zip(*neighbours, strict=True)
            caption = lines
            if len(pages) > 1:
                which = f"Figure {number} of {len(pages)}"
                caption = [*lines, f"{which} of these methods and budgets, all on one colour scale."]
            notes, target = _notes(cells, missing or {}), shown[0]["target"]
            return maps_page([first, *others], shown[0]["heads"], scale, drawing, caption, notes, target)

        paths += drawn(pages, draw, Path(out_dir) / f"maps-layer{layer}-n{n}{file_tag(source)}", drawing)
    return paths


def _read(path: Path, heads: int) -> np.ndarray | None:
    if not path.exists():
        return None
    with reading(path, UsageError, ": not a map; delete it, and the next run writes it again"):
        blocks = np.load(io.BytesIO(read_regular(path, LARGEST)), allow_pickle=False)
        if blocks.ndim != 3 or len(blocks) != heads or blocks.dtype.kind != "f" or not blocks.size:
            raise ValueError(f"an array {blocks.shape} of {blocks.dtype}, not maps of {heads} heads")
    return blocks.astype(np.float64)


def _column(record: Record, run: str | Path, missing: Mapping[str, str]) -> MapColumn:
    ran = record["status"] in ("ok", "diverged")
    maps = _read(map_path(run, record["key"]), len(record["heads"])) if ran else None
    empty = "" if maps is not None else "no map" if record["status"] == "ok" else record["status"]
    return MapColumn((method_label(record), *_budget(record)), maps, empty)


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
    return [f"{name}{' d = ' + ', '.join(d) if all(d) else ''}: {reason}" for (name, reason), d in budgets.items()]


def _caption(
    records: Sequence[Record], shown: Sequence[Record], source: str | None, shape: tuple[int, ...], heads: int
) -> list[str]:
    """The caption: what the figures show of the records of their place, and what they omit."""
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
    lines = [f"{sentence(', '.join(parts))}: {what}; queries run downward, keys to the right."]
    left = one["heads"][heads:]
    if left:
        lines.append(f"Heads {', '.join(map(str, left))} are not drawn; --head chooses which are.")
    return lines
