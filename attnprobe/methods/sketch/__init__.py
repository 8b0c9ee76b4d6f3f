"""Methods that sketch the keys and values to d rows."""

from . import amm, linformer, linformer_jlt  # noqa: F401  (each registers itself)
