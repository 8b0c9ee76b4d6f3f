"""The only source of random numbers.

Every draw comes from a CPU generator. Its seed is a hash of labels: the user's seed, the method, the layer, the text
window and the original number of the head. So a draw does not depend on the device, on the order of calls, or on the
batching of heads. All budgets and options of a method use the same generator. torch's global state is never seeded.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from math import prod, tau
from operator import index

import torch
from torch import Tensor

GROUP = 16  # torch turns groups of 16 uniform numbers into 16 normal ones
CHUNK = 2**11  # groups at once; they stay in the cache
GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # the increment of SplitMix64 and its factors, as signed integers
FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


def generator(seed: int, *labels: int | str) -> torch.Generator:
    """A CPU generator seeded by SHA-256 of ``(seed, *labels)``.

    The same tuple gives the same stream on every machine; distinct tuples give independent streams. torch's generator
    on a CPU uses the lower 32 bits of its seed, so two of m streams are equal with a probability of about ``m²/2^33``.
    For a stream for each row of each head use `hashed_uniform`, which uses all bits.

    >>> torch.rand(1, generator=generator(0, "a")) == torch.rand(1, generator=generator(0, "a"))
    tensor([True])
    >>> torch.rand(1, generator=generator(0, "a")) == torch.rand(1, generator=generator(0, "b"))
    tensor([False])
    """
    return torch.Generator("cpu").manual_seed(_number(seed, *labels))


def _number(seed: int, *labels: int | str) -> int:
    """63 bits of SHA-256 of ``(seed, *labels)``."""
    # repr of a tuple is unambiguous: ("ab", "c") and ("a", "bc") have other texts
    text = repr((int(seed), *(label if isinstance(label, str) else index(label) for label in labels))).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def mixed(x: Tensor) -> Tensor:
    """A pseudorandom permutation of the 64-bit integers, of each number of x (…) int64.

    It is the output function of SplitMix64 (Steele, Lea & Flood 2014) with the constants of Stafford's variant 13.

    >>> mixed(torch.tensor([0, 1]))
    tensor([-2152535657050944081, -7995527694508729151])
    """
    x = x + GOLDEN
    for shift, factor in ((30, FACTORS[0]), (27, FACTORS[1])):
        x = _shifted(x, shift).bitwise_xor_(x).mul_(factor)
    return _shifted(x, 31).bitwise_xor_(x)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """The unsigned shift to the right; torch's own shift repeats the sign."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def hashed_uniform(keys: Tensor, count: int) -> Tensor:
    """``count`` uniform numbers from [0, 1) for each key (b,) int64, as (b, count) float64 on the device of the keys.

    Number j of a key is the upper 53 bits of ``mixed(key ^ mixed(j))``. So a number does not depend on the others, and
    many keys are computed at once.

    >>> hashed_uniform(torch.tensor([7, 8]), 2).shape
    torch.Size([2, 2])
    """
    return hashed_integers(keys, count).double().mul_(2.0**-53)


def hashed_integers(keys: Tensor, count: int) -> Tensor:
    """The numbers of `hashed_uniform` times 2⁵³, (b, count) int64: they have the same order, and are made sooner."""
    counters = mixed(torch.arange(count, device=keys.device))
    return _shifted(mixed(keys[:, None] ^ counters), 11)


def normal_into(out: Tensor, stream: torch.Generator) -> Tensor:
    """Fill a contiguous float64 tensor on the CPU with the numbers of ``torch.randn``, up to rounding, and return it.

    For 16 uniform numbers u, ``√(-2 ln(1 - u_j)) · cos(2π u_{j+8})`` is number j of a group, and the same with the sine
    is number j + 8. torch computes them one by one, in twice the time. If the last group is not full, torch draws the
    last 16 numbers again. Fewer than 16 numbers come from another algorithm of torch.

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
        # torch has drawn these before it draws the last group again; they are drawn for the state only
        torch.rand(len(numbers) - full, generator=stream, dtype=out.dtype, device="cpu")
        last = numbers[-GROUP:].view(1, 2, GROUP // 2)
        _box_muller(torch.rand(last.shape, generator=stream, dtype=out.dtype, device="cpu", out=last))
    return out


def first_normals(stream: torch.Generator, some: int, count: int, *of_each: int) -> Tensor:
    """The first ``some`` of ``torch.randn(count, *of_each)``, in float64 on the CPU, to the last bit.

    torch fills groups of 16 numbers in their order, so it can stop after the last one that is needed. The last 16
    numbers of all it may draw again; if one of these is needed, it draws all.

    >>> every = torch.randn(40, 3, generator=generator(0, "a"), dtype=torch.float64)
    >>> torch.equal(first_normals(generator(0, "a"), 2, 40, 3), every[:2])
    True
    """
    size = prod(of_each)
    needed = -(-some * size // GROUP) * GROUP
    if needed > count * size - GROUP:
        needed = count * size
    numbers = torch.randn(needed, generator=stream, dtype=torch.float64, device="cpu")
    return numbers[: some * size].view(some, *of_each)


def _box_muller(groups: Tensor) -> None:
    """Turn uniform numbers, (groups, 2, 8), into normal ones."""
    # 1 - u, because u may be 0, whose logarithm is infinite
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
        """The streams of a part of the cell, such as a block of its tokens. They are independent of all others."""
        return replace(self, labels=(*self.labels, *labels))

    def head(self, index: int, *labels: str) -> torch.Generator:
        """The generator of the head with original number ``index``. Further labels give independent draws of a head."""
        return generator(self.seed, self.method, self.layer, self.window, int(index), *self.labels, *labels)

    def shared(self, *labels: str) -> torch.Generator:
        """One generator for all heads, for methods that share draws between heads."""
        return generator(self.seed, self.method, self.layer, self.window, "shared", *self.labels, *labels)

    def key(self, index: int, *labels: str) -> int:
        """63 bits for `hashed_uniform`, of the head with original number ``index`` and further labels."""
        return _number(self.seed, self.method, self.layer, self.window, int(index), *self.labels, *labels)
