"""From records to what is read: rows, gates, tables and figures. Nothing here measures anything."""

from __future__ import annotations

from .figures import error_figure
from .formats import FORMATS, render
from .gate import check_gates, parse_gate
from .spectra import spectrum_rows
from .spectrum_figures import spectrum_figures
from .statistics import summarise
from .tables import Header, timings_table

__all__ = [
    "FORMATS",
    "Header",
    "check_gates",
    "error_figure",
    "parse_gate",
    "render",
    "spectrum_figures",
    "spectrum_rows",
    "summarise",
    "timings_table",
]
