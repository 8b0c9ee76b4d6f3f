"""``attnprobe condition``: its request, whose fields are the command's options, and its parts, loaded on use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...grammar.arithmetic import FORMATS
from ...grammar.lists import lengths
from ...run.option import opt
from ...run.topics.reading import Budgets, WeightsWord, methods_option, target_option
from ...run.topics.running import OnTensors
from ...run.topics.showing import Output, plots_option
from ..base import Experiment

if TYPE_CHECKING:
    from ...frame.rows import RowTypes
    from ...run.cells import Cells

STEPS = 1000  # of the Schulz iteration


@dataclass(frozen=True, kw_only=True)
class ConditionRequest(Budgets, WeightsWord, OnTensors):
    """Compute condition numbers of attention matrices and of every core that a method inverts, head by head.

    A, B and C are the exact matrices. The cores are A_S of Nyströmformer and the spectral shift, and SᵀĀS, SᵀC̄S,
    SᵀC̄S + γI and Lemma 3's scaled N of Skyformer, over the same landmarks. All are computed in float64. If float64
    cannot distinguish a matrix from a singular one, its condition number is infinite. Repeated tokens (layer 0 of
    concatenated segments) and landmarks that are drawn twice make exactly singular matrices, and the table counts them.

    A small condition number does not mean a small error: their rank correlation over heads may have either sign. So the
    table shows the error and this correlation next to each condition number. Skyformer's default sampler repeats
    landmarks, so its core without a ridge is exactly singular; use skyformer:sampler=wor for a value.
    """

    methods: tuple[str, ...] = methods_option(
        ("skyformer", "nystromformer"),
        "Methods with options. [default: skyformer,nystromformer]",
    )
    n: tuple[int, ...] | None = opt(
        None, "Sequence lengths, up to 4096. [default: 512, or all of --qkv]", parse=lengths
    )
    target: str = target_option("The exact matrix that methods approximate.")
    seed: int = opt(0, "Seed of random draws, also of --sensitivity.")
    iterations: int = opt(
        0,
        "Measure the residuals of N steps of the Schulz iteration on each core.",
        metavar="N",
        between=(0, STEPS),
    )
    sensitivity: bool = opt(False, "Measure how B, C and B~ change with Q and K, in random directions.")

    amplification: str | None = opt(
        None,
        "Measure the amplification of rounding in a format, such as bf16.",
        metavar="FORMAT,…",
        among=FORMATS,
        called="format",
        later=True,
    )


@dataclass(frozen=True, kw_only=True)
class ConditionOutput(Output):
    plots: tuple[str, ...] = plots_option("condition")


def _cells() -> type[Cells]:
    from .measure import ConditionCells

    return ConditionCells


def _rows() -> RowTypes:
    from .record import SHAPE

    return SHAPE


EXPERIMENT = Experiment(
    name="condition",
    summary="Compute condition numbers of attention matrices and of the cores that methods invert.",
    request=ConditionRequest,
    output=ConditionOutput,
    load_cells=_cells,
    load_rows=_rows,
    examples=(
        "--d 32,64,128 --layer all --plot",
        "--method skyformer:sampler=wor --iterations 12",
        "--method nystromformer,nystromformer:inverse=pinv --d 64 --amplification bf16",
    ),
)
measure_conditions = EXPERIMENT.measure
