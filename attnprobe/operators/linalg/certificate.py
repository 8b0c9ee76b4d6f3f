"""Upper bounds of ``‖E‖₂²`` from the small matrices of a block Krylov space.

Notation. ``A = EᵀE`` is m x m with largest eigenvalue λ₁ and unit eigenvector x. Ω (m x s) has independent N(0, 1)
entries, drawn independently of E; ``Ω = V₁ R``. ``V = [V₁ … V_k]`` has orthonormal columns, ``T = VᵀAV = Y diag(θ)
Yᵀ``, and ``AV = VT + Q B [0 … 0 I]`` with orthonormal Q: the part of A V outside of V is in its last block. With
``P = Rᵀ Y_first`` and ``C = B Y_last`` (the first and last s rows of Y), both s x K,

    ``M(λ) = P diag(1/(λ - θ)) Cᵀ``  and  ``f(λ) = ‖M(λ)‖₂``   for λ > θ₁.

**Bound B** (`root_bound`). Multiply ``AV = VT + QB[0 … I]`` from the left by xᵀ: ``(λ₁ - T) Vᵀx = Y Cᵀ z`` with ``z =
Qᵀx``, ``‖z‖ ≤ 1``. The columns of Ω lie in V, so ``w = Ωᵀx = M(λ₁) z`` and ``‖w‖ ≤ f(λ₁)``. x does not depend on Ω, so
w is N(0, I_s), and ``‖w‖ ≥ t`` with probability 1 - δ for ``t² = χ²_s(δ)``. In that event λ₁ is θ₁ or a point above it
at which f is at least t. So the largest such point is an upper bound. The event does not depend on k: the bounds of all
passes hold in it together, and a stop after any pass does not change the probability. (The case s = 1 is van
Dorsselaer, Hochstenbach & van der Vorst 2000.)

f need not be monotone for s > 1: products of decreasing matrices can grow. So `root_bound` does not search for a root.
It starts at a point above which f is below t term by term, and goes down from cell to cell. It passes a cell ``[a, b]``
only if a bound of f over the *entire* cell is below t. In the cell 1/x is below its chord by at most ``(a^-½ -
b^-½)²``. The chords of all terms are one convex combination of M(a) and M(b). So ``f ≤ max(f(a), f(b)) + Σ_i ‖P_i‖
‖C_i‖ (a^-½ - b^-½)²``.

**A priori** (`a_priori_bound`). In the same event and for every spectrum, Chebyshev polynomials of the second kind as
trial vectors give ``λ₁ ≤ θ₁ cosh²(asinh(‖R‖/t) / (2k - 1))`` (Kuczyński & Woźniakowski 1992, for a block).

**Bound A** (`trace_bounds`), deterministic. In an orthonormal basis that starts with V and Q, A is ``[[T, Ĉᵀ], [Ĉ,
N]]`` with Ĉ the coupling C and N positive semidefinite of trace ``τ² = ‖E‖_F² - tr T``, hence at most τ² I, and λ₁
is at most the largest eigenvalue of ``[[T, Cᵀ], [C, τ² I]]``.

**Rounding.** With computed arrays the first identity holds up to a residual F' of norm at most η, which adds
``η ‖P diag(1/(λ - θ))‖`` to f. V need not be orthogonal for bound B; the lower end θ₁ and bound A need it.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from ...errors import UsageError

LARGEST_STEP, SMALLEST_STEP = 0.4, 2e-3  # of log(λ - θ₁) from cell to cell
MOST_STEPS = 400


def threshold(delta: float, s: int) -> float:
    """``t`` with ``P(‖w‖ < t) = δ`` for w of N(0, I_s).

    >>> round(threshold(1e-6, 16), 2)
    1.2
    """
    from scipy.special import gammaincinv

    if not 0 < delta < 1:
        raise UsageError(f"a failure probability of {delta} is not in (0, 1)")
    return sqrt(2 * gammaincinv(s / 2, delta))  # a quantile of χ²_s


def root_bound(
    theta: Tensor, p: Tensor, c: Tensor, t: float | Tensor, eta: Tensor, enough: Tensor | None = None
) -> Tensor:
    """Bound B: an upper bound of ``sup({θ₁} ∪ {λ > θ₁ : f(λ) + φ(λ) ≥ t})``, (N,), with ``φ = η ‖P/(λ - θ)‖_F``.

    Args:
        theta: (N, K) ascending. p, c: (N, s, K). eta: (N,). All float64. t: a number, or one for each, (N,).
        enough: the march may end at this point, (N,); θ₁ by default.

    Every point above the result is excluded, so an early end of the march only widens the bound. The result exceeds the
    supremum by about one last cell, 0.2 % of its distance to θ₁. Cost ``s² K`` multiply-adds a step, 20 to 80 steps.
    """
    top = theta[:, -1]
    gap = top[:, None] - theta  # (N, K); λ - θ_i = d + gap_i without cancellation
    size_p = p.norm(dim=1)
    weight = size_p * c.norm(dim=1)  # (N, K)

    def m(far: Tensor) -> Tensor:
        """M at the distances ``λ - θ`` (N, K), (N, s, s)."""
        return (p / far[:, None, :]) @ c.mT

    bound = (weight.sum(-1) + eta * size_p.sum(-1)) / t  # every term of f + φ has a denominator of at least d
    least = 1e-13 * top
    least = least if enough is None else torch.maximum(least, enough - top)
    done = bound <= least
    b = torch.where(done, torch.ones_like(bound), bound)
    step = torch.full_like(b, LARGEST_STEP)
    far_b = b[:, None] + gap
    m_b, root_b = m(far_b), far_b.rsqrt()
    f_b, is_norm = _frobenius(m_b), False
    for _ in range(MOST_STEPS):
        if done.all():
            break
        a = b * torch.exp(-step)
        far_a = a[:, None] + gap
        m_a, root_a = m(far_a), far_a.rsqrt()
        f_a = _frobenius(m_a)
        sag = (root_a - root_b).square()  # of a chord under 1/x
        rest = (weight * sag).sum(-1) + eta * (size_p / far_a).norm(dim=-1)
        clear = torch.maximum(f_a, f_b) + rest < t
        sharper = not (clear | done).all()
        if sharper:  # only then the norm itself
            f_a, f_b = _norm(m_a), f_b if is_norm else _norm(m_b)
            clear = torch.maximum(f_a, f_b) + rest < t
        is_norm = sharper
        clear &= ~done
        b, f_b = torch.where(clear, a, b), torch.where(clear, f_a, f_b)
        m_b, root_b = torch.where(clear[:, None, None], m_a, m_b), torch.where(clear[:, None], root_a, root_b)
        bound = torch.where(done, bound, b)
        done = done | (~clear & (step <= SMALLEST_STEP)) | (b <= least)
        step = torch.where(clear, (2 * step).clamp(max=LARGEST_STEP), step / 2)
    return top + bound


def _frobenius(m: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(m)


def _norm(m: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(m @ m.mT)[:, -1].clamp(min=0).sqrt()


def a_priori_bound(theta1: Tensor, size_r: Tensor, t: float | Tensor, passes: int) -> Tensor:
    """``θ₁ cosh²(asinh(‖R‖₂/t) / (2k - 1))`` after k = ``passes``, (N,): a bound of λ₁ in the event of bound B.

    Args:
        theta1: θ₁, (N,). size_r: ``‖R‖₂``, (N,) or (). t: as in `threshold`.
    """
    return theta1 * torch.cosh(torch.asinh(size_r / t) / (2 * passes - 1)).square()


def trace_bounds(theta: Tensor, c: Tensor, tau2: Tensor) -> Tensor:
    """Bound A: the eigenvalues of ``[[diag θ, Cᵀ], [C, τ² I]]``, ascending, (N, K + s); the last bounds λ₁.

    The i-th largest of them is an upper bound of the i-th largest eigenvalue of A. Cost O((K + s)³).

    Args:
        theta: (N, K). c: (N, s, K). tau2: (N,), at least ``‖E‖_F² - tr T``.
    """
    count, s, k = c.shape
    matrix = c.new_zeros(count, k + s, k + s)
    matrix[:, :k, :k] = torch.diag_embed(theta)
    matrix[:, k:, :k] = c  # eigvalsh reads the lower triangle
    matrix[:, k:, k:] = torch.diag_embed(tau2[:, None].expand(-1, s))
    return torch.linalg.eigvalsh(matrix)
