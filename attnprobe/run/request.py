"""What every run is asked for, and the sources and layers that this names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import UsageError
from ..grammar.lists import parse_numbers, parse_positive
from ..sources import SourceSpec, resolve, scaled_inputs
from ..timings import Timings

__all__ = ["MOST", "RunRequest", "once", "parse_layers", "sources_of"]

MOST = 100_000  # windows, and repeats


@dataclass(frozen=True)
class RunRequest:
    """What a command that leaves a run was asked for, as the user wrote it. None is the default.

    Args:
        source: with the first of the ``weights``.
        weights: the words of ``--weights``, each measured beside the others; None is the source's alone.
        scale_inputs: factors of the scores, a list such as ``"0.5,1,2"``, each measured beside the others (see
            `attnprobe.sources.scaled`).
        input_statistics: whether what Q, K and V are like is kept beside the records (see `InputKeeper`).
        n, d: ``--n`` and ``--d``, lists such as ``"512,1024"``; n None is 512, or all tokens of a Q/K/V file.
        layer, head: lists, ranges or ``all``; layer None is 0, or a Q/K/V file's first.
        windows, seed, target: how many windows of the text, the seed of the methods' draws, the exact matrix.
        out: the run's folder; a folder that holds records already is gone on with.
        jobs: processes that measure side by side; None is one per visible GPU and 1 on a CPU, or all that a cluster
            has room for.
        backend: ``local``, or ``ray`` for the cluster at ``ray_address``, where a process asks for ``cpus_per_task``
            (None is 1) and ``gpus_per_task`` (None is 1 where there are GPUs and the device is no CPU).
        shard: ``I/N``, only part I of N of the groups (source, n, window, layer), in files of its own (see `Shard`).
        force: measure what is there already again. retry_failed: measure what failed there again.
        cell_timeout: seconds that a method may take on one layer; None is no limit. With one, no cell is measured in
            the process that keeps the records.
        base: where new run folders are made.
        origin: where each value came from, for the manifest.
    """

    source: SourceSpec = field(default_factory=SourceSpec)
    weights: tuple[str, ...] | None = None
    scale_inputs: str = "1"
    input_statistics: bool = True
    n: str | None = None
    d: str = "128"
    layer: str | None = None
    head: str = "all"
    windows: int = 1
    seed: int = 0
    target: str = "softmax"
    out: str | None = None
    jobs: int | None = None
    backend: str = "local"
    ray_address: str | None = None
    cpus_per_task: int | None = None
    gpus_per_task: float | None = None
    shard: str | None = None
    force: bool = False
    retry_failed: bool = False
    cell_timeout: float | None = None
    base: str = "outputs"
    origin: Mapping[str, str] = field(default_factory=dict)


def once(notify: Callable[[str], None]) -> Callable[[str], None]:
    """``notify``, but for lines that it was called with already."""
    lines: set[str] = set()

    def tell(line: str) -> None:
        if line not in lines:
            lines.add(line)
            notify(line)

    return tell


def sources_of(request: RunRequest, notify: Callable[[str], None], timings: Timings) -> list[Any]:
    """One source for each of a request's ``weights`` and factors of the scores; two that are the same count once."""
    factors = parse_positive(request.scale_inputs, "scale-inputs")
    words = request.weights or (request.source.weights,)
    if len(words) > 1 and request.source.qkv is not None:
        raise UsageError(f"--qkv {request.source.qkv} holds Q, K and V already: drop --weights")
    found: list[Any] = []
    notify = once(notify)
    for word in dict.fromkeys(words):
        source = resolve(replace(request.source, weights=word), notify=notify, timings=timings)
        labels = [(other.facts.get("model"), other.facts.get("weights")) for other in found]
        if (source.facts.get("model"), source.facts.get("weights")) in labels:
            notify(f"weights {word} are {source.facts['weights']} here, which stand there already")
        else:
            found.append(source)
    return [one for source in found for one in scaled_inputs(source, factors)]


def parse_layers(text: str | None, source: Any) -> tuple[int, ...]:
    """The layers that a list names; None is layer 0, or the first that a Q/K/V file has."""
    if text is None:
        return (0,) if 0 in source.available else source.available[:1]
    return tuple(parse_numbers(text, "layer", source.available))
