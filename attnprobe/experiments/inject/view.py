"""The view of ``attnprobe inject``: drifts by method, budget and layers, which layers tolerate it, and the result."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...records.file import SCHEMA
from ...tables.duels import DUELS, best_methods
from ...tables.labels import file_tag, source_heading
from ...tables.long import STATE, STATISTICS, Row
from ...tables.methods import budget, budget_used, marked, mean_of, reach, rivals, smallest
from ...tables.numbers import OPEN, method_label, significant
from ...tables.results import Value, student_reach
from ...tables.table import Best, Column, Table, Tested, counted, grouped_by, joined, reasons, table_of
from ...tables.view import Figure, View
from ..base import Recorded
from . import GATED, LAVA, SHUFFLED
from .record import InjectRecord
from .rows import KINDS, SHARED, inject_cells, inject_rows, inject_summary, mean, of_layers, plan_rows, predictors

NOTHING = "no layer replaced alone (add --per-layer) and no step of decoding (add --phase decode) has a drift to draw"
COUNTS = ("heads", "windows", "repeats", "tokens", "cells", "values")
PLACE = ("source", "n", "prefix", "greedy_steps")  # where methods are compared
METRICS = (*GATED.names, "seconds")
FIELDS = (
    *(*SHARED, *KINDS, "steps", *COUNTS, *STATE, "reference", "requested", "fragile"),
    *(f"{metric}.{name}" for metric in METRICS for name in STATISTICS),
)


def _greedy(row: Row) -> str:
    """The number of equal first tokens of greedy decoding, and the number of all."""
    same = mean(row, "greedy_match")
    return "" if same is None else f"{same:.3g} of {row['greedy_steps']}"


def _budget(row: Row) -> str:
    if row["budgets"]:
        return "file" if row["budgets"]["mean"] is None else f"{row['budgets']['mean']:.0f} (mean)"
    return budget(row)


def _budget_used(row: Row) -> str:
    return _budget(row) if row["budgets"] else budget_used(row)


def _place(row: Row) -> str:
    """Which layers were replaced: one, ``0-n``, a list, or the global ones of a model with other ones."""
    layers = row["layers"] if row["layer"] is None else [row["layer"]]
    if len(layers) > 1 and layers == row.get("global_layers"):
        return f"global, {len(layers)} of {row.get('model_layers')}"
    if len(layers) > 1 and layers == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]}-{layers[-1]}"
    return ",".join(map(str, layers))


def _layers(row: Row) -> str:
    return f"layer{'s' * (row['layer'] is None and len(row['layers']) > 1)} {_place(row)}"


def _interval(statistics: Row, windows: int) -> str:
    """The 95 % interval of a mean over windows; empty of fewer than 2."""
    if statistics["se"] is None:
        return ""
    mean, reach = statistics["mean"], student_reach(statistics["se"], windows)
    return f"[{significant(mean - reach, 2)}, {significant(mean + reach, 2)}]"


def _drift(entry: Row, of: str) -> str:
    """A drift of an entry of the summary, with `OPEN` where rounding decides it."""
    text = significant(entry["drift"] if of == "drift" else entry[of]["drift"], 3)
    return OPEN + text if of in entry["fragile"] else text


def _nearest_to_one(name: str) -> Best:
    """The largest cosine or share. It ties by its distance from 1: the digits of good ones are all nines."""

    def off(row: Row) -> Value | None:
        one = mean_of(row, name)
        return None if one is None else Value(1 - one.value, one.error)

    return Best(off, name)


def _rivals(row: Row) -> Hashable | None:
    """Methods are compared at one budget and the same layers."""
    key = rivals(row)
    return None if key is None else (*key, _place(row))


DRIFT = smallest("drift")
KL = Column(
    "KL",
    "{metrics[kl][mean]:3}",
    "mean KL(p ‖ p~) of predictions, nats",
    more="a causal model predicts no word at the last token",
    best=smallest("kl"),
)
LOSS_CHANGE = Column(
    "loss change", "{metrics[loss_change][mean]:3}", "nats over the model's own", best=smallest("loss_change")
)
OVER_WINDOWS = "95 % by Student's test of windows, each paired with exact attention"
LOSS_ERROR = Column("± of loss", partial(reach, metric="loss_change"), OVER_WINDOWS)

DRIFTS: tuple[Column, ...] = (
    Column("method", lambda row: marked(row, method_label(row)), key=True),
    Column("d\n(used)", _budget_used, "budget (mean of what was used)", short="d", key=True),
    Column("layer", _place, key=True),
    Column(
        "drift",
        "{metrics[drift][mean]:3}",
        "relative error of the last hidden states",
        more="‖H~ − H‖_F / ‖H‖_F, mean over windows and seeds",
        best=DRIFT,
    ),
    Column("± of drift", partial(reach, metric="drift"), OVER_WINDOWS, spare=6),
    Column(
        "local error",
        "{metrics[local_error][mean]:3}",
        "of the layers' own outputs",
        more="‖(B − B~) V‖_F / ‖B V‖_F on Q, K, V of the unmodified model, mean over heads and layers",
        best=smallest("local_error"),
    ),
    Column(
        "residual sum",
        "{metrics[residual_sum][mean]:2}",
        "over layers, each beside its own and the last one's stream",
        more="mean over rows of r² / (1 + r²), r = ‖Δy‖ / √(‖x + y‖ ‖x_L + y_L‖), of what the replaced heads of a "
        "layer add to the residual stream x, L the last layer; residual_error has each layer beside its own alone",
        spare=7,
        best=smallest("residual_sum"),
    ),
    Column(
        "cosine",
        "{metrics[embedding_cosine][mean]:4}",
        "of mean-pooled hidden states with the model's own",
        spare=3,
        best=_nearest_to_one("embedding_cosine"),
    ),
    Column(
        "logits",
        "{metrics[logits_drift][mean]:3}",
        "their relative error",
        spare=5,
        more="where words are predicted",
        best=smallest("logits_drift"),
    ),
    replace(KL, spare=1),
    Column(
        "top-1",
        "{metrics[top1_agreement][mean]:share}",
        "same likeliest word",
        spare=2,
        more="of the same predictions",
        best=_nearest_to_one("top1_agreement"),
    ),
    Column(
        "greedy",
        _greedy,
        "first tokens that are the same",
        more="of greedy decoding from the prefix, mean over windows and seeds",
        best=_nearest_to_one("greedy_match"),
    ),
    LOSS_CHANGE,
    LOSS_ERROR,
    Column(
        "perplexity change",
        "{metrics[perplexity_change][mean]:3}",
        "exp of the mean loss, less that of the model's own",
        spare=4,
    ),
    Column("status", lambda row: "" if row["status"] == "ok" else row["status"]),
)
ONE_LAYER = "drift with this layer alone replaced"
LAYERS: tuple[Column, ...] = (
    Column("method", method_label, key=True),
    Column("d", _budget, key=True),
    Column("all layers", partial(_drift, of="drift"), "drift with all layers replaced"),
    Column("best", "{best[layer]}", "the layer with the least drift"),
    Column("drift of best", partial(_drift, of="best"), ONE_LAYER),
    Column("worst", "{worst[layer]}", "the layer with the most"),
    Column("drift of worst", partial(_drift, of="worst"), ONE_LAYER),
    Column(
        "ρ",
        "{spearman:+.2f}",
        "Spearman's, of local error and drift",
        more="over the layers that were replaced one by one",
    ),
)
PROMPTS: tuple[Column, ...] = (
    Column("method", method_label, key=True),
    Column("d", _budget, key=True),
    Column("layer", _place, key=True),
    KL,
    Column("± of KL", partial(reach, metric="kl"), OVER_WINDOWS),
    LOSS_CHANGE,
    LOSS_ERROR,
    Column("same steps", "{metrics[first_divergence][mean]:3}", "first steps with the same likeliest word", spare=2),
    Column("needle loss change", "{metrics[needle_loss_change][mean]:3}", "of the answer's tokens, nats"),
    Column("± of needle", partial(reach, metric="needle_loss_change"), OVER_WINDOWS),
    Column("needle rank", "{metrics[needle_rank][mean]:3}", "mean place of the answer's tokens by p~, from 1"),
    Column("lost mass", "{metrics[lost_mass][mean]:3}", "the exact weight of unseen keys", spare=1),
    Column(
        "kept MiB",
        "{metrics[cache_bytes][mean]:3MiB}",
        "the prompt's keys and values in the cache, all layers",
        short="kept",
    ),
    Column(
        "read MiB",
        "{metrics[read_bytes][mean]:3MiB}",
        "of these, what a step reads by any of the heads that share them",
        short="read",
    ),
)
WHICH: tuple[Column, ...] = (
    Column("number", "{number}", "a local number of a place", key=True),
    Column("over", "{points} {places}", "places that were replaced alone, all methods and d"),
    Column("ρ overall", "{spearman:+.2f}", "Spearman's rank correlation with the damage"),
    Column("ρ in a layer", "{within_layer:+.2f}", "mean over layers and d"),
    Column("ρ in a method", "{within_method:+.2f}", "mean over methods and d"),
)
STUDENT = "Student's interval over the differences on the same window"
OVER_BEST = "less that of the best policy with d keys in every head"
PLANS: tuple[Column, ...] = (
    Column("method", method_label, key=True),
    Column("d", "{d}", key=True),
    Column("KL", "{kl:3}", "mean KL(p ‖ p~) of predictions, nats"),
    Column("KL ratio", "{kl_ratio:2}", "to the best policy with d keys in every head"),
    Column("ΔKL", "{kl_gap[mean]:2}", OVER_BEST),
    Column("95 % of ΔKL", lambda row: _interval(row["kl_gap"], row["windows"]), STUDENT),
    Column("Δloss", "{loss_gap[mean]:2}", OVER_BEST),
    Column("95 % of Δloss", lambda row: _interval(row["loss_gap"], row["windows"]), STUDENT),
)
COLUMNS = (*DRIFTS, *DUELS, *PROMPTS, *PLANS, *LAYERS, *WHICH)


def view(recorded: Recorded[InjectRecord]) -> View:
    """The view of the records of ``attnprobe inject``."""
    from .figures import inject_figures

    rows = inject_rows(recorded.records)
    best, best_tables = _best(rows, recorded.tested)

    def draw(folder: Path) -> list[Path]:
        drawn = [{**row, "of_windows": group} for row, group in zip(rows, inject_cells(recorded.records), strict=True)]
        return inject_figures(of_layers(drawn), recorded.drawing, folder)

    return View(
        "inject",
        recorded.header,
        rows,
        [*_tables(rows, recorded.tested), *best_tables, *_plans(recorded.records)],
        title="What a method changes in a model",
        summary=inject_summary(rows),
        more={"best": best},
        judged=rows,
        tiles=(("head", "heads"), ("layer", "layers"), ("text window", "window")),
        figures={"inject": Figure("inject", draw, NOTHING)},
        files=plan_files(recorded.records),
    )


def _plans(records: Sequence[InjectRecord]) -> list[Table]:
    """The tables of plans beside uniform policies of as many bytes."""
    tables = []
    for group in grouped_by(plan_rows(records), "source", "n", "prefix"):
        where = joined("plans", source_heading(group[0]), f"n = {group[0]['n']}", _decoding(group[0]))
        tables.append(table_of(where, group, PLANS))
    return tables


def plan_files(records: Sequence[InjectRecord]) -> dict[str, dict[str, Any]]:
    """The contents of each ``budgets-METHOD-dD.json``: the planned keys of every head at a prompt of N tokens."""
    files: dict[str, dict[str, Any]] = {}
    for record in records:
        options, planned = dict(record["options"]), record.get("planned")
        by, d = options.pop("plan", None), record.get("d")
        if not planned or by in (SHUFFLED, LAVA):
            continue
        heads, source = len(record["heads"]), record["source"]
        budgets = [
            {"layer": int(layer), "head": head, "d": of_layer[head * len(of_layer) // heads]}
            for layer, of_layer in planned.items()
            for head in range(heads)
        ]
        label = method_label({"method": record["method"], "options": options})
        files[f"budgets{file_tag(label)}-n{record['n']}-d{d}.json"] = {
            "schema": SCHEMA,
            **{"method": record["method"], "options": options, "by": by, "n": record["n"]},
            **{"prompt": record.get("prefix"), "mean": d, "target": record.get("target")},
            "kv_heads": len(next(iter(planned.values()))),
            **{name: source.get(name) for name in ("model", "weights")},
            "budgets": budgets,
        }
    return files


def _tables(rows: Sequence[Row], tested: Tested | None) -> list[Table]:
    """The tables of each (source, n): drifts with local errors, and layers if some were replaced alone."""
    tables = []
    for group in grouped_by(rows, *PLACE):
        counts = counted(group, "windows"), _measured(group)
        repeats = counted(group, "repeats") if any(row["repeats"] > 1 for row in group) else ""
        where = joined(source_heading(group[0]), f"n = {group[0]['n']}", _decoding(group[0]), *counts, repeats)
        drifts, decoding = of_layers(group), group[0]["prefix"] is not None
        elsewhere = {column.name for column in PROMPTS if not column.key} if decoding else ()
        columns = [column for column in DRIFTS if column.name not in elsewhere]
        tables.append(table_of(f"drift · {where}", drifts, columns, _notes(group), rivals=_rivals, tested=tested))
        if decoding:
            done = [row for row in of_layers(group) if row["status"] == "ok"]
            notes = _unknown_mass(done)
            caption = f"words after the prompt · {where}"
            tables.append(table_of(caption, done, PROMPTS, notes, rivals=_rivals, tested=tested))
        which = predictors(group)
        if any(one[name] is not None for one in which for name in ("spearman", "within_layer", "within_method")):
            notes = [f"the damage of a place is its {'KL' if which[0]['damage'] == 'kl' else 'drift'}"]
            tables.append(table_of(f"which local number predicts the damage · {where}", which, WHICH, notes))
        summary = inject_summary(group)
        if summary:
            rho = next((one["spearman"] for one in summary if one["method"] is None), None)
            notes = [] if rho is None else [f"ρ over all {summary[-1]['points']} points: {rho:+.2f}"]
            profiles = [one for one in summary if one["method"] is not None]
            tables.append(table_of(f"layers · {where}", profiles, LAYERS, notes))
    return tables


def _best(rows: Sequence[Row], tested: Tested | None) -> tuple[list[Row], list[Table]]:
    """The method that moves the last hidden states least, in all replaced layers, against the next one, at each d."""

    def words(first: Row) -> str:
        where = joined(source_heading(first), f"n = {first['n']}", _decoding(first))
        return f"drift · {where}"

    groups = grouped_by(of_layers(rows), *PLACE)
    return best_methods(groups, DRIFT, tested, words, _place, lambda row: row["layer"] is None)


def _measured(group: Sequence[Row]) -> str:
    """The tokens that were read, or of decoding the words that were predicted in a window."""
    steps = next((row["steps"] for row in group if row["steps"]), None)
    return counted(group, "tokens") if steps is None else f"{len(next(iter(steps.values())))} words a window"


def _decoding(row: Row) -> str:
    return "" if row["prefix"] is None else f"decoding behind {row['prefix']} tokens"


def _notes(group: Sequence[Row]) -> list[str]:
    notes = []
    own = next(((row, loss) for row in group if (loss := mean(row, "loss_own")) is not None), None)
    if own is not None:
        row, loss = own
        perplexity = significant(mean(row, "perplexity_own"))
        of_words = f", its perplexity {perplexity}" if perplexity else f" on {row['predicts']} words"
        notes.append(f"the model's own loss is {significant(loss)} nats{of_words}")
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


def _unknown_mass(rows: Sequence[Row]) -> list[str]:
    """A line on methods of which no lost mass is known, such as a user's."""
    names = list(dict.fromkeys(method_label(row) for row in rows if mean(row, "lost_mass") is None))
    if not names:
        return []
    reads = "kept and read are what the method states, or the whole prompt"
    return [f"{', '.join(names)}: no lost mass, as weights may be of no key; {reads}"]


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
    head = f"KV head {row['kv_head']}" if row.get("kv_head") is not None else ""
    return " ".join(filter(None, [method_label(row), budget, _layers(row), head]))
