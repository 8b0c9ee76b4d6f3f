"""The tables and figures of ``attnprobe inject``: what a method changes in a model.

A row of kind ``head`` is the whole model with a method in some layers, and its ``layer`` is missing where these are
replaced together. A row of kind ``step`` is a step of decoding. The method ``exact`` is the unmodified model: a
reference with its own loss, needle and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...frame import Rows
from ...frame.correlation import LEAST, rank_correlation
from ...frame.metric import METRICS
from ...frame.rows import YARDSTICKS
from ...operators.linalg.exceedance import clopper_pearson
from ..figure import Figure, Guide
from ..grid import Cell
from ..table import BUDGET, KEY, METHOD, SOUND, Column, Computed, Table
from .tails import TAILS, WRITERS

PLACE = ("source", "n", "prefix", "target")
PLAIN = "format.isna()"  # in torch's arithmetic, without --arithmetic
TOGETHER = f"layer.isna() and {PLAIN} and not (reference and loss.isna())"  # exact attention is shown for its loss
RIVALS = f"{SOUND} and method not in {sorted(YARDSTICKS)}"
SPARED = 1.02  # a policy beside a plan may keep up to this multiple of the plan's bytes
ADMITTED = 0.95  # answers judge a method if the model itself has at least this share of them right
FEWEST = 3  # layers or heads of a group, below which its correlation does not count
PREDICTORS = {
    "lost_mass": "lost\nmass",
    "local_error": "local\nerror",
    "row_error": "row\nerror",
    "spectral_error": "matrix\nerror",
    "residual_error": "residual\nerror",
}
EXACT_OF = {"exact": "exact (ref.)"}
OF_ROUNDING = ("rounding_drift", "rounding_kl")  # of the model
LOCAL_ROUNDING = "rounding_local"


def _column(name: str) -> Callable[[Rows], Any]:
    return lambda rows: rows[name]


def _budgets(lines: Rows) -> list[Cell]:
    """The budget, or the mean of a file's."""
    ends = zip(lines["d"], lines["budget_mean.mean"], strict=True)
    return [_budget(d, mean) for d, mean in ends]


def _budget(d: Any, mean: Any) -> Cell:
    import pandas as pd

    if not pd.isna(mean):
        return Cell(mean, text=f"{mean:.0f} (mean)")
    return Cell() if pd.isna(d) else Cell(int(d))


def _notes(rows: Rows) -> list[str]:
    """Which layers are replaced, and what of the model limits the numbers."""
    found = [f"no loss and no logits: {why}" for why in rows["predicts_not"].dropna().unique()]
    dtypes = rows["model_dtype"].dropna().unique()
    found += [f"the model runs in {dtype}" for dtype in dtypes if dtype != "float32"]
    found += _replaced(rows[~rows["reference"]])
    kept = rows[["layers", "budget_exact", "budget_heads"]].dropna().drop_duplicates()
    found += [
        f"layers {layers}: {exact} of {heads} heads keep exact attention: no budget was enough"
        for layers, exact, heads in kept.itertuples(index=False)
        if exact
    ]
    return found


def _replaced(rows: Rows) -> list[str]:
    """The layers that methods replace together."""
    found = []
    unlimited, several = rows["global_layers"].dropna().tolist(), rows["layers"].nunique() > 1
    for layers, group in rows.groupby("layers", sort=False):
        names = f"{', '.join(group['name'].unique())}: " if several else ""
        word, be = ("layer", "is") if str(layers).isdecimal() else ("layers", "are")
        if layers in unlimited:
            rest = group["model_layers"].iloc[0] - _count(str(layers))
            kept = "keeps exact attention to its window" if rest == 1 else "keep exact attention to their window"
            found.append(f"{names}{word} {layers} {be} global and replaced; the other {rest} {kept}")
        else:
            found.append(f"{names}{word} {layers} replaced")
    return found


def _count(layers: str) -> int:
    """How many layers a text names.

    >>> _count("0-2, 5")
    4
    """
    ends = (part.split("-") for part in layers.split(", "))
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)


def _notes_of_prompts(rows: Rows) -> list[str]:
    """The notes, and one on methods of which no lost mass is known, such as a user's."""
    measured = rows[(rows["status"] == "ok") & ~rows["reference"]]
    lost = measured["lost_mass"] if "lost_mass" in measured else measured["n"].where(measured["n"] < 0)
    known = lost.notna().groupby(measured["name"], sort=False).any()
    names = ", ".join(map(str, known.index[~known]))
    unknown = f"{names}: the lost mass is unknown; kept and read are the bytes that a method states, or else all"
    return [*_notes(rows), *([unknown] if names else []), *_hard(rows)]


def _hard(rows: Rows) -> list[str]:
    """A note if the model itself answers too few windows for its answers to judge a method."""
    if "answer_right" not in rows:
        return []
    right = rows.loc[rows["reference"], "answer_right"].mean()
    if not right < ADMITTED:
        return []
    return [f"exact attention has {right:.0%} of the answers right; below {ADMITTED:.0%} they do not judge a method"]


def _interval(end: int, rows: Rows) -> float | None:
    """An end of the exact 95 % interval of the share of right answers, over windows."""
    if "answer_right" not in rows or (answers := rows["answer_right"].dropna()).empty:
        return None
    return clopper_pearson(int(answers.sum()), len(answers))[end]


def _extreme(best: bool, number: str) -> Callable[[Rows], Any]:
    """The layer that tolerates a method best or worst, or its drift."""

    def found(rows: Rows) -> Any:
        if "drift" not in rows or rows["drift"].isna().all():
            return None
        # over windows and repeats
        drifts = rows.groupby("layer")["drift"].mean().dropna()
        layer = drifts.idxmin() if best else drifts.idxmax()
        return layer if number == "layer" else drifts[layer]

    return found


def _points(rows: Rows, damage: str) -> Rows:
    """A line for each layer or head that was replaced alone: the means of its damage and of each known local number."""
    names = [damage, *(name for name in PREDICTORS if name in rows and rows[name].notna().any())]
    if damage not in rows:
        return rows.iloc[:0]
    groups = rows.groupby(["name", "d", "layer", "kv_head"], sort=False, dropna=False)
    return groups[names].mean().astype(float).reset_index().dropna(subset=names)


def _damage(rows: Rows) -> str:
    """The metric of the damage: the divergence of a causal model, and the drift of any other."""
    return "kl" if (rows["predicts"] == "causal").any() else "drift"


def _ranked(name: str, within: Sequence[str] = ()) -> Callable[[Rows], float | None]:
    """Spearman's correlation of a number with the damage; with ``within``, its mean over groups of equal values."""

    def found(rows: Rows) -> float | None:
        damage = _damage(rows)
        points = _points(rows, damage)
        if name not in points:
            return None
        if not within:
            return _rho(points, name, damage)
        groups = [group for _, group in points.groupby([*within], dropna=False)]
        every = [_rho(group, name, damage, FEWEST) for group in groups]
        known = [rho for rho in every if rho is not None]
        return sum(known) / len(known) if known else None

    return found


def _rho(points: Rows, x: str, y: str, least: int = LEAST) -> float | None:
    """Spearman's ρ of two columns."""
    found = rank_correlation(points[x], points[y], least=least)
    return found and found[0]


def _places(rows: Rows) -> Any:
    """Whether layers or KV heads were replaced alone; missing where fewer than `FEWEST` of them were."""
    kinds = rows["kv_head"].isna().map({True: "layers", False: "KV heads"}).astype("string")
    kinds = kinds.where(rows["alone"].fillna(False))
    # a number for each method, budget, layer and head
    places = rows.groupby(["name", "d", "layer", "kv_head"], dropna=False).ngroup()
    count = places.groupby([*(rows[name] for name in PLACE), kinds], dropna=False).transform("nunique")
    return kinds.where(count >= FEWEST)


def _layers_alone(rows: Rows) -> Any:
    """The word of `_places` for layers."""
    return rows["alone"].map({True: "layers"})


def _replaced_as(rows: Rows) -> Any:
    """What a forward replaced: a KV head, a layer, or all layers together."""
    return rows["layer"].notna().map({True: "a layer", False: "all"}).where(rows["kv_head"].isna(), "a KV head")


def _rounded_points(rows: Rows) -> Rows:
    """The means over windows of what rounding adds, to each method in each format and place."""
    known = [name for name in (*OF_ROUNDING, LOCAL_ROUNDING) if name in rows]
    groups = rows.groupby(["name", "d", "format", "layer", "kv_head"], sort=False, dropna=False)
    return groups[known].mean().astype(float).reset_index()


def _rounding_ranked(added: str) -> Callable[[Rows], float | None]:
    """Spearman's correlation of what rounding adds to the local error and to the model's, over methods and places."""

    def found(rows: Rows) -> float | None:
        points = _rounded_points(rows)
        if added not in points:
            return None
        points = points.dropna(subset=[added, LOCAL_ROUNDING])
        return _rho(points, LOCAL_ROUNDING, added)

    return found


def _over_local(rows: Rows) -> Any:
    """The drift that rounding adds over the local error that it adds."""
    import pandas as pd

    if not {OF_ROUNDING[0], LOCAL_ROUNDING} <= {*rows}:
        return pd.Series(pd.NA, rows.index, dtype="Float64")
    return rows[OF_ROUNDING[0]] / rows[LOCAL_ROUNDING].where(rows[LOCAL_ROUNDING] > 0)


def _damages(rows: Rows) -> list[str]:
    symbol = METRICS[_damage(rows)].title
    alone = "of a layer or KV head that is replaced alone"
    return [f"ρ is Spearman's correlation with the {symbol} {alone}, over at least {LEAST}"]


def _beside(rows: Rows) -> Rows:
    """Each policy beside the best uniform one of as many bytes, on the same windows, where budgets are planned.

    ``kl_gap`` and ``loss_gap`` are differences to the policy with the least mean divergence, ``least``, of those that
    give every head d keys. Methods that keep more bytes than the plan are not ``fair``.
    """
    import pandas as pd

    found = pd.DataFrame(pd.NA, rows.index, ["kl_gap", "loss_gap", "least"], dtype="Float64").assign(fair=False)
    if "cache_bytes" not in rows:
        return found
    decoded = rows[rows["layer"].isna() & (rows["status"] == "ok") & rows["cache_bytes"].notna() & ~rows["reference"]]
    for _, group in decoded.groupby(["source", "n", "prefix", "d"], sort=False):
        planned = group["options"].str.contains(r"(?:^|,)plan=", regex=True)
        fair = (
            group[group["cache_bytes"] <= SPARED * group.loc[planned, "cache_bytes"].max()] if planned.any() else None
        )
        if fair is None:
            continue
        # "uniform": every head has d keys, by no plan and no allocation
        uniform = fair[~fair["options"].str.contains(r"(?:^|,)(?:plan|allocation)=", regex=True)]
        if uniform.empty:
            continue
        means = uniform.groupby("name", sort=False)["kl"].agg(lambda kl: kl.mean(skipna=False)).astype(float)
        # a policy that diverged in some window cannot be the best
        best = uniform[uniform["name"] == means.fillna(float("inf")).idxmin()]
        windows = best.groupby("window")[["kl", "loss"]].agg(lambda values: values.mean(skipna=False))
        found.loc[fair.index, "fair"] = True
        found.loc[fair.index, "least"] = best["kl"].mean(skipna=False)
        for name in ("kl", "loss"):
            found.loc[fair.index, f"{name}_gap"] = fair[name] - fair["window"].map(windows[name])
    return found


def _of_plans(name: str) -> Callable[[Rows], Any]:
    return lambda rows: _beside(rows)[name]


def _ratio(rows: Rows) -> float | None:
    """The mean divergence over that of the best uniform policy."""
    import pandas as pd

    kl, least = rows["kl"].mean(skipna=False), rows["least"].iloc[0]
    return None if pd.isna(kl) or pd.isna(least) or least <= 0 else float(kl / least)


NAME = replace(METHOD, words=EXACT_OF, meaning="the method with its options; exact is the unmodified model")
OF_BUDGET = replace(BUDGET, value=Computed(("d", "budget_mean.mean"), _budgets), name="d")
OF_CELLS = {name: _column(name) for name in ("budget_mean", "greedy_steps")}
KL = Column("KL\nmean ± 95 %", "kl.mean", half="kl.half", best="smaller", priority=8)
CHANGE = Column(
    "Δloss\nmean ± 95 %", "loss_change.mean", half="loss_change.half", signed=True, priority=7, best="smaller"
)
LOSS = Column("loss", "loss.mean", priority=6)
DRIFT = Column("drift\nmean ± 95 %", "drift.mean", half="drift.half", best="smaller", priority=6)
LOCAL = Column("local\nerror", "local_error.mean", best="smaller", priority=5)
FURTHER = (
    Column("top-1", "top1_agreement.mean", unit="%", best="larger"),
    Column("residual\nsum", "residual_sum.mean", digits=2, best="smaller"),
    Column("residual\nerror", "residual_error.mean", digits=2, best="smaller"),
    Column("logits", "logits_drift.mean", best="smaller"),
    Column("perplexity", "perplexity.mean"),
    Column("perplexity\nchange", "perplexity_change.mean", signed=True),
    Column("row\nerror", "row_error.mean"),
    Column("matrix\nerror", "spectral_error.mean"),
    Column("d used", "realised_d.mean"),
    Column("bad\nrows", "bad_rows.sum", digits=0),
)
DRIFTS = Table(
    "drift",
    "Drift of the last hidden states",
    rows=f"{TOGETHER} and prefix.isna() and (predicts.isna() or predicts != 'causal')",
    each=PLACE,
    by=("name", "d"),
    derived=OF_CELLS,
    metric="drift",
    main="drift.mean",
    of_best="mean drift",
    rivals=("d",),
    competes=RIVALS,
    columns=(
        *(NAME, OF_BUDGET, DRIFT, LOCAL),
        Column("cosine", "embedding_cosine.mean", digits=4, best="larger", priority=4),
        *(KL, CHANGE, LOSS),
    ),
    more=FURTHER,
    notes=_notes,
)
WORDS = replace(
    DRIFTS,
    name="words",
    title="Divergence of the predicted words",
    rows=f"{TOGETHER} and prefix.isna() and predicts == 'causal'",
    metric="kl",
    main="kl.mean",
    of_best="mean KL divergence",
    columns=(NAME, OF_BUDGET, KL, CHANGE, LOSS, DRIFT, LOCAL),
)
DECODED = replace(
    WORDS,
    name="decoded",
    title="KL divergence of predictions after the prompt",
    rows=f"{TOGETHER} and prefix.notna()",
    columns=(
        *(NAME, OF_BUDGET, KL, CHANGE, LOSS),
        Column(
            "answers right\n[95 %]",
            "answer_right.mean",
            low="right_low",
            high="right_high",
            digits=2,
            priority=7,
        ),
        Column("kept\nMiB", "cache_bytes.mean", unit="MiB", priority=6),
        Column("read\nMiB", "read_bytes.mean", unit="MiB", priority=6),
        Column("greedy\nequal", "greedy_match.mean", of="greedy_steps.max", best="larger", priority=4),
    ),
    more=(
        Column("needle's\nrank", "needle_rank.mean", best="smaller"),
        Column("answers\nflipped", "answer_flipped.mean"),
        Column("needle's\nloss", "needle_loss.mean"),
        Column("needle's\nΔloss", "needle_loss_change.mean", half="needle_loss_change.half", signed=True),
        Column("equal\nsteps", "first_divergence.mean", best="larger"),
        Column("lost\nmass", "lost_mass.mean"),
        *(DRIFT, LOCAL, *FURTHER),
    ),
    of_groups={"right_low": partial(_interval, 0), "right_high": partial(_interval, 1)},
    notes=_notes_of_prompts,
)
PLANS = Table(
    "plans",
    "Plans beside the best policy with d keys in every head",
    rows="fair",
    each=PLACE,
    by=("name", "d"),
    columns=(
        *(METHOD, BUDGET),
        Column("KL\nmean", "kl.mean", priority=8),
        Column("over the\nbest's", "kl_ratio", digits=2, meaning="its mean KL over that of the best", priority=7),
        Column(
            "ΔKL\n± 95 %",
            "kl_gap.mean",
            half="kl_gap.half",
            digits=2,
            signed=True,
            meaning="KL less that of the best on the same windows",
        ),
        Column(
            "Δloss\n± 95 %",
            "loss_gap.mean",
            half="loss_gap.half",
            digits=2,
            signed=True,
            meaning="loss less that of the best on the same windows",
        ),
    ),
    derived={name: _of_plans(name) for name in ("fair", "kl_gap", "loss_gap", "least")},
    of_groups={"kl_ratio": _ratio},
)
TOLERANCE = Table(
    "layers",
    "Which layers tolerate a method alone",
    rows=f"alone and kv_head.isna() and {PLAIN}",
    each=PLACE,
    by=("name", "d", "places"),
    pooled=("layer", "layers"),
    columns=(
        *(METHOD, BUDGET),
        Column("best\nlayer", "best_layer", digits=None, meaning="the layer with the least drift", priority=8),
        Column("its\ndrift", "best_drift", meaning="the drift where this layer alone is replaced", priority=7),
        Column("worst\nlayer", "worst_layer", digits=None, meaning="the layer with the largest drift", priority=8),
        Column("its drift", "worst_drift", meaning="the drift where this layer alone is replaced", priority=7),
        Column("ρ", "rho", signed=True, digits=2, meaning="Spearman's, of local error and drift over layers"),
    ),
    derived={"places": _layers_alone},
    of_groups={
        **{f"best_{number}": _extreme(True, number) for number in ("layer", "drift")},
        **{f"worst_{number}": _extreme(False, number) for number in ("layer", "drift")},
        "rho": _ranked("local_error"),
    },
)
ALONE = Table(
    "alone",
    "One layer replaced",
    rows=f"alone and kv_head.isna() and {PLAIN}",
    each=PLACE,
    by=("name", "d", "layer"),
    rivals=("d", "layer"),
    competes=RIVALS,
    columns=(
        *(METHOD, BUDGET),
        Column("layer", "layer", digits=None, priority=KEY, meaning="the layer that is replaced"),
        *(DRIFT, LOCAL, KL, CHANGE),
    ),
    more=FURTHER,
)
IN = Column("in", "format", priority=KEY, meaning="the arithmetic of the method; float64 rounds nothing")
ROUNDED = Table(
    "rounding",
    "What rounding adds to the drift",
    rows="layer.isna() and format.notna()",
    each=PLACE,
    by=("name", "d", "format"),
    derived=OF_CELLS,
    metric=OF_ROUNDING[0],
    main=f"{OF_ROUNDING[0]}.mean",
    columns=(
        *(NAME, OF_BUDGET, IN),
        Column("drift\nadded ± 95 %", "rounding_drift.mean", half="rounding_drift.half", priority=8),
        Column("KL\nadded ± 95 %", "rounding_kl.mean", half="rounding_kl.half", priority=7),
        Column("local error\nadded", f"{LOCAL_ROUNDING}.mean", priority=7),
        Column("drift", "drift.mean", priority=6),
        Column("KL", "kl.mean", priority=5),
        replace(LOCAL, best=None),
    ),
    more=(CHANGE, *FURTHER),
)
ROUNDING_PREDICTED = Table(
    "rounding-predictors",
    "Does the local error that rounding adds predict the drift that it adds?",
    rows="rounding_local.notna() and rounding_drift.notna() and status == 'ok'",
    each=PLACE,
    by=("replaced",),
    pooled=("layer", "layers", "d", "name", "method", "options", "family"),
    columns=(
        Column("replaced", "replaced", priority=KEY, meaning="all layers together, or a layer or a KV head alone"),
        Column("places", "points", digits=0, meaning="methods, d, formats, layers and KV heads, means over windows"),
        Column(
            "ρ with the\ndrift added",
            "rho_drift",
            digits=2,
            signed=True,
            priority=8,
            meaning="Spearman's correlation of the local error that rounding adds with the drift that it adds",
        ),
        Column(
            "ρ with the\nKL added",
            "rho_kl",
            digits=2,
            signed=True,
            priority=7,
            meaning="Spearman's correlation of the local error that rounding adds with the divergence that it adds",
        ),
        Column(
            "drift / local\n[p10 – p90]",
            "over_local.median",
            low="over_local.p10",
            high="over_local.p90",
            priority=7,
            meaning="the drift that rounding adds over the local error that it adds",
        ),
    ),
    derived={"replaced": _replaced_as, "over_local": _over_local},
    of_groups={
        "points": lambda rows: len(_rounded_points(rows)),
        "rho_drift": _rounding_ranked("rounding_drift"),
        "rho_kl": _rounding_ranked("rounding_kl"),
    },
)
OF_RHO = "Spearman's correlation with the damage over all places, methods and d"
WHICH = Table(
    "predictors",
    "Which local number predicts the damage",
    rows=f"places.notna() and status == 'ok' and {PLAIN}",
    each=PLACE,
    by=("places",),
    pooled=("layer", "layers", "d", "name", "method", "options", "family"),
    columns=(
        Column("replaced\nalone", "places", priority=KEY, meaning="layers, or KV heads"),
        Column("places", "points", digits=0, meaning="places that were replaced alone, of all methods and d"),
        *(
            Column(f"ρ of {words}", f"rho_{name}", digits=2, signed=True, meaning=OF_RHO)
            for name, words in PREDICTORS.items()
        ),
    ),
    more=tuple(
        Column(
            f"ρ of {' '.join(words.split())}\nin a {group}",
            f"rho_{name}_in_a_{group}",
            digits=2,
            signed=True,
            meaning=f"mean over each {group} and d",
        )
        for name, words in PREDICTORS.items()
        for group in ("layer", "method")
    ),
    derived={"places": _places},
    of_groups={
        "points": lambda rows: len(_points(rows, _damage(rows))),
        **{f"rho_{name}": _ranked(name) for name in PREDICTORS},
        **{f"rho_{name}_in_a_layer": _ranked(name, ("layer", "d")) for name in PREDICTORS},
        **{f"rho_{name}_in_a_method": _ranked(name, ("name", "d")) for name in PREDICTORS},
    },
    notes=_damages,
)
__all__ = ["FIGURES", "TABLES", "TITLE", "WRITERS"]
TITLE = "What a method changes in a model"
TABLES = (DRIFTS, WORDS, DECODED, TAILS, PLANS, ROUNDED, ROUNDING_PREDICTED, TOLERANCE, ALONE, WHICH)
MEASURED = f"kv_head.isna() and not reference and method != 'softmax' and {PLAIN}"
FIGURES = (
    Figure(
        "inject-layers",
        "Drift of each layer alone",
        x="layer",
        y="drift",
        marks=("line", "point"),
        rows=MEASURED,
        columns=("d",),
        log=("drift",),
        spaced=("layer",),
        several="layer",
        center="mean",
        caption="Drift of the last hidden states where one layer is replaced, and where all are: means.",
    ),
    Figure(
        "inject-local",
        "Local error against drift",
        x="local_error",
        y="drift",
        marks=("point",),
        rows=f"alone and {MEASURED}",
        points=("layer",),
        columns=("d",),
        log=("local_error", "drift"),
        center="mean",
        note="correlation",
        caption="Error of the layer that is replaced against the drift that it causes: a point for each layer, means.",
    ),
    Figure(
        "inject-rounding",
        "Local error against drift, added by rounding",
        x=LOCAL_ROUNDING,
        y=OF_ROUNDING[0],
        marks=("point",),
        rows="kv_head.isna() and rounding_local.notna()",
        points=("layer",),
        columns=("format",),
        log=(LOCAL_ROUNDING, OF_ROUNDING[0]),
        center="mean",
        note="correlation",
        guides=(Guide("equal", "as much drift as local error"),),
        caption="Local error that rounding adds against the drift that it adds: a point for each layer, means.",
    ),
    Figure(
        "inject-bytes",
        "Divergence and loss against bytes read",
        x="read_bytes",
        y=("kl", "loss_change"),
        marks=("bar p10 p90", "line", "point"),
        rows=f"layer.isna() and {MEASURED}",
        points=("d",),
        size="d",
        log=("read_bytes", "kl"),
        center="mean",
        caption="Divergence of predictions, and change of the loss, against the bytes that a step reads: means.",
    ),
    Figure(
        "inject-answers",
        "Right answers against the bytes of the cache",
        x="cache_bytes",
        y="answer_right",
        marks=("line", "point"),
        rows=f"layer.isna() and {MEASURED}",
        points=("d",),
        log=("cache_bytes",),
        center="mean",
        caption="Share of text windows whose answer greedy decoding would give, against the bytes that stay.",
    ),
    Figure(
        "inject-steps",
        "Divergence of decoding so far",
        x="step",
        y="kl_so_far",
        marks=("line",),
        kind="step",
        rows=f"layer.isna() and {MEASURED}",
        columns=("d",),
        log=("kl_so_far",),
        center="mean",
        caption="Mean divergence of the predictions up to each step of decoding, over windows and repeats.",
    ),
)
