"""Metrics compare an operator with the exact one; each is a number per head, in float64."""

from .duplicates import repeated_rows
from .error import OUTPUT_METRICS, lower_bound, output_errors

__all__ = ["OUTPUT_METRICS", "lower_bound", "output_errors", "repeated_rows"]
