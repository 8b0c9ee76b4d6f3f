"""What the columns of `error`'s tables are, and which rows stand in one table: shared by every format for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..records.file import LOWER_BOUND
from .labels import source_heading
from .numbers import aligned, method_label, per_cent, significant
from .table import Table

__all__ = [
    "COLUMNS",
    "Column",
    "Group",
    "columns_of",
    "family",
    "family_table",
    "grouped",
    "legend",
    "mark",
    "notes",
    "shown",
    "statistic",
]

Row = Mapping[str, Any]

OPEN = "≈"  # an interval that did not close, and a statistic that is not reproducible
FRAGILE = (
    f"values marked {OPEN} are not reproducible: rounding decides the normaliser of some rows, and these carry the "
    "values; guard=sampled replaces such rows"
)


@dataclass(frozen=True)
class Column:
    """One column: its heading, the pieces of a cell as text, the glue around them, and its line of the legend.

    ``spare`` orders what a narrow terminal goes without: the highest first, never those at 0.
    """

    name: str
    heading: tuple[str, str]
    pieces: Callable[[Row], Sequence[str]]
    glue: Sequence[tuple[str, str]] = (("", ""),)
    meaning: str = ""
    spare: int = 0

    def cells(self, rows: Sequence[Row], pad: bool = True) -> list[str]:
        """The cells of a table, every piece aligned with the same piece of the other rows."""
        texts = [self.pieces(row) for row in rows]
        lines = [""] * len(rows)
        for index, (before, after) in enumerate(self.glue):
            piece = [text[index] for text in texts]
            padded = aligned(piece) if pad else piece
            for row, (text, shown) in enumerate(zip(piece, padded, strict=True)):
                whole = before + shown + after
                lines[row] += whole if text else " " * len(whole) if pad else ""
        return lines


@dataclass(frozen=True)
class Group:
    """The rows of one table, of one (source, layer, n, target): methods by family, then references, then bounds."""

    source: Any
    layer: Any
    n: Any
    target: Any
    methods: list[Row]
    references: list[Row]
    bounds: list[Row]

    @property
    def rows(self) -> list[Row]:
        return [*self.methods, *self.references, *self.bounds]

    @property
    def caption(self) -> str:
        counts = []
        for name in ("heads", "windows", "repeats"):
            count = max((row.get(name) or 0 for row in self.rows), default=0)
            if count:
                counts.append(f"{count} {name if count > 1 else name[:-1]}")
        repeated = max((row.get("duplicates") or 0 for row in self.rows), default=0)
        note = f" · {repeated} repeated token{'s' if repeated > 1 else ''}" if repeated else ""
        source = "".join(f"{heading} · " for heading in {source_heading(row): None for row in self.rows} if heading)
        return f"{source}layer {self.layer} · n = {self.n} · target {self.target} · {' x '.join(counts)}{note}"


def grouped(rows: Iterable[Row], bounds: Iterable[Row]) -> list[Group]:
    """One `Group` per (source, layer, n, target), in the order of the rows; families in that of their first rows."""
    groups: dict[tuple[Any, ...], Group] = {}
    for is_bound, row in [*((False, row) for row in rows), *((True, row) for row in bounds)]:
        place = tuple(row.get(name) for name in ("source", "layer", "n", "target"))
        group = groups.setdefault(place, Group(*place, [], [], []))
        (group.bounds if is_bound else group.references if row.get("reference") else group.methods).append(row)
    for group in groups.values():
        families = list(dict.fromkeys(map(family, group.methods)))
        group.methods.sort(key=lambda row: families.index(family(row)))  # noqa: B023  (used at once)
        zero = [row for row in group.bounds if statistic(row, "output_spectral", "max") == 0]
        group.bounds[:] = [row for row in group.bounds if row not in zero[1:]]
    return list(groups.values())


def family_table(group: Group, columns: Sequence[Column]) -> Table:
    """A group as a table of strings, each row with its mark."""
    cells = [column.cells(group.rows, pad=False) for column in columns]
    lines = [list(line) for line in zip(*cells, strict=True)]
    for line, row in zip(lines, group.rows, strict=True):
        line[0] = f"{mark(row)} {line[0]}".lstrip()
    headings = [" ".join(part for part in column.heading if part) for column in columns]
    return Table(group.caption, headings, lines, [line for _, line in notes(group.rows)])


def statistic(row: Row, metric: str, name: str) -> float | None:
    return (row["metrics"].get(metric) or {}).get(name)


def shown(row: Row, metric: str, name: str, digits: int = 4) -> str:
    """A statistic in so many digits, with ≈ before it where it is not reproducible; "" for null.

    >>> row = {"metrics": {"delta": {"mean": 87.29, "median": 0.5}}, "fragile": {"delta": ["mean"]}}
    >>> shown(row, "delta", "mean"), shown(row, "delta", "median")
    ('≈87.29', '0.5000')
    """
    text = significant(statistic(row, metric, name), digits)
    return OPEN + text if text and is_fragile(row, metric, name) else text


def is_drawn(row: Row) -> bool:
    """Whether the row has a standard error of weights that are drawn at random."""
    drawn = str(row.get("weights") or "").startswith("initialized")
    return drawn and statistic(row, "output_spectral", "se") is not None


def is_fragile(row: Row, metric: str, name: str) -> bool:
    return name in (row.get("fragile") or {}).get(metric, ())


def family(row: Row) -> str:
    """The family of a method's row; references and lower bounds stand apart from all families."""
    return "" if row.get("reference") or row["method"] == LOWER_BOUND else row.get("family") or ""


def label(row: Row) -> str:
    """The method's label, and in words what the reference rows are."""
    if row["method"] == LOWER_BOUND:
        beyond = "≥ " if statistic(row, "output_spectral", "max") == 0 else ""
        return f"lower bound, rank {beyond}{row['d']}"
    if row["method"] == "vmean" and row.get("reference"):
        return "V-Mean (reference)"
    return method_label(row)


def mark(row: Row) -> str:
    """``!`` where bad rows are left as they are, ``✗`` failed or diverged, ``–`` skipped, else nothing."""
    if row["status"] in ("failed", "diverged"):
        return "✗"
    if row["status"] == "skipped":
        return "–"
    replaced = statistic(row, "guarded_rows", "max") is not None
    return "!" if (statistic(row, "bad_rows", "max") or 0) > 0 and not replaced else ""


def notes(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """``(mark, line)`` beneath the table for the rows that are not ok; budgets with one reason share a line."""
    budgets: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row["status"] != "ok":
            place = (mark(row), label(row), row.get("reason") or row["status"])
            budgets.setdefault(place, []).append("" if row.get("d") is None else str(row["d"]))
        elif row.get("matrix_skipped"):
            place = ("–", label(row), f"matrix errors skipped: it {row['matrix_skipped']}")
            budgets.setdefault(place, []).append("" if row.get("d") is None else str(row["d"]))
        if row.get("fragile"):
            budgets.setdefault((OPEN, label(row), FRAGILE), []).append("" if row.get("d") is None else str(row["d"]))
    lines = []
    for (sign, name, reason), d in budgets.items():
        listed = f" d={', '.join(d)}" if all(d) else ""
        lines.append((sign, f"{sign} {name}{listed}: {reason}"))
    return lines


def _factor(row: Row) -> tuple[str]:
    factor = row.get("scale_inputs")
    return ("" if factor is None else f"{factor:g}",)


def _budget(row: Row) -> tuple[str, str]:
    d, realised = row.get("d"), row.get("realised_d")
    used = "" if realised is None or realised == d else f"({realised:.1f})".replace(".0)", ")")
    return "" if d is None else str(d), used


def _absolute(row: Row) -> tuple[str, str]:
    return shown(row, "output_spectral", "mean"), shown(row, "output_spectral", "se", 2)


def _relative(row: Row) -> tuple[str, str, str]:
    return tuple(shown(row, "output_spectral_relative", name, 3) for name in ("median", "p10", "p90"))


def _over_vmean(row: Row) -> tuple[str]:
    ratio = significant((row.get("over_vmean") or {}).get("output_spectral"), 3)
    return (OPEN + ratio if ratio and is_fragile(row, "output_spectral", "mean") else ratio,)


def _matrix(row: Row) -> tuple[str, str]:
    if row.get("matrix_skipped"):
        return "", "–"
    median = shown(row, "matrix_spectral_relative", "median", 3)
    return OPEN if median and row.get("matrix_open") and not median.startswith(OPEN) else "", median


def _bad_rows(row: Row) -> tuple[str, str]:
    mean, count = statistic(row, "bad_rows", "mean"), statistic(row, "bad_rows", "count")
    if mean is None or not row.get("n"):
        return "", ""
    return f"{round(mean * count)}", per_cent(mean / row["n"]) if mean else ""


def _guarded_rows(row: Row) -> tuple[str]:
    mean, count = statistic(row, "guarded_rows", "mean"), statistic(row, "guarded_rows", "count")
    return (f"{round(mean * count)}" if mean else "",)


def _milliseconds(row: Row) -> tuple[str]:
    seconds = None if row["method"] == LOWER_BOUND else statistic(row, "seconds", "median")
    return (significant(None if seconds is None else 1e3 * seconds, 3),)


COLUMNS = (
    Column("method", ("method", ""), lambda row: (label(row),)),
    Column("family", ("family", ""), lambda row: (family(row),)),
    Column(
        "scale_inputs",
        ("scores", "times"),
        _factor,
        meaning="scores times: the factor s of --scale-inputs, Q and K each times √s",
        spare=9,
    ),
    Column(
        "d", ("d", "(used)"), _budget, (("", ""), (" ", "")), "d: the budget, and (used) what the method made of it"
    ),
    Column(
        "absolute",
        ("‖E‖₂", "mean ± s.e."),
        _absolute,
        (("", ""), (" ± ", "")),
        "‖E‖₂: spectral norm of exact − approximate output, per head; s.e. clusters by text window, none for one",
    ),
    Column(
        "relative",
        ("‖E‖₂ / ‖BV‖₂", "median [p10 – p90]"),
        _relative,
        (("", ""), (" [", ""), (" – ", "]")),
        "median, p10, p90, max: over heads, windows and repeats",
    ),
    Column("max", ("", "max"), lambda row: (shown(row, "output_spectral_relative", "max", 3),), spare=2),
    Column(
        "frobenius",
        ("‖E‖F / ‖BV‖F", "median"),
        lambda row: (shown(row, "output_frobenius_relative", "median", 3),),
        spare=5,
    ),
    Column(
        "matrix",
        ("‖B − B~‖₂", "/ ‖B‖₂ median"),
        _matrix,
        (("", ""), ("", "")),
        "‖B − B~‖₂: of whole matrices (in half precision: of the stored factors, in float32)",
        spare=4,
    ),
    Column(
        "over_vmean",
        ("error /", "V-Mean"),
        _over_vmean,
        meaning="error / V-Mean: mean ‖E‖₂ over that of the mean of V, which costs nothing",
        spare=3,
    ),
    Column(
        "bad_rows",
        ("bad rows", "sum (share)"),
        _bad_rows,
        (("", ""), (" (", ")")),
        "bad rows: normaliser not positive or lost to rounding, before a guard; summed, and as a share of all",
        spare=1,
    ),
    Column(
        "guarded_rows",
        ("guarded", "rows"),
        _guarded_rows,
        meaning="guarded rows: replaced by the method, summed",
        spare=2,
    ),
    Column(
        "inverse_residual",
        ("inverse", "residual"),
        lambda row: (significant(statistic(row, "inverse_residual", "median"), 2),),
        meaning="inverse residual: ‖I − NZ‖_F/√d of core N, inverse Z; repeated landmarks count; median",
        spare=4,
    ),
    Column(
        "delta",
        ("δ", "median (max)"),
        lambda row: tuple(significant(statistic(row, "delta", name), 2) for name in ("median", "max")),
        (("", ""), (" (", ")")),
        "δ: the spectral shift of a head, median and max",
        spare=4,
    ),
    Column(
        "visited",
        ("visited", "of n²"),
        lambda row: (per_cent(statistic(row, "visited_fraction", "mean")),),
        meaning="visited: scores or features computed, over n²; 2 d n of them exceed it from d = n/2 on",
        spare=6,
    ),
    Column("seconds", ("time", "ms"), _milliseconds, meaning="time: per cell, all heads of the layer, median", spare=7),
    Column("status", ("", "status"), lambda row: ("" if row["status"] == "ok" else row["status"],), spare=8),
)


def columns_of(rows: Sequence[Row]) -> list[Column]:
    """The columns in which at least one of the rows has something to say; families and factors where others exist."""
    several = {
        "family": len({family(row) for row in rows} - {""}) > 1,
        "scale_inputs": any(row.get("scale_inputs", 1) != 1 for row in rows),
    }
    return [
        column for column in COLUMNS if any(any(column.pieces(row)) for row in rows) and several.get(column.name, True)
    ]


def legend(groups: Iterable[Group], columns: Iterable[Column]) -> str:
    """What the columns, the bounds and the marks mean, in one paragraph."""
    groups, columns = list(groups), list(columns)
    parts = ["; ".join(column.meaning for column in columns if column.meaning) + "."]
    if any(group.bounds for group in groups):
        parts.append("Lower bound, rank d: σ_{d+1}(BV): no operator of rank d is nearer; 0 for d ≥ p_v.")
    if any(group.target == "gaussian" for group in groups):
        parts.append("For the target gaussian, B is C.")
    rows = [row for group in groups for row in group.rows]
    if any(is_drawn(row) for row in rows):
        parts.append("s.e.: of one draw of the weights (--weights-seed); another may differ by as much.")
    if any(column.name == "matrix" for column in columns) and any(_matrix(row)[0] for row in rows):
        parts.append(f"{OPEN}: in some heads the certified interval of ‖B − B~‖₂ did not close to --tol.")
    if any(mark(row) for group in groups for row in group.rows):
        parts.append("Marks: ! bad rows, ✗ failed or diverged, – skipped.")
    return " ".join(part for part in parts if part != ".")
