"""``attnprobe doctor``."""

from __future__ import annotations

import click

from .options import debug_option

EPILOG = """\b
In Python:
  from attnprobe.inputs import describe_defaults, survey
  describe_defaults()
  survey("minilm")"""


@click.command("doctor", epilog=EPILOG)
@click.option(
    "--model",
    metavar="ID|DIR|FILE.gguf|minilm|smollm2",
    help="List the attention modules of a model: a hub id, a directory, a GGUF file, or packaged weights.",
)
@click.option(
    "--weights", default="pretrained", show_default=True, help="Weights of --model: pretrained or initialized."
)
@debug_option
def doctor(model: str | None, weights: str, debug: bool) -> None:
    """Show devices, versions, threads, the hub, its cache, and the default model and text.

    With --model: list every attention module with its heads, scale, mask, bias, cap, sinks and RoPE, where it was
    captured and with what error, and which methods can run on it.
    """
    from .streams import answer

    # a survey reads the model, which the plain report does not need
    if model is not None:
        from ..inputs import survey
        from ..methods.forms import by_form

        for line in survey(model, weights, by_form):
            answer(line)
        return
    from ..run.provenance import examine

    width = 12
    for heading, lines in examine().items():
        for position, line in enumerate(lines):
            answer(f"{heading if position == 0 else '':{width}}{line}")
