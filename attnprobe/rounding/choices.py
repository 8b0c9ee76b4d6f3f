"""The integers that a computation chooses: the places of top k, the order of a sort, hashes, sampled landmarks.

Rounding moves the result of a method in two ways: it changes numbers, and it flips choices. A record of the choices of
one computation, held in another, separates them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .site import Site


@dataclass
class Choices:
    """The integers that operations on floating-point or bool tensors return, by site and number of the call at it.

    Bool masks are never held: a threshold that another rank passes belongs to the numbers, and a mask of one
    computation beside the numbers of another is neither.

    Attributes:
        made: the recorded integers. hold: whether later computations take them; otherwise they are only compared.
        recording: whether integers are added.
        flips: the integers that differ from the recorded ones. total: the compared ones.
        lost: those without a recorded counterpart of the same shape, which cannot be held.
    """

    made: dict[tuple[Site, int], Tensor] = field(default_factory=dict)
    hold: bool = False
    recording: bool = True
    flips: int = 0
    total: int = 0
    lost: int = 0
    _calls: Counter[Site] = field(default_factory=Counter)

    def replay(self, hold: bool) -> Choices:
        """These choices, for another computation."""
        return Choices(self.made, hold=hold, recording=False)

    def met(self, site: Site, own: Tensor, of_a_set: bool = False) -> Tensor:
        """The integers of a call: the recorded ones if they are held, otherwise its own.

        Args:
            of_a_set: whether the order of the integers along the last axis does not matter for `flips`.
        """
        number = self._calls[site]
        self._calls[site] += 1
        if self.recording:
            self.made[site, number] = own.clone()
            return own
        made = self.made.get((site, number))
        if made is None or made.shape != own.shape:
            self.lost += own.numel()
            return own
        self.total += own.numel()
        self.flips += int((~_among(own, made)).sum() if of_a_set else (made != own).sum())
        if not self.hold or torch.equal(made, own):
            return own
        # the computation may write into the integers that it gets
        return made.clone()

    @property
    def share(self) -> float:
        """The share of the integers that differ, those without a counterpart included; 0 if there are none."""
        total = self.total + self.lost
        return (self.flips + self.lost) / total if total else 0.0


def _among(own: Tensor, made: Tensor) -> Tensor:
    """Whether each integer (…, k) is among those of the same row of another tensor."""
    ordered = made.sort(-1).values
    slot = torch.searchsorted(ordered, own.contiguous()).clamp(max=own.shape[-1] - 1)
    return ordered.gather(-1, slot) == own
