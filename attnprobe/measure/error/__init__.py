"""``attnprobe error``: its request, whose fields are the command's options, and its parts, loaded on use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...frame.metric import ERROR
from ...judge.gates import Gated
from ...run.option import opt
from ...run.topics.reading import MOST, Budgets, Lengths, SomeQueries, WeightsWords, methods_option, target_option
from ...run.topics.running import OnTensors
from ...run.topics.showing import Gates, Output, Timed, plots_option
from ..base import Experiment

if TYPE_CHECKING:
    from ...frame.rows import RowTypes
    from ...run.cells import Cells


@dataclass(frozen=True, kw_only=True)
class ErrorRequest(SomeQueries, Lengths, Budgets, WeightsWords, OnTensors):
    """Measure how far a method's output is from exact attention, head by head, on real Q, K and V.

    Output errors compare B~ V with the exact B V in float64. Matrix errors compare B~ with B; their spectral norm is a
    certified interval. Every table also has V-Mean and the lower bound of rank d.

    --plot maps draws the mean of blocks (at most 64 x 64) of each matrix on one colour scale, for the first window and
    seed: a row per head, and a column per method and budget.
    """

    methods: tuple[str, ...] = methods_option(
        ("skyformer",),
        "Methods with options, also torch:KERNEL, FILE.py:FN or all. [default: skyformer]",
        "NAME[:k=v,…],…",
    )
    target: str = target_option("The exact matrix that methods approximate.")
    seed: int = opt(0, "Seed of random draws.")
    repeats: int = opt(1, "Number of seeds of random methods, from --seed on.", between=(1, MOST))
    matrix: bool = opt(
        True,
        "Measure matrix errors too: norms of B - B~, which take most time.",
        flag="--matrix/--no-matrix",
        measures=("matrix_",),
    )
    rows: bool = opt(
        False,
        "Measure row metrics too: captured mass, divergences, errors by position.",
        flag="--rows/--no-rows",
        measures=("mass", "recall_k", "tv", "kl", "js", "log_normaliser_error", "tail_gap", "support"),
        later=True,
    )
    tol: float = opt(
        1e-3,
        "Relative width of the certified interval of ‖B - B~‖₂.",
        metavar="WIDTH",
        inside=(0, 1),
        choose="a relative width above 0 and below 1, such as 0.001",
    )
    row_tolerance: float | None = opt(
        None,
        "Kernels: relative error of a row within tolerance. [default: by dtype]",
        metavar="ERROR",
        inside=(0, 1),
        choose="a relative error above 0 and below 1",
    )


@dataclass(frozen=True, kw_only=True)
class ErrorOutput(Output, Timed, Gates):
    plots: tuple[str, ...] = plots_option("errors", "ranking", "cost", "read", "maps", "positions", "heads")


def _cells() -> type[Cells]:
    from .measure import ErrorCells

    return ErrorCells


def _rows() -> RowTypes:
    from .record import SHAPE

    return SHAPE


EXPERIMENT = Experiment(
    name="error",
    summary="Measure how far a method's output is from exact attention.",
    request=ErrorRequest,
    output=ErrorOutput,
    load_cells=_cells,
    load_rows=_rows,
    more_plots=("papers",),
    gated=Gated(ERROR),
    compared=("output_spectral_relative", "matrix_spectral_relative"),
    keeps=("maps",),
    examples=(
        "--method skyformer,nystromformer --n 1024 --d 32,64,128 --plot",
        "--method all --rows --no-matrix --plot cost",
        "--method skyformer --fail-above output_spectral_relative.median=0.3 --fail-above bad_rows.max=0",
        "--method torch:sdpa-flash:dtype=bfloat16 --fail-above ratio_to_framework.max=2",
    ),
)
measure_errors = EXPERIMENT.measure
