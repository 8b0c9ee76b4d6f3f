"""What a method stores of a prompt: the bits of keys and values in a cache, as an engine would keep them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import ceil, inf

from ..errors import UsageError
from ..grammar.arguments import check_fields


@dataclass(frozen=True)
class Storage:
    """The keys and values of a prompt that a method stores in a KV head of a cache, by which bytes are counted.

    Attributes:
        evicts: whether tokens that no step reads leave the cache.
        k, v: the bits of a number of a key, and of a value, with its share of the scales of its block; None: those of
            the model's dtype.
        token: further bits of each token, such as the norms of its key and its value.
        head: further bits of each KV head, such as the scale of a tensor or a table.
        exact: the number of tokens that are stored as the model has them, such as the most recent ones.
        group: the number of tokens that are quantised together. Those of an incomplete group are stored as the model
            has them.
        block: the number of numbers of a key or a value that share a scale. The last block is counted in full.

    Raises:
        UsageError: a number below 0, or infinite; a ``group`` or ``block`` of 0.

    >>> Storage(k=4.5, v=4.5).bits(100, k=64, v=64, own=16) / (100 * 128)
    4.5
    >>> Storage(k=2.0, v=2.0, token=32.0, exact=20).bits(100, k=64, v=64, own=16)
    64000.0
    >>> Storage(k=4.5, v=4.5, block=32).bits(1, k=80, v=80, own=16) / 4.5  # 80 numbers in three blocks
    192.0
    >>> Storage(k=2.0, v=2.0, group=32).bits(100, k=64, v=64, own=16) == 96 * 128 * 2 + 4 * 128 * 16
    True
    """

    evicts: bool = False
    k: float | None = None
    v: float | None = None
    token: float = 0.0
    head: float = 0.0
    exact: int = 0
    group: int = 1
    block: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        for part in fields(self):
            value, least = getattr(self, part.name), int(part.name in ("group", "block"))
            if value is not None and not least <= value < inf:
                raise UsageError(f"Storage: {part.name}={value} is not a finite number of at least {least}")

    def bits(self, tokens: float, *, k: float, v: float, own: float) -> float:
        """The bits of some tokens in a KV head.

        Args:
            k, v: the numbers of a key, and of a value. own: the bits of a number of the model's dtype.
        """
        coded = self.coded(tokens)
        of_token = self._of(k, self.k, own) + self._of(v, self.v, own) + self.token
        return (tokens - coded) * (k + v) * own + coded * of_token + self.head

    def coded(self, tokens: float) -> float:
        """How many of some tokens are not stored as the model has them."""
        return (tokens - min(tokens, float(self.exact))) // self.group * self.group

    def _of(self, numbers: float, bits: float | None, own: float) -> float:
        """The bits of a key or a value of some numbers."""
        return numbers * own if bits is None else ceil(numbers / self.block) * self.block * bits
