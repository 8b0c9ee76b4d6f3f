"""Quadratic forms ``vᵀ f(A) v`` of a positive semidefinite A by Lanczos quadrature, each between two bounds.

k steps of Lanczos from a unit vector v give a k x k tridiagonal T with diagonal α and off-diagonal β. Its eigenvalues θ
and the squared first components w of its eigenvectors are the nodes and weights of the Gauss rule of v's spectral
measure. Let ``f(x) = x/(x + λ) = 1 - λ/(x + λ)``. The even derivatives of 1/(x + λ) are positive and the odd ones
negative. So by their error terms the Gauss rule is never below ``vᵀ f(A) v``, and the Gauss-Radau rule with a node at
the lower end of the spectrum is never above it (Golub & Meurant 1994, theorems 3.2 and 3.4). One run serves every λ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .norms import unit_of_squares

Product = Callable[[Tensor], Tensor]
EVERY = 4  # steps between two looks at the bounds


@dataclass(frozen=True)
class Forms:
    """``v_iᵀ A (A + λ_j I)⁻¹ v_i`` of c unit vectors and L values of λ, each (c, L) float64.

    Attributes:
        lower, upper: the Gauss-Radau and the Gauss rule, which enclose the form in exact arithmetic.
        rounding: a bound of the rounding of the products, which widens the bracket on both sides.
        steps: the steps of the Lanczos recursion. top: the largest Ritz value, a lower bound of ‖A‖₂.
    """

    lower: Tensor
    upper: Tensor
    rounding: Tensor
    steps: int
    top: float


def quadratic_forms(
    product: Product, v: Tensor, lambdas: Tensor, *, eta: float, enough: Callable[[Forms], bool], max_steps: int
) -> Forms:
    """``v_iᵀ A (A + λ_j I)⁻¹ v_i`` for the c columns of v (N, c), by Lanczos from each of them.

    Every new vector is orthogonalised twice against all earlier ones of its column, so the rules are those of exact
    arithmetic up to rounding. A perturbation E of A moves the form by at most ``‖E‖ q/λ`` up to higher order, with ``q
    = ‖λ (A + λI)⁻¹ v‖²``, which has the same nodes and weights. The products are assumed to have ``‖E‖ ≤ η ‖A‖``, and
    the fixed node is at ``-η ‖A‖``.

    Args:
        product: ``x (N, c) -> A x``, float64.
        v: unit columns. lambdas: (L,) positive. eta: η, the relative error of the products.
        enough: whether the bounds are close enough; called every 4 steps.
        max_steps: the largest number of steps.

    Cost: one product and ``4 N c k`` multiply-adds in step k; memory ``8 N c`` bytes a step.
    """
    n, c = v.shape
    max_steps = max(1, min(max_steps, n))
    basis = v.new_empty(c, max_steps + 1, n)  # (c, k, N)
    basis[:, 0] = v.mT
    alpha, beta = v.new_zeros(c, max_steps), v.new_zeros(c, max_steps)
    unit = v.new_ones(())
    for k in range(max_steps):
        w = product(basis[:, k].mT.contiguous()).mT  # (c, N)
        if k == 0:
            unit = unit_of_squares(w.abs().amax())
            lambdas = (lambdas / unit).clamp(max=torch.finfo(w.dtype).max / 2)
        w = w / unit
        alpha[:, k] = (w * basis[:, k]).sum(-1)
        known = basis[:, : k + 1]
        for _ in range(2):
            w = w - (torch.bmm(known, w[:, :, None]).mT @ known)[:, 0]
        beta[:, k] = w.norm(dim=-1)
        scale = alpha[:, : k + 1].abs().amax() + beta[:, : k + 1].amax()
        exhausted = beta[:, k] <= 64 * torch.finfo(w.dtype).eps * scale  # the Krylov space is exhausted, the rule exact
        beta[exhausted, k] = 0
        basis[:, k + 1] = torch.where(exhausted[:, None], 0, w / beta[:, k : k + 1].clamp(min=1e-300))
        last = k + 1 == max_steps or bool(exhausted.all())
        if last or (k + 1) % EVERY == 0:
            forms = _rules(alpha[:, : k + 1], beta[:, : k + 1], lambdas, eta)
            if last or enough(forms):
                return replace(forms, top=forms.top * float(unit))
    raise AssertionError("the last step returns")


def _rules(alpha: Tensor, beta: Tensor, lambdas: Tensor, eta: float) -> Forms:
    """Both rules from the coefficients of the recursion (c, k); the last β belongs to the next vector."""
    c, k = alpha.shape
    t = alpha.new_zeros(c, k + 1, k + 1)
    inner = torch.arange(k, device=alpha.device)
    t[:, inner, inner] = alpha
    t[:, inner, inner + 1] = t[:, inner + 1, inner] = beta
    theta, y = torch.linalg.eigh(t[:, :k, :k])
    gauss = y[:, 0].square()  # (c, k)
    top = theta.amax().clamp(min=1e-300)
    node = -eta * top
    gap = (theta - node).clamp(min=torch.finfo(theta.dtype).tiny)
    t[:, k, k] = node + beta[:, -1].square() * (y[:, -1].square() / gap).sum(-1)
    nodes, y = torch.linalg.eigh(t)
    radau = y[:, 0].square()

    def rule(x: Tensor, weight: Tensor) -> Tensor:
        x = x.clamp(min=float(node))[:, None]  # (c, 1, k)
        return (weight[:, None] * (x / (x + lambdas[:, None]))).sum(-1)

    remaining = lambdas[:, None] / (theta.clamp(min=0)[:, None] + lambdas[:, None])  # λ/(θ + λ), (c, L, k)
    q = (gauss[:, None] * remaining.square()).sum(-1)
    lower, upper = rule(nodes, radau), rule(theta, gauss)
    rounding = eta * top / lambdas * q
    unsafe = lambdas <= 4 * eta * top  # rounding decides: nothing is known
    rounding = torch.where(unsafe, torch.zeros_like(rounding), rounding)
    lower = torch.where(unsafe, torch.zeros_like(lower), lower)
    upper = torch.where(unsafe, torch.ones_like(upper), upper)
    return Forms(lower, torch.maximum(upper, lower), rounding, k, float(top))
