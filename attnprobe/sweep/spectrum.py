"""``attnprobe spectrum``: which spectra are asked for, and the loop that computes them, one record per head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from ..errors import UsageError, nearest, unknown
from ..lists import parse_numbers
from ..methods import METHODS, approximate, is_method
from ..metrics.duplicates import repeated_rows
from ..metrics.spectrum import KINDS, MATRICES, refuse_spectrum, shape_of, spectra, summary
from ..qkv import QKV
from ..records import SCHEMA, RecordWriter, cell_key, determining
from ..reference import TARGETS
from ..shards import parse_shard
from ..spelling import parts
from ..timings import Timings
from .folder import recorded
from .inputs import InputKeeper
from .limits import time_limit
from .plan import MethodRequest, determines, listed, parse_methods, refused, told
from .request import MOST, RunRequest, parse_layers, sources_of
from .run import Outcome, said
from .session import keeper, place_of

__all__ = ["SpectrumRequest", "SpectrumSession", "measure_spectra", "parse_of", "spectrum_layers"]

Note = Callable[[str], None]
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class SpectrumRequest(RunRequest):
    """What ``attnprobe spectrum`` was asked for; see `RunRequest` for the rest.

    Args:
        of: ``--of`` items (see `parse_of`).
        kind: ``singular`` or ``eigen``.
        k: only the leading values; None is all up to n = 4096 and 64 beyond.
        epsilon: relative errors for which the rank is told, a list such as ``"0.1,0.01"``.
    """

    of: tuple[str, ...] = ("softmax",)
    kind: str = "singular"
    k: int | None = None
    epsilon: str = "0.1,0.01"


@dataclass
class SpectrumSession:
    """A finished run: its records, folder and sources."""

    outcome: Outcome
    path: Path
    sources: list[Any]


@dataclass(frozen=True)
class _Cell:
    """One matrix of one head."""

    key: str
    of: MethodRequest | str
    d: int | None
    head: int

    @property
    def name(self) -> str:
        return self.of if isinstance(self.of, str) else self.of.label

    @property
    def told(self) -> dict[str, Any]:
        """The method, as records tell it; nulls where it is a matrix."""
        return told(None if isinstance(self.of, str) else self.of)


@dataclass(frozen=True)
class _Layer:
    """The cells that share one layer's Q, K and V."""

    source: Any
    n: int
    window: int
    layer: int
    cells: list[_Cell]


def parse_of(texts: Iterable[str], target: str = "softmax") -> list[MethodRequest | str]:
    """Matrices by name and methods as ``--method`` takes them, comma-separated and repeatable; doubles count once.

    Raises:
        UsageError: a name that is neither a matrix nor a method, or a method's option that it does not have.

    >>> parse_of(["softmax,gaussian", "skyformer:sampler=iid"])[:2]
    ['softmax', 'gaussian']
    """
    found: list[MethodRequest | str] = []
    waiting: list[str] = []  # a method and the options that follow it
    for item in [*(item.strip() for text in texts for item in text.split(",")), None]:
        if item is not None and waiting and "=" in item and parts(item)[1] is None:
            waiting.append(item)
            continue
        if waiting:
            found += parse_methods([",".join(waiting)], target)
            waiting = []
        if item is None:
            break
        name = parts(item)[0]
        if item in MATRICES:
            found.append(item)
        elif is_method(name) or name == "all":
            waiting = [item]
        else:
            raise UsageError(f"unknown matrix or method '{item}'{nearest(name, [*MATRICES, *METHODS])}")
    return [one for place, one in enumerate(found) if one not in found[:place]]


def parse_epsilons(text: str) -> tuple[float, ...]:
    """Relative errors between 0 and 1.

    >>> parse_epsilons("0.1, 0.01")
    (0.1, 0.01)
    """
    found = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = float("nan")
        if not 0 < value < 1:
            raise UsageError(f"epsilon: '{part.strip()}' is not a number between 0 and 1, such as 0.1")
        found.append(value)
    return tuple(dict.fromkeys(found))


def measure_spectra(
    request: SpectrumRequest,
    *,
    notify: Note = lambda line: None,
    progress: Progress = lambda done, total, label: None,
    timings: Timings | None = None,
) -> SpectrumSession:
    """Resolve the sources, compute every spectrum, and leave a manifest and ``records.jsonl`` in the run's folder.

    One record per head: interrupted runs go on at the next head. As `measure_errors` otherwise.

    Raises:
        UsageError, SourceError: as the parts say; nothing is left behind.
        KeyboardInterrupt: passed on once the folder is in order.
    """
    timings = timings or Timings()
    of, n, d, epsilons = asked = _asked(request)
    sources = sources_of(request, notify, timings)
    every = _layers(request, sources, *asked)
    layers = _share(request, every)
    plan = {
        "of": [one if isinstance(one, str) else listed(one) for one in of],
        "kind": request.kind, "k": request.k, "epsilon": epsilons, "d": d, "seed": request.seed,
        "layers": {source.facts.get("weights") or "file": [one.layer for one in every if one.source is source]
                   for source in sources},
        "n": list(dict.fromkeys(one.n for one in every)),
        "heads": list(dict.fromkeys(cell.head for one in every for cell in one.cells)),
        "windows": request.windows, "target": request.target,
    }  # fmt: skip

    def measure(writer: RecordWriter, done: Mapping[str, dict[str, Any]], run: str) -> Outcome:
        inputs = keeper(request, writer, run, timings)
        return _run(request, layers, epsilons, writer, done, run, timings, progress, inputs)

    whole = lambda: {cell.key for one in every for cell in one.cells}
    outcome, path = recorded(request, "spectrum", plan, sources, notify, measure, whole=whole)
    return SpectrumSession(outcome, path, sources)


def spectrum_layers(request: SpectrumRequest, notify: Note) -> list[_Layer]:
    """Every cell of a request's shard, by layer."""
    asked = _asked(request)
    return _share(request, _layers(request, sources_of(request, notify, Timings()), *asked))


def _share(request: SpectrumRequest, layers: list[_Layer]) -> list[_Layer]:
    """The layers of a request's shard, of all of them."""
    shard = parse_shard(request.shard)
    if shard is None:
        return layers
    mine = shard.dealt([place_of(one.source, one.n, one.window, one.layer, i) for i, one in enumerate(layers)])
    return [one for number, one in enumerate(layers) if number in mine]


def _asked(request: SpectrumRequest) -> tuple[list[MethodRequest | str], tuple[int, ...] | None, tuple[int, ...], Any]:
    """What a request says, refused before anything heavy where it cannot be."""
    if request.target not in TARGETS:
        raise unknown("target", request.target, TARGETS)
    if request.kind not in KINDS:
        refuse_spectrum("softmax", request.kind, 2, 2)
    if not 1 <= request.windows <= MOST:
        raise UsageError(f"windows={request.windows}: choose a number from 1 to {MOST}")
    of = parse_of(request.of, request.target)
    if request.target != "softmax" and all(isinstance(one, str) for one in of):
        raise UsageError(f"target={request.target} is the matrix that methods stand for, and of={','.join(of)} names "
                         "none; ask for --of gaussian, or drop the target")  # fmt: skip
    d, epsilons = tuple(parse_numbers(request.d, "d")), parse_epsilons(request.epsilon)
    n = None if request.n is None else tuple(parse_numbers(request.n, "n"))
    for length in n or ():
        if length < 2:
            raise UsageError(f"n={length}: attention needs at least 2 tokens")
    _refuse_sizes(request, of, n or ())
    reasons = [_refused(one, request.target, length, budget) for one in of for length in n or ()
               for budget in _budgets(one, d)]  # fmt: skip
    if reasons and all(reasons):
        raise UsageError(reasons[0])
    return of, n, d, epsilons


def _refuse_sizes(request: SpectrumRequest, of: Sequence[MethodRequest | str], lengths: Sequence[int]) -> None:
    for one in of:
        name = one if isinstance(one, str) else one.label
        for length in lengths:
            refuse_spectrum(name, request.kind, *shape_of(name, length, length, 64), request.k)


def _budgets(one: MethodRequest | str, d: Sequence[int]) -> Sequence[int | None]:
    return (None,) if isinstance(one, str) or one.entry.budget is None else d


def _refused(one: MethodRequest | str, target: str, n: int, d: int | None) -> str | None:
    return None if isinstance(one, str) else refused(one, target, n, d)


def _layers(
    request: SpectrumRequest, sources: Sequence[Any], of: Sequence[MethodRequest | str],
    n: tuple[int, ...] | None, d: Sequence[int], epsilons: Sequence[float],
) -> list[_Layer]:  # fmt: skip
    """Every cell, in the order in which it is computed: by source, n, window, layer, matrix, budget, head."""
    found = []
    for source in sources:
        numbers = source.head_numbers
        heads = numbers if request.head == "all" else tuple(parse_numbers(request.head, "head", numbers))
        layers, lengths = parse_layers(request.layer, source), n or (source.default_n,)
        _refuse_sizes(request, of, lengths)
        facts = determining(source.facts)
        for length in lengths:
            source.check(length, request.windows, layers)
            for window in range(request.windows):
                for layer in layers:
                    cells = [
                        _cell(request, one, budget, head, length, window, layer, facts, epsilons)
                        for one in of for budget in _budgets(one, d) for head in heads
                    ]  # fmt: skip
                    found.append(_Layer(source, length, window, layer, cells))
    return found


def _cell(request, one, d, head, n, window, layer, facts, epsilons) -> _Cell:
    matrix = isinstance(one, str)
    which = determines(None if matrix else one)
    key = cell_key(
        command="spectrum", of=one if matrix else which["method"], **{k: v for k, v in which.items() if k != "method"},
        target=None if matrix else request.target, seed=request.seed, kind=request.kind, k=request.k,
        epsilon=epsilons, source=dict(facts), n=n, window=window, layer=layer, head=head, d=d,
        is_method=not matrix,
    )  # fmt: skip
    return _Cell(key, one, d, head)


def _run(
    request: SpectrumRequest, layers: Sequence[_Layer], epsilons: Sequence[float], writer: RecordWriter,
    done: Mapping[str, dict[str, Any]], run: str, timings: Timings, progress: Progress, inputs: InputKeeper,
) -> Outcome:  # fmt: skip
    outcome, position = Outcome(), 0
    total = sum(len(place.cells) for place in layers)
    captured: dict[int, QKV] = {}
    before = None
    for place in layers:
        group = (id(place.source), place.n, place.window)
        if group != before:  # one forward of the model serves all layers
            before, captured = group, {}
            same = [other for other in layers if (id(other.source), other.n, other.window) == group]
            wanted = [other.layer for other in same if any(cell.key not in done for cell in other.cells)]
            if wanted:
                progress(position, total, f"reading n={place.n}, window {place.window}")
                captured = place.source.qkv(place.n, wanted, place.window)
        qkv, duplicates = captured.pop(place.layer, None), None
        if qkv is not None:
            heads = list(dict.fromkeys(cell.head for cell in place.cells))
            inputs.keep(place.source, place.n, place.window, place.layer, qkv.select(heads))
        for cell in place.cells:
            progress(position, total, f"n={place.n} layer {place.layer} head {cell.head} {cell.name}")
            position += 1
            if cell.key in done:
                outcome.records.append(done[cell.key])
                outcome.done_before += 1
                continue
            duplicates = repeated_rows(qkv) if duplicates is None else duplicates
            record = {
                "schema": SCHEMA, "key": cell.key, "run": run, "command": "spectrum",
                "of": cell.name, **cell.told, "kind": request.kind, "target": request.target,
                "weights": place.source.facts.get("weights"), "source": place.source.facts,
                "window": place.window, "layer": place.layer, "head": cell.head, "heads": [cell.head],
                "n": place.n, "d": cell.d, "seed": request.seed, "repeat": 0, "reference": False, "requested": True,
                "duplicates": duplicates,
                **_measured(cell, qkv, request, epsilons, timings),
            }  # fmt: skip
            outcome.keep(record, writer)
    progress(total, total, "")
    return outcome


def _measured(
    cell: _Cell, qkv: QKV, request: SpectrumRequest, epsilons: Sequence[float], timings: Timings
) -> dict[str, Any]:
    """The measured part of a record."""
    one = qkv.select([cell.head])
    why = _refused(cell.of, request.target, qkv.n_q, cell.d)
    begin = perf_counter()
    draws = None
    try:
        if why is not None:
            return _result("skipped", why)
        of: Any = cell.of
        if not isinstance(of, str):
            with timings("methods"), time_limit(request.cell_timeout):
                approx = approximate(of.entry, one, cell.d, seed=request.seed, target=request.target, **of.options)
            if approx.operator is None:
                return _result("skipped", f"{of.label} {approx.no_operator}")
            of, draws = approx.operator, approx.draws_hash()
        with timings("spectra"):
            found = spectra(one, of, request.kind, k=request.k, seed=request.seed)[0]
    except UsageError as error:
        return _result("skipped", str(error))
    except Exception as error:  # whatever a method raises is its result, and the loop goes on
        return _result("failed", said(error))
    if not found.finite:
        return _result("diverged", "the matrix is not finite", seconds=perf_counter() - begin)
    values = found.values
    pairs = [[value.real, value.imag] for value in values.tolist()] if values.is_complex() else values.tolist()
    numbers = summary(found, epsilons)
    result = _result(seconds=perf_counter() - begin) | numbers
    result["metrics"] = {name: [value] for name, value in numbers.items() if not isinstance(value, dict)}
    return result | {
        "eigenvalues" if request.kind == "eigen" else "singular_values": pairs,
        "size": found.size, "complete": found.complete, "log_scale": found.log_scale, "draws_hash": draws,
        "frobenius": None if found.frobenius2 is None else found.frobenius2**0.5,
        "error": None if found.error is None else found.error.tolist(),
        "upper": None if found.upper is None else found.upper.tolist(),
        "passes": found.passes, "closed": found.closed,
    }  # fmt: skip


def _result(status: str = "ok", reason: str | None = None, seconds: float | None = None) -> dict[str, Any]:
    return {"status": status, "reason": reason, "metrics": {}, "draws_hash": None, "seconds": seconds}
