"""Writers: text of grids for a terminal, Markdown and LaTeX, and of frames as CSV and JSON. Each takes any table."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import UsageError, unknown
from .data import csv, json_rows, jsonl
from .latex import latex
from .markdown import markdown
from .terminal import terminal

__all__ = ["FORMATS", "check_format", "csv", "json_rows", "jsonl", "latex", "markdown", "terminal"]

FORMATS = ("table", "json", "jsonl", "csv", "md", "latex", "github")


def check_format(format: str, columns: Sequence[str] = ()) -> None:
    """Refuse an unknown format, and columns of a format that has none."""
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if columns and format in ("json", "jsonl"):
        raise UsageError(f"--columns applies to tables and csv; {format} has every field")
