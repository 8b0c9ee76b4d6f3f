"""Statistics of the Q, K and V of a run: rows per head, one line per length, and a table over layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..files import Fields
from .labels import identity, layers_in_words, scale_of, source_heading, source_labels
from .long import Row, known, median
from .numbers import formatted
from .table import Column, Table, counted, grouped_by, joined, table_of

COLUMNS = (
    Column("layer", "{layer}", key=True),
    Column("score s.d.", "{score_std:3}"),
    Column("max |score|", "{score_max:3}"),
    Column("entropy", "{entropy:3}"),
    Column("of ln n", "{entropy_share:share}"),
    Column("first token", "{sink_first:share}"),
    Column("most attended", "{sink_most:share}"),
    Column("stable rank B", "{stable_rank:3}"),
    *(Column(f"stable rank {x.upper()}", f"{{{x}_stable_rank:3}}", spare=1) for x in "qkv"),
    *(Column(f"mean ‖{x}‖", f"{{{x}_norm_mean:3}}", spare=3) for x in "qkv"),
    *(Column(f"max ‖{x}‖", f"{{{x}_norm_max:3}}", spare=4) for x in "qkv"),
    *(Column(f"max/median ‖{x}‖", f"{{{x}_norm_ratio:3}}", spare=2) for x in "qkv"),
)
PLACE = ("weights", "source", "scale_inputs", "n", "layer", "window", "head", "causal")  # of a row
INPUTS_LEGEND = [
    "Statistics of the inputs, before any method: medians over heads and windows. Scores S: of all pairs of valid "
    "tokens; with causal attention, of each token and those up to it. Entropy: mean entropy of the rows of "
    "B = softmax(S), in nats and as a share of the entropy of a uniform row. First token, most attended: its share of "
    "all attention. Stable rank: ‖·‖_F²/‖·‖₂² of B, Q, K and V. Norms: of the rows of Q, K and V."
]


def input_rows(inputs: Iterable[Any], records: Iterable[Any]) -> list[Row]:
    """One row per layer, window and head of the ``records``, with its statistics from ``inputs``.

    Args:
        inputs: of `attnprobe.records.read.read_inputs`. records: of cells; they select the rows and their order.
    """
    records = list(records)

    def place_of(record: Row, layer: int | None) -> tuple[Any, ...]:
        return (identity(record["source"]), record["n"], layer, record["window"])

    measured: dict[tuple[Any, ...], Row] = {}
    for record in inputs:
        if record["status"] == "ok":
            for index, head in enumerate(record["heads"]):
                of_head = {name: values[index] for name, values in record["metrics"].items()}
                measured[*place_of(record, record["layer"]), head] = of_head
    labels, rows = source_labels(records), {}
    for record in records:
        for layer in [record["layer"]] if record["layer"] is not None else record.get("layers", ()):  # of several
            place = place_of(record, layer)
            for head in record["heads"]:
                if (*place, head) in measured:
                    rows[*place, head] = {
                        "weights": record["source"].get("weights"),
                        "source": labels[place[0]],
                        "scale_inputs": scale_of(record["source"]),
                        "n": record["n"],
                        "layer": layer,
                        "window": record["window"],
                        "head": head,
                        **measured[*place, head],
                        **({"causal": True} if record["source"].get("causal") else {}),
                    }
    sources = list(labels.values())

    def order(row: Row) -> tuple[Any, ...]:
        return (sources.index(row["source"]), *(row[name] for name in ("n", "layer", "window", "head")))

    return sorted(rows.values(), key=order)


def input_lines(rows: Sequence[Row]) -> list[str]:
    """A line for each (source, n): medians over heads and windows, from the least to the largest of the layers.

    Of the largest score and the entropy the range over heads and windows stands beside: methods fail on the heads at
    its ends.
    """
    lines = []
    for group in grouped_by(rows, "source", "n"):
        layers = _of_layers(group)

        def span(name: str, form: str = "3", layers: Sequence[Row] = layers) -> str:
            medians = known(layers, name)
            ends = [formatted(end, form) for end in (min(medians), max(medians))] if medians else ["unknown"]
            return " – ".join(dict.fromkeys(ends))

        def heads(name: str, rows: Sequence[Row] = group) -> str:
            values = known(rows, name)
            return f" [heads {formatted(min(values), '3')} – {formatted(max(values), '3')}]" if len(values) > 1 else ""

        where = ", ".join(filter(None, [group[0]["source"], layers_in_words(group), f"n = {group[0]['n']}"]))
        most = "uniform rows" if group[0].get("causal") else "ln n"
        lines.append(
            f"inputs, medians of heads: {where}: scores s.d. {span('score_std')}, largest {span('score_max')}"
            f"{heads('score_max')}; entropy {span('entropy')} nats ({span('entropy_share', 'share')} of {most})"
            f"{heads('entropy')}; attention to the first token "
            f"{span('sink_first', 'share')}, to the most attended {span('sink_most', 'share')}; stable rank of B "
            f"{span('stable_rank')}"
        )
    return lines


def input_tables(rows: Sequence[Fields]) -> list[Table]:
    """A table for each (source, n) with a line for each layer."""
    tables = []
    for group in grouped_by(rows, "source", "n"):
        first = group[0]
        counts = counted([{f"{name}s": len({row[name] for row in group}) for name in ("head", "window")}])
        caption = joined("Inputs", source_heading(first), f"n = {first['n']}", f"median of {counts}")
        # of a causal row over the keys up to its own, a uniform one has less than ln n
        headings = {"of ln n": "of uniform"} if first.get("causal") else {}
        columns = [replace(column, heading=headings.get(column.heading, column.heading)) for column in COLUMNS]
        tables.append(table_of(caption, _of_layers(group), columns))
    return tables


def _of_layers(rows: Sequence[Fields]) -> list[Row]:
    """An entry for each layer, with medians over heads and windows."""
    entries = []
    for group in grouped_by(rows, "layer"):
        names = [name for name in group[0] if name not in PLACE]
        entries.append({"layer": group[0]["layer"], **{name: median(known(group, name)) for name in names}})
    return entries
