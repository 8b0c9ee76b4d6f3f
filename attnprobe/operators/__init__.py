"""Implicit n x n attention matrices: small classes that compose.

For fixed Q, K and draws an approximation is linear in V, so it is an n x n operator. An operator gives products,
products with its transpose, and dense blocks of rows. It does not store the n x n matrix.
"""

from .attention import GaussianAttention, SoftmaxAttention, Streamed, UnnormalisedAttention
from .base import Operator
from .causal import CausalFeatures
from .compose import Mosaic, Padded, RowOverride, Rows, Scaled, Stacked, Sum
from .sparse import Columns, Sparse
from .structured import Dense, Identity, LowRank, RankOne
from .windowed import Windows

__all__ = [
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
]
