"""Notes on a comparison: pairings, chance, bad rows, intervals; and cells in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..files import Fields
from ..frame.metric import CHOICE
from ..grammar.lists import spans
from ..tables.labels import layer_in_words
from ..tables.long import Row
from ..tables.methods import spoiled_heads
from ..tables.numbers import method_label
from ..tables.table import gathered
from .cells import Key, layers_together
from .chance import EQUAL
from .verdicts import TABLE


def cells_in_words(cells: Sequence[Fields]) -> str:
    """Windows, seeds and heads in words.

    >>> cells_in_words([{"window": w, "seed": 0, "heads": [0, 1, 2, 7, 8]} for w in (1, 2)])
    'windows 1-2; seed 0; heads 0-2, 7-8'
    >>> cells_in_words([{"window": 3, "seed": None, "heads": [None]}])
    'window 3'
    >>> cells_in_words([{"window": 3, "seed": 0, "heads": [(layer, 0), (layer, 1)]} for layer in (2, 3)])
    'window 3; seed 0; layers 2-3; heads 0-1'
    """
    parts = []
    numbers = {"window": [cell.get("window") for cell in cells], "seed": [cell.get("seed") for cell in cells]}
    for name, every in numbers.items():
        values = sorted({value for value in every if value is not None})
        parts += [f"{name}{'s' if len(values) > 1 else ''} {spans(values)}"] if values else []
    layers = layers_together(cells)
    parts += [layer_in_words(spans(layers))] if layers else []
    heads = [head for cell in cells for head in cell["heads"] if head is not None]
    heads = sorted({head[1] if layers else head for head in heads})
    return "; ".join([*parts, *([f"head{'s' if len(heads) > 1 else ''} {spans(heads)}"] if heads else [])])


def pairings(rows: Sequence[Row]) -> list[str]:
    """Notes on rows whose cells do not pair one to one."""
    notes = []
    how = {"windows": "paired by their means over seeds", None: "not paired, as no window or no head is in both"}
    for kind, pairing in how.items():
        loose = [row for row in rows if row["metric"] is not None and row["paired"] == kind]
        if loose:
            seeds = (spans(sorted({s for row in loose for s in row[name]})) for name in ("seeds_a", "seeds_b"))
            pair = ", ".join(f"{each} in {name}" for each, name in zip(seeds, "AB", strict=True))
            notes.append(f"rows {pairing} (seeds: {pair}): {len(loose)}")
    return notes


def of_chance(rows: Sequence[Row], level: float) -> list[str]:
    """A note on how often one of several tables has a row that is worse by chance alone."""
    tested = [row for row in rows if row["p_adjusted"] is not None]
    tables = len(gathered(tested, lambda row: tuple(str(row.get(name)) for name in ("metric", *TABLE))))
    if tables < 2:
        return []
    shares = (f"{100 * min(1.0, share / 2):.3g} %" for share in (tables * level, level))
    layers = {row["layer"] for row in tested if "layers" not in row}
    return [
        f"p is corrected in each of {tables} tables alone: if nothing changed, the probability of a worse row in any "
        f"is at most {next(shares)}; with --level {level / tables:.2g}, {next(shares)}"
        + ("; --all-layers has one row for all layers" if len(layers - {None}) > 1 else "")
    ]


def of_all_keys(rows: Sequence[Row]) -> list[str]:
    """A note on metrics of a choice of keys of which one side has all: its 1 is none of quality."""
    judged = [row for row in rows if row["metric"] in CHOICE and row["verdict"] in ("worse", "better")]
    names = dict.fromkeys(row["metric"] for row in judged if 1 - max(row["a"] or 0, row["b"] or 0) < EQUAL)
    why = "a method that uses every key has 1, whatever its weights; compare tv, js or kl"
    return [f"{', '.join(names)}: {why}"] if names else []


def of_bad_rows(a: Mapping[Key, Mapping[Key, Fields]], b: Mapping[Key, Mapping[Key, Fields]]) -> list[str]:
    """A line on the compared rows of each run, or side of a pair, with bad rows, which `error` leaves out."""
    notes = []
    for rows, run, side in ((a, "in A", "on the left"), (b, "in B", "on the right")):
        bad = [[*rows[key].values()] for key in a if key in b and any(map(spoiled_heads, rows[key].values()))]
        if names := dict.fromkeys(named(cells[0]) for cells in bad):
            where = side if "pair" in bad[0][0] else run
            notes.append(
                f"bad rows {where}, which the numbers include: {', '.join(names)}; if the better side alone has some, "
                "the row is undecided"
            )
    return notes


def named(cell: Fields) -> str:
    """The method, or the pair, of a cell with its budget."""
    return (cell.get("pair") or method_label(cell)) + ("" if cell["d"] is None else f" d={cell['d']}")


def of_intervals(a: Mapping[Key, Fields], b: Mapping[Key, Fields]) -> list[str]:
    """Notes on intervals of matrix errors that have different widths, or did not reach theirs."""
    notes = []
    widths = [sorted({tol for cell in run.values() if (tol := cell.get("matrix_tol"))}) for run in (a, b)]
    if widths[0] and widths[1] and widths[0] != widths[1]:
        both = " and ".join(", ".join(f"{width:g}" for width in names) for names in widths)
        notes.append(f"matrix errors were measured to different widths, {both}: they differ by as much on their own")
    for name, run in (("A", a), ("B", b)):
        wide = [heads for cell in run.values() if isinstance(heads := cell.get("matrix_open"), (list, tuple))]
        if count := sum(map(any, wide)):
            notes.append(f"{name}: in {count} of {len(wide)} cells an interval of ‖B − B~‖₂ did not close")
    return notes
