"""Values of papers: read from a CSV file, and as a frame beside the rows of a run."""

from __future__ import annotations

import csv
import io
import re
import sys
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, nearest
from ..files import MIB, path_of, read_regular, reading

if TYPE_CHECKING:
    from pandas import DataFrame

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
    """The points of a CSV file with the columns init, n, d, method, value and digitisation_uncertainty."""
    path = path_of(path)
    with reading(f"--reference {path}"):
        # utf-8-sig: spreadsheets begin a file with a byte order mark, which would be part of the first column's name
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


def weights_of(init: str, weights: Collection[str]) -> str | None:
    """The run's weights that a paper's word for weights means; None if the run lacks them.

    >>> weights_of("initialized", ["initialized", "initialized-qkv"])
    'initialized-qkv'
    """
    return next((word for word in WEIGHTS.get(init.lower(), (init.lower(),)) if word in weights), None)


def overlay_of(references: Sequence[Reference], frame: DataFrame) -> DataFrame:
    """The values of papers as a frame: the metric `METRIC`, its n, d, method and weights, ``init``, ``uncertainty``.

    Papers measure layer 0 with softmax. ``name`` is the name of the run's first method that the paper means, and
    ``weights`` are the run's weights; if the run has none, both are the paper's own words. Of several values of one
    method at the same n and d, the first counts.

    Args:
        frame: of kind ``head``.
    """
    import pandas as pd

    methods: Any = frame[["method", "name"]].dropna()
    methods = methods.drop_duplicates("method")
    names = {folded(method): name for method, name in methods.itertuples(index=False)}
    weights = set(frame["weights"].dropna())
    rows = [
        {
            "init": value.init,
            "weights": weights_of(value.init, weights) or value.init,
            "n": value.n,
            "d": value.d,
            "name": names.get(folded(value.method), value.method),
            METRIC: value.value,
            "uncertainty": value.uncertainty,
        }
        for reference in references
        for value in reference.values
    ]
    values = pd.DataFrame(rows).drop_duplicates(["weights", "n", "d", "name"], ignore_index=True)
    types = {"n": "Int64", "d": "Int64", "layer": "Int64", "name": "string", "weights": "string", "target": "string"}
    return values.assign(layer=0, target="softmax", scale_inputs=1.0).astype(types)


def beside_papers(frame: DataFrame, overlay: DataFrame) -> DataFrame:
    """The rows of a frame at the places of papers' values, with the columns ``paper``, ``init`` and ``uncertainty``.

    A method without a budget stands beside the values at every d.
    """
    shared = ["weights", "n", "name", "layer", "target", "scale_inputs"]
    values = overlay.rename(columns={METRIC: "paper", "d": "of_d"})
    rows = frame.merge(values, on=shared)
    rows = rows[rows["d"].isna() | (rows["d"] == rows["of_d"])]
    return rows.assign(d=rows["of_d"]).drop(columns="of_d").reset_index(drop=True)
