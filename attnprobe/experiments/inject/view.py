"""The view of ``attnprobe inject``: a row for each method, budget and set of layers, and which layers tolerate it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

from ...tables.labels import source_heading
from ...tables.methods import statistic
from ...tables.numbers import method_label, per_cent, significant
from ...tables.table import (
    Best,
    Column,
    Table,
    counted,
    grouped_by,
    joined,
    reasons,
    table_of,
)
from ...tables.view import Figure, View
from ..base import Recorded
from .result import inject_result
from .rows import FIELDS, InjectRow, InjectSummary, inject_rows, inject_summary, is_profile, mean

if TYPE_CHECKING:
    from .record import InjectRecord

NOTHING = "no layer replaced alone (add --per-layer) and no step of decoding (add --phase decode) has a drift to draw"


def view(recorded: Recorded[InjectRecord]) -> View:
    """The view of the records of ``attnprobe inject``."""
    from .figures import inject_figures

    rows = inject_rows(recorded.records)
    draw = lambda folder: inject_figures(rows, recorded.drawing, folder)
    return View(
        "inject",
        recorded.header,
        rows,
        inject_tables(rows),
        columns=COLUMNS,
        fields=FIELDS,
        title="Drift of a model with a method in it",
        result=inject_result(rows),
        summary=inject_summary(rows),
        judged=rows,
        figures={"inject": Figure("inject", draw, NOTHING)},
    )


def inject_tables(rows: Sequence[InjectRow]) -> list[Table]:
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
            profiles = list(filter(is_profile, summary))
            tables.append(table_of(f"Layers · {where}", profiles, LAYERS, notes))
    return tables


def _decoding(row: InjectRow) -> str:
    """The phase, if it is decoding."""
    return "" if row["prefix"] is None else f"decoding behind {row['prefix']} tokens"


def _greedy(row: InjectRow) -> str:
    """The number of equal first tokens of greedy decoding, and the number of all."""
    same = mean(row, "greedy_match")
    return "" if same is None or not row["greedy_steps"] else f"{same:g} of {row['greedy_steps']}"


def _notes(group: Sequence[InjectRow]) -> list[str]:
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


def _spared(group: Sequence[InjectRow]) -> list[str]:
    """A line on the local layers if a method leaves them as they are."""
    for row in group:
        layers, every = row["layers"], row.get("model_layers")
        if every is not None and layers == row.get("global_layers"):
            kept = f"the other {every - len(layers)} keep exact attention to their window"
            return [f"layers {', '.join(map(str, layers))} are global; {kept}"]
    return []


def _name(row: InjectRow) -> str:
    budget = f"d = {row['d']}" if row["d"] else ""
    return " ".join(filter(None, [method_label(row), budget, _layers(row)]))


def _mean(name: str, digits: int = 3) -> Callable[[InjectRow], str]:
    return lambda row: significant(mean(row, name), digits)


def _budget(row: InjectRow | InjectSummary) -> str:
    if row["budgets"]:
        return "file" if row["budgets"]["mean"] is None else f"{row['budgets']['mean']:.0f} (mean)"
    return "" if row["d"] is None else str(row["d"])


def _place(row: InjectRow) -> str:
    """Which layers were replaced: one, ``0-n``, a list, or the global ones of a model with other ones."""
    layers = row["layers"] if row["layer"] is None else [row["layer"]]
    if len(layers) > 1 and layers == row.get("global_layers"):
        return f"global, {len(layers)} of {row.get('model_layers')}"
    if len(layers) > 1 and layers == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]}-{layers[-1]}"
    return ",".join(map(str, layers))


def _layers(row: InjectRow) -> str:
    return f"layer {row['layer']}" if row["layer"] is not None else f"layers {_place(row)}"


def _rho(row: InjectSummary) -> str:
    return "" if row["spearman"] is None else f"{row['spearman']:+.2f}"


def _best(name: str, larger: bool = False) -> Best:
    return Best(lambda row: mean(row, name), lambda row: statistic(row, name, "se"), larger)


def _rivals(row: InjectRow) -> Hashable | None:
    """Methods are compared at one budget and the same layers."""
    d = "of a file" if row["budgets"] else row["d"]
    return (d, _place(row)) if row["status"] == "ok" else None


DRIFTS: tuple[Column, ...] = (
    Column("method", method_label, key=True),
    Column("d", _budget, key=True),
    Column("layer", _place, key=True),
    Column(
        "drift",
        _mean("drift"),
        "relative error of the last hidden states",
        more="‖H~ − H‖_F / ‖H‖_F, mean over windows and seeds",
        best=_best("drift"),
    ),
    Column("± s.e.", lambda row: significant(statistic(row, "drift", "se"), 2), "of the drift", spare=6, short="s.e."),
    Column(
        "local error",
        _mean("local_error"),
        "of the layers' own outputs",
        more="‖(B − B~) V‖_F / ‖B V‖_F on Q, K, V of the unmodified model, mean over heads and layers",
        best=_best("local_error"),
    ),
    Column(
        "cosine",
        _mean("embedding_cosine", 4),
        "of mean-pooled hidden states with the model's own",
        spare=3,
        best=_best("embedding_cosine", larger=True),
    ),
    Column(
        "logits",
        _mean("logits_drift"),
        "their relative error",
        spare=5,
        more="where words are predicted",
        best=_best("logits_drift"),
    ),
    Column(
        "KL",
        _mean("kl"),
        "mean KL(p ‖ p~) of predictions, nats",
        spare=1,
        more="a causal model predicts no word at the last token",
        best=_best("kl"),
    ),
    Column(
        "top-1",
        lambda row: per_cent(mean(row, "top1_agreement")),
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
    Column("loss change", _mean("loss_change"), "nats over the model's own"),
    Column("perplexity change", _mean("perplexity_change"), "over the model's own", spare=4),
    Column(
        "± of change",
        lambda row: significant(statistic(row, "perplexity_change", "se"), 2),
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
    Column("all layers", lambda row: significant(row["drift"], 3), "drift with all layers replaced"),
    Column("best", lambda row: str(row["best"]["layer"]), "the layer with the least drift"),
    Column("drift of best", lambda row: significant(row["best"]["drift"], 3), ONE_LAYER),
    Column("worst", lambda row: str(row["worst"]["layer"]), "the layer with the most"),
    Column("drift of worst", lambda row: significant(row["worst"]["drift"], 3), ONE_LAYER),
    Column(
        "ρ",
        _rho,
        "Spearman's, of local error and drift",
        more="over the layers that were replaced one by one",
    ),
)
COLUMNS = (*DRIFTS, *LAYERS)
