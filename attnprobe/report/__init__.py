"""From records to what is read: rows, gates, tables and figures. Nothing here measures anything."""

from __future__ import annotations

from .comparison import compare_runs
from .comparison_tables import comparison_line
from .condition import condition_rows, conditions_summary, rank_correlation, render_conditions
from .condition_figures import condition_figures
from .console import Header
from .figures import error_figure
from .formats import FORMATS, render
from .gate import check
from .gate_forms import parse_gate, parse_gates
from .gate_results import gates_table, junit_xml
from .maps import map_figures
from .spectra import spectrum_rows
from .spectrum_figures import spectrum_figures
from .statistics import summarise
from .tables import plan_table, timings_table

__all__ = [
    "FORMATS",
    "Header",
    "check",
    "compare_runs",
    "comparison_line",
    "condition_figures",
    "condition_rows",
    "conditions_summary",
    "error_figure",
    "gates_table",
    "junit_xml",
    "map_figures",
    "parse_gate",
    "parse_gates",
    "plan_table",
    "rank_correlation",
    "render",
    "render_conditions",
    "spectrum_figures",
    "spectrum_rows",
    "summarise",
    "timings_table",
]
