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

Of = MethodRequest | str  # what a spectrum is of: a method, or an exact matrix by its name


@dataclass(frozen=True)
class _Cell:
    """The spectrum of a matrix of one head."""

    key: str
    of: Of
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
        """The fields of a cell that name the method; null for a matrix."""
        return method_facts(None if isinstance(self.of, str) else self.of)


def parse_of(texts: Iterable[str], target: str = "softmax") -> list[Of]:
    """Matrices by name, and methods in the form of ``--method``, comma-separated and repeatable, without repetitions.

    Raises:
        UsageError: a name that is neither a matrix nor a method, or an option that a method lacks.

    >>> parse_of(["softmax,gaussian", "skyformer:sampler=iid"])[:2]
    ['softmax', 'gaussian']
    """
    named: list[Of] = []
    method: list[str] = []  # the items of a method: its name, and the options that follow it
    for item in [*(item.strip() for text in texts for item in text.split(",")), None]:  # None ends the last method
        if item is not None and method and "=" in item and parts(item)[1] is None:
            method.append(item)
            continue
        if method:
            named += parse_methods([",".join(method)], target)
            method = []
        if item is None:
            break
        name = parts(item)[0]
        if item in MATRICES:
            named.append(item)
        elif is_method(name) or name == "all":
            method = [item]
        else:
            raise UsageError(f"unknown matrix or method '{item}'{nearest(name, [*MATRICES, *METHODS])}")
    return [of for number, of in enumerate(named) if of not in named[:number]]


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
            _cell(self.request, of, d, head, place, facts)
            for of in self.of
            for d in _budgets(of, self.request.d)
            for head in self.chosen[place.source]
        ]

    def plan(self) -> dict[str, Any]:
        layers = {
            source.facts.get("weights") or "file": [place.layer for place in self.places if place.source == number]
            for number, source in enumerate(self.sources)
        }
        return {
            "of": [of if isinstance(of, str) else method_entry(of) for of in self.of],
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
        # a request with several lengths may have some that the method refuses
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
        except UsageError as error:  # the matrix has fewer values than --k asks for
            raise Unsupported(message(error)) from error
        result["seconds"] = perf_counter() - begin
        if spectrum.finite:
            rows = _rows(spectrum, cell.head, request.epsilon)
            result |= {"draws_hash": draws, **_facts(spectrum), "rows": rows}
        else:
            result |= {"status": "diverged", "reason": "the matrix is not finite"}


def _checked(request: SpectrumRequest) -> list[Of]:
    """The matrices and methods of a request, which is checked before a model is loaded."""
    named = parse_of(request.of, request.target)
    matrices = [of for of in named if isinstance(of, str)]
    if request.target != "softmax" and len(matrices) == len(named):
        raise UsageError(
            f"target={request.target} is for methods, but of={','.join(matrices)} names "
            "none; ask for --of gaussian, or drop the target"
        )
    n, d = request.n, request.d
    spectra_of_head = sum(len(_budgets(of, d)) for of in named)
    refuse_endless(spectra_of_head * len(n or (0,)) * request.windows)
    _refuse_sizes(request, named, n or ())
    reasons = [
        _refused(of, request.target, length, budget) for of in named for length in n or () for budget in _budgets(of, d)
    ]
    if reasons and all(reasons):
        raise UsageError(reasons[0])
    return named


def _refuse_sizes(request: SpectrumRequest, named: Sequence[Of], lengths: Sequence[int]) -> None:
    """Refuse matrices that are too large to decompose."""
    for of in named:
        name = of if isinstance(of, str) else of.label
        for length in lengths:
            # 64 stands for the value dimension, which is not known before a source is opened
            refuse_spectrum(name, request.kind, *shape_of(name, length, length, 64), request.k)


def _budgets(of: Of, d: Sequence[int]) -> Sequence[int | None]:
    """The budgets of a method; a matrix has none, and one spectrum."""
    return budgets_of(None if isinstance(of, str) else of, d)


def _refused(of: Of, target: str, n: int, d: int | None) -> str | None:
    """The reason why a method has no spectrum with these settings; None if it has one."""
    return None if isinstance(of, str) else refused(of, target, n, d)


def _places(request: SpectrumRequest, sources: Sequence[Any], named: Sequence[Of]) -> list[Place]:
    """Every place, by source, n, window and layer, after checks of all of them."""
    places, count = [], 0
    for number, source in enumerate(sources):
        layers, lengths = layers_of(request.layer, source), request.n or (source.default_n,)
        _refuse_sizes(request, named, lengths)
        cells_at_place = sum(len(_budgets(of, request.d)) for of in named) * len(heads_of(request.head, source))
        count += cells_at_place * len(lengths) * request.windows * len(layers)
        refuse_endless(count)
        for length in lengths:
            source.check(length, request.windows, layers)
            groups = [Group(length, window) for window in range(request.windows)]
            places += [Place(number, group, layer) for group in groups for layer in layers]
    return places


def _cell(request, of, d, head, place, facts) -> _Cell:
    is_matrix = isinstance(of, str)
    method = method_identity(None if is_matrix else of)
    key = cell_key(
        command="spectrum",
        of=of if is_matrix else method["method"],
        **{name: value for name, value in method.items() if name != "method"},
        target=None if is_matrix else request.target,
        **{name: getattr(request, name) for name in ("seed", "kind", "k", "epsilon")},
        source=dict(facts),
        n=place.group.n,
        window=place.group.window,
        layer=place.layer,
        head=head,
        d=d,
        is_method=not is_matrix,
    )
    return _Cell(key, of, d, head)


def _facts(spectrum: Spectrum) -> Result:
    """The fields of a cell that describe the matrix as a whole."""
    names = ("size", "log_scale", "frobenius", "passes", "closed")
    return {"known": len(spectrum.values), **{name: getattr(spectrum, name) for name in names}}


def _rows(spectrum: Spectrum, head: int, epsilons: Sequence[float]) -> list[JsonObject]:
    """The rows of one head: its effective ranks, its rank within each ε, and its singular values or eigenvalues."""
    ranks = {name: getattr(spectrum, name) for name in ("stable_rank", "entropy_rank", "participation_ratio")}
    # how many leading values have so many per cent of all weights
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
    # a kind of spectrum has only some of these columns
    known = {name: numbers.tolist() for name, numbers in columns.items() if numbers is not None}
    for index, numbers in enumerate(zip(*known.values(), strict=True), 1):
        rows.append({"kind": "singular", "head": head, "index": index, **dict(zip(known, numbers, strict=True))})
    return [{name: encode_inf(number) for name, number in row.items()} for row in rows]
