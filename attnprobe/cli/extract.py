"""``attnprobe extract``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from ..run.option import options_of
from ..run.topics.reading import Layers, SomeQueries, Source
from .options import debug_option, taking

EPILOG = """\b
In Python:
  from attnprobe import load_qkv
  qkv = load_qkv(qkv="qkv.safetensors", n=1024, layer=0)"""


def file_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command take the file that it writes, and the places in model and text that it writes of."""
    for option in (
        click.option("--windows", default=1, show_default=True, help="Number of text windows."),
        click.option("--layer", metavar="LIST", help=options_of(Layers)[0].help),
        click.option("--n", default=512, show_default=True, help="Sequence length."),
        click.option("--force", is_flag=True, help="Replace a file that exists."),
        click.option("--out", required=True, metavar="FILE", help="The safetensors file to write."),
    ):
        function = option(function)
    return function


@click.command("extract", epilog=EPILOG)
@file_options
@taking([*options_of(SomeQueries), *options_of(Source)])
@debug_option
def command(out: str, force: bool, n: int, layer: str | None, windows: int, debug: bool, **given: Any) -> None:
    """Write Q, K and V of the chosen layers to a safetensors file, with model, text and hashes in its metadata.

    Measuring commands read the file with --qkv FILE. With --queries it has the rows of some queries, and all queries
    beside them, for methods that choose keys by earlier ones.
    """
    from ..run.sources import layers_of
    from ..sources import SourceSpec, resolve, save_qkv
    from .progress import progress_bar
    from .streams import note

    numbers = options_of(Layers)[0].value(layer, "layer")
    spec = SourceSpec(**given)
    check_out(out, force, spec.qkv)
    with progress_bar() as (progress, notify):
        source = resolve(spec, notify=notify)
        layers = layers_of(numbers, source)
        source.check(n, windows, layers)
        progress(0, 1, f"reading n={n}")
        save_qkv(out, source, n, layers, windows)
    note(f"wrote Q, K, V of layer {', '.join(map(str, layers))}, {windows} window(s), n={n}, to {out}")


def check_out(out: str, force: bool, qkv: str | os.PathLike[str] | None) -> None:
    """Refuse to write over a file that exists without ``force``, over the ``--qkv`` file, or through a link.

    Raises:
        UsageError: it names the file.
    """
    from ..errors import UsageError

    if os.path.islink(os.path.expanduser(out)):
        raise UsageError(f"--out {out} is a symbolic link, which is not followed: choose another name")
    if not os.path.exists(out):
        return
    if qkv is not None and os.path.exists(qkv) and os.path.samefile(out, qkv):
        raise UsageError(f"--out {out} is the --qkv file itself: choose another name")
    if os.path.isfile(out) and not force:
        raise UsageError(f"{out} exists: choose another name, or --force")
