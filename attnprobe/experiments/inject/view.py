"""What ``attnprobe inject`` shows: a row for each method, budget and set of layers, and which layers tolerate it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...records.file import strict_json
from ...tables.labels import identity, source_heading, source_labels
from ...tables.numbers import method_label, per_cent, significant
from ...tables.statistics import describe, rank_correlation, sortable, worst_status
from ...tables.table import Table
from ...tables.view import Figure, View
from ..base import Recorded
from .gates import INJECT_METRICS

__all__ = [
    "inject_legend",
    "inject_points",
    "inject_rows",
    "inject_summary",
    "inject_tables",
    "view",
]

Record = Mapping[str, Any]
Row = dict[str, Any]

HEADINGS = {  # of the table, and how a value is written
    "drift": "drift",
    "local_error": "local error",
    "embedding_cosine": "cosine",
    "logits_drift": "logits",
    "kl": "KL",
    "top1_agreement": "top-1",
    "loss_change": "loss change",
    "perplexity_change": "perplexity change",
}
INJECT_SPARE = ("± s.e.", "logits", "perplexity change", "cosine", "top-1", "KL")  # left out first
MEANINGS = {
    "drift": "drift: relative error of the last hidden states, ‖H~ − H‖_F / ‖H‖_F, mean over windows and seeds",
    "local_error": "local error: ‖(B − B~) V‖_F / ‖B V‖_F of the method on the layers' own Q, K, V in the unmodified "
    "model, mean over heads and layers",
    "embedding_cosine": "cosine: of the mean-pooled hidden states with the model's own",
    "logits_drift": "logits: their relative error where words are predicted",
    "kl": "KL: mean KL(p ‖ p~) of the predictions, nats",
    "top1_agreement": "top-1: the likeliest word is the same",
    "loss_change": "loss change: in nats over the model's own",
    "perplexity_change": "perplexity change: over the model's own",
}
RHO = "ρ: Spearman's rank correlation of local error and drift over the layers that were replaced one by one."


def view(recorded: Recorded) -> View:
    """What records of ``attnprobe inject`` show."""
    from .figures import inject_figures

    rows, title = inject_rows(recorded.records), recorded.header.title
    draw = lambda folder: inject_figures(rows, title, folder)
    return View(
        "inject",
        recorded.header,
        rows,
        inject_tables(rows),
        inject_legend(rows),
        title="Drift of a model with a method in it",
        summary=inject_summary(rows),
        judged=rows,
        figures={"inject": Figure("inject", draw, "no layer was replaced by itself; --per-layer does")},
    )


def inject_rows(records: Iterable[Record]) -> list[Row]:
    """The rows of the JSON contract: one per (source, method, options, n, d, layers), over windows and seeds.

    ``layer`` is the one that was replaced by itself, null where all ``layers`` were together. Rows are ordered by
    source, n, the method's first appearance, d, all layers first.
    """
    records = list(records)
    labels = source_labels(records)
    sources = {label: place for place, label in enumerate(labels.values())}
    rank: dict[tuple[str, str], int] = {}
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        who = (record["method"], strict_json(record.get("options") or {}))
        rank.setdefault(who, len(rank))
        place = (labels[identity(record.get("source"))], record["n"], record.get("d"), record.get("layer"))
        groups.setdefault((*who, *place, tuple(record["layers"])), []).append(record)
    rows = [
        _row(sorted(cells, key=lambda cell: (cell["window"], cell.get("repeat") or 0)), key[2])
        for key, cells in groups.items()
    ]
    rows.sort(
        key=lambda row: (
            sources[row["source"]],
            row["n"],
            rank[row["method"], strict_json(row["options"])],
            sortable(row["d"]),
            sortable(row["layer"]),
            row["layers"],
        )
    )
    return rows


def _row(cells: list[Record], label: str | None) -> Row:
    first = cells[0]
    windows = [cell["window"] for cell in cells]
    names = [name for name in INJECT_METRICS if any(name in cell["metrics"] for cell in cells)]
    one = lambda cell, name: (cell["metrics"].get(name) or [None])[0]
    metrics = {name: describe([one(cell, name) for cell in cells], windows) for name in names}
    if any(cell.get("seconds") is not None for cell in cells):
        metrics["seconds"] = describe([cell.get("seconds") for cell in cells], windows)
    status, reason = worst_status(cells)
    kept = ("method", "family", "target", "n", "d", "budgets", "layer", "predicts", "predicts_not", "model_dtype")
    return {
        **{name: first.get(name) for name in kept},
        "options": dict(first.get("options") or {}),
        "layers": list(first["layers"]),
        "weights": (first.get("source") or {}).get("weights"),
        "source": label,
        "heads": len(first["heads"]),
        "windows": len(set(windows)),
        "repeats": len({cell.get("repeat") for cell in cells}),
        "tokens": sum({cell["window"]: cell.get("tokens") or 0 for cell in cells}.values()),
        "cells": len(cells),
        "values": len(cells),
        "status": status,
        "reason": reason,
        "reference": False,
        "requested": True,
        "metrics": metrics,
    }


def value(row: Mapping[str, Any], name: str, stat: str = "mean") -> float | None:
    """A statistic of a row's metric; None where it was not measured."""
    return (row["metrics"].get(name) or {}).get(stat)


def inject_points(rows: Iterable[Row]) -> list[tuple[float, float]]:
    """(local error, drift) of the rows of single layers."""
    pairs = [(value(row, "local_error"), value(row, "drift")) for row in rows if row["layer"] is not None]
    return [pair for pair in pairs if None not in pair]


def inject_summary(rows: Iterable[Row]) -> list[Row]:
    """One entry per (source, n, method, options, d) whose layers were replaced one by one, then one for all of them.

    ``drift`` is that of all layers together, ``best`` and ``worst`` the layers with the smallest and the largest
    drift, ``spearman`` the rank correlation of local error and drift over ``points``; ``method`` is null in the last.
    """
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Row]]] = {}
    for row in rows:
        who = (row["method"], strict_json(row["options"]), row["d"])
        groups.setdefault((row["source"], row["n"]), {}).setdefault(who, []).append(row)
    found = []
    for (source, n), by_method in groups.items():
        entries = [_profile(some) for some in by_method.values()]
        entries = [entry for entry in entries if entry is not None]
        points = inject_points(row for some in by_method.values() for row in some)
        if not entries:
            continue
        every = dict.fromkeys(entries[0]) | {"source": source, "weights": entries[0]["weights"], "n": n, "options": {}}
        found += [*entries, every | _correlation(points)] if len(entries) > 1 else entries
    return found


def _profile(some: Sequence[Row]) -> Row | None:
    """Which layers tolerate a method best and worst; None where none was replaced by itself."""
    alone = [row for row in some if row["layer"] is not None and value(row, "drift") is not None]
    if not alone:
        return None
    whole = next((row for row in some if row["layer"] is None), None)
    of = lambda row: value(row, "drift")
    ends = {"best": min(alone, key=of), "worst": max(alone, key=of)}
    names = ("method", "options", "family", "n", "d", "budgets", "weights", "source")
    return {
        **{name: some[0][name] for name in names},
        "drift": None if whole is None else value(whole, "drift"),
        "local_error": None if whole is None else value(whole, "local_error"),
        **{name: {"layer": row["layer"], "drift": value(row, "drift")} for name, row in ends.items()},
        **_correlation(inject_points(alone)),
    }


def _correlation(points: Sequence[tuple[float, float]]) -> Row:
    rho = rank_correlation(*zip(*points, strict=True)) if points else None
    return {"spearman": rho, "points": len(points)}


def inject_tables(rows: Sequence[Row]) -> list[Table]:
    """For each (source, n) the table of drifts with the local errors, and where layers stand alone that of layers."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((source_heading(row), row["n"]), []).append(row)
    tables = []
    for (source, n), some in groups.items():
        where = " · ".join(filter(None, [source, f"n = {n}", _counted(some)]))
        tables.append(_drifts(some, where))
        summary = inject_summary(some)
        tables += [_layers(summary, where)] if summary else []
    return tables


def _drifts(some: Sequence[Row], where: str) -> Table:
    names = [name for name in HEADINGS if any(name in row["metrics"] for row in some)]
    several = any(value(row, "drift", "se") is not None for row in some)
    headings = [
        "method",
        "d",
        "layer",
        "drift",
        *(["± s.e."] if several else []),
        *(HEADINGS[name] for name in names if name != "drift"),
        "status",
    ]
    lines = []
    for row in some:
        line = [method_label(row), _budget(row), _place(row), _shown(row, "drift")]
        line += [significant(value(row, "drift", "se"), 2)] if several else []
        line += [_shown(row, name) for name in names if name != "drift"]
        lines.append([*line, "" if row["status"] == "ok" else row["status"]])
    notes = []
    own = next((row for row in some if value(row, "loss_own") is not None), None)
    if own is not None:
        told = f"the model's own loss is {significant(value(own, 'loss_own'))} nats"
        size = value(own, "perplexity_own")
        notes.append(
            f"{told} on {own['predicts']} words" if size is None else f"{told}, its perplexity {significant(size)}"
        )
    notes += dict.fromkeys(f"no loss and no logits: {row['predicts_not']}" for row in some if row["predicts_not"])
    notes += dict.fromkeys(f"the model runs in {row['model_dtype']}" for row in some if row["model_dtype"] != "float32")
    for row in some:
        if row["status"] != "ok":
            sign = "–" if row["status"] == "skipped" else "✗"
            who = " ".join(filter(None, [method_label(row), row["d"] and f"d = {row['d']}", _place(row, True)]))
            notes.append(f"{sign} {who}: {row['status']}, {row['reason']}")
        if row["layer"] is None and (row["budgets"] or {}).get("exact"):
            kept = f"{row['budgets']['exact']} of {row['budgets']['heads']} heads keep exact attention"
            notes.append(f"{_place(row, True)}: {kept}, for which no budget was enough")
    return Table(f"Drift · {where}", *_filled(headings, lines), notes, INJECT_SPARE)


def _layers(summary: Sequence[Row], where: str) -> Table:
    headings = ["method", "d", "all layers", "best", "drift of best", "worst", "drift of worst", "ρ"]
    lines, notes = [], []
    for one in summary:
        rho = "" if one["spearman"] is None else f"{one['spearman']:+.2f}"
        if one["method"] is None:
            notes += [f"ρ over all {one['points']} points: {rho}"] if rho else []
            continue
        ends = [
            text for name in ("best", "worst") for text in (str(one[name]["layer"]), significant(one[name]["drift"], 3))
        ]
        lines.append([method_label(one), _budget(one), significant(one["drift"], 3), *ends, rho])
    return Table(f"Layers · {where}", *_filled(headings, lines), notes, INJECT_SPARE)


def _filled(headings: list[str], lines: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """The columns that hold something."""
    kept = [i for i in range(len(headings)) if any(line[i] for line in lines)]
    return [headings[i] for i in kept], [[line[i] for i in kept] for line in lines]


def _shown(row: Row, name: str) -> str:
    found = value(row, name)
    if name == "top1_agreement":
        return per_cent(found)
    return significant(found, 4 if name == "embedding_cosine" else 3)


def _budget(row: Mapping[str, Any]) -> str:
    if row["budgets"]:
        return "file" if row["budgets"]["mean"] is None else f"{row['budgets']['mean']:.0f} (mean)"
    return "" if row["d"] is None else str(row["d"])


def _place(row: Row, words: bool = False) -> str:
    """Which layers were replaced: one, ``all`` of 0 … n, or a list."""
    if row["layer"] is not None:
        return f"layer {row['layer']}" if words else str(row["layer"])
    layers = row["layers"]
    spans = (
        f"{layers[0]}-{layers[-1]}" if layers == list(range(layers[0], layers[-1] + 1)) else ",".join(map(str, layers))
    )
    spans = spans if len(layers) > 1 else str(layers[0])
    return f"layers {spans}" if words else spans


def _counted(some: Sequence[Row]) -> str:
    counts = [(max(row[name] for row in some), name) for name in ("windows", "tokens", "repeats")]
    return " · ".join(
        f"{count} {name if count != 1 else name[:-1]}" for count, name in counts if name != "repeats" or count > 1
    )


def inject_legend(rows: Sequence[Row]) -> str:
    """What the columns mean that are there."""
    told = [text for name, text in MEANINGS.items() if any(name in row["metrics"] for row in rows)]
    rho = f" {RHO}" if any(one["spearman"] is not None for one in inject_summary(rows)) else ""
    return f"{'; '.join(told)}.{rho}" if told else ""
