"""``attnprobe bench``."""

from __future__ import annotations

from ...gates.check import Gated
from ...tables.metrics import BENCH, METRICS, SELECTED, Metric
from ..base import Experiment
from .request import BenchOutput, BenchRequest

__all__ = ["EXPERIMENT", "BenchOutput", "BenchRequest", "measure_bench"]

ERRORS = (
    "output_spectral",
    "output_spectral_relative",
    "output_frobenius",
    "output_frobenius_relative",
    "output_row_relative_max",
    "output_cosine_min",
    "bad_rows",
)
COSTS = (*BENCH, METRICS["visited_fraction"], *SELECTED)
GROWTH = (Metric("time_exponent"), Metric("memory_exponent"), Metric("faster_from"), Metric("smaller_from"))
GATED = Gated(
    (*COSTS, *GROWTH, *(METRICS[name] for name in ERRORS)),
    over_all_n=tuple(metric.name for metric in GROWTH),
)
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
