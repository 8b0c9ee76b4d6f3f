"""Statistics of a layer's queries, keys and values, which make attention easy or hard to approximate."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from ..grammar.arguments import checked
from ..operators import SoftmaxAttention
from ..operators.attention import CPU_BLOCK
from ..operators.blocks import block_shape, row_blocks
from ..operators.groups import of_heads, repeated
from ..operators.linalg.norms import output_norms, row_norms, unit_of
from ..operators.precision import product
from ..operators.terms import Terms
from ..operators.threads import side_by_side
from ..operators.visible import Visible
from ..qkv import QKV
from ..reference import exact
from .matrix import ExactNorms, exact_norms

INPUT_STATISTICS = {
    "score_std": "standard deviation of all scores S_ij",
    "score_max": "largest |S_ij|",
    "entropy": "mean over rows of the entropy of B_i, in nats",
    "entropy_share": "the same over that of uniform rows, the mean of ln m_i, m_i the number of keys that query i sees",
    "sink_first": "mean over rows of B_i0: the attention that the first token gets",
    "sink_most": "the largest mean over rows of B_ij: the attention that the most attended token gets",
    "stable_rank": "‖B‖_F² / ‖B‖₂²",
    **{f"{x}_norm_mean": f"mean over rows of ‖{x}_i‖" for x in "qkv"},
    **{f"{x}_norm_max": f"largest ‖{x}_i‖" for x in "qkv"},
    **{f"{x}_norm_ratio": f"largest ‖{x}_i‖ over the median one" for x in "qkv"},
    **{f"{x}_stable_rank": f"‖{x.upper()}‖_F² / ‖{x.upper()}‖₂²" for x in "qkv"},
}

OF_SCORES = ("score_std", "score_max", "entropy", "sink_first", "sink_most")


@checked()
@torch.no_grad()
def input_statistics(qkv: QKV, norms: ExactNorms | None = None) -> dict[str, Tensor]:
    """The `INPUT_STATISTICS` of Q, K and V (h, n, p) of one layer, per head: (h,) float64 each, on the CPU.

    With ``S = scale · Q Kᵀ`` and ``B = softmax(S)``, over the valid tokens if there is a padding mask. Query i sees m_i
    keys: all n_k, or fewer of causal and windowed attention.

    ===========================  =====================================================================================
    ``score_std``                ``sqrt( Σ_ij (S_ij - S̄)² / Σ_i m_i )``, S̄ the mean of these scores
    ``score_max``                ``max_ij |S_ij|``
    ``entropy``                  ``Σ_i H_i / n_q`` with ``H_i = -Σ_j B_ij ln B_ij``, in nats
    ``entropy_share``            ``Σ_i H_i / Σ_i ln m_i``: 1 if rows are uniform, NaN if each query sees one key
    ``sink_first``               ``Σ_i B_i0 / n_q``: the attention that the first (valid) token gets
    ``sink_most``                ``max_j Σ_i B_ij / n_q``: the same for the most attended token
    ``stable_rank``              ``‖B‖_F² / ‖B‖₂²``
    ``q_norm_mean, k_, v_``      ``Σ_i ‖q_i‖ / n_q``
    ``q_norm_max, k_, v_``       ``max_i ‖q_i‖``
    ``q_norm_ratio, k_, v_``     ``max_i ‖q_i‖ / median_i ‖q_i‖``: 1 if all norms are equal; NaN if all are zero
    ``q_stable_rank, k_, v_``    ``‖Q‖_F² / ‖Q‖₂²``
    ===========================  =====================================================================================

    One pass computes scores and exponentials in float64, 64 rows of one head at a time, so no n x n matrix is stored.
    It takes memory O(n p), ``n_q n_k (p + 2)`` multiply-adds and an exponential for each entry of B. The standard
    deviation of all scores needs no pass. With a_i and b_j the deviations from the means q̄ and k̄, ``S_ij - S̄ = scale
    (a_i·k̄ + q̄·b_j + a_i·b_j)``. These terms are uncorrelated, so

        ``σ² = scale² ( Σ_i (a_i·k̄)² / n_q + Σ_j (q̄·b_j)² / n_k + tr(AᵀA BᵀB) / (n_q n_k) )``,

    a sum without cancellation. ‖B‖₂ takes the passes of `matrix_errors`, in the dtype of ``qkv`` (float32 for half
    precision), until its interval is 0.1 % wide; the value is then far more accurate. The stable ranks of Q, K and V
    come from p x p Gram matrices. For causal and windowed inputs only scores of keys that a query sees count.

    Args:
        norms: `attnprobe.metrics.exact_norms` of the softmax matrix, which are then not computed again.

    >>> uniform = input_statistics(QKV(torch.zeros(1, 8, 4), torch.zeros(1, 8, 4), torch.ones(1, 8, 2)))
    >>> [round(float(uniform[name]), 6) for name in ("score_std", "entropy_share", "sink_first", "stable_rank")]
    [0.0, 1.0, 0.125, 1.0]
    """
    inner = qkv.compressed()
    visible = inner.visible
    values = {name: torch.zeros(inner.h, dtype=torch.float64, device=inner.device) for name in OF_SCORES}
    # heads one by one on a CPU, on other devices all that fit; only these are copied to float64
    together, rows = block_shape(SoftmaxAttention(inner.q, inner.shared_k, inner.scale), CPU_BLOCK)

    def of(heads: slice) -> None:
        q, k = inner.q[heads].double(), of_heads(inner.shared_k, heads, inner.h).double()
        terms = None if inner.terms is None else inner.terms.of(heads)
        for name, value in _of_scores(q, k, inner.scale, visible, terms, rows).items():
            values[name][heads] = value

    side_by_side([partial(of, slice(*pair)) for pair in row_blocks(inner.h, together)], inner.device)
    seen = [inner.n_k] if visible is None else visible.counts().tolist()
    values["entropy_share"] = values["entropy"] / (sum(map(math.log, seen)) / len(seen) or math.nan)
    norms = exact_norms(exact(inner)) if norms is None else norms
    values["stable_rank"] = (norms.frobenius / norms.value) ** 2
    for name in "qkv":
        for statistic, value in _of_vectors(inner.parts()[name]).items():
            values[f"{name}_{statistic}"] = repeated(value, inner.h)
    return {name: values[name].cpu() for name in INPUT_STATISTICS}


def _of_vectors(x: Tensor) -> dict[str, Tensor]:
    """The statistics of queries, keys or values (h, n, p), (h,) each."""
    sizes = torch.stack([row_norms(head.double()) for head in x])  # (h, n)
    spectral, frobenius = output_norms(x)
    return {
        "norm_mean": sizes.mean(1),
        "norm_max": sizes.amax(1),
        "norm_ratio": sizes.amax(1) / sizes.quantile(0.5, dim=1),
        "stable_rank": (frobenius / spectral) ** 2,
    }


def _of_scores(
    q: Tensor, k: Tensor, scale: float, visible: Visible | None, terms: Terms | None, rows: int
) -> dict[str, Tensor]:
    """The statistics of scores and weights of some heads, (g,), from one pass over the rows of Q and K (g, n, p)."""
    middle = scale * (q.mean(1) * k.mean(1)).sum(1)
    unit_q, unit_k = unit_of(q, 2), unit_of(k, 2)  # (g, 1, 1): powers of two, which change no digit
    unit = (unit_q * unit_k)[:, 0, 0]  # of scores
    largest, entropy, mass = q.new_zeros(len(q)), q.new_zeros(len(q)), q.new_zeros(len(q), k.shape[1])
    moments = q.new_zeros(2, len(q))
    for start, stop in row_blocks(q.shape[1], rows):
        n = k.shape[1]
        if visible is not None and q.device.type == "cpu":  # on a GPU the number would have to be waited for
            n = int(visible.last[start:stop].max()) + 1
        scores = product(q[:, start:stop] * scale, k[:, :n].mT)  # (g, b, n)
        hidden = None if visible is None else visible.of(slice(start, stop)).hidden(n)
        if terms is not None:
            scores = terms.of(rows=slice(start, stop), keys=slice(n)).applied(scores)
        if hidden is not None or terms is not None:
            away = (scores - middle[:, None, None]) / unit[:, None, None]
            away = away if hidden is None else away.masked_fill_(hidden, 0)
            moments += torch.stack([away.sum((1, 2)), away.square().sum((1, 2))])
        if hidden is not None:
            scores.masked_fill_(hidden, math.inf)
            low = scores.amin(2)
            high = scores.masked_fill_(hidden, -math.inf).amax(2)
        else:
            low, high = scores.amin(2), scores.amax(2)  # each many times faster than aminmax
        largest = torch.maximum(largest, torch.maximum(-low, high).amax(1))
        scores -= high[:, :, None]
        weights = scores.exp()  # with sums Z_i: B_i = weights / Z_i and H_i = ln Z_i - Σ_j B_ij (S_ij - max_i)
        if hidden is not None:
            scores.masked_fill_(hidden, 0)
        sums = weights.sum(2)
        entropy += (sums.log() - torch.linalg.vecdot(weights, scores) / sums).sum(1)
        mass[:, :n] += ((1 / sums)[:, None] @ weights)[:, 0]
    mass /= q.shape[1]
    entropy /= q.shape[1]
    values = {"score_max": largest, "entropy": entropy, "sink_first": mass[:, 0], "sink_most": mass.amax(1)}
    if visible is not None or terms is not None:
        entries = q.shape[1] * k.shape[1] if visible is None else visible.counts().sum()
        mean, square = moments / entries
        return values | {"score_std": (square - mean**2).clamp(min=0).sqrt() * unit}
    q, k = q / unit_q, k / unit_k
    q_mean, k_mean = q.mean(1, keepdim=True), k.mean(1, keepdim=True)  # the rest is from p x p matrices
    a, b = q - q_mean, k - k_mean
    mixed = ((a.mT @ a) * (b.mT @ b)).sum((1, 2)) / (q.shape[1] * k.shape[1])
    of_a, of_b = ((x @ mean.mT).square().mean((1, 2)) for x, mean in ((a, k_mean), (b, q_mean)))
    return values | {"score_std": scale * (of_a + of_b + mixed).clamp(min=0).sqrt() * unit}


def repeated_rows(qkv: QKV) -> int:
    """The number of valid tokens whose query and key equal those of an earlier token bit by bit, in the first head.

    In layer 0 of concatenated segments, equal tokens at the same position of two segments have equal rows. B and C are
    then singular, and their condition numbers describe only these repetitions. It is 0 if the numbers of queries and
    keys differ.

    >>> repeated_rows(QKV(*torch.ones(3, 1, 5, 2)))
    4
    """
    if qkv.n_q != qkv.n_k:
        return 0
    qkv = qkv.compressed()
    rows = torch.cat([qkv.q[0], qkv.k[0]], dim=-1).detach().cpu().contiguous()
    return len(rows) - len({row.numpy().tobytes() for row in rows.view(torch.uint8)})
