"""The statistics of the Q, K and V that cells were measured on, as a frame with a row for each head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .labels import identity, scale_of
from .metric import METRICS
from .read import typed
from .rows import CellLine

if TYPE_CHECKING:
    from pandas import DataFrame

PLACE = ("weights", "source", "scale_inputs", "n", "layer", "window", "head")


def inputs_frame(inputs: Iterable[Any], cells: Sequence[Any], labels: Mapping[str, str | None]) -> DataFrame:
    """The statistics of each layer, window and head of the cells, in the order of sources, n, layers and windows.

    Args:
        inputs: of `attnprobe.frame.records.read.read_inputs`. labels: of the sources, by `identity`.
    """
    import pandas as pd

    wanted: set[tuple[Any, ...]] = set()
    for cell in cells:
        layers = [cell["layer"]] if cell["layer"] is not None else cell.get("layers", ())  # of several
        wanted |= {
            (identity(cell["source"]), cell["n"], layer, cell["window"], head)
            for layer in layers
            for head in cell["heads"]
        }
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for of_layer in inputs:
        source = identity(of_layer["source"])
        for number, head in enumerate(of_layer["heads"] if of_layer["status"] == "ok" else ()):
            place = (source, of_layer["n"], of_layer["layer"], of_layer["window"], head)
            if place in wanted:
                facts = of_layer["source"]
                where = (facts.get("weights"), labels[source] or "", scale_of(facts), *place[1:])
                measured = {name: values[number] for name, values in of_layer["metrics"].items()}
                rows[place] = dict(zip(PLACE, where, strict=True)) | measured
    order = [*labels]
    every = [rows[place] for place in sorted(rows, key=lambda place: (order.index(place[0]), *place[1:]))]
    frame = typed(pd.DataFrame(every, columns=[*PLACE] if not every else None), CellLine)
    statistics = [name for name in frame if name in METRICS and name not in CellLine.model_fields]
    return frame.astype(dict.fromkeys(statistics, "Float64"))
