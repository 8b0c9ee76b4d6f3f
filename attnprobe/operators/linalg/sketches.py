"""Random sketches S (n, d) with ``E[S Sᵀ] = I``: Gaussian, Hadamard, count, sparse and accumulated. All in float64.

Each is drawn on the CPU and stored densely, ``n d`` numbers, because only its error is measured, not its speed. Each
function of one generator returns S, (n, d) float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import sqrt

import torch
from torch import Tensor

from ...rng import normal_into
from ..threads import side_by_side


def gaussian(n: int, d: int, generator: torch.Generator) -> Tensor:
    """``S_ij ~ N(0, 1/d)``, independent. A larger d keeps the columns of a smaller one, rescaled.

    >>> gaussian(3, 2, torch.Generator().manual_seed(0)).shape
    torch.Size([3, 2])
    """
    return _gaussian_into(torch.empty(d, n, dtype=torch.float64, device="cpu"), generator).T


def _gaussian_into(out: Tensor, generator: torch.Generator) -> Tensor:
    """``Sᵀ`` of `gaussian`, made in ``out`` (d, n)."""
    return normal_into(out, generator).div_(sqrt(len(out)))


def gaussians(n: int, d: int, generators: Sequence[torch.Generator]) -> Tensor:
    """`gaussian` of each of h generators, (h, n, d), one in each thread.

    >>> g = [torch.Generator().manual_seed(seed) for seed in (0, 1, 1)]
    >>> torch.equal(gaussians(4, 2, g[:2])[1], gaussian(4, 2, g[2]))
    True
    """
    out = torch.empty(len(generators), d, n, dtype=torch.float64, device="cpu")
    side_by_side([partial(_gaussian_into, *pair) for pair in zip(out, generators, strict=True)], out.device)
    return out.mT


def srht(n: int, d: int, generator: torch.Generator) -> Tensor:
    """``S_ij = σ_i H_{i r_j} / √d``: signs, a Hadamard matrix H of size N = 2^⌈log2 n⌉, d distinct columns r of it.

    ``H_ir = (-1)^(number of common binary digits of i and r)``. The diagonal of ``S Sᵀ`` is 1, and for d = n = N it is
    I. Source: Ailon & Chazelle 2006, Tropp 2011.

    >>> S = srht(4, 4, torch.Generator().manual_seed(0))
    >>> torch.equal(S @ S.T, torch.eye(4).double())
    True
    """
    size = 1 << (n - 1).bit_length()
    signs = _signs((n,), generator)
    columns = torch.randperm(size, generator=generator, device="cpu")[:d]
    common = torch.arange(n, device="cpu")[:, None] & columns  # (n, d)
    odd = torch.zeros_like(common)
    for bit in range(size.bit_length()):
        odd ^= (common >> bit) & 1
    return signs[:, None] * (1 - 2 * odd).double() / sqrt(d)


def countsketch(n: int, d: int, generator: torch.Generator) -> Tensor:
    """One ±1 in each row, at a uniform column. Source: Charikar, Chen & Farach-Colton 2002; Clarkson & Woodruff 2013.

    >>> countsketch(3, 2, torch.Generator().manual_seed(0)).abs().sum(1).tolist()
    [1.0, 1.0, 1.0]
    """
    signs = _signs((n,), generator)
    bucket = torch.randint(d, (n,), generator=generator, device="cpu")
    out = torch.zeros(n, d, dtype=torch.float64, device="cpu")
    return out.scatter_(1, bucket[:, None], signs[:, None])


def sparse(n: int, d: int, generator: torch.Generator, density: float = 1 / 3) -> Tensor:
    """``±1/√(d·density)`` with probability ``density``, otherwise 0. Source: Achlioptas 2003 (1/3), Li et al. 2006."""
    drawn = torch.rand(d, n, generator=generator, dtype=torch.float64, device="cpu") < density
    return (_signs((d, n), generator) * drawn).T / sqrt(d * density)


def accumulate(n: int, d: int, generator: torch.Generator, terms: int = 4) -> Tensor:
    """The sum of ``terms`` signed uniform row samplings: ``S_j = Σ_t ± √(n / (d·terms)) e_{i(j, t)}``.

    One term is sampling with replacement, many are Gaussian in the limit. Source: Chen & Yang 2021, Accumulations of
    projections.
    """
    rows = torch.randint(n, (d, terms), generator=generator, device="cpu")
    out = torch.zeros(d, n, dtype=torch.float64, device="cpu")
    return out.scatter_add_(1, rows, _signs((d, terms), generator)).T * sqrt(n / (d * terms))


def _signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return (2 * torch.randint(2, shape, generator=generator, device="cpu") - 1).double()
