"""``attnprobe cache``."""

from __future__ import annotations

import click

from .options import debug_option

EPILOG = """\b
In Python:
  from attnprobe.sources.cache import default_cache
  for entry in default_cache().entries():
      print(entry.path, entry.size)"""


@click.group("cache", invoke_without_command=True, epilog=EPILOG)
@debug_option
@click.pass_context
def command(context: click.Context, debug: bool) -> None:
    """List the Q, K and V in the cache, or remove them.

    A run stores the Q, K and V that it captures. The next run on the same weights, text, tokenizer, layer, window and n
    reads them from the cache and does not load transformers. ATTNPROBE_CACHE_DIR is its folder. ATTNPROBE_CACHE_SIZE is
    its largest size (default 4GiB; 0 turns it off). A run with `--no-cache` does not use it.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_entries)


@command.command("list")
@debug_option
def list_entries(debug: bool = False) -> None:
    """Show the folder, its size and its entries, the last used first."""
    from datetime import datetime

    from ..sources.cache import default_cache
    from .streams import answer

    cache = default_cache()
    entries = cache.entries()
    total = sum(entry.size for entry in entries)
    answer(f"{cache.folder}: {_mib(total)} of {_mib(cache.largest)} in {len(entries)} entries")
    for entry in reversed(entries):
        used = datetime.fromtimestamp(entry.used).isoformat(" ", "minutes")
        answer(f"{used}  {_mib(entry.size):>12}  {cache.label(entry) or 'damaged, or of another version'}")


@command.command("clear")
@debug_option
def clear(debug: bool) -> None:
    """Remove all entries."""
    from ..sources.cache import default_cache
    from .streams import answer

    cache = default_cache()
    answer(f"{cache.folder}: {cache.clear()} entries removed")


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
