"""Which keys each query of causal or windowed attention sees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Visible:
    """Query i sees the keys ``first_i … last_i``, and those of the first ``sinks`` keys that are at most ``last_i``.

    Attributes:
        last: the last key that each query sees, (n_q,) int64.
        first: the first key of its window, (n_q,) int64, at most ``last``; None is key 0.
        sinks: the number of first keys that every query sees, also outside of its window.

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
        """Whether each query does not see the keys of these numbers (…, u), (…, n_q, u) bool."""
        hidden = key > self.last[..., None]
        if self.first is not None:
            hidden = hidden | ((key < self.first[..., None]) & (key >= self.sinks))
        return hidden

    def hides_of_groups(self, key: Tensor) -> Tensor:
        """Whether each query does not see the keys (…, m, u) of its group of ``n_q / m`` queries, (…, n_q, u)."""
        last, first = (x if x is None else x.unflatten(0, (key.shape[-2], -1)) for x in (self.last, self.first))
        assert last is not None
        return Visible(last, first, self.sinks).hides(key[..., None, :]).flatten(-3, -2)

    def counts(self) -> Tensor:
        """The number of keys that each query sees, (n_q,) int64."""
        if self.first is None:
            return self.last + 1
        return self.last - self.first + 1 + self.first.clamp(max=self.sinks)

    def runs(self) -> list[tuple[Tensor | None, Tensor]]:
        """The first and the last key of each run of keys that a query sees, (n_q,) int64 each; None is key 0.

        The sinks are the first run. A run that ends before it begins is empty.

        >>> Visible(last=torch.tensor([1, 4]), first=torch.tensor([0, 3]), sinks=1).runs()
        [(None, tensor([-1,  0])), (tensor([0, 3]), tensor([1, 4]))]
        """
        runs: list[tuple[Tensor | None, Tensor]] = [(self.first, self.last)]
        if self.first is not None and self.sinks:
            runs.insert(0, (None, self.first.clamp(max=self.sinks) - 1))
        return runs

    def largest(self, x: Tensor) -> Tensor:
        """The largest of the numbers x (…, n_k) of the keys that each query sees, (…, n_q).

        The largest numbers of stretches of 1, 2, 4, … keys are computed once; two stretches cover any run of keys. Cost
        ``n_k log₂ n_k`` comparisons.

        >>> visible = Visible(last=torch.tensor([1, 3]), first=torch.tensor([0, 3]), sinks=1)
        >>> visible.largest(torch.tensor([2.0, 5.0, 9.0, 1.0]))
        tensor([5., 2.])
        """
        stretches = [x]
        while 2 ** len(stretches) <= x.shape[-1]:
            half = 2 ** (len(stretches) - 1)
            stretches.append(torch.maximum(stretches[-1][..., :-half], stretches[-1][..., half:]))
        out = x.new_full((*x.shape[:-1], len(self.last)), float("-inf"))
        for begin, last in self.runs():
            first = torch.zeros_like(last) if begin is None else begin
            for level, of_stretch in enumerate(stretches):
                size = last - first + 1
                here = ((size >= 2**level) & (size < 2 ** (level + 1))).nonzero()[:, 0]
                pair = of_stretch[..., first[here]], of_stretch[..., last[here] - 2**level + 1]
                out[..., here] = torch.maximum(out[..., here], torch.maximum(*pair))
        return out

    def of(self, queries: slice | Tensor) -> Visible:
        """The visible keys of some queries, given as a slice or as numbers (u,)."""
        first = None if self.first is None else self.first[queries]
        return Visible(self.last[queries], first, self.sinks)

    def to(self, device: torch.device) -> Visible:
        """The same keys on another device."""
        first = None if self.first is None else self.first.to(device)
        return Visible(self.last.to(device), first, self.sinks)
