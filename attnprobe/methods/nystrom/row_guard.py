"""Detects rows whose approximate normaliser is certainly wrong, and replaces them.

An approximation ``A~`` of the softmax kernel may have negative entries, so ``D~ = A~ 1`` may be too small or even
negative. The exact entries at the sampled keys are computed anyway, and bound it: ``D_i ≥ Σ_{j sampled} A_ij``. A row
below that bound by more than rounding is certainly wrong. In pretrained heads at d = 128 these are 3-8 % of the rows.
Their output errors reach 133 times ``‖BV‖``; the median head has 0.2-0.5.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import Unsupported
from ...operators import LowRank, Operator, RankOne, RowOverride, Scaled, SoftmaxAttention, Sparse
from ...operators.groups import tokens
from ..base import ragged

NOISE = 20  # eps of a normaliser's factors: the most by which another order of sums moves it
FLOOR, STEADY = 5, 100  # times the noise: rounding moves such a normaliser by at most a fifth, and by at most 1 %
SLACK = 1e-6  # relative: if every key is sampled, the bound is D itself, and rounding may put D~ below it


def normaliser_noise(low_rank: LowRank, inverse_norm: Tensor) -> Tensor:
    """The most by which rounding moves a normaliser ``D~_i = L_i M⁺ w``, ``w = R E_K 1``, (h, n_q).

    It is ``20 eps ‖L_i‖ ‖M⁺‖ ‖w‖``. Two orders of sums, over coordinates, landmarks and keys, or two processors, differ
    by at most 17 times ``eps ‖L_i‖ ‖M⁺‖ ‖w‖`` (measured, on cores of every condition). An entry of ``A~_i`` has the
    same noise with ``R_j`` in place of w.

    Args:
        inverse_norm: ``‖M⁺‖₂``, (h,).
    """
    w = low_rank.right.sum(-1).norm(dim=-1)  # (h,)
    return NOISE * torch.finfo(low_rank.dtype).eps * low_rank.left.norm(dim=-1) * (inverse_norm * w)[:, None]


def noise_floor(noise: Tensor, times: int = FLOOR) -> Tensor:
    """The value below which a normaliser is rounding, (h, n_q): 5 times its noise, or ``times``.

    It matters when lifted scores ``‖k‖²·scale`` exceed about 60, as in layer 0 of pretrained models. The floor is at
    least the smallest normal number, whose reciprocal is still finite.
    """
    return (times * noise).clamp(min=torch.finfo(noise.dtype).tiny)


def exact_normalizer(attention: SoftmaxAttention, log_factor: Tensor) -> Tensor:
    """The true row sums D divided by ``exp(log_factor)``, (h, n_q); a factored form omits this factor of its rows."""
    return torch.exp(attention.log_normalizer() - log_factor)


def sampled_key_mass(
    left: Tensor, indices: Tensor, n_q: int, k: Tensor, scale: float, head_shift: Tensor
) -> tuple[Tensor, Tensor]:
    """``Σ_j A_ij`` over the distinct sampled keys, (h, n_q), in the units of ``left``; and those keys, (h, d).

    ``left`` is ``κ(Q, X_S)`` with scaled rows. Its column of a key j becomes ``A_ij`` by the factor
    ``exp(‖k_j‖²·scale/2 - head_shift)``. The slots of queries and of repeated keys are -1.
    """
    order = torch.argsort(indices, dim=1, stable=True)
    ordered = torch.gather(indices, 1, order)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    # A key that was drawn twice would count twice, and the bound would no longer be below D.
    is_first = torch.zeros_like(first).scatter(1, order, first)
    key = torch.where(is_first & (indices >= n_q), indices - n_q, torch.full_like(indices, -1))  # (h, d)
    half = (k * k).sum(-1) * (scale / 2)  # (h, n_k)
    weight = torch.exp(torch.gather(half, 1, key.clamp(min=0)) - head_shift[:, None])
    weight = torch.where(key >= 0, weight, torch.zeros_like(weight))
    return (left @ weight[..., None])[..., 0], key


def certainly_wrong(mass: Tensor, noise: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Whether rows are certainly wrong, and whether rounding decides that, (h, n_q) bool each.

    A row is wrong if its normaliser is below its bound by more than twice the noise, or if rounding moves it by more
    than 1 %. If the noise could take the normaliser across this limit, rounding decides.

    Args:
        mass: ``D~``. noise: see `normaliser_noise`. bound: a lower bound of D. All (h, n_q).
    """
    slack = max(SLACK, torch.finfo(mass.dtype).eps ** 0.5)
    margin = torch.maximum(2 * noise, slack * bound)
    least = torch.maximum(bound - margin, noise_floor(noise, STEADY))
    return ~(mass >= least), (mass - least).abs() <= margin / 2


def guarded(
    low_rank: LowRank,
    mass: Tensor,
    bad: Tensor,
    bound: Tensor,
    guard: str,
    q: Tensor,
    k: Tensor,
    scale: float,
    key: Tensor,
) -> tuple[Operator, Tensor, Tensor]:
    """The normalised operator with its bad rows replaced, the number of these rows (h,), and the extra entries (h,).

    Args:
        low_rank: ``A~``, (h, n_q, n_k). mass: ``D~``, (h, n_q). bad: the rows to replace, (h, n_q) bool.
        bound: a lower bound of D, (h, n_q).
        guard: ``sampled`` | ``floor`` | ``vmean`` | ``exact``, as in ``skyformer``. If the bound of a row underflows,
            ``floor`` acts as ``sampled``.
        q, k: (h, n_q, p) and (h, n_k, p). key: the sampled keys, (h, d), -1 in empty slots.

    Raises:
        Unsupported: the guard needs a sampled key, and a head with bad rows has none.
    """
    h, n_q, n_k = low_rank.shape
    count = bad.sum(-1)
    free = torch.zeros(h, dtype=torch.float64, device=mass.device)
    if guard in ("sampled", "floor") and ((key < 0).all(1) & (count > 0)).any():
        raise Unsupported(f"skyformer: guard={guard} has no key among the landmarks of a head; raise d")
    if guard == "floor":
        raised = bad & (bound >= torch.finfo(mass.dtype).tiny)
        mass = torch.where(raised, bound, mass)
        bad = bad & ~raised
    base = Scaled(low_rank, left=1 / torch.where(bad, torch.ones_like(mass), mass))
    if not bad.any():
        return base, count, free
    rows = ragged(bad)  # (h, u)
    picked = tokens(q, rows)  # (h, u, p)
    if guard == "vmean":
        ones, mean = q.new_ones(h, rows.shape[1]), q.new_full((h, n_k), 1 / n_k)
        return RowOverride(base, rows, RankOne(ones, mean)), count, free
    if guard == "exact":
        return RowOverride(base, rows, SoftmaxAttention(picked, k, scale)), count, (count * n_k).double()
    keys = tokens(k, key)  # (h, d, p)
    scores = (scale * picked @ keys.mT).masked_fill((key < 0)[:, None, :], float("-inf"))
    weights = torch.softmax(scores, -1).nan_to_num(0.0)  # (h, u, d)
    index = key[:, None, :].expand(-1, rows.shape[1], -1)
    return RowOverride(base, rows, Sparse(index, weights, n_k)), count, free
