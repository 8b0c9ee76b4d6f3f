"""``attnprobe theory``: its request, whose fields are the command's options, and its parts, loaded on use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...frame.metric import metrics
from ...grammar.lists import positive
from ...judge.gates import Gated
from ...run.option import OUTPUT, opt
from ...run.topics.reading import MOST, Budgets, Lengths, SomeQueries, WeightsWords, methods_option, target_option
from ...run.topics.running import OnTensors
from ...run.topics.showing import Gates, Output, plots_option
from ..base import Experiment

if TYPE_CHECKING:
    from ...frame.rows import RowTypes
    from ...run.cells import Cells


def relative_errors(text: str, called: str) -> tuple[float, ...]:
    """A list of relative errors, in its own order.

    Raises:
        UsageError: an entry that is not a number above 0.
    """
    return tuple(dict.fromkeys(positive(part, called) for part in text.split(",")))


@dataclass(frozen=True, kw_only=True)
class TheoryRequest(SomeQueries, Lengths, Budgets, WeightsWords, OnTensors):
    """Evaluate the papers' theorems on real Q, K and V: check assumptions, and compare bounds with measured values.

    Every statement gets a verdict for each head. *holds*: what was measured satisfies it, with its entire interval.
    *violated*: the entire interval breaks it. *undecided*: a part does. *vacuous*: the bound is true of every matrix,
    or of an approximation by zeros. *assumption not met*: the theorem does not apply. Probabilities are measured over
    seeds, with a 95 % interval.

    Gates in a sweep's file may name a theorem, and may have a lower limit:
    gates: [{metric: slack, stat: p10, min: 1, theorem: skyformer-theorem-2}].
    """

    theorems: tuple[str, ...] = opt(
        ("all",),
        "Theorems, as --list names them. [default: all]",
        flag="--theorem",
        metavar="NAME",
    )
    methods: tuple[str, ...] = methods_option(
        ("skyformer", "nystromformer"),
        "Methods for statements about any method. [default: skyformer,nystromformer]",
    )
    epsilon: tuple[float, ...] = opt((0.05, 0.1, 0.2, 0.5), "Relative errors ε.", parse=relative_errors)
    delta: float = opt(0.1, "Probability δ with which a statement may fail.", metavar="SHARE")
    target: str = target_option("The exact matrix of statements about any method.")
    seed: int = opt(0, "The first seed.")
    repeats: int = opt(20, "Seeds of measured probabilities, from --seed on.", between=(1, MOST))
    quadrature: bool | None = opt(
        None,
        "Estimate traces, or decompose the matrix. [default: quadrature beyond n = 4096]",
        flag="--quadrature/--exact",
    )


@dataclass(frozen=True, kw_only=True)
class TheoryOutput(Output, Gates):
    listing: bool = opt(
        False,
        "List the theorems with their statements and costs.",
        group=OUTPUT,
        flag="--list",
        in_file=False,
    )
    plots: tuple[str, ...] = plots_option("theory")


def _cells() -> type[Cells]:
    from .measure import TheoryCells

    return TheoryCells


def _rows() -> RowTypes:
    from .record import SHAPE

    return SHAPE


def _listing(format: str) -> str:
    from .setting import list_all

    return list_all(format)


EXPERIMENT = Experiment(
    name="theory",
    summary="Evaluate the papers' theorems on real Q, K and V, with a verdict for each head.",
    request=TheoryRequest,
    output=TheoryOutput,
    load_cells=_cells,
    load_rows=_rows,
    list_all=_listing,
    gated=Gated(
        metrics("holds", "violated", "undecided", "vacuous", "assumption_not_met", "measured", "bound", "slack"),
        subjects=("theorem",),
    ),
    examples=("--list", "--theorem skyformer-theorem-2 --d 64,128 --plot", "--fail-above violated=0"),
)
measure_theory = EXPERIMENT.measure
