"""``attnprobe extract`` and ``attnprobe select``: files of Q, K and V, and of the keys that a method selects."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..run.option import options_of
from ..run.topics.reading import Layers, SomeQueries, Source
from .options import debug_option, taking

if TYPE_CHECKING:
    from .. import inputs as sources

EXTRACT_EPILOG = """\b
In Python:
  from attnprobe import load_qkv
  qkv = load_qkv(qkv="qkv.safetensors", n=1024, layer=0)"""


def file_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of its file, and of the layers, windows and length that it writes."""
    for option in (
        click.option("--windows", default=1, show_default=True, help="Number of text windows."),
        click.option("--layer", metavar="LIST", help=options_of(Layers)[0].help),
        click.option("--n", default=512, show_default=True, help="Sequence length."),
        click.option("--force", is_flag=True, help="Replace a file that exists."),
        click.option("--out", required=True, metavar="FILE", help="The safetensors file to write."),
    ):
        function = option(function)
    return function


@click.command("extract", epilog=EXTRACT_EPILOG)
@click.option(
    "--pack",
    metavar="smoke|full",
    help="Write cases that test a kernel, for `attnprobe accept`: 2 MiB or 13 MiB. Only --out and --force go with it.",
)
@file_options
@taking([*options_of(SomeQueries), *options_of(Source)])
@debug_option
def extract(
    pack: str | None, out: str, force: bool, n: int, layer: str | None, windows: int, debug: bool, **given: Any
) -> None:
    """Write Q, K and V of the chosen layers to a safetensors file, with model, text and hashes in its metadata.

    Measuring commands read the file with --qkv FILE. With --queries it has the rows of some queries, and all queries
    beside them, for methods that choose keys by earlier ones.
    """
    from ..inputs import SourceSpec, resolve, save_qkv
    from ..run.sources import layers_of
    from .progress import progress_bar
    from .streams import note

    if pack is not None:
        _extract_pack(pack, out, force)
        return
    numbers = options_of(Layers)[0].value(layer, "layer")
    spec = SourceSpec(**given)
    check_out(out, force, spec.qkv)
    with progress_bar() as (progress, notify):
        source = resolve(spec, notify=notify)
        layers = layers_of(numbers, source)
        _check(source, n, windows, layers, notify)
        progress(0, 1, f"reading n={n}")
        save_qkv(out, source, n, layers, windows)
    note(f"wrote Q, K, V of layer {', '.join(map(str, layers))}, {windows} window(s), n={n}, to {out}")


def _extract_pack(name: str, out: str, force: bool) -> None:
    """Write a pack of cases."""
    from ..errors import UsageError
    from ..testing.packs import made, save_pack
    from .options import origins
    from .streams import note

    for other, origin in origins().items():
        if origin == "command line" and other not in ("pack", "out", "force", "debug"):
            raise UsageError(f"--pack {name} has its own inputs: drop --{other.replace('_', '-')}")
    check_out(out, force, None)
    pack = made(name)
    save_pack(pack, out)
    note(f"wrote pack {pack.name} {pack.id}, {len(pack.cases)} cases, to {out}")


def _check(source: sources.Source, n: int, windows: int, layers: Sequence[int], notify: Callable[[str], None]) -> None:
    """Refuse what `Source.check` refuses, and note the fallbacks that so many tokens need."""
    known = [*source.facts["fallback"]]
    source.check(n, windows, layers)
    for line in source.facts["fallback"][len(known) :]:
        notify(line)


def check_out(out: str, force: bool, qkv: str | os.PathLike[str] | None) -> None:
    """Refuse to write over a file that exists without ``force``, over the ``--qkv`` file, or through a link."""
    from ..errors import UsageError

    if os.path.islink(os.path.expanduser(out)):
        raise UsageError(f"--out {out} is a symbolic link, which is not followed: choose another name")
    if not os.path.exists(out):
        return
    if qkv is not None and os.path.exists(qkv) and os.path.samefile(out, qkv):
        raise UsageError(f"--out {out} is the --qkv file itself: choose another name")
    if os.path.isfile(out) and not force:
        raise UsageError(f"{out} exists: choose another name, or --force")


SELECT_EPILOG = """\b
In Python:
  from attnprobe import approximate, load_qkv
  from attnprobe.methods.selection.files import save_selection
  qkv = load_qkv(qkv="qkv.safetensors", n=1024, layer=0)
  save_selection("keys.safetensors", [(qkv, approximate("quest", qkv, 128))])"""


@click.command("select", epilog=SELECT_EPILOG)
@click.argument("method")
@file_options
@click.option("--d", default=128, show_default=True, help="Budget: keys of a row.")
@click.option("--seed", default=0, show_default=True, help="Seed of the method's draws.")
@taking(options_of(SomeQueries))
@taking(options_of(Source))
@debug_option
def select(
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
    from ..inputs import SourceSpec, resolve
    from ..methods import approximate
    from ..methods.selection.files import save_selection
    from ..run.plan import parse_methods
    from ..run.sources import layers_of, left_out, tell_left_out
    from .progress import progress_bar
    from .streams import note

    requests = parse_methods([method], "softmax")
    if len(requests) != 1:
        raise UsageError(f"select takes one method, and {method} names {len(requests)}; name one")
    [request] = requests
    spec = SourceSpec(**given)
    check_out(out, force, spec.qkv)
    pairs = []
    with progress_bar() as (progress, notify):
        source = resolve(spec, notify=notify)
        named = options_of(Layers)[0].value(layer, "layer")
        # a method without a form for sliding windows selects keys in the other layers
        without = () if request.entry.takes_windows else left_out(named, source)
        layers = tuple(number for number in layers_of(named, source) if number not in without)
        tell_left_out(named, source, requests, notify)
        _check(source, n, windows, layers, notify)
        for window in range(windows):
            progress(window, windows, f"selecting, n={n}")
            for number, qkv in source.qkv(n, layers, window).items():
                try:
                    pairs.append((qkv, approximate(request.entry, qkv, d, seed=seed, **request.options)))
                except Unsupported as error:
                    raise Unsupported(f"layer {number}: {error}") from error
    save_selection(out, pairs, source=f"{method} d={d} seed={seed}")
    note(f"wrote the keys of layer {', '.join(map(str, layers))}, {windows} window(s), n={n}, to {out}")
