"""From records to what is read: rows, gates, tables and figures. Nothing here measures anything."""

from __future__ import annotations

from .figures import error_figure
from .formats import FORMATS, render
from .gate import check_gates, parse_gate
from .statistics import summarise
from .tables import Header, timings_table

__all__ = [
    "FORMATS",
    "Header",
    "check_gates",
    "error_figure",
    "parse_gate",
    "render",
    "summarise",
    "timings_table",
]
