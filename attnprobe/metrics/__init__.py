"""Metrics compare an operator with the exact one; each is a number per head, in float64."""

from .duplicates import repeated_rows
from .error import OUTPUT_METRICS, lower_bound, output_errors
from .matrix import MATRIX_METRICS, MatrixErrors, matrix_errors, shared_matrix_errors
from .spectrum import Spectrum, attention_matrix, spectra

__all__ = [
    "MATRIX_METRICS", "MatrixErrors", "OUTPUT_METRICS", "Spectrum", "attention_matrix", "lower_bound",
    "matrix_errors", "output_errors", "repeated_rows", "shared_matrix_errors", "spectra",
]  # fmt: skip
