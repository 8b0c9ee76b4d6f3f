"""What ``attnprobe condition`` measures and shows; its fields are its options."""

from __future__ import annotations

from dataclasses import dataclass

from ...run.option import opt
from ...run.topics import (
    MEASURED,
    Budgets,
    OnTensors,
    Output,
    WeightsWord,
    lengths,
    methods_option,
    plot_option,
    target_option,
)

__all__ = ["ConditionOutput", "ConditionRequest"]

STEPS = 1000  # of the Schulz iteration


@dataclass(frozen=True, kw_only=True)
class ConditionRequest(Budgets, WeightsWord, OnTensors):
    """Measure condition numbers of attention matrices and of every core that a method inverts, head by head.

    A small condition number does not mean a small error: their rank correlation over heads takes either sign, and the
    legend says what it is in this run. A Gaussian
    core is best conditioned where its landmarks hardly see each other, and there the method may be at its worst; six
    steps of an iteration invert an ill-conditioned core in part only, and may err less for it. So the error stands
    beside each condition number. Skyformer's default sampler repeats landmarks, which makes its core without a ridge
    exactly singular; that of skyformer:sampler=wor has a value.

    A, B and C are the exact matrices, and cores are A_S of Nyströmformer and the spectral shift, and SᵀĀS, SᵀC̄S,
    SᵀC̄S + γI and Lemma 3's scaled N of Skyformer, over the same landmarks. All in float64; a matrix that float64 cannot
    tell from a singular one carries a flag and its rank instead of a value. Repeated tokens (layer 0 of concatenated
    segments) and landmarks drawn twice make exactly singular matrices: they are counted.
    """

    methods: tuple[str, ...] = methods_option(
        ("skyformer", "nystromformer"),
        "Methods whose cores are measured; repeatable and comma-separated. [default: skyformer,nystromformer]",
    )
    n: tuple[int, ...] | None = opt(
        None,
        "Sequence lengths. A, B and C are held head by head, up to 4096. [default: 512, or all of a --qkv file]",
        group=MEASURED,
        metavar="LIST",
        parse=lengths,
    )
    target: str = target_option("The exact matrix that the methods stand for, and that their error is against.")
    seed: int = opt(0, "Seed of the methods' draws, and of --sensitivity's.", group=MEASURED)
    precise: bool = opt(
        False,
        "Certify every value by ball arithmetic, for matrices of at most 256 "
        "rows; needs pip install 'attnprobe[precise]'.",
        group=MEASURED,
    )
    iterations: int = opt(
        0,
        "Keep the residual of N steps of the Schulz iteration on each core; Nyströmformer and Skyformer take six.",
        group=MEASURED,
        metavar="N",
        between=(0, STEPS),
    )
    sensitivity: bool = opt(
        False,
        "Relative change of B, C and each B~ per relative change of Q and K, in random directions.",
        group=MEASURED,
    )


@dataclass(frozen=True, kw_only=True)
class ConditionOutput(Output):
    plot: bool = plot_option("Draw conditions, their errors and residuals into the run's figures/ (SVG and PNG).")
