"""Metrics of each row of an approximation against its row of exact attention: mass, divergences, errors, needles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, linalg

from ..approximation import Approximation
from ..arguments import checked
from ..errors import Unsupported, UsageError
from ..operators import Operator, Padded, Scaled, SoftmaxAttention, full_precision
from ..qkv import QKV

ROW_METRICS = {
    "mass": "m = Σ_{j ∈ S} P_j: the exact weight of the keys that the approximation uses",
    "mass_oracle": "the sum of the |S| largest P_j: the most that any |S| keys can hold",
    "mass_efficiency": "mass / mass_oracle: the quality of the choice of keys, for any number of keys",
    "recall_k": "|S ∩ the k largest P_j| / k with k = |S|",
    "tv": "½ Σ_j |P~_j - P_j|, the total variation",
    "kl": "Σ_j [P~_j ln(P~_j / P_j) - P~_j + P_j], in nats; NaN for rows with a negative weight",
    "js": "the Jensen-Shannon divergence of P~ and P, in nats; NaN for rows with a negative weight",
    "log_normaliser_error": "ln D~ - ln D, of methods that have a normaliser",
    "row_error": "‖o~ - o‖ / ‖o‖",
    "row_error_angle": "1 - cos(o~, o)",
    "tail_gap": "‖μ_T - μ_S‖ / ‖o‖ with the P-weighted means μ of the values inside and outside of S",
    "keys": "|S|, the keys with a weight that is not zero",
    "support": "exp(entropy of P): the number of equal weights with the same entropy",
    "k_50": "the least k whose largest P_j hold a mass of 0.5",
    "k_90": "the least k whose largest P_j hold a mass of 0.9",
    "k_99": "the least k whose largest P_j hold a mass of 0.99",
    "distant_mass": "the mass of P beyond the first 4 keys and the last 64 that the row sees",
    "needle_mass": "the exact weight of the needle's keys",
    "needle_mass_kept": "the approximation's weight of the needle's keys",
}
EPSILONS = {"k_50": 0.5, "k_90": 0.1, "k_99": 0.01}
SINKS, NEAR = 4, 64  # keys that are not distant: the first, and those up to the query
ENTRIES = 2**20  # of a block of rows
KEYS = 2**12  # keys and values in float64 at a time
LEAST = -1e4  # stands for the logarithm of a weight of zero, whose product with the weight is zero
LN2 = 0.6931471805599453


@checked()
@full_precision()
@torch.no_grad()
def row_metrics(
    reference: Operator, approx: Approximation, qkv: QKV, *, needle: Tensor | None = None
) -> dict[str, Tensor]:
    """Compare each row P~ of an approximation with its row P of exact softmax attention: (h, n_q) float64 by name.

    S is the set of keys with a weight P~_j that is not zero, T the other keys that the row sees, τ = Σ_T P_j the lost
    mass, o = P V and o~ the outputs.

    ========================  ========================================================================================
    ``mass``                  ``m = Σ_S P_j = 1 - τ``
    ``mass_oracle``           the sum of the ``|S|`` largest P_j
    ``mass_efficiency``       ``mass / mass_oracle``
    ``recall_k``              ``|S ∩ top_k(P)| / k``, k = ``|S|``; keys that tie with the k-th count as chosen well
    ``tv``                    ``½ Σ_j |P~_j - P_j|``; equals τ if P~ is P renormalised on S
    ``kl``                    ``Σ_j [P~_j ln(P~_j / P_j) - P~_j + P_j]``; ``-ln m`` if P~ is P renormalised on S
    ``js``                    ``½ KL(P ‖ M) + ½ KL(P~ ‖ M)``, ``M = (P + P~)/2``; at most ln 2
    ``log_normaliser_error``  ``ln D~_i - ln D_i``; NaN for methods without a normaliser
    ``row_error``             ``‖o~ - o‖ / ‖o‖``, 0 if both are zero; ``τ · tail_gap`` if P~ is P renormalised on S
    ``row_error_angle``       ``1 - cos(o~, o)``; 1 if one of the two is zero, 0 if both are
    ``tail_gap``              ``‖μ_T - μ_S‖ / ‖o‖``, ``μ_S = Σ_S P_j v_j / m``; 0 if T holds no mass
    ``keys``                  ``|S|``
    ``support``               ``exp(-Σ_j P_j ln P_j)``
    ``k_50, k_90, k_99``      the least k whose largest P_j sum to at least 0.5, 0.9, 0.99
    ``distant_mass``          the mass of P beyond the first 4 keys and the 64 up to the query's own place
    ``needle_mass``           ``Σ_needle P_j``, and ``needle_mass_kept`` ``Σ_needle P~_j``; only with ``needle``
    ========================  ========================================================================================

    The sink of a head (``qkv.sink_logits``) counts as one more key of every row, with the value zero; every selection
    has it. An approximation without a matrix has the metrics of outputs and of P; its other metrics are NaN.

    The last two terms of ``kl`` are zero in sum for rows that sum to 1. With them no row has a negative divergence.

    Args:
        reference: the exact softmax attention of ``qkv``.
        approx: its approximation.
        needle: the numbers of the needle's keys, (m,) int64.

    Scores and sums are float64 for inputs of any dtype. Rows come in blocks of about 2^20 entries, and no n x n matrix
    is stored. Cost for each head: ``n_q n_k (p + 2 p_v)`` multiply-adds, a sort of each row, and all rows of the
    approximation.

    Raises:
        UsageError: a reference or an approximation of another shape; a needle beyond the keys.
        Unsupported: a reference that is not softmax attention, because its rows are not distributions.

    >>> from attnprobe import approximate, exact
    >>> qkv = QKV(*torch.randn(3, 1, 64, 8, generator=torch.Generator().manual_seed(0)), causal=True)
    >>> rows = row_metrics(exact(qkv), approximate("topk", qkv, 8), qkv)
    >>> bool((rows["mass_efficiency"] > 1 - 1e-9).all()), bool(((rows["tv"] - 1 + rows["mass"]).abs() < 1e-6).all())
    (True, True)
    """
    inner, outer = qkv.compressed(), qkv.mask
    operator = reference.operator if isinstance(reference, Padded) else reference
    softmax = operator.operator if isinstance(operator, Scaled) else operator
    if not isinstance(softmax, SoftmaxAttention):
        raise Unsupported("rows are compared with exact softmax attention, whose rows are distributions")
    for name, shape in (("reference", reference.shape), ("approximation", (*approx.output.shape[:2], qkv.n_k))):
        if shape != (qkv.h, qkv.n_q, qkv.n_k):
            raise UsageError(f"the {name} has shape {tuple(shape)}, not ({qkv.h}, {qkv.n_q}, {qkv.n_k})")
    if needle is not None:
        _check_needle(needle, qkv.n_k)
    if qkv.sink_logits is not None and approx.operator is not None and approx.log_normalizer is None:
        raise UsageError("heads have sinks of their own, and the approximation states no normaliser to add them to")
    matrix, output = approx.operator, approx.output
    if outer is not None:
        output = output[:, outer]
        matrix = matrix.operator if isinstance(matrix, Padded) else None
        needle = None if needle is None else (outer.cumsum(0) - 1)[needle]
    log_sums = None if approx.log_normalizer is None else approx.log_normalizer().double()
    names = [name for name in ROW_METRICS if needle is not None or not name.startswith("needle")]
    metrics = {
        name: torch.full((inner.h, inner.n_q), torch.nan, dtype=torch.float64, device=qkv.device) for name in names
    }
    for head in range(inner.h):
        one = slice(head, head + 1)
        rows = _Head(
            inner.head(head),
            None if matrix is None else matrix.heads(one),
            output[head],
            None if log_sums is None else log_sums[head],
            needle,
        )
        for start, stop, values in rows.blocks():
            for name, value in values.items():
                metrics[name][head, start:stop] = value
    return metrics if outer is None else {name: _spread(x, outer) for name, x in metrics.items()}


def _check_needle(needle: Tensor, n_k: int) -> None:
    if needle.dtype != torch.int64 or needle.dim() != 1 or not len(needle):
        shape, dtype = tuple(needle.shape), str(needle.dtype)[6:]
        raise UsageError(f"needle: numbers of keys are needed, (m,) int64; got shape {shape}, {dtype}")
    if needle.min() < 0 or needle.max() >= n_k:
        raise UsageError(f"needle: keys {int(needle.min())} … {int(needle.max())} are not among {n_k}")
    if len(needle.unique()) < len(needle):
        raise UsageError("needle: a key is named twice")


@dataclass(frozen=True, eq=False)
class _Head:
    """The rows of one head, exact and approximate.

    A sink of the head is one more key, the last, with the value zero; every selection has it.
    """

    qkv: QKV
    matrix: Operator | None
    output: Tensor
    log_sums: Tensor | None
    needle: Tensor | None

    @property
    def sink(self) -> Tensor | None:
        return None if self.qkv.sink_logits is None else self.qkv.sink_logits.double()[0]

    def blocks(self) -> Iterator[tuple[int, int, dict[str, Tensor]]]:
        """``(start, stop, values)`` of consecutive blocks of rows."""
        step = max(1, ENTRIES // self.qkv.n_k)
        for start in range(0, self.qkv.n_q, step):
            stop = min(start + step, self.qkv.n_q)
            yield start, stop, self._values(start, stop)

    def _values(self, start: int, stop: int) -> dict[str, Tensor]:
        log_p, log_sum = self._exact(start, stop)
        weights = None if self.matrix is None else self.matrix.rows(start, stop)[0]
        sums = _Sums(len(log_p), self.qkv.p_v, log_p.device)
        far = self._distant(start, stop)
        for first in range(0, self.qkv.n_k, KEYS):
            part = slice(first, min(first + KEYS, self.qkv.n_k))
            of_part = None if weights is None else weights[:, part].double()
            sums.add(log_p[:, part], of_part, self.qkv.v[0, part].double(), far(part))
        if self.sink is not None:
            weight = None if weights is None else self._weight_of_sink(start, stop)
            nothing = self.qkv.v.new_zeros(1, self.qkv.p_v, dtype=torch.float64)
            sums.add(log_p[:, -1:], weight, nothing, torch.zeros_like(log_p[:, -1:], dtype=torch.bool))
        values = sums.values(self.output[start:stop].double(), weights is not None)
        if self.needle is not None:
            values["needle_mass"] = log_p[:, self.needle].exp().sum(-1)
            if weights is not None:
                values["needle_mass_kept"] = weights[:, self.needle].double().sum(-1)
        ordered = _sorted(log_p)
        if weights is not None:
            values["recall_k"] = self._well_chosen(log_p, weights, ordered, sums.keys) / sums.keys
        del log_p, weights
        held = ordered.exp_().flip(-1).cumsum_(-1)  # the mass of the k largest
        del ordered
        for name, epsilon in EPSILONS.items():
            values[name] = (held < (1 - epsilon) * held[:, -1:]).sum(-1).double() + 1
        if "mass" in values:
            most = held.gather(1, (sums.keys.long() - 1).clamp(min=0)[:, None])[:, 0]
            values["mass_oracle"] = torch.where(sums.keys > 0, most, torch.zeros_like(most))
            values["mass_efficiency"] = sums.mass / values["mass_oracle"]
        if self.log_sums is not None:
            values["log_normaliser_error"] = self.log_sums[start:stop] - log_sum
        return values

    def _exact(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """``ln P`` (b, n_k, and one more with a sink), -∞ where a key is hidden, and ``ln D`` (b,)."""
        qkv, sink, visible = self.qkv, self.sink, self.qkv.visible
        q = qkv.q[0, start:stop].double() * qkv.scale
        columns = qkv.n_k + (sink is not None)
        scores = torch.empty(stop - start, columns, dtype=torch.float64, device=q.device)
        for first in range(0, qkv.n_k, KEYS):
            part = slice(first, min(first + KEYS, qkv.n_k))
            scores[:, part] = q @ qkv.k[0, part].double().mT
        if visible is not None:
            scores[:, : qkv.n_k].masked_fill_(visible.of(slice(start, stop)).hidden(qkv.n_k), -torch.inf)
        if sink is not None:
            scores[:, -1] = sink
        log_sum = scores.logsumexp(-1)
        return scores.sub_(log_sum[:, None]), log_sum

    def _distant(self, start: int, stop: int) -> Callable[[slice], Tensor]:
        """Whether keys are distant from each query of a block, (b, keys)."""
        position = self.qkv.query_positions[start:stop, None]

        def far(part: slice) -> Tensor:
            key = torch.arange(part.start, part.stop, device=position.device)
            return (key >= SINKS) & ((key <= position - NEAR) | (key >= position + NEAR))

        return far

    def _weight_of_sink(self, start: int, stop: int) -> Tensor:
        assert self.sink is not None and self.log_sums is not None  # methods without a normaliser take no sinks
        return (self.sink - self.log_sums[start:stop]).exp()[:, None]

    def _well_chosen(self, log_p: Tensor, weights: Tensor, ordered: Tensor, keys: Tensor) -> Tensor:
        """The number of chosen keys that are among the ``keys`` largest of each row, (b,) float64."""
        last = ordered.shape[1] - keys.long().clamp(min=1)
        least = ordered.gather(1, last[:, None])
        good = ((weights != 0) & (log_p[:, : weights.shape[1]] >= least)).sum(-1)
        if self.sink is not None:
            good = good + (log_p[:, -1:] >= least)[:, 0]
        return torch.minimum(good.double(), keys)


class _Sums:
    """The sums over keys from which the metrics of a block of rows are computed."""

    def __init__(self, rows: int, p_v: int, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(rows, *shape, dtype=torch.float64, device=device)

        self.inside, self.outside = zeros(p_v), zeros(p_v)  # Σ_S P_j v_j and Σ_T P_j v_j
        self.mass, self.lost, self.keys = zeros(), zeros(), zeros()
        self.entropy, self.distant = zeros(), zeros()
        self.tv, self.kl, self.js, self.least = zeros(), zeros(), zeros(), zeros()
        self.ahead = zeros().bool()  # whether a hidden key has weight

    def add(self, log_p: Tensor, weights: Tensor | None, values: Tensor, far: Tensor) -> None:
        """Add some keys: ``ln P`` and P~ (b, keys), values (keys, p_v), and whether keys are distant (b, keys)."""
        p = log_p.exp()
        hidden = log_p == -torch.inf
        log_p = log_p.clamp(min=LEAST)
        self.entropy -= linalg.vecdot(p, log_p)
        self.distant += (p * far).sum(-1)
        if weights is None:
            self.inside.addmm_(p, values)
            return
        chosen = weights != 0
        chosen_p = p * chosen
        self.inside.addmm_(chosen_p, values)
        self.outside.addmm_(p - chosen_p, values)
        self.mass += chosen_p.sum(-1)
        self.lost += (p - chosen_p).sum(-1)
        self.keys += chosen.sum(-1)
        self.tv += (weights - p).abs_().sum(-1) / 2
        self.least = torch.minimum(self.least, weights.amin(-1))
        log_weights = weights.clamp(min=0).log_().clamp_(min=LEAST)
        self.kl += linalg.vecdot(weights, log_weights - log_p) - (weights - p).sum(-1)
        self.ahead |= (chosen & hidden).any(-1)
        log_mean = torch.logaddexp(log_weights, log_p).sub_(LN2)
        self.js += (linalg.vecdot(p, log_p - log_mean) + linalg.vecdot(weights, log_weights - log_mean)) / 2

    def values(self, output: Tensor, matrix: bool) -> dict[str, Tensor]:
        """The metrics that do not depend on the order of the keys, (b,) each, by name."""
        exact = self.inside + self.outside
        size, norm = linalg.vector_norm(exact, dim=-1), linalg.vector_norm(output, dim=-1)
        values = {
            "row_error": _over_size(linalg.vector_norm(output - exact, dim=-1), size),
            "row_error_angle": _angle(output, exact, norm, size),
            "support": self.entropy.exp(),
            "distant_mass": self.distant,
        }
        if not matrix:
            return values
        negative, nan = self.least < 0, torch.full_like(self.kl, torch.nan)
        means = self.outside / self.lost[:, None] - self.inside / self.mass[:, None]
        gap = _over_size(linalg.vector_norm(means, dim=-1), size)
        return {
            **values,
            "mass": self.mass,
            "tv": self.tv,
            "kl": torch.where(negative, nan, self.kl.masked_fill(self.ahead, torch.inf)),
            "js": torch.where(negative, nan, self.js),
            "tail_gap": torch.where(self.lost > 0, gap, torch.zeros_like(gap)),
            "keys": self.keys,
        }


def _over_size(x: Tensor, size: Tensor) -> Tensor:
    """``x / size``; 0 if x is 0, so that a row that is zero in both has no error."""
    return torch.where(x == 0, x, x / size)


def _angle(a: Tensor, b: Tensor, norm_a: Tensor, norm_b: Tensor) -> Tensor:
    """``1 - cos(a, b)`` of rows: half the squared distance of their unit vectors, without cancellation.

    0 if both rows are zero, 1 if one is.
    """
    between = (a / norm_a[:, None] - b / norm_b[:, None]).square().sum(-1) / 2
    zero_a, zero_b = norm_a == 0, norm_b == 0
    between = between.masked_fill(zero_a ^ zero_b, 1.0)
    return between.masked_fill(zero_a & zero_b, 0.0)


def _sorted(x: Tensor) -> Tensor:
    """``x`` (b, n) with ascending rows. On a CPU numpy sorts ten times faster, because it computes no indices."""
    if x.device.type == "cpu":
        return torch.from_numpy(np.sort(x.numpy(), axis=-1))
    return x.sort(-1).values


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    """The values of the valid rows among all, NaN at the padding."""
    out = values.new_full((len(values), len(mask)), torch.nan)
    out[:, mask] = values
    return out
