"""Metrics compare an operator with the exact one. Most are float64 numbers of each head, (h,)."""

from .condition import (
    CORES,
    EXACT,
    Core,
    core_matrices,
    exact_matrices,
    inverse_gradient,
    iteration_gradient,
    lemma3_interval,
    schulz_residuals,
    sensitivity,
)
from .exact_rows import ExactRows
from .inputs import INPUT_STATISTICS, input_statistics, repeated_rows
from .kernel import KERNEL_METRICS, ROW_TOLERANCES, KernelReference, kernel_errors
from .maps import MAP_BLOCKS, attention_maps
from .matrix import MATRIX_METRICS, ExactNorms, MatrixErrors, exact_norms, matrix_errors, shared_matrix_errors
from .output import OUTPUT_METRICS, ExactOutput, lower_bound, output_errors
from .residual import residual_errors
from .row_statistics import OVER_ROWS, PROFILED, neighbour_overlap, over_rows, position_profile, selection_overlap
from .rows import ROW_METRICS, row_metrics
from .spectrum import Spectrum, attention_matrix, spectra

__all__ = [
    "CORES",
    "EXACT",
    "INPUT_STATISTICS",
    "KERNEL_METRICS",
    "MAP_BLOCKS",
    "MATRIX_METRICS",
    "OUTPUT_METRICS",
    "OVER_ROWS",
    "PROFILED",
    "ROW_METRICS",
    "ROW_TOLERANCES",
    "Core",
    "ExactNorms",
    "ExactOutput",
    "ExactRows",
    "KernelReference",
    "MatrixErrors",
    "Spectrum",
    "attention_maps",
    "attention_matrix",
    "core_matrices",
    "exact_matrices",
    "exact_norms",
    "input_statistics",
    "inverse_gradient",
    "iteration_gradient",
    "kernel_errors",
    "lemma3_interval",
    "lower_bound",
    "matrix_errors",
    "neighbour_overlap",
    "output_errors",
    "repeated_rows",
    "residual_errors",
    "over_rows",
    "position_profile",
    "row_metrics",
    "selection_overlap",
    "schulz_residuals",
    "sensitivity",
    "shared_matrix_errors",
    "spectra",
]
