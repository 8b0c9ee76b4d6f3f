"""``attnprobe inject``."""

from __future__ import annotations

from typing import Any

import click

from .options import (
    debug_option,
    elsewhere_options,
    format_option,
    gate_options,
    model_options,
    origins,
    refuse_contradictions,
    refuse_unknown_format,
    run_options,
    source_from,
    statistics_option,
    weights_from,
)

EPILOG = """\b
Examples:
  attnprobe inject --model minilm --method skyformer,nystromformer --d 32,128 --per-layer --plot
  attnprobe inject --model DIR --method window,performer --layer 0-5 --n 1024 --windows 8 --batch 4
  attnprobe inject --model minilm --budgets budgets.json
\b
In Python:
  from attnprobe import injected
  with injected(model, "skyformer", d=128, layer="0-5"):
      model(**batch)
\b
--fail-above takes drift, logits_drift, kl, loss, loss_change, perplexity, perplexity_change and
local_error, and mean, se, median, p10, p90 or max. Gates of a sweep's file also take
top1_agreement and embedding_cosine with min:
  --fail-above drift=0.2
\b
Exit codes: 0 fine, skipped rows included; 1 a gate failed; 2 usage, an impossible value, or no
method that the model's attention has a form for; 3 a named source or device is absent or refused;
4 some cells failed or diverged; 130 interrupted."""


@click.command("inject", epilog=EPILOG)
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("skyformer",),
    metavar="NAME[:k=v,…]",
    help="Methods, repeatable and comma-separated; all is every registered method. [default: skyformer]",
)
@click.option("--n", metavar="LIST", help="Sequence lengths, up to the model's positions. [default: 512]")
@click.option("--d", default="128", show_default=True, metavar="LIST", help="Budgets, such as 32,128.")
@click.option(
    "--budgets",
    metavar="FILE",
    help="Budgets of a method by layer and head, as `attnprobe budget` writes them, instead of --d. Your own method "
    "runs where --method names it too.",
)
@click.option(
    "--layer",
    default="all",
    show_default=True,
    metavar="LIST",
    help="The layers whose attention is replaced, together: 0,5 or 0-5 or all.",
)
@click.option("--per-layer", is_flag=True, help="Also replace each of them by itself.")
@click.option("--windows", default=1, show_default=True, help="How many windows of the text.")
@click.option(
    "--lines",
    is_flag=True,
    help="Read lines of the text, of n/2 tokens and more and cut at n, instead of windows of n tokens.",
)
@click.option("--batch", default=1, show_default=True, help="Windows in one forward; lines are padded.")
@click.option(
    "--seed",
    default=0,
    show_default=True,
    help="Seed of the methods' draws, and of the hidden words of a masked-LM loss.",
)
@click.option("--repeats", default=1, show_default=True, help="Seeds seed … seed+repeats-1 for random methods.")
@click.option(
    "--model-dtype",
    default="float32",
    show_default=True,
    metavar="auto|float64|float32|bfloat16|float16",
    help="The dtype of the model, auto as its configuration states; methods run in float32 at least.",
)
@model_options
@statistics_option
@run_options
@elsewhere_options
@format_option
@click.option(
    "--plot",
    is_flag=True,
    help="Draw the profile of layers, and local error against drift, into the run's "
    "figures/ (SVG and PNG); they need --per-layer.",
)
@gate_options()
@debug_option
def command(format_: str, plot: bool, gates: tuple[str, ...], junit: str | None, debug: bool, **given: Any) -> None:
    """Run a model with a method in place of its attention, and measure how far it drifts from itself.

    The drift is the relative error of the last hidden states. Where the weights hold a head that predicts words also
    that of the logits, KL divergence, agreement of the likeliest word and the loss, of causal models on the next word
    and of masked ones on a hidden 15 % of the words; for encoders the cosine of the mean-pooled embedding. Beside each
    drift stands the local error of the method on the Q, K and V of the layers that it replaces.
    """
    refuse_contradictions()
    from ..experiments import experiment
    from .measuring import measure_and_show

    refuse_unknown_format(format_)
    request = request_of(given)
    kinds = ["inject"] if plot else []
    measure_and_show(experiment("inject"), request, format_, kinds=kinds, gates=gates, junit=junit)


def request_of(given: dict[str, Any]) -> Any:
    """What the parsed options ask for."""
    from ..sweep import InjectRequest

    weights = weights_from(given)
    given |= {"qkv": None, "positions": "segment"}
    given["dtype"] = "float64" if given["model_dtype"] == "float64" else "float32"  # that methods run in
    return InjectRequest(source=source_from(given), weights=weights, origin=origins(), **given)
