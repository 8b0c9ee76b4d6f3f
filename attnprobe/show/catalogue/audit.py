"""The tables and figures of ``attnprobe audit``: promised errors, and normalisers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...operators.linalg.exceedance import VERDICTS, least_trials
from ..figure import EACH, Figure, Guide
from ..table import BUDGET, KEY, METHOD, Column, Table

if TYPE_CHECKING:
    from pandas import DataFrame

ERRORS = {"normaliser": "|D~/D − 1|", "numerator": "‖N~ − N‖/‖N‖", "output": "‖o~ − o‖/‖o‖", "matrix": "‖E‖₂/‖B‖₂"}
ENOUGH = 400  # repeats; unbiased vattention at ε = 0.5 seems biased in 4 % of heads then, in 16 % at 60 repeats
PLACE = ("source", "scale_inputs", "n", "layer", "target")


def _is(verdict: str) -> Callable[[DataFrame], Any]:
    """A column of 1 for the heads with this verdict and 0 for those with another."""
    # numbers and not booleans, so that a sum counts heads; missing where nothing was judged
    return lambda rows: (rows["verdict"] == verdict).astype("Float64").where(rows["verdict"].notna())


def _result(rows: DataFrame) -> str:
    """How many promises have which verdict, head by head."""
    counts = rows["verdict"].value_counts()
    parts = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if verdict in counts]
    return f"Promises, one for each head, ε and δ: {', '.join(parts)} of {counts.sum()}." if parts else ""


def _too_few(rows: DataFrame) -> list[str]:
    """A note for each δ on undecided promises that no outcome of so few repeats could show to be kept."""
    short: dict[float, int] = {}
    by_head = rows.query("per == 'head' and not anytime").groupby("key", sort=False)
    for _, cell in by_head:
        heads, trials, confidence = (
            len(set(cell["head"])),
            int(cell["trials"].iloc[0]),
            float(cell["confidence"].iloc[0]),
        )
        # only undecided promises: for the others the repeats were enough
        for delta in map(float, cell.query("verdict == 'undecided'")["delta"].unique()):
            least = least_trials(delta, confidence, heads)
            if trials < least:
                short[delta] = max(least, short.get(delta, 0))
    return [
        f"undecided: too few repeats to show a probability of at most {delta:g}; choose --repeats {least}"
        for delta, least in short.items()
    ]


def _doubts(rows: DataFrame) -> list[str]:
    """A note on biases that were found in few repeats, in which rare large weights may be missing."""
    trials = rows.query("biased > 0")["trials"].tolist()
    if not trials or min(trials) >= ENOUGH:
        return []
    return [
        f"biased: {min(trials)} repeats may find a bias where there is none, if large weights are rare; "
        f"choose --repeats {ENOUGH}"
    ]


PROMISES = Table(
    "promises",
    "Promised errors",
    kind="promise",
    each=PLACE,
    by=("name", "d", "quantity", "per", "epsilon", "delta"),
    columns=(
        METHOD,
        BUDGET,
        Column("error", "quantity", words=ERRORS, priority=KEY, meaning="the error that is promised"),
        Column("of", "per", words={"head": "", "row": "rows"}, priority=KEY, meaning="each row is judged by itself"),
        Column("ε", "epsilon", digits=None, priority=KEY, meaning="the promised error"),
        Column("δ", "delta", digits=None, priority=KEY, meaning="the promised probability of a larger error"),
        Column("heads that\nhold", "holds.sum", digits=0, of="values", meaning="heads whose promise holds", priority=8),
        Column("are\nviolated", "violated.sum", digits=0, words={0: ""}, meaning="heads whose promise is violated"),
        Column("are\nundecided", "undecided.sum", digits=0, words={0: ""}, meaning="heads that no test decides"),
        Column("rate", "rate.mean", unit="%", priority=7),
        Column("worst", "worst.max", low="lower.max", high="upper.max", unit="%", priority=6),
    ),
    derived={
        **{verdict: _is(verdict) for verdict in VERDICTS},
        "lower": lambda rows: rows["lower"],
    },
    sentence=_result,
    notes=_too_few,
)
NORMALISERS = Table(
    "normalisers",
    "Normalisers D~/D, medians of heads",
    rows="bias == bias",
    each=PLACE,
    by=("name", "d"),
    columns=(
        METHOD,
        BUDGET,
        Column("bias", "bias.median", digits=2, signed=True, priority=8),
        Column("z", "bias_z.median", digits=2, signed=True),
        Column("biased\nheads", "biased.sum", digits=0, of="values", priority=7),
        Column("bias of\nscores", "score_bias.median", digits=2, signed=True),
        Column("its z", "score_bias_z.median", digits=2, signed=True),
        Column("s.d.", "normaliser_sd.median", priority=6),
        Column("stated /\ns.d.", "sd_ratio.median"),
        Column("ESS", "ess.median"),
        Column("least π\np10", "least_inclusion.p10"),
        Column("capped", "capped.median", unit="%"),
    ),
    more=(
        Column("keys", "keys.mean"),
        Column("of visible\nkeys", "keys_share.mean", unit="%"),
        Column("residual\nerror", "residual_error.mean"),
    ),
    notes=_doubts,
)
TITLE = "Promised and measured probabilities of errors"
TABLES = (PROMISES, NORMALISERS)
FIGURES = (
    Figure(
        "calibration",
        "Share of errors above ε, measured against promised",
        kind="promise",
        x="epsilon",
        y="worst",
        marks=("bar lower upper", "point"),
        points=(EACH,),
        colour="verdict",
        columns=("quantity",),
        lines=("name", "d", "delta"),
        spaced=("epsilon",),
        guides=(Guide("level", "promised δ", "delta"),),
        caption="Share of repeats with an error above ε, a point for each head, with its simultaneous interval.",
    ),
)
