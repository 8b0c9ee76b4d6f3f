"""The source of a transformers model that reads a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from ..errors import SourceError, UsageError
from ..grammar.lists import counted, spans
from ..machine.timings import Timings
from ..qkv import QKV
from .cache import Cache, key_of
from .description import Opened, described
from .folder import ModelFolder
from .packaged import INSTALL
from .positions import Captured, read
from .queries import Queries
from .spec import DTYPES, Source, SourceSpec, attention_lines, check_sizes, stage
from .text import Text
from .tokens import Layout, TokenStream, check_length
from .weights import initialized, pretrained, redraw_projections

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


class ModelSource(Source):
    """Q, K, V as a transformers model computes them from a text.

    If the cache holds the tensors, neither transformers nor the tokenizer is loaded.

    Args:
        spec: the user's choices (weights seed, positions, dtype).
        folder: the model's directory, sealed if its tensors are read; None for the built-in configuration.
        weights: ``pretrained``, ``initialized`` or ``initialized-qkv``, as resolved.
        text: the text to read.
        open: loads the configuration and the vocabulary. If it uses substitutes, it adds lines to ``fallback``.
        device: the device of the model and of the tensors.
        fallback: the substitutions with their reasons, one line each.
        cache: stores the tensors of earlier runs. identity: the key of everything that determines the tensors.
        timings: receives the times of ``model``, ``tokenising``, ``forward`` and ``cache``.

    Raises:
        SourceError: weights that are absent or damaged, or a vocabulary that does not fit the text.
    """

    def __init__(
        self,
        spec: SourceSpec,
        *,
        name: str,
        folder: ModelFolder | None,
        weights: str,
        text: Text,
        open: Callable[[], Opened],
        device: torch.device,
        cache: Cache,
        identity: str,
        fallback: Sequence[str] = (),
        timings: Timings | None = None,
    ) -> None:
        self.spec, self.name, self.folder, self.weights, self.text = spec, name, folder, weights, text
        self.device, self.timings, self.cache, self.identity = device, timings, cache, identity
        self._open = open
        self._model: PreTrainedModel | None = None
        self._deepest = 0
        before = list(fallback)
        card = cache.facts(identity)
        if card is None:
            with stage(timings, "tokenising"):
                unknown = self.stream.unknown_fraction()
            card = {
                **described(spec, name, folder, weights, text, self.opened, unknown),
                "fallback": fallback[len(before) :],
            }
            cache.keep_facts(identity, card)
        self._card = card
        self.layers, self.heads, self.local = card["layers"], card["facts"]["heads"], tuple(card["local"])
        self._attention = tuple(card["attention"])
        self.layout = Layout(card["facts"]["max_positions"], *(tuple(card[name]) for name in ("before", "after")))
        self.selection = None if spec.queries is None else Queries(spec.queries)
        chosen = {} if self.selection is None else {"queries": self.selection.fact}
        self.facts: dict[str, Any] = {**card["facts"], **chosen, "fallback": [*before, *card["fallback"]]}

    @cached_property
    def opened(self) -> Opened:
        """The configuration and the vocabulary, loaded once."""
        return self._open()

    @property
    def config(self) -> PreTrainedConfig:
        """The model's configuration."""
        return self.opened.config

    @cached_property
    def stream(self) -> TokenStream:
        """The tokens of the text."""
        return TokenStream(self.text, self.opened.vocabulary)

    @property
    def available(self) -> tuple[int, ...]:
        return self._attention

    def why_absent(self, layer: int) -> str:
        if layer >= self.layers:
            return super().why_absent(layer)
        return f"layer {layer} of {self.name} has no attention; choose from {spans(self.available)}"

    def check(self, n: int, windows: int, layers: Sequence[int]) -> None:
        check_sizes(n, windows)
        if not layers:
            raise UsageError("layer: name at least one")
        for layer in layers:
            if not 0 <= layer < self.layers:
                raise UsageError(f"layer {layer}: the model has layers 0-{self.layers - 1}")
            if layer not in self.available:
                raise UsageError(self.why_absent(layer))
        length = f"{n} x {windows}"
        if self._card["lengths"].get(length, length) is not None:  # unknown, or read again
            with stage(self.timings, "tokenising"):
                self._card["lengths"][length] = check_length(self.stream, self.layout, n, windows)
            self.cache.keep_facts(self.identity, self._card)
        again = self._card["lengths"][length]
        if again and again not in self.facts["fallback"]:
            self.facts["fallback"].append(again)
        if self.selection is not None:
            self.selection.positions(n)
        self._deepest = max(self._deepest, *layers)

    def qkv(self, n: int, layers: Sequence[int], window: int) -> dict[int, QKV]:
        """Q, K, V of ``n`` tokens at each of ``layers``, from one verified forward or from the cache.

        Raises:
            UsageError: see `Source.check`; or a positions policy that the model does not support.
            SourceError: weights or a model that are refused.
        """
        self.check(n, window + 1, layers)
        numbers = sorted(set(layers))
        captured = self._cached(n, numbers, window)
        cached = captured is not None
        if captured is None:
            captured = self._read(n, numbers, window)
        self._correct(list(captured.values()))
        facts = {name: fact for name, fact in self.facts.items() if name != "captured"}
        self.facts = facts | ({"captured": "cache"} if cached else {})
        return {layer: self._labelled(layer, n, window, capture) for layer, capture in captured.items()}

    def _correct(self, captured: Sequence[Captured]) -> None:
        """Correct the configuration's facts about attention by those that forwards have shown in some layers."""
        widths = [capture.sliding_window for capture in captured if capture.sliding_window is not None]
        proved = {"causal": True} if any(capture.causal for capture in captured) else {}
        proved |= {"sliding_window": widths[0]} if widths else {}
        proved |= {"sinks": True} if any(capture.sink_logits is not None for capture in captured) else {}
        self.facts = {name: fact for name, fact in self.facts.items() if name != "causal"} | proved

    def _read(self, n: int, layers: Sequence[int], window: int) -> dict[int, Captured]:
        """Q, K and V of one forward, which are then stored in the cache."""
        segments = self.segments(n, window)
        model = self._loaded()
        with stage(self.timings, "forward"):
            rows = None if self.selection is None else self.selection.positions(n).to(self.device)
            captured = read(model, self.name, segments, layers, self.spec.positions, rows, self.spec.scores)
        with stage(self.timings, "cache"):
            for layer, capture in captured.items():
                # W_O does not depend on n or the window, so it is stored once for all captures of the layer.
                of_layer = key_of(self.identity, layer, "W_O")
                if capture.block is not None and not self.cache.holds_tensors(of_layer):
                    facts = {"what": "W_O", "model": self.facts["model"], "layer": layer}
                    self.cache.keep_tensors(of_layer, {"weight": capture.block.weight}, facts)
                facts = {"what": "Q, K, V", "proved": capture.proved, **self._cell_facts(n, layer, window)}
                self.cache.keep_tensors(key_of(self.identity, n, window, layer), capture.tensors, facts)
        return captured

    def _cached(self, n: int, layers: Sequence[int], window: int) -> dict[int, Captured] | None:
        """The cached tensors of all layers; None if one of them is not in the cache."""
        captured = {}
        with stage(self.timings, "cache"):
            for layer in layers:
                weight = self.cache.tensors(key_of(self.identity, layer, "W_O"))
                entry = self.cache.tensors(key_of(self.identity, n, window, layer))
                if entry is None or ("block_size" in entry[0] and weight is None):
                    return None
                tensors, facts = entry
                if weight is not None and "block_size" in tensors:
                    tensors |= weight[0]
                tensors = {name: tensor.to(self.device) for name, tensor in tensors.items()}
                captured[layer] = Captured.stored(tensors, facts["proved"], tensors.pop("weight", None))
        return captured

    def held(self, n: int, layer: int, window: int, heads: Sequence[int] = (), what: str | None = None) -> bool:
        result = () if what is None else (list(heads), what)
        return self.cache.holds_tensors(key_of(self.identity, n, window, layer, *result))

    def remembered(
        self, what: str, n: int, layer: int, window: int, heads: Sequence[int], make: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        key = key_of(self.identity, n, window, layer, list(heads), what)
        entry = self.cache.tensors(key)
        if entry is not None:
            return {name: tensor.to(self.device) for name, tensor in entry[0].items()}
        made = make()
        self.cache.keep_tensors(key, made, {"what": what, **self._cell_facts(n, layer, window)})
        return made

    def _cell_facts(self, n: int, layer: int, window: int) -> dict[str, Any]:
        """The facts by which a person recognises an entry of the cache."""
        named = {name: self.facts[name] for name in ("model", "weights", "text")}
        return {**named, "layer": layer, "n": n, "window": window}

    def segments(self, n: int, window: int) -> list[list[int]]:
        """The token ids of a text window, in segments no longer than the model's positions."""
        with stage(self.timings, "tokenising"):
            segments = self.layout.segments(self.stream.window(self.layout.text_tokens(n), window), n)
            self.refuse_beyond(max(map(max, segments)))
        return segments

    def refuse_beyond(self, token: int) -> None:
        """Refuse a token without an embedding in the model."""
        if token >= self.config.get_text_config().vocab_size:
            raise SourceError(
                f"tokenizer {self.facts['tokenizer']}: its token {token} is beyond the {self.config.vocab_size} "
                f"rows of {self.name}; use the model's own tokenizer"
            )

    def describe(self) -> list[str]:
        f = self.facts
        seed = "" if f["weights_seed"] is None else f" (seed {f['weights_seed']})"
        weights = f"weights {f['weights']}{seed}"
        if self.weights != self.spec.weights:  # a substitute for the requested weights
            weights = f"random weights{seed}; for pretrained ones: {INSTALL}"
        revision = f", revision {f['revision']}" if f["revision"] else ""
        digest = f", sha256 {f['model_sha256']}" if f["model_sha256"] else ""
        split = f", split {f['split']}" if f["split"] else ""
        layers = f"{self.layers} layers"
        if len(self.available) < self.layers:
            layers = f"attention in {counted('layer', self.available)} of {self.layers}, each"
        longest = "any number of" if f["max_positions"] is None else f["max_positions"]
        return [
            f"model: {f['model']}{revision}, {weights}{digest}",
            f"heads: {layers} of {f['heads']} heads, p={f['p']}, {longest} positions",
            f"text: {f['text']}{split}, sha256 {f['text_sha256']}",
            f"tokenizer: {f['tokenizer']}, sha256 {f['tokenizer_sha256']}, unknown {f['unk_fraction']:.2%}",
            f"positions: {f['positions']}",
            *attention_lines(f),
            *(f"fallback: {line}" for line in f["fallback"]),
        ]

    def _labelled(self, layer: int, n: int, window: int, captured: Captured) -> QKV:
        dtype = DTYPES[self.spec.dtype]
        label = {"layer": layer, "window": window, "n": n, **self.facts}
        if captured.rope is not None:
            label["rope"] = captured.rope
        if self.text.needle is not None:
            label["needle"] = self._needle(n, window)
        try:
            q, k, v = (x.to(dtype).contiguous() for x in (captured.q, captured.k, captured.v))
            queries = None if captured.all_queries is None else captured.all_queries.to(dtype)
            return QKV(
                q,
                k,
                v,
                scale=captured.scale,
                label=label,
                causal=captured.causal,
                positions=captured.positions,
                sliding_window=captured.sliding_window,
                sink_logits=captured.sink_logits,
                all_queries=queries,
                bias=None if captured.bias is None else captured.bias.to(dtype),
                softcap=captured.softcap,
                positional=captured.positional,
                own=None if captured.own is None else captured.own.to(dtype),
                block=captured.block,
            )
        except UsageError as error:
            raise SourceError(f"{self.name}, layer {layer}, as {self.spec.dtype}: {error}") from error

    def ending(self, n: int, window: int) -> tuple[int, int]:
        """The number of tokens from the question of a needle to the end of the window, and from its answer on."""
        needle = self.text.needle
        if needle is None or not needle.answered:
            raise UsageError(
                f"the text {self.text.name} ends with no answer; choose one such as needle:pairs=16,answer=1"
            )
        question, answer = needle.ending(window)
        ids, spans = self.stream.vocabulary.read(f".{question}{answer}")
        counts = [sum(end > 1 + length for _, end in spans) for length in (0, len(question))]
        tokens, behind = self.segments(n, window)[-1], len(self.layout.after)
        # A tokenizer may merge letters across the border; the tokens of the question would then not be its own.
        if tokens[len(tokens) - counts[0] - behind : len(tokens) - behind] != ids[len(ids) - counts[0] :]:
            raise UsageError(f"text {needle.name}: the tokenizer joins its question to the text before it")
        return counts[0] + behind, counts[1] + behind

    def _needle(self, n: int, window: int) -> list[int]:
        """The numbers of the tokens that the question at the end of the text asks for."""
        window_key = f"{n}, window {window}"
        if window_key not in self._card["needles"]:
            with stage(self.timings, "tokenising"):
                marked = self.stream.needle(self.layout.text_tokens(n), window)
            numbers = self.layout.places(n)
            self._card["needles"][window_key] = [numbers[index] for index in marked]
            self.cache.keep_facts(self.identity, self._card)
        return self._card["needles"][window_key]

    def _loaded(self) -> PreTrainedModel:
        """The model, loaded once. A random stack is built again if more layers are needed."""
        depth = self._deepest + 1
        if self._model is not None and self._model.config.num_hidden_layers >= min(depth, self.layers):
            return self._model
        dtype = torch.float64 if self.spec.dtype == "float64" else torch.float32
        with stage(self.timings, "imports"):
            from transformers import MODEL_MAPPING

            MODEL_MAPPING.get(type(self.config), None)  # imports the model's own module, which is timed here
        with stage(self.timings, "model"):
            if self.weights == "initialized":
                model = initialized(self.config, self.spec.weights_seed, depth, dtype, self.name)
            else:
                assert self.folder is not None  # pretrained weights have a folder
                model = pretrained(self.folder, dtype)
                if self.weights == "initialized-qkv":
                    redraw_projections(model, self.spec.weights_seed, self.name)
            self._model = model = cast("Any", model).to(self.device)
        return model
