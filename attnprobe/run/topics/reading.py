"""Options of what is measured: methods, budgets, places, and the source of Q, K and V."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ...grammar.lists import (
    DTYPES,
    POSITIONS,
    SCORES,
    SPLITS,
    WEIGHTS,
    either,
    lengths,
    numbers,
    positive_numbers,
    positives,
    words,
)
from ..option import FOLDER, NUMBERS, PLACES, SOURCE, opt, options_of

LAYERS = ("all", "global", "local")  # words for layers
MOST = 100_000  # windows, and repeats
TARGETS = ("softmax", "gaussian")
WEIGHTS_HELP = "pretrained, initialized (random) or initialized-qkv"

of_source = partial(opt, group=SOURCE)


def methods_option(default: tuple[str, ...], help: str, metavar: str = "NAME[:k=v,…],…") -> Any:
    """The field of ``--method``."""
    return opt(default, help, flag="--method", metavar=metavar, of_methods=True)


def target_option(help: str) -> Any:
    """The field of ``--target``."""
    return opt("softmax", help, metavar="softmax|gaussian", among=TARGETS)


@dataclass(frozen=True, kw_only=True)
class Lengths:
    n: tuple[int, ...] | None = opt(
        None, "Sequence lengths, such as 512,1024. [default: 512, or all of --qkv]", parse=lengths
    )


@dataclass(frozen=True, kw_only=True)
class Budgets:
    d: tuple[int, ...] = opt(
        (128,),
        "Budgets, such as 16,32,64. [default: 128, at most half of V's columns]",
        parse=positive_numbers,
    )


@dataclass(frozen=True, kw_only=True)
class Layers:
    layer: tuple[int, ...] | str | None = opt(
        None,
        "Layers: 0,5 or 0-5 or all; global or local, by sliding windows. [default: 0]",
        group=PLACES,
        parse=numbers,
        words=LAYERS,
    )
    head: tuple[int, ...] | str = opt("all", "Heads: 0,5 or 0-5 or all.", group=PLACES, parse=numbers, words=("all",))


@dataclass(frozen=True, kw_only=True)
class SomeQueries:
    queries: str | None = opt(
        None,
        "Queries: last:256, every:64, random:512, 0,1000-1255 or FILE. [default: all]",
        metavar="ROWS",
        later=True,
    )


@dataclass(frozen=True, kw_only=True)
class Windows:
    windows: int = opt(1, "Text windows to measure.", group=PLACES, between=(1, MOST))


@dataclass(frozen=True, kw_only=True)
class Places(Layers, Windows):
    """The place in the model and the text."""


@dataclass(frozen=True, kw_only=True)
class Statistics:
    input_statistics: bool = opt(
        True,
        "Measure statistics of Q, K and V: entropy, sinks, norms, ranks.",
        flag="--input-statistics/--no-input-statistics",
        later=True,
    )


@dataclass(frozen=True, kw_only=True)
class Inputs(Statistics):
    """Changes of Q, K and V before anything is measured."""

    scale_inputs: tuple[float, ...] = opt(
        (1.0,),
        "Factors of the scores, such as 0.5,1,2.",
        parse=positives,
        later=True,
    )


@dataclass(frozen=True, kw_only=True)
class Split:
    split: str = of_source("test", f"Split of Wikitext-2: {either(SPLITS)}.", metavar="SPLIT", among=SPLITS)


@dataclass(frozen=True, kw_only=True)
class Reading(Split):
    """The model and its text."""

    model: str | None = of_source(
        None,
        "Hub id, folder, GGUF file, minilm, smollm2. [default: bert-base-cased, or minilm]",
        metavar="MODEL",
    )
    weights_seed: int = of_source(0, "Seed of random weights.")
    text: str | None = of_source(
        None,
        "wikitext-2, embedded, needle:… or FILE. [default: wikitext-2, or embedded]",
        metavar="TEXT",
    )
    tokenizer: str | None = of_source(None, "A tokenizer instead of the model's own.", metavar="TOKENIZER")


@dataclass(frozen=True, kw_only=True)
class WeightsWord:
    weights: str = of_source("pretrained", f"{WEIGHTS_HELP}.", metavar="WEIGHTS", among=WEIGHTS)


@dataclass(frozen=True, kw_only=True)
class WeightsWords:
    weights: tuple[str, ...] = of_source(
        ("pretrained",),
        f"{WEIGHTS_HELP}; a list.",
        metavar="WEIGHTS",
        among=WEIGHTS,
        parse=words,
    )


# options that have an effect only where a model reads a text
READING = (*(option.name for option in options_of(Reading)), "weights", "positions", "scores")


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """Q, K and V: from a model that reads a text, or from a file."""

    positions: str = of_source(
        "segment",
        f"Beyond the model's positions: {either(POSITIONS)}.",
        metavar="HOW",
        among=POSITIONS,
    )
    scores: str = of_source(
        "model",
        "plain: without the bias and the cap of a model's scores.",
        metavar="|".join(SCORES),
        among=SCORES,
    )
    qkv: str | None = of_source(
        None,
        "Q, K and V from a safetensors file instead of a model and a text.",
        metavar="FILE",
        excludes=dict.fromkeys(READING, "--qkv {value} holds Q, K and V already: drop {flag}"),
    )
    cache: bool = of_source(
        True,
        "Keep Q, K and V of earlier runs in the cache.",
        flag="--cache/--no-cache",
        role=FOLDER,
    )


@dataclass(frozen=True, kw_only=True)
class Device:
    """The device, and whether a source may be substituted."""

    device: str = opt("auto", "auto, cpu, cuda or cuda:N.", group=NUMBERS, metavar="DEVICE")
    strict: bool = opt(False, "Fail instead of falling back to another model or text.", group=NUMBERS)


@dataclass(frozen=True, kw_only=True)
class Dtype:
    dtype: str = opt(
        "float32",
        "The dtype of methods; exact outputs are float64.",
        group=NUMBERS,
        metavar="DTYPE",
        among=DTYPES,
    )


@dataclass(frozen=True, kw_only=True)
class Source(Reading, WeightsWord, Tensors, Device, Dtype):
    """A source on its own."""
