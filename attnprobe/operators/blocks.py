"""The size of blocks of rows: it fits the cache of a CPU, and a share of the free memory of another device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch

KEYS = 384  # that MKL sums at once: without later ones it adds the same numbers in the same order
GATHERED_ENTRIES = 2**18  # numbers gathered at once on a CPU: they stay in the cache
LEAST_ROWS = 128  # of a head in a block on another device, before heads are made apart: fewer leave it idle
OF_ALL, OF_FREE = 64, 8  # a block has at most a 64th of a device's memory, and an 8th of what is free
UNTOLD = 2**28  # bytes of a block on a device that does not say how much memory it has


class OnDevice(Protocol):
    """A tensor or an operator: it has a dtype and a device."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...


class Matrices(OnDevice, Protocol):
    """Matrices of this shape, (h, n_q, n_k)."""

    @property
    def shape(self) -> tuple[int, int, int]: ...


class BlockMemory:
    """The number of bytes of a block of rows on a device that is not the CPU. Each `halve` halves it.

    It is a power of two. So it is the same in every run on one kind of GPU, as long as an eighth of the memory is free.
    Blocks of another size would add sums in another order.
    """

    def __init__(self) -> None:
        self.halvings = 0

    def halve(self) -> None:
        """Halve the blocks for the rest of the process, after memory ran out."""
        self.halvings += 1

    def bytes(self, device: torch.device) -> int:
        """The bytes of a block. Free memory is that of the device and the unused part of torch's cache."""
        if device.type != "cuda":
            return UNTOLD >> self.halvings
        free, total = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return share(free, total) >> self.halvings


def share(free: int, total: int) -> int:
    """The largest power of two that is at most a 64th of all memory and an 8th of the free memory.

    >>> share(free=60 * 2**30, total=79 * 2**30) == 2**30
    True
    >>> share(free=2**30, total=79 * 2**30) == 2**27
    True
    """
    most = min(total // OF_ALL, free // OF_FREE)
    return 1 << max(0, most.bit_length() - 1)


BLOCK_MEMORY = BlockMemory()


def _numbers(of: OnDevice) -> int:
    """The number of entries of a block, in the dtype of an operand on a device that is not the CPU."""
    return BLOCK_MEMORY.bytes(of.device) // of.dtype.itemsize


def block_rows(of: OnDevice, width: int, cpu: int) -> int:
    """The number of rows of a block, ``width`` numbers each, for the dtype and device of a tensor or operator.

    Args:
        cpu: the number of rows on a CPU. It is fixed, so that results are the same on every machine.

    >>> block_rows(torch.zeros(1), 10**9, cpu=64)
    64
    """
    return cpu if of.device.type == "cpu" else max(1, _numbers(of) // width)


def block_shape(of: Matrices, cpu: int) -> tuple[int, int]:
    """The number of heads and the number of rows of a block.

    A block has one head and ``cpu`` rows on a CPU. On other devices it has as many heads as leave `LEAST_ROWS` rows to
    each.
    """
    if of.device.type == "cpu":
        return 1, cpu
    h, n_q, n_k = of.shape
    numbers = _numbers(of)
    heads = min(h, max(1, numbers // (min(n_q, LEAST_ROWS) * n_k)))
    return heads, max(1, numbers // (heads * n_k))


def head_blocks(of: Matrices, cpu: int) -> Iterator[tuple[slice, int, int]]:
    """``(heads, start, stop)`` of consecutive blocks of rows of all heads, each of at most `block_shape`."""
    h, n_q, _ = of.shape
    heads, rows = block_shape(of, cpu)
    for first, last in row_blocks(h, heads):
        for start, stop in row_blocks(n_q, rows):
            yield slice(first, last), start, stop


def reach(last: int, n_k: int, step: int | None = None) -> int:
    """The number of first keys up to ``last``, a multiple of ``step``, of `KEYS` by default, or all.

    >>> reach(0, 1000), reach(384, 1000), reach(999, 1000)
    (384, 768, 1000)
    """
    step = step or KEYS
    return min(n_k, (last // step + 1) * step)


def row_blocks(n: int, size: int) -> Iterator[tuple[int, int]]:
    """``(start, stop)`` of consecutive blocks of at most ``size`` of ``n`` rows.

    >>> list(row_blocks(5, 2))
    [(0, 2), (2, 4), (4, 5)]
    """
    for start in range(0, n, size):
        yield start, min(start + size, n)


def row_groups(of: OnDevice, n: int, group: int, entries: int) -> Iterator[tuple[slice, slice]]:
    """Yields slices of consecutive groups of ``group`` rows, and of their rows, for ``n`` rows.

    A slice has as many groups as may gather ``entries`` numbers each. A shorter last group comes alone.

    >>> for groups, rows in row_groups(torch.zeros(1), 7, 2, entries=2**17):
    ...     print(f"groups {groups.start}:{groups.stop}, rows {rows.start}:{rows.stop}")
    groups 0:2, rows 0:4
    groups 2:3, rows 4:6
    groups 3:4, rows 6:7
    """
    full = n // group
    for start, stop in row_blocks(full, block_rows(of, entries, cpu=max(1, GATHERED_ENTRIES // entries))):
        yield slice(start, stop), slice(start * group, stop * group)
    if full * group < n:
        yield slice(full, full + 1), slice(full * group, n)
