"""Which keys each query of causal or windowed attention sees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Visible"]


@dataclass(frozen=True, eq=False)
class Visible:
    """Query i sees the keys ``first_i … last_i``, and of the first ``sinks`` keys those up to ``last_i``.

    Attributes:
        last: the last key that each query sees, (n_q,) int64.
        first: the first key of its window, (n_q,) int64, at most ``last``; None is key 0.
        sinks: the number of first keys that are seen from beyond the window.

    >>> visible = Visible(last=torch.tensor([1, 4]), first=torch.tensor([0, 3]), sinks=1)
    >>> visible.hidden(6).long()
    tensor([[0, 0, 1, 1, 1, 1],
            [0, 1, 1, 0, 0, 1]])
    >>> visible.counts()
    tensor([2, 3])
    """

    last: Tensor
    first: Tensor | None = None
    sinks: int = 0

    def hidden(self, n_k: int, start: int = 0) -> Tensor:
        """The keys ``start … n_k - 1`` that each query does not see, (n_q, n_k - start) bool."""
        return self.hides(torch.arange(start, n_k, device=self.last.device))

    def hides(self, key: Tensor) -> Tensor:
        """Whether each query does not see the keys of these numbers, (…, u), which broadcast against (n_q, u)."""
        hidden = key > self.last[:, None]
        if self.first is not None:
            hidden = hidden | ((key < self.first[:, None]) & (key >= self.sinks))
        return hidden

    def counts(self) -> Tensor:
        """The number of keys that each query sees, (n_q,) int64."""
        if self.first is None:
            return self.last + 1
        return self.last - self.first + 1 + self.first.clamp(max=self.sinks)

    def of(self, queries: slice | Tensor) -> Visible:
        """Those of some queries."""
        first = None if self.first is None else self.first[queries]
        return Visible(self.last[queries], first, self.sinks)

    def to(self, device: torch.device) -> Visible:
        """The same on another device."""
        first = None if self.first is None else self.first.to(device)
        return Visible(self.last.to(device), first, self.sinks)
