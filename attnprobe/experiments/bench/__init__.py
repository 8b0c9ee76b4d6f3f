"""``attnprobe bench``."""

from __future__ import annotations

from ..base import Experiment
from .gates import GATED
from .request import BenchOutput, BenchRequest

__all__ = ["EXPERIMENT", "BenchOutput", "BenchRequest", "measure_bench"]

EXPERIMENT = Experiment(
    name="bench",
    summary="Measure time and memory of each method, and how they grow with n.",
    request=BenchRequest,
    output=BenchOutput,
    plots=("bench",),
    gated=GATED,
    timed=True,
    examples=(
        "--method nystromformer,skyformer,performer --n 1024,4096,16384 --plot",
        "--method all --d 32,64,128,256 --n 4096 --source model --plot",
        "--method skyformer --fail-above time_exponent=1.15 --fail-above ratio_to_exact.median=1",
    ),
    python=(
        "from attnprobe.experiments.bench import BenchRequest, measure_bench",
        'measure_bench(BenchRequest(methods=("skyformer",), n=(1024, 4096))).outcome.records',
    ),
)
measure_bench = EXPERIMENT.measure
