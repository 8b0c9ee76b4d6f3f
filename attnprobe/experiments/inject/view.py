"""What ``attnprobe inject`` shows: a row for each method, budget and set of layers, and which layers tolerate it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...tables.labels import identity, source_heading, source_labels
from ...tables.methods import statistic
from ...tables.numbers import method_label, per_cent, significant
from ...tables.statistics import describe, rank_correlation, sortable, worst_status
from ...tables.table import (
    Column,
    Table,
    counted,
    gathered,
    grouped_by,
    joined,
    method_key,
    reasons,
    table_of,
)
from ...tables.view import Figure, View
from ..base import Recorded
from .gates import GATED

__all__ = ["inject_legend", "inject_points", "inject_rows", "inject_summary", "inject_tables", "view"]

Record = Any
Row = Any

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
    sources, methods = list(labels.values()), list(dict.fromkeys(map(method_key, records)))

    def key(record: Record) -> tuple[Any, ...]:
        label = labels[identity(record.get("source"))]
        place = (sortable(record.get("d")), sortable(record.get("layer")), tuple(record["layers"]))
        return sources.index(label), record["n"], methods.index(method_key(record)), *place

    groups = sorted(gathered(records, key), key=lambda some: key(some[0]))
    return [_row(some, labels[identity(some[0].get("source"))]) for some in groups]


def _row(records: list[Record], label: str | None) -> Row:
    """One row from the records that differ only in window and repeat; sums do not depend on their order."""
    cells = sorted(records, key=lambda cell: (cell["window"], cell.get("repeat") or 0))
    first = cells[0]
    windows = [cell["window"] for cell in cells]
    names = [name for name in GATED.names if any(name in cell["metrics"] for cell in cells)]
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


def mean(row: Row, name: str) -> float | None:
    """The mean of a row's metric; None where it was not measured."""
    return statistic(row, name, "mean")


def inject_points(rows: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """(local error, drift) of the rows of single layers."""
    points = []
    for row in rows:
        local, drift = mean(row, "local_error"), mean(row, "drift")
        if row["layer"] is not None and local is not None and drift is not None:
            points.append((local, drift))
    return points


def inject_summary(rows: Iterable[Row]) -> list[Row]:
    """One entry per (source, n, method, options, d) whose layers were replaced one by one, then one for all of them.

    ``drift`` is that of all layers together, ``best`` and ``worst`` the layers with the smallest and the largest
    drift, ``spearman`` the rank correlation of local error and drift over ``points``; ``method`` is null in the last.
    """
    summary = []
    for some in grouped_by(rows, "source", "n"):
        entries = [_profile(alike) for alike in grouped_by(some, "method", "options", "d")]
        entries = [entry for entry in entries if entry is not None]
        if len(entries) > 1:
            first = entries[0]
            every = dict.fromkeys(first) | {name: first[name] for name in ("source", "weights", "n")} | {"options": {}}
            entries.append(every | _correlation(inject_points(some)))
        summary += entries
    return summary


def _profile(some: Sequence[Row]) -> Row | None:
    """Which layers tolerate a method best and worst; None where none was replaced by itself."""
    means = {row["layer"]: mean(row, "drift") for row in some if row["layer"] is not None}
    drifts = {layer: drift for layer, drift in means.items() if drift is not None}
    if not drifts:
        return None
    together = next((row for row in some if row["layer"] is None), None)
    ends = {"best": min(drifts, key=drifts.__getitem__), "worst": max(drifts, key=drifts.__getitem__)}
    names = ("method", "options", "family", "n", "d", "budgets", "weights", "source")
    return {
        **{name: some[0][name] for name in names},
        **{name: together and mean(together, name) for name in ("drift", "local_error")},
        **{name: {"layer": layer, "drift": drifts[layer]} for name, layer in ends.items()},
        **_correlation(inject_points(some)),
    }


def _correlation(points: Sequence[tuple[float, float]]) -> Row:
    rho = rank_correlation(*zip(*points, strict=True)) if points else None
    return {"spearman": rho, "points": len(points)}


def inject_tables(rows: Sequence[Row]) -> list[Table]:
    """For each (source, n) the table of drifts with the local errors, and where layers stand alone that of layers."""
    tables = []
    for some in grouped_by(rows, "source", "n"):
        counts = counted(some, "windows"), counted(some, "tokens")
        repeats = counted(some, "repeats") if any(row["repeats"] > 1 for row in some) else ""
        where = joined(source_heading(some[0]), f"n = {some[0]['n']}", *counts, repeats)
        tables.append(table_of(f"Drift · {where}", some, DRIFTS, _notes(some)))
        summary = inject_summary(some)
        if summary:
            rho = next((_rho(one) for one in summary if one["method"] is None), "")
            notes = [f"ρ over all {summary[-1]['points']} points: {rho}"] if rho else []
            lines = [one for one in summary if one["method"] is not None]
            tables.append(table_of(f"Layers · {where}", lines, LAYERS, notes))
    return tables


def _notes(some: Sequence[Row]) -> list[str]:
    notes = []
    own = next((row for row in some if mean(row, "loss_own") is not None), None)
    if own is not None:
        loss, size = f"the model's own loss is {significant(mean(own, 'loss_own'))} nats", mean(own, "perplexity_own")
        words = f"{loss} on {own['predicts']} words"
        notes.append(words if size is None else f"{loss}, its perplexity {significant(size)}")
    notes += [f"no loss and no logits: {row['predicts_not']}" for row in some if row["predicts_not"]]
    notes += [f"the model runs in {row['model_dtype']}" for row in some if row["model_dtype"] != "float32"]
    notes += reasons(some, _name)
    for row in some:
        if row["layer"] is None and (row["budgets"] or {}).get("exact"):
            exact = f"{row['budgets']['exact']} of {row['budgets']['heads']} heads keep exact attention"
            notes.append(f"{_layers(row)}: {exact}, for which no budget was enough")
    return list(dict.fromkeys(notes))


def _name(row: Row) -> str:
    budget = f"d = {row['d']}" if row["d"] else ""
    return " ".join(filter(None, [method_label(row), budget, _layers(row)]))


def _mean(name: str, digits: int = 3) -> Callable[[Row], str]:
    return lambda row: significant(mean(row, name), digits)


def _budget(row: Mapping[str, Any]) -> str:
    if row["budgets"]:
        return "file" if row["budgets"]["mean"] is None else f"{row['budgets']['mean']:.0f} (mean)"
    return "" if row["d"] is None else str(row["d"])


def _place(row: Row) -> str:
    """Which layers were replaced: one, ``0-n``, or a list."""
    layers = row["layers"] if row["layer"] is None else [row["layer"]]
    if len(layers) > 1 and layers == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]}-{layers[-1]}"
    return ",".join(map(str, layers))


def _layers(row: Row) -> str:
    return f"layer {row['layer']}" if row["layer"] is not None else f"layers {_place(row)}"


def _rho(row: Row) -> str:
    return "" if row["spearman"] is None else f"{row['spearman']:+.2f}"


DRIFTS: tuple[Column[Row], ...] = (
    Column("method", method_label),
    Column("d", _budget),
    Column("layer", _place),
    Column(
        "drift",
        _mean("drift"),
        "drift: relative error of the last hidden states, ‖H~ − H‖_F / ‖H‖_F, mean over windows and seeds",
    ),
    Column("± s.e.", lambda row: significant(statistic(row, "drift", "se"), 2), spare=6),
    Column(
        "local error",
        _mean("local_error"),
        "local error: ‖(B − B~) V‖_F / ‖B V‖_F of the method on the layers' own Q, K, V in the unmodified model, mean "
        "over heads and layers",
    ),
    Column(
        "cosine",
        _mean("embedding_cosine", 4),
        "cosine: of the mean-pooled hidden states with the model's own",
        spare=3,
    ),
    Column("logits", _mean("logits_drift"), "logits: their relative error where words are predicted", spare=5),
    Column("KL", _mean("kl"), "KL: mean KL(p ‖ p~) of the predictions, nats", spare=1),
    Column(
        "top-1", lambda row: per_cent(mean(row, "top1_agreement")), "top-1: the likeliest word is the same", spare=2
    ),
    Column("loss change", _mean("loss_change"), "loss change: in nats over the model's own"),
    Column(
        "perplexity change",
        _mean("perplexity_change"),
        "perplexity change: over the model's own",
        spare=4,
    ),
    Column("status", lambda row: "" if row["status"] == "ok" else row["status"]),
)
LAYERS: tuple[Column[Row], ...] = (
    Column("method", method_label),
    Column("d", _budget),
    Column("all layers", lambda row: significant(row["drift"], 3)),
    Column("best", lambda row: str(row["best"]["layer"])),
    Column("drift of best", lambda row: significant(row["best"]["drift"], 3)),
    Column("worst", lambda row: str(row["worst"]["layer"])),
    Column("drift of worst", lambda row: significant(row["worst"]["drift"], 3)),
    Column("ρ", _rho),
)


def inject_legend(rows: Sequence[Row]) -> str:
    """What ρ means, where there is any."""
    return RHO if any(one["spearman"] is not None for one in inject_summary(rows)) else ""
