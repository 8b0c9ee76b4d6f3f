"""``attnprobe spectrum``."""

from __future__ import annotations

from time import perf_counter
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
    weights_from,
)

EPILOG = """\b
Examples:
  attnprobe spectrum --of softmax,unnormalised,gaussian --n 1024 --layer all --plot
  attnprobe spectrum --of softmax --weights pretrained,initialized --layer 0,5 --plot
  attnprobe spectrum --of softmax,skyformer,nystromformer:inverse=pinv --d 32,128
  attnprobe spectrum --of lifted-gaussian --kind eigen --n 512 --format json
  attnprobe spectrum --of softmax --n 16384 --k 64
\b
--of takes, beside every method of `attnprobe methods`:
  softmax          B, rows sum to 1
  unnormalised     A = exp(S), divided by its largest entry (log_scale in the JSON)
  gaussian         C_ij = exp(-|q_i - k_j|^2 scale/2)
  lifted-softmax   A over [Q; K], 2n x 2n, positive semidefinite
  lifted-gaussian  C over [Q; K], 2n x 2n, positive semidefinite
  output           B V, n x p_v
\b
In Python:
  from attnprobe import approximate, load_qkv, spectra
  qkv = load_qkv(n=1024, layer=2)
  [head.stable_rank for head in spectra(qkv, "unnormalised")]
  spectra(qkv, approximate("skyformer", qkv, d=128).operator)[0].values
\b
Exit codes: 0 fine, 2 usage or an impossible value, 3 a named source or device is
absent or refused, 4 some spectra failed or diverged, 130 interrupted."""


@click.command("spectrum", epilog=EPILOG)
@click.option(
    "--of",
    multiple=True,
    default=("softmax",),
    metavar="MATRIX|METHOD[:k=v,…]",
    shell_complete=complete_methods,
    help="Matrices, and methods with options; repeatable and comma-separated. [default: softmax]",
)
@click.option(
    "--kind",
    default="singular",
    show_default=True,
    metavar="singular|eigen",
    help="Singular values, or eigenvalues (complex for A, B, C and methods, real for lifted kernels).",
)
@click.option(
    "--k",
    type=int,
    help="Only the k largest values, at any n, each with an error. [default: all values up to n = 4096, 64 beyond]",
)
@click.option(
    "--epsilon",
    default="0.1,0.01",
    show_default=True,
    metavar="LIST",
    help="Relative errors for which to tell the rank d that an approximation needs.",
)
@click.option("--n", metavar="LIST", help="Sequence lengths, such as 512,1024. [default: 512, or all of a --qkv file]")
@click.option("--d", default="128", show_default=True, metavar="LIST", help="Budgets of methods, such as 16,32,64.")
@place_options
@input_options
@click.option(
    "--target",
    default="softmax",
    show_default=True,
    metavar="softmax|gaussian",
    help="The exact matrix that methods stand for.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the methods' draws, and of a start block.")
@source_options
@run_options
@elsewhere_options
@format_option
@click.option("--plot", is_flag=True, help="Draw the decay and the cumulative spectrum into figures/ (SVG and PNG).")
@click.option("--timings", "show_timings", is_flag=True, help="Show on stderr where the time went.")
@debug_option
def command(of: tuple[str, ...], format_: str, plot: bool, show_timings: bool, debug: bool, **given: Any) -> None:
    """Compute singular values, eigenvalues and effective ranks of attention matrices and of methods.

    All values come in float64 up to n = 4096, where one matrix takes about 24 n² bytes (384 MiB; a lifted kernel has
    2n rows): one head at a time is held. Beyond, the leading --k come from a block Krylov space, and nothing n x n is
    held. `--weights pretrained,initialized` draws both into one figure.
    """
    begin = perf_counter()
    refuse_contradictions()
    from ..experiments import experiment
    from ..timings import Timings
    from .measuring import measure_and_show

    refuse_unknown_format(format_)
    timings = Timings()
    with timings("imports"):
        request = request_of({"of": of, **given})
    measure_and_show(
        experiment("spectrum"),
        request,
        format_,
        kinds=["spectrum"] if plot else [],
        shown_timings=timings if show_timings else None,
        begin=begin,
        timings=timings,
    )


def request_of(given: dict[str, Any]) -> Any:
    """What the parsed options ask for."""
    from ..sweep import SpectrumRequest

    weights = weights_from(given)
    return SpectrumRequest(source=source_from(given), weights=weights, origin=origins(), **given)
