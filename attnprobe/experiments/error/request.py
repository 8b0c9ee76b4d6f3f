"""What ``attnprobe error`` measures and shows; its fields are its options."""

from __future__ import annotations

from dataclasses import dataclass

from ...run.option import FOLDER, SHOWN, opt
from ...run.topics import (
    MEASURED,
    MOST,
    OUTPUT,
    Budgets,
    Gates,
    Lengths,
    OnTensors,
    Output,
    Timed,
    WeightsWords,
    gates_option,
    methods_option,
    target_option,
)

__all__ = ["ErrorOutput", "ErrorRequest"]


@dataclass(frozen=True, kw_only=True)
class ErrorRequest(Lengths, Budgets, WeightsWords, OnTensors):
    """Measure how far a method's output lies from exact attention, head by head, on real Q, K and V.

    Errors are those of the output B~ V against the exact B V in float64, and those of the matrix B~ itself against B,
    whose spectral norm is a certified interval. V-Mean and the lower bound of rank d always stand beside the methods.

    --plot maps shows means of at most 64 x 64 blocks of each matrix on one colour scale, a row per head and a column
    per method and budget, of the first window and seed.
    """

    methods: tuple[str, ...] = methods_option(
        ("skyformer",),
        "Methods with options; repeatable and comma-separated. `all` is every one that is no reference and "
        "no kernel. [default: skyformer]",
        "NAME|torch:KERNEL|FILE.py:FN[:k=v,…]",
    )
    target: str = target_option("The exact matrix that the methods stand for.")
    seed: int = opt(0, "Seed of the methods' draws.", group=MEASURED)
    repeats: int = opt(1, "Seeds seed … seed+repeats-1 for random methods.", group=MEASURED, between=(1, MOST))
    matrix: bool = opt(
        True,
        "Whether to measure the errors of whole matrices too: norms of B - B~.",
        group=MEASURED,
        flag="--matrix/--no-matrix",
        measures="matrix_",
    )
    tol: float = opt(
        1e-3,
        "The relative width at which the interval of ‖B - B~‖₂ counts as closed.",
        group=MEASURED,
        metavar="WIDTH",
        inside=(0, 1),
        choose="a relative width above 0 and below 1, such as 0.001",
    )
    row_tolerance: float | None = opt(
        None,
        "The relative error up to which a row of a kernel is within. [default: by dtype, bfloat16 0.016, "
        "float16 0.001, float32 1.3e-6, float64 1e-7]",
        group=MEASURED,
        metavar="ERROR",
        inside=(0, 1),
        choose="a relative error above 0 and below 1",
    )
    split_rows: int | None = opt(
        None,
        "Split the rows of each exact matrix over N devices, the "
        "first visible GPUs, for one very long sequence; numbers are equal for every N, and equal to those "
        "without up to rounding. On a CPU, N threads that share it.",
        group=MEASURED,
        metavar="N",
        role=FOLDER,
    )


@dataclass(frozen=True, kw_only=True)
class ErrorOutput(Output, Timed, Gates):
    plots: tuple[str, ...] = opt(
        (),
        "Draw into the run's figures/ (SVG and PNG): error against d, which --plot alone means, or maps of "
        "the exact and the approximate matrix side by side, head by head; repeatable and comma-separated.",
        group=OUTPUT,
        flag="--plot",
        metavar="[errors|maps]",
        role=SHOWN,
        bare="errors",
        alias="figures",
        of_whole="figures",
    )
    gates: tuple[str, ...] = gates_option("a requested method's statistic (default: mean)")
