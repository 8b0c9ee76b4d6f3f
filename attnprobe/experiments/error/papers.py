"""Values that a paper's figure shows, read from a CSV file, and which rows of a run they belong beside."""

from __future__ import annotations

import csv
import io
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from reprlib import repr as shown
from typing import Any

from ...errors import UsageError, nearest
from ...files import MIB, path_of, read_regular, reading
from ...tables.long import Row
from ...tables.numbers import method_label

COLUMNS = ("init", "n", "d", "method", "value", "digitisation_uncertainty")
LARGEST = 64 * MIB  # of a file
METRIC = "output_spectral"  # the error of the papers' figures
# the papers' "initialized" is a pretrained embedding with random projections; the others are substitutes
WEIGHTS = {"initialized": ("initialized-qkv", "initialized")}


@dataclass(frozen=True)
class Value:
    """One point of a paper's figure."""

    init: str
    n: int
    d: int
    method: str
    value: float
    uncertainty: float


@dataclass(frozen=True)
class Reference:
    """The points of one file."""

    name: str
    values: Sequence[Value]


def read_reference(path: str | Path) -> Reference:
    """The points of a CSV file with the columns init, n, d, method, value and digitisation_uncertainty.

    Raises:
        UsageError: no such file, a missing column, or a line that is not a point; the message names file and line.
    """
    path = path_of(path)
    with reading(f"--reference {path}"):
        lines = csv.DictReader(io.StringIO(read_regular(path, LARGEST).decode("utf-8-sig")))
        names = [name.strip() for name in lines.fieldnames or ()]
        lines.fieldnames = names
        for column in COLUMNS[:-1]:
            if column not in names:
                near = nearest(column, names) if names else ""
                raise UsageError(f"--reference {path}: it has no column '{column}'{near}")
        values = [_value(line, f"--reference {path}:{lines.line_num}") for line in lines]
    if not values:
        raise UsageError(f"--reference {path}: it holds no values")
    return Reference(path.name, values)


def _value(line: Mapping[str, str | None], where: str) -> Value:
    numbers = {}
    for name, kind in (("n", int), ("d", int), ("value", float), ("digitisation_uncertainty", float)):
        text = (line.get(name) or "").strip()
        if not text and name == "digitisation_uncertainty":
            text = "0"
        try:
            numbers[name] = kind(text)
        except ValueError:
            raise UsageError(f"{where}: {name} is {shown(text)}, not a number") from None
        if not 0 <= numbers[name] <= sys.float_info.max:
            raise UsageError(f"{where}: {name} is {shown(numbers[name])}, not a finite number from 0 on")
    words = [(line.get(name) or "").strip() for name in ("init", "method")]
    if not all(words):
        raise UsageError(f"{where}: init or method is empty")
    return Value(words[0], numbers["n"], numbers["d"], words[1], numbers["value"], numbers["digitisation_uncertainty"])


@lru_cache
def folded(name: str) -> str:
    """A method's name without case, accents and hyphens.

    >>> folded("Nyströmformer"), folded("V-Mean")
    ('nystromformer', 'vmean')
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]", "", plain.lower())


def weights_of(init: str, rows: Iterable[Row]) -> str | None:
    """The run's weights that a paper's word for weights means; None if the run lacks them.

    >>> weights_of("initialized", [{"weights": "initialized"}, {"weights": "initialized-qkv"}])
    'initialized-qkv'
    """
    there = {row.get("weights") for row in rows}
    return next((word for word in WEIGHTS.get(init.lower(), (init.lower(),)) if word in there), None)


def paper_values(row: Row, references: Sequence[Reference], rows: Sequence[Row]) -> list[Value]:
    """The paper's points for a row's method, weights and n, by d. Only layer 0 and target softmax have any."""
    if row.get("layer") != 0 or row.get("target") != "softmax":
        return []
    values: dict[int, Value] = {}
    for reference in references:
        for value in reference.values:
            same = value.n == row.get("n") and folded(value.method) == folded(row["method"])
            same = same and row.get("scale_inputs", 1) == 1
            if same and weights_of(value.init, rows) == row.get("weights") is not None:
                values.setdefault(value.d, value)
    return [values[d] for d in sorted(values)]


def reference_rows(rows: Sequence[Row], references: Sequence[Reference]) -> list[dict[str, Any]]:
    """Measured values beside those of a paper's figure, a row for each point of both."""
    entries = []
    for row in rows:
        for value in paper_values(row, references, rows):
            stats = row["metrics"].get(METRIC)
            if row["d"] not in (None, value.d) or stats is None or stats["mean"] is None:
                continue
            ratio = stats["mean"] / value.value if value.value else None
            entries.append(
                {
                    "init": value.init,
                    "weights": row["weights"],
                    "source": row["source"],
                    "n": row["n"],
                    "d": value.d,
                    "method": method_label(row),
                    "error": stats["mean"],
                    "se": stats["se"],
                    "paper": value.value,
                    "uncertainty": value.uncertainty,
                    "ratio": ratio,
                }
            )
    order = list(dict.fromkeys((row["init"], row["source"], row["n"], row["method"]) for row in entries))
    return sorted(
        entries, key=lambda row: (order.index((row["init"], row["source"], row["n"], row["method"])), row["d"])
    )


def reference_notes(rows: Sequence[Row], references: Sequence[Reference]) -> list[str]:
    """A line for each file: the weights that its words mean in this run, and the points that the run lacks."""
    lines = []
    ours = {folded(row["method"]) for row in rows}
    lengths = {row["n"] for row in rows}
    for reference in references:
        words = {value.init: weights_of(value.init, rows) for value in reference.values}
        shown = [f"its '{init}' is weights {weights}" for init, weights in words.items() if weights and weights != init]
        lacking = [init for init, weights in words.items() if not weights]
        methods = dict.fromkeys(value.method for value in reference.values if folded(value.method) not in ours)
        sizes = sorted({value.n for value in reference.values} - lengths)
        parts = [", ".join(shown)] if shown else []
        gone = [f"weights {', '.join(lacking)}"] if lacking else []
        gone += [", ".join(methods)] if methods else []
        gone += [f"n = {', '.join(map(str, sizes))}"] if sizes else []
        parts += [f"not in this run: {'; '.join(gone)}"] if gone else []
        lines.append(f"hollow: {reference.name}, layer 0" + "".join(f"; {part}" for part in parts))
    return lines
