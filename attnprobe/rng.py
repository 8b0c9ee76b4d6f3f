"""The only source of random numbers.

Every draw comes from a CPU generator whose seed is a hash of labels: the user's seed, the method, the layer, the text
window and the head's original number. So a draw does not depend on the device, on the order of calls, or on the
batching of heads. All budgets and options of a method share it. torch's global state is never seeded.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from operator import index

import torch

__all__ = ["Streams", "generator"]


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

    def head(self, index: int, *labels: str) -> torch.Generator:
        """The generator of the head with original number ``index``. Further labels give independent draws of a head."""
        return generator(self.seed, self.method, self.layer, self.window, int(index), *labels)

    def shared(self, *labels: str) -> torch.Generator:
        """One generator for all heads, for methods whose authors share draws between heads."""
        return generator(self.seed, self.method, self.layer, self.window, "shared", *labels)
