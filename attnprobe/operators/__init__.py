"""Implicit n x n attention matrices: small classes that compose.

For fixed Q, K and draws an approximation is linear in V, so it is an n x n operator. An operator gives products,
products with its transpose, and dense blocks of rows. It does not store the n x n matrix.
"""

from .attention import GaussianAttention, SoftmaxAttention, Streamed, UnnormalisedAttention
from .base import Operator
from .blocks import BLOCK_MEMORY, block_rows, block_shape, head_blocks, row_blocks, row_groups
from .causal import CausalFeatures
from .compose import Padded, RowOverride, Rows, Scaled, Stacked, Sum
from .fused import is_fused, kernels
from .mosaic import Mosaic
from .precision import full_precision, ordered_sums
from .products import product
from .spans import SPAN, in_spans, located
from .sparse import Columns, Sparse, sparse_blocks
from .structured import Dense, Identity, LowRank, RankOne
from .threads import one_thread, side_by_side
from .windowed import Windows, window_sums, windowed_features

__all__ = [
    "BLOCK_MEMORY",
    "SPAN",
    "CausalFeatures",
    "Columns",
    "Dense",
    "GaussianAttention",
    "Identity",
    "LowRank",
    "Mosaic",
    "Operator",
    "Padded",
    "RankOne",
    "RowOverride",
    "Rows",
    "Scaled",
    "SoftmaxAttention",
    "Sparse",
    "Stacked",
    "Streamed",
    "Sum",
    "UnnormalisedAttention",
    "Windows",
    "block_rows",
    "block_shape",
    "full_precision",
    "head_blocks",
    "in_spans",
    "is_fused",
    "kernels",
    "located",
    "one_thread",
    "ordered_sums",
    "product",
    "row_blocks",
    "row_groups",
    "side_by_side",
    "sparse_blocks",
    "window_sums",
    "windowed_features",
]
