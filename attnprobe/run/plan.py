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

MOST_SHARED = 16  # cells of a batch: an interruption loses the batch that is unfinished
HELD = 2**29  # bytes of the operators of a batch
MOST_CELLS = 10_000_000  # of a request: every one is listed before the first is measured
NOTED = 100_000  # cells; listing more takes so long that a line announces it


@dataclass(frozen=True)
class MethodRequest:
    """One entry of ``--method``: the name of a method, and its options that differ from the default.

    ``requested`` is false for a method that attnprobe adds, such as V-Mean.
    """

    name: str
    options: Fields = field(default_factory=dict)
    requested: bool = True

    @cached_property
    def entry(self) -> Method:
        """The method. A file is read once, at the first access."""
        return get(self.name)

    @property
    def label(self) -> str:
        """The method's name in rows; a method of a file has its function's name."""
        return self.name if self.name == LOWER_BOUND else self.entry.name

    @cached_property
    def broken_claim(self) -> str | None:
        """The claim of a user's method that is found to be false, in words; see `methods.user.probes`."""
        from ..methods.user.probes import broken_claim

        return broken_claim(self.entry, self.options)

    def check_claims(self) -> None:
        """Raise `BadResult` if a claim of a user's method is found to be false."""
        if self.broken_claim is not None:
            raise BadResult(self.broken_claim)

    @property
    def sha256(self) -> str | None:
        """The hash of a user's file, None for a method of the project."""
        provenance = None if self.name == LOWER_BOUND else self.entry.provenance
        return provenance and provenance.sha256


def method_identity(request: MethodRequest | None) -> JsonObject:
    """The fields that identify a method in a key; null without a method."""
    if request is None:
        return {"method": None, "options": {}}
    content = {} if request.sha256 is None else {"method_sha256": request.sha256}
    return {"method": request.label, "options": dict(request.options), **content}


def method_facts(request: MethodRequest | None) -> JsonObject:
    """The fields of a method in records and manifests; ``method_file`` is the origin of a user's method."""
    provenance = None if request is None or request.name == LOWER_BOUND else request.entry.provenance
    content = {} if provenance is None else {"method_file": asdict(provenance)}
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
    named = _named_methods(texts)
    if not named:
        raise UsageError("no method; write --method NAME")
    requests: list[MethodRequest] = []
    for name, given in named:
        entry = get(name)
        # a target that the method does not take is refused later, where others may still run
        options = entry.check(target if target in entry.targets else entry.targets[0], given)
        request = MethodRequest(name, options)
        if method_identity(request) not in map(method_identity, requests):
            requests.append(request)
    _refuse_two_of_a_name(requests)
    return requests


def _named_methods(texts: Iterable[str]) -> list[tuple[str, dict[str, str]]]:
    """The methods that are named, each with the texts of its options; the same method may stand there twice."""
    named: list[tuple[str, dict[str, str]]] = []
    for item in (item.strip() for text in texts for item in text.split(",")):
        name, option = parts(item)
        if not item:
            raise UsageError("an empty method name; write --method NAME or NAME,NAME")
        refuse_colons(item)
        if "=" in item and option is None:  # a further option of the method before it
            if not named:
                raise UsageError(f"'{item}' is an option without a method before it; write NAME:{item}")
            _add_option(named[-1], item)
        elif item == "all":
            named += [(entry.name, {}) for entry in by_family() if entry.kind == "method"]
        else:
            get(name)
            named.append((name, {}))
            if option is not None:
                _add_option(named[-1], option)
    return named


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
        tol: the width of the intervals of matrix errors; None measures no matrix errors.
        row_tolerance: the relative error that a row of a kernel may have; None is that of the kernel's dtype (see
            `kernel_errors`).
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
        at_place = len(self.d) + (not self._has_vmean)  # the lower bounds, and V-Mean where `cells` adds it
        for request in self.methods:
            at_place += self._repeats_of(request) * len(budgets_of(request, self.d))
        return at_place * len(self.n) * self.windows * len(self.layers)

    @property
    def _has_vmean(self) -> bool:
        """Whether V-Mean is among the requested methods, with its defaults."""
        return any(request.name == "vmean" and not request.options for request in self.methods)

    def _repeats_of(self, request: MethodRequest) -> int:
        """How often a method is measured: once if it draws nothing."""
        return 1 if "deterministic" in request.entry.tags else self.repeats

    def cells(self, group: Group, layer: int, facts: Fields) -> list[Cell]:
        """The cells of one group and layer: the lower bound, V-Mean, then the requested methods."""
        requests = list(self.methods)
        if not self._has_vmean:
            requests.insert(0, MethodRequest("vmean", requested=False))
        cells = [self._cell(group, layer, MethodRequest(LOWER_BOUND, requested=False), d, 0, facts) for d in self.d]
        for request in requests:
            repeats = range(self._repeats_of(request))
            for d in budgets_of(request, self.d):
                cells += [self._cell(group, layer, request, d, repeat, facts) for repeat in repeats]
        return cells

    def batches(self, cells: Sequence[Cell], qkv: QKV) -> list[list[Cell]]:
        """The cells of one layer in batches, whose operators are in memory together and share the passes over B.

        A batch has at most `MOST_SHARED` cells and about `HELD` bytes. An operator counts as ``h ((n_q + n_k) d + d²)``
        numbers, with p for d if it has no budget; that of a user's method counts as ``h n_q n_k``. Finished cells count
        too, so that a resumed run has the same batches. A lower bound has no operator and is a batch by itself. Without
        matrix errors every cell is a batch by itself.
        """
        all_batches: list[list[Cell]] = []
        held, room = 0, 0  # bytes of the last batch, and how many cells it may still take
        for cell in cells:
            alone = self.tol is None or cell.request.name == LOWER_BOUND
            d = cell.d or qkv.p
            # a user's method may return a dense matrix
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
        """A cell. Its key has only the settings that its numbers depend on: other settings keep its record."""
        seed = self.seed + repeat
        determinants = {"target": self.target, "heads": self.heads, "d": d, "seed": seed}
        if request.name != LOWER_BOUND:
            if self.tol is not None:
                determinants |= {"matrix_tol": self.tol}
            if request.entry.kind == "kernel":
                determinants |= {"row_tolerance": self.row_tolerance}
            elif self.rows:
                determinants |= {"rows": True}
        return Cell(key_of("error", request, facts, group, layer, **determinants), request, d, repeat, seed)

    def facts(self) -> JsonObject:
        """The plan as the manifest shows it."""
        return {
            "methods": [method_entry(request) for request in self.methods],
            **{name: value for name, value in vars(self).items() if name not in ("methods", "rows")},
            **({"rows": True} if self.rows else {}),
        }

    def refusal(self) -> str | None:
        """The first reason why a requested cell cannot run, if no requested cell can; else None."""
        first_reason = None
        for request in self.methods:
            for n in self.n:
                for d in budgets_of(request, self.d):
                    reason = refused(request, self.target, n, d)
                    if reason is None:
                        return None
                    first_reason = first_reason or reason
        return first_reason


def refuse_endless(cells: int, notify: Callable[[str], None] = lambda line: None) -> None:
    """Refuse more cells than can be listed, and announce a listing that takes long."""
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
    """The key of a cell of a method.

    Args:
        facts: those that identify the source of Q, K and V. rest: what else determines the cell's numbers.
    """
    place = {"source": dict(facts), "n": group.n, "window": group.window, "layer": layer}
    return cell_key(command=command, **method_identity(method), **place, **rest)


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
    """The budgets of a request. A default budget that a method refuses gives way to a smaller power of two.

    Args:
        n: the longest sequence; the smaller budgets are at most n/2.
        refusals: the number of methods that refuse a budget. Of budgets that equally many refuse, the largest is taken.
        p: the columns of V. The default is at most half as large, because the lower bound is zero from d = p on.
    """
    default = type(request).d
    if request.d != default or request.origin.get("d") != "default":  # whoever names a budget gets it, or a refusal
        return request.d
    [largest] = default
    if p is not None and p // 2 < largest:
        largest = 1 << max((p // 2).bit_length() - 1, 0)  # the largest power of two up to p/2
    smaller = [2**power for power in reversed(range((n // 2).bit_length())) if 2**power < largest]
    d = min([largest, *smaller], key=refusals)  # the first, which is the largest, of those with equally many refusals
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
