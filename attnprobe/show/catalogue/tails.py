"""The tail of a divergence over single tokens of decoding: a table of ``attnprobe inject``, and llama.cpp's block.

Statistics are over the tokens of all windows and repeats. Their intervals are over windows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import nan
from typing import Any

from ...errors import UsageError
from ...frame import Rows
from ...frame.metric import METRICS
from ...frame.tails import quantile, quantile_ends, rms, rms_ends
from ...grammar.foreign import one_line
from ..formats import LLAMACPP
from ..table import BUDGET, METHOD, Column, Table
from ..writers.llamacpp import block

PLACE = ("source", "n", "prefix", "target")
STEP_METRICS = ("kl", "kl_so_far", "top1_agreement", "loss", "loss_own")
OF_TOKENS = "layer.isna() and prefix.notna() and format.isna() and not reference and method != 'softmax'"


def _tokens(steps: Rows) -> Rows:
    """Steps with what tails are made of, and without their metrics, whose statistics would be those of tokens."""
    import numpy as np

    change = np.exp(-_numbers(steps, "loss")) - np.exp(-_numbers(steps, "loss_own"))  # of the right word
    numbers = {"token_kl": _numbers(steps, "kl"), "token_same": _numbers(steps, "top1_agreement")}
    numbers["token_change"] = change
    metrics = [name for name in STEP_METRICS if name in steps]
    return steps.assign(**numbers).drop(columns=metrics)


def _numbers(rows: Rows, name: str) -> Any:
    """A column as float64, NaN where a number is missing, as all are without steps."""
    column = rows[name] if name in rows else rows["n"].where(rows["n"] < 0)
    return column.to_numpy(float, na_value=nan)


def _tail(share: float, rows: Rows) -> float | None:
    return quantile(_numbers(rows, "token_kl"), share)


def _tail_end(share: float, end: int, rows: Rows) -> float | None:
    ends = quantile_ends(_numbers(rows, "token_kl"), rows["window"], share)
    return None if ends is None else ends[end]


def _rms(rows: Rows) -> float | None:
    return rms(_numbers(rows, "token_change"))


def _rms_end(end: int, rows: Rows) -> float | None:
    ends = rms_ends(_numbers(rows, "token_change"), rows["window"])
    return None if ends is None else ends[end]


def _column(name: str, rows: Rows) -> Any:
    return rows[name]


def _blocks(frame: Callable[[str], Rows]) -> str:
    """llama.cpp's block of each method and budget, below a line that names them."""
    steps = frame("step")
    steps = steps.query(OF_TOKENS) if len(steps) else steps
    if not len(steps):
        raise UsageError("--format llamacpp has the steps of decoding, and there are none; choose --phase decode")
    parts = [_block(rows) for _, rows in steps.groupby([*PLACE, "name", "d"], sort=False, dropna=False)]
    return "\n\n".join(parts)


def _block(rows: Rows) -> str:
    """The block of the steps of a method at a budget, or why there is none."""
    from pandas import NA

    first, count = rows.iloc[0], rows["window"].nunique()
    budget = "" if first["d"] is NA else f" d={first['d']}"
    name = one_line(": ".join(filter(None, [first["source"], f"{first['name']}{budget}"])))
    windows = f"{count} windows" if count > 1 else "1 window"
    title = f"# {name}: n={first['n']}, prompt {first['prefix']}, {windows}, {rows['step'].count()} tokens"
    if (without := rows[rows["step"].isna()])["reason"].notna().any():
        return f"{title}\n\nno statistics: {one_line(without['reason'].dropna().iloc[0])}"
    try:
        text = block(*(_numbers(rows, column) for column in ("kl", "loss", "loss_own", "top1_agreement")))
    except ValueError as error:
        text = f"no statistics: {error}"
    return f"{title}\n\n{text}"


QUANTILES = {  # by metric: the heading, the share of tokens, the priority
    "kl_median": ("median", 0.5, 5),
    "kl_p90": ("90 %", 0.9, 4),
    "kl_p95": ("95 %", 0.95, 3),
    "kl_p99": ("99 %", 0.99, 7),
    "kl_p999": ("99.9 %", 0.999, 4),
    "kl_max": ("maximum", 1.0, 6),
}
TAILS = Table(
    "tails",
    "KL divergence of single tokens after the prompt",
    kind="step",
    prepared=_tokens,
    rows=OF_TOKENS,
    each=PLACE,
    by=("name", "d"),
    columns=(
        *(METHOD, BUDGET),
        Column(
            "KL\nmean ± 95 %",
            "token_kl.mean",
            half="token_kl.half",
            priority=8,
            meaning="mean KL divergence of the predictions",
        ),
        *(
            Column(
                heading, name, low=f"{name}_low", high=f"{name}_high", priority=priority, meaning=METRICS[name].meaning
            )
            for name, (heading, _, priority) in QUANTILES.items()
        ),
        Column("RMS Δp", "dp_rms", low="dp_rms_low", high="dp_rms_high", unit="%", meaning=METRICS["dp_rms"].meaning),
        Column(
            "same top\ntoken ± 95 %",
            "token_same.mean",
            half="token_same.half",
            unit="%",
            priority=6,
            meaning=METRICS["top1_agreement"].meaning,
        ),
    ),
    derived={name: partial(_column, name) for name in ("token_kl", "token_same", "token_change")},
    of_groups={
        **{name: partial(_tail, share) for name, (_, share, _) in QUANTILES.items()},
        **{f"{name}_low": partial(_tail_end, share, 0) for name, (_, share, _) in QUANTILES.items()},
        **{f"{name}_high": partial(_tail_end, share, 1) for name, (_, share, _) in QUANTILES.items()},
        "dp_rms": _rms,
        "dp_rms_low": partial(_rms_end, 0),
        "dp_rms_high": partial(_rms_end, 1),
    },
    notes=lambda rows: ["quantiles are over all tokens; [ – ] are 95 % intervals over text windows, by resampling"],
)
WRITERS = {LLAMACPP: _blocks}
