"""The cache of a prompt: which of its layers each attention call reads, and the bytes of what heads keep or read.

Most attention calls have a layer of the cache, with the keys and values of their KV heads. Several calls can read one
layer (Gemma 3n), all heads can read the same latent rows (MLA), and layers of the model can have none (convolutions,
Mamba, linear attention). What several heads or calls read is held once: the union of their tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ...errors import Unsupported
from ...methods import Storage
from ...methods.fitting import CACHE_BITS

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

_own: WeakKeyDictionary[nn.Module, Callable[..., Cache]] = WeakKeyDictionary()

OWN = Storage()  # keys and values as the model has them


@torch.no_grad()
def empty_cache(model: PreTrainedModel) -> Cache:
    """A cache for the tokens that a model reads first, of the class that the model makes itself (MiniMax has its own).

    A model is asked once, by a forward of a token.
    """
    from transformers import DynamicCache

    if model not in _own:
        token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
        made = getattr(model(input_ids=token, use_cache=True), "past_key_values", None)
        _own[model] = DynamicCache if made is None else type(made)
    own = _own[model]
    return own(config=model.config) if "config" in inspect.signature(own).parameters else own()


def copied_cache(cache: Cache) -> Cache:
    """The cache for a forward, which extends it. Layers that put new tensors in place of theirs share the old."""
    from transformers import DynamicCache, DynamicLayer

    if type(cache) is not DynamicCache:
        return deepcopy(cache)
    # a deep copy of a long prompt would take its memory again, for each method
    made: Any = copy(cache)
    made.layers = [copy(layer) if type(layer) is DynamicLayer else deepcopy(layer) for layer in made.layers]
    return made


@dataclass(frozen=True, eq=False)
class Read:
    """The tokens of a prompt that the query heads of a call keep, or read in some steps, in one text.

    Attributes:
        kv_heads: the number of KV heads of the call.
        storage: what the method stores of the keys and values of each head, (h,); `OWN` for heads without the method.
        whole: whether a head has all tokens, (h,) bool.
        tokens: those of the other heads, (h, steps or 1, k) int64, -1 in empty slots; None if they are not known.
        count: the mean number of different tokens of all heads of the KV head, (h,), infinite if it is not known; it
            is not needed where ``tokens`` are known.
    """

    kv_heads: int
    storage: Sequence[Storage]
    whole: Tensor
    tokens: Tensor | None
    count: Tensor

    def part(self, number: int, parts: int) -> Read:
        """The heads of one of equal parts of the KV heads."""
        heads = slice(*(len(self.whole) * end // parts for end in (number, number + 1)))
        tokens = None if self.tokens is None else self.tokens[heads]
        kv_heads = self.kv_heads // parts
        return Read(kv_heads, self.storage[heads], self.whole[heads], tokens, self.count[heads])


@dataclass(frozen=True)
class CacheLayer:
    """A layer of the cache of a prompt, for one text.

    Attributes:
        tokens: the number that it holds. heads: those of its keys.
        k, v: the numbers of a token's key, and of its value, of all heads together. own: the bits of a number.
        readers: the numbers of the attention calls that read it.
    """

    tokens: int
    heads: int
    k: int
    v: int
    own: int
    readers: tuple[int, ...]

    def bytes(self, reads: Mapping[int, Read]) -> tuple[float, float]:
        """The bytes that stay in the cache, and those that its readers read of them.

        Args:
            reads: by reader. One without a `Read` has all tokens as the model has them.
        """
        own = [reads[call] for call in self.readers if call in reads]
        if not own or len(own) < len(self.readers):
            size = self.tokens * (self.k + self.v) * self.own / 8
            return size, size
        # layers and calls may divide the same rows into other numbers of heads: parts of all of them are counted
        parts = gcd(self.heads, *(read.kv_heads for read in own))
        sizes = [self._part([read.part(part, parts) for read in own], parts) for part in range(parts)]
        return sum(kept for kept, _ in sizes), sum(read for _, read in sizes)

    def _part(self, reads: Sequence[Read], parts: int) -> tuple[float, float]:
        """The bytes of the heads of one of equal parts. Forms of storage that differ are counted as the largest one."""
        forms = {storage for read in reads for storage in read.storage}
        read = self._together(reads)
        kept = read if all(storage.evicts for storage in forms) else float(self.tokens)
        bits = max(storage.bits(kept, k=self.k / parts, v=self.v / parts, own=self.own) for storage in forms)
        return bits / 8, bits / 8 * (read / kept if kept else 0.0)

    def _together(self, reads: Sequence[Read]) -> float:
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
    steps = max(of_call.shape[1] for of_call in tokens)
    slots = [of_call.transpose(0, 1).flatten(1).expand(steps, -1) for of_call in tokens]
    ordered = torch.cat(slots, 1).sort(1).values  # (steps, all slots)
    # sorted, a token is new where it differs from its neighbour; no array of all tokens is needed
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
        """Note which layer an attention call reads, by the keys with which it computes."""
        numbers = {_memory(layer.keys): layer_number for layer_number, layer in _with_keys(self.cache).items()}
        own = getattr(module, "layer_idx", None)
        self.layers[number] = numbers.get(_memory(keys), own if own in numbers.values() else None)

    def of(self, prompt: Cache) -> list[CacheLayer]:
        """The layers of the cache of a prompt.

        Raises:
            Unsupported: a call whose layer is not known.
        """
        for number, layer_number in self.layers.items():
            if layer_number is None:
                raise Unsupported(
                    f"the keys of attention call {number} are in no known layer of the model's cache, so its bytes "
                    "cannot be counted"
                )
        found = []
        for layer_number, layer in _with_keys(prompt).items():
            heads, tokens = layer.keys.shape[1:3]
            k, v = (x[0].numel() // tokens for x in (layer.keys, layer.values))
            readers = tuple(number for number, own in self.layers.items() if own == layer_number)
            found.append(CacheLayer(tokens, heads, k, v, int(CACHE_BITS), readers))
        return found


def _with_keys(cache: Cache) -> dict[int, Any]:
    """The layers of a cache that hold keys, by number."""
    layers: Any = cache.layers  # type: ignore[attr-defined]  # of transformers 5
    held = {number: getattr(layer, "keys", None) for number, layer in enumerate(layers)}
    return {number: layers[number] for number, keys in held.items() if isinstance(keys, Tensor) and keys.numel()}


def _memory(x: Tensor) -> int:
    """The address of a tensor's memory, which its views share."""
    return x.untyped_storage().data_ptr()
