"""The statistics of the Q, K and V that cells were measured on, as a frame with a row for each head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .labels import identity, scale_of
from .metric import INPUTS, METRICS
from .read import typed
from .rows import HEAD, CellLine, HeadRow, RowTypes, with_metrics

if TYPE_CHECKING:
    from pandas import DataFrame

INPUT_ROWS = RowTypes({HEAD: with_metrics("InputsRow", HeadRow, (*INPUTS, METRICS["stable_rank"]))})
PLACE = ("weights", "source", "scale_inputs", "n", "layer", "window", "head")


def inputs_frame(inputs: Iterable[Any], cells: Sequence[Any], labels: Mapping[str, str | None]) -> DataFrame:
    """The statistics of each layer, window and head of the cells, in the order of sources, n, layers and windows.

    Args:
        inputs: of `attnprobe.frame.records.read.read_inputs`. labels: of the sources, by `identity`.
    """
    import pandas as pd

    # the file may have statistics of other settings, whose cells are not shown
    measured_heads: set[tuple[Any, ...]] = set()
    for cell in cells:
        source = identity(cell["source"])
        layers = [cell["layer"]] if cell["layer"] is not None else cell.get("layers", ())  # a cell of several layers
        measured_heads |= {
            (source, cell["n"], layer, cell["window"], head) for layer in layers for head in cell["heads"]
        }
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for of_layer in inputs:
        facts, source = of_layer["source"], identity(of_layer["source"])
        for row in of_layer["rows"]:
            of_head = (source, of_layer["n"], of_layer["layer"], of_layer["window"], row["head"])
            if of_head in measured_heads:
                columns = (facts.get("weights"), labels[source] or "", scale_of(facts), *of_head[1:])
                statistics = {name: value for name, value in row.items() if name in METRICS}
                rows[of_head] = dict(zip(PLACE, columns, strict=True)) | statistics
    order = [*labels]
    ordered = [rows[of_head] for of_head in sorted(rows, key=lambda of_head: (order.index(of_head[0]), *of_head[1:]))]
    frame = typed(pd.DataFrame(ordered, columns=[*PLACE] if not ordered else None), CellLine)
    statistics = [name for name in frame if name in METRICS and name not in CellLine.model_fields]
    return frame.astype(dict.fromkeys(statistics, "Float64"))
