"""Labels of sources. Rows of different weights, texts or settings are never averaged together."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..files import Fields
from ..grammar.foreign import printable, short_hashes
from ..grammar.lists import spans
from .records.file import NAMES, plain, strict_json

LETTERS = {"epsilon": "ε", "delta": "δ", "lambda": "λ", "gamma": "γ", "beta": "β", "eta": "η"}
# facts that tell sources apart, the most telling first
TELLING = (
    *("scale_inputs", "weights", "weights_seed", "model_sha256", "qkv_sha256", "text_sha256", "tokenizer_sha256"),
    *("positions", "scores", "dtype"),
)
MODELS = {"minilm": "MiniLM (all-MiniLM-L6-v2)", "smollm2": "SmolLM2 (135M-Instruct, 4-bit weights)"}
WEIGHTS = {"initialized": "random weights", "initialized-qkv": "pretrained but random W_Q, W_K, W_V"}
TEXTS = {"embedded": "the English prose in the package", "wikitext-2": "Wikitext-2"}
BY_NAME = {"model_sha256": "model", "text_sha256": "text", "tokenizer_sha256": "tokenizer", "qkv_sha256": "qkv"}


def identity(facts: Mapping[str, Any] | None) -> str:
    """The identity of a source's tensors as text: its facts, without names whose contents other facts hash."""
    determinants = {name: fact for name, fact in (facts or {}).items() if name not in NAMES}
    return json.dumps(determinants, sort_keys=True, default=plain)


def scale_of(facts: Mapping[str, Any] | None) -> float:
    """The factor of a source's scores, 1 by default."""
    return (facts or {}).get("scale_inputs", 1)


def source_labels(cells: Iterable[Mapping[str, Any]]) -> dict[str, str | None]:
    """A short label for each source of the cells, by `identity`, in their order; None for a single source.

    The label is the word of ``--weights``, or the name of a Q/K/V file or of a task. Sources with the same word have
    further facts in their labels, until no two labels are equal.

    >>> facts = {"weights": "initialized", "weights_seed": 0}, {"weights": "initialized", "weights_seed": 1}
    >>> list(source_labels({"source": of_run} for of_run in facts).values())
    ['initialized, weights seed 0', 'initialized, weights seed 1']
    """
    sources: dict[str, Mapping[str, Any]] = {}
    for cell in cells:
        sources.setdefault(identity(cell.get("source")), cell.get("source") or {})
    if len(sources) < 2:
        return dict.fromkeys(sources)
    labels = {}
    for key, facts in sources.items():
        words = (facts[name] for name in ("weights", "qkv", "task") if facts.get(name))
        labels[key] = str(next(words, "unknown source"))
    others = sorted({name for facts in sources.values() for name in facts} - {*TELLING, *NAMES})
    for name in (*TELLING, *others):
        # the fact is added to all tied labels at once: the labels so far decide which are tied
        before = dict(labels)
        for key in sources:
            tied = [other for other in sources if before[other] == before[key]]
            if len({strict_json(sources[other].get(name)) for other in tied}) > 1:
                labels[key] += f", {_difference(name, sources, tied, key)}"
    return dict(labels)


def source_heading(row: Fields) -> str:
    """A row's source in a caption or title; empty if the run has one source."""
    label = row.get("source")
    return "" if not label else f"weights {label}" if row.get("weights") else str(label)


def sources_in_words(sources: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each source with the facts of its identity.

    >>> sources_in_words([{"model": "minilm", "weights": "pretrained"}])
    ['source: model minilm, weights pretrained']
    """
    names = (
        "model",
        "weights",
        "weights_seed",
        "scale_inputs",
        "text",
        "qkv",
        "tokenizer",
        "positions",
        "scores",
        "dtype",
    )
    known = [", ".join(f"{name} {facts[name]}" for name in names if facts.get(name) is not None) for facts in sources]
    return [f"source: {facts or 'without facts'}" for facts in known]


def measured_words(cells: Sequence[Mapping[str, Any]]) -> str:
    """What was measured, in plain words: weights, text, layers, numbers of tokens and heads.

    >>> facts = {"model": "minilm", "weights": "pretrained", "text": "embedded"}
    >>> measured_words([{"source": facts, "layer": 0, "n": 512, "heads": list(range(12))}])
    'MiniLM (all-MiniLM-L6-v2), pretrained, on the English prose in the package, layer 0, n = 512 tokens, 12 heads'
    """
    sources = [cell.get("source") or {} for cell in cells]
    factors = sorted({scale_of(facts) for facts in sources})
    lengths = sorted({cell["n"] for cell in cells})
    # a training on a task has layers and heads of its own model
    placed = [cell for cell in cells if "task" not in (cell.get("source") or {})]
    heads = {head for cell in placed for head in cell.get("heads") or ()}
    parts = [
        sources_words(sources),
        "" if factors == [1] else f"scores x {', '.join(f'{factor:g}' for factor in factors)}",
        layers_in_words([cell for cell in placed if isinstance(cell.get("layer"), int)]),
        f"n = {', '.join(map(str, lengths))} tokens{_beyond_positions(sources, max(lengths, default=0))}",
        f"{len(heads)} head{'s' * (len(heads) != 1)}" if heads else "",
        "scores without bias and cap" if any(facts.get("scores") == "plain" for facts in sources) else "",
        "causal" if any(facts.get("causal") for facts in sources) else "",
        "sliding windows" if any(facts.get("sliding_window") for facts in sources) else "",
        *dict.fromkeys(f"queries {facts['queries']}" for facts in sources if facts.get("queries")),
    ]
    return ", ".join(filter(None, parts))


def _beyond_positions(sources: Sequence[Mapping[str, Any]], longest: int) -> str:
    """How a text was read that has more tokens than the model has positions; empty for a shorter text.

    >>> _beyond_positions([{"max_positions": 512, "positions": "segment"}], 1024)
    ' in segments of 512'
    """
    words = {"segment": "in segments of {}", "wrap": "at {} positions, repeated", "interpolate": "between {} positions"}
    read = {(facts.get("positions"), facts.get("max_positions") or longest) for facts in sources}
    return "".join(f" {words[how].format(most)}" for how, most in read if how in words and most < longest)


def sources_words(sources: Iterable[Mapping[str, Any]]) -> str:
    """Models, their weights and texts, in plain words."""
    words: dict[tuple[str, str], list[str]] = {}
    for facts in sources:
        model, weights, text = _source_words(facts)
        words.setdefault((model, text), []).append(weights)
    read = [
        ", ".join(filter(None, [model, " and ".join(filter(None, dict.fromkeys(weights))), text]))
        for (model, text), weights in words.items()
    ]
    return " and ".join(filter(None, read))


def _source_words(facts: Mapping[str, Any]) -> tuple[str, str, str]:
    """A source in plain words: the model or its substitute, its weights, its text."""
    if "model" in facts:
        seed = "" if facts.get("weights_seed") is None else f" (seed {facts['weights_seed']})"
        split = f" ({facts['split']})" if facts.get("split") else ""
        model, weights, text = (str(facts.get(name)) for name in ("model", "weights", "text"))
        if weights == "pretrained" and model not in MODELS:
            weights = "with its own weights"  # a model that nobody trained has random weights
        return MODELS.get(model, model), f"{WEIGHTS.get(weights, weights)}{seed}", f"on {TEXTS.get(text, text)}{split}"
    if "qkv" in facts:
        return f"Q, K and V of {facts['qkv']}", "", ""
    if "random" in facts:
        return f"random Q, K and V, {facts['random']}", "", ""
    return " of ".join(str(facts[name]) for name in ("task", "text") if facts.get(name)), "", ""


def layers_in_words(cells: Iterable[Mapping[str, Any]]) -> str:
    """The layers of cells; empty without cells."""
    layers = sorted({cell["layer"] for cell in cells})
    return layer_in_words(spans(layers)) if layers else ""


def layer_in_words(layer: int | str) -> str:
    """A layer, or several as `spans` writes them.

    >>> layer_in_words(3), layer_in_words("0-2, 5")
    ('layer 3', 'layers 0-2, 5')
    """
    return f"layer{'' if str(layer).isdigit() else 's'} {layer}"


def file_tag(label: str | None) -> str:
    """The part of a file name that distinguishes figures of several sources, made of the source's label.

    Characters that file names should not have become hyphens; then a hash keeps two such labels apart.

    >>> file_tag("initialized-qkv"), file_tag(None), file_tag("initialized, weights seed 1")
    ('-initialized-qkv', '', '-initialized-weights-seed-1-531770')
    """
    if not label:
        return ""
    # 60 characters, because a name of a file may have 255 bytes, and labels of several facts are long
    tag = re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-")[:60]
    digest = hashlib.sha256(printable(label).encode()).hexdigest()
    return f"-{tag}" if tag == label else f"-{tag}-{digest[:6]}"


def _difference(name: str, sources: Mapping[str, Mapping[str, Any]], tied: list[str], key: str) -> str:
    """A fact as words; a hashed file by its name, if the names differ too."""
    if name == "scale_inputs":
        return f"scores x {scale_of(sources[key]):g}"
    short = BY_NAME.get(name)
    if short and len({sources[other].get(short) for other in tied}) == len(tied):
        return f"{short} {sources[key].get(short)}"
    return f"{name.replace('_', ' ')} {short_hashes(str(sources[key].get(name)))}"


def at_label(at: Mapping[str, object], method: str | None = None) -> str:
    """The parameters of a statement. The method is left out if it is named next to them.

    >>> at_label({"epsilon": 0.5, "delta": 0.1, "norm": "spectral"})
    'ε = 0.5, δ = 0.1, norm = spectral'
    """

    def shown(value: Any) -> str:
        return f"{value:g}" if isinstance(value, float) else str(value)

    order = [*LETTERS]
    names = [name for name in at if name != "method" or not method]
    names.sort(key=lambda name: (order.index(name) if name in order else len(order), name))
    return ", ".join(f"{LETTERS.get(name, name.replace('_', ' '))} = {shown(at[name])}" for name in names)
