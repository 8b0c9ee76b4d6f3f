"""What ``attnprobe theory`` evaluates and shows; its fields are its options."""

from __future__ import annotations

from dataclasses import dataclass

from ...grammar.lists import positive
from ...run.option import SHOWN, opt
from ...run.topics import (
    MEASURED,
    MOST,
    OUTPUT,
    Budgets,
    Gates,
    Lengths,
    OnTensors,
    Output,
    WeightsWords,
    methods_option,
    plot_option,
    target_option,
)

__all__ = ["TheoryOutput", "TheoryRequest", "relative_errors"]


def relative_errors(text: str, what: str) -> tuple[float, ...]:
    """A list of relative errors, in its own order.

    Raises:
        UsageError: one that is no number above 0.
    """
    return tuple(dict.fromkeys(positive(part, what) for part in text.split(",")))


@dataclass(frozen=True, kw_only=True)
class TheoryRequest(Lengths, Budgets, WeightsWords, OnTensors):
    """Evaluate what the papers' theorems assume and promise on real Q, K and V, and what is measured there.

    Every statement gets a verdict head by head: it holds; it is violated, beyond the measured interval and its
    rounding; it is vacuous, a bound that promises no more than is true of every matrix; or its assumption is not met.
    Probabilities are measured over seeds, with an interval.

    Gates of a sweep's file may name a theorem, and hold a value to a least one:
    gates: [{metric: slack, stat: p10, min: 1, theorem: skyformer-theorem-2}].
    """

    theorems: tuple[str, ...] = opt(
        ("all",),
        "Theorems, repeatable and comma-separated; --list names them. [default: all]",
        group=MEASURED,
        flag="--theorem",
        metavar="NAME",
    )
    methods: tuple[str, ...] = methods_option(
        ("skyformer", "nystromformer"),
        "Methods that statements about any method are asked of; repeatable and comma-separated. "
        "[default: skyformer,nystromformer]",
    )
    epsilon: tuple[float, ...] = opt(
        (0.05, 0.1, 0.2, 0.5), "Relative errors ε.", group=MEASURED, metavar="LIST", parse=relative_errors
    )
    delta: float = opt(
        0.1,
        "The probability δ with which a statement may fail.",
        group=MEASURED,
        metavar="SHARE",
    )
    target: str = target_option("The exact matrix that methods stand for in statements about any method.")
    seed: int = opt(0, "The first seed.", group=MEASURED)
    repeats: int = opt(
        20,
        "Seeds seed … seed+repeats-1, by which probabilities are measured.",
        group=MEASURED,
        between=(1, MOST),
    )
    quadrature: bool | None = opt(
        None,
        "Whether traces are estimated by quadrature or decomposed. [default: beyond n = 4096]",
        group=MEASURED,
        flag="--quadrature/--exact",
    )


@dataclass(frozen=True, kw_only=True)
class TheoryOutput(Output, Gates):
    listing: bool = opt(
        False,
        "Print the theorems, what they say and what they cost, and stop.",
        group=OUTPUT,
        flag="--list",
        role=SHOWN,
        in_file=False,
    )
    plot: bool = plot_option("Draw what was measured against what is promised into the run's figures/ (SVG and PNG).")
