"""Methods that attend to a small, possibly weighted, subset of the keys."""

from . import thinformer, wildcat  # noqa: F401  (each registers itself)
