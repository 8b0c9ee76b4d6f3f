"""Methods that reduce the keys and values to d rows by a random sketch or sample."""

from . import amm, linformer, linformer_jlt  # noqa: F401  (each registers itself)
