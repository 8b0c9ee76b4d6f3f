"""From records to what is read: rows, gates, tables and figures. Nothing here measures anything."""

from __future__ import annotations

from ..compare.runs import compare_runs
from ..compare.view import comparison_line
from ..experiments.bench.gates import bench_judged
from ..experiments.bench.growth import exponent, growth
from ..experiments.bench.rows import bench_rows, bench_summary
from ..experiments.bench.view import BenchReport
from ..experiments.budget.figures import budget_figures
from ..experiments.budget.view import budget_files, budget_rows, budget_summary
from ..experiments.condition.figures import condition_figures
from ..experiments.condition.view import condition_rows, conditions_summary, render_conditions
from ..experiments.error.cost_figure import cost_figure
from ..experiments.error.maps_figure import map_figures
from ..experiments.error.paper_figure import paper_figure
from ..experiments.error.papers import Reference, read_reference
from ..experiments.error.rows import summarise
from ..experiments.inject.figures import inject_figures
from ..experiments.inject.view import inject_rows, inject_summary
from ..experiments.spectrum.figures import spectrum_figures
from ..experiments.spectrum.view import spectrum_rows
from ..experiments.stability.view import StabilityReport, stability_rows, stability_summary
from ..experiments.theory.figures import theory_figures
from ..experiments.theory.view import theory_rows, theory_summary
from ..figures.heat import head_figures
from ..figures.kit import error_figure
from ..gates.check import METRICS as GATED_METRICS
from ..gates.check import check
from ..gates.parse import parse_gate, parse_gates
from ..gates.plan import hopeless
from ..gates.results import gates_table, junit_xml
from ..tables.conformance import conformance_table
from ..tables.console import Header
from ..tables.formats import FORMATS, render
from ..tables.inputs import input_lines, input_rows
from ..tables.labels import source_labels
from ..tables.statistics import rank_correlation
from ..tables.terminal import plan_table, timings_table
from .page import html_page
from .parts import PLOTS, Part, parts
from .run import Run, open_run

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
