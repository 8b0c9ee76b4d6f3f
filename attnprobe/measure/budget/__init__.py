"""``attnprobe budget``: its request, whose fields are the command's options, and its parts, loaded on use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...frame.metric import ERROR, metrics
from ...grammar.lists import positives
from ...judge.gates import Gated
from ...run.option import opt
from ...run.topics.reading import MOST, Lengths, SomeQueries, WeightsWord, methods_option, target_option
from ...run.topics.running import OnTensors
from ...run.topics.showing import Gates, Output, plots_option
from ..base import Experiment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...files import Fields
    from ...frame.rows import RowTypes
    from ...run.cells import Cells

# the metrics that --metric may name
LIMITED = tuple(metric.name for metric in ERROR if metric.name.startswith(("output_", "residual_", "matrix_")))


@dataclass(frozen=True, kw_only=True)
class BudgetRequest(SomeQueries, Lengths, WeightsWord, OnTensors):
    """Find the smallest budget of each layer and head at which a method's error is at most ε.

    The search bisects over budgets, all heads of a layer together. A random method must succeed for a share of at least
    1 - δ of the seeds. The error may grow with d, so some larger budgets are tried too. Those that exceed ε again are
    reported as counterexamples. Budgets that were not tried may still exceed ε; --scan tries all of --resolution.

    The d of every layer and head is written to budgets-METHOD.json in the run's folder, with null if no budget up to
    --d-max is enough.

    Gates on d and d_over_n fail at a head without a d. unreached and counterexamples are shares of heads.
    """

    methods: tuple[str, ...] = methods_option(("skyformer",), "Methods with options. [default: skyformer]")
    epsilon: tuple[float, ...] = opt((0.1,), "Largest allowed errors ε, in the units of --metric.", parse=positives)
    metric: str = opt(
        "output_frobenius_relative",
        "The error to limit; where it is an interval, its upper end.",
        metavar="NAME",
        among=LIMITED,
    )
    delta: float = opt(0.1, "The share δ of seeds that may exceed ε.", metavar="SHARE")
    d_min: int = opt(8, "The smallest budget to try.")
    d_max: int | None = opt(
        None,
        "The largest budget to try. [default: n/2]",
        metavar="INTEGER",
    )
    resolution: float = opt(1.05, "Largest ratio of neighbouring budgets; 1 tries every budget.", metavar="FACTOR")
    scan: bool = opt(
        False,
        "Try every budget instead of bisecting.",
    )
    target: str = target_option("The exact matrix that methods approximate.")
    tol: float = opt(
        1e-3,
        "Relative width of the certified interval of a spectral norm.",
        inside=(0, 1),
        choose="a relative width above 0 and below 1, such as 0.001",
    )
    seed: int = opt(0, "The first seed.")
    repeats: int = opt(20, "Number of seeds of random methods, from --seed on.", between=(1, MOST))


@dataclass(frozen=True, kw_only=True)
class BudgetOutput(Output, Gates):
    plots: tuple[str, ...] = plots_option("budget", "budget-methods")


GATED = Gated(
    metrics("d", "d_over_n", "unreached", "counterexamples"),
    without=("d",),  # d is the result
)


def _cells() -> type[Cells]:
    from .measure import BudgetCells

    return BudgetCells


def _rows() -> RowTypes:
    from .record import SHAPE

    return SHAPE


def _files(cells: Sequence[Fields]) -> dict[str, dict[str, Any]]:
    from .files import files_of

    return files_of(cells)


EXPERIMENT = Experiment(
    name="budget",
    summary="Find the smallest budget of each head at which a method's error is at most ε.",
    request=BudgetRequest,
    output=BudgetOutput,
    load_cells=_cells,
    load_rows=_rows,
    gated=GATED,
    files_of=_files,
    examples=(
        "--method skyformer --epsilon 0.1,0.3 --layer all --plot",
        "--fail-above d.max=256 --fail-above unreached=0",
    ),
)
measure_budgets = EXPERIMENT.measure
