"""KeyDiff (Park et al. 2025): it selects the keys that differ most from the mean direction of all keys."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from ...operators.groups import repeated
from ...operators.linalg.norms import unit_of
from ...qkv import QKV
from ...rng import Streams
from .base import Selection, working
from .subsets import Allocation, check_subset, subset, subset_selector


@subset_selector(
    name="keydiff",
    paper="Park et al., KeyDiff",
    year=2025,
    tags=("permutation_equivariant", "causal", "decodes"),
    cost="2 n d p",
    validate=check_subset("keydiff", "every"),
    compress={"every": 1},
)
def keydiff(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    every: int = 64,
    allocation: Allocation = "uniform",
    layers: int | None = None,
) -> Selection:
    """The softmax of each row over its segment and the keys before it of least ``cos(k_j, mean_l k_l/‖k_l‖)``.

    The mean is over the keys before the segment. The selection does not depend on queries. Source: Park et al. 2025,
    section 3.

    Options:
        every: the number of tokens of a segment, at most d/2. Keys of causal rows are selected again at each segment.
        allocation, layers: the distribution of keys over heads and layers, as in ``snapkv``.

    Shapes: index (h, ⌈n_q/s⌉, d), weights (h, n_q, d), output (h, n_q, p_v). Deterministic; cost ``n d (p + p_v)``,
    memory O(n d). ``scored`` is one score for each key of a selection.

    Raises:
        Unsupported: d above max(n_q, n_k) + n_k. UsageError: ``every`` below 1; an allocation without its options.
    """
    numbers = working(qkv)
    k = numbers.shared_k
    # The unit cancels in a cosine, and keeps squares of large keys finite.
    unit = functional.normalize(k / unit_of(k), dim=-1)  # (h_kv, n_k, p)

    def score(observed: QKV, end: int) -> Tensor:
        mean = functional.normalize(unit[:, :end].mean(1, keepdim=True), dim=-1)  # (h_kv, 1, p)
        return -repeated((unit[:, :end] @ mean.mT)[..., 0], qkv.h)

    return subset(numbers, d, score, every=every, allocation=allocation, layers=layers)
