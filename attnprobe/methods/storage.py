"""What a method stores of a prompt: the bits of keys and values in a cache, as an engine would keep them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf

from ..arguments import check_fields
from ..errors import UsageError


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

    Raises:
        UsageError: a number below 0, or infinite.

    >>> Storage(k=4.5, v=4.5).bits(100, k=64, v=64, own=16) / (100 * 128)
    4.5
    >>> Storage(k=2.0, v=2.0, token=32.0, exact=20).bits(100, k=64, v=64, own=16)
    64000.0
    """

    evicts: bool = False
    k: float | None = None
    v: float | None = None
    token: float = 0.0
    head: float = 0.0
    exact: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None and not 0 <= value < inf:
                raise UsageError(f"Storage: {one.name}={value} is not a finite number of at least 0")

    def bits(self, tokens: float, *, k: float, v: float, own: float) -> float:
        """The bits of some tokens in a KV head.

        Args:
            k, v: the numbers of a key, and of a value. own: the bits of a number of the model's dtype.
        """
        whole = min(tokens, float(self.exact))
        of_token = k * (own if self.k is None else self.k) + v * (own if self.v is None else self.v) + self.token
        return whole * (k + v) * own + (tokens - whole) * of_token + self.head
