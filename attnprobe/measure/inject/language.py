"""A complete language model that reads batches of a text: its last hidden states, and the words that it predicts.

A model with a head predicts words. A causal model predicts the next word at each token. A masked model predicts words
that a seeded draw replaces by its mask token. A model has a head if its weights contain one; random heads do not count.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from ...errors import UsageError
from ...inputs.hooks.capture import seeded
from ...inputs.model import ModelSource
from ...inputs.spec import DTYPES
from ...inputs.weights import initialized, language_kind, pretrained, redraw_projections, with_head
from ...rng import generator

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

MASK_TOKENS = ("[MASK]", "<mask>")
HIDDEN_SHARE = 0.15  # of the words, behind the mask token


@dataclass(frozen=True)
class Predictions:
    """The words of a batch that a model predicts.

    Attributes:
        inputs: of its forward. places: the tokens of each row at which words are predicted; a slice copies no logits.
        words: the true words.
    """

    inputs: Mapping[str, Tensor]
    places: Sequence[slice | Tensor]
    words: Sequence[Tensor]


@dataclass(frozen=True)
class Reading:
    """Rows of token ids as a batch, padded on the right to the longest.

    Attributes:
        inputs: ``input_ids`` and ``attention_mask``, (b, n). lengths: of the rows.
    """

    inputs: Mapping[str, Tensor]
    lengths: Sequence[int]


@dataclass(frozen=True)
class LanguageModel:
    """A model as it stands on its device.

    Attributes:
        kind: ``causal`` or ``masked``, the words that its head predicts; None without a head, and why.
        encoder: every token sees all others, so the mean of its hidden states is an embedding of the text.
        mask_token: replaces a word in the input of a masked model.
        around: the numbers of special tokens before and after a text, which are never masked.
        dtype: of its weights, in words.
    """

    model: PreTrainedModel
    kind: str | None
    why: str | None
    encoder: bool
    mask_token: int | None
    around: tuple[int, int]
    dtype: str

    @torch.no_grad()
    def both(self, reading: Reading, predictions: Predictions | None) -> tuple[Tensor, list[Tensor] | None]:
        """The last hidden states, and for each row the logits at the places of the predictions, (places, words).

        A causal model needs one forward; a masked model needs a second one with masked words.
        """
        hidden, logits = self._run(reading.inputs)
        if predictions is not None and predictions.inputs is not reading.inputs:
            logits = self._run(predictions.inputs)[1]
        if predictions is None or logits is None:
            return hidden, None
        return hidden, [logits[row, places] for row, places in enumerate(predictions.places)]

    def predictions(self, reading: Reading, windows: Sequence[int], seed: int) -> Predictions | None:
        """The words of a batch that the model predicts; None without a head.

        Args:
            windows: a number for each row. With the row's length and ``seed`` it determines the masked words.
        """
        ids = reading.inputs["input_ids"]
        if self.kind is None:
            return None
        if self.kind == "causal" or self.mask_token is None:  # a masked model has one
            words = [ids[row, 1:length] for row, length in enumerate(reading.lengths)]
            return Predictions(reading.inputs, [slice(length) for length in reading.lengths], words)
        before, after = self.around
        hidden = ids.clone()
        places = []
        for row, (length, window) in enumerate(zip(reading.lengths, windows, strict=True)):
            words = length - before - after
            # of a text of special tokens alone, these are masked
            first, words = (before, words) if words > 0 else (0, length)
            draws = generator(seed, "hidden words", length, window)
            hidden_places = torch.randperm(words, generator=draws)[: max(1, round(HIDDEN_SHARE * words))].sort().values
            places.append((first + hidden_places).to(ids.device))
            hidden[row, places[-1]] = self.mask_token
        targets = [ids[row, at] for row, at in enumerate(places)]
        return Predictions({**reading.inputs, "input_ids": hidden}, places, targets)

    @torch.no_grad()
    def behind(
        self, cache: Cache, inputs: Mapping[str, Tensor], last: int | None = None, start: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """The last hidden states and the logits of tokens (b, m) after a cache of keys, which is extended by theirs.

        Args:
            last: only the logits of this number of last tokens. start: the position of the first token, which the
                model is told; None if it finds it from the cache.
        """
        arguments = {**inputs, "past_key_values": cache, "use_cache": True}
        if start is not None:
            ids = inputs["input_ids"]
            arguments["position_ids"] = torch.arange(start, start + ids.shape[1], device=ids.device)[None]
        hidden, logits = self._run(arguments, last)
        assert logits is not None
        return hidden, logits if last is None else logits[:, -last:]

    def _run(self, inputs: Mapping[str, Any], last: int | None = None) -> tuple[Tensor, Tensor | None]:
        """The last hidden states and the logits of a forward; at least those of the ``last`` tokens."""
        accepted = inspect.signature(self.model.forward).parameters
        arguments = {"use_cache": False, **inputs} if "use_cache" in accepted else dict(inputs)
        if last is not None and "logits_to_keep" in accepted:
            arguments["logits_to_keep"] = last  # all of a long prompt may take longer than its layers
        with _bodies(self.model) as states:
            output = seeded(self.model, lambda: self.model(**arguments))
        return states[-1], output.logits if self.kind is not None else None


@contextmanager
def _bodies(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """A context with the last hidden states of each model inside ``model`` that has run, the body of its head last.

    A head calls a body, not always the `base_model`: OPT's calls the decoder inside it, and Llama 4's has none.
    """
    from transformers import PreTrainedModel

    inside = [module for module in model.modules() if isinstance(module, PreTrainedModel) and module is not model]
    headless = model.base_model is model and model.get_output_embeddings() is None
    bodies = [model] if headless else inside
    states: list[Tensor] = []
    hooks = [body.register_forward_hook(lambda _, __, output: states.append(output[0])) for body in bodies]
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


def open_language_model(source: ModelSource, dtype: str = "float32") -> LanguageModel:
    """The complete model of a source, with its head if its weights contain one.

    Args:
        dtype: of its weights; ``auto`` is that of its configuration.

    Raises:
        SourceError: weights that are absent, damaged or refused.
    """
    stated = getattr(source.config, "dtype", None)
    chosen = DTYPES[dtype] if dtype != "auto" else stated if isinstance(stated, torch.dtype) else torch.float32
    kind = language_kind(source.config)
    encoder, why, folder = kind != "causal", None, source.folder
    if source.weights == "initialized" or folder is None:
        model = initialized(source.config, source.spec.weights_seed, source.layers, chosen, source.name)
        kind, why = None, f"the weights of {source.name} are random, so it predicts no words"
    elif kind is None:
        model, why = pretrained(folder, chosen), f"a {source.config.model_type} model has no head here"
    else:
        model, why = with_head(folder, chosen, kind)
    if source.weights == "initialized-qkv":
        redraw_projections(cast("PreTrainedModel", model.base_model), source.spec.weights_seed, source.name)
    tokenizer = source.stream.vocabulary.tokenizer
    # by the two spellings in use; a tokenizer's file does not say which token is the mask
    mask = next((number for word in MASK_TOKENS if (number := tokenizer.token_to_id(word)) is not None), None)
    if kind == "masked" and why is None and mask is None:
        why = f"the tokenizer {source.facts['tokenizer']} has no mask token"
    around = len(source.layout.before), len(source.layout.after)
    model = model.to(source.device)  # type: ignore[call-overload]  # its decorator has lost its signature
    dtype = str(chosen).removeprefix("torch.")
    return LanguageModel(model, None if why else kind, why, encoder, mask, around, dtype)


def _lines_of(source: ModelSource, n: int, count: int) -> list[list[int]]:
    """The first ``count`` lines of the text that have at least ``n / 2`` tokens, cut at ``n``, with special tokens."""
    before, after = source.layout.before, source.layout.after
    most = n - len(before) - len(after)
    lines: list[list[int]] = []
    for line in source.stream.text.lines:
        ids = source.stream.vocabulary.unopened(source.stream.vocabulary.read(line)[0])
        if len(ids) + len(before) + len(after) >= n / 2 and most > 0:
            lines.append([*before, *ids[:most], *after])
            source.refuse_beyond(max(lines[-1]))
        if len(lines) == count:
            return lines
    raise UsageError(
        f"windows={count}: the text '{source.stream.text.name}' has {len(lines)} lines of at least {n / 2:g} tokens; "
        "choose fewer windows or a smaller n"
    )


def batch_of(rows: Sequence[Sequence[int]], model: LanguageModel) -> Reading:
    """Rows of token ids as one batch on the model's device."""
    lengths = [len(row) for row in rows]
    padding = getattr(model.model.config, "pad_token_id", None)
    ids = torch.full((len(rows), max(lengths)), padding if isinstance(padding, int) and padding >= 0 else 0)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
        mask[number, : len(row)] = 1
    device = model.model.device
    return Reading({"input_ids": ids.to(device), "attention_mask": mask.to(device)}, lengths)


def rows_of(source: ModelSource, n: int, windows: int, lines: bool) -> list[list[int]]:
    """The token ids of each window of a text, or of each line."""
    most = source.layout.positions
    if most is not None and n > most:
        raise UsageError(
            f"n={n} is more than the {most} positions of {source.name}: choose a smaller n, and more "
            "windows to read more"
        )
    if lines:
        return _lines_of(source, n, windows)
    return [source.segments(n, window)[0] for window in range(windows)]
