"""Methods that replace the kernel by a product of features."""

from . import efficient, linear, performer  # noqa: F401  (each registers itself)
