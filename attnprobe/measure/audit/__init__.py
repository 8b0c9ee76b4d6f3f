"""``attnprobe audit``: its request, whose fields are the command's options, and its parts, loaded on use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import UsageError
from ...frame.metric import metrics
from ...grammar.lists import positives
from ...judge.gates import Gated
from ...run.option import opt
from ...run.topics.reading import MOST, Budgets, Lengths, SomeQueries, WeightsWords, methods_option, target_option
from ...run.topics.running import OnTensors
from ...run.topics.showing import Gates, Output, plots_option
from ..base import Experiment

if TYPE_CHECKING:
    from ...frame.rows import RowTypes
    from ...run.cells import Cells


def probabilities(text: str, called: str) -> tuple[float, ...]:
    """Probabilities above 0 and below 1, in rising order."""
    values = positives(text, called)
    if values[-1] >= 1:
        raise UsageError(f"{called}={values[-1]:g}: choose probabilities above 0 and below 1, such as 0.05")
    return values


@dataclass(frozen=True, kw_only=True)
class AuditRequest(SomeQueries, Lengths, Budgets, WeightsWords, OnTensors):
    """Test the promise of a random method: with probability 1 − δ its relative error is at most ε.

    The method runs with many seeds on the same Q, K and V. For each head, four errors are compared with each ε: of the
    normaliser ‖D~ − D‖/D, the numerator ‖N~ − N‖/‖N‖, the output ‖o~ − o‖/‖o‖ and the matrix ‖E‖₂/‖B‖₂. Errors of a
    head are over all its queries; with --rows each query has its own, and a head keeps a promise only if all of its
    queries do. Methods that state no normaliser have no errors of the first two kinds.

    Verdicts: *holds*, the error exceeds ε with probability at most δ; *violated*, with a larger one; *undecided*. All
    verdicts of a statement are right together with probability --confidence (exact binomial tests, Holm's correction
    over heads and queries). With --stop, tests are valid at any time, and a cell ends once all is decided.

    The bias of the normaliser is tested too, and the method's own statements are compared with what was seen: its
    standard deviation, the effective sample size, the smallest probability of a key, the share of rows at a cap.
    """

    methods: tuple[str, ...] = methods_option(("performer",), "Random methods to test. [default: performer]")
    epsilon: tuple[float, ...] = opt((0.1, 0.5, 1.0), "Promised relative errors ε.", parse=positives)
    delta: tuple[float, ...] = opt((0.05,), "Promised probabilities δ of a larger error.", parse=probabilities)
    repeats: int = opt(1000, "Seeds, from --seed on; with --stop at most.", between=(2, MOST))
    confidence: float = opt(
        0.95,
        "Probability that all verdicts of a statement are right.",
        metavar="SHARE",
        inside=(0, 1),
        choose="a probability above 0 and below 1, such as 0.95",
    )
    stop: bool = opt(
        False,
        "Stop a cell once its verdicts are decided, by tests valid at any time.",
        flag="--stop/--no-stop",
    )
    rows: bool = opt(False, "Judge every query by itself.", flag="--rows/--no-rows")
    matrix: bool = opt(
        True, "Test the spectral norm of the matrix error too: most of the time.", flag="--matrix/--no-matrix"
    )
    target: str = target_option("The exact matrix that methods approximate.")
    seed: int = opt(0, "The first seed.")


@dataclass(frozen=True, kw_only=True)
class AuditOutput(Output, Gates):
    plots: tuple[str, ...] = plots_option("calibration")


def _cells() -> type[Cells]:
    from .measure import AuditCells

    return AuditCells


def _rows() -> RowTypes:
    from .record import SHAPE

    return SHAPE


EXPERIMENT = Experiment(
    name="audit",
    summary="Test whether random methods keep a promised error with the promised probability.",
    request=AuditRequest,
    output=AuditOutput,
    load_cells=_cells,
    load_rows=_rows,
    gated=Gated(
        metrics("holds", "violated", "undecided", "biased", "rate", "worst", "upper", "bias_z", "ess", "capped")
    ),
    examples=(
        "--method performer --d 256 --epsilon 0.1,0.5 --delta 0.05 --queries last:64 --plot",
        "--method bigbird --rows --stop --fail-above violated=0",
    ),
)
measure_guarantees = EXPERIMENT.measure
