"""``attnprobe bench``: its request, whose fields are the command's options, and its parts, loaded on use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...frame.metric import BENCH, GROWTH, METRICS, SELECTED
from ...grammar.lists import lengths
from ...judge.gates import Gated
from ...run.option import SOURCE, opt
from ...run.topics.reading import (
    READING,
    Budgets,
    Dtype,
    Layers,
    Reading,
    Tensors,
    WeightsWord,
    methods_option,
    target_option,
)
from ...run.topics.running import RunRequest
from ...run.topics.showing import Gates, Output, plots_option
from ..base import Experiment

if TYPE_CHECKING:
    from ...frame.rows import RowTypes
    from ...run.cells import Cells

SOURCES = ("random", "model")
MOST_ROUNDS = 10_000


@dataclass(frozen=True, kw_only=True)
class BenchRequest(Budgets, Layers, WeightsWord, Reading, Tensors, Dtype, RunRequest):
    """Measure time, memory and matrix products of each method, and of exact attention in the same rounds.

    A call is everything that a method does: its draws, its operator and the product with V. The calls of one length
    take turns, so a machine that slows down slows all of them. A time is the median over rounds. Exact attention is
    torch's fused kernel in the same dtype. Times depend on the machine: a run describes it, and `attnprobe compare`
    refuses runs of different machines.
    """

    methods: tuple[str, ...] = methods_option(("all",), "Methods with options. [default: all]")
    n: tuple[int, ...] | None = opt(
        None,
        "Sequence lengths. [default: 512,1024,…,16384; of a model to 4096; all of --qkv]",
        parse=lengths,
    )
    inputs: str = opt(
        "random",
        "random normal numbers, or a model's Q, K and V.",
        group=SOURCE,
        flag="--source",
        metavar="random|model",
        among=SOURCES,
        reads={"model": (*READING, "qkv", "layer", "head"), "random": ("heads", "p")},
    )
    heads: int = opt(2, "Heads of random Q, K and V.", group=SOURCE)
    p: int = opt(64, "Head dimension of random Q, K and V.", group=SOURCE)
    target: str = target_option("The exact matrix; times are always relative to softmax attention.")
    seed: int = opt(0, "Seed of random draws.")
    rounds: int = opt(5, "Times that each call is timed.", between=(1, MOST_ROUNDS))
    backward: bool = opt(False, "Time the gradient with respect to Q, K and V too.")
    memory: bool = opt(
        True,
        "Measure peak memory; on a CPU in a process for each cell.",
        flag="--memory/--no-memory",
        measures=("peak_bytes",),
    )
    errors: bool | None = opt(
        None,
        "Measure output errors too. [default: with --source model]",
        flag="--errors/--no-errors",
        measures=("output_",),
    )
    quadratic_n: int = opt(4096, "Longest n of methods that cost n²; of n³ a quarter of it.", metavar="N")

    # Times do not depend on the size of scores, so there is no option for it.
    scale_inputs: ClassVar[tuple[float, ...]] = (1.0,)

    @property
    def with_errors(self) -> bool:
        return self.inputs == "model" if self.errors is None else self.errors


@dataclass(frozen=True, kw_only=True)
class BenchOutput(Output, Gates):
    plots: tuple[str, ...] = plots_option("bench", "bench-time", "bench-memory", "bench-pareto")


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
GATED = Gated(
    (*COSTS, *GROWTH, *(METRICS[name] for name in ERRORS)), over_all_n=tuple(metric.name for metric in GROWTH)
)


def _cells() -> type[Cells]:
    from .measure import BenchCells

    return BenchCells


def _rows() -> RowTypes:
    from .record import SHAPE

    return SHAPE


EXPERIMENT = Experiment(
    name="bench",
    summary="Measure time and memory of each method, and how they grow with n.",
    request=BenchRequest,
    output=BenchOutput,
    load_cells=_cells,
    load_rows=_rows,
    gated=GATED,
    compared=("ratio_to_exact", "peak_bytes"),
    timed=True,
    examples=(
        "--method nystromformer,skyformer,performer --n 1024,4096,16384 --plot",
        "--method all --d 32,64,128,256 --n 4096 --source model --plot",
        "--method skyformer --fail-above time_exponent=1.15 --fail-above ratio_to_exact.median=1",
    ),
)
measure_bench = EXPERIMENT.measure
