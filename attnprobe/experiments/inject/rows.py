"""The rows of ``attnprobe inject``, one for each method, budget and set of layers, and their summary by layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, inf, isfinite, nan
from statistics import fmean
from typing import Any

from ...frame.metric import METRICS
from ...tables.long import (
    CELL,
    LEAST_RANKED,
    STATISTICS,
    Row,
    describe,
    described,
    known,
    long_rows,
    rank_correlation,
    sortable,
    worst_status,
)
from ...tables.methods import statistic
from ...tables.numbers import is_fragile
from ...tables.table import gathered, grouped_by, method_key
from . import GATED
from .record import SHAPE, InjectRecord

SHARED = (  # the fields that all records of a row share
    *("method", "options", "family", "target", "n", "d", "budgets", "layer", "layers", "predicts", "predicts_not"),
    *("model_dtype", "prefix", "greedy_steps", "weights", "source"),
)
KINDS = ("model_layers", "global_layers", "kv_head")  # of a model with both kinds of layers, and of one KV head
OF_RECORD = (*CELL, *SHARED, "model_layers", "heads", "repeat", "tokens", "seconds", "key")
SUMMARISED = ("options", "family", "n", "d", "budgets", "weights", "source")


def perplexity(loss: float) -> float:
    """``exp(loss)``, at most exp(700); NaN for a loss that is not finite."""
    return exp(min(loss, 700.0)) if isfinite(loss) else nan


def mean(row: Row, name: str) -> float | None:
    """The mean of a row's metric; None if it was not measured."""
    return statistic(row, name, "mean")


def inject_rows(records: Sequence[InjectRecord]) -> list[Row]:
    """The rows of the JSON contract: one per (source, method, options, n, d, layers), over windows and seeds.

    ``layer`` is the layer that was replaced alone, or null if all ``layers`` were replaced together. Rows are ordered
    by source, n, the method's first appearance, and d, with all layers first.
    """
    return list(map(inject_row, inject_cells(records)))


def inject_cells(records: Sequence[InjectRecord]) -> list[list[Row]]:
    """The cells of each of `inject_rows`."""
    cells = [group[0] for group in grouped_by(long_rows(records, SHAPE, OF_RECORD), "key")]
    sources = list(dict.fromkeys(cell["source"] for cell in cells))
    methods = list(dict.fromkeys(map(method_key, cells)))

    def key(cell: Row) -> tuple[Any, ...]:
        decoding = sortable(cell["prefix"]), sortable(cell["greedy_steps"])
        place = (*decoding, sortable(cell["d"]), sortable(cell["layer"]), tuple(cell["layers"]))
        place = (*place, sortable(cell.get("kv_head")))
        return sources.index(cell["source"]), cell["n"], methods.index(method_key(cell)), *place

    return sorted(gathered(cells, key), key=lambda group: key(group[0]))


def inject_row(group: Sequence[Row]) -> Row:
    """One row from the cells that differ only in window and repeat; sums do not depend on their order."""
    cells: list[Any] = sorted(group, key=lambda cell: (cell["window"], cell["repeat"] or 0))
    first = cells[0]
    names = [name for name in GATED.names if any(name in cell for cell in cells)]
    names += ["seconds"] if known(cells, "seconds") else []
    numbers = described(cells, names)
    numbers["metrics"] |= _perplexities(numbers["metrics"])
    if loss := numbers["fragile"].get("loss"):
        moved = [name for name in ("perplexity", "perplexity_change") if name in numbers["metrics"]]
        numbers["fragile"] |= {name: {**loss, "mean": [*METRICS[name].range]} for name in moved}
    status, reason = worst_status([(cell["status"], cell["reason"]) for cell in cells])
    return {
        **{name: first.get(name) for name in SHARED},
        **{name: first[name] for name in KINDS if first.get(name) is not None},
        "steps": _mean_steps(known(cells, "steps")),
        "heads": len(first["heads"]),
        "windows": len({cell["window"] for cell in cells}),
        "repeats": len({cell["repeat"] for cell in cells}),
        "tokens": sum({cell["window"]: cell["tokens"] or 0 for cell in cells}.values()),
        "cells": len(cells),
        "values": len(cells),
        "status": status,
        "reason": reason,
        "reference": False,
        "requested": True,
        **numbers,
    }


def of_windows(cells: Iterable[Row], name: str) -> list[float]:
    """The mean of a metric in each text window, over its repeats; of windows in which it is known."""
    groups = grouped_by([cell for cell in cells if cell.get(name) is not None], "window")
    return [fmean(cell[name] for cell in group) for group in groups]


def _perplexities(metrics: Row) -> Row:
    """The perplexities of mean losses, as papers have them, and their change; they have no other statistics.

    The change is over the windows in which both losses are finite.
    """
    loss, own, change = (mean({"metrics": metrics}, name) for name in ("loss", "loss_own", "loss_change"))
    means = {
        "perplexity": None if loss is None else perplexity(loss),
        "perplexity_own": None if own is None else perplexity(own),
        "perplexity_change": None if loss is None or change is None else perplexity(loss) - perplexity(loss - change),
    }
    nothing = dict.fromkeys(STATISTICS)
    return {
        name: {**nothing, "mean": value, "count": metrics[name]["count"]}
        for name, value in means.items()
        if name in metrics
    }


def _mean_steps(steps: Sequence[Row]) -> Row | None:
    """The means of each step over cells, None where a cell has no finite value; None without decoding."""
    if not steps:
        return None
    return {name: [_mean(values) for values in zip(*(one[name] for one in steps), strict=True)] for name in steps[0]}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def of_layers(rows: Iterable[Row]) -> list[Row]:
    """The rows without those of single KV heads."""
    return [row for row in rows if row.get("kv_head") is None]


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
    drift. ``fragile`` names those of the three that rounding decides. ``spearman`` is the rank correlation of local
    error and drift over ``points``, and null for fewer than
    `LEAST_RANKED`. ``method`` is null in the last entry.
    """
    summary: list[Row] = []
    for group in grouped_by(of_layers(rows), "source", "n"):
        profiles = [_profile(alike) for alike in grouped_by(group, "method", "options", "d")]
        entries = [entry for entry in profiles if entry is not None]
        summary += entries
        if len(entries) > 1:
            place = {name: group[0].get(name) for name in ("n", "weights", "source")}
            nothing = dict.fromkeys(entries[0])
            summary.append({**nothing, "options": {}, **place, **_correlation(inject_points(group))})
    return summary


def _profile(group: Sequence[Row]) -> Row | None:
    """The layers that tolerate a method best and worst; None if no layer was replaced alone."""
    means = {row["layer"]: mean(row, "drift") for row in group if row["layer"] is not None}
    drifts = {layer: drift for layer, drift in means.items() if drift is not None}
    if not drifts:
        return None
    together = next((row for row in group if row["layer"] is None), None)
    best, worst = min(drifts, key=drifts.__getitem__), max(drifts, key=drifts.__getitem__)
    shown = {"drift": None, "best": best, "worst": worst}
    doubtful = {row["layer"] for row in group if is_fragile(row, "drift", "mean")}
    return {
        **{name: group[0][name] for name in SUMMARISED},
        "method": group[0]["method"],
        "drift": together and mean(together, "drift"),
        "local_error": together and mean(together, "local_error"),
        "best": {"layer": best, "drift": drifts[best]},
        "worst": {"layer": worst, "drift": drifts[worst]},
        "fragile": [name for name, layer in shown.items() if layer in doubtful],
        **_correlation(inject_points(group)),
    }


def _correlation(points: Sequence[tuple[float, float]]) -> Row:
    rho = rank_correlation(*zip(*points, strict=True)) if points else None
    return {"spearman": rho, "points": len(points)}


LEAST_OF_MANY = 3  # places of a group whose correlation is one of those of a mean
PREDICTORS = {
    "lost_mass": "lost mass",
    "local_error": "local error",
    "row_error": "row error",
    "spectral_error": "spectral error",
    "residual_error": "residual error",
}


def predictors(rows: Sequence[Row]) -> list[Row]:
    """How well each local number orders the damage over single places: Spearman's rank correlation.

    A place is a layer, or a KV head, that was replaced alone. The damage is the KL divergence of a causal model, and
    the drift of another one. ``within_layer`` and ``within_method`` are means of the correlation over groups of at
    least three places with an equal layer and d, and with an equal method and d.
    """
    entries: list[Row] = []
    for kind in ("layers", "KV heads"):
        alone = [row for row in rows if row["layer"] is not None]
        alone = [row for row in alone if (row.get("kv_head") is None) == (kind == "layers")]
        damage = "kl" if any(row["predicts"] == "causal" for row in alone) else "drift"
        complete = [row for row in alone if all(mean(row, name) is not None for name in (damage, *_known(alone)))]
        for name in _known(alone):
            entries.append(
                {
                    "number": PREDICTORS[name],
                    "places": kind,
                    "damage": damage,
                    "points": len(complete),
                    "spearman": _rho(complete, name, damage),
                    "within_layer": _within(complete, name, damage, ("layer", "d")),
                    "within_method": _within(complete, name, damage, ("method", "options", "d")),
                }
            )
    return entries


def _known(rows: Sequence[Row]) -> list[str]:
    return [name for name in PREDICTORS if any(mean(row, name) is not None for row in rows)]


def _rho(rows: Sequence[Row], name: str, damage: str, least: int = LEAST_RANKED) -> float | None:
    points = [(mean(row, name), mean(row, damage)) for row in rows]
    return rank_correlation(*zip(*points, strict=True), least=least) if points else None


def _within(rows: Sequence[Row], name: str, damage: str, by: Sequence[str]) -> float | None:
    every = [_rho(group, name, damage, LEAST_OF_MANY) for group in grouped_by(rows, *by)]
    found = [rho for rho in every if rho is not None]
    return sum(found) / len(found) if found else None


def plan_rows(records: Sequence[InjectRecord]) -> list[Row]:
    """How each cache policy compares with the best uniform one of as many bytes, where budgets were planned.

    One entry per (source, n, prefix, d, method, options) without single layers. ``best`` is the policy with the least
    mean KL divergence of those that give every head d keys. ``kl_gap`` and ``loss_gap`` are the differences to it on
    the same windows, as `describe` has them. Methods that keep more bytes than the plan are left out.
    """
    cells = [group[0] for group in grouped_by(long_rows(records, SHAPE, OF_RECORD), "key")]
    entries: list[Row] = []
    measured = [cell for cell in cells if cell["layer"] is None and cell["status"] == "ok" and "cache_bytes" in cell]
    for group in grouped_by(measured, "source", "n", "prefix", "d"):
        planned = [cell["cache_bytes"] for cell in group if "plan" in cell["options"]]
        fair = [cell for cell in group if planned and cell["cache_bytes"] <= 1.02 * max(planned)]
        policies = gathered(fair, method_key)
        uniform = [cells for cells in policies if not {"plan", "allocation"} & cells[0]["options"].keys()]
        if uniform:
            best = min(uniform, key=_divergence)
            entries += [_beside(cells, best) for cells in policies]
    return entries


def _divergence(cells: Sequence[Row]) -> float:
    """The mean KL divergence; infinite if a window has none."""
    kl = _mean([cell["kl"] for cell in cells])
    return inf if kl is None else kl


def _beside(cells: Sequence[Row], best: Sequence[Row]) -> Row:
    """The differences of a policy to another one on the same windows."""
    own = {name: _by_window(best, name) for name in ("kl", "loss")}
    first, windows = cells[0], [cell["window"] for cell in cells]
    gaps = {name: [_gap(cell[name], own[name].get(cell["window"])) for cell in cells] for name in own}
    kl, least = _mean([cell["kl"] for cell in cells]), _mean([cell["kl"] for cell in best])
    return {
        **{name: first[name] for name in ("method", "options", "source", "n", "prefix", "d")},
        "best": best is cells,
        "windows": len(set(windows)),
        "kl": kl,
        "kl_ratio": kl / least if kl is not None and least else None,
        "kl_gap": describe(gaps["kl"], windows),
        "loss_gap": describe(gaps["loss"], windows),
    }


def _gap(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def _by_window(cells: Sequence[Row], name: str) -> dict[int, float | None]:
    """The mean of a metric over the repeats of each window; None if one of them lacks it."""
    groups = grouped_by(cells, "window")
    return {group[0]["window"]: _mean([cell[name] for cell in group]) for group in groups}
