"""``attnprobe select``."""

from __future__ import annotations

from typing import Any

import click

from ..run.option import options_of
from ..run.topics.reading import Layers, SomeQueries, Source
from .extract import check_out, file_options
from .names import complete_methods
from .options import debug_option, taking

EPILOG = """\b
In Python:
  from attnprobe import approximate, load_qkv
  from attnprobe.methods.selection.files import save_selection
  qkv = load_qkv(qkv="qkv.safetensors", n=1024, layer=0)
  save_selection("keys.safetensors", [(qkv, approximate("quest", qkv, 128))])"""


@click.command("select", epilog=EPILOG)
@click.argument("method", shell_complete=complete_methods)
@file_options
@click.option("--d", default=128, show_default=True, help="Budget: keys of a row.")
@click.option("--seed", default=0, show_default=True, help="Seed of the method's draws.")
@taking(options_of(SomeQueries))
@taking(options_of(Source))
@debug_option
def command(
    method: str,
    out: str,
    force: bool,
    d: int,
    n: int,
    layer: str | None,
    windows: int,
    seed: int,
    debug: bool,
    **given: Any,
) -> None:
    """Write the keys that METHOD selects for each query to a safetensors file.

    METHOD is a sparse method with its options, such as quest:page=32. `attnprobe error selection:FILE` judges the file.
    """
    from ..errors import Unsupported, UsageError
    from ..methods import approximate
    from ..methods.selection.files import save_selection
    from ..run.plan import parse_methods
    from ..run.sources import layers_of, left_out, tell_left_out
    from ..sources import SourceSpec, resolve
    from .progress import progress_bar
    from .streams import note

    requests = parse_methods([method], "softmax")
    if len(requests) != 1:
        raise UsageError(f"select: {method} names {len(requests)} methods: name one")
    [request] = requests
    spec = SourceSpec(**given)
    check_out(out, force, spec.qkv)
    pairs = []
    with progress_bar() as (progress, notify):
        source = resolve(spec, notify=notify)
        named = options_of(Layers)[0].value(layer, "layer")
        without = () if request.entry.takes_windows else left_out(named, source)
        layers = tuple(number for number in layers_of(named, source) if number not in without)
        tell_left_out(named, source, requests, notify)
        source.check(n, windows, layers)
        for window in range(windows):
            progress(window, windows, f"selecting, n={n}")
            for number, qkv in source.qkv(n, layers, window).items():
                try:
                    pairs.append((qkv, approximate(request.entry, qkv, d, seed=seed, **request.options)))
                except Unsupported as error:
                    raise Unsupported(f"layer {number}: {error}") from error
    save_selection(out, pairs, source=f"{method} d={d} seed={seed}")
    note(f"wrote the keys of layer {', '.join(map(str, layers))}, {windows} window(s), n={n}, to {out}")
