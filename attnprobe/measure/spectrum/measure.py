"""The run of ``attnprobe spectrum``: the requested spectra, a cell for each matrix of each head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ...errors import Unsupported, UsageError, nearest
from ...files import JsonObject
from ...frame.records.file import cell_key, encode_inf, identity_facts
from ...frame.rows import HEAD
from ...grammar.foreign import message
from ...grammar.lists import options_text, parts
from ...machine.timings import Timings
from ...methods import METHODS, approximate, is_method
from ...metrics.spectrum import MATRICES, SHARES, Spectrum, refuse_spectrum, shape_of, spectra
from ...qkv import QKV
from ...run.cells import Cells, Place, Result, title
from ...run.costs import Cost, work_of_decompositions
from ...run.plan import (
    Group,
    MethodRequest,
    budgets_of,
    method_entry,
    method_facts,
    method_identity,
    parse_methods,
    refuse_endless,
    refused,
)
from ...run.sources import heads_of, layers_of, sources_of
from . import SpectrumRequest
from .record import SHAPE


@dataclass(frozen=True)
class _Cell:
    key: str
    of: MethodRequest | str
    d: int | None
    head: int

    @property
    def name(self) -> str:
        return self.of if isinstance(self.of, str) else self.of.label

    @property
    def matrix(self) -> str:
        """The matrix, or the method with its options."""
        options = "" if isinstance(self.of, str) else options_text(self.of.options)
        return f"{self.name}:{options}" if options else self.name

    @property
    def method_facts(self) -> dict[str, Any]:
        """The fields of a record that name the method; null for a matrix."""
        return method_facts(None if isinstance(self.of, str) else self.of)


def parse_of(texts: Iterable[str], target: str = "softmax") -> list[MethodRequest | str]:
    """Matrices by name, and methods in the form of ``--method``, comma-separated and repeatable, without repetitions.

    Raises:
        UsageError: a name that is neither a matrix nor a method, or an option that a method lacks.

    >>> parse_of(["softmax,gaussian", "skyformer:sampler=iid"])[:2]
    ['softmax', 'gaussian']
    """
    matrices: list[MethodRequest | str] = []
    waiting: list[str] = []  # a method and the options that follow it
    for item in [*(item.strip() for text in texts for item in text.split(",")), None]:
        if item is not None and waiting and "=" in item and parts(item)[1] is None:
            waiting.append(item)
            continue
        if waiting:
            matrices += parse_methods([",".join(waiting)], target)
            waiting = []
        if item is None:
            break
        name = parts(item)[0]
        if item in MATRICES:
            matrices.append(item)
        elif is_method(name) or name == "all":
            waiting = [item]
        else:
            raise UsageError(f"unknown matrix or method '{item}'{nearest(name, [*MATRICES, *METHODS])}")
    return [one for place, one in enumerate(matrices) if one not in matrices[:place]]


class SpectrumCells(Cells[SpectrumRequest, _Cell, QKV]):
    """Spectra of matrices and of methods, each of one head."""

    command = "spectrum"
    shape = SHAPE
    blank = {**Cells.blank, "seconds": None}

    def __init__(self, request: SpectrumRequest, notify: Callable[[str], None], timings: Timings) -> None:
        self.timings, self.of = timings, _checked(request)
        sources = sources_of(request, notify, timings)
        self.chosen = [heads_of(request.head, source) for source in sources]
        super().__init__(request, sources, _places(request, sources, self.of), self._cells)

    def _cells(self, place: Place) -> list[_Cell]:
        """Matrix by matrix, budget by budget, head by head."""
        facts = identity_facts(self.sources[place.source].facts)
        return [
            _cell(self.request, one, d, head, place, facts)
            for one in self.of
            for d in _budgets(one, self.request.d)
            for head in self.chosen[place.source]
        ]

    def plan(self) -> dict[str, Any]:
        layers = {
            source.facts.get("weights") or "file": [place.layer for place in self.places if place.source == number]
            for number, source in enumerate(self.sources)
        }
        return {
            "of": [one if isinstance(one, str) else method_entry(one) for one in self.of],
            **{name: getattr(self.request, name) for name in ("kind", "k", "epsilon", "d", "seed")},
            "layers": layers,
            "n": list(dict.fromkeys(place.group.n for place in self.places)),
            "heads": list(dict.fromkeys(head for heads in self.chosen for head in heads)),
            "windows": self.request.windows,
            "target": self.request.target,
        }

    def heads(self, place: Place) -> Sequence[int]:
        return self.chosen[place.source]

    def head(self, place: Place, cell: _Cell) -> dict[str, Any]:
        return {
            "of": cell.matrix,
            **cell.method_facts,
            "family": None if isinstance(cell.of, str) else cell.of.entry.family,
            "spectrum": self.request.kind,
            "target": None if isinstance(cell.of, str) else self.request.target,
            "head": cell.head,
            "heads": [cell.head],
            "d": cell.d,
            "seed": self.request.seed,
            "repeat": 0,
            "reference": False,
            "requested": True,
        }

    def label(self, place: Place, cell: _Cell) -> str:
        return f"n={place.group.n} layer {place.layer} head {cell.head} {title(cell)}"

    def work(self, place: Place, cell: _Cell) -> Cost:
        return work_of_decompositions(place.group.n, heads=1, matrices=1)

    def measure_cell(self, place: Place, cell: _Cell, inputs: QKV, result: Result) -> None:
        request, qkv, begin = self.request, inputs.select([cell.head]), perf_counter()
        if (why := _refused(cell.of, request.target, inputs.n_q, cell.d)) is not None:
            raise Unsupported(why)
        of: Any = cell.of
        draws = None
        if not isinstance(of, str):
            with self.timings("methods"):
                approx = approximate(of.entry, qkv, cell.d, seed=request.seed, target=request.target, **of.options)
            if approx.operator is None:
                raise Unsupported(f"{of.label} {approx.no_operator}")
            of, draws = approx.operator, approx.draws_hash()
        try:
            with self.timings("spectra"):
                spectrum = spectra(qkv, of, request.kind, k=request.k, seed=request.seed)[0]
        except UsageError as error:  # more values than there are
            raise Unsupported(message(error)) from error
        result["seconds"] = perf_counter() - begin
        if spectrum.finite:
            rows = _rows(spectrum, cell.head, request.epsilon)
            result |= {"draws_hash": draws, **_facts(spectrum), "rows": rows}
        else:
            result |= {"status": "diverged", "reason": "the matrix is not finite"}


def _checked(request: SpectrumRequest) -> list[MethodRequest | str]:
    """The matrices and methods of a request, which is checked before a model is loaded."""
    of = parse_of(request.of, request.target)
    matrices = [one for one in of if isinstance(one, str)]
    if request.target != "softmax" and len(matrices) == len(of):
        raise UsageError(
            f"target={request.target} is for methods, but of={','.join(matrices)} names "
            "none; ask for --of gaussian, or drop the target"
        )
    n, d = request.n, request.d
    each = sum(len(_budgets(one, d)) for one in of)
    refuse_endless(each * len(n or (0,)) * request.windows)
    _refuse_sizes(request, of, n or ())
    reasons = [
        _refused(one, request.target, length, budget) for one in of for length in n or () for budget in _budgets(one, d)
    ]
    if reasons and all(reasons):
        raise UsageError(reasons[0])
    return of


def _refuse_sizes(request: SpectrumRequest, of: Sequence[MethodRequest | str], lengths: Sequence[int]) -> None:
    for one in of:
        name = one if isinstance(one, str) else one.label
        for length in lengths:
            refuse_spectrum(name, request.kind, *shape_of(name, length, length, 64), request.k)


def _budgets(one: MethodRequest | str, d: Sequence[int]) -> Sequence[int | None]:
    return budgets_of(None if isinstance(one, str) else one, d)


def _refused(one: MethodRequest | str, target: str, n: int, d: int | None) -> str | None:
    return None if isinstance(one, str) else refused(one, target, n, d)


def _places(request: SpectrumRequest, sources: Sequence[Any], of: Sequence[MethodRequest | str]) -> list[Place]:
    """Every place, by source, n, window and layer, after checks of all of them."""
    places, cells = [], 0
    for number, source in enumerate(sources):
        layers, lengths = layers_of(request.layer, source), request.n or (source.default_n,)
        _refuse_sizes(request, of, lengths)
        each = sum(len(_budgets(one, request.d)) for one in of) * len(heads_of(request.head, source))
        cells += each * len(lengths) * request.windows * len(layers)
        refuse_endless(cells)
        for length in lengths:
            source.check(length, request.windows, layers)
            groups = [Group(length, window) for window in range(request.windows)]
            places += [Place(number, group, layer) for group in groups for layer in layers]
    return places


def _cell(request, one, d, head, place, facts) -> _Cell:
    matrix = isinstance(one, str)
    which = method_identity(None if matrix else one)
    key = cell_key(
        command="spectrum",
        of=one if matrix else which["method"],
        **{k: v for k, v in which.items() if k != "method"},
        target=None if matrix else request.target,
        **{name: getattr(request, name) for name in ("seed", "kind", "k", "epsilon")},
        source=dict(facts),
        n=place.group.n,
        window=place.group.window,
        layer=place.layer,
        head=head,
        d=d,
        is_method=not matrix,
    )
    return _Cell(key, one, d, head)


def _facts(spectrum: Spectrum) -> Result:
    """What is known of a matrix."""
    names = ("size", "log_scale", "frobenius", "passes", "closed")
    return {"known": len(spectrum.values), **{name: getattr(spectrum, name) for name in names}}


def _rows(spectrum: Spectrum, head: int, epsilons: Sequence[float]) -> list[JsonObject]:
    """The rows of one head: its effective ranks, its rank within each ε, its values."""
    ranks = {name: getattr(spectrum, name) for name in ("stable_rank", "entropy_rank", "participation_ratio")}
    ranks |= {f"rank_{share}": spectrum.rank(share) for share in SHARES}
    rows = [{"kind": HEAD, "head": head, **ranks}]
    for epsilon in epsilons:
        within = {f"d_{norm}": spectrum.rank_within(epsilon, norm) for norm in ("spectral", "frobenius")}
        rows.append({"kind": "rank", "head": head, "epsilon": epsilon, **within})
    values = spectrum.values
    columns = {"value": values.abs(), "decay": spectrum.decay, "cumulative": spectrum.cumulative}
    columns |= {"real": values.real if spectrum.kind == "eigen" else None}
    columns |= {"imaginary": values.imag if values.is_complex() else None}
    columns |= {"error": spectrum.error, "upper": spectrum.upper}
    known = {name: numbers.tolist() for name, numbers in columns.items() if numbers is not None}
    for index, numbers in enumerate(zip(*known.values(), strict=True), 1):
        rows.append({"kind": "singular", "head": head, "index": index, **dict(zip(known, numbers, strict=True))})
    return [{name: encode_inf(number) for name, number in row.items()} for row in rows]
