"""``attnprobe cache``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import debug_option

if TYPE_CHECKING:
    from ..inputs.cache import Cache

EPILOG = """\b
In Python:
  from attnprobe.inputs.cache import default_cache
  for entry in default_cache().entries():
      print(entry.path, entry.size)"""


@click.group("cache", invoke_without_command=True, epilog=EPILOG)
@debug_option
@click.pass_context
def cache(context: click.Context, debug: bool) -> None:
    """List the Q, K and V and the converted models in the cache, or remove them.

    A run stores the Q, K and V that it captures. The next run on the same weights, text, tokenizer, layer, window and n
    reads them from the cache and does not load transformers. A GGUF file is converted once; its model is stored beside
    them. ATTNPROBE_CACHE_DIR is the folder. ATTNPROBE_CACHE_SIZE is the largest size of Q, K and V, and of models
    (default 4GiB; 0 turns the cache off). A run with `--no-cache` does not use it.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_entries)


@cache.command("list")
@debug_option
def list_entries(debug: bool = False) -> None:
    """Show the folders, their sizes and their entries, the last used first."""
    from datetime import datetime

    from .streams import answer

    for cache in _caches():
        entries = cache.entries()
        total = sum(entry.size for entry in entries)
        answer(f"{cache.folder}: {_mib(total)} of {_mib(cache.largest)} in {len(entries)} entries")
        for entry in reversed(entries):
            used = datetime.fromtimestamp(entry.used).isoformat(" ", "minutes")
            answer(f"{used}  {_mib(entry.size):>12}  {cache.label(entry) or 'damaged, or of another version'}")


@cache.command("clear")
@debug_option
def clear(debug: bool) -> None:
    """Remove all entries, and unfinished files of killed processes."""
    from .streams import answer

    for cache in _caches():
        answer(f"{cache.folder}: {cache.clear()} entries removed")


def _caches() -> list[Cache]:
    from ..inputs.cache import default_cache

    models = default_cache(kind="models")
    return [default_cache(), *([models] if models.entries() or models.unfinished() else [])]


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
