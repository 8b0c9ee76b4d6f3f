"""What ``attnprobe budget`` measures and shows; its fields are its options."""

from __future__ import annotations

from dataclasses import dataclass

from ...run.option import opt
from ...run.topics import (
    MEASURED,
    MOST,
    Gates,
    Lengths,
    OnTensors,
    Output,
    WeightsWord,
    methods_option,
    plot_option,
    positives,
    target_option,
)

__all__ = ["BudgetOutput", "BudgetRequest"]


@dataclass(frozen=True, kw_only=True)
class BudgetRequest(Lengths, WeightsWord, OnTensors):
    """Find the smallest budget of each layer and head at which a method's error is at most ε.

    By bisection between budgets that succeed and fail, all heads of a layer together. Of a random method at least a
    share 1 - δ of the seeds must succeed. Bisection assumes that the error falls with d. Some larger budgets are
    tried too, and those that exceed ε again are reported as counterexamples; where none is found, budgets that were
    not tried may still exceed ε (--scan tries all). A head that no budget up to --d-max is enough for has none.

    The run's folder also gets budgets-METHOD.json: the d of every layer and head, null where there is none.

    A head that is not reached fails gates on d and d_over_n; unreached and counterexamples are shares of heads.
    """

    methods: tuple[str, ...] = methods_option(
        ("skyformer",), "Methods; repeatable and comma-separated. [default: skyformer]"
    )
    epsilon: tuple[float, ...] = opt(
        (0.1,),
        "Errors ε that shall not be exceeded, in the units of --metric.",
        group=MEASURED,
        metavar="LIST",
        parse=positives,
    )
    metric: str = opt(
        "output_frobenius_relative",
        "Which error; those of whole matrices count by the upper end of their interval, and of "
        "output_cosine_min it is 1 minus the cosine.",
        group=MEASURED,
        metavar="NAME",
    )
    delta: float = opt(
        0.1,
        "The share δ of the seeds that may exceed ε.",
        group=MEASURED,
        metavar="SHARE",
    )
    d_min: int = opt(8, "The smallest budget that is tried.", group=MEASURED)
    d_max: int | None = opt(
        None,
        "The largest budget that is tried. [default: n/2, beyond which 2 d n entries are all n² and more]",
        group=MEASURED,
        metavar="INTEGER",
    )
    resolution: float = opt(
        1.05,
        "The largest step between neighbouring budgets, beside steps of 1; 1 is every budget.",
        group=MEASURED,
        metavar="FACTOR",
    )
    scan: bool = opt(False, "Try every budget instead of bisecting: sure of the smallest, and slow.", group=MEASURED)
    target: str = target_option("The exact matrix that methods stand for.")
    tol: float = opt(
        1e-3,
        "Relative width at which the interval of a matrix's spectral norm is closed.",
        group=MEASURED,
        inside=(0, 1),
        choose="a relative width above 0 and below 1, such as 0.001",
    )
    seed: int = opt(0, "The first seed.", group=MEASURED)
    repeats: int = opt(
        20,
        "Seeds seed … seed+repeats-1 of random methods; a deterministic one takes the first alone.",
        group=MEASURED,
        between=(1, MOST),
    )


@dataclass(frozen=True, kw_only=True)
class BudgetOutput(Output, Gates):
    plot: bool = plot_option("Draw d over layers and heads into the run's figures/ (SVG and PNG).")
