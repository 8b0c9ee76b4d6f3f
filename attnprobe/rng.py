"""The only source of random numbers.

Every draw comes from a CPU generator whose seed is a hash of labels: the user's seed, the method, the layer, the text
window and the head's original number. So a draw does not depend on the device, on the order of calls, or on the
batching of heads. All budgets and options of a method share it. torch's global state is never seeded.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from math import tau
from operator import index

import torch
from torch import Tensor

__all__ = ["Streams", "generator", "normal_into"]

GROUP = 16  # torch makes as many normal numbers of as many uniform ones
CHUNK = 2**11  # groups at once, which stay in the cache


def generator(seed: int, *labels: int | str) -> torch.Generator:
    """A CPU generator seeded by SHA-256 of ``(seed, *labels)``.

    Distinct label tuples give independent streams; the same tuple gives the same stream on every machine.

    >>> torch.rand(1, generator=generator(0, "a")) == torch.rand(1, generator=generator(0, "a"))
    tensor([True])
    >>> torch.rand(1, generator=generator(0, "a")) == torch.rand(1, generator=generator(0, "b"))
    tensor([False])
    """
    text = repr((int(seed), *(label if isinstance(label, str) else index(label) for label in labels))).encode()
    number = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1
    return torch.Generator("cpu").manual_seed(number)


def normal_into(out: Tensor, stream: torch.Generator) -> Tensor:
    """Fill a contiguous float64 tensor of the CPU with the numbers of ``torch.randn``, to rounding, in half the time.

    ``√(-2 ln(1 - u_j)) · cos(2π u_{j+8})`` and the same with the sine are the numbers j and j + 8 of a group of 16, for
    uniform ``u``. torch computes them one by one. Where the last group is not full, torch draws the last 16 numbers
    anew; fewer than 16 come from another algorithm.

    >>> expected = torch.randn(40, generator=generator(0, "a"), dtype=torch.float64)
    >>> torch.allclose(normal_into(torch.empty(40, dtype=torch.float64), generator(0, "a")), expected, rtol=1e-12)
    True
    """
    numbers = out.view(-1)
    if len(numbers) < GROUP:
        return torch.randn(out.shape, generator=stream, dtype=out.dtype, device="cpu", out=out)
    full = len(numbers) - len(numbers) % GROUP
    for groups in numbers[:full].view(-1, 2, GROUP // 2).split(CHUNK):
        _box_muller(torch.rand(groups.shape, generator=stream, dtype=out.dtype, device="cpu", out=groups))
    if full < len(numbers):
        torch.rand(len(numbers) - full, generator=stream, dtype=out.dtype, device="cpu")
        last = numbers[-GROUP:].view(1, 2, GROUP // 2)
        _box_muller(torch.rand(last.shape, generator=stream, dtype=out.dtype, device="cpu", out=last))
    return out


def _box_muller(groups: Tensor) -> None:
    """Turn uniform numbers, (groups, 2, 8), into normal ones."""
    radius = (1 - groups[:, 0]).log_().mul_(-2).sqrt_()
    angle = groups[:, 1] * tau
    groups[:, 0] = angle.cos().mul_(radius)
    groups[:, 1] = angle.sin_().mul_(radius)


@dataclass(frozen=True)
class Streams:
    """The random streams of one cell: a seed, a method, a layer and a text window.

    >>> streams = Streams(0, "skyformer")
    >>> int(torch.randint(1000, (1,), generator=streams.head(3))) == \
            int(torch.randint(1000, (1,), generator=streams.head(3)))
    True
    """

    seed: int
    method: str
    layer: int | str = 0
    window: int = 0
    labels: tuple[str, ...] = ()

    def part(self, *labels: str) -> Streams:
        """The streams of a part of the cell, such as a block of its tokens, which are independent of the others."""
        return replace(self, labels=(*self.labels, *labels))

    def head(self, index: int, *labels: str) -> torch.Generator:
        """The generator of the head with original number ``index``. Further labels give independent draws of a head."""
        return generator(self.seed, self.method, self.layer, self.window, int(index), *self.labels, *labels)

    def shared(self, *labels: str) -> torch.Generator:
        """One generator for all heads, for methods whose authors share draws between heads."""
        return generator(self.seed, self.method, self.layer, self.window, "shared", *self.labels, *labels)
