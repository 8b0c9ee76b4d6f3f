"""Queries, keys and values of independent normal numbers, for measurements that depend only on shapes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import UsageError
from ..qkv import QKV
from ..rng import generator
from .spec import DTYPES, Source, check_memory, check_sizes, choose_device

MOST = 2**16  # heads, and the head dimension


class RandomSource(Source):
    """Q, K and V of independent N(0, 1) numbers, each (heads, n, p): the same for the same shape on every device.

    Raises:
        UsageError: ``heads`` or ``p`` out of range. SourceError: a device that does not exist.

    >>> RandomSource(heads=2, p=4, device="cpu").qkv(8, [0], 0)[0]
    QKV(h=2, n_q=8, n_k=8, p=4, p_v=4, scale=0.5, dtype=float32, device=cpu, layer=0, window=0)
    """

    layers = 1

    def __init__(self, heads: int = 2, p: int = 64, device: str = "auto", dtype: str = "float32") -> None:
        for name, value in (("heads", heads), ("p", p)):
            if not 1 <= value <= MOST:
                raise UsageError(f"{name}={value}: choose a number from 1 to {MOST}")
        self.heads, self.p = heads, p
        self.device, self.dtype = choose_device(device), DTYPES[dtype]
        self.facts = {"random": "independent N(0, 1)", "heads": heads, "p": p, "dtype": dtype, "fallback": []}

    def check(self, n: int, windows: int, layers: Sequence[int]) -> None:
        check_sizes(n, windows)
        check_memory(3 * self.heads * n * self.p, f"n={n} of {self.heads} heads and p={self.p}")
        for layer in layers:
            if layer != 0:
                raise UsageError(f"layer {layer}: random Q, K and V have only layer 0")

    def qkv(self, n: int, layers: Sequence[int], window: int) -> dict[int, QKV]:
        self.check(n, window + 1, layers)
        # On the CPU in float32, then moved: each device and dtype has draws of its own.
        drawn = torch.randn(3, self.heads, n, self.p, generator=generator(0, "random", window, n))
        tensors = drawn.to(device=self.device, dtype=self.dtype)
        return {0: QKV(tensors[0], tensors[1], tensors[2], label={"layer": 0, "window": window, "n": n, **self.facts})}

    def describe(self) -> list[str]:
        facts = self.facts
        return [f"random: {facts['random']}, {self.heads} head{'s' * (self.heads != 1)}, p={self.p}, {facts['dtype']}"]
