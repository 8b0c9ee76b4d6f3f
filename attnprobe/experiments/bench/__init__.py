"""``attnprobe bench``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import Experiment, called, late
from .request import BenchOutput, BenchRequest

if TYPE_CHECKING:
    from .measure import measure_bench
else:
    measure_bench = called("bench.measure:measure_bench")

__all__ = ["EXPERIMENT", "BenchOutput", "BenchRequest", "measure_bench"]

EXPERIMENT = Experiment(
    name="bench",
    summary="Measure time and memory of each method, and how they grow with n.",
    request=BenchRequest,
    output=BenchOutput,
    cells=late("bench.measure:BenchCells"),
    measure=late("bench.measure:measure_bench"),
    view=late("bench.view:view"),
    columns=late("bench.view:BENCH_COLUMNS"),
    fields=late("bench.rows:FIELDS"),
    plots=("bench",),
    gated=late("bench.gates:GATED"),
    timed=late("bench.rows:bench_rows"),
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
