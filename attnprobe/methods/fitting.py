"""The budget of a method that fits the bytes of a cache: keys of a policy, bits of a format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import Unsupported
from .registry import Method

MOST_BITS = 8  # of a format with an option bits
ROUNDING = 1 + 1e-9  # of a share
CACHE_BITS = 16.0  # of a number of a cache that is not quantised, as engines store it


@dataclass(frozen=True)
class Fitted:
    """What a method uses of a share of a cache.

    Attributes:
        d: the budget; None for a method without one. options: those that were chosen, beside the given ones.
        share: the bytes that it keeps, over those of the cache in 16 bits a number. Of a method that keeps the whole
            prompt and reads d keys of it, those that it reads.
        keeps: whether the share is of bytes that stay in the cache, not of those that a step reads.
    """

    d: int | None
    share: float
    options: dict[str, Any] = field(default_factory=dict)
    keeps: bool = True


def fitted(
    entry: Method,
    options: Mapping[str, Any],
    share: float,
    tokens: int,
    *,
    k: int,
    v: int,
    own: float = CACHE_BITS,
) -> Fitted:
    """The largest budget of a method at which a KV head keeps at most a share of the bytes of a prompt.

    A policy gets the most keys that fit, and so does a policy with a format, whose bits are those of its options. A
    format with an option ``bits`` gets the most bits that fit, unless the option is given. Any other format fits or
    does not. A method that reads d keys of the whole prompt gets the d that it may read.

    Args:
        options: those that are given. tokens: of the prompt.
        k, v: the numbers of a key, and of a value, of a KV head. own: the bits of a number that is not quantised.

    Raises:
        Unsupported: no budget fits.

    >>> from attnprobe.methods import get
    >>> fitted(get("snapkv"), {}, 0.1, 500, k=64, v=64)
    Fitted(d=50, share=0.1, options={}, keeps=True)
    >>> fitted(get("snapkv+q4_0"), {}, 0.1, 500, k=64, v=64).d
    177
    >>> fitted(get("turboquant"), {}, 0.25, 500, k=64, v=64).options
    {'bits': 3}
    """
    whole = tokens * (k + v) * own

    def used(d: int | None, given: Mapping[str, Any], count: int) -> float:
        return entry.stored(d, given).bits(count, k=k, v=v, own=own) / whole

    if entry.budget is not None:
        first = max(1, entry.least)
        evicts = entry.stored(first, options).evicts
        for d in range(tokens, first - 1, -1):  # bits may fall where a group of tokens is complete
            size = used(d, options, d)
            if size <= share * ROUNDING:
                return Fitted(d, size, keeps=evicts)
        raise Unsupported(
            f"{entry.name}: d={first}, its least, takes {used(first, options, first):.3g} of the bytes of {tokens} "
            f"tokens, more than {share:g}; choose more bytes or a longer prompt"
        )
    bits = entry.options.get("bits")
    chosen: list[dict[str, Any]] = [{}]
    if entry.format is not None and bits is not None and "bits" not in options:
        chosen = [{"bits": number} for number in range(MOST_BITS, 0, -1)]
    for some in chosen:
        size = used(None, {**options, **some}, tokens)
        if size <= share * ROUNDING:
            return Fitted(None, size, some)
    least = " with bits=1" if chosen[-1] else ""
    raise Unsupported(
        f"{entry.name}{least}: it takes {size:.3g} of the bytes of {tokens} tokens, more than {share:g}; choose more "
        "bytes, fewer exact tokens, or a policy before the format"
    )
