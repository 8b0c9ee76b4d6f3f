"""A run as a pandas frame: a row for each cell and head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..experiments import shape_of
from ..records.file import strict_json
from ..records.shapes import flat
from ..tables.labels import identity, scale_of, source_labels

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..records.shapes import Record

# what the rows of every command hold, beside every other field of the record that is one value
COLUMNS = {
    "command": "the command that measured it",
    "key": "the cell",
    "status": "`ok`, `skipped`, `failed` or `diverged`",
    "reason": "the reason if the status is not ok",
    "source": "the facts in which the sources of a run differ; empty for one source",
    "weights": "pretrained, initialized or initialized-qkv",
    "scale_inputs": "the factor of the scores",
    "method": "the method; empty for a matrix",
    "options": "its options that differ from their defaults, as JSON",
    "target": "the exact matrix: softmax or gaussian",
    "requested": "false for rows that attnprobe added",
    "reference": "true for a yardstick",
    "n": "tokens",
    "d": "the budget",
    "window": "the number of the text window",
    "layer": "the layer",
    "repeat": "the number of the repeat",
    "seed": "the seed of the draws",
    "family": "the method's family",
    "duplicates": "rows of Q, K and V that are equal to another row",
    "seconds": "time of the cell",
    "draws_hash": "a hash of the random draws",
    "head": "the head",
}
ELSEWHERE = ("schema", "run")  # the same in all rows of a run's folder
INTEGERS = ("n", "d", "window", "layer", "repeat", "head", "duplicates")  # a seed may have more than 64 bits


def frame_of(records: Mapping[str, Sequence[Record]]) -> DataFrame:
    """The records of each command as one frame. Integers have pandas' type ``Int64``, which has missing values."""
    import pandas

    rows = [row for command, of_command in records.items() for row in _rows(command, of_command)]
    frame = pandas.DataFrame(rows, columns=list(dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)])))
    return frame.astype({name: "Int64" for name in INTEGERS})


def _rows(command: str, records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    shape = shape_of(command)
    assert shape is not None  # a run holds commands that are known alone
    labels = source_labels(records)
    for record in records:
        facts = {
            "source": labels[identity(record["source"])],
            "weights": record["source"].get("weights"),
            "scale_inputs": scale_of(record["source"]),
            "options": strict_json(record["options"]),
        }
        values = {name: value for name, value in record.items() if not isinstance(value, (dict, list))}
        shared = dict.fromkeys(COLUMNS) | values | facts
        for row in list(shape.rows(record)) or [{}]:
            yield {
                column: value
                for name, field in (shared | row).items()
                if name not in ELSEWHERE
                for column, value in flat(name, field).items()
            }
