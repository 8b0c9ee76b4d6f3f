"""Keys as few landmarks: what a method of landmarks or a coreset retains of them, and attention to that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..operators import LowRank
from ..qkv import QKV

__all__ = ["Summary"]


@dataclass(frozen=True, eq=False)
class Summary:
    """Keys as d landmarks: ``exp(S_ij) ≈ Σ_c L_ic (M R)_cj`` with ``L_ic = exp(s q_i·x_c + b_c)``, ``D~_i = L_i m``.

    It holds nothing of the queries that attend to it. All tensors are float64.

    Attributes:
        landmarks: x, (h, d, p). bias: b, (h, d).
        middle: M as factors (h, d, d), which are applied one after another; none is the identity.
        right: R, (h, d, n_k). mass: m, (h, d): ``M R 1`` where rows are normalised by their own sum.
    """

    landmarks: Tensor
    bias: Tensor
    middle: Sequence[Tensor]
    right: Tensor
    mass: Tensor

    @classmethod
    def normalised(cls, landmarks: Tensor, bias: Tensor, middle: Sequence[Tensor], right: Tensor) -> Summary:
        """A summary whose rows sum to 1: its normalisers are the sums of its own entries."""
        mass = right.sum(-1, keepdim=True)
        for factor in reversed(middle):
            mass = factor @ mass
        return cls(landmarks, bias, middle, right, mass[..., 0])

    def logits(self, qkv: QKV) -> Tensor:
        """``ln L``, (h, n_q, d)."""
        return qkv.scale * (qkv.q.double() @ self.landmarks.mT) + self.bias[:, None]

    def attended(self, left: Tensor) -> LowRank:
        """``L M R`` for any L (h, n_q, d)."""
        return LowRank(left, list(self.middle), self.right)
