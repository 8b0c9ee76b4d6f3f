"""What becomes of scores before the softmax, besides a mask: a cap and a bias."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

Index = slice | Tensor


@dataclass(frozen=True, eq=False)
class Terms:
    """The scores S become ``c tanh(S / c) + bias``.

    Attributes:
        softcap: c; None for no cap.
        bias: (h or 1, n_q, n_k); None for no bias.

    >>> Terms(bias=torch.tensor([[[0.0, 3.0]]])).applied(torch.ones(2, 1, 2))
    tensor([[[1., 4.]],
    <BLANKLINE>
            [[1., 4.]]])
    """

    softcap: float | None = None
    bias: Tensor | None = None

    def of(self, heads: Index = slice(None), rows: Index = slice(None), keys: Index = slice(None)) -> Terms:
        """The terms of some heads, query rows and keys."""
        if self.bias is None:
            return self
        bias = self.bias if len(self.bias) == 1 else self.bias[heads]
        return replace(self, bias=bias[:, rows][..., keys])

    def to(self, dtype: torch.dtype) -> Terms:
        """The same terms in another dtype."""
        return self if self.bias is None else replace(self, bias=self.bias.to(dtype))

    def capped(self, scores: Tensor) -> Tensor:
        """``c tanh(S / c)``."""
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)

    def applied(self, scores: Tensor) -> Tensor:
        """The scores (h, n_q, n_k) with cap and bias."""
        scores = self.capped(scores)
        return scores if self.bias is None else scores + self.bias.to(scores.dtype)

    def applied_at(self, scores: Tensor, heads: Index, rows: Index, columns: Tensor) -> Tensor:
        """The scores (g, r, u) of some heads and rows at the columns (g, r, u) with cap and bias.

        Empty slots have the column -1.
        """
        scores, bias = self.capped(scores), self.of(heads, rows).bias
        if bias is None:
            return scores
        return scores + bias.to(scores.dtype).expand(len(columns), -1, -1).gather(2, columns.clamp(min=0))

    @property
    def spread(self) -> float:
        """The largest difference of two biases."""
        return 0.0 if self.bias is None else float(self.bias.max() - self.bias.min())

    @property
    def largest(self) -> float:
        """The largest absolute bias."""
        return 0.0 if self.bias is None else float(self.bias.abs().max())

    def __str__(self) -> str:
        """What it is, as in ``bias from -1 to 2``."""
        cap = [] if self.softcap is None else [f"a cap at {self.softcap:g}"]
        if self.bias is None:
            return cap[0]
        return " and ".join([*cap, f"a bias from {float(self.bias.min()):.4g} to {float(self.bias.max()):.4g}"])
