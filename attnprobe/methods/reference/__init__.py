"""Exact attention and the yardsticks of the methods."""

from . import exact_attention, svd, vmean  # noqa: F401  (each registers itself)
