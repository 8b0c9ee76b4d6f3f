"""The cache of a prompt: which of its layers each attention call reads, and the bytes of what heads keep or read.

Most attention calls have a layer of the cache, with the keys and values of their KV heads. Several calls can read one
layer (Gemma 3n), all heads can read the same latent rows (MLA), and layers of the model can have none (convolutions,
Mamba, linear attention). What several heads or calls read is held once: the union of their tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...errors import Unsupported

if TYPE_CHECKING:
    from transformers import Cache


@dataclass(frozen=True, eq=False)
class Read:
    """The tokens of a prompt that the query heads of a call keep, or read in some steps, in one text.

    Attributes:
        kv_heads: the number of KV heads of the call.
        whole: whether a head has all tokens, (h,) bool.
        tokens: those of the other heads, (h, steps or 1, k) int64, -1 in empty slots; None if they are not known.
        count: the mean number of different tokens of all heads of the KV head, (h,), infinite if it is not known; it
            is not needed where ``tokens`` are known.
    """

    kv_heads: int
    whole: Tensor
    tokens: Tensor | None
    count: Tensor

    def part(self, number: int, parts: int) -> Read:
        """The heads of one of equal parts of the KV heads."""
        heads = slice(*(len(self.whole) * end // parts for end in (number, number + 1)))
        tokens = None if self.tokens is None else self.tokens[heads]
        return Read(self.kv_heads // parts, self.whole[heads], tokens, self.count[heads])


@dataclass(frozen=True)
class CacheLayer:
    """A layer of the cache of a prompt, for one text.

    Attributes:
        tokens: the number that it holds. heads: those of its keys. size: the bytes of a token, of all heads together.
        readers: the numbers of the attention calls that read it.
    """

    tokens: int
    heads: int
    size: float
    readers: tuple[int, ...]

    def held(self, reads: Mapping[int, Read]) -> float:
        """The bytes of the tokens that its readers have together. A reader without a `Read` has all of them."""
        if not self.readers or not set(self.readers) <= reads.keys():
            return self.tokens * self.size
        own = [reads[call] for call in self.readers]
        parts = gcd(self.heads, *(read.kv_heads for read in own))
        counts = [self._together([read.part(part, parts) for read in own]) for part in range(parts)]
        return self.size * sum(counts) / parts

    def _together(self, reads: list[Read]) -> float:
        """The mean number of different tokens that all heads of some calls have together."""
        known = [read.tokens for read in reads if read.tokens is not None]
        if any(bool(read.whole.any()) for read in reads):
            return float(self.tokens)
        if len(known) == len(reads):
            return _different(known)
        [*others, read] = reads
        if others or read.kv_heads > 1:  # what they have in common is not known
            return float(self.tokens)
        return min(float(read.count.mean()), float(self.tokens))


def _different(tokens: list[Tensor]) -> float:
    """The mean over steps of the number of different tokens in sets (h, steps or 1, k), without -1."""
    steps = max(one.shape[1] for one in tokens)
    slots = [one.transpose(0, 1).flatten(1).expand(steps, -1) for one in tokens]
    ordered = torch.cat(slots, 1).sort(1).values  # (steps, all slots)
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return float((new & (ordered >= 0)).sum(1).double().mean())


@dataclass
class CacheReaders:
    """Finds the layer of a cache that each attention call of a forward reads.

    It is the layer whose keys are those of the call. If no layer has these keys, because they are made of what the
    cache holds, it is the layer with the number that the module has.
    """

    cache: Cache
    layers: dict[int, int | None] = field(default_factory=dict)  # of the cache, by the numbers of calls

    def __call__(self, number: int, module: nn.Module, keys: Tensor) -> None:
        """An attention call computes with these keys."""
        places = {_memory(layer.keys): place for place, layer in _with_keys(self.cache).items()}
        own = getattr(module, "layer_idx", None)
        self.layers[number] = places.get(_memory(keys), own if own in places.values() else None)

    def of(self, prompt: Cache) -> list[CacheLayer]:
        """The layers of the cache of a prompt.

        Raises:
            Unsupported: a call whose layer is not known.
        """
        for number, place in self.layers.items():
            if place is None:
                raise Unsupported(
                    f"layer {number} reads keys of no layer of the model's cache that is known, so bytes of the cache "
                    "cannot be counted"
                )
        found = []
        for place, layer in _with_keys(prompt).items():
            heads, tokens = layer.keys.shape[1:3]
            size = sum(x[0].numel() * x.element_size() for x in (layer.keys, layer.values)) / tokens
            readers = tuple(number for number, own in self.layers.items() if own == place)
            found.append(CacheLayer(tokens, heads, size, readers))
        return found


def _with_keys(cache: Cache) -> dict[int, Any]:
    """The layers of a cache that hold keys, by number."""
    layers: Any = cache.layers  # type: ignore[attr-defined]  # of transformers 5
    held = {place: getattr(layer, "keys", None) for place, layer in enumerate(layers)}
    return {place: layers[place] for place, keys in held.items() if isinstance(keys, Tensor) and keys.numel()}


def _memory(x: Tensor) -> int:
    """The address of a tensor's memory, which its views share."""
    return x.untyped_storage().data_ptr()
