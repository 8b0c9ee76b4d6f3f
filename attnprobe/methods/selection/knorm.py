"""It selects the keys of least norm (Devoto et al. 2024)."""

from __future__ import annotations

from torch import Tensor

from ...operators.groups import repeated
from ...operators.linalg.norms import row_norms
from ...qkv import QKV
from ...rng import Streams
from .base import Selection, working
from .subsets import Allocation, check_subset, subset, subset_selector


@subset_selector(
    name="knorm",
    paper="Devoto et al., L2-norm KV compression",
    year=2024,
    tags=("permutation_equivariant", "causal", "decodes"),
    cost="2 n d p",
    validate=check_subset("knorm", "every"),
    compress={"every": 1},
)
def knorm(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    every: int = 64,
    allocation: Allocation = "uniform",
    layers: int | None = None,
) -> Selection:
    """The softmax of each row over its segment and the keys of least norm ``‖k_j‖`` before it.

    The selection does not depend on queries. The paper exempts two layers; here every layer is approximated. Source:
    Devoto et al. 2024, section 3.

    Options:
        every: the number of tokens of a segment, at most d/2. Keys of causal rows are selected again at each segment.
        allocation, layers: the distribution of keys over heads and layers, as in ``snapkv``.

    Shapes: index (h, ⌈n_q/s⌉, d), weights (h, n_q, d), output (h, n_q, p_v). Deterministic; cost ``n d (p + p_v)``,
    memory O(n d). ``scored`` is one norm for each key of a selection.

    Raises:
        Unsupported: d above max(n_q, n_k) + n_k. UsageError: ``every`` below 1; an allocation without its options.
    """
    numbers = working(qkv)
    norms = repeated(row_norms(numbers.shared_k), qkv.h)

    def score(observed: QKV, end: int) -> Tensor:
        return -norms[:, :end]

    return subset(numbers, d, score, every=every, allocation=allocation, layers=layers)
