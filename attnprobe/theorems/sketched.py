"""One head whose product BV is sketched: its norms, the best sampling probabilities, and the errors of sketches.

B^(i) is column i of B, V_i row i of V, S (n, d) a sketch and ``B S Sᵀ V`` its product, ``p_i ∝ ‖B^(i)‖ ‖V_i‖`` the
optimal probabilities of columns and ``p̂_i ∝ ‖B_J^(i)‖ ‖V_i‖`` their estimates from d pilot rows J (Chen et al. 2022).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..linalg.sampling import weighted_with_replacement
from ..linalg.sketches import gaussian
from ..operators import SoftmaxAttention, block_rows, ordered_sums, row_blocks
from ..qkv import QKV
from .registry import Setting

__all__ = ["SketchedHead", "chen2022_quality"]

ROWS = 256  # of B alive at once
IMAGES = 16  # of V, multiplied by B together


def chen2022_quality(estimated: Tensor, optimal: Tensor) -> float:
    """β, the largest number with ``p̂_i ≥ β p_i`` for all i: ``min p̂_i / p_i`` over the i with p_i > 0.

    Source: Chen et al. 2022, Proposition 1. Both (n,) sum to 1, so β is at most 1.

    >>> chen2022_quality(torch.tensor([0.5, 0.5]), torch.tensor([0.8, 0.2]))
    0.625
    """
    some = optimal > 0
    return float((estimated[some] / optimal[some]).min().clamp(max=1))


class SketchedHead:
    """What the checks need of one head: column and row norms of B, the optimal p, and the errors of sketches."""

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
        self.size = float(squares.sum().sqrt() * self.v.norm()) or 1.0  # ‖B‖_F ‖V‖_F; without values nothing is off
        self.wanted = (self.b @ self.v[None])[0]
        self.product = float(self.wanted.norm()) / self.size  # ‖BV‖_F / (‖B‖_F ‖V‖_F)
        self.optimum = float(self.weights.sum()) / self.size

    @classmethod
    def of(cls, qkv: QKV) -> list[SketchedHead]:
        """Every head of a layer."""
        return [cls(qkv, row) for row in range(qkv.h)]

    def probabilities(self, sketch: str) -> Tensor:
        return self.optimal if sketch == "optimal" else torch.full_like(self.optimal, 1 / len(self.optimal))

    def sketch_errors(self, sketch: str, d: int, setting: Setting) -> Tensor:
        """``‖BV - BSSᵀV‖_F / (‖B‖_F ‖V‖_F)`` of each seed, (R,)."""
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
        """Of the rows of B, or the columns of V, the x whose ``‖Sᵀx‖²`` varies most by sampling with p, (n_k,).

        The variance of ``‖Sᵀx‖²`` for d draws is ``(Σ_i x_i⁴/p_i - ‖x‖⁴) / d``. Zero where every vector is.
        """
        found, largest = torch.zeros_like(p), -1.0
        for block in self._vectors(of):
            squares = block.square()
            spread = torch.where(squares > 0, squares.square() / p, squares).sum(1) / squares.sum(1).square()
            value, place = spread.nan_to_num(-1, posinf=1e300).max(0)
            if float(value) > largest:
                found, largest = block[place], float(value)
        return found

    def length_errors(self, x: Tensor, sketch: str, d: int, setting: Setting) -> Tensor:
        """``|‖Sᵀx‖² - ‖x‖²| / ‖x‖²`` of x (n_k,) or of each column of (n_k, c) and each seed: (R,) or (c, R).

        S is the sketch of `sketch_errors`, seed by seed. A vector of zeros has none.
        """
        weights, p, found = x.square(), self.probabilities(sketch), []
        for seed in setting.seeds:
            stream = setting.streams("skeinformer-jl", seed).head(self.number, sketch)
            if sketch == "gaussian":
                s = gaussian(len(x), d, stream).to(x)
                found.append((s.T @ x).square().sum(0))
            else:
                drawn = weighted_with_replacement(p, d, stream).to(p.device)
                found.append((1 / (d * p[drawn])) @ weights[drawn])
        size = weights.sum(0)
        return ((torch.stack(found, -1) - size[..., None]).abs() / torch.where(size > 0, size, 1)[..., None]).cpu()

    def _vectors(self, of: str) -> Iterator[Tensor]:
        """The rows of B, some at a time, or the columns of V, each (m, n_k)."""
        if of == "columns of V":
            yield self.v.T
            return
        for start, stop in row_blocks(len(self.q), block_rows(self.q, len(self.k), ROWS)):
            yield self.b.rows(start, stop)[0]

    def pilot(self, d: int, setting: Setting, seed: int) -> tuple[Tensor, Tensor]:
        """p̂ from d pilot rows, uniform with replacement, (n_k,); and its β."""
        stream = setting.streams("skeinformer", seed).head(self.number, "pilot_rows")
        j = torch.randint(len(self.q), (d,), generator=stream, device="cpu").to(self.q.device)
        columns = torch.softmax(self.scale * self.q[j] @ self.k.T, -1).norm(dim=0)
        estimated = shares(columns * self.lengths)
        return estimated, torch.tensor(chen2022_quality(estimated, self.optimal), dtype=torch.float64)

    def sampled_by_pilots(self, d: int, setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
        """β, the squared error and its exact mean, both over ``‖B‖_F² ‖V‖_F²``, of each seed, (R,) each."""
        betas, images, means = [], [], []
        for seed in setting.seeds:
            p, beta = self.pilot(d, setting, seed)
            stream = setting.streams("skeinformer", seed).head(self.number, "columns")
            images.append(self._sampled(p, d, stream))
            some = self.weights > 0
            second = (self.weights[some].square() / p[some]).sum() / self.size**2
            means.append((second - self.product**2).cpu() / d)
            betas.append(beta)
        return torch.stack(betas), self._errors(images).square(), torch.stack(means)

    def _sampled(self, p: Tensor, d: int, stream: torch.Generator) -> Tensor:
        """``S Sᵀ V`` for d indices drawn with replacement by p (n_k,), (n_k, p_v)."""
        drawn = weighted_with_replacement(p, d, stream).to(p.device)
        with ordered_sums(self.v.device):
            return torch.zeros_like(self.v).index_add(0, drawn, self.v[drawn] / (d * p[drawn])[:, None])

    def _errors(self, images: list[Tensor]) -> Tensor:
        """``‖BV - B X‖_F / (‖B‖_F ‖V‖_F)`` of each image X (n_k, p_v): B is made once for many of them."""
        out = []
        for start, stop in row_blocks(len(images), IMAGES):
            some = torch.cat(images[start:stop], 1)  # (n_k, IMAGES p_v)
            products = (self.b @ some[None])[0].unflatten(1, (stop - start, -1))  # (n_q, IMAGES, p_v)
            out.append((products - self.wanted[:, None]).norm(dim=(0, 2)) / self.size)
        return torch.cat(out).cpu()


def shares(weights: Tensor) -> Tensor:
    """Weights that sum to 1; uniform where all are zero."""
    return weights / weights.sum() if weights.any() else torch.full_like(weights, 1 / len(weights))
