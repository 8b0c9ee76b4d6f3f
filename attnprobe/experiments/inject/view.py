"""The view of ``attnprobe inject``: a row for each method, budget and set of layers, and which layers tolerate it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from math import isfinite
from typing import Any

from ...tables.labels import source_heading
from ...tables.long import CELL, STATE, Row, known, long_rows
from ...tables.methods import statistic
from ...tables.numbers import method_label, significant
from ...tables.results import Value, at_budget, best_of, in_words, led, lost, sentences, tie_rule
from ...tables.statistics import STATISTICS, describe, rank_correlation, sortable, worst_status
from ...tables.table import (
    Best,
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
from . import GATED
from .record import SHAPE, InjectRecord

NOTHING = "no layer replaced alone (add --per-layer) and no step of decoding (add --phase decode) has a drift to draw"
SHARED = (  # the fields that all records of a row share
    *("method", "options", "family", "target", "n", "d", "budgets", "layer", "layers", "predicts", "predicts_not"),
    *("model_dtype", "prefix", "greedy_steps", "weights", "source"),
)
KINDS = ("model_layers", "global_layers")  # of a model with local and global layers
OF_RECORD = (*CELL, *SHARED, "model_layers", "heads", "repeat", "tokens", "seconds", "key")
COUNTS = ("heads", "windows", "repeats", "tokens", "cells", "values")
METRICS = (*GATED.names, "seconds")
FIELDS = (
    *(*SHARED, *KINDS, "steps", *COUNTS, *STATE, "reference", "requested"),
    *(f"{metric}.{name}" for metric in METRICS for name in STATISTICS),
)
SUMMARISED = ("options", "family", "n", "d", "budgets", "weights", "source")


def mean(row: Row, name: str) -> float | None:
    """The mean of a row's metric; None if it was not measured."""
    return statistic(row, name, "mean")


def _greedy(row: Row) -> str:
    """The number of equal first tokens of greedy decoding, and the number of all."""
    same = mean(row, "greedy_match")
    return "" if same is None or not row["greedy_steps"] else f"{same:g} of {row['greedy_steps']}"


def _budget(row: Row) -> str:
    if row["budgets"]:
        return "file" if row["budgets"]["mean"] is None else f"{row['budgets']['mean']:.0f} (mean)"
    return "" if row["d"] is None else str(row["d"])


def _place(row: Row) -> str:
    """Which layers were replaced: one, ``0-n``, a list, or the global ones of a model with other ones."""
    layers = row["layers"] if row["layer"] is None else [row["layer"]]
    if len(layers) > 1 and layers == row.get("global_layers"):
        return f"global, {len(layers)} of {row.get('model_layers')}"
    if len(layers) > 1 and layers == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]}-{layers[-1]}"
    return ",".join(map(str, layers))


def _layers(row: Row) -> str:
    return f"layer {row['layer']}" if row["layer"] is not None else f"layers {_place(row)}"


def _rho(row: Row) -> str:
    return "" if row["spearman"] is None else f"{row['spearman']:+.2f}"


def _best(name: str, larger: bool = False) -> Best:
    return Best(lambda row: mean(row, name), lambda row: statistic(row, name, "se"), larger)


def _rivals(row: Row) -> Hashable | None:
    """Methods are compared at one budget and the same layers."""
    d = "of a file" if row["budgets"] else row["d"]
    return (d, _place(row)) if row["status"] == "ok" else None


DRIFTS: tuple[Column, ...] = (
    Column("method", method_label, key=True),
    Column("d", _budget, key=True),
    Column("layer", _place, key=True),
    Column(
        "drift",
        "{metrics[drift][mean]:3}",
        "relative error of the last hidden states",
        more="‖H~ − H‖_F / ‖H‖_F, mean over windows and seeds",
        best=_best("drift"),
    ),
    Column("± s.e.", "{metrics[drift][se]:2}", "of the drift", spare=6, short="s.e."),
    Column(
        "local error",
        "{metrics[local_error][mean]:3}",
        "of the layers' own outputs",
        more="‖(B − B~) V‖_F / ‖B V‖_F on Q, K, V of the unmodified model, mean over heads and layers",
        best=_best("local_error"),
    ),
    Column(
        "cosine",
        "{metrics[embedding_cosine][mean]:4}",
        "of mean-pooled hidden states with the model's own",
        spare=3,
        best=_best("embedding_cosine", larger=True),
    ),
    Column(
        "logits",
        "{metrics[logits_drift][mean]:3}",
        "their relative error",
        spare=5,
        more="where words are predicted",
        best=_best("logits_drift"),
    ),
    Column(
        "KL",
        "{metrics[kl][mean]:3}",
        "mean KL(p ‖ p~) of predictions, nats",
        spare=1,
        more="a causal model predicts no word at the last token",
        best=_best("kl"),
    ),
    Column(
        "top-1",
        "{metrics[top1_agreement][mean]:share}",
        "same likeliest word",
        spare=2,
        more="of the same predictions",
        best=_best("top1_agreement", larger=True),
    ),
    Column(
        "greedy",
        _greedy,
        "first tokens that are the same",
        more="of greedy decoding from the prefix, mean over windows and seeds",
        best=_best("greedy_match", larger=True),
    ),
    Column("loss change", "{metrics[loss_change][mean]:3}", "nats over the model's own"),
    Column("perplexity change", "{metrics[perplexity_change][mean]:3}", "over the model's own", spare=4),
    Column(
        "± of change",
        "{metrics[perplexity_change][se]:2}",
        "s.e. of the perplexity change",
        more="over windows of the differences of both perplexities in the same window, so it is paired",
        spare=4,
    ),
    Column("status", lambda row: "" if row["status"] == "ok" else row["status"]),
)
ONE_LAYER = "drift with this layer alone replaced"
LAYERS: tuple[Column, ...] = (
    Column("method", method_label, key=True),
    Column("d", _budget, key=True),
    Column("all layers", "{drift:3}", "drift with all layers replaced"),
    Column("best", "{best[layer]}", "the layer with the least drift"),
    Column("drift of best", "{best[drift]:3}", ONE_LAYER),
    Column("worst", "{worst[layer]}", "the layer with the most"),
    Column("drift of worst", "{worst[drift]:3}", ONE_LAYER),
    Column(
        "ρ",
        "{spearman:+.2f}",
        "Spearman's, of local error and drift",
        more="over the layers that were replaced one by one",
    ),
)
COLUMNS = (*DRIFTS, *LAYERS)


def view(recorded: Recorded[InjectRecord]) -> View:
    """The view of the records of ``attnprobe inject``."""
    from .figures import inject_figures

    rows = inject_rows(recorded.records)
    draw = lambda folder: inject_figures(rows, recorded.drawing, folder)
    return View(
        "inject",
        recorded.header,
        rows,
        _tables(rows),
        title="Drift of a model with a method in it",
        result=inject_result(rows),
        summary=inject_summary(rows),
        judged=rows,
        figures={"inject": Figure("inject", draw, NOTHING)},
    )


def inject_rows(records: Sequence[InjectRecord]) -> list[Row]:
    """The rows of the JSON contract: one per (source, method, options, n, d, layers), over windows and seeds.

    ``layer`` is the layer that was replaced alone, or null if all ``layers`` were replaced together. Rows are ordered
    by source, n, the method's first appearance, and d, with all layers first.
    """
    cells = [group[0] for group in grouped_by(long_rows(records, SHAPE, OF_RECORD), "key")]
    sources = list(dict.fromkeys(cell["source"] for cell in cells))
    methods = list(dict.fromkeys(map(method_key, cells)))

    def key(cell: Row) -> tuple[Any, ...]:
        decoding = sortable(cell["prefix"]), sortable(cell["greedy_steps"])
        place = (*decoding, sortable(cell["d"]), sortable(cell["layer"]), tuple(cell["layers"]))
        return sources.index(cell["source"]), cell["n"], methods.index(method_key(cell)), *place

    return [_row(group) for group in sorted(gathered(cells, key), key=lambda group: key(group[0]))]


def _row(group: Sequence[Row]) -> Row:
    """One row from the cells that differ only in window and repeat; sums do not depend on their order."""
    cells: list[Any] = sorted(group, key=lambda cell: (cell["window"], cell["repeat"] or 0))
    first, windows = cells[0], [cell["window"] for cell in cells]
    names = [name for name in GATED.names if any(name in cell for cell in cells)]
    names += ["seconds"] if known(cells, "seconds") else []
    status, reason = worst_status(cells)
    return {
        **{name: first.get(name) for name in SHARED},
        **{name: first[name] for name in KINDS if first.get(name) is not None},
        "steps": _mean_steps(known(cells, "steps")),
        "heads": len(first["heads"]),
        "windows": len(set(windows)),
        "repeats": len({cell["repeat"] for cell in cells}),
        "tokens": sum({cell["window"]: cell["tokens"] or 0 for cell in cells}.values()),
        "cells": len(cells),
        "values": len(cells),
        "status": status,
        "reason": reason,
        "reference": False,
        "requested": True,
        "metrics": {name: describe([cell.get(name) for cell in cells], windows) for name in names},
    }


def _mean_steps(steps: Sequence[Row]) -> Row | None:
    """The means of each step over cells, None where a cell has no finite value; None without decoding."""
    if not steps:
        return None
    return {name: [_mean(values) for values in zip(*(one[name] for one in steps), strict=True)] for name in steps[0]}


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None and isfinite(value)]
    return sum(finite) / len(finite) if len(finite) == len(values) else None


def inject_points(rows: Iterable[Row]) -> list[tuple[float, float]]:
    """(local error, drift) of the rows of single layers."""
    points = []
    for row in rows:
        local, drift = mean(row, "local_error"), mean(row, "drift")
        if row["layer"] is not None and local is not None and drift is not None:
            points.append((local, drift))
    return points


def inject_summary(rows: Iterable[Row]) -> list[Row]:
    """One entry per (source, n, method, options, d) whose layers were replaced one by one, then one for all of them.

    ``drift`` is that of all layers together. ``best`` and ``worst`` are the layers with the smallest and the largest
    drift. ``spearman`` is the rank correlation of local error and drift over ``points``. ``method`` is null in the last
    entry.
    """
    summary: list[Row] = []
    for group in grouped_by(rows, "source", "n"):
        profiles = [_profile(alike) for alike in grouped_by(group, "method", "options", "d")]
        entries = [entry for entry in profiles if entry is not None]
        if len(entries) > 1:
            summary += entries
            every: Row = {
                "method": None,
                "options": {},
                "family": None,
                "n": group[0]["n"],
                "d": None,
                "budgets": None,
                "weights": group[0].get("weights"),
                "source": group[0]["source"],
                "drift": None,
                "local_error": None,
                "best": None,
                "worst": None,
                **_correlation(inject_points(group)),
            }
            summary.append(every)
        else:
            summary += entries
    return summary


def _profile(group: Sequence[Row]) -> Row | None:
    """The layers that tolerate a method best and worst; None if no layer was replaced alone."""
    means = {row["layer"]: mean(row, "drift") for row in group if row["layer"] is not None}
    drifts = {layer: drift for layer, drift in means.items() if drift is not None}
    if not drifts:
        return None
    together = next((row for row in group if row["layer"] is None), None)
    best, worst = min(drifts, key=drifts.__getitem__), max(drifts, key=drifts.__getitem__)
    return {
        **{name: group[0][name] for name in SUMMARISED},
        "method": group[0]["method"],
        "drift": together and mean(together, "drift"),
        "local_error": together and mean(together, "local_error"),
        "best": {"layer": best, "drift": drifts[best]},
        "worst": {"layer": worst, "drift": drifts[worst]},
        **_correlation(inject_points(group)),
    }


def _correlation(points: Sequence[tuple[float, float]]) -> Row:
    rho = rank_correlation(*zip(*points, strict=True)) if points else None
    return {"spearman": rho, "points": len(points)}


def _tables(rows: Sequence[Row]) -> list[Table]:
    """The tables of each (source, n): drifts with local errors, and layers if some were replaced alone."""
    tables = []
    for group in grouped_by(rows, "source", "n", "prefix", "greedy_steps"):
        counts = counted(group, "windows"), counted(group, "tokens")
        repeats = counted(group, "repeats") if any(row["repeats"] > 1 for row in group) else ""
        where = joined(source_heading(group[0]), f"n = {group[0]['n']}", _decoding(group[0]), *counts, repeats)
        tables.append(table_of(f"Drift · {where}", group, DRIFTS, _notes(group), rivals=_rivals))
        summary = inject_summary(group)
        if summary:
            rho = next((_rho(one) for one in summary if one["method"] is None), "")
            notes = [f"ρ over all {summary[-1]['points']} points: {rho}"] if rho else []
            profiles = [one for one in summary if one["method"] is not None]
            tables.append(table_of(f"Layers · {where}", profiles, LAYERS, notes))
    return tables


def _decoding(row: Row) -> str:
    """The phase, if it is decoding."""
    return "" if row["prefix"] is None else f"decoding behind {row['prefix']} tokens"


def _notes(group: Sequence[Row]) -> list[str]:
    notes = []
    own = next((row for row in group if mean(row, "loss_own") is not None), None)
    if own is not None:
        loss, size = f"the model's own loss is {significant(mean(own, 'loss_own'))} nats", mean(own, "perplexity_own")
        words = f"{loss} on {own['predicts']} words"
        notes.append(words if size is None else f"{loss}, its perplexity {significant(size)}")
    notes += [f"no loss and no logits: {row['predicts_not']}" for row in group if row["predicts_not"]]
    notes += [f"the model runs in {row['model_dtype']}" for row in group if row["model_dtype"] != "float32"]
    notes += _spared(group)
    notes += reasons(group, _name)
    for row in group:
        budgets = row["budgets"]
        if row["layer"] is None and budgets is not None and budgets["exact"]:
            exact = f"{budgets['exact']} of {budgets['heads']} heads keep exact attention"
            notes.append(f"{_layers(row)}: {exact}, for which no budget was enough")
    return list(dict.fromkeys(notes))


def _spared(group: Sequence[Row]) -> list[str]:
    """A line on the local layers if a method leaves them as they are."""
    for row in group:
        layers, every = row["layers"], row.get("model_layers")
        if every is not None and layers == row.get("global_layers"):
            kept = f"the other {every - len(layers)} keep exact attention to their window"
            return [f"layers {', '.join(map(str, layers))} are global; {kept}"]
    return []


def _name(row: Row) -> str:
    budget = f"d = {row['d']}" if row["d"] else ""
    return " ".join(filter(None, [method_label(row), budget, _layers(row)]))


def inject_result(rows: Sequence[Row]) -> str:
    """The method with the smallest change of the last hidden states when it replaces all layers."""
    together = [row for row in rows if row["layer"] is None and mean(row, "drift") is not None]
    places = [{at_budget(row): _drift(row) for row in group} for group in grouped_by(together, "source", "n")]
    if len(places) != 1:
        return sentences(led(places, "the smallest drift in all layers"), lost(rows, at_budget))
    drifts = places[0]
    best = best_of(drifts)
    verb = "moves" if len(best) == 1 else "move"
    size = f"a mean drift of {significant(drifts[best[0]].value, 2)}"
    text = f"In all layers, {in_words(best)} {verb} the last hidden states least{tie_rule(drifts, best)}: {size}."
    return sentences(text, lost(rows, at_budget))


def _drift(row: Row) -> Value:
    return Value(mean(row, "drift") or 0.0, statistic(row, "drift", "se"))
