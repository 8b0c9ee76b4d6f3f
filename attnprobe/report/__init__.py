"""From records to what is read: rows, gates, tables and figures. Nothing here measures anything."""

from __future__ import annotations

from .bench import bench_rows, bench_summary
from .bench_gates import bench_judged
from .bench_tables import BenchReport
from .budget import budget_files, budget_rows, budget_summary
from .budget_figures import budget_figures
from .comparison import compare_runs
from .comparison_tables import comparison_line
from .condition import condition_rows, conditions_summary, render_conditions
from .condition_figures import condition_figures
from .conformance import conformance_table
from .console import Header
from .cost_figure import cost_figure
from .figures import error_figure
from .formats import FORMATS, render
from .gate import METRICS as GATED_METRICS
from .gate import check
from .gate_forms import parse_gate, parse_gates
from .gate_plan import hopeless
from .gate_results import gates_table, junit_xml
from .growth import exponent, growth
from .head_figure import head_figures
from .inject import inject_rows, inject_summary
from .inject_figures import inject_figures
from .inputs import input_lines, input_rows
from .maps import map_figures
from .page import html_page
from .paper_figure import paper_figure
from .rebuild import PLOTS, Part, parts
from .reference import Reference, read_reference
from .run import Run, open_run
from .sources import source_labels
from .spectra import spectrum_rows
from .spectrum_figures import spectrum_figures
from .stability import StabilityReport, stability_rows, stability_summary
from .statistics import rank_correlation, summarise
from .tables import plan_table, timings_table
from .theory import theory_rows, theory_summary
from .theory_figures import theory_figures

__all__ = [
    "BenchReport",
    "FORMATS",
    "GATED_METRICS",
    "PLOTS",
    "Header",
    "bench_judged",
    "bench_rows",
    "bench_summary",
    "budget_figures",
    "budget_files",
    "budget_rows",
    "budget_summary",
    "check",
    "compare_runs",
    "comparison_line",
    "Part",
    "Reference",
    "Run",
    "StabilityReport",
    "condition_figures",
    "condition_rows",
    "conditions_summary",
    "conformance_table",
    "cost_figure",
    "error_figure",
    "exponent",
    "gates_table",
    "junit_xml",
    "growth",
    "head_figures",
    "hopeless",
    "html_page",
    "inject_figures",
    "inject_rows",
    "inject_summary",
    "input_lines",
    "input_rows",
    "map_figures",
    "open_run",
    "paper_figure",
    "parse_gate",
    "parse_gates",
    "plan_table",
    "parts",
    "rank_correlation",
    "read_reference",
    "render",
    "render_conditions",
    "spectrum_figures",
    "spectrum_rows",
    "source_labels",
    "stability_rows",
    "stability_summary",
    "summarise",
    "theory_figures",
    "theory_rows",
    "theory_summary",
    "timings_table",
]
