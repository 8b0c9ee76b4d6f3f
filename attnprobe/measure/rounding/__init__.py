"""``attnprobe rounding``: its request, whose fields are the command's options, and its parts, loaded on use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...frame.metric import ADDED, METRICS, metrics
from ...grammar.arithmetic import FORMATS, arithmetics
from ...judge.gates import Gated
from ...run.option import opt
from ...run.topics.reading import Budgets, Lengths, WeightsWords, methods_option, target_option
from ...run.topics.running import OnTensors
from ...run.topics.showing import Gates, Output, plots_option
from ..base import Experiment

if TYPE_CHECKING:
    from ...frame.rows import RowTypes
    from ...run.cells import Cells


@dataclass(frozen=True, kw_only=True)
class RoundingRequest(Lengths, Budgets, WeightsWords, OnTensors):
    """Measure what arithmetic in few bits adds to the error of each method, and which step adds it.

    The operations of a method are emulated in a format: the result of each is rounded. What that adds, ‖(B^ − B~)V‖₂
    over ‖BV‖₂, stands beside the method's own error. An estimate by one backward pass gives the share of each step, and
    --plan the fewest steps that must stay in float32, measured.

    Draws are the same in all formats. Constants that follow the dtype, such as the cutoff of a pseudo-inverse, are
    those of float64. LAPACK computes in float32.
    """

    methods: tuple[str, ...] = methods_option(
        ("nystromformer", "skyformer", "performer"),
        "Methods with options. [default: nystromformer,skyformer,performer]",
    )
    formats: tuple[str, ...] = opt(
        ("bf16", "fp16"),
        f"Formats of numbers: {', '.join(FORMATS)}; as bf16:autocast with a model of what is rounded.",
        metavar="FORMAT[:MODEL],…",
        parse=arithmetics,
    )
    goal: float = opt(
        0.1,
        "What rounding may add, as a part of the method's own error.",
        metavar="SHARE",
        inside=(0, 1e6),
        choose="a number above 0, such as 0.1",
    )
    estimate: bool = opt(
        True, "Estimate the error by one backward pass, with the share of each step.", flag="--estimate/--no-estimate"
    )
    plan: bool = opt(False, "Find the fewest steps that must stay in float32.", flag="--plan/--no-plan")
    published: bool = opt(
        False,
        "Also run installed published code: nystrom-attention, performer-pytorch, linformer.",
        later=True,
    )
    target: str = target_option("The exact matrix that methods approximate.")
    seed: int = opt(0, "Seed of random draws.")


@dataclass(frozen=True, kw_only=True)
class RoundingOutput(Output, Gates):
    plots: tuple[str, ...] = plots_option("rounding", "rounding-condition", "rounding-steps")


OF_STEPS = ("share", "kept")
OF_HEADS = tuple(metric for metric in ADDED if metric.name not in OF_STEPS)


def _cells() -> type[Cells]:
    from .measure import RoundingCells

    return RoundingCells


def _rows() -> RowTypes:
    from .record import SHAPE

    return SHAPE


EXPERIMENT = Experiment(
    name="rounding",
    summary="Measure what half precision adds to each method's error, and what must stay in float32.",
    request=RoundingRequest,
    output=RoundingOutput,
    load_cells=_cells,
    load_rows=_rows,
    gated=Gated((METRICS["output_spectral_relative"], *OF_HEADS), subjects=("format",)),
    compared=("rounding_error", "total_error"),
    examples=(
        "--method nystromformer,skyformer --d 64 --formats bf16,fp16 --plot",
        "--method mss --d 64 --formats bf16 --plan",
        "--method performer --formats fp16 --fail-above not_finite.max=0 --fail-above bits_needed.p90=11",
    ),
)
measure_rounding = EXPERIMENT.measure
SAID = metrics("output_spectral_relative", "cond", "score_max")  # of heads, beside `OF_HEADS`
