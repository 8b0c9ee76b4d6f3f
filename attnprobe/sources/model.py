"""The source that is a model reading a text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from ..errors import SourceError, UsageError
from ..qkv import QKV
from ..timings import Timings
from .folder import ModelFolder
from .packaged import INSTALL
from .positions import max_positions, read
from .spec import DTYPES, Source, SourceSpec, check_sizes, stage
from .text import Text
from .tokens import Layout, TokenStream, check_length
from .vocabulary import Vocabulary
from .weights import initialized, pretrained, redraw_projections

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["ModelSource"]

MOST_UNKNOWN = 0.3


class ModelSource(Source):
    """Q, K, V as a transformers model computes them from a text.

    Args:
        spec: what was asked for (weights seed, positions, dtype).
        folder: where the model lies; None is a configuration built in.
        config: its configuration.
        weights: ``pretrained``, ``initialized`` or ``initialized-qkv``, as resolved.
        text, vocabulary: what it reads.
        made_up: the vocabulary was made from the text, so its unknown tokens are nobody's mistake.
        device: where the model runs and the tensors lie.
        fallback: what was substituted and why, one line each.
        timings: charged with ``model``, ``tokenising`` and ``forward``.

    Raises:
        SourceError: weights that are absent or damaged, or a vocabulary that does not fit the text.
    """

    def __init__(
        self,
        spec: SourceSpec,
        *,
        name: str,
        folder: ModelFolder | None,
        config: PreTrainedConfig,
        weights: str,
        text: Text,
        vocabulary: Vocabulary,
        made_up: bool,
        device: torch.device,
        fallback: Sequence[str] = (),
        timings: Timings | None = None,
    ) -> None:
        self.spec, self.name, self.folder, self.config, self.weights = spec, name, folder, config, weights
        self.device, self.timings = device, timings
        self._model: PreTrainedModel | None = None
        self._deepest = 0
        self.layers, self.heads, p = _sizes(name, config)
        limits = [limit for limit in (max_positions(config), vocabulary.longest) if limit is not None]
        self.layout = Layout(min(limits, default=None), vocabulary.before, vocabulary.after)
        self.stream = TokenStream(text, vocabulary)
        with stage(timings, "model"):
            digest = None
            if folder is not None and weights != "initialized":
                self.folder = folder = folder.sealed()
                digest = folder.seals[-1].sha256
        with stage(timings, "tokenising"):
            unknown = self.stream.unknown_fraction()
        if unknown > MOST_UNKNOWN and not made_up:
            raise SourceError(
                f"tokenizer {vocabulary.name}: {unknown:.0%} of the text '{text.name}' is unknown to it; "
                "use another --tokenizer or --text"
            )
        self.facts: dict[str, Any] = {
            "model": name,
            "revision": None if folder is None else folder.revision,
            "model_sha256": digest,
            "config_sha256": _config_sha256(config),
            "weights": weights,
            "weights_seed": None if weights == "pretrained" else spec.weights_seed,
            "text": text.name,
            "split": text.split,
            "text_sha256": text.sha256,
            "tokenizer": vocabulary.name,
            "tokenizer_sha256": vocabulary.sha256,
            "unk_fraction": round(unknown, 6),
            "positions": spec.positions,
            "dtype": spec.dtype,
            "max_positions": self.layout.positions,
            "p": p,
            "heads": self.heads,
            "fallback": list(fallback),
            **({"causal": True} if _is_causal(config) else {}),
        }

    def check(self, n: int, windows: int, layers: Sequence[int]) -> None:
        check_sizes(n, windows)
        if not layers:
            raise UsageError("layer: none is named")
        for layer in layers:
            if not 0 <= layer < self.layers:
                raise UsageError(f"layer {layer}: the model has layers 0-{self.layers - 1}")
        with stage(self.timings, "tokenising"):
            again = check_length(self.stream, self.layout, n, windows)
        if again and again not in self.facts["fallback"]:
            self.facts["fallback"].append(again)
        self._deepest = max(self._deepest, *layers)

    def qkv(self, n: int, layers: Sequence[int], window: int) -> dict[int, QKV]:
        """Q, K, V of ``n`` tokens at each of ``layers``, from one proven forward.

        Raises:
            UsageError: see `Source.check`; or a positions policy that the model cannot take.
            SourceError: weights or a model that are refused.
        """
        self.check(n, window + 1, layers)
        segments = self.segments(n, window)
        model = self._loaded()
        with stage(self.timings, "forward"):
            read_out = read(model, self.name, segments, sorted(set(layers)), self.spec.positions)
        if any(causal != ("causal" in self.facts) for *_, causal in read_out.values()):  # what was proved counts
            told = {name: fact for name, fact in self.facts.items() if name != "causal"}
            self.facts = told | ({"causal": True} if any(causal for *_, causal in read_out.values()) else {})
        return {layer: self._labelled(layer, n, window, *tensors) for layer, tensors in read_out.items()}

    def segments(self, n: int, window: int) -> list[list[int]]:
        """The token ids of a text window, in segments that the model has positions for.

        Raises:
            SourceError: a token that the model has no embedding of.
        """
        with stage(self.timings, "tokenising"):
            ids = self.stream.first((window + 1) * self.layout.text_tokens(n))
            segments = self.layout.window(ids, n, window)
            self.refuse_beyond(max(map(max, segments)))
        return segments

    def refuse_beyond(self, token: int) -> None:
        """Refuse a token that the model has no embedding of."""
        if token >= self.config.get_text_config().vocab_size:
            raise SourceError(
                f"tokenizer {self.facts['tokenizer']}: its token {token} is beyond the {self.config.vocab_size} "
                f"rows of {self.name}; use the model's own tokenizer"
            )

    def describe(self) -> list[str]:
        f = self.facts
        seed = "" if f["weights_seed"] is None else f" (seed {f['weights_seed']})"
        weights = f"weights {f['weights']}{seed}"
        if self.weights != self.spec.weights:  # those asked for are not at hand
            weights = f"random weights{seed}; for pretrained ones: {INSTALL}"
        revision = f", revision {f['revision']}" if f["revision"] else ""
        digest = f", sha256 {f['model_sha256']}" if f["model_sha256"] else ""
        split = f", split {f['split']}" if f["split"] else ""
        longest = "any number of" if f["max_positions"] is None else f["max_positions"]
        return [
            f"model: {f['model']}{revision}, {weights}{digest}",
            f"heads: {self.layers} layers of {f['heads']} heads, p={f['p']}, {longest} positions",
            f"text: {f['text']}{split}, sha256 {f['text_sha256']}",
            f"tokenizer: {f['tokenizer']}, sha256 {f['tokenizer_sha256']}, unknown {f['unk_fraction']:.2%}",
            f"positions: {f['positions']}",
            *(["attention: causal"] if "causal" in f else []),
            *(f"fallback: {line}" for line in f["fallback"]),
        ]

    def _labelled(
        self,
        layer: int,
        n: int,
        window: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
        causal: bool,
    ) -> QKV:
        dtype = DTYPES[self.spec.dtype]
        label = {"layer": layer, "window": window, "n": n, **self.facts}
        try:
            return QKV(*(x.to(dtype).contiguous() for x in (q, k, v)), scale=scale, label=label, causal=causal)
        except UsageError as error:
            raise SourceError(f"{self.name}, layer {layer}, as {self.spec.dtype}: {error}") from error

    def _loaded(self) -> PreTrainedModel:
        """The model, loaded once; a random stack is built again where more layers are wanted."""
        wanted = self._deepest + 1
        if self._model is not None and self._model.config.num_hidden_layers >= min(wanted, self.layers):
            return self._model
        dtype = torch.float64 if self.spec.dtype == "float64" else torch.float32
        with stage(self.timings, "imports"):
            from transformers import MODEL_MAPPING

            MODEL_MAPPING.get(type(self.config), None)  # imports the model's own file, which is charged here
        with stage(self.timings, "model"):
            if self.weights == "initialized":
                model = initialized(self.config, self.spec.weights_seed, wanted, dtype, self.name)
            else:
                assert self.folder is not None  # pretrained weights lie in one
                model = pretrained(self.folder, dtype)
                if self.weights == "initialized-qkv":
                    redraw_projections(model, self.spec.weights_seed, self.name)
            self._model = model = cast("Any", model).to(self.device)
        return model


def _config_sha256(config: PreTrainedConfig) -> str:
    """What the configuration says, apart from who wrote it and where it lies."""
    told = config.to_dict()
    for name in ("transformers_version", "_name_or_path", "dtype", "torch_dtype", "_attn_implementation"):
        told.pop(name, None)
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


def _is_causal(config: PreTrainedConfig) -> bool:
    """Whether a configuration is that of a decoder, whose tokens see those before them: what a forward then proves.

    Of an encoder-decoder the encoder is read.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    inner = config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        return False
    kind = config.model_type
    writes = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return writes or bool(getattr(inner, "is_decoder", False))


def _sizes(name: str, config: PreTrainedConfig) -> tuple[int, int, int]:
    """Layers, heads and head dimension that a configuration states."""
    inner = config.get_text_config()
    if not isinstance(getattr(inner, "vocab_size", None), int):
        raise SourceError(f"{name}: a {config.model_type} reads no text (its configuration states no vocab_size)")
    try:
        layers, heads = int(inner.num_hidden_layers), int(inner.num_attention_heads)
        return layers, heads, int(getattr(inner, "head_dim", None) or inner.hidden_size // heads)
    except (AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise SourceError(f"{name}: its configuration states no layers and heads of attention ({error})") from error
