"""Metrics of each row of an approximation against its row of exact attention: mass, divergences, errors, needles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, linalg
from torch.nn import functional

from ..approximation import Approximation
from ..errors import UsageError
from ..grammar.arguments import checked
from ..operators import Operator, Padded
from ..operators.linalg.norms import row_norms, unit_of
from ..operators.precision import full_precision
from ..qkv import QKV
from .exact_rows import LEAST, ExactBlock, ExactRows, product_of_heads
from .residual import head_residuals

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
    "residual_error": "r² / (1 + r²), r = ‖Δy‖ / ‖x + y‖, of the head alone; only of a model, see `residual_errors`",
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
TIED = 1e-12  # two ln P_j with a smaller difference are of scores that only rounding tells apart
NORMAL = 1e-200  # from it on P has all bits of float64, and no ratio of weights overflows
LN2 = 0.6931471805599453


@checked()
@full_precision()
@torch.no_grad()
def row_metrics(
    reference: Operator | ExactRows, approx: Approximation, qkv: QKV, *, needle: Tensor | None = None
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
    ``residual_error``        ``r² / (1 + r²)``, ``r = ‖W_O,h (o~ - o)‖ / ‖x + y‖``, see `residual_errors`; NaN without
                              ``qkv.block``
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
        reference: the exact softmax attention of ``qkv``, or its `ExactRows`, which many approximations share.
        approx: its approximation.
        needle: the numbers of the needle's keys, (m,) int64.

    Scores and sums are float64 for inputs of any dtype. Rows come in blocks of about 2^18 entries of a head, at least
    16 rows; off the CPU a block has these rows of all heads that fit. At most 1 GiB of exact rows is kept, for further
    approximations. Cost for each head: ``n_q n_k (p + p_v)`` multiply-adds and a sort of each row, once; ``n_q n_k
    p_v`` multiply-adds and all rows of each approximation.

    Raises:
        UsageError: a reference or an approximation of another shape; a needle beyond the keys.
        Unsupported: a reference that is not softmax attention, because its rows are not distributions.

    >>> from attnprobe import approximate, exact
    >>> qkv = QKV(*torch.randn(3, 1, 64, 8, generator=torch.Generator().manual_seed(0)), causal=True)
    >>> rows = row_metrics(exact(qkv), approximate("topk", qkv, 8), qkv)
    >>> bool((rows["mass_efficiency"] > 1 - 1e-9).all()), bool(((rows["tv"] - 1 + rows["mass"]).abs() < 1e-6).all())
    (True, True)
    """
    shared = reference if isinstance(reference, ExactRows) else ExactRows.of(reference, qkv)
    inner, outer = shared.qkv, qkv.mask
    for name, shape in (("reference", shared.shape), ("approximation", (*approx.output.shape[:2], qkv.n_k))):
        if shape != (qkv.h, qkv.n_q, qkv.n_k):
            raise UsageError(f"the {name} has shape {tuple(shape)}, not ({qkv.h}, {qkv.n_q}, {qkv.n_k})")
    if needle is not None:
        _check_needle(needle, qkv.n_k)
    if qkv.sink_logits is not None and approx.operator is not None and approx.log_normalizer is None:
        raise UsageError(
            "heads have sinks of their own, and the approximation states no normaliser to add them to: give it a "
            "log_normalizer"
        )
    matrix, output = approx.operator, approx.output
    if outer is not None:
        output = output[:, outer]
        matrix = matrix.operator if isinstance(matrix, Padded) else None
        needle = None if needle is None else (outer.cumsum(0) - 1)[needle]
    log_sums = None if approx.log_normalizer is None else approx.log_normalizer().double()
    shown = [name for name in ROW_METRICS if needle is not None or not name.startswith("needle")]
    metrics = torch.full((len(shown), inner.h, inner.n_q), torch.nan, dtype=torch.float64, device=qkv.device)
    for heads in shared.heads():
        part = None if matrix is None else matrix.heads(heads)
        sums = None if log_sums is None else log_sums[heads]
        found = _judged(shared, heads, part, output[heads].double().flatten(0, 1), sums, needle)
        for number, name in enumerate(shown):
            if name in found:
                metrics[number, heads] = found[name].unflatten(0, (-1, inner.n_q))
    metrics = dict(zip(shown, metrics, strict=True))
    return metrics if outer is None else {name: _spread(x, outer) for name, x in metrics.items()}


def _check_needle(needle: Tensor, n_k: int) -> None:
    if needle.dtype != torch.int64 or needle.dim() != 1 or not len(needle):
        shape, dtype = tuple(needle.shape), str(needle.dtype)[6:]
        raise UsageError(f"needle: numbers of keys are needed, (m,) int64; got shape {shape}, {dtype}")
    if needle.min() < 0 or needle.max() >= n_k:
        raise UsageError(f"needle: keys {int(needle.min())} … {int(needle.max())} are not among the {n_k} keys")
    if len(needle.unique()) < len(needle):
        raise UsageError("needle: a key is named twice")


def _judged(
    shared: ExactRows,
    heads: slice,
    matrix: Operator | None,
    output: Tensor,
    log_sums: Tensor | None,
    needle: Tensor | None,
) -> dict[str, Tensor]:
    """The metrics of the rows of g heads, (g n_q,) each, from their matrices and their outputs (g n_q, p_v)."""
    blocks = [_sums_of_block(shared, heads, slice(*rows), matrix, log_sums, needle) for rows in shared.blocks()]
    values = {name: _joined([block[name] for block in blocks], heads.stop - heads.start) for name in blocks[0]}
    exact = values["output"]
    size, error = row_norms(exact), output - exact
    values["row_error"] = _over_size(row_norms(error), size)
    values["row_error_angle"] = _angle(output, exact)
    if shared.wide_block is not None:
        of_each = error.unflatten(0, (-1, shared.qkv.n_q))
        values["residual_error"] = head_residuals(of_each, shared.wide_block, shared.qkv.heads[heads]).flatten()
    if log_sums is not None:
        values["log_normaliser_error"] = log_sums.flatten() - values["log_sum"]
    return values if matrix is None else {**values, **_of_keys(values, size)}


def _joined(blocks: Sequence[Tensor], g: int) -> Tensor:
    """The values of blocks of the rows of g heads, (g r, …) each, as (g n_q, …)."""
    if g == 1:
        return torch.cat(list(blocks))
    return torch.cat([block.unflatten(0, (g, -1)) for block in blocks], 1).flatten(0, 1)


def _of_keys(sums: Mapping[str, Tensor], size: Tensor) -> dict[str, Tensor]:
    """The metrics of the chosen keys of rows, (n_q,) each, from `_sums` and the sizes of outputs (n_q,).

    A key that is not chosen adds ``P_j / 2`` to the total variation, ``P_j`` to KL and ``P_j ln(2) / 2`` to the
    Jensen-Shannon divergence.
    """
    mass, lost, keys, exact, smaller = (sums[name] for name in ("mass", "lost", "keys", "output", "smaller"))
    more = (mass >= lost)[:, None]
    rest = exact - smaller  # without cancellation: it is the larger part
    outside, inside = torch.where(more, smaller, rest), torch.where(more, rest, smaller)
    gap = _over_size(row_norms(outside / lost[:, None] - inside / mass[:, None]), size)
    oracle = sums["mass_oracle"].masked_fill(keys == 0, 0.0)
    return {
        "mass_oracle": oracle,
        "mass_efficiency": mass / oracle,
        "recall_k": torch.minimum(sums["good"], keys) / keys,
        "tv": (sums["tv"] + lost) / 2,
        "kl": sums["kl"] + lost,  # infinite for a weight of a hidden key
        "js": (sums["js"] + lost * LN2) / 2,
        "tail_gap": gap.masked_fill(~(lost > 0), 0.0),
    }


def _sums_of_block(
    shared: ExactRows,
    heads: slice,
    rows: slice,
    matrix: Operator | None,
    log_sums: Tensor | None,
    needle: Tensor | None,
) -> dict[str, Tensor]:
    """What `_judged` needs of a block of b rows: the metrics of P alone, ``output`` and ``log_sum``, and `_sums`."""
    exact = shared.block(heads, rows)
    found = None if matrix is None else _slots(matrix, rows, exact.keys)
    if found is not None and exact.keys < shared.qkv.n_k and _look_ahead(*found, exact.keys):
        # a method that looks ahead has weights of keys that no query of the block sees
        exact = shared.computed(heads, rows, shared.qkv.n_k)
    values = {**exact.values, "output": exact.output, "log_sum": exact.log_sum}
    if needle is not None:
        values["needle_mass"] = exact.p[:, needle[needle < exact.keys]].sum(-1)
    if matrix is None or found is None:
        return values
    if needle is not None:
        values["needle_mass_kept"] = matrix.rows(rows.start, rows.stop).flatten(0, 1)[:, needle].double().sum(-1)
    of_sink = None
    if shared.sinks is not None:
        assert log_sums is not None  # methods without a normaliser take no sinks
        of_sink = (shared.sinks[heads, None] - log_sums[:, rows]).exp().view(-1, 1)
    return {**values, **_sums(shared, heads, exact, *_in_columns(exact, *found, of_sink))}


def _slots(matrix: Operator, rows: slice, keys: int) -> tuple[Tensor | None, Tensor]:
    """The keys and the weights of rows in slots, (b, u) each, where these are fewer than the keys that a row sees.

    Else the weights of all keys, (b, n_k), and None.
    """
    slots = matrix.slots(rows.start, rows.stop)
    if slots is None or slots[0].shape[2] >= keys:
        return None, matrix.rows(rows.start, rows.stop).flatten(0, 1)
    return slots[0].flatten(0, 1), slots[1].flatten(0, 1).double()


def _look_ahead(columns: Tensor | None, weights: Tensor, keys: int) -> bool:
    """Whether a row has a weight of a key after the first ``keys``."""
    if columns is None:
        return bool(weights[:, keys:].count_nonzero())
    # most slots without a weight have no such key either
    return bool(columns.max() >= keys) and bool((_nonzero(weights) & (columns >= keys)).any())


def _in_columns(
    exact: ExactBlock, columns: Tensor | None, weights: Tensor, of_sink: Tensor | None
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Columns of an exact block, weights in float64 with that of the sink (b, 1), and whether each is not 0, (b, u)."""
    width = exact.p.shape[1]
    if columns is None:
        w = weights[:, : exact.keys].double()
        if of_sink is not None:
            w = torch.cat([w, torch.zeros_like(of_sink), of_sink], 1)
        return None, w, _nonzero(w)
    w = weights.double()
    if of_sink is not None:
        columns, w = functional.pad(columns, (0, 1), value=width - 1), torch.cat([w, of_sink], 1)
    chosen = _nonzero(w)
    return torch.where(chosen, columns, exact.keys), w, chosen


def _sums(
    shared: ExactRows, heads: slice, exact: ExactBlock, columns: Tensor | None, w: Tensor, chosen: Tensor
) -> dict[str, Tensor]:
    """Sums over the keys of rows of g heads with weights w (b, u), (b,) each.

    ``lost`` is the mass of the keys that are not chosen, and ``smaller`` the part of ``P V`` with less mass, (b, p_v).
    Only these two read all of a row.

    Args:
        columns, w, chosen: see `_in_columns`.
    """
    p = _times(exact.p[:, : w.shape[1]], chosen) if columns is None else exact.p.gather(1, columns)
    keys, mass = chosen.sum(-1), p.sum(-1)
    rest = exact.held[:, -1] - mass
    less = mass < rest
    smaller, side = _smaller_side(shared, heads, exact, columns, p, chosen, less)
    least = exact.ordered.gather(1, (exact.ordered.shape[1] - keys.clamp(min=1))[:, None])
    logs = _logs(exact, columns, w, p, chosen, least - TIED)
    more = w - p
    kl = linalg.vecdot(w, logs.of_ratio) - more.sum(-1)
    return {
        "mass": mass,
        "lost": torch.where(less, rest, side),
        "smaller": smaller,
        "keys": keys.double(),
        "mass_oracle": exact.held.gather(1, (keys - 1).clamp(min=0)[:, None])[:, 0],
        "good": (logs.good & chosen).sum(-1).double(),
        "js": linalg.vecdot(w, logs.of_w) - linalg.vecdot(p, logs.of_p),
        "kl": kl,
        "tv": more.abs_().sum(-1),
    }


def _smaller_side(
    shared: ExactRows,
    heads: slice,
    exact: ExactBlock,
    columns: Tensor | None,
    p: Tensor,
    chosen: Tensor,
    less: Tensor,
) -> tuple[Tensor, Tensor]:
    """``Σ P_j v_j``, (b, p_v), and ``Σ P_j``, (b,), of chosen keys in the rows ``less`` (b,), of the others elsewhere.

    The side with less mass alone is multiplied by V: the larger one is the rest of `P V`, without cancellation.
    """
    if columns is None:
        left = _times(exact.p[:, : p.shape[1]], chosen == less[:, None])
    else:
        of_less = less.double()[:, None]
        left = torch.mul(exact.p, 1 - of_less, out=shared.memory(exact.p)).scatter_(1, columns, p * of_less)
    product, p_v = product_of_heads(left[:, : exact.keys], shared.values_of(heads, exact.keys)), exact.output.shape[1]
    side = product[:, p_v]
    if exact.p.shape[1] > exact.keys + 1:
        side = side + left[:, -1]  # of the sink, which has no value
    return product[:, :p_v], side


class _Logs(NamedTuple):
    """Logarithms of weights in slots, (b, u) each: ``ln(P~/P)``, ``ln(P~/M)`` and ``ln(M/P)``, M = (P + P~)/2.

    good: ``ln P`` is not below a bound. Slots without a weight have finite numbers.
    """

    of_ratio: Tensor
    of_w: Tensor
    of_p: Tensor
    good: Tensor


def _logs(exact: ExactBlock, columns: Tensor | None, w: Tensor, p: Tensor, chosen: Tensor, bound: Tensor) -> _Logs:
    """The `_Logs` of weights w of keys of mass p with a bound (b, 1) of ``ln P``.

    A CPU computes them from the ratio, unless a key is hidden or P is so small that it has few bits: that takes a
    logarithm less, and does not read ``ln P``.
    """
    if p.device.type == "cpu" and np.array_equal(p.numpy() >= NORMAL, chosen.numpy()):
        ratio = w / p.clamp(min=NORMAL)
        of_ratio, of_p = _log(ratio), _log(ratio.add_(1).mul_(0.5))
        return _Logs(of_ratio, of_ratio - of_p, of_p, _at_least(p, bound.exp()))
    if columns is None:
        log_p = exact.log_p[:, : p.shape[1]].masked_fill(~chosen, LEAST)
    else:
        log_p = exact.log_p.gather(1, columns)
    log_w, log_mean = _log(w), _log((p + w).mul_(0.5))
    of_p = log_mean - log_p.clamp(min=LEAST)
    return _Logs(log_w - log_p, log_w - log_mean, of_p, _at_least(log_p, bound))


def _nonzero(x: Tensor) -> Tensor:
    """``x != 0``; on a CPU by numpy, which is several times as fast."""
    return x != 0 if x.device.type != "cpu" else torch.from_numpy(x.numpy() != 0)


def _at_least(x: Tensor, bound: Tensor) -> Tensor:
    """``x >= bound``; on a CPU by numpy, which is faster."""
    return x >= bound if x.device.type != "cpu" else torch.from_numpy(x.numpy() >= bound.numpy())


def _times(p: Tensor, free: Tensor) -> Tensor:
    """``p`` where ``free``, else 0; on a CPU by numpy, which is twice as fast."""
    return p * free if p.device.type != "cpu" else torch.from_numpy(p.numpy() * free.numpy())


def _log(x: Tensor) -> Tensor:
    """``ln x``, `LEAST` of 0 and NaN of negative numbers; on a CPU by numpy, which is twice as fast."""
    if x.device.type != "cpu":
        return x.log().clamp_(min=LEAST)
    with np.errstate(divide="ignore", invalid="ignore"):
        return torch.from_numpy(np.log(x.numpy())).clamp_(min=LEAST)


def _over_size(x: Tensor, size: Tensor) -> Tensor:
    """``x / size``; 0 if x is 0, so that a row that is zero in both has no error."""
    return torch.where(x == 0, x, x / size)


def _angle(a: Tensor, b: Tensor) -> Tensor:
    """``1 - cos(a, b)`` of rows: half the squared distance of their unit vectors, without cancellation.

    0 if both rows are zero, 1 if one is.
    """
    a, b = a / unit_of(a), b / unit_of(b)
    norm_a, norm_b = a.norm(dim=-1), b.norm(dim=-1)
    between = (a / norm_a[:, None] - b / norm_b[:, None]).square().sum(-1) / 2
    zero_a, zero_b = norm_a == 0, norm_b == 0
    between = between.masked_fill(zero_a ^ zero_b, 1.0)
    return between.masked_fill(zero_a & zero_b, 0.0)


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    """The values of the valid rows among all, NaN at the padding."""
    out = values.new_full((len(values), len(mask)), torch.nan)
    out[:, mask] = values
    return out
