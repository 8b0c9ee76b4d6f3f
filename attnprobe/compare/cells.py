"""The cells of a run by identity, and whether two runs have the same sources."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import UsageError
from ..experiments import EXPERIMENTS, experiment
from ..files import Fields
from ..frame.metric import METRICS
from ..frame.rows import HEAD
from ..grammar.lists import options_of
from ..records.file import LOWER_BOUND, NAMES, STATUSES, strict_json
from ..tables.labels import TELLING
from ..tables.numbers import short_hashes

Key = tuple[Any, ...]
MOST_FACTS = 4  # that a refusal names


def in_lists(cell: Fields) -> Fields:
    """A cell whose rows are lines as a record with a list for each metric; another record as it is."""
    if "rows" not in cell:
        return cell
    heads = [row for row in cell["rows"] if row["kind"] == HEAD]
    names = dict.fromkeys(name for row in heads for name in row if name in METRICS and name != HEAD)
    of_heads = {
        "heads": [row["head"] for row in heads] or cell["heads"],
        "metrics": {name: [row.get(name) for row in heads] for name in names},
        "options": options_of(cell["options"]),
    }
    return {name: value for name, value in cell.items() if name != "rows"} | of_heads


def cells_of(records: Iterable[Fields], name: str, command: str, all_layers: bool = False) -> dict[Key, Fields]:
    """The cells of a run by identity. Of equal ones, the best status wins, then the closest tolerance.

    Args:
        all_layers: the cells are at no layer; a head of theirs is a layer and a head of it.
    """
    cells: dict[Key, Fields] = {}
    commands: set[str] = set()
    for record in records:
        commands.add(str(record.get("command", command)))
        if record.get("command", command) != command or record.get("method") == LOWER_BOUND:
            continue
        cell = at_no_layer(record) if all_layers else cell_of(record, command)
        source = strict_json({name: fact for name, fact in cell["source"].items() if name not in NAMES})
        key = (source, *_row_key(cell), *place_of_cell(cell))
        if key not in cells or _quality(cell) <= _quality(cells[key]):
            cells[key] = cell
    if not cells:
        others = ", ".join(f"`{other}`" for other in sorted(commands - {command}))
        holds = f"it holds records of {others}" if others else "it holds no record of a method"
        taken = ", of ".join(f"`{other}`" for other in EXPERIMENTS if experiment(other).compared)
        raise UsageError(f"{name}: {holds}; compare takes two runs of {taken}")
    return cells


def cell_of(record: Fields, command: str) -> Fields:
    """A record as a cell. A command that measures the whole model has one value for each metric, so no heads."""
    return {**record, "heads": [None]} if experiment(command).whole else record


def at_no_layer(record: Fields) -> Fields:
    """A record as a cell of all layers together, whose heads are pairs of a layer and a head of it."""
    return {**record, "layer": None, "heads": [(record["layer"], head) for head in record["heads"]]}


def layers_together(cells: Iterable[Fields]) -> list[int]:
    """The layers of cells at no layer; empty for others."""
    return sorted({head[0] for cell in cells for head in cell["heads"] if isinstance(head, tuple)})


def place_of_cell(cell: Fields) -> Key:
    """The window, seed and heads of a cell."""
    return cell.get("window"), cell.get("seed"), tuple(cell["heads"])


def per_head(cell: Fields, metric: str) -> list[float | None] | None:
    """The values of a cell, None for a value that is not finite; None if the metric was not measured."""
    metric_values = cell.get("seconds") if metric == "seconds" else cell["metrics"].get(metric)
    if metric_values is None:
        return None
    values = metric_values if isinstance(metric_values, (list, tuple)) else [metric_values]
    return [value if isinstance(value, (int, float)) and math.isfinite(value) else None for value in values]


def _row_key(record: Fields) -> Key:
    options = "" if "pair" in record else json.dumps(record.get("options") or {}, sort_keys=True)
    method = record.get("pair", record["method"])
    numbers = (record.get(name) for name in ("target", "n", "d", "layer", "backward", "kv_head", "prefix"))
    return (method, options, *numbers, tuple(record.get("layers") or ()))


def _quality(record: Fields) -> tuple[int, float]:
    """The order of records: the status, then the tolerance of matrix errors; smaller is better."""
    tol = record.get("matrix_tol")
    return STATUSES.index(record["status"]), math.inf if tol is None else tol


def shared_sources(a: Mapping[Key, Fields], b: Mapping[Key, Fields]) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The facts of the sources in both runs, and the names of the facts that differ between these sources."""
    ours, others = ({key[0]: record["source"] for key, record in run.items()} for run in (a, b))
    lost = [json.loads(key) for key in ours if key not in others]
    new = [json.loads(key) for key in others if key not in ours]
    if lost and new:
        pair = min(((_differing(x, y), x, y) for x in lost for y in new), key=lambda differing: len(differing[0]))
        names = [ours[strict_json(pair[1])], others[strict_json(pair[2])]]
        models = [_model(source) for source in names]
        if "model_sha256" in pair[0] and all(models) and models[0] != models[1]:
            raise UsageError(
                f"A and B measure two models, {models[0]} and {models[1]}: their heads and losses do not pair; "
                "compare methods of one model, compare A --pair LEFT=RIGHT and the same with B"
            )
        first = sorted(pair[0], key=lambda name: TELLING.index(name) if name in TELLING else len(TELLING))
        facts = [f"{name} {_fact(names[0], name)} in A, {_fact(names[1], name)} in B" for name in first[:MOST_FACTS]]
        facts += [f"{len(first) - MOST_FACTS} more"] if len(first) > MOST_FACTS else []
        raise UsageError(f"A and B measure different sources: {'; '.join(facts)}")
    every = [json.loads(key) for key in {**ours, **others}]
    varying = sorted({name for x in every for y in every for name in _differing(x, y)})
    return [ours[key] for key in ours if key in others], varying


def _model(source: Mapping[str, Any]) -> str:
    """A source's model with its size; empty without one.

    >>> _model({"model": "smollm2", "heads": 9, "p": 64})
    'smollm2 (9 heads of 64)'
    """
    if not source.get("model"):
        return ""
    size = f" ({source['heads']} heads of {source['p']})" if source.get("heads") and source.get("p") else ""
    return f"{source['model']}{size}"


def _differing(x: Mapping[str, Any], y: Mapping[str, Any]) -> list[str]:
    return [name for name in sorted({**x, **y}) if name not in x or name not in y or x[name] != y[name]]


def _fact(source: Mapping[str, Any], name: str) -> str:
    """A fact in words; a hash with the name of the hashed file."""
    if name not in source:
        return "absent"
    text = short_hashes(json.dumps(source[name], ensure_ascii=False)).strip('"')
    called = source.get(name.removesuffix("_sha256")) if name.endswith("_sha256") else None
    return f"{text} ({called})" if called else text


def grouped(cells: Mapping[Key, Fields]) -> dict[Key, dict[Key, Fields]]:
    """The cells of each row, by window, seed and heads."""
    rows: dict[Key, dict[Key, Fields]] = {}
    for key, record in cells.items():
        rows.setdefault(key[:-3], {})[key[-3:]] = record
    return rows
