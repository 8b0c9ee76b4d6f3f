"""Caches whose keys and values are stored in few bits: attention to all tokens, as they are read back."""

from . import fp8, ggml, kivi, microscaling, turboquant  # noqa: F401  (each registers itself)
