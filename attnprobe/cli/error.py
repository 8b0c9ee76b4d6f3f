"""``attnprobe error``."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import click

from .completion import complete_methods
from .options import (
    debug_option,
    elsewhere_options,
    format_option,
    gate_options,
    input_options,
    kinds_from,
    origins,
    place_options,
    refuse_contradictions,
    refuse_unknown_format,
    run_options,
    source_from,
    source_options,
    weights_from,
)

EPILOG = """\b
In Python:
  from attnprobe import approximate, exact, load_qkv, matrix_errors, output_errors
  qkv = load_qkv(n=4096, layer=0)
  approx = approximate("skyformer", qkv, d=128)
  output_errors(exact(qkv), approx, qkv)
  matrix_errors(exact(qkv), approx.operator)
\b
--plot maps shows means of at most 64 x 64 blocks of each matrix on one colour scale,
a row per head and a column per method and budget, of the first window and seed. In
Python: attnprobe.metrics.attention_maps(approx.operator).
\b
--fail-above takes output_spectral, output_spectral_relative, output_frobenius,
output_frobenius_relative, output_row_relative_max, matrix_spectral,
matrix_spectral_relative, matrix_frobenius, matrix_frobenius_relative,
matrix_infinity, bad_rows, visited_fraction, inverse_residual or seconds, of kernels
ratio_to_framework, ratio_to_framework_frobenius, max_abs, relative_frobenius,
row_error_p50, row_error_p99 or row_error_p99_9,
and mean, se, median, p10, p90 or max:
  --fail-above output_spectral_relative.median=0.3 --fail-above bad_rows.max=0
  --method torch:sdpa-flash:dtype=bfloat16 --fail-above ratio_to_framework.max=2
\b
Exit codes: 0 fine, 1 a --fail-above gate failed, 2 usage or an impossible value,
3 a named source or device is absent or refused, 4 some cells failed or diverged,
130 interrupted."""


PLOTS = ("errors", "maps")


@click.command("error", epilog=EPILOG)
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("skyformer",),
    metavar="NAME|torch:KERNEL|FILE.py:FN[:k=v,…]",
    shell_complete=complete_methods,
    help="Methods with options; repeatable and comma-separated. `all` is every one that is no reference and "
    "no kernel. [default: skyformer]",
)
@click.option("--n", metavar="LIST", help="Sequence lengths, such as 512,1024. [default: 512, or all of a --qkv file]")
@click.option("--d", default="128", show_default=True, metavar="LIST", help="Budgets, such as 16,32,64.")
@place_options
@input_options
@click.option(
    "--target",
    default="softmax",
    show_default=True,
    metavar="softmax|gaussian",
    help="The exact matrix that the methods stand for.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the methods' draws.")
@click.option(
    "--matrix/--no-matrix",
    default=True,
    show_default=True,
    help="Whether to measure the errors of whole matrices too: norms of B - B~.",
)
@click.option(
    "--tol",
    default=1e-3,
    show_default=True,
    metavar="WIDTH",
    help="The relative width at which the interval of ‖B - B~‖₂ counts as closed.",
)
@click.option(
    "--split-rows",
    type=int,
    metavar="N",
    help="Split the rows of each exact matrix over N devices, the "
    "first visible GPUs, for one very long sequence; numbers are equal for every N, and equal to those "
    "without up to rounding. On a CPU, N threads that share it.",
)
@click.option(
    "--row-tolerance",
    type=float,
    metavar="ERROR",
    help="The relative error up to which a row of a kernel is within. [default: by dtype, bfloat16 0.016, "
    "float16 0.001, float32 1.3e-6, float64 1e-7]",
)
@click.option("--repeats", default=1, show_default=True, help="Seeds seed … seed+repeats-1 for random methods.")
@source_options
@run_options
@elsewhere_options
@format_option
@click.option(
    "--plot",
    "plots",
    multiple=True,
    is_flag=False,
    flag_value="errors",
    metavar="[errors|maps]",
    help="Draw into the run's figures/ (SVG and PNG): error against d, which --plot alone means, or maps of "
    "the exact and the approximate matrix side by side, head by head; repeatable and comma-separated.",
)
@gate_options("a requested method's statistic (default: mean)")
@click.option("--timings", "show_timings", is_flag=True, help="Show on stderr where the time went.")
@debug_option
def command(
    methods: tuple[str, ...],
    format_: str,
    plots: tuple[str, ...],
    gates: tuple[str, ...],
    junit: str | None,
    show_timings: bool,
    debug: bool,
    **given: Any,
) -> None:
    """Measure how far a method's output lies from exact attention, head by head, on real Q, K and V.

    Errors are those of the output B~ V against the exact B V in float64, and those of the matrix B~ itself against B,
    whose spectral norm is a certified interval. V-Mean and the lower bound of rank d always stand beside the methods.
    """
    begin = perf_counter()
    refuse_contradictions()
    kinds = kinds_from(plots, PLOTS)
    from ..experiments import experiment
    from ..timings import Timings
    from .measuring import measure_and_show
    from .output import pictures

    refuse_unknown_format(format_)
    timings = Timings()
    maps = "maps" in kinds or bool(pictures(given["out"], "maps"))  # an older picture is drawn again
    with timings("imports"):
        request = request_of({"methods": methods, **given})
    measure_and_show(
        experiment("error"),
        request,
        format_,
        kinds=kinds,
        gates=gates,
        junit=junit,
        shown_timings=timings if show_timings else None,
        begin=begin,
        maps=maps,
        timings=timings,
    )


def request_of(given: dict[str, Any]) -> Any:
    """What the parsed options ask for."""
    from ..sweep import ErrorRequest

    weights = weights_from(given)
    return ErrorRequest(source=source_from(given), weights=weights, origin=origins(), **given)
