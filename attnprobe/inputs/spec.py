"""The user's specification of a source, and the interface of every source."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor

from ..errors import SourceError, UsageError, unknown
from ..grammar.arguments import check_fields, checked
from ..grammar.lists import DTYPES as DTYPE_NAMES
from ..grammar.lists import POSITIONS, SCORES, SPLITS, WEIGHTS, check_device, spans
from ..machine.timings import Timings
from ..qkv import QKV

NAMES = ("model", "text", "tokenizer", "qkv", "queries")  # fields that may be a path
DTYPES = {name: getattr(torch, name) for name in DTYPE_NAMES}


def as_text(name: str | PurePath | None) -> str | None:
    """A name that may be a path, as text; anything else as it is."""
    return os.fspath(name) if issubclass(type(name), PurePath) else name  # type: ignore[return-value,type-var]


@dataclass(frozen=True)
class SourceSpec:
    """The origin of Q, K, V. ``None`` is the default, which may fall back to a substitute unless `strict`.

    Args:
        model: a hub id, a directory, a GGUF file (``FILE.gguf``), or the word of packaged weights, ``minilm`` or
            ``smollm2``.
        weights: ``pretrained``, ``initialized`` (every weight random) or ``initialized-qkv`` (pretrained, with
            W_Q, W_K and W_V of every layer random).
        weights_seed: the seed of random weights.
        text: ``wikitext-2``, ``wikitext-2:tokenised``, ``embedded`` (prose in the package), ``needle:pairs=64,seed=0``
            or ``needle:chain=4,chains=8`` (see `Needle`), or a file.
        split: the split of Wikitext-2.
        tokenizer: a model as above, or a ``vocab.txt`` or ``tokenizer.json`` file.
        positions: the policy beyond the model's positions: ``segment``, ``wrap`` or ``interpolate``.
        scores: ``model``, or ``plain``: without the bias and the cap that the model gives its scores. Its layers read
            the text with them.
        device: ``auto`` (cuda if present), ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: the dtype of Q, K and V; the model itself runs in float32 (float64 for ``float64``).
        strict: fail instead of falling back to a substitute.
        qkv: a safetensors file with Q, K, V, in place of a model and a text.
        cache: read captured tensors from the user's cache, and write new ones to it.
        queries: the tokens that are queries, see `Queries`; None is all tokens. All tokens are keys.

    Raises:
        UsageError: a word that is not among these.
    """

    model: str | None = None
    weights: str = "pretrained"
    weights_seed: int = 0
    text: str | None = None
    split: str = "test"
    tokenizer: str | None = None
    positions: str = "segment"
    scores: str = "model"
    device: str = "auto"
    dtype: str = "float32"
    strict: bool = False
    qkv: str | None = None
    cache: bool = True
    queries: str | None = None

    def __post_init__(self) -> None:
        for name in NAMES:
            object.__setattr__(self, name, as_text(getattr(self, name)))
        check_fields(self)
        words = {"weights": WEIGHTS, "positions": POSITIONS, "scores": SCORES, "dtype": DTYPES, "split": SPLITS}
        for name, choices in words.items():
            if getattr(self, name) not in choices:
                raise unknown(name, str(getattr(self, name)), choices)
        check_device(self.device)
        for name in NAMES:
            if getattr(self, name) is not None and not getattr(self, name).strip():
                raise UsageError(f"{name}: the name is empty")
        if self.qkv is not None:
            for name in ("model", "text", "tokenizer"):
                if getattr(self, name) is not None:
                    raise UsageError(f"--qkv {self.qkv} replaces the model and the text: drop --{name}")
            names = ("weights", "weights_seed", "split", "positions", "scores")
            for name, default in ((field.name, field.default) for field in fields(self) if field.name in names):
                if getattr(self, name) != default:
                    option = name.replace("_", "-")
                    raise UsageError(f"--qkv {self.qkv} holds Q, K and V already: drop --{option}")


class Source(ABC):
    """An origin of Q, K, V: a model that reads a text, or a file.

    Attributes:
        facts: everything that determines the tensors, as JSON values, for rows and titles.
        layers: the number of layers of the model, also those without attention; for a file one more than its highest
            layer.
        heads: the number of heads of a layer.
        local: the layers with a sliding window, even if it hides nothing in few tokens; the others are global.
        device: the device of the tensors.
    """

    facts: dict[str, Any]
    layers: int
    heads: int
    local: tuple[int, ...] = ()
    device: torch.device

    _last: tuple[tuple[Any, ...], dict[str, dict[str, Tensor]]] | None = None  # the last place, and its results

    default_n: int = 512  #: the default sequence length; for a file all of its tokens

    @property
    def head_numbers(self) -> tuple[int, ...]:
        """The numbers of the existing heads."""
        return tuple(range(self.heads))

    @property
    def available(self) -> tuple[int, ...]:
        """The layers with attention, which "all" selects, by their numbers in the model."""
        return tuple(range(self.layers))

    def why_absent(self, layer: int) -> str:
        """Why a layer is not available, and which are."""
        return f"layer {layer} does not exist; choose from {spans(self.available)}"

    @property
    def global_layers(self) -> tuple[int, ...]:
        """The existing layers without a sliding window."""
        return tuple(layer for layer in self.available if layer not in self.local)

    @abstractmethod
    def check(self, n: int, windows: int, layers: Sequence[int]) -> None:
        """Refuse an impossible request for ``windows`` text windows, before any forward.

        Raises:
            UsageError: ``n < 2``, ``n`` tokens times ``windows`` longer than the text, or a layer that does
                not exist.
        """

    @abstractmethod
    def qkv(self, n: int, layers: Sequence[int], window: int) -> dict[int, QKV]:
        """Q, K, V of ``n`` tokens of text window ``window`` at each of ``layers``, by layer, from one forward.

        Raises:
            UsageError: see `check`. SourceError: the origin is damaged or refused.
        """

    def held(self, n: int, layer: int, window: int, heads: Sequence[int] = (), what: str | None = None) -> bool:
        """Whether a place needs no forward of a model; with ``what``, whether another run `remembered` this result."""
        return what is None

    def remembered(
        self, what: str, n: int, layer: int, window: int, heads: Sequence[int], make: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """The result of ``make``, tensors by name, which depends only on the Q, K and V of a place.

        The results of the last place stay in memory. Some sources store all of them between runs.

        Args:
            what: the name of the result, with every setting that it depends on.
            n, layer, window, heads: the place.
        """
        cell = n, layer, window, tuple(heads)
        # Methods and seeds of a cell follow each other, so more cells in memory would not be read again.
        if self._last is None or self._last[0] != cell:
            self._last = cell, {}
        results = self._last[1]
        if what not in results:
            results[what] = make()
        return results[what]

    @abstractmethod
    def describe(self) -> list[str]:
        """The facts about the source, one line each, for display."""


def attention_lines(facts: Mapping[str, Any]) -> list[str]:
    """A line about the keys that queries of a source see; no line if every query sees all keys.

    >>> attention_lines({"causal": True, "sliding_window": 4096})
    ['attention: causal, sliding window 4096']
    """
    width = facts.get("sliding_window")
    words = [
        "causal" if facts.get("causal") else "",
        f"sliding window {width}" if width is not None else "",
        "sinks" if facts.get("sinks") else "",
    ]
    return [f"attention: {', '.join(filter(None, words))}"] if any(words) else []


def check_sizes(n: int, windows: int) -> None:
    """The part of `Source.check` that is common to all sources."""
    if n < 2:
        raise UsageError(f"n={n}: attention needs at least 2 tokens")
    if windows < 1:
        raise UsageError(f"windows={windows}: at least one text window is needed")


def check_memory(numbers: int, what: str) -> None:
    """Refuse float32 tensors larger than this machine's memory, before they are allocated.

    Nothing is refused on systems that do not report their memory.
    """
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not POSIX
        return
    if 4 * numbers > memory:
        needs, has = (size / 2**30 for size in (4 * numbers, memory))
        raise UsageError(f"{what} needs {needs:,.1f} GiB, and this machine has {has:,.1f} GiB of memory")


@checked()
def choose_device(name: str) -> torch.device:
    """The torch device for ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` on this machine.

    Raises:
        SourceError: a CUDA device that this machine does not have. UsageError: no name of a device.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    check_device(name)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if count else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= count:
        have = f"this machine has {count} CUDA device(s)" if count else "torch sees no CUDA device"
        raise SourceError(f"device '{name}': {have}; use --device {'cuda:0' if count else 'cpu'}")
    return device


def stage(timings: Timings | None, name: str) -> AbstractContextManager[None]:
    """Time a block as a stage of ``timings``, if there are timings."""
    return nullcontext() if timings is None else timings(name)
