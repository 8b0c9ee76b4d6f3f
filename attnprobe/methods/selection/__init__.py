"""Methods that select the keys of each query, or of all queries, and attend to them exactly."""

from . import block_topk, expected, h2o, keydiff, knorm, quest, snapkv, topp, tova  # noqa: F401  (each registers itself)
