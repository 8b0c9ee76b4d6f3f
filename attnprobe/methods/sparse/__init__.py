"""Methods with a fixed or exact sparse pattern of entries."""

from . import bigbird, longformer, topk, tri_shape, window  # noqa: F401  (each registers itself)
