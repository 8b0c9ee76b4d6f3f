"""The sources, layers and heads that a request names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..errors import UsageError
from ..grammar.lists import available_ones
from ..sources import Source, resolve, scaled_inputs
from ..timings import Timings


def once(notify: Callable[[str], None]) -> Callable[[str], None]:
    """``notify`` that skips lines it has already passed on."""
    lines: set[str] = set()

    def tell(line: str) -> None:
        if line not in lines:
            lines.add(line)
            notify(line)

    return tell


def sources_of(request: Any, notify: Callable[[str], None], timings: Timings) -> list[Source]:
    """One source for each of a request's ``weights`` and ``scale_inputs``; equal ones count once."""
    spec = request.source
    words = (request.weights,) if isinstance(request.weights, str) else request.weights
    if len(words) > 1 and spec.qkv is not None:
        raise UsageError(f"--qkv {spec.qkv} holds Q, K and V already: drop --weights")
    sources: list[Source] = []
    notify = once(notify)
    for word in dict.fromkeys(words):
        source = resolve(replace(spec, weights=word), notify=notify, timings=timings)
        labels = [(other.facts.get("model"), other.facts.get("weights")) for other in sources]
        if (source.facts.get("model"), source.facts.get("weights")) in labels:
            notify(f"weights {word} are {source.facts['weights']} here, which stand there already")
        else:
            sources.append(source)
    return [one for source in sources for one in scaled_inputs(source, request.scale_inputs)]


def layers_of(layer: tuple[int, ...] | str | None, source: Source) -> tuple[int, ...]:
    """The layers that a request names; None is layer 0, or a file's first layer."""
    if layer is None:
        return (0,) if 0 in source.available else source.available[:1]
    return available_ones(layer, "layer", source.available)


def heads_of(head: tuple[int, ...] | str, source: Source) -> tuple[int, ...]:
    """The heads that a request names."""
    return available_ones(head, "head", source.head_numbers)
