"""Choice of rows: weighted sampling with or without replacement, ridge leverage scores, k-means. All in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log, log2

import torch
from torch import Tensor

from .. import LowRank
from ..blocks import head_blocks
from ..precision import ordered_sums
from .norms import unit_of

Kernel = Callable[[Tensor, Tensor], Tensor]
BLOCK = 1024  # rows whose distances are alive at once
FLOOR = 1e-12  # of the largest weight, so that any number of items can be drawn


def weighted_with_replacement(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """``count`` indices drawn independently with probability proportional to ``weights`` (N,), by inversion.

    An index of weight zero is never drawn. The uniform numbers depend on ``generator`` and ``count`` only, so different
    weights share them. Returns (count,) int64 on the CPU.

    >>> weighted_with_replacement(torch.tensor([0.0, 2.0, 0.0]), 3, torch.Generator().manual_seed(0)).tolist()
    [1, 1, 1]
    """
    total = weights.detach().cpu().double().cumsum(0)
    uniform = torch.rand(count, generator=generator, dtype=torch.float64, device="cpu")
    return torch.searchsorted(total / total[-1], uniform, right=True)  # the first place above, and the last is 1


def weighted_without_replacement(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """``count`` distinct indices drawn one after another with probability proportional to ``weights`` (N,).

    The Gumbel-top-k trick gives the same distribution as sequential draws, for any N. Weights of zero count as 1e-12 of
    the largest. Returns (count,) int64 on the CPU.
    """
    weights = weights.detach().cpu().double()
    top = weights.max()
    log_weights = weights.clamp(min=float(top) * FLOOR if top > 0 else 1.0).log()
    uniform = torch.rand(weights.shape, generator=generator, dtype=torch.float64, device="cpu")
    gumbel = -torch.log(-torch.log(uniform.clamp(min=torch.finfo(torch.float64).tiny)))
    return (log_weights + gumbel).topk(count).indices


def recursive_rls(x: Tensor, s: int, kernel: Kernel, generator: torch.Generator) -> Tensor:
    """``s`` distinct rows of ``x`` (N, p), drawn by recursively estimated ridge leverage scores; (s,) int64.

    ``kernel(a, b)`` is a positive semidefinite kernel with unit diagonal. The first level is a small uniform sample;
    each level has twice the rows of the one below. The scores ``l_i = (K (K + λI)⁻¹)_ii`` of a level are estimated with
    the landmarks of the level below. λ is the sum of the eigenvalues beyond the leading ``k = ⌈s / (4 ln s)⌉``, divided
    by k. Source: Musco & Musco 2017, Algorithm 3. Cost ``N s (p + s)`` multiply-adds for a kernel of dot products.
    """
    total = x.shape[0]
    order = torch.randperm(total, generator=generator, device="cpu")
    if s >= total:
        return order
    x = x.double()
    over = max(log(s), log(2))
    rank = ceil(s / (4 * over))
    sizes = [total]
    for _ in range(ceil(log2(total / s))):
        sizes.append(ceil(sizes[-1] / 2))
    landmarks = order[: sizes[-1]]
    weights = torch.ones(len(landmarks), dtype=torch.float64, device="cpu")
    for size in reversed(sizes[:-1]):
        current = order[:size]
        scores = _ridge_scores(x, current, landmarks, weights, rank, kernel)
        if size == total:
            return current[weighted_without_replacement(scores.clamp(max=1), s, generator)]
        probability = (over * scores).clamp(max=1)
        drawn = torch.rand(size, generator=generator, dtype=torch.float64, device="cpu") < probability
        if not drawn.any():
            drawn[torch.randperm(size, generator=generator, device="cpu")[:s]] = True
            probability = torch.full_like(probability, min(1.0, s / size))
        landmarks, weights = current[drawn], probability[drawn].rsqrt()
    raise AssertionError("the last level returns")


def _ridge_scores(x: Tensor, rows: Tensor, landmarks: Tensor, weights: Tensor, rank: int, kernel: Kernel) -> Tensor:
    """Estimated ridge leverage scores of ``rows`` from weighted ``landmarks``, (len(rows),) on the CPU."""
    core = kernel(x[landmarks], x[landmarks])  # (m, m)
    weights = weights.to(core)
    if rank >= len(landmarks):
        ridge = 1e-5
    else:
        spectrum = torch.linalg.eigvalsh(weights[:, None] * core * weights).clamp(min=0)
        ridge = max(float(spectrum[:-rank].sum()) / rank, 1e-12)
    cross = kernel(x[rows], x[landmarks])  # (N, m)
    solved = torch.linalg.solve(core + torch.diag(ridge / weights**2), cross.mT)  # (m, N)
    return ((1 - (cross.mT * solved).sum(0)) / ridge).clamp(min=0).cpu()


def kmeans(x: Tensor, count: int, generators: Sequence[torch.Generator], steps: int = 10) -> Tensor:
    """``count`` centroids of the rows of ``x`` (h, N, p) after ``steps`` of Lloyd's algorithm, (h, count, p) float64.

    Each head starts from distinct rows, drawn by its generator. An empty cluster keeps its centroid. Cost ``N count p``
    multiply-adds a step.
    """
    unit = unit_of(x.double(), 2)  # (h, 1, 1): no square of a distance overflows
    x = x.double() / unit
    h, total, p = x.shape
    starts = [torch.randperm(total, generator=generator, device="cpu")[:count] for generator in generators]
    index = torch.stack(starts).to(x.device)  # (h, count)
    centroids = torch.gather(x, 1, index[..., None].expand(-1, -1, p))
    first = count * torch.arange(h, device=x.device)[:, None]  # of the centroids of all heads, one after another
    for _ in range(steps):
        size = (centroids * centroids).sum(-1)[:, None]  # ‖x_i - c_j‖² = ‖x_i‖² + size_j - 2 x_i·c_j
        nearest = torch.empty(h, total, dtype=torch.int64, device=x.device)
        for heads, start, stop in head_blocks(
            LowRank(x, None, centroids.mT), BLOCK
        ):  # which has the shape of distances
            distances = torch.baddbmm(size[heads], x[heads, start:stop], centroids[heads].mT, alpha=-2)
            nearest[heads, start:stop] = distances.argmin(-1)
        nearest = (nearest + first).flatten()  # (h · N,)
        with ordered_sums(x.device):
            sums = x.new_zeros(h * count, p).index_add(0, nearest, x.flatten(0, 1)).view(h, count, p)
        sizes = torch.bincount(nearest, minlength=h * count).view(h, count, 1)
        centroids = torch.where(sizes > 0, sums / sizes.clamp(min=1), centroids)
    return centroids * unit
