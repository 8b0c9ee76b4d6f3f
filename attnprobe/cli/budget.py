"""``attnprobe budget``."""

from __future__ import annotations

from typing import Any

import click

from .completion import complete_methods
from .options import (
    debug_option,
    elsewhere_options,
    format_option,
    gate_options,
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
  from attnprobe import budgets, load_qkv
  for head in budgets(load_qkv(layer=2), "skyformer", epsilon=0.1).heads:
      print(head.head, head.d, head.held, head.interval, head.again)
\b
--fail-above takes d, d_over_n, unreached, counterexamples (the last two are shares of heads), and
mean, se, median, p10, p90 or max; a head that is not reached fails d and d_over_n:
  --fail-above d.max=256 --fail-above unreached=0
\b
Exit codes: 0 fine, heads that are not reached included; 1 a gate failed, 2 usage or an
impossible value, 3 a named source or device is absent or refused, 4 some cells failed or
diverged, 130 interrupted."""


@click.command("budget", epilog=EPILOG)
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("skyformer",),
    metavar="NAME|FILE.py:FN[:k=v,…]",
    shell_complete=complete_methods,
    help="Methods; repeatable and comma-separated. [default: skyformer]",
)
@click.option(
    "--epsilon",
    default="0.1",
    show_default=True,
    metavar="LIST",
    help="Errors ε that shall not be exceeded, in the units of --metric.",
)
@click.option(
    "--metric",
    default="output_frobenius_relative",
    show_default=True,
    metavar="NAME",
    help="Which error; those of whole matrices count by the upper end of their interval, and of "
    "output_cosine_min it is 1 minus the cosine.",
)
@click.option(
    "--delta", default=0.1, show_default=True, metavar="SHARE", help="The share δ of the seeds that may exceed ε."
)
@click.option("--d-min", default=8, show_default=True, help="The smallest budget that is tried.")
@click.option(
    "--d-max",
    type=int,
    metavar="INTEGER",
    help="The largest budget that is tried. [default: n/2, beyond which 2 d n entries are all n² and more]",
)
@click.option(
    "--resolution",
    default=1.05,
    show_default=True,
    metavar="FACTOR",
    help="The largest step between neighbouring budgets, beside steps of 1; 1 is every budget.",
)
@click.option("--scan", is_flag=True, help="Try every budget instead of bisecting: sure of the smallest, and slow.")
@click.option("--n", metavar="LIST", help="Sequence lengths, such as 512,1024. [default: 512, or all of a --qkv file]")
@place_options
@click.option(
    "--target",
    default="softmax",
    show_default=True,
    metavar="softmax|gaussian",
    help="The exact matrix that methods stand for.",
)
@click.option(
    "--tol",
    default=1e-3,
    show_default=True,
    help="Relative width at which the interval of a matrix's spectral norm is closed.",
)
@click.option("--seed", default=0, show_default=True, help="The first seed.")
@click.option(
    "--repeats",
    default=20,
    show_default=True,
    help="Seeds seed … seed+repeats-1 of random methods; a deterministic one takes the first alone.",
)
@source_options
@input_options
@run_options
@elsewhere_options
@format_option
@click.option("--plot", is_flag=True, help="Draw d over layers and heads into the run's figures/ (SVG and PNG).")
@gate_options()
@debug_option
def command(format_: str, plot: bool, gates: tuple[str, ...], junit: str | None, debug: bool, **given: Any) -> None:
    """Find the smallest budget of each layer and head at which a method's error is at most ε.

    By bisection between budgets that succeed and fail, all heads of a layer together. Of a random method at least a
    share 1 - δ of the seeds must succeed. Bisection assumes that the error falls with d. Some larger budgets are
    tried too, and those that exceed ε again are reported as counterexamples; where none is found, budgets that were
    not tried may still exceed ε (--scan tries all). A head that no budget up to --d-max is enough for has none.

    The run's folder also gets budgets-METHOD.json: the d of every layer and head, null where there is none.
    """
    refuse_contradictions()
    from ..experiments import experiment
    from .measuring import measure_and_show

    refuse_unknown_format(format_)
    request = request_of(given)
    kinds = ["budget"] if plot else []
    measure_and_show(experiment("budget"), request, format_, kinds=kinds, gates=gates, junit=junit)


def request_of(given: dict[str, Any]) -> Any:
    """What the parsed options ask for."""
    from ..sweep import BudgetRequest

    return BudgetRequest(source=source_from(given), origin=origins(), **given)
