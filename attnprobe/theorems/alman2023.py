"""Fast attention with bounded entries (Alman & Song 2023).

The paper's attention is ``softmax(Q Kᵀ/p)`` for Q, K and V with entries in [-B, B] and ``p = O(log n)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log

import torch
from torch import Tensor

from ..qkv import QKV
from .finding import Finding, Setting, theorem


def alman2023_entries(qkv: QKV) -> Tensor:
    """``B = (scale · p · max|Q_ij| · max|K_ij|)^½``, (h,) float64: the paper's B of other scales of scores.

    ``scale · Q Kᵀ = (a Q)(b K)ᵀ/p`` for every a and b with ``a b = scale · p``, and B is the least ``max(a max|Q_ij|, b
    max|K_ij|)``. The scale of V is that of the error. Source: Alman & Song 2023, whose scale is 1/p.

    >>> x = torch.full((1, 2, 4), 3.0)
    >>> alman2023_entries(QKV(x, x, x, scale=0.25))
    tensor([3.], dtype=torch.float64)
    """
    largest_q, largest_k = (x.double().abs().amax((1, 2)) for x in (qkv.q, qkv.k))
    return (qkv.scale * qkv.p * largest_q * largest_k).sqrt().cpu()


@theorem(
    "bounded-entries",
    paper="Alman & Song 2023",
    says="attention has an almost linear algorithm for entries of Q and K that are o(√ln n), and none for Θ(√ln n)",
    cost="n p",
    causal=True,
    decompositions=0,
)
def bounded_entries(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The bound B of the entries of Q and K against √ln n, which is the assumption; `alman2023_entries` computes B.

    The statement is asymptotic, so its constant is 1 here. The slack is the ratio of both. ``dimension`` is ``p / ln
    n``, which the paper holds bounded.
    """
    n, measured = qkv.n_k, alman2023_entries(qkv)
    bound = torch.full_like(measured, log(n) ** 0.5)
    yield Finding(
        "bounded-entries",
        assumption="B ≤ √ln n",
        met=measured <= bound,
        promise="an algorithm in n^(1+o(1))",
        bound=bound,
        measured=measured,
        vacuous=torch.zeros(qkv.h, dtype=torch.bool),
        details={"dimension": qkv.p / bound.square()},
    )
