"""``attnprobe bench``."""

from __future__ import annotations

from typing import Any

import click

from .completion import complete_methods
from .options import (
    PLACES,
    debug_option,
    elsewhere_options,
    format_option,
    gate_options,
    origins,
    refuse_contradictions,
    refuse_unknown_format,
    run_options,
    source_from,
    source_options,
)

layer_option, head_option, _ = PLACES

EPILOG = """\b
Examples:
  attnprobe bench --method nystromformer,skyformer,performer --n 1024,4096,16384 --plot
  attnprobe bench --method all --d 32,64,128,256 --n 4096 --source model --plot
  attnprobe bench --method linear,performer --backward --dtype bfloat16
\b
In Python:
  from attnprobe.sweep import BenchRequest, measure_bench
  from attnprobe.experiments.bench.rows import bench_rows
  run = measure_bench(BenchRequest(methods=("skyformer",), n="1024,4096"))
  bench_rows(run.outcome.records)
\b
--fail-above takes seconds, ratio_to_exact, peak_bytes, flops, visited_fraction and output errors of every
row, and time_exponent, memory_exponent, faster_from and smaller_from of every method:
  attnprobe bench --method skyformer --fail-above time_exponent=1.15 --fail-above ratio_to_exact.median=1
\b
Exit codes: 0 fine, 1 a gate failed, 2 usage or an impossible value, 3 a named source or device is
absent or refused, 4 some cells failed or diverged, 130 interrupted."""


@click.command("bench", epilog=EPILOG)
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("all",),
    metavar="NAME|FILE.py:FN[:k=v,…]",
    shell_complete=complete_methods,
    help="Methods whose cost is measured; repeatable and comma-separated. [default: all]",
)
@click.option(
    "--n", metavar="LIST", help="Sequence lengths. [default: 512,1024,…,16384; to 4096 of a model; all of a --qkv file]"
)
@click.option("--d", default="128", show_default=True, metavar="LIST", help="Budgets, such as 16,32,64.")
@click.option(
    "--source",
    "inputs",
    default="random",
    show_default=True,
    metavar="random|model",
    help="Independent normal numbers, or Q, K and V of a model or a --qkv file.",
)
@click.option("--heads", default=2, show_default=True, help="Heads of random Q, K and V.")
@click.option("--p", default=64, show_default=True, help="Head dimension of random Q, K and V.")
@layer_option
@head_option
@click.option(
    "--target",
    default="softmax",
    show_default=True,
    metavar="softmax|gaussian",
    help="The exact matrix that the methods stand for; times are over exact softmax attention always.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the methods' draws.")
@click.option("--rounds", default=5, show_default=True, help="How often each call is timed.")
@click.option("--backward", is_flag=True, help="Add the gradient of the output's sum with respect to Q, K and V.")
@click.option(
    "--memory/--no-memory",
    default=True,
    show_default=True,
    help="Measure peak memory, on a CPU in a fresh process for each cell.",
)
@click.option("--errors/--no-errors", default=None, help="Measure output errors too. [default: of a model alone]")
@click.option(
    "--quadratic-n",
    default=4096,
    show_default=True,
    metavar="N",
    help="The longest n of methods that cost n²; those that cost n³ go to a quarter of it.",
)
@click.option(
    "--epsilon",
    default="0.05,0.1,0.2,0.5",
    show_default=True,
    metavar="LIST",
    help="Errors under which the fastest method is named, where errors are measured.",
)
@click.option(
    "--under-ms",
    default="1,10,100",
    show_default=True,
    metavar="LIST",
    help="Milliseconds under which the smallest error is named.",
)
@source_options
@run_options
@elsewhere_options
@format_option
@click.option(
    "--plot",
    is_flag=True,
    help="Draw time and memory against n, and error against cost, into the run's figures/ (SVG and PNG).",
)
@gate_options("a statistic (default: mean) over the rounds of a requested method")
@debug_option
def command(
    methods: tuple[str, ...],
    format_: str,
    plot: bool,
    gates: tuple[str, ...],
    junit: str | None,
    debug: bool,
    **given: Any,
) -> None:
    """Measure what methods cost, in time, memory and products, beside exact attention in the same rounds.

    A call is all that a method does: its draws, its operator and the product with V. The calls of one length take
    turns, so that a machine that slows down slows all of them; a time is the median over the rounds. Exact attention is
    torch's fused kernel in the same dtype. Times depend on the machine: the record says which, and `attnprobe compare`
    refuses two runs of different ones.
    """
    refuse_contradictions()
    from ..experiments import experiment
    from .measuring import measure_and_show

    refuse_unknown_format(format_)
    request = request_of({"methods": methods, **given})
    kinds = ["bench"] if plot else []
    measure_and_show(experiment("bench"), request, format_, kinds=kinds, gates=gates, junit=junit)


def request_of(given: dict[str, Any]) -> Any:
    """What the parsed options ask for."""
    from ..sweep import BenchRequest

    return BenchRequest(source=source_from(given), origin=origins(), **given)
