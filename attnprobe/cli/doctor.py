"""``attnprobe doctor``."""

from __future__ import annotations

import click

from .options import debug_option

EPILOG = """\b
In Python:
  from attnprobe.sources import describe_defaults, survey
  describe_defaults()
  survey("minilm")"""


@click.command("doctor", epilog=EPILOG)
@click.option("--model", metavar="ID|DIR", help="Show what would be captured of a model: hub id, directory, minilm.")
@click.option(
    "--weights", default="pretrained", show_default=True, help="Weights of --model: pretrained or initialized."
)
@debug_option
def command(model: str | None, weights: str, debug: bool) -> None:
    """Show devices, versions, threads, what the hub and the caches hold, and what the defaults resolve to.

    With --model: every attention module by name, with its heads, scale and mask, how exactly it is captured, and
    whether Q, K and V alone describe it, as methods need, or why it is refused.
    """
    from .streams import answer

    if model is not None:
        from ..sources import survey

        for line in survey(model, weights):
            answer(line)
        return
    from ..run.provenance import examine

    width = 12
    for heading, lines in examine().items():
        for position, line in enumerate(lines or ["none"]):
            answer(f"{heading if position == 0 else '':{width}}{line}")
