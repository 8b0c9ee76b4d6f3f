"""Keys summarised by few landmarks or a coreset, and attention to the summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..operators import LowRank


@dataclass(frozen=True, eq=False)
class Summary:
    """Keys as c landmarks: ``exp(S_ij) ≈ (L M R)_ij`` with ``L_ic = exp(s q_i·x_c + b_c)``, and ``D~_i = L_i m``.

    It does not depend on the queries that attend to it. All tensors are float64.

    Attributes:
        landmarks: x, (h, c, p). bias: b, (h, c).
        middle: the factors of M, (h, c, c) each; no factors are the identity.
        right: R, (h, c, n_k). mass: m, (h, c).
        noise: ``‖M‖ ‖R 1‖``, (h,), if ``m = M R 1``, whose terms may cancel; None if no terms of D~ cancel.
    """

    landmarks: Tensor
    bias: Tensor
    middle: Sequence[Tensor]
    right: Tensor
    mass: Tensor
    noise: Tensor | None = None

    @classmethod
    def normalised(cls, landmarks: Tensor, bias: Tensor, middle: Sequence[Tensor], right: Tensor) -> Summary:
        """The summary whose normalisers are the row sums of ``L M R``: ``m = M R 1``."""
        mass = right.sum(-1, keepdim=True)
        noise = mass.norm(dim=(1, 2))
        for factor in reversed(middle):
            mass = factor @ mass
            noise = noise * torch.linalg.matrix_norm(factor)
        return cls(landmarks, bias, middle, right, mass[..., 0], noise)

    def logits(self, q: Tensor, scale: float) -> Tensor:
        """``ln L``, (h, n_q, c), for queries (h, n_q, p)."""
        return scale * (q.double() @ self.landmarks.mT) + self.bias[:, None]

    def attended(self, left: Tensor) -> LowRank:
        """``L M R``, (h, n_q, n_k), for any L (h, n_q, c)."""
        return LowRank(left, list(self.middle), self.right)

    def normaliser(self, left: Tensor) -> Tensor:
        """``D~ = L m``, (h, n_q), for any L (h, n_q, c)."""
        return (left @ self.mass[..., None])[..., 0]

    def floor(self, left: Tensor) -> Tensor:
        """The value below which ``L m`` is rounding, (h, n_q): 100 times ``eps ‖L_i‖ ‖M‖ ‖R 1‖``."""
        noise = self.bias.new_zeros(len(self.bias)) if self.noise is None else self.noise
        return 100 * torch.finfo(left.dtype).eps * left.norm(dim=-1) * noise[:, None]
