"""``attnprobe rounding``: the request, whose fields are the command's options, and what is light of the rest."""

from __future__ import annotations

from dataclasses import dataclass

from ...frame.metric import ADDED, METRICS, metrics
from ...grammar.lists import words
from ...judge.gates import Gated
from ...run.option import opt
from ...run.topics.arithmetic import ARITHMETICS, FORMATS
from ...run.topics.reading import Budgets, Lengths, WeightsWords, methods_option, target_option
from ...run.topics.running import OnTensors
from ...run.topics.showing import Gates, Output, plots_option
from ..base import Experiment


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
        "Methods to measure; repeatable and comma-separated. [default: nystromformer, skyformer, performer]",
    )
    formats: tuple[str, ...] = opt(
        ("bf16", "fp16"), "Formats of numbers.", metavar="|".join(FORMATS), among=FORMATS, parse=words
    )
    arithmetic: str = opt(
        "every",
        "What is rounded: the result of every operation; the inputs of products, which add in float32; or what torch's "
        "autocast computes in the format, products but not exponentials, sums and norms.",
        metavar="|".join(ARITHMETICS),
        among=ARITHMETICS,
    )
    goal: float = opt(
        0.1,
        "What rounding may add, as a part of the method's own error: for the bits needed, and for plans.",
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
        "Also run the published code of nystromformer (nystrom-attention), performer (performer-pytorch) and linformer "
        "(linformer), if their packages are installed: really in the dtype of the format, on a CPU too.",
        later=True,
    )
    target: str = target_option("The exact matrix that methods approximate.")
    seed: int = opt(0, "Seed of the methods' random draws.")


@dataclass(frozen=True, kw_only=True)
class RoundingOutput(Output, Gates):
    plots: tuple[str, ...] = plots_option(
        "Draw the error added against the method's own, the amplification against condition numbers, shares of steps.",
        *("rounding", "rounding-condition", "rounding-steps"),
    )


OF_STEPS = ("share", "kept")
OF_HEADS = tuple(metric for metric in ADDED if metric.name not in OF_STEPS)
EXPERIMENT = Experiment(
    name="rounding",
    summary="Measure what half precision adds to each method's error, and what must stay in float32.",
    request=RoundingRequest,
    output=RoundingOutput,
    gated=Gated((METRICS["output_spectral_relative"], *OF_HEADS), subjects=("format",)),
    compared=("rounding_error", "total_error"),
    examples=(
        "--method nystromformer,skyformer --d 64 --formats bf16,fp16 --plot",
        "--method mss --d 64 --formats bf16 --plan",
        "--method performer --formats fp16 --fail-above not_finite.max=0 --fail-above bits_needed.p90=11",
    ),
    python=(
        "from attnprobe.measure.rounding import RoundingRequest, measure_rounding",
        'measure_rounding(RoundingRequest(methods=("performer",), formats=("bf16",))).outcome.records',
    ),
)
measure_rounding = EXPERIMENT.measure
SAID = metrics("output_spectral_relative", "cond", "score_max")  # of heads, beside `OF_HEADS`
