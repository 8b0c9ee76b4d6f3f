"""Statistics of the Q, K and V of a run: rows per head, one line per length, and a table over layers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

from .labels import identity, layers_in_words, scale_of, source_heading, source_labels
from .numbers import per_cent, significant
from .table import Column, Table, counted, grouped_by, joined, table_of

Row = Any
Text = Callable[[float | None], str]


def three(value: float | None) -> str:
    """Three digits."""
    return significant(value, 3)


COLUMNS: tuple[tuple[str, str, Text, int], ...] = (  # heading, metric, format, and `Column.spare`
    ("score s.d.", "score_std", three, 0),
    ("max |score|", "score_max", three, 0),
    ("entropy", "entropy", three, 0),
    ("of ln n", "entropy_share", per_cent, 0),
    ("first token", "sink_first", per_cent, 0),
    ("most attended", "sink_most", per_cent, 0),
    ("stable rank B", "stable_rank", three, 0),
    *((f"stable rank {x.upper()}", f"{x}_stable_rank", three, 1) for x in "qkv"),
    *((f"mean ‖{x}‖", f"{x}_norm_mean", three, 3) for x in "qkv"),
    *((f"max ‖{x}‖", f"{x}_norm_max", three, 4) for x in "qkv"),
    *((f"max/median ‖{x}‖", f"{x}_norm_ratio", three, 2) for x in "qkv"),
)
INPUTS_LEGEND = [
    "Statistics of the inputs, before any method: medians over heads and windows. Scores S: of all pairs of valid "
    "tokens; with causal attention, of each token and those up to it. Entropy: mean entropy of the rows of "
    "B = softmax(S), in nats and as a share of the entropy of a uniform row. First token, most attended: its share of "
    "all attention. Stable rank: ‖·‖_F²/‖·‖₂² of B, Q, K and V. Norms: of the rows of Q, K and V."
]


def input_rows(inputs: Iterable[Row], records: Iterable[Row]) -> list[dict[str, Any]]:
    """One row per layer, window and head of the ``records``, with its statistics from ``inputs``.

    Args:
        inputs: of `attnprobe.records.read.read_inputs`. records: of cells; they select the rows and their order.
    """
    records = list(records)

    def place_of(record: Row, layer: int | None) -> tuple[Any, ...]:
        return (identity(record["source"]), record["n"], layer, record["window"])

    known: dict[tuple[Any, ...], Row] = {}
    for record in inputs:
        if record["status"] == "ok":
            for index, head in enumerate(record["heads"]):
                of_head = {name: values[index] for name, values in record["metrics"].items()}
                known[*place_of(record, record["layer"]), head] = of_head
    labels, rows = source_labels(records), {}
    for record in records:
        layers = [record["layer"]] if record["layer"] is not None else record["layers"]  # of several together
        for layer, head in product(layers, record["heads"]):
            place = (*place_of(record, layer), head)
            if place in known:
                rows[place] = {
                    "weights": record["source"].get("weights"),
                    "source": labels[place[0]],
                    "scale_inputs": scale_of(record["source"]),
                    "n": record["n"],
                    "layer": layer,
                    "window": record["window"],
                    "head": head,
                    **known[place],
                    **({"causal": True} if record["source"].get("causal") else {}),
                }
    sources = list(labels.values())

    def order(row: Row) -> tuple[Any, ...]:
        return (sources.index(row["source"]), *(row[name] for name in ("n", "layer", "window", "head")))

    return sorted(rows.values(), key=order)


def input_lines(rows: Sequence[Row]) -> list[str]:
    """A line for each (source, n): medians over heads and windows, from the least to the largest of the layers."""
    lines = []
    for group in grouped_by(rows, "source", "n"):
        layers = grouped_by(group, "layer")
        spans = {name: _range(layers, name, text) for _, name, text, _ in COLUMNS}
        where = ", ".join(filter(None, [group[0]["source"], layers_in_words(group), f"n = {group[0]['n']}"]))
        most = "uniform rows" if group[0].get("causal") else "ln n"
        lines.append(
            f"inputs: {where}: scores s.d. {spans['score_std']}, max {spans['score_max']}; entropy "
            f"{spans['entropy']} nats ({spans['entropy_share']} of {most}); attention to the first token "
            f"{spans['sink_first']}, to the most "
            f"attended {spans['sink_most']}; stable rank of B {spans['stable_rank']}"
        )
    return lines


def input_tables(rows: Sequence[Row]) -> list[Table]:
    """A table for each (source, n) with a line for each layer."""
    tables = []
    for group in grouped_by(rows, "source", "n"):
        first = group[0]
        counts = counted([{f"{name}s": len({row[name] for row in group}) for name in ("head", "window")}])
        caption = joined("Inputs", source_heading(first), f"n = {first['n']}", f"median of {counts}")
        # of a causal row over the keys up to its own, a uniform one has less than ln n
        headings = {"entropy_share": "of uniform"} if first.get("causal") else {}
        columns = [
            Column(headings.get(name, heading), _cell(name, text), spare=spare)
            for heading, name, text, spare in COLUMNS
        ]
        layer = Column("layer", lambda alike: str(alike[0]["layer"]), key=True)
        tables.append(table_of(caption, grouped_by(group, "layer"), [layer, *columns]))
    return tables


def _cell(name: str, text: Text) -> Callable[[Sequence[Row]], str]:
    return lambda rows: text(_median(rows, name))


def _median(rows: Sequence[Row], name: str) -> float | None:
    """The median of the finite values; None without one."""
    values = [row[name] for row in rows if isinstance(row.get(name), (int, float)) and math.isfinite(row[name])]
    return statistics.median(values) if values else None


def _range(layers: Sequence[Sequence[Row]], name: str, text: Text) -> str:
    """The layers' medians: one number, or the least and the largest."""
    medians = [middle for layers_rows in layers if (middle := _median(layers_rows, name)) is not None]
    if not medians:
        return "unknown"
    low, high = text(min(medians)), text(max(medians))
    return low if low == high else f"{low} – {high}"
