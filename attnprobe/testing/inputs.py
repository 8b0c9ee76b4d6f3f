"""Seeded inputs for checks and tests.

Scores ``s q·k`` of standard normal Q and K have standard deviation 1 for every p; ``score`` scales it. At 6 a row of B
has a few large entries and the entries of C reach 1e-20, which reveals clamps and missing shifts.
"""

from __future__ import annotations

import torch

from ..qkv import QKV
from ..rng import generator

SCORES = (1.0, 6.0)
DTYPES = (torch.float32, torch.float64)


def make(h=2, n=20, p=8, p_v=5, *, n_k=None, score=1.0, dtype=torch.float64, seed=0, label=None) -> QKV:
    """Normal Q (h, n, p), K (h, n_k, p) and V (h, n_k, p_v), rounded to float32 first.

    So runs in float32 and in float64 have the same numbers.
    """
    g = generator(seed, "inputs")
    n_k = n if n_k is None else n_k
    q, k, v = (torch.randn(h, rows, width, generator=g) for rows, width in ((n, p), (n_k, p), (n_k, p_v)))
    return QKV((q * score**0.5).to(dtype), (k * score**0.5).to(dtype), v.to(dtype), label=label or {})


def reaching(top: float, **shape) -> QKV:
    """Inputs whose largest |score| is ``top``."""
    dtype = shape.pop("dtype", torch.float64)
    qkv = make(**shape)
    factor = (top / float((qkv.scale * qkv.q @ qkv.k.mT).abs().max())) ** 0.5
    return QKV((qkv.q * factor).to(dtype), (qkv.k * factor).to(dtype), qkv.v.to(dtype))


def permuted(qkv: QKV, order: torch.Tensor) -> QKV:
    """The same tokens in another order."""
    return QKV(qkv.q[:, order], qkv.k[:, order], qkv.v[:, order], scale=qkv.scale, heads=qkv.heads)


def one_head(qkv: QKV, row: int) -> QKV:
    """Only head ``row``, in float64."""
    return qkv.head(row).to(dtype=torch.float64)
