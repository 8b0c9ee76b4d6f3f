"""The names of formats of the output on stdout."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UsageError, unknown

FORMATS = ("table", "json", "jsonl", "csv", "md", "latex", "github")  # of every command
LLAMACPP = "llamacpp"  # of commands whose catalogue has a writer for it


def check_format(format: str, columns: Sequence[str] = (), own: Sequence[str] = ()) -> None:
    """Refuse an unknown format, and columns of a format that has none.

    Args:
        own: further formats that a command's catalogue has.
    """
    if format not in (*FORMATS, *own):
        raise unknown("format", format, (*FORMATS, *own))
    if columns and format in ("json", "jsonl", *own):
        raise UsageError(f"--columns applies to tables and csv; {format} has every field")
