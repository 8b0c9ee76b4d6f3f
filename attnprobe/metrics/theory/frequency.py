"""A probability measured over seeds, head by head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...linalg.binomial import CONFIDENCE, clopper_pearson

__all__ = ["Frequency", "frequency"]


@dataclass(frozen=True)
class Frequency:
    """How often an event happened, (h,), with an interval of its probability."""

    value: Tensor
    lower: Tensor
    upper: Tensor


def frequency(
    happened: Tensor, certain: Tensor | None = None, possible: Tensor | None = None, *, confidence: float = CONFIDENCE
) -> Frequency:
    """The frequency of an event (trials, h) bool, with the interval of Clopper and Pearson.

    Args:
        certain, possible: where a trial itself is known within bounds: whether it happened for certain, and whether it
            may have; ``happened`` by default. The interval's ends count these.

    >>> found = frequency(torch.tensor([[True], [True], [False], [True]]))
    >>> float(found.value), round(float(found.lower), 3), round(float(found.upper), 3)
    (0.75, 0.194, 0.994)
    """
    certain, possible = (happened if given is None else given for given in (certain, possible))
    trials = len(happened)
    low, high = ([int(count) for count in event.sum(0)] for event in (certain & happened, possible | happened))
    ends = [[clopper_pearson(count, trials, confidence)[end] for count in counts]
            for end, counts in ((0, low), (1, high))]  # fmt: skip
    lower, upper = (torch.tensor(end, dtype=torch.float64) for end in ends)
    return Frequency(happened.double().mean(0).cpu(), lower, upper)
