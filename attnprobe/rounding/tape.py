"""A tape of a method's operations, and the adjoint of its output at each of them by one pass backward.

Adjoints are kept for memory, not for tensors: an operation that writes into memory, through whatever view, ends the
adjoint of what stood there. So methods that write in place or into ``out=`` need no form of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ..grammar.arithmetic import EVERY, Format
from .following import Call, Follow, Width, replaced, tensors, whole_memory
from .formats import rounded
from .site import INPUTS, Site

Producers = frozenset[Site]


@dataclass
class _Saved:
    """The numbers of a tensor at one time, and the memory in which they are."""

    x: Tensor
    memory: int
    width: Width | None
    producers: Producers = frozenset()

    @cached_property
    def infinite(self) -> Tensor | None:
        """Which numbers are not finite; None if all are."""
        finite = torch.isfinite(self.x)
        return None if bool(finite.all()) else ~finite


@dataclass
class _Step:
    """An operation on the tape. ``rounds`` says whether its result is rounded, ``reads`` whether its inputs are."""

    site: Site
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[_Saved]
    writes: bool
    rounds: bool
    reads: bool


@dataclass
class Squares:
    """``‖g ∘ y‖²`` of numbers y that are rounded, with the adjoint g of the output there.

    Attributes:
        made: for each site, of its results, and of what it rounds when it reads it: constants, and float32 tensors.
        read: for each set of sites that made a tensor and each site that reads it, of that tensor. They would count if
            the tensor were in float32.
        inputs: of Q, K and V.
    """

    made: dict[Site, float] = field(default_factory=lambda: defaultdict(float))
    read: dict[tuple[Producers, Site], float] = field(default_factory=lambda: defaultdict(float))
    inputs: float = 0.0


class Tape(Follow):
    """A context that runs operations in float64 and keeps what a backward pass needs: all numbers that they read.

    Args:
        to, arithmetic, keep: the arithmetic whose roundings are estimated; nothing is rounded here.
    """

    def __init__(self, to: Format, arithmetic: str = EVERY, keep: frozenset[Site] = frozenset()) -> None:
        super().__init__(to, arithmetic, keep)
        self.steps: list[_Step] = []
        self.started: list[_Saved] = []
        self._numbers: dict[int, tuple[StorageWeakRef, int]] = {}
        self._saved: dict[int, list[_Saved]] = defaultdict(list)
        self._sizes: list[int] = []
        self._producers: dict[int, Producers] = {}

    def start(self, x: Tensor) -> Tensor:
        x = super().start(x)
        if self.arithmetic == "tensor-cores":
            self.follow(x, Width.WIDE)
        self._producers[self._memory(x)] = frozenset([INPUTS])
        self.started.append(self._save(x))
        return x

    def compute(self, call: Call) -> Any:
        if call.exact:
            width, reads = (
                max(
                    (self.width(x) or Width.NARROW for x in call.inputs if x.is_floating_point()), default=Width.NARROW
                ),
                False,
            )
        else:
            width, reads = self.width_of(call)
            if width == Width.NARROW and self.arithmetic == EVERY:
                for x in call.inputs:
                    if self.width(x) == Width.ISLAND:
                        self._store(x)
        # autograd refuses ``out=``: the backward pass calls the form that returns its result
        out = [x for name, x in call.kwargs.items() if name.startswith("out") and isinstance(x, Tensor)]
        producers = self._made_by(call)

        def save(x: Tensor) -> Any:
            return self._save(x) if x.is_floating_point() else x.clone()

        args = tuple(replaced(value, save) for value in call.args)
        kwargs = {name: replaced(value, save) for name, value in call.kwargs.items() if not name.startswith("out")}
        for x in call.written():
            self._before_write(x)
        result = call.function(*call.args, **call.kwargs)
        made = out or call.written() or tensors([result])
        made = [x for x in made if x.is_floating_point()]
        for x in made:
            before = self.width(x)
            self.follow(x, width if before is None else max(width, before))
            number = self._memory(x)
            # a write may leave part of the memory as it was, with its old makers
            old = self._producers.get(number, frozenset()) if call.written() else frozenset()
            self._producers[number] = producers | old
        for x in tensors([result]):
            if self.width(x) is None:
                self.follow(x)
        if made:
            rounds = not call.exact and width == Width.NARROW and all(x.dtype == torch.float64 for x in made)
            function = _without_out(call.function) if out else call.function
            writes = bool(call.written()) and not out
            saved = [self._save(x) for x in made]
            self.steps.append(_Step(call.site, function, args, kwargs, saved, writes, rounds, reads))
        return result

    def squares(self, output: Tensor, weights: Tensor) -> Squares:
        """The squares of every step for the loss ``Σ weights ∘ output``, both (h, n_q, p_v).

        Cost: three to four times the operations of the tape.
        """
        found = Squares()
        adjoint: dict[int, Tensor] = {}
        self._add(adjoint, self._save(output), weights)
        for step in reversed(self.steps):
            self._back(step, adjoint, found)
        for saved in self.started:
            g = self._region(adjoint, saved)
            if g is not None and self.arithmetic != "tensor-cores":
                # numbers that the format has, such as masks of 0 and 1, are not rounded
                inexact = rounded(saved.x, self.to) != saved.x
                found.inputs += _square(g * inexact, saved)
        return found

    def _back(self, step: _Step, adjoint: dict[int, Tensor], found: Squares) -> None:
        g_outputs = [self._region(adjoint, saved) for saved in step.outputs]
        if all(g is None for g in g_outputs):
            return
        g_outputs = [
            torch.zeros_like(y.x) if g is None else _without(g.clone(), y.infinite)  # an infinite score is a mask
            for g, y in zip(g_outputs, step.outputs, strict=True)
        ]
        masked = any(y.infinite is not None for y in step.outputs)
        if step.rounds:
            found.made[step.site] += sum(_square(g, y) for g, y in zip(g_outputs, step.outputs, strict=True))
        for y in step.outputs:  # what stood there before, or is read under another name, has no adjoint of its own
            if (region := self._region(adjoint, y)) is not None:
                region.zero_()
        leaves: list[tuple[_Saved, Tensor]] = []

        def leaf(saved: Any) -> Any:
            if not isinstance(saved, _Saved):
                return saved
            x = saved.x.detach()
            if saved.width is not None or (step.reads and x.dim()):
                leaves.append((saved, x.requires_grad_()))
            return x.clone() if step.writes else x

        with torch.enable_grad():
            args = tuple(_loaded(value, leaf) for value in step.args)
            kwargs = {name: _loaded(value, leaf) for name, value in step.kwargs.items()}
            result = step.function(*args, **kwargs)
            made = [x for x in tensors([result]) if x.is_floating_point()][: len(g_outputs)]
            pairs = [(y, g.to(y)) for y, g in zip(made, g_outputs, strict=True) if y.requires_grad]
            if not pairs:
                return
            of = torch.autograd.grad(
                [y for y, _ in pairs], [x for _, x in leaves], [g for _, g in pairs], allow_unused=True
            )
        for (saved, _), g in zip(leaves, of, strict=True):
            if g is None:
                continue
            g = _without(g, saved.infinite)
            if masked:
                g = g.masked_fill(g.isnan(), 0)  # such as 0 · ∞ of a mask
            if saved.width is not None:
                self._add(adjoint, saved, g)
            if not step.reads:
                continue
            if saved.width in (None, Width.WIDE):
                found.made[step.site] += _square(g * (rounded(saved.x, self.to) != saved.x), saved)
            else:
                found.read[saved.producers, step.site] += _square(g, saved)

    def _made_by(self, call: Call) -> Producers:
        """The sites that made the numbers of a call's result."""
        if not call.exact:
            return frozenset([call.site])
        every = [self._producers.get(self._memory(x), frozenset()) for x in call.inputs]
        return frozenset().union(*every)

    def _store(self, x: Tensor) -> None:
        """The rounding of a result of LAPACK that leaves its island, as a step of its own."""
        saved = self._save(whole_memory(x))
        sites = sorted(saved.producers)
        kept = bool(sites) and sites[0] in self.keep
        self.follow(x, Width.WIDE if kept else Width.NARROW)
        if sites and not kept:
            self.steps.append(_Step(sites[0], _same, (saved,), {}, [saved], False, True, False))

    def _memory(self, x: Tensor) -> int:
        """The number of a tensor's memory."""
        storage = x.untyped_storage()
        known = self._numbers.get(storage._cdata)
        if known is None or known[0].expired():
            self._numbers[storage._cdata] = known = StorageWeakRef(storage), len(self._sizes)
            self._sizes.append(0)
        self._sizes[known[1]] = storage.nbytes() // x.itemsize
        return known[1]

    def _save(self, x: Tensor) -> _Saved:
        number = self._memory(x)
        saved = _Saved(x.detach(), number, self.width(x), self._producers.get(number, frozenset()))
        self._saved[number].append(saved)
        return saved

    def _before_write(self, x: Tensor) -> None:
        """Copy what is saved of a tensor's memory, because it is written now."""
        saved = self._saved.pop(self._memory(x), [])
        if not saved or not x.numel():
            return
        whole = whole_memory(x).clone()
        for view in saved:
            view.x = whole.as_strided(view.x.shape, view.x.stride(), view.x.storage_offset())

    def _region(self, adjoint: dict[int, Tensor], saved: _Saved) -> Tensor | None:
        """The adjoint of a saved tensor, in the memory of all adjoints of its memory; None if it is zero."""
        whole = adjoint.get(saved.memory)
        x = saved.x
        return None if whole is None else whole.as_strided(x.shape, x.stride(), x.storage_offset())

    def _add(self, adjoint: dict[int, Tensor], saved: _Saved, g: Tensor) -> None:
        whole = adjoint.get(saved.memory)
        if whole is None:
            whole = adjoint[saved.memory] = g.new_zeros(self._sizes[saved.memory], dtype=torch.float64)
        x = saved.x
        if not _overlaps(x):
            whole.as_strided(x.shape, x.stride(), x.storage_offset()).add_(g)
        else:  # such as an expanded tensor: several of its numbers are one
            numbers = torch.arange(len(whole), device=whole.device)
            slots = numbers.as_strided(x.shape, x.stride(), x.storage_offset())
            whole.index_add_(0, slots.flatten(), g.double().flatten())


def _overlaps(x: Tensor) -> bool:
    """Whether two numbers of a tensor may have the same memory."""
    reach = 0  # of the axes with smaller steps
    for step, size in sorted((step, size) for size, step in zip(x.shape, x.stride(), strict=True) if size > 1):
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False


def _without(x: Tensor, infinite: Tensor | None) -> Tensor:
    """A tensor with zeros in place of some numbers."""
    return x if infinite is None else x.masked_fill(infinite, 0)


def _square(g: Tensor, saved: _Saved) -> float:
    """``‖g ∘ y‖²``, without numbers y that are infinite: they are not rounded."""
    return float(_without(g * saved.x, saved.infinite).square().sum())


def _same(x: Tensor) -> Tensor:
    return x.clone()


def _loaded(value: Any, load: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        parts = [_loaded(element, load) for element in value]
        return parts if isinstance(value, list) else tuple(parts)
    return load(value)


def _without_out(function: Any) -> Any:
    """The overload of an operation that returns its result in new memory, for one that writes it into ``out``."""
    read = [x for x in function._schema.arguments if not x.is_out]
    packet = function.overloadpacket if hasattr(function, "overloadpacket") else function._overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        arguments = other._schema.arguments
        in_place = any(x.alias_info is not None and x.alias_info.is_write for x in arguments)
        # overloads may differ in types alone, such as a number in place of a tensor
        if not in_place and [(x.name, str(x.type)) for x in arguments] == [(x.name, str(x.type)) for x in read]:
            return other
    raise NotImplementedError(f"{function}: no form without out")
