"""``attnprobe doctor``."""

from __future__ import annotations

import click

from .options import debug_option

EPILOG = """\b
In Python:
  from attnprobe.sources import describe_defaults
  describe_defaults()"""


@click.command("doctor", epilog=EPILOG)
@debug_option
def command(debug: bool) -> None:
    """Show devices, versions, threads, what the hub and the caches hold, and what the defaults resolve to."""
    from ..installation import examine

    width = 12
    for heading, lines in examine().items():
        for position, line in enumerate(lines or ["none"]):
            click.echo(f"{heading if position == 0 else '':{width}}{line}")
