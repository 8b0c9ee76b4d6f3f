"""A computation in another arithmetic: the results of torch's operations are rounded to a format. See `emulated`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..grammar.arithmetic import EVERY, FLOAT64, Format
from .choices import Choices
from .following import Call, Follow, Report, Width, checked_inputs, replaced, tensors, whole_memory
from .formats import arithmetic_named, cast_single, rounded
from .operations import ROUNDED_NUMBERS, SCATTERED
from .site import Site

Result = TypeVar("Result")


class Watch:
    """The causes of results that are not finite.

    A result may have infinite numbers on purpose, such as the scores of hidden keys. So each call is compared with the
    same call in float64.

    Args:
        usual: the watch of the run in float64; None for that run itself.
    """

    def __init__(self, usual: Watch | None = None) -> None:
        self.lost: dict[tuple[Site, int], int] = {}
        self.first: Site | None = None
        self._usual = {} if usual is None else usual.lost
        self._calls: Counter[Site] = Counter()
        self._causes: dict[int, Site] = {}

    def see(self, call: Call, results: list[Tensor]) -> None:
        """Look at the results of a call."""
        key = call.site, self._calls[call.site]
        self._calls[call.site] += 1
        self.lost[key] = sum(int((~torch.isfinite(x)).sum()) for x in results)
        # as many as in float64 are meant to be infinite
        if self.lost[key] <= self._usual.get(key, 0):
            return
        causes = [cause for x in call.inputs if (cause := self._causes.get(_memory(x))) is not None]
        cause = causes[0] if causes else call.site
        # the first loss is the cause; later steps only carry it on
        self.first = self.first or cause
        for x in results:
            self._causes[_memory(x)] = cause

    def cause(self, x: Tensor) -> Site | None:
        """The first step on the way to a tensor whose result was less finite than in float64."""
        return self._causes.get(_memory(x))


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


class Emulation(Follow):
    """A context in which operations that depend on followed tensors round their results to a format.

    Numbers are held in float64 tensors, so that a constant that follows the dtype (an epsilon, a cutoff) is that of
    float64 in every format: another cutoff is another method and no rounding. Each operation runs on copies in float32,
    as half precision does on every processor: it adds in float32 and rounds once. Constants with an axis are rounded
    when a rounded operation reads them; Python's numbers are not.

    What LAPACK computes stays in float32, with everything that is computed from that alone, and is rounded when another
    operation first reads it. What the code itself casts to another dtype is computed as it is written.

    Attributes:
        report: which operations were rounded.
        watch: what looks for results that are not finite; None for nothing.
    """

    def __init__(
        self, to: Format, arithmetic: str = EVERY, keep: frozenset[Site] = frozenset(), choices: Choices | None = None
    ):
        super().__init__(to, arithmetic, keep, choices)
        self._producers: dict[int, Site] = {}
        self.watch: Watch | None = None

    def start(self, x: Tensor) -> Tensor:
        """An input as it is stored, a new tensor that is followed."""
        # tensor cores round what they read; memory stays in float32
        narrow = self.arithmetic != "tensor-cores"
        x = rounded(x, self.to) if narrow else x.float().double()
        x = x.clone()
        self.follow(x, Width.NARROW if narrow else Width.WIDE)
        return x

    def compute(self, call: Call) -> Any:
        if self.to == FLOAT64:
            result = super().compute(call)
        elif call.exact:
            result = self._selected(call)
        else:
            result = self._rounded(call)
        if self.watch is not None:
            self.watch.see(call, [x for x in tensors([result]) if x.is_floating_point()])
        return result

    def _selected(self, call: Call) -> Any:
        """The result of an operation that selects numbers. Constants that it puts between them are rounded."""
        read = [x for x in call.inputs if x.is_floating_point()]
        # the widest input: a number that was never rounded may be among those selected
        width = max((self.width(x) or Width.NARROW for x in read), default=Width.NARROW)
        stores = self.arithmetic == EVERY and not all(_is_double(x) for x in read)  # the code casts its result back
        result = call.function(*call.args, **call.kwargs)
        for x in (*call.written(), *tensors([result])):
            before = self.width(x) or Width.NARROW
            if _is_double(x):
                width = Width.NARROW if stores else max(width, before)
                if stores or (width == Width.NARROW and _adds_constants(call, self.to)):
                    x.copy_(rounded(x, self.to))
            self.follow(x, width)
        return result

    def _rounded(self, call: Call) -> Any:
        """The result of an operation that rounds, run on copies in float32."""
        width, rounds_inputs = self.width_of(call)
        if width == Width.NARROW and self.arithmetic == EVERY:
            for x in call.inputs:
                if self.width(x) == Width.ISLAND:
                    self._store(x)
        if not any(_is_double(x) for x in tensors((*call.args, *call.kwargs.values()))):
            return self._as_written(call)
        return _SingleCall(self, call, width, rounds_inputs).run()

    def _as_written(self, call: Call) -> Any:
        """The result of an operation in a dtype of the code's own. Numbers made of integers are rounded."""
        result = call.function(*call.args, **call.kwargs)
        for x in (*call.written(), *tensors([result])):
            if _is_double(x) and self.to != FLOAT64:
                x.copy_(rounded(x, self.to))
                self._made(x, Width.NARROW, call)
                continue
            if x.is_floating_point():
                self.report.as_written[call.site] += 1
            self.follow(x, Width.WIDE)
        return result

    def _read(self, x: Tensor, rounds: bool) -> Tensor:
        """A float32 copy of an input, rounded to the format if the operation reads it so."""
        width, copy = self.width(x), x.float()
        if not rounds or width == Width.NARROW or (width is None and not x.dim()):
            return copy
        return rounded(x, self.to).float()

    def _stored(self, x: Tensor, width: Width) -> Tensor:
        """A float32 result as it is stored, in float64."""
        return (cast_single(x, self.to) if width == Width.NARROW else x).double()

    def _store(self, x: Tensor) -> None:
        """Round a result of LAPACK where it leaves its island, in its own memory."""
        producer = self._producers.get(x.untyped_storage()._cdata)
        if producer is not None and producer in self.keep:
            self.follow(x, Width.WIDE)
            return
        numbers = whole_memory(x)
        numbers.copy_(rounded(numbers, self.to))
        self.follow(x, Width.NARROW)
        if producer is not None:
            self.report.emulated[producer] += 1

    def _made(self, x: Tensor, width: Width, call: Call) -> None:
        self.follow(x, width)
        if width == Width.ISLAND:
            self._producers[x.untyped_storage()._cdata] = call.site
        elif x.is_floating_point():
            self.report.emulated[call.site] += 1


class _SingleCall:
    """One call of a rounding operation: on copies of its arguments in float32, with its results in float64 tensors.

    Args:
        width, rounds_inputs: as `Follow.width_of` gives them for the call.
    """

    def __init__(self, mode: Emulation, call: Call, width: Width, rounds_inputs: bool) -> None:
        self.mode, self.call, self.width, self.rounds_inputs = mode, call, width, rounds_inputs
        name, narrow = call.operation.name, width == Width.NARROW
        halves = narrow and mode.to.cast in ("float16", "bfloat16") and name in SCATTERED
        self.scattered = getattr(torch, str(mode.to.cast)) if halves else None
        self.rounds_numbers = narrow and name in ROUNDED_NUMBERS
        self.written = {id(x) for x in call.written()}
        self.originals: list[tuple[Tensor, Tensor]] = []  # each copy that the operation writes, with what it stands for

    def run(self) -> Any:
        """The result of the call; the tensors that it writes in place are written too."""
        args = tuple(self._argument(value) for value in self.call.args)
        kwargs = {name: self._argument(value) for name, value in self.call.kwargs.items()}
        result = self.call.function(*args, **kwargs)
        for copy, original in self.originals:
            if original.shape != copy.shape:  # an ``out=`` of another size
                original.resize_(copy.shape)
            original.copy_(copy if self.scattered else self.mode._stored(copy, self.width))
            self.mode._made(original, self.width, self.call)
        # the named tuples of torch take their fields as arguments, plain ones take one list
        if isinstance(result, tuple) and hasattr(result, "_fields"):
            return type(result)(*map(self._double, result))
        return replaced(result, self._double)

    def _argument(self, value: Any) -> Any:
        if self.rounds_numbers and isinstance(value, float):
            return _number(value, self.mode.to)
        # what the code asks to be made in float64 is made in the dtype of the copies
        return self.scattered or torch.float32 if value is torch.float64 else replaced(value, self._single)

    def _single(self, x: Tensor) -> Tensor:
        """The copy of an argument."""
        if not _is_double(x):
            return x.to(torch.complex64) if x.dtype == torch.complex128 else x
        copy = self.mode._read(x, self.rounds_inputs)
        if self.scattered is not None:
            copy = copy.to(self.scattered)
        if id(x) in self.written:
            self.originals.append((copy, x))
        return copy

    def _double(self, x: Tensor) -> Tensor:
        """A result in float64; the original where the result is a copy that was written."""
        for copy, original in self.originals:
            if x is copy:
                return original
        arguments = (*self.call.args, *self.call.kwargs.values())
        if x.dtype == self.scattered:
            x = x.double()
        elif x.dtype == torch.float32 and not any(value is torch.float32 for value in arguments):
            x = self.mode._stored(x, self.width)
        elif x.dtype == torch.complex64:
            x = torch.view_as_complex(self.mode._stored(torch.view_as_real(x), self.width))
        if id(x) not in self.written:
            self.mode._made(x, self.width, self.call)
        return x


def _is_double(x: Tensor) -> bool:
    return x.dtype == torch.float64


def _adds_constants(call: Call, to: Format) -> bool:
    """Whether an operation that selects may put numbers into its result that are not of the format."""
    if call.operation.name in ("_to_copy", "copy") and not all(x.is_floating_point() for x in call.inputs):
        return True
    every = (*call.args, *call.kwargs.values())
    if any(isinstance(value, float) and not _is_of(value, to) for value in every):
        return True
    # tensors that are not followed are constants, whose numbers need not be of the format
    followed = {id(x) for x in call.inputs}
    read = [x for x in tensors(every) if x.is_floating_point() and id(x) not in followed]
    return len(read) > len([x for x in call.written() if id(x) not in followed])


@cache
def _number(value: float, to: Format) -> float:
    """A number rounded to a format."""
    return float(rounded(torch.tensor(value, dtype=torch.float64), to))


def _is_of(value: float, to: Format) -> bool:
    """Whether a number is one of a format; NaN, which differs from itself, is one of each."""
    return value != value or _number(value, to) == value


def emulated(
    run: Callable[..., Result],
    inputs: Sequence[Tensor],
    to: str,
    *,
    keep: frozenset[Site] = frozenset(),
    choices: Choices | None = None,
) -> tuple[Result, Report]:
    """The result of ``run(*inputs)`` in another arithmetic, and what was rounded.

    Args:
        run: a computation with torch's operations, in this thread. inputs: float64 tensors.
        to: the arithmetic, ``FORMAT`` or ``FORMAT:MODEL``; ``float64`` changes nothing, to the last bit.
        keep: sites that stay in float32. choices: see `Choices`.

    Cost: five passes over the memory of an operation instead of two, and 50 µs for each operation.

    Raises:
        Unsupported: numbers leave torch, or an operation is none of torch's. UsageError: inputs that are not float64.

    >>> x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    >>> result, report = emulated(lambda x: x / 3, [x], "bf16")
    >>> result.tolist(), sum(report.emulated.values())
    ([0.333984375, 0.66796875, 1.0], 1)
    """
    checked_inputs(inputs)
    mode = Emulation(*arithmetic_named(to), keep, choices)
    with torch.no_grad():
        started = [mode.start(x) for x in inputs]
        with mode:
            return run(*started), mode.report
