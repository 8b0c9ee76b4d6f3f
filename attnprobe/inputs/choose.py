"""Resolves a source: the named model and text, otherwise BERT-base on Wikitext-2, otherwise a local substitute.

A named model, text or tokenizer has no substitute. An unnamed one may have one, unless `strict`. Every substitution is
reported to the user in one line, and stated in the facts of the source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..errors import SourceError, nearest, unknown
from ..files import path_of, read_regular
from ..grammar.arguments import checked
from ..grammar.lists import WIKITEXT
from ..machine.timings import Timings
from .cache import FORM, NO_CACHE, default_cache, key_of
from .description import Opened
from .files import FileSource
from .folder import ModelFolder, settings_sha256
from .hub import Unreachable, cached_folder, cached_models, fetch, hub_reachable
from .model import ModelSource
from .packaged import INSTALL, MINILM, PACKAGES, is_gguf, local_model, packaged_weights
from .queries import Queries
from .spec import Source, SourceSpec, choose_device, stage
from .text import Text, embedded, open_text, prepared, wikitext
from .vocabulary import LARGEST, Vocabulary, fallback_vocabulary, of_folder, open_tokenizer
from .weights import configuration, initialized, pretrained

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DEFAULT_MODEL = "bert-base-cased"
WORDS = 28_996  # of its vocabulary; other sizes are the defaults of transformers
BUILT_IN = "bert-base (built-in configuration)"
DEFAULT_TEXT = "wikitext-2"


@dataclass
class _Substitutions:
    """Records the substitutions of unnamed parts, or refuses them if ``strict``."""

    strict: bool
    notify: Callable[[str], None]
    lines: list[str] = field(default_factory=list)

    def add(self, missing: str, instead: str, way_out: str, cause: Exception | None = None) -> None:
        if self.strict:
            raise SourceError(f"{missing}, and --strict forbids a substitute: {way_out}") from cause
        self.lines.append(f"using {instead}: {missing}")
        self.notify(self.lines[-1])


@checked()
def resolve(
    spec: SourceSpec, *, notify: Callable[[str], None] = lambda line: None, timings: Timings | None = None
) -> Source:
    """The source of a specification on this machine, with its facts. No weights are loaded yet.

    Args:
        spec: the user's choices.
        notify: called with one line for each substitution.
        timings: receives the times of ``imports``, ``model``, ``tokenising`` and, later, ``forward``.

    Raises:
        SourceError: a named part is missing, damaged, refused or unreachable; with `strict` an unnamed part too.
        UsageError: a wrong size of the cache or selection of queries.
    """
    device = choose_device(spec.device)
    if spec.qkv is not None:
        return FileSource(spec, device, notify=notify)
    substitutions = _Substitutions(spec.strict, notify)
    with stage(timings, "model"):
        folder, weights = _model(spec, substitutions)
        if folder is not None and weights != "initialized":
            folder.settings()  # a missing configuration is named before missing weights
            folder = folder.sealed()
    with stage(timings, "tokenising"):
        text = _text(spec, substitutions)

    # Called only if the cache lacks something: the imports and the vocabulary take seconds.
    def opened() -> Opened:
        with stage(timings, "imports"):
            import transformers
        with stage(timings, "model"):
            config = transformers.BertConfig(vocab_size=WORDS) if folder is None else configuration(folder)
        with stage(timings, "tokenising"):
            vocabulary = _vocabulary(spec, folder, weights)
            if vocabulary is not None:
                return Opened(config, vocabulary, made_up=False)
            missing = (
                f"{folder.name} has no tokenizer" if folder else f"the tokenizer of {DEFAULT_MODEL} is not at hand"
            )
            substitutions.add(missing, "a vocabulary of the text's own words", "use --tokenizer vocab.txt")
            return Opened(config, fallback_vocabulary(text, config.get_text_config().vocab_size), made_up=True)

    with stage(timings, "cache"):
        identity = _identity(spec, folder, weights, text, device) if spec.cache else None
    source = ModelSource(
        spec,
        name=BUILT_IN if folder is None else folder.name,
        folder=folder,
        weights=weights,
        text=text,
        open=opened,
        device=device,
        cache=NO_CACHE if identity is None else default_cache(notify),
        identity=identity or "",
        fallback=substitutions.lines,
        timings=timings,
    )
    for line in source.facts["fallback"]:  # of a source that was described in an earlier run
        if line not in substitutions.lines:
            notify(line)
    return source


def _identity(
    spec: SourceSpec, folder: ModelFolder | None, weights: str, text: Text, device: torch.device
) -> str | None:
    """The key of everything that determines Q, K and V of a source. Neither model nor tokenizer is loaded for it.

    It is None if a file that it depends on cannot be read. The error is raised when the file is loaded.
    """
    settings = {name: getattr(spec, name) for name in ("weights_seed", "positions", "dtype", "tokenizer", "strict")}
    settings |= {} if spec.scores == "model" else {"scores": spec.scores}
    settings |= {} if spec.queries is None else {"queries": Queries(spec.queries).fact}
    # Another version may round a forward otherwise, or cut a text into other tokens.
    packages = {name: version(name) for name in ("torch", "transformers", "tokenizers")}
    trained = folder is not None and weights != "initialized"
    tensors = folder.weights_sha256 if folder is not None and trained else None
    read = (text.name, text.split, text.sha256, text.readings)
    # GPUs differ in the order of their sums, so in the last bits of Q, K and V.
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    try:
        named = None if folder is None else (folder.name, folder.revision, settings_sha256(folder.path))
        tokenizer = _tokenizer_sha256(spec.tokenizer, spec.cache)
    except (OSError, SourceError):
        return None
    return key_of(FORM, settings, packages, named, weights, tensors, read, tokenizer, where)


def _tokenizer_sha256(name: str | None, cache: bool) -> str | None:
    """The hash of the named tokenizer, or of the cached one of the built-in BERT-base; None if there is none."""
    if name is None:
        folder = cached_tokenizer()
        return None if folder is None else settings_sha256(folder)
    path = path_of(name, SourceError)
    if path.is_file() and not is_gguf(name):
        return hashlib.sha256(read_regular(path, LARGEST)).hexdigest()
    local = local_model(name, cache=cache)
    folder = cached_tokenizer(name) if local is None else local.path
    if folder is None:
        raise SourceError(f"the tokenizer {name} is not on this machine")
    return settings_sha256(folder)


def open_model(name: str, weights: str = "pretrained", seed: int = 0) -> PreTrainedModel:
    """The model that ``name`` names as in `SourceSpec`, with all layers, in float32 and evaluation mode."""
    if weights not in ("pretrained", "initialized"):
        raise unknown("weights", weights, ("pretrained", "initialized"))
    folder, _ = _model(SourceSpec(model=name, weights=weights), _Substitutions(True, lambda line: None))
    assert folder is not None  # a named model has a folder
    if weights == "pretrained":
        return pretrained(folder, torch.float32, with_decoder=True)
    config = configuration(folder)
    layers = getattr(config, "num_hidden_layers", None) or 1
    return initialized(config, seed, layers, torch.float32, name, with_decoder=True)


def describe_defaults() -> list[str]:
    """The model, text and device of an empty `SourceSpec` on this machine, one line each, without loading weights."""
    lines: list[str] = []
    substitutions = _Substitutions(False, lambda line: lines.append(f"  ({line})"))
    device = choose_device("auto")
    try:
        if cached_folder(DEFAULT_MODEL, "config.json", "model.safetensors") is not None:
            model = f"{DEFAULT_MODEL}, in the hub's cache"
        elif hub_reachable():
            model = f"{DEFAULT_MODEL}, from the hub"
        else:
            folder, weights = _without_hub(substitutions, None)
            model = f"{BUILT_IN if folder is None else folder.name}, weights {weights}"
    except SourceError as error:
        model = f"{DEFAULT_MODEL}, {error}"
    if prepared(WIKITEXT[DEFAULT_TEXT]):
        text = f"{DEFAULT_TEXT}, in the cache"
    else:
        text = f"{DEFAULT_TEXT}, from the hub" if hub_reachable() else "embedded (Wikitext-2 is out of reach)"
    return [f"model: {model}", *lines, f"text: {text}", f"device: {device}"]


def _model(spec: SourceSpec, substitutions: _Substitutions) -> tuple[ModelFolder | None, str]:
    """The model's folder (None: the built-in configuration) and the kind of weights to use."""
    needs_tensors = spec.weights != "initialized"
    if spec.model is not None:
        local = local_model(spec.model, cache=spec.cache, notify=substitutions.notify)
        if local is not None:
            return local, spec.weights
        try:
            return _snapshot(spec.model, needs_tensors), spec.weights
        except Unreachable as error:
            # A mistyped package is taken for a hub id, so the nearest names of this machine are offered too.
            near = nearest(spec.model, [*PACKAGES, *cached_models()])
            raise SourceError(
                f"{error}: use --model DIR, --weights initialized without --model, or fetch it beforehand"
                + (near if "did you mean" in near else "")
            ) from error
    if not needs_tensors:
        return None, spec.weights
    try:
        return _snapshot(DEFAULT_MODEL, True), spec.weights
    except Unreachable as error:
        return _without_hub(substitutions, error, spec.weights)


def _without_hub(
    substitutions: _Substitutions, cause: Exception | None, weights: str = "pretrained"
) -> tuple[ModelFolder | None, str]:
    """The packaged weights if they are installed and equal the published ones, otherwise an initialized BERT-base."""
    missing, packaged = f"{DEFAULT_MODEL} is out of reach", packaged_weights()
    way_out = f"use --model DIR or --model {MINILM}"
    if packaged["installed"] and packaged["sha256_ok"]:
        substitutions.add(missing, f"the packaged MiniLM weights ({weights})", way_out, cause)
        return local_model(MINILM), weights
    broken = " of the packaged MiniLM, whose sha256 is wrong," if packaged["installed"] else ""
    substitutions.add(missing, f"random weights (an initialized BERT-base){broken}", f"{way_out} ({INSTALL})", cause)
    return None, "initialized"


def _snapshot(name: str, weights: bool) -> ModelFolder:
    path = fetch(name, weights=weights)
    return ModelFolder(name, path, revision=path.name if path.parent.name == "snapshots" else None)


def _text(spec: SourceSpec, substitutions: _Substitutions) -> Text:
    if spec.text is not None:
        return open_text(spec.text, spec.split)
    try:
        return wikitext(DEFAULT_TEXT, spec.split)
    except SourceError as error:
        substitutions.add(
            "Wikitext-2 is out of reach", "the prose that attnprobe carries (embedded)", "use --text FILE", error
        )
        return embedded()


def _vocabulary(spec: SourceSpec, folder: ModelFolder | None, weights: str) -> Vocabulary | None:
    """The named tokenizer, the model's own, or the cached one for the built-in BERT-base; None if there is none."""
    if spec.tokenizer is not None:
        try:
            return open_tokenizer(spec.tokenizer, cache=spec.cache)
        except Unreachable as error:
            raise SourceError(f"{error}: use --tokenizer with a vocab.txt or tokenizer.json file") from error
    if folder is None:
        cached = cached_tokenizer()
        return None if cached is None else of_folder(DEFAULT_MODEL, cached)
    vocabulary = of_folder(folder.name, folder.path)
    folder.hold()
    if vocabulary is None and weights != "initialized":
        raise SourceError(
            f"{folder.name} has no tokenizer (tokenizer.json or vocab.txt), and its trained embedding needs its own: "
            "use --tokenizer"
        )
    return vocabulary


def cached_tokenizer(name: str = DEFAULT_MODEL) -> Path | None:
    """The snapshot of a hub id in the hub's cache that holds a tokenizer."""
    folders = (cached_folder(name, file) for file in ("tokenizer.json", "vocab.txt"))
    return next((folder for folder in folders if folder is not None), None)
