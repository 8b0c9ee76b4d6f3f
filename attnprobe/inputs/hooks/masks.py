"""Recognises the form of an attention mask from its values: padding, causal, a sliding window.

A mask has numbers that are added to the scores. Numbers near the most negative one hide a key. Others are a bias, which
hides the keys that it leaves no weight (see `attnprobe.inputs.hooks.weightless`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Pattern:
    """A query at position c = n_k - n_q + its number sees the valid keys from ``c - left`` to ``c + right``.

    Attributes:
        keys: the valid keys of each batch row, (b, n_k) bool; None means all.
        left, right: None if that side is unbounded.
        regular: whether this describes the whole mask; otherwise the mask is custom, and has no sides.
    """

    keys: Tensor | None = None
    left: int | None = None
    right: int | None = None
    regular: bool = True

    @property
    def causal(self) -> bool:
        """Whether no query sees a later key."""
        return self.regular and self.right is not None and self.right <= 0

    @property
    def band(self) -> bool:
        """Whether the mask hides more than padding."""
        return not self.regular or self.left is not None or self.right is not None

    @property
    def symmetric(self) -> bool:
        """Whether a query sees as far to the right as to the left."""
        return self.regular and self.left == self.right

    def __str__(self) -> str:
        padded = "" if self.keys is None else " with padding"
        if not self.regular:
            return "custom"
        if not self.band:
            return "padding" if padded else "full"
        width = 1 + (self.left or 0) + max(0, self.right or 0)
        if self.causal and self.right == 0:
            return ("causal" if self.left is None else f"causal sliding-window ({width})") + padded
        return f"sliding-window ({width})" + padded if None not in (self.left, self.right) else "custom"


FULL = Pattern()


class Added(NamedTuple):
    """A mask as eager attention takes it.

    Attributes:
        numbers: added to the scores; None for no mask.
        empty: the queries that see no key, (b, 1 or h, n_q or 1, 1): their output is 0. None: each sees a key, or eager
            attention gives its output, as for numbers that are all the most negative one.
    """

    numbers: Tensor | None
    empty: Tensor | None = None


def lowest(dtype: torch.dtype) -> float:
    """The most negative number of a mask. Eager attention may take softmax in float32, where a lower one is -∞."""
    return max(torch.finfo(dtype).min, torch.finfo(torch.float32).min)


def added(mask: Tensor | None, implementation: str, dtype: torch.dtype) -> Added:
    """A mask in numbers, as the model's own implementation of attention reads it.

    A bool mask is true where a key is visible, and -∞ hides a key. A query without a visible key has the output 0. A
    model whose own implementation is eager adds a bool mask to the scores as 0 and 1, as it adds whole numbers, and has
    no output where all numbers of a row are -∞.
    """
    if mask is None:
        return Added(None)
    is_bool = mask.dtype == torch.bool
    numbers = mask if mask.is_floating_point() else mask.to(dtype)
    if implementation == "eager":
        return Added(numbers)
    visible = mask if is_bool else ~numbers.isneginf()
    if numbers.dtype == torch.float64:
        # Below the most negative float32, a softmax in float32 reads -∞ and gives NaN for a row without keys.
        numbers = numbers.clamp(min=lowest(numbers.dtype))
    if not is_bool and bool(visible.all()):
        return Added(numbers)
    shown = torch.zeros_like(numbers) if is_bool else numbers
    empty = ~visible.any(-1, keepdim=True)
    return Added(shown.masked_fill(~visible, lowest(numbers.dtype)), empty if bool(empty.any()) else None)


def cleared(output: Tensor, empty: Tensor | None) -> Tensor:
    """The output (b, n_q, h, p_v) with 0 for the empty queries of `Added`."""
    return output if empty is None else output.masked_fill(empty.transpose(1, 2), 0.0)


def split_mask(mask: Tensor | None, sizes: tuple[int, int, int]) -> tuple[Tensor | None, Tensor | None]:
    """The visible keys of each query (bool) and the bias of their scores, each (b, 1 or h, n_q, n_k) or None.

    Args:
        mask: numbers that are added to the scores, of any shape that broadcasts. sizes: b, n_q, n_k.
    """
    if mask is None:
        return None, None
    # Half of it: a bias may have been added to the most negative number, as T5 adds that of positions.
    visible = mask > lowest(mask.dtype) / 2
    if torch.equal(visible, mask == 0):
        return of_all(visible, sizes), None
    return of_all(visible, sizes), mask if bool(visible.all()) else mask.masked_fill(~visible, 0)


def of_all(visible: Tensor, sizes: tuple[int, int, int]) -> Tensor | None:
    """The visible keys (b, 1 or h, n_q, n_k) of a mask that broadcasts; None if all are visible."""
    b, n_q, n_k = sizes
    return None if bool(visible.all()) else visible.expand(b, visible.shape[1], n_q, n_k)


def pattern_of(visible: Tensor | None, cross: bool = False) -> Pattern:
    """The pattern of a mask (b, 1 or h, n_q, n_k) of visible keys. Rows of padded queries are ignored.

    A query that sees no key is padding only if no query sees its own key. Otherwise later queries would read what its
    attention made of nothing, so the mask is custom. In cross attention a query has no key of its own, and is padding
    nowhere.

    >>> str(pattern_of(torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()))
    'causal'
    >>> str(pattern_of(torch.ones(1, 1, 4, 4, dtype=torch.bool).tril(1).triu(-1)))
    'sliding-window (3)'
    """
    if visible is None:
        return FULL
    if visible.shape[1] > 1 and not bool((visible == visible[:, :1]).all()):
        return Pattern(regular=False)
    seen = visible[:, 0]  # (b, n_q, n_k)
    return (None if cross else _behind_cache(seen)) or _pattern(seen, cross)


def _behind_cache(seen: Tensor) -> Pattern | None:
    """The pattern of queries after a cache of keys that all of them see, from the other keys; otherwise None.

    A long text is read in parts with a cache of keys. Only one pass over the mask tests whether a cached key is hidden.
    """
    n_q, n_k = seen.shape[1:]
    cached = n_k - n_q
    if cached <= 0 or not bool(seen[:, :, :cached].all()):
        return None
    own = seen[:, :, cached:]
    pattern = _pattern(own, cross=False)
    plain = pattern.regular and pattern.keys is None and pattern.left is None
    return pattern if plain and bool(own.any(2).all()) else None


def _pattern(seen: Tensor, cross: bool) -> Pattern:
    """The pattern of a mask (b, n_q, n_k), from all of its entries."""
    n_q, n_k = seen.shape[1:]
    keys = seen.any(1)  # (b, n_k)
    rows = seen.any(2)  # (b, n_q)
    read = keys.any(1, keepdim=True) if cross else keys[:, n_k - n_q :] if n_q <= n_k else torch.zeros_like(rows)
    if bool((~rows & read).any()):
        return Pattern(None if bool(keys.all()) else keys, regular=False)
    if n_q == n_k and not cross:
        rows = rows & keys
    position = torch.arange(n_k, device=seen.device)
    centre = torch.arange(n_k - n_q, n_k, device=seen.device)  # (n_q,)
    first, last = seen.byte().argmax(2), n_k - 1 - seen.flip(2).byte().argmax(2)
    # A side that only the ends of the text bound is no window: queries near the ends see all keys on it.
    lowest, highest = keys.byte().argmax(1)[:, None], (n_k - 1 - keys.flip(1).byte().argmax(1))[:, None]
    right = int(torch.where(rows, last - centre, -n_k).max())
    left = int(torch.where(rows, centre - first, -n_k).max())
    ends_right = bool((rows & (highest > centre + right)).any())
    ends_left = bool((rows & (lowest < centre - left)).any())
    described = keys[:, None].expand_as(seen)
    if ends_right:
        described = described & (position <= (centre + right)[:, None])
    if ends_left:
        described = described & (position >= (centre - left)[:, None])
    valid = None if bool(keys.all()) else keys
    if bool(((described != seen) & rows[..., None]).any()):
        return Pattern(valid, regular=False)  # it ends on no side
    return Pattern(valid, left if ends_left else None, right if ends_right else None)
