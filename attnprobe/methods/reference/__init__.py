"""Exact attention, and the yardsticks that methods are compared with."""

from . import exact_attention, svd, vmean  # noqa: F401  (each registers itself)
