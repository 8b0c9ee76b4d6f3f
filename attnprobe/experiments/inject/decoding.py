"""Decoding behind a prefix that the unmodified model has read: teacher-forced steps, and greedy ones."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .drift import Outputs
from .language import LanguageModel

if TYPE_CHECKING:
    from transformers import Cache


@dataclass(frozen=True, eq=False)
class Prefix:
    """The first tokens of a batch of rows of one length, read by the unmodified model.

    Attributes:
        ids: all tokens, (b, n). length: of the prefix.
        cache: the keys and values of the prefix. next: the likeliest token after it, (b, 1).
    """

    model: LanguageModel
    ids: Tensor
    length: int
    cache: Cache
    next: Tensor

    @classmethod
    def of(cls, model: LanguageModel, ids: Tensor, length: int, whole: Cache, following: Tensor) -> Prefix:
        """The first ``length`` tokens of ``ids`` (b, n), before the tokens ``following``.

        Args:
            whole: the keys and values of all tokens. If a layer has only those of a window, the prefix is read again.
        """
        from transformers import DynamicCache, DynamicLayer

        cache = DynamicCache(config=model.model.config)
        layers: Any = whole.layers  # type: ignore[attr-defined]  # of transformers 5
        if all(type(layer) is DynamicLayer for layer in layers):
            for number, layer in enumerate(layers):
                cache.update(layer.keys[:, :, :length], layer.values[:, :, :length], number)
        else:
            model.behind(cache, ids[:, :length], last=1)
        return cls(model, ids, length, cache, following)

    @property
    def steps(self) -> slice:
        """The tokens that steps read: all after the prefix except the last, which no word follows."""
        return slice(self.length, self.ids.shape[1] - 1)

    def outputs(self, greedy_steps: int) -> list[Outputs]:
        """The model's outputs for each row: of all tokens of `steps`, in one forward behind the cache, and greedy."""
        hidden, logits = self.model.behind(deepcopy(self.cache), self.ids[:, self.steps])
        return [Outputs(*row) for row in zip(hidden, logits, self.greedy(greedy_steps), strict=True)]

    def cache_bytes(self, kept: Mapping[int, float]) -> float:
        """The bytes of the prompt's keys and values of one row, of all layers.

        Args:
            kept: the share of a layer's keys that is counted; 1 for other layers. A layer with a sliding window has
                only the keys of its window.
        """
        layers: Any = self.cache.layers  # type: ignore[attr-defined]  # of transformers 5
        sizes = [sum(x[0].numel() * x.element_size() for x in (layer.keys, layer.values)) for layer in layers]
        return sum(size * kept.get(number, 1.0) for number, size in enumerate(sizes))

    def greedy(self, steps: int) -> Tensor:
        """The tokens of ``steps`` greedy steps, (b, steps). Each step reads the likeliest token of the step before."""
        cache, tokens = deepcopy(self.cache), [self.next]
        for _ in range(steps):
            _, logits = self.model.behind(cache, tokens[-1])
            tokens.append(logits[:, -1:].argmax(-1))
        return torch.cat(tokens[1:], dim=1) if steps else self.next[:, :0]
