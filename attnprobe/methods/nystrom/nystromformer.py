"""Nyströmformer (Xiong et al. 2021): landmarks that are means of segments, or centroids of k-means.

The symbols F, A, W, Z are those of `landmark_attention`; Z is the paper's ``Z*``.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from ...errors import UsageError
from ...operators.linalg.sampling import kmeans
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, segment_means
from ..registry import INVARIANT, register
from ..summary import dyadic
from .landmark_attention import check_inverse, landmark_attention, summarised_landmarks


def _check_kmeans(target: str, *, steps: int, **options: Any) -> None:
    check_inverse("nystromformer-kmeans", target, **options)
    if steps < 0:
        raise UsageError(f"nystromformer-kmeans: steps={steps} is negative")


@register(
    name="nystromformer",
    paper="Xiong et al., Nyströmformer",
    year=2021,
    family="Nyström",
    tags=("deterministic", "shift_invariant", "exact_at_full_budget", "causal"),
    budget="d landmarks: means of d consecutive segments of Q and of K",
    cost="4 n d p + O(d³)",
    oracle="transformers NystromformerSelfAttention; nystrom-attention NystromAttention",
    limit=lambda n_q, n_k: min(n_q, n_k),
    validate=partial(check_inverse, "nystromformer"),
    exact_at=lambda n: (n, {"inverse": "pinv"}),
)
def nystromformer(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    inverse: Literal["schulz", "pinv"] = "schulz",
    n_iter: int = 6,
    z0: Literal["paper", "global"] = "paper",
    rtol: float | None = None,
) -> Approximation:
    """``B~ = F Z W`` with ``F = softmax(s Q K~ᵀ)``, ``A = softmax(s Q~ K~ᵀ)``, ``W = softmax(s Q~ Kᵀ)`` and ``Z ≈ A⁺``.

    ``Q~`` and ``K~`` are the means of d consecutive segments (the first ``n mod d`` are one token longer). Source:
    Xiong et al. 2021, section 3. The paper's depthwise convolution is a trained part and not included.

    Options:
        inverse: ``schulz`` is ``n_iter`` steps of the paper's iteration; ``pinv`` is the true pseudo-inverse. They are
            different methods, because six steps do not converge on the nearly singular A of real inputs: Z stays small
            where A⁺ is large. That often makes the error several times smaller than with the true pseudo-inverse.
        n_iter: steps of the iteration.
        z0: start of the iteration. ``paper`` is ``Aᵀ / (‖A‖₁ ‖A‖_∞)`` for each head; ``global`` divides by the maximum
            over all heads, as the authors' code does, so that heads influence each other.
        rtol: with ``pinv``, singular values below ``rtol`` times the largest count as zero; none is d times the
            epsilon of float64.

    Shapes: F (h, n_q, d), A and Z (h, d, d) in float64, W (h, d, n_k). F and W are in the Q/K/V's dtype with
    ``schulz``, and in float64 with ``pinv``, which amplifies their rounding. Deterministic; cost ``4 n d p`` and
    O(d³), 4 d³ for each step of the iteration.

    With ``pinv``, d = n is exact up to the rounding ``eps · cond(A)``. That can be large: repeated or zero tokens make
    A singular.

    Causal inputs have the form of `methods.summary.dyadic`, which is not in the paper: exact attention to the query's
    own leaf of ``2 d`` keys, and d landmarks of each earlier block. A block of n_b tokens has the normaliser ``D~ =
    (n_b/d) Σ_c exp(s q·k~_c)`` for its row ``F Z W``. This form needs all queries of the text.

    Row sums are 1 with ``pinv`` and a non-singular A, otherwise near 1. ``bad_rows`` counts rows of B~ with a sum that
    is not positive.

    Raises:
        Unsupported: d above n. UsageError: ``n_iter`` below 0; an option of the other inverse.
    """
    if qkv.causal:
        summarise = partial(summarised_landmarks, d=d, inverse=inverse, n_iter=n_iter, z0=z0, rtol=rtol)
        return dyadic(qkv, d, streams, lambda block, own: (summarise(block), {}), queries=True)
    q_means, k_means = segment_means(qkv.q, d), segment_means(qkv.k, d)  # (h, d, p)
    return landmark_attention(qkv, q_means, k_means, inverse=inverse, n_iter=n_iter, z0=z0, rtol=rtol)


@register(
    name="nystromformer-kmeans",
    paper="Xiong et al., Nyströmformer, with the landmarks of Zhang, Tsang & Kwok",
    year=2021,
    family="Nyström",
    tags=(*INVARIANT, "exact_at_full_budget"),
    budget="d landmarks: centroids of Q and of K",
    cost="24 n d p + O(d³)",
    oracle="nystromformer on tokens in which each segment is one cluster; Lloyd's algorithm by loops",
    limit=lambda n_q, n_k: min(n_q, n_k),
    validate=_check_kmeans,
    exact_at=lambda n: (n, {"inverse": "pinv"}),
)
def nystromformer_kmeans(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    inverse: Literal["schulz", "pinv"] = "schulz",
    n_iter: int = 6,
    z0: Literal["paper", "global"] = "paper",
    rtol: float | None = None,
    steps: int = 10,
) -> Approximation:
    """``B~ = F Z W`` as for ``nystromformer``, with centroids of Q for ``Q~`` and centroids of K for ``K~``.

    Q and K have d centroids each, from ``steps`` steps of Lloyd's algorithm that start at d distinct tokens. Unlike
    segments, centroids do not depend on the order of the tokens. Landmarks by k-means: Zhang, Tsang & Kwok 2008; the
    three factors: Xiong et al. 2021, section 3.

    Options:
        inverse, n_iter, z0, rtol: as in ``nystromformer``.
        steps: steps of Lloyd's algorithm. A step costs ``n d p`` for Q and ``n d p`` for K, so ten steps cost five
            times as much as the rest. With 0 the landmarks are the random tokens themselves.

    Shapes and row sums: as ``nystromformer``. Draws: ``query_centroids`` and ``key_centroids``, (h, d, p) float64 each.

    ``visited`` counts the scores of F, A and W, without the distances of k-means. ``bad_rows`` counts rows of B~ with a
    sum that is not positive.

    Raises:
        Unsupported: d above n. UsageError: ``n_iter`` or ``steps`` below 0; an option of the other inverse.
    """
    centroids = {}  # (h, d, p) each
    for name, x in (("query_centroids", qkv.q), ("key_centroids", qkv.k)):
        centroids[name] = kmeans(x, d, [streams.head(head, name) for head in qkv.heads], steps)
    draws = {name: drawn.cpu() for name, drawn in centroids.items()}
    run = partial(landmark_attention, inverse=inverse, n_iter=n_iter, z0=z0, rtol=rtol)
    return run(qkv, *centroids.values(), draws=draws)
