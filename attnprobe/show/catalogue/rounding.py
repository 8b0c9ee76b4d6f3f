"""The tables and figures of ``attnprobe rounding``: what a format adds, what predicts it, steps and plans."""

from __future__ import annotations

from collections import Counter
from statistics import correlation
from typing import TYPE_CHECKING, Any

from ...grammar.arithmetic import ARITHMETICS, format_and_model
from ..figure import EACH, Figure, Guide
from ..table import BUDGET, KEY, METHOD, Column, Table

if TYPE_CHECKING:
    from pandas import DataFrame

ERROR = "output_spectral_relative"
ADDED = "rounding_error"
PLACE = ("source", "scale_inputs", "n", "target")
SAFE = 0.9  # the share of heads in which a safe method keeps to its goal
LEADING = 5  # steps of a method that the table shows
FEWEST = 3  # heads of a rank correlation
CLEAR = 0.3  # estimates below it do not saturate
FORMAT = Column(
    "in", "format", priority=KEY, meaning="the format of numbers, and the model of arithmetic if it is written"
)
PREDICTORS = {"cond": "cond", "inverse_norm": "‖Z‖₂", "score_max": "max |S|", "cancellation": "cancellation"}


def is_safe(rows: DataFrame) -> bool:
    """Whether rounding keeps to its goal in nine of ten heads: they need no more bits than the format has."""
    if not {"bits_needed", "not_finite"} <= {*rows}:
        return False
    needed = rows["bits_needed"]
    kept = (needed <= rows["bits"]).fillna(False) & (rows["not_finite"] == 0)
    # a head without a number of bits is an exact method's, unless it was lost: that counts as unsafe
    known = needed.notna() | (rows["not_finite"] > 0)
    return bool(known.any() and kept[known].mean() >= SAFE)


def _result(rows: DataFrame) -> str:
    """Which methods are safe in which format."""
    if ADDED not in rows or rows.dropna(subset=[ADDED]).empty:
        return ""
    sentences = []
    for format, of_format in rows.groupby("format", sort=False):
        methods = of_format.groupby("name", sort=False)
        safe = [str(name) for name, of_method in methods if is_safe(of_method)]
        named = ", ".join(safe[:6]) + (" …" if len(safe) > 6 else "")
        sentences.append(f"{format}: {named}" if safe else f"{format}: none")
    return f"Methods whose rounding stays within its goal in 90 % of heads: {'; '.join(sentences)}."


def _notes(rows: DataFrame) -> list[str]:
    """What the formats round, and the first steps that are not finite."""
    rounds: dict[str, list[str]] = {}
    for format in rows["format"].dropna().unique():
        rounds.setdefault(ARITHMETICS[format_and_model(format)[1]], []).append(format)
    return [*(f"{', '.join(formats)}: {words}" for words, formats in rounds.items()), *_failures(rows)]


def _failures(rows: DataFrame) -> list[str]:
    """Notes on the first steps that are not finite, the most frequent ones first."""
    if "first_failed" not in rows:
        return []
    failed = rows.dropna(subset=["first_failed"])
    counts = Counter(zip(failed["name"], failed["format"], failed["first_failed"], strict=True))
    return [
        f"not finite: {name} in {format}, {count} heads, first at {step}"
        for (name, format, step), count in counts.most_common(2)
    ]


def rank_correlation(column: str) -> Any:
    """Spearman's ρ over heads of a column with the amplification; None for fewer than three heads."""

    def of(rows: DataFrame) -> float | None:
        if not {column, "amplification"} <= {*rows}:
            return None
        known = rows[[column, "amplification"]].dropna().rank()
        x, y = known[column].tolist(), known["amplification"].tolist()
        return correlation(x, y) if len(x) >= FEWEST and len(set(x)) > 1 and len(set(y)) > 1 else None

    return of


def within_two(rows: DataFrame) -> float | None:
    """The share of heads whose estimate is within a factor of two, of those with an estimate below 0.3."""
    if not {"rounding_estimate", "estimate_ratio", "not_finite"} <= {*rows}:
        return None
    clear = rows.query(f"rounding_estimate < {CLEAR} and not_finite == 0 and estimate_ratio == estimate_ratio")
    within = [0.5 < ratio < 2 for ratio in clear["estimate_ratio"]]
    return sum(within) / len(within) if within else None


def _missed(rows: DataFrame) -> list[str]:
    """Notes on methods without a plan, and on plans that miss the goal."""
    notes = []
    for words, begins in (("rounded Q, K and V alone exceed the goal", "no plan"), ("the goal is not reached", "keep")):
        plans = zip(rows["name"], rows["format"], rows["plan"], strict=True)
        named = [f"{name} in {format}" for name, format, plan in plans if plan.startswith(begins) and words in plan]
        if named:
            notes.append(f"{words}: {', '.join(dict.fromkeys(named))}")
    return notes


def _plan(rows: DataFrame) -> str | None:
    plans = rows["plan"].dropna().tolist() if "plan" in rows else []
    return plans[0] if plans else None


ADDS = Table(
    "rounding",
    "Error added by rounding",
    each=PLACE,
    by=("name", "d", "format"),
    metric=ADDED,
    main=f"{ADDED}.median",
    columns=(
        METHOD,
        BUDGET,
        FORMAT,
        Column("own error\nmedian", f"{ERROR}.median", priority=8, meaning="the method's own error in float64"),
        Column("added\n[p10 – p90]", f"{ADDED}.median", low=f"{ADDED}.p10", high=f"{ADDED}.p90", priority=8),
        Column("bits needed\n[– p90]", "bits_needed.median", high="bits_needed.p90", digits=2, priority=7),
        Column("exceeds\nown error", "rounding_decides.mean", unit="%", priority=6),
        Column(
            "not\nfinite", "not_finite.sum", digits=0, words={0: ""}, priority=5, meaning="heads that are not finite"
        ),
    ),
    more=(
        Column("total\nmedian", "total_error.median"),
        Column("choices\nheld", "rounding_held.median"),
        Column("flipped\nchoices", "flips.mean", unit="%"),
        Column("rounded\nQ, K, V", "input_floor.median"),
        Column("amplification\nmedian", "amplification.median"),
        Column("estimate\nmedian", "rounding_estimate.median"),
        Column("estimate /\nmeasured", "estimate_ratio.median", low="estimate_ratio.p10", high="estimate_ratio.p90"),
        Column("cond\nmedian", "cond.median"),
        Column("with the\nplan", "planned_error.median"),
        Column(
            "as\nwritten",
            "written.max",
            digits=0,
            meaning="results that the method's code computes in a dtype of its own",
        ),
    ),
    derived={"written": lambda rows: rows.get("as_written")},
    sentence=_result,
    notes=_notes,
)
PREDICTED = Table(
    "predicted",
    "What predicts the amplification: rank correlations over heads",
    rows="rounding_estimate == rounding_estimate",
    each=PLACE,
    by=("name", "d", "format"),
    columns=(
        METHOD,
        BUDGET,
        FORMAT,
        Column("estimate /\nmeasured", "estimate_ratio.median", priority=8),
        Column(
            "within\n2×", "within_two", unit="%", priority=7, meaning="heads within a factor of 2, estimates below 0.3"
        ),
        Column(
            "ρ of the\nestimate", "of_estimate", digits=2, priority=7, meaning="Spearman's ρ with the amplification"
        ),
        *(
            Column(f"ρ of\n{words}", f"of_{name}", digits=2, meaning="Spearman's ρ with the amplification")
            for name, words in PREDICTORS.items()
        ),
    ),
    of_groups={
        "within_two": within_two,
        "of_estimate": rank_correlation("rounding_estimate"),
        **{f"of_{name}": rank_correlation(name) for name in PREDICTORS},
    },
)
PLANS = Table(
    "plans",
    "What must stay in float32",
    rows="plan == plan",
    each=PLACE,
    by=("name", "d", "format", "layer"),
    columns=(
        METHOD,
        BUDGET,
        FORMAT,
        Column("layer", "layer", priority=KEY, meaning="the layer"),
        Column(
            "steps\nin float32", "kept_steps.max", digits=0, priority=8, meaning="steps that the plan keeps in float32"
        ),
        Column("of", "all_steps.max", digits=0, priority=7, meaning="all steps whose results are rounded"),
        Column("added\nmedian", "rounding_held.median", priority=6),
        Column("with the\nplan", "planned_error.median", priority=7),
    ),
    more=(Column("plan", "the_plan", meaning="the steps whose results stay in float32"),),
    of_groups={"the_plan": _plan},
    derived={"all_steps": lambda rows: rows.get("steps")},
    notes=_missed,
)
STEPS = Table(
    "steps",
    f"Steps with the largest shares of the squared estimate, {LEADING} a method",
    kind="step",
    rows=f"0 < order <= {LEADING}",
    each=PLACE,
    by=("name", "d", "format", "site"),
    columns=(
        METHOD,
        BUDGET,
        FORMAT,
        Column("step", "site", priority=KEY, meaning="CALLER:LINE > FUNCTION:LINE OPERATION"),
        Column("share", "share.mean", unit="%", priority=8),
        Column(
            "plan", "kept.max", digits=0, words={0: "", 1: "float32"}, priority=7, meaning="kept in float32 by a plan"
        ),
    ),
    more=(Column("share p10", "share.p10", unit="%"), Column("share p90", "share.p90", unit="%")),
)
TITLE = "Rounding"
TABLES = (ADDS, PREDICTED, PLANS, STEPS)
FIGURES = (
    Figure(
        "rounding",
        "Error added by rounding, against the method's own",
        x=ERROR,
        y=ADDED,
        marks=("point",),
        points=(EACH,),
        shade="d",
        columns=("format",),
        log=(ERROR, ADDED),
        guides=(Guide("equal", "as large as the method's own"),),
        caption="Error added by rounding against the method's own, a point for each head.",
    ),
    Figure(
        "rounding-condition",
        "Amplification against condition numbers",
        x="cond",
        y="amplification",
        marks=("point",),
        points=(EACH,),
        shade="d",
        columns=("format",),
        log=("cond", "amplification"),
        rows="cond == cond",
        note="correlation",
        caption="Amplification of rounding against the condition number of the core, a point for each head.",
    ),
    Figure(
        "rounding-steps",
        "Shares of steps",
        kind="step",
        rows=f"0 < order <= {LEADING - 1}",
        x="share",
        y="site",
        marks=("bar p10 p90", "point"),
        center="mean",
        columns=("d",),
        caption="Share of each step in the squared estimate of the error added: mean and 10–90 % of heads.",
    ),
)
