"""The tables and figures of ``attnprobe bench``: times, memory, errors and work, and growth with n.

Rows of kind ``time`` are the rounds of a cell, and rows of kind ``head`` have what each head computes and misses. Both
have the costs of the cell. Exact attention has cells of its own, which are a reference and have no d.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log, nan
from statistics import linear_regression
from typing import TYPE_CHECKING, Any

from ..figure import Figure
from ..table import BUDGET, KEY, METHOD, Column, Computed, Table

if TYPE_CHECKING:
    from pandas import DataFrame

ERROR = "output_spectral_relative"
EXACT = "method == 'exact' or method == 'vmean' and not requested"
VMEAN = "method == 'vmean' and not requested"
FIT_FROM = 2048  # tokens; below it, constant costs would distort the fit
PLACE = ("source", "n", "layer", "target")
KERNELS = {"fused": "fused", "own": "attnprobe's kernel"}
CURVE = ("source", "layer", "target", "name", "d")


def conditions(cells: DataFrame) -> list[str]:
    """The machine and the conditions of times; more than one line if a run was resumed on another machine."""
    lines = []
    places = ["device", "cpu", "threads", "cores", "system", "torch", "python", "attnprobe"]
    for _, group in cells.groupby(places, sort=False, dropna=False):
        device, cpu, threads, cores, system, torch, python, attnprobe = group[places].iloc[0]
        clock = _range(group["clock_mhz"].dropna().round().astype(int), ", {} MHz")
        load = _range(group["load"].dropna(), ", load average {}")
        lines.append(f"machine: {device}, {cpu}{clock}, {threads} threads of {cores} cores, {system}{load}")
        rounds = _range(group["rounds"].dropna(), "{}")
        lines.append(
            f"timed: medians of {rounds} interleaved rounds, torch {torch}, Python {python}, attnprobe {attnprobe}"
        )
    return lines


def _range(values: Any, words: str) -> str:
    """The least and the largest value in words; empty without one."""
    ends = list(dict.fromkeys([values.min(), values.max()])) if len(values) else []
    return words.format(" – ".join(f"{end:g}" for end in ends)) if ends else ""


def growth(cost: str) -> str:
    """The growth with n of the cost that the registry states for a method.

    >>> growth("n² (p + d)"), growth("2 n d p + O(n √n p)"), growth("4 n d p + O(d³)")
    ('n²', 'n √n', 'n')
    """
    return next((word for word in ("n³", "n²", "n √n") if word in cost), "n")


def exponent(cost_at: Mapping[int, float]) -> float | None:
    """The slope of log cost over log n by least squares for n ≥ 2048; None for fewer than two of them.

    >>> round(exponent({1024: 9.0, 2048: 1.0, 4096: 4.0, 8192: 16.0}), 6)
    2.0
    """
    points = [(log(n), log(cost)) for n, cost in cost_at.items() if n >= FIT_FROM and cost > 0]
    return linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else None


def fitted(rows: DataFrame, cost: str) -> float | None:
    """The `exponent` of the medians of a cost."""
    return exponent(rows.groupby("n")[cost].median().dropna().to_dict()) if cost in rows else None


def fitted_rounds(rows: DataFrame) -> float | None:
    """Half of the range between the quartiles of the exponents of the times of each round; None for one round."""
    import numpy as np

    # a fit for each round: rounds take turns, so their spread is the noise of the exponent
    slopes = [fitted(of_round, "seconds") for _, of_round in rows.groupby("round")]
    if len(slopes) < 2 or None in slopes:
        return None
    first, third = np.quantile(np.array(slopes, dtype=float), [0.25, 0.75])
    return (third - first) / 2


def _stated(rows: DataFrame) -> str | None:
    costs = rows["cost"].dropna()
    return growth(costs.iloc[0]) if len(costs) else None


def _lengths(rows: DataFrame) -> Any:
    """How many lengths each curve has that exponents are fitted to."""
    if "seconds" not in rows:
        return 0
    # a curve of one long length has no slope, and would be an empty line of the table
    long = rows["n"].where((rows["n"] >= FIT_FROM) & rows["seconds"].notna())
    return long.groupby([rows[name] for name in CURVE], dropna=False).transform("nunique")


def _named(lines: DataFrame) -> Sequence[str]:
    """Names of methods; exact attention with the kernel that computed it."""
    pairs = zip(lines["name"], lines["kernel"], strict=True)
    return [f"{METHOD.words.get(name, name)}{_kernel(kernel)}" for name, kernel in pairs]


def _kernel(kernel: Any) -> str:
    return f" ({KERNELS[kernel]})" if isinstance(kernel, str) else ""


TITLE = "Cost of attention approximations"
NAMED = Column("method", Computed(("name", "kernel"), _named), name="name", priority=KEY, meaning=METHOD.meaning)
TIMES = Table(
    "times",
    "Time and memory",
    kind="time",
    each=PLACE,
    by=("name", "d", "kernel", "gradient_of"),
    columns=(
        NAMED,
        BUDGET,
        Column(
            "time ms\np10 – p90", "seconds.median", "seconds.p10", "seconds.p90", unit="ms", priority=8, best="smaller"
        ),
        Column(
            "time / exact\np10 – p90",
            "ratio_to_exact.median",
            "ratio_to_exact.p10",
            "ratio_to_exact.p90",
            priority=7,
            best="smaller",
        ),
        Column("memory\nMiB", "peak_bytes.max", unit="MiB", priority=6, best="smaller"),
        Column("GFLOP\ncounted", "flops.max", unit="G"),
        Column("gradient\nreaches", "gradient_of", meaning="those of Q, K and V that a gradient reaches"),
    ),
)
WORK = Table(
    "work",
    "Errors and work",
    each=PLACE,
    by=("name", "d", "kernel"),
    columns=(
        NAMED,
        BUDGET,
        Column("error\np10 – p90", f"{ERROR}.median", f"{ERROR}.p10", f"{ERROR}.p90", priority=8, best="smaller"),
        Column("time\nms", "seconds.median", unit="ms", priority=7),
        Column("visited\nof n²", "visited_fraction.mean", unit="%", priority=6),
        Column("GFLOP\nleading", "leading_flops.max", unit="G", priority=3),
        Column("keys\nread", "kv_read.mean"),
        Column("scored\na row", "scored.mean", priority=4),
        Column("bits a\nnumber", "stored_bits.mean"),
    ),
    derived={"visited_fraction": lambda rows: rows.get("visited", nan) / rows["n"] ** 2},
)
GROWTH = Table(
    "growth",
    "Growth with n",
    kind="time",
    rows="lengths > 1",
    each=("source", "layer", "target"),
    by=("name", "d"),
    pooled=("n",),
    columns=(
        METHOD,
        BUDGET,
        Column("claimed", "growth", priority=8, meaning="growth of the leading cost that the method states"),
        Column(
            "time\n~ n^",
            "time_exponent",
            half="time_exponent_spread",
            priority=7,
            meaning=f"slope of ln time over ln n for n ≥ {FIT_FROM} ± half the range of the rounds' quartiles",
        ),
        Column(
            "memory\n~ n^",
            "memory_exponent",
            meaning=f"slope of ln memory over ln n for n ≥ {FIT_FROM}, by least squares",
        ),
    ),
    derived={"lengths": _lengths},
    of_groups={
        "growth": _stated,
        "time_exponent": lambda rows: fitted(rows, "seconds"),
        "time_exponent_spread": fitted_rounds,
        "memory_exponent": lambda rows: fitted(rows, "peak_bytes"),
    },
)
TABLES = (TIMES, WORK, GROWTH)
CONDITIONS = conditions
FIGURES = (
    Figure(
        "bench-time",
        "Time against n",
        x="n",
        y="seconds",
        marks=("bar p10 p90", "line", "point"),
        kind="time",
        columns=("layer", "d"),
        log=("n", "seconds"),
        yardsticks=EXACT,
        note="exponent",
        noted=f"along >= {FIT_FROM}",
        several="n",
        caption="Time of a method against n over rounds, with the exponent of its growth from n = 2048 on.",
    ),
    Figure(
        "bench-memory",
        "Peak memory against n",
        x="n",
        y="peak_bytes",
        marks=("line", "point"),
        columns=("layer", "d"),
        log=("n", "peak_bytes"),
        yardsticks=EXACT,
        note="exponent",
        noted=f"along >= {FIT_FROM}",
        several="n",
        caption="Peak memory beyond Q, K and V against n, with the exponent of its growth from n = 2048 on.",
    ),
    *(
        Figure(
            f"bench-pareto{name}",
            f"Error against {words}",
            x=cost,
            y=ERROR,
            marks=("line", "point"),
            points=("d",),
            size="d",
            columns=("layer",),
            log=(cost, ERROR),
            yardsticks=VMEAN,
            caption=f"Relative error of the output against {words}: medians.",
        )
        for name, cost, words in (
            ("", "seconds", "time"),
            ("-memory", "peak_bytes", "memory"),
            ("-products", "flops", "matrix products"),
            ("-read", "kv_read", "keys read"),
        )
    ),
)
