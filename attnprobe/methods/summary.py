"""Keys as few landmarks: what a method of landmarks or a coreset retains of them, and attention to that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..operators import LowRank

__all__ = ["Summary"]


@dataclass(frozen=True, eq=False)
class Summary:
    """Keys as c landmarks: ``exp(S_ij) ≈ (L M R)_ij`` with ``L_ic = exp(s q_i·x_c + b_c)``, and ``D~_i = L_i m``.

    It holds nothing of the queries that attend to it. All tensors are float64.

    Attributes:
        landmarks: x, (h, c, p). bias: b, (h, c).
        middle: M as factors, which are multiplied; none is the identity.
        right: R, (h, c, n_k). mass: m, (h, c).
        noise: ``‖M‖ ‖R 1‖`` where ``m = M R 1``, whose terms may cancel; None where no D~ cancels.
    """

    landmarks: Tensor
    bias: Tensor
    middle: Sequence[Tensor]
    right: Tensor
    mass: Tensor
    noise: Tensor | None = None

    @classmethod
    def normalised(cls, landmarks: Tensor, bias: Tensor, middle: Sequence[Tensor], right: Tensor) -> Summary:
        """A summary whose normalisers are the row sums of its own entries: ``m = M R 1``."""
        mass = right.sum(-1, keepdim=True)
        noise = mass.norm(dim=(1, 2))
        for factor in reversed(middle):
            mass = factor @ mass
            noise = noise * torch.linalg.matrix_norm(factor)
        return cls(landmarks, bias, middle, right, mass[..., 0], noise)

    def logits(self, q: Tensor, scale: float) -> Tensor:
        """``ln L`` of queries (h, n_q, p), (h, n_q, c)."""
        return scale * (q.double() @ self.landmarks.mT) + self.bias[:, None]

    def attended(self, left: Tensor) -> LowRank:
        """``L M R`` for any L (h, n_q, c)."""
        return LowRank(left, list(self.middle), self.right)

    def normaliser(self, left: Tensor) -> Tensor:
        """``L m``, (h, n_q)."""
        return (left @ self.mass[..., None])[..., 0]

    def floor(self, left: Tensor) -> Tensor:
        """The value below which rounding decides ``L m``, (h, n_q): 100 times ``eps ‖L_i‖ ‖M‖ ‖R 1‖``."""
        noise = self.bias.new_zeros(len(self.bias)) if self.noise is None else self.noise
        return 100 * torch.finfo(left.dtype).eps * left.norm(dim=-1) * noise[:, None]
