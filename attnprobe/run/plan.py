"""The plan of a run: its methods, its cells, and the grammar of ``--method``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from ..errors import BadResult, Unsupported, UsageError
from ..files import Fields, JsonObject
from ..frame.records.file import LOWER_BOUND, cell_key
from ..grammar.foreign import message
from ..grammar.lists import parts, refuse_colons
from ..methods import Method, by_family, get
from ..qkv import QKV

MOST_SHARED = 16  # cells of a batch: an interruption loses what is unfinished
HELD = 2**29  # bytes of operators
MOST_CELLS = 10_000_000  # of a request: every one is listed before the first is measured
NOTED = 100_000  # cells; listing more takes so long that a line announces it


@dataclass(frozen=True)
class MethodRequest:
    """One entry of ``--method``: the name of a method, and its options that differ from the default."""

    name: str
    options: Fields = field(default_factory=dict)
    requested: bool = True

    @cached_property
    def entry(self) -> Method:
        """The method. A file is read once, at the first access."""
        return get(self.name)

    @property
    def label(self) -> str:
        """The method's name in rows; for a file, without its folder."""
        return self.name if self.name == LOWER_BOUND else self.entry.name

    @cached_property
    def broken_claim(self) -> str | None:
        """See `methods.user.probes`."""
        from ..methods.user.probes import broken_claim

        return broken_claim(self.entry, self.options)

    def check_claims(self) -> None:
        """Raise `BadResult` if a claim of a user's method is found to be false."""
        if self.broken_claim is not None:
            raise BadResult(self.broken_claim)

    @property
    def sha256(self) -> str | None:
        """The hash of a user's file, None for a method of the project."""
        known = None if self.name == LOWER_BOUND else self.entry.provenance
        return known and known.sha256


def method_identity(request: MethodRequest | None) -> JsonObject:
    """The fields that identify a method in a key; null without a method."""
    if request is None:
        return {"method": None, "options": {}}
    content = {} if request.sha256 is None else {"method_sha256": request.sha256}
    return {"method": request.label, "options": dict(request.options), **content}


def method_facts(request: MethodRequest | None) -> JsonObject:
    """The fields of a method in records and manifests; ``method_file`` is the origin of a user's method."""
    known = None if request is None or request.name == LOWER_BOUND else request.entry.provenance
    content = {} if known is None else {"method_file": asdict(known)}
    return {"method": request and request.label, "options": dict(request.options) if request else {}, **content}


def parse_methods(texts: Iterable[str], target: str) -> list[MethodRequest]:
    """``NAME[:k=v,…]``, ``torch:KERNEL[:k=v,…]``, ``PATH.py:FUNCTION[:k=v,…]``: comma-separated and repeatable.

    ``all`` is every registered method of kind method.

    An item with ``=`` and no ``:`` continues the options of the method before it.

    Raises:
        UsageError: an unknown method or option (the nearest name is offered), an impossible value, a file that cannot
            be loaded, two files' methods of one name.

    >>> parse_methods(["skyformer:sampler=iid,share_heads=true,vmean"], "softmax")[0].options
    {'sampler': 'iid', 'share_heads': True}
    >>> [request.name for request in parse_methods(["vmean,svd"], "softmax")]
    ['vmean', 'svd']
    """
    named: list[tuple[str, dict[str, str]]] = []
    for item in (item.strip() for text in texts for item in text.split(",")):
        name, rest = parts(item)
        if not item:
            raise UsageError("an empty method name; write --method NAME or NAME,NAME")
        refuse_colons(item)
        if "=" in item and rest is None:
            if not named:
                raise UsageError(f"'{item}' is an option without a method before it; write NAME:{item}")
            _add_option(named[-1], item)
        elif item == "all":
            named += [(entry.name, {}) for entry in by_family() if entry.kind == "method"]
        else:
            get(name)
            named.append((name, {}))
            if rest is not None:
                _add_option(named[-1], rest)
    if not named:
        raise UsageError("no method; write --method NAME")
    requests: list[MethodRequest] = []
    for name, given in named:
        entry = get(name)
        targets = entry.targets
        options = entry.check(target if target in targets else targets[0], given)
        request = MethodRequest(name, options)
        if method_identity(request) not in map(method_identity, requests):
            requests.append(request)
    _refuse_two_of_a_name(requests)
    return requests


def _refuse_two_of_a_name(requests: Iterable[MethodRequest]) -> None:
    """Refuse different methods of one name, because their rows could not be distinguished."""
    names: dict[str, MethodRequest] = {}
    for request in requests:
        other = names.setdefault(request.label, request)
        if other.sha256 != request.sha256:
            raise UsageError(f"{other.name} and {request.name} share the name {request.label}: rename one")


def method_entry(request: MethodRequest) -> JsonObject:
    """A method as an entry of a manifest's plan."""
    facts = method_facts(request)
    return {"name": facts.pop("method"), **facts}


def _add_option(named: tuple[str, dict[str, str]], item: str) -> None:
    name, options = named
    key, equals, value = item.partition("=")
    if not equals or not key or not value:
        raise UsageError(f"{name}: '{item}' is not an option; write {name}:OPTION=VALUE")
    if key in options:
        raise UsageError(f"{name}: option {key} is given twice")
    options[key] = value


@dataclass(frozen=True)
class ErrorPlan:
    """Everything that ``attnprobe error`` measures, apart from the source of Q, K, V.

    Args:
        tol: the width of the intervals of matrix errors; None measures none.
        row_tolerance: of the rows of kernels, None is that of their dtype (see `kernel_errors`).
        rows: whether row metrics are measured.
    """

    methods: tuple[MethodRequest, ...]
    n: tuple[int, ...]
    d: tuple[int, ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...] | None
    windows: int = 1
    seed: int = 0
    repeats: int = 1
    target: str = "softmax"
    tol: float | None = None
    row_tolerance: float | None = None
    rows: bool = False

    def groups(self) -> list[Group]:
        """One group per (n, window). Layers share a model's forward pass; methods share an exact output."""
        return [Group(n, window) for n in self.n for window in range(self.windows)]

    @property
    def count(self) -> int:
        """The number of cells at all places, computed without listing them.

        >>> plan = ErrorPlan(
        ...     (MethodRequest("skyformer"), MethodRequest("svd")), (64, 128), (4, 8, 16), (0,), None, 5, 0, 7
        ... )
        >>> plan.count, sum(len(plan.cells(group, 0, {})) for group in plan.groups())
        (280, 280)
        """
        vmean = all((one.name, dict(one.options)) != ("vmean", {}) for one in self.methods)
        each = len(self.d) + vmean  # with the lower bounds
        for one in self.methods:
            repeats = 1 if "deterministic" in one.entry.tags else self.repeats
            each += repeats * len(budgets_of(one, self.d))
        return each * len(self.n) * self.windows * len(self.layers)

    def cells(self, group: Group, layer: int, facts: Fields) -> list[Cell]:
        """The cells of one group and layer: the lower bound, V-Mean, then the requested methods."""
        requests = list(self.methods)
        if all((request.name, dict(request.options)) != ("vmean", {}) for request in requests):
            requests.insert(0, MethodRequest("vmean", requested=False))
        cells = [self._cell(group, layer, MethodRequest(LOWER_BOUND, requested=False), d, 0, facts) for d in self.d]
        for request in requests:
            entry = request.entry
            for d in budgets_of(request, self.d):
                repeats = 1 if "deterministic" in entry.tags else self.repeats
                cells += [self._cell(group, layer, request, d, repeat, facts) for repeat in range(repeats)]
        return cells

    def batches(self, cells: Sequence[Cell], qkv: QKV) -> list[list[Cell]]:
        """The cells of one layer in batches. The operators of a batch are in memory together and share the passes over
        B.

        A batch has at most `MOST_SHARED` cells and about `HELD` bytes. An operator counts as ``h ((n_q + n_k) d + d²)``
        numbers, with p for d if it has no budget; that of a user's method counts as ``h n_q n_k``. Finished cells count
        too, so that a resumed run has the same batches. A lower bound has no operator and is a batch by itself. Without
        matrix errors every cell is.
        """
        all_batches: list[list[Cell]] = []
        held, room = 0, 0
        for cell in cells:
            alone = self.tol is None or cell.request.name == LOWER_BOUND
            d = cell.d or qkv.p
            dense = not alone and cell.request.entry.family == "user"
            numbers = qkv.n_q * qkv.n_k if dense else d * (qkv.n_q + qkv.n_k + d)
            size = qkv.h * numbers * qkv.q.element_size()
            if alone or not room or held + size > HELD:
                all_batches.append([])
                held, room = 0, MOST_SHARED
            all_batches[-1].append(cell)
            held, room = held + size, 0 if alone else room - 1
        return all_batches

    def _cell(self, group, layer, request, d, repeat, facts) -> Cell:
        matrix = {} if self.tol is None or request.name == LOWER_BOUND else {"matrix_tol": self.tol}
        if request.name != LOWER_BOUND and request.entry.kind == "kernel":
            matrix |= {"row_tolerance": self.row_tolerance}
        elif self.rows and request.name != LOWER_BOUND:
            matrix |= {"rows": True}
        rest = {"target": self.target, "heads": self.heads, "d": d, "seed": self.seed + repeat, **matrix}
        return Cell(key_of("error", request, facts, group, layer, **rest), request, d, repeat, self.seed + repeat)

    def facts(self) -> JsonObject:
        """The plan as the manifest shows it."""
        return {
            "methods": [method_entry(m) for m in self.methods],
            **{name: value for name, value in vars(self).items() if name not in ("methods", "rows")},
            **({"rows": True} if self.rows else {}),
        }

    def refusal(self) -> str | None:
        """The first reason why a requested cell cannot run, if none can; else None."""
        reason = None
        for request in self.methods:
            for n in self.n:
                for d in budgets_of(request, self.d):
                    why = refused(request, self.target, n, d)
                    if why is None:
                        return None
                    reason = reason or why
        return reason


def refuse_endless(cells: int, notify: Callable[[str], None] = lambda line: None) -> None:
    """Refuse more cells than can be listed. A line says so if the listing takes long."""
    if cells > MOST_CELLS:
        raise UsageError(
            f"{cells:,} cells are more than {MOST_CELLS:,}; choose fewer lengths, windows, layers, budgets or seeds"
        )
    if cells >= NOTED:
        notify(f"{cells:,} cells: listing them takes a while")


def refused(request: MethodRequest, target: str, n: int, d: int | None) -> str | None:
    """The reason why a method does not support these settings; None if it does."""
    entry = request.entry
    if target not in entry.targets:
        return f"{entry.name} does not take target={target}; it takes {', '.join(entry.targets)}"
    try:
        entry.check_budget(d, n, n)
    except Unsupported as error:
        return message(error)
    return entry.why_no_test(d, request.options, n)


def key_of(command: str, method: MethodRequest | None, facts: Fields, group: Group, layer: int, **rest: object) -> str:
    """The key of a cell at a place of a source with these facts."""
    where = {"source": dict(facts), "n": group.n, "window": group.window, "layer": layer}
    return cell_key(command=command, **method_identity(method), **where, **rest)


def budgets_of(request: MethodRequest | None, budgets: Sequence[int]) -> Sequence[int | None]:
    """The budgets at which a method is measured; (None,) for one without a budget."""
    return (None,) if request is None or request.entry.budget is None else budgets


def fitting(
    request: Any,
    n: int,
    refusals: Callable[[int], int],
    notify: Callable[[str], None] = lambda line: None,
    p: int | None = None,
) -> tuple[int, ...]:
    """The budgets of a request; a default that some method refuses at n tokens is a power of two up to n/2 instead.

    Args:
        refusals: the number of methods that refuse a budget. Of budgets that equally many refuse, the default stays.
        p: the columns of V. The default is at most half as large, because the lower bound is zero from d = p on.
    """
    default = type(request).d
    if request.d != default or request.origin.get("d") != "default":
        return request.d
    [largest] = default
    if p is not None and p // 2 < largest:
        largest = 1 << max((p // 2).bit_length() - 1, 0)
    smaller = [2**power for power in reversed(range((n // 2).bit_length())) if 2**power < largest]
    d = min([largest, *smaller], key=refusals)
    if d != largest:
        notify(f"d={d}, not the default {largest}, which a method refuses at n={n}; --d sets another")
    return (d,)


@dataclass(frozen=True)
class Group:
    """Cells that share one forward pass of the model: one sequence length and text window."""

    n: int
    window: int


@dataclass(frozen=True)
class Cell:
    """One measurement: a method with its options and budget on one layer of one text window."""

    key: str
    request: MethodRequest
    d: int | None = None
    repeat: int = 0
    seed: int = 0

    @property
    def name(self) -> str:
        return self.request.label
