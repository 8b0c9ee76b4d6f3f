"""Sketches of the product BV of one head: its norms, the optimal sampling probabilities, and the errors of sketches.

The symbols B^(i), V_i, S, p_i, p̂_i, J and β are those of `chen2022`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..operators import SoftmaxAttention
from ..operators.blocks import block_rows, row_blocks
from ..operators.linalg.sampling import weighted_with_replacement
from ..operators.linalg.sketches import gaussian
from ..operators.precision import ordered_sums
from ..qkv import QKV
from .finding import Setting

ROWS = 256  # rows of B in memory at a time
IMAGES = 16  # sketched values S Sᵀ V that are multiplied by B together


def chen2022_quality(estimated: Tensor, optimal: Tensor) -> float:
    """β, the largest number with ``p̂_i ≥ β p_i`` for all i: ``min p̂_i / p_i`` over the i with p_i > 0.

    Source: Chen et al. 2022, Proposition 1. Both (n,) sum to 1, so β is at most 1.

    >>> chen2022_quality(torch.tensor([0.5, 0.5]), torch.tensor([0.8, 0.2]))
    0.625
    """
    positive = optimal > 0
    return float((estimated[positive] / optimal[positive]).min().clamp(max=1))


class SketchedHead:
    """One head of the checks: column and row norms of B, the optimal p, and the errors of sketches.

    Args:
        qkv: Q, K and V of a layer. row: the row of the head.

    Cost ``n_q n_k (p + p_v)`` multiply-adds, in blocks of rows.
    """

    def __init__(self, qkv: QKV, row: int) -> None:
        self.q, self.k, self.v = (x[row].double() for x in (qkv.q, qkv.k, qkv.v))
        self.scale, self.number, n_k = qkv.scale, qkv.heads[row], qkv.n_k
        self.b = SoftmaxAttention(self.q[None], self.k[None], self.scale)
        squares, largest, rows = self.v.new_zeros(n_k), self.v.new_zeros(n_k), []
        for start, stop in row_blocks(qkv.n_q, block_rows(self.q, n_k, ROWS)):
            block = self.b.rows(start, stop)[0]
            squares += block.square().sum(0)
            largest = torch.maximum(largest, block.amax(0))
            rows.append(block.norm(dim=1))
        self.squares, self.largest, self.row_norms = squares, largest, torch.cat(rows).cpu()
        self.lengths = self.v.norm(dim=1)  # ‖V_i‖, (n_k,)
        self.weights = squares.sqrt() * self.lengths
        self.optimal = shares(self.weights)
        self.size = float(squares.sum().sqrt() * self.v.norm()) or 1.0  # ‖B‖_F ‖V‖_F; 1 for V = 0, with errors of 0
        self.output = (self.b @ self.v[None])[0]
        self.product = float(self.output.norm()) / self.size  # ‖BV‖_F / (‖B‖_F ‖V‖_F)
        self.optimum = float(self.weights.sum()) / self.size

    @classmethod
    def of(cls, qkv: QKV) -> list[SketchedHead]:
        """Every head of a layer."""
        return [cls(qkv, row) for row in range(qkv.h)]

    def probabilities(self, sketch: str) -> Tensor:
        """The sampling probabilities of the sketch ``optimal`` or ``uniform``, (n_k,)."""
        return self.optimal if sketch == "optimal" else torch.full_like(self.optimal, 1 / len(self.optimal))

    def sketch_errors(self, sketch: str, d: int, setting: Setting) -> Tensor:
        """``‖BV - BSSᵀV‖_F / (‖B‖_F ‖V‖_F)`` for each of R seeds, (R,), for a sketch of size d.

        Cost ``n_q n_k p_v`` multiply-adds a seed.
        """
        images = []
        for seed in setting.seeds:
            stream = setting.streams("skeinformer-jl", seed).head(self.number, sketch)
            if sketch == "gaussian":
                s = gaussian(len(self.v), d, stream).to(self.v.device)
                images.append(s @ (s.T @ self.v))
            else:
                images.append(self._sampled(self.probabilities(sketch), d, stream))
        return self._errors(images)

    def hardest(self, p: Tensor, of: str) -> Tensor:
        """The row of B or column of V, as ``of`` says, whose ``‖Sᵀx‖²`` varies most under sampling with p, (n_k,).

        The variance of ``‖Sᵀx‖²`` for d draws is ``(Σ_i x_i⁴/p_i - ‖x‖⁴) / d``. The result is zero if all vectors are.
        """
        hardest, largest = torch.zeros_like(p), -1.0
        for block in self._vectors(of):
            squares = block.square()
            spread = torch.where(squares > 0, squares.square() / p, squares).sum(1) / squares.sum(1).square()
            # NaN is a zero vector, whose length no sketch changes; ∞ an entry that is never sampled
            value, index = spread.nan_to_num(-1, posinf=1e300).max(0)
            if float(value) > largest:
                hardest, largest = block[index], float(value)
        return hardest

    def length_errors(self, x: Tensor, sketch: str, d: int, setting: Setting) -> Tensor:
        """``|‖Sᵀx‖² - ‖x‖²| / ‖x‖²`` of x (n_k,) or of each column of (n_k, c), for each seed: (R,) or (c, R).

        For each seed S is the sketch of `sketch_errors`. The error of a zero vector is 0.
        """
        weights, p, lengths = x.square(), self.probabilities(sketch), []
        for seed in setting.seeds:
            stream = setting.streams("skeinformer-jl", seed).head(self.number, sketch)
            if sketch == "gaussian":
                s = gaussian(len(x), d, stream).to(x)
                lengths.append((s.T @ x).square().sum(0))
            else:
                drawn = weighted_with_replacement(p, d, stream).to(p.device)
                lengths.append((1 / (d * p[drawn])) @ weights[drawn])
        size = weights.sum(0)
        return ((torch.stack(lengths, -1) - size[..., None]).abs() / torch.where(size > 0, size, 1)[..., None]).cpu()

    def _vectors(self, of: str) -> Iterator[Tensor]:
        """The rows of B in blocks, or the columns of V, (m, n_k) each."""
        if of == "columns of V":
            yield self.v.T
            return
        for start, stop in row_blocks(len(self.q), block_rows(self.q, len(self.k), ROWS)):
            yield self.b.rows(start, stop)[0]

    def pilot(self, d: int, setting: Setting, seed: int) -> tuple[Tensor, Tensor]:
        """p̂ (n_k,) from d pilot rows, uniform with replacement, and its β."""
        stream = setting.streams("skeinformer", seed).head(self.number, "pilot_rows")
        j = torch.randint(len(self.q), (d,), generator=stream).to(self.q.device)
        columns = torch.softmax(self.scale * self.q[j] @ self.k.T, -1).norm(dim=0)
        estimated = shares(columns * self.lengths)
        return estimated, torch.tensor(chen2022_quality(estimated, self.optimal), dtype=torch.float64)

    def sampled_by_pilots(self, d: int, setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
        """β, the squared error and its exact mean for each seed, (R,) each, with d pilots and d columns drawn by p̂.

        The last two are divided by ``‖B‖_F² ‖V‖_F²``.
        """
        betas, images, means = [], [], []
        for seed in setting.seeds:
            p, beta = self.pilot(d, setting, seed)
            stream = setting.streams("skeinformer", seed).head(self.number, "columns")
            images.append(self._sampled(p, d, stream))
            positive = self.weights > 0
            second = (self.weights[positive].square() / p[positive]).sum() / self.size**2
            means.append((second - self.product**2).cpu() / d)
            betas.append(beta)
        return torch.stack(betas), self._errors(images).square(), torch.stack(means)

    def _sampled(self, p: Tensor, d: int, stream: torch.Generator) -> Tensor:
        """``S Sᵀ V`` (n_k, p_v) for d indices drawn with replacement by p (n_k,)."""
        drawn = weighted_with_replacement(p, d, stream).to(p.device)
        with ordered_sums(self.v.device):
            return torch.zeros_like(self.v).index_add(0, drawn, self.v[drawn] / (d * p[drawn])[:, None])

    def _errors(self, images: list[Tensor]) -> Tensor:
        """``‖BV - B X‖_F / (‖B‖_F ‖V‖_F)`` of each image X (n_k, p_v). B is computed once for many images."""
        out = []
        for start, stop in row_blocks(len(images), IMAGES):
            joined = torch.cat(images[start:stop], 1)  # (n_k, IMAGES p_v)
            products = (self.b @ joined[None])[0].unflatten(1, (stop - start, -1))  # (n_q, IMAGES, p_v)
            out.append((products - self.output[:, None]).norm(dim=(0, 2)) / self.size)
        return torch.cat(out).cpu()


def shares(weights: Tensor) -> Tensor:
    """The weights (n,) divided by their sum, (n,); uniform if all are zero."""
    return weights / weights.sum() if weights.any() else torch.full_like(weights, 1 / len(weights))
