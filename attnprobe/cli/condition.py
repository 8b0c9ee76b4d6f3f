"""``attnprobe condition``."""

from __future__ import annotations

from typing import Any

import click

from .completion import complete_methods
from .options import (
    debug_option,
    elsewhere_options,
    format_option,
    input_options,
    origins,
    place_options,
    refuse_contradictions,
    refuse_unknown_format,
    run_options,
    source_from,
    source_options,
)

EPILOG = """\b
In Python:
  from attnprobe import approximate, load_qkv
  from attnprobe.linalg.condition import condition
  from attnprobe.metrics import core_matrices
  qkv = load_qkv(layer=2)
  approx = approximate("skyformer", qkv, d=64)
  for core in core_matrices(qkv, approx, {}):
      print(core.name, condition(core.matrix[0]).value)
\b
Exit codes: 0 fine, 2 usage or an impossible value, 3 a named source or device is
absent or refused, 4 some cells failed or diverged, 130 interrupted."""


@click.command("condition", epilog=EPILOG)
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("skyformer,nystromformer",),
    metavar="NAME|FILE.py:FN[:k=v,…]",
    shell_complete=complete_methods,
    help="Methods whose cores are measured; repeatable and comma-separated. [default: skyformer,nystromformer]",
)
@click.option(
    "--n",
    metavar="LIST",
    help="Sequence lengths. A, B and C are held head by head, up to 4096. [default: 512, or all of a --qkv file]",
)
@click.option("--d", default="128", show_default=True, metavar="LIST", help="Budgets, such as 16,32,64.")
@place_options
@input_options
@click.option(
    "--target",
    default="softmax",
    show_default=True,
    metavar="softmax|gaussian",
    help="The exact matrix that the methods stand for, and that their error is against.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the methods' draws, and of --sensitivity's.")
@click.option(
    "--precise",
    is_flag=True,
    help="Certify every value by ball arithmetic, for matrices of at most 256 "
    "rows; needs pip install 'attnprobe[precise]'.",
)
@click.option(
    "--iterations",
    default=0,
    show_default=True,
    metavar="N",
    help="Keep the residual of N steps of the Schulz iteration on each core; Nyströmformer and Skyformer take six.",
)
@click.option(
    "--sensitivity",
    is_flag=True,
    help="Relative change of B, C and each B~ per relative change of Q and K, in random directions.",
)
@source_options
@run_options
@elsewhere_options
@format_option
@click.option(
    "--plot", is_flag=True, help="Draw conditions, their errors and residuals into the run's figures/ (SVG and PNG)."
)
@debug_option
def command(methods: tuple[str, ...], format_: str, plot: bool, debug: bool, **given: Any) -> None:
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
    refuse_contradictions()
    from ..experiments import experiment
    from .measuring import measure_and_show

    refuse_unknown_format(format_)
    request = request_of({"methods": methods, **given})
    kinds = ["condition"] if plot else []
    measure_and_show(experiment("condition"), request, format_, kinds=kinds)


def request_of(given: dict[str, Any]) -> Any:
    """What the parsed options ask for."""
    from ..sweep import ConditionRequest

    return ConditionRequest(source=source_from(given), origin=origins(), **given)
