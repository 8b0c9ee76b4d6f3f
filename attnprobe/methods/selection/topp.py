"""The fewest keys with a given mass of each row: the yardstick of methods that select keys by a threshold."""

from __future__ import annotations

import torch
from torch.nn import functional

from ...errors import UsageError
from ...operators import SoftmaxAttention
from ...operators.blocks import head_blocks
from ...operators.linalg.order import largest_scores
from ...operators.precision import full_precision
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation
from ..registry import EVERY_MASK, INVARIANT
from .base import ROWS, Selection, attend, selector, working


def _check(target: str, *, p: float) -> None:
    if not 0 < p <= 1:
        raise UsageError(f"topp: p={p} is not in (0, 1]")


@selector(
    name="topp",
    paper="Lin et al., Twilight",
    year=2025,
    kind="reference",
    tags=(*INVARIANT, "diagnostic", *EVERY_MASK),
    budget="at most d keys of each row: the fewest that hold the mass p",
    cost="n² p + 2 n d p",
    oracle="identity: the captured mass is at least p if fewer than d keys are selected",
    validate=_check,
    exact_at=lambda n: (n, {"p": 1.0}),
)
def topp(qkv: QKV, d: int, *, streams: Streams, target: str = "softmax", p: float = 0.95) -> Approximation:
    """The softmax of each row over the fewest keys with ``Σ B_ij ≥ p``, but at most d of them, the largest first.

    The key at which the sum reaches p is included. Flat rows have many keys and peaked rows few; `topk` has d keys in
    every row. The result is deterministic. Source: the oracle top-p of Lin et al. 2025, section 3.

    Options:
        p: the mass of the selected keys. With 1 every row has d keys.

    Shapes: index and weights (h, n_q, d), output (h, n_q, p_v). Cost ``n² p`` for all scores, in blocks of rows, a sort
    of the d largest, and ``n d (p + p_v)``; memory O(n d). ``visited`` and ``scored`` count all scores that rows see.

    Raises:
        Unsupported: d above n_k. UsageError: p not in (0, 1].
    """
    index = torch.empty(qkv.h, qkv.n_q, d, dtype=torch.int64, device=qkv.device)
    numbers = working(qkv)
    with full_precision():
        exact = SoftmaxAttention(numbers.q, numbers.k, qkv.scale, qkv.visible, qkv.terms)
        for heads, start, stop in head_blocks(exact, ROWS):
            seen = max(d, exact.seen(start, stop))
            scores = exact.first_keys(start, stop, seen).scores(heads, 0, stop - start)  # (heads, b, seen)
            largest, chosen = largest_scores(scores, d)
            every = functional.pad(scores, (0, qkv.n_k - seen), value=float("-inf"))  # sums in the same order
            weights = (largest - every.logsumexp(-1, keepdim=True)).double().exp()
            before = weights.cumsum(-1) - weights  # the mass of the larger keys
            enough = (before >= p) & (p < 1)
            index[heads, start:stop] = chosen.masked_fill(enough, -1)
    approx = attend(qkv, Selection(index, 1, float(qkv.entries)))
    approx.diagnostics["visited"].fill_(qkv.entries)
    return approx
