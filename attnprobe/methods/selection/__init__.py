"""Methods that select the keys of each query, or of all queries, and attend to them exactly."""

from . import block_topk, quest, topp  # noqa: F401  (each registers itself)
