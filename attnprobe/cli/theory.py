"""``attnprobe theory``."""

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
    weights_from,
)

EPILOG = """\b
In Python:
  from attnprobe import findings, load_qkv
  for finding in findings(load_qkv(layer=2), "skyformer-theorem-2", d=(64, 128)):
      print(finding.d, dict(finding.at), finding.promise, finding.verdicts())
\b
--fail-above takes violated, vacuous, assumption_not_met (shares of heads), measured or bound,
and mean, se, median, p10, p90 or max. Gates of a sweep's file also take holds and slack with
min, and may name a theorem:
  --fail-above violated=0
  gates: [{metric: slack, stat: p10, min: 1, theorem: skyformer-theorem-2}]
\b
Exit codes: 0 fine, violated theorems included; 1 a gate failed, 2 usage or an impossible
value, 3 a named source or device is absent or refused, 4 some cells failed, 130 interrupted."""


@click.command("theory", epilog=EPILOG)
@click.option(
    "--theorem",
    "theorems",
    multiple=True,
    default=("all",),
    metavar="NAME",
    help="Theorems, repeatable and comma-separated; --list names them. [default: all]",
)
@click.option("--list", "listing", is_flag=True, help="Print the theorems, what they say and what they cost, and stop.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("skyformer,nystromformer",),
    metavar="NAME|FILE.py:FN[:k=v,…]",
    shell_complete=complete_methods,
    help="Methods that statements about any method are asked of; repeatable and comma-separated. "
    "[default: skyformer,nystromformer]",
)
@click.option("--n", metavar="LIST", help="Sequence lengths, such as 512,1024. [default: 512, or all of a --qkv file]")
@click.option("--d", default="128", show_default=True, metavar="LIST", help="Budgets, such as 16,32,64.")
@place_options
@input_options
@click.option("--epsilon", default="0.05,0.1,0.2,0.5", show_default=True, metavar="LIST", help="Relative errors ε.")
@click.option(
    "--delta",
    default=0.1,
    show_default=True,
    metavar="SHARE",
    help="The probability δ with which a statement may fail.",
)
@click.option(
    "--target",
    default="softmax",
    show_default=True,
    metavar="softmax|gaussian",
    help="The exact matrix that methods stand for in statements about any method.",
)
@click.option("--seed", default=0, show_default=True, help="The first seed.")
@click.option(
    "--repeats", default=20, show_default=True, help="Seeds seed … seed+repeats-1, by which probabilities are measured."
)
@click.option(
    "--quadrature/--exact",
    default=None,
    help="Whether traces are estimated by quadrature or decomposed. [default: beyond n = 4096]",
)
@source_options
@run_options
@elsewhere_options
@format_option
@click.option(
    "--plot",
    is_flag=True,
    help="Draw what was measured against what is promised into the run's figures/ (SVG and PNG).",
)
@gate_options()
@debug_option
def command(
    format_: str, plot: bool, gates: tuple[str, ...], junit: str | None, listing: bool, debug: bool, **given: Any
) -> None:
    """Evaluate what the papers' theorems assume and promise on real Q, K and V, and what is measured there.

    Every statement gets a verdict head by head: it holds; it is violated, beyond the measured interval and its
    rounding; it is vacuous, a bound that promises no more than is true of every matrix; or its assumption is not met.
    Probabilities are measured over seeds, with an interval.
    """
    refuse_contradictions()
    from ..experiments import experiment
    from .measuring import measure_and_show
    from .streams import answer

    refuse_unknown_format(format_)
    if listing:
        answer(listed(format_), styled=format_ == "table")
        return
    request = request_of(given)
    kinds = ["theory"] if plot else []
    measure_and_show(experiment("theory"), request, format_, kinds=kinds, gates=gates, junit=junit)


def request_of(given: dict[str, Any]) -> Any:
    """What the parsed options ask for."""
    from ..sweep import TheoryRequest

    weights = weights_from(given)
    return TheoryRequest(source=source_from(given), weights=weights, origin=origins(), **given)


def listed(format_: str) -> str:
    """Every theorem: its name, paper, what it says and its cost."""
    import textwrap

    from ..tables.view import flat_view
    from ..theorems import THEOREMS

    if format_ == "table":
        cards = []
        for one in THEOREMS.values():
            about = " · asked of every --method" if one.per_method else ""
            lines = [one.paper, one.says, f"cost: {one.cost}{about}"]
            told = [part for line in lines for part in textwrap.wrap(line, 96, subsequent_indent="  ")]
            cards.append("\n".join([one.name, *(f"  {line}" for line in told)]))
        return "\n\n".join(cards)
    rows = [
        {"theorem": one.name, "paper": one.paper, "says": one.says, "cost": one.cost, "per_method": one.per_method}
        for one in THEOREMS.values()
    ]
    return flat_view("theorems", rows).text(format_)
