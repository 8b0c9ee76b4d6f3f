"""One case of a pack: inputs of a kernel, its exact output, and how far rounding may move a kernel from it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import torch
from torch import Tensor

ACCUMULATOR = 2.0**-24  # unit roundoff of float32, in which a kernel computes scores and sums
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}  # unit roundoffs
TINY = {torch.float32: 2.0**-150, torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134}  # half of the least number
SURE = 6.0  # λ of the probabilistic bound λ √n u of n roundings, which fails with probability 2 exp(−λ²/2) = 3e-8
STEPS = 8  # roundings of a score beside those of its dot product: scale, cap, shift, exponential, quotient


@dataclass(frozen=True, eq=False)
class Case:
    """Inputs of one call of an attention kernel.

    Attributes:
        name: as in the pack. q: (h, n_q, p). k: (h_kv, n_k, p). v: (h_kv, n_k, p_v); query head i reads KV head
            ``i // (h / h_kv)``. All three have one dtype.
        scale: the factor on ``Q Kᵀ``.
        causal: a query at position c sees the keys 0 … c.
        positions: the position of each query among the keys, (n_q,) int64.
        window: w; a query at position c sees the keys ``c - w + 1 … c``, not causal ones up to ``c + w - 1``.
        sink_tokens: the first keys, which every causal query sees whatever its window.
        sink_logits: one more score of each head without a value, (h,) float32.
        softcap: c; scores are ``c · tanh(scale · q·k / c)``.
        keys_seen: the keys that are no padding, (n_k,) bool.
    """

    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    positions: Tensor
    causal: bool = False
    window: int | None = None
    sink_tokens: int = 0
    sink_logits: Tensor | None = None
    softcap: float | None = None
    keys_seen: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of Q, K and V."""
        return self.q.dtype

    @property
    def hidden(self) -> Tensor:
        """The keys that each query does not see, (n_q, n_k) bool."""
        own, keys = self.positions[:, None], torch.arange(self.k.shape[1])
        hidden = keys > own if self.causal else torch.zeros(len(own), len(keys), dtype=torch.bool)
        if self.window is not None:
            far = (keys <= own - self.window) | (keys >= own + self.window)
            hidden = hidden | (far & (keys >= self.sink_tokens))
        return hidden if self.keys_seen is None else hidden | ~self.keys_seen

    @property
    def judged(self) -> Tensor:
        """The queries with an output, (n_q,) bool: those that see a key and are no padding."""
        sees = ~self.hidden.all(-1)
        square = self.keys_seen is not None and len(self.positions) == len(self.keys_seen)
        return sees & self.keys_seen[self.positions] if square and self.keys_seen is not None else sees


@dataclass(frozen=True, eq=False)
class Expected:
    """What a case's kernel should return.

    Attributes:
        output: the exact output in float64, (h, n_q, p_v), and ``tolerance``, its bound in each entry.
        lse: the exact log-sum-exp of scores, with the sink, (h, n_q) float64, and ``lse_tolerance``, its bound.
        framework: the output of torch, every step in the dtype of the case.
    """

    output: Tensor
    tolerance: Tensor
    lse: Tensor
    lse_tolerance: Tensor
    framework: Tensor


def expected(case: Case) -> Expected:
    """The exact output of a case, and the tolerance that rounding gives it.

    A kernel is expected to compute scores, exponentials and sums in float32, to round the weights to the dtype of V
    before it multiplies them, and to round its output once. Let u be the unit roundoff of the dtype and ε = 2⁻²⁴. The
    score of a pair then has an error of at most

        ``δ_ij = ε (λ √p + 8) · scale · Σ_c |q_ic| |k_jc|``

    and entry c of row i of the output, with the weights w_ij of n_i keys, one of

        ``(u + ε (λ √n_i + 8) + 2 max_j δ_ij) · Σ_j w_ij |v_jc|  +  u |o_ic|  +  t (1 + Σ_j |v_jc|)``

    where t is half of the least positive number of the dtype: weights below it are lost. ``λ √n`` bounds the sum of n
    roundings with probability 1 − 3e-8 (Higham & Mary 2019, SIAM J. Sci. Comput. 41). No number is a matter of taste.

    Cost ``2 n_q n_k (p + p_v)`` in float64 and as much in the dtype.
    """
    group = len(case.q) // len(case.k)
    heads = [
        _of_head(case, case.q[head], case.k[head // group], case.v[head // group], head) for head in range(len(case.q))
    ]
    return Expected(*(torch.stack(parts) for parts in zip(*heads, strict=True)))


def attention(case: Case, q: Tensor, k: Tensor, v: Tensor, head: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (n_q, n_k), output (n_q, p_v) and log-sum-exp (n_q,) of one head, in the dtype of q, k and v."""
    scores = case.scale * (q @ k.mT)
    if case.softcap is not None:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    scores = scores.masked_fill(case.hidden, -inf)
    if case.sink_logits is not None:
        scores = torch.cat([scores, case.sink_logits[head].to(scores).expand(len(scores), 1)], -1)
    # a query that sees no key has a softmax of NaN; kernels return zeros for it
    weights = torch.softmax(scores, -1).nan_to_num(nan=0.0)[:, : len(k)]
    return weights, weights @ v, torch.logsumexp(scores, -1)


def _of_head(case: Case, q: Tensor, k: Tensor, v: Tensor, head: int) -> tuple[Tensor, ...]:
    unit, tiny = UNIT[case.dtype], TINY[case.dtype]
    exact_q, exact_k, exact_v = q.double(), k.double(), v.double()
    weights, output, lse = attention(case, exact_q, exact_k, exact_v, head)
    sizes = (case.scale * (exact_q.abs() @ exact_k.abs().mT)).masked_fill(case.hidden, 0.0)
    of_scores = ACCUMULATOR * (SURE * sqrt(q.shape[1]) + STEPS) * sizes.amax(-1, keepdim=True)
    if case.sink_logits is not None:
        of_scores = of_scores + ACCUMULATOR * case.sink_logits[head].abs()

    count = (~case.hidden).sum(-1, keepdim=True)
    of_sums = ACCUMULATOR * (SURE * count.sqrt() + STEPS)
    sums = weights @ exact_v.abs()
    lost = tiny * (1 + (~case.hidden).double() @ exact_v.abs())
    # twice: a score's error changes its own weight, and the normaliser of its row
    tolerance = (unit + of_sums + 2 * of_scores) * sums + unit * output.abs() + lost
    lse_tolerance = of_scores[:, 0] + of_sums[:, 0] + ACCUMULATOR * lse.abs().nan_to_num(posinf=0.0)
    framework = attention(case, q, k, v, head)[1]
    return output, tolerance, lse, lse_tolerance, framework.double()
