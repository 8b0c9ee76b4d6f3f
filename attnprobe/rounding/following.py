"""Follow the operations of torch that depend on given tensors. `Emulation` and `Tape` are made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ..errors import Unsupported, UsageError, unknown
from ..grammar.arithmetic import ARITHMETICS, EVERY, FLOAT64, Format
from ..operators.linalg.order import largest_scores
from .choices import Choices
from .operations import CHOOSING, CHOSEN_NUMBERS, DECOMPOSED, FUSED, Operation, accumulates, operation_of
from .site import Site, here

EXITS = ("numpy", "__array__", "tolist", "data_ptr", "__dlpack__")  # by which numbers leave torch


class Width(IntEnum):
    """How the numbers of a tensor are stored."""

    NARROW = 0  # in the format
    ISLAND = 1  # in float32 until a step outside of linear algebra reads them
    WIDE = 2  # in float32


@dataclass(frozen=True)
class Call:
    """A call of an operation that depends on the followed tensors.

    Attributes:
        function: what computes it. operation, site: what and where it is.
        args, kwargs: its arguments. inputs: the tensors among them that depend on the followed ones.
    """

    function: Callable[..., Any]
    operation: Operation
    site: Site
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[Tensor, ...]

    @property
    def exact(self) -> bool:
        """Whether it rounds nothing."""
        return self.operation.exact and not accumulates(self.operation, self.args, self.kwargs)

    def written(self) -> list[Tensor]:
        """The tensors whose memory it writes."""
        if not self.operation.writes:
            return []
        named = dict(zip(self.operation.arguments, self.args, strict=False)) | self.kwargs
        return [x for name in self.operation.writes for x in tensors([named.get(name)])]


@dataclass
class Report:
    """What happened to the operations of a computation.

    Attributes:
        emulated: the number of results that were computed in the arithmetic, for each site.
        as_written: those that the code computes in a dtype of its own, which stay as they are.
        scalars: the numbers that the code took out of tensors.
    """

    emulated: Counter[Site] = field(default_factory=Counter)
    as_written: Counter[Site] = field(default_factory=Counter)
    scalars: Counter[Site] = field(default_factory=Counter)

    @property
    def unrounded(self) -> str | None:
        """Why nothing, or not all, is rounded; None if all is."""
        if not self.emulated:
            return "no operation was rounded: the method computes outside of torch"
        count = sum(self.as_written.values())
        return f"{count} results are not rounded: the code casts them to a dtype of its own" if count else None

    def __iadd__(self, other: Report) -> Report:
        """Add what happened in another computation."""
        self.emulated += other.emulated
        self.as_written += other.as_written
        self.scalars += other.scalars
        return self


class Follow(TorchDispatchMode):
    """A context that sees every operation that depends on given tensors, and runs it unchanged.

    Subclasses override `compute`. The context is for one thread, and for the code inside of it only: what runs in other
    threads, in numpy or in kernels of other compilers is not seen. Code that torch compiles runs uncompiled.

    Args:
        arithmetic: one of `ARITHMETICS`, by which `width_of` decides.
        keep: the sites that stay in float32.
        choices: where the integers that operations choose are recorded, or from where they are taken.
    """

    def __init__(
        self,
        to: Format = FLOAT64,
        arithmetic: str = EVERY,
        keep: frozenset[Site] = frozenset(),
        choices: Choices | None = None,
    ) -> None:
        if arithmetic not in ARITHMETICS:
            raise unknown("arithmetic", arithmetic, ARITHMETICS)
        super().__init__()
        self.to, self.arithmetic, self.keep, self.choices = to, arithmetic, keep, choices
        self.report = Report()
        self._widths: dict[int, tuple[StorageWeakRef, Width]] = {}
        self._stack = ExitStack()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing compiled runs inside, and a wrapper of every operation would take time

    def __enter__(self) -> Follow:
        super().__enter__()
        self._stack.enter_context(_Functions(self))
        self._stack.enter_context(_uncompiled())
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()
        super().__exit__(*error)

    @contextmanager
    def _seen(self) -> Iterator[None]:
        """A context, while an operation is computed, in which its parts are seen too."""
        super().__enter__()
        try:
            yield
        finally:
            super().__exit__(None, None, None)

    def follow(self, x: Tensor, width: Width = Width.NARROW) -> None:
        """Follow what is computed from the memory of a tensor from now on."""
        storage = x.untyped_storage()
        if not x.is_floating_point():
            width = Width.NARROW
        # by storage, so that views are followed with what they view; a weak reference tells a reused address
        self._widths[storage._cdata] = StorageWeakRef(storage), width

    def start(self, x: Tensor) -> Tensor:
        """An input that is followed, as a new tensor."""
        x = x.clone()
        self.follow(x)
        return x

    def width(self, x: Tensor) -> Width | None:
        """How a followed tensor is stored; None if it does not depend on the followed tensors."""
        found = self._widths.get(x.untyped_storage()._cdata)
        return None if found is None or found[0].expired() else found[1]

    def compute(self, call: Call) -> Any:
        """The result of a call."""
        result = call.function(*call.args, **call.kwargs)
        for x in (*call.written(), *tensors([result])):
            self.follow(x)
        return result

    def width_of(self, call: Call) -> tuple[Width, bool]:
        """How the result of a call that rounds is stored, and whether the call rounds its inputs first."""
        operation, inputs = call.operation, [self.width(x) for x in call.inputs if x.is_floating_point()]
        if call.site in self.keep:
            return Width.WIDE, False
        if self.arithmetic == "tensor-cores":
            return Width.WIDE, operation.product
        # as torch promotes types: what meets a constant tensor, which is float32 in the code, is float32
        if self.arithmetic == "autocast":
            if operation.product:
                return Width.NARROW, True
            constant = any(x.dim() and x.is_floating_point() and self.width(x) is None for x in tensors(call.args))
            wide = operation.wide or operation.lapack or constant or Width.WIDE in inputs
            return (Width.WIDE if wide else Width.NARROW), False
        if operation.lapack or (inputs and all(width == Width.ISLAND for width in inputs)):
            return Width.ISLAND, False
        return Width.NARROW, True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):
            raise Unsupported(f"{func}: this operation is no operation of torch's dispatcher, so it cannot be rounded")
        operation = operation_of(func)
        if operation.factory:
            return func(*args, **kwargs)
        inputs = tuple(x for x in tensors((*args, *kwargs.values())) if self.width(x) is not None)
        if not inputs:
            return func(*args, **kwargs)
        if operation.view:
            return self._viewed(func(*args, **kwargs), inputs)
        # in float64 a decomposition would change the last bits, and nothing is rounded
        if operation.name in DECOMPOSED and self.to != FLOAT64:
            with self._seen():
                return DECOMPOSED[operation.name](*args, **kwargs)
        return self._run(Call(func, operation, here(operation.name), tuple(args), kwargs, inputs))

    def _viewed(self, result: Any, inputs: Sequence[Tensor]) -> Any:
        for x in tensors([result]):
            if self.width(x) is None:  # some views are copies
                self.follow(x, max(self.width(source) or Width.NARROW for source in inputs))
        return result

    def fused(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a function of `FUSED`, as one operation."""
        inputs = tuple(x for x in tensors((*args, *kwargs.values())) if self.width(x) is not None)
        if not inputs:
            return function(*args, **kwargs)
        operation = FUSED[function]
        with _disable_current_modes():
            return self._run(Call(function, operation, here(operation.name), args, kwargs, inputs))

    def leaves(self, name: str, x: Tensor) -> None:
        """Refuse a floating-point tensor that leaves torch: what is computed from it would not be seen."""
        if x.is_floating_point() and self.width(x) is not None:
            raise Unsupported(f"{here(name)}: its numbers leave torch, so later operations cannot be rounded")

    def _run(self, call: Call) -> Any:
        if call.operation.name == "_local_scalar_dense" and call.inputs[0].is_floating_point():
            self.report.scalars[call.site] += 1
        result = self.compute(call)
        if self.choices is None or call.operation.name not in CHOOSING:
            return result
        return self._chosen(call, result) if any(not _whole(x) for x in call.inputs) else result

    def chosen_scores(self, scores: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The result of `largest_scores`, as one choice: which of equal scores it takes is none of its parts'."""
        if self.width(scores) is None:
            return largest_scores(scores, *args, **kwargs)
        site = here("largest_scores")
        with _disable_current_modes():
            single = scores.float()  # has the numbers of every emulated format, and is sorted in half of the time
            ordered = single if torch.equal(single.to(scores.dtype), scores) else scores
            places = largest_scores(ordered, *args, **kwargs)[1]
        if self.choices is not None:
            places = self.choices.met(site, places, of_a_set=True)
        self.follow(places)
        return scores.gather(-1, places.clamp(min=0)).masked_fill(places < 0, float("-inf")), places

    def _chosen(self, call: Call, result: Any) -> Any:
        """The result of a call, with the integers of an earlier computation if choices are held."""
        assert self.choices is not None
        if isinstance(result, Tensor):
            return self.choices.met(call.site, result) if _whole(result) else result
        if not isinstance(result, tuple | list) or not any(isinstance(x, Tensor) and _whole(x) for x in result):
            return result
        of_a_set = call.operation.name == "topk"
        held = [self.choices.met(call.site, x, of_a_set) if isinstance(x, Tensor) and _whole(x) else x for x in result]
        if call.operation.name in CHOSEN_NUMBERS and held[1] is not result[1]:
            # the numbers must be those of the held places, or values and places would contradict each other
            held[0] = _numbers_at(call, held[1])
            self.follow(held[0], self.width(call.inputs[0]) or Width.NARROW)
        for x in held:
            if isinstance(x, Tensor) and self.width(x) is None:
                self.follow(x)
        return type(result)(held) if type(result) in (tuple, list) else tuple(held)


class _Functions(TorchFunctionMode):
    """The functions of torch above its dispatcher that `Follow` must see."""

    def __init__(self, mode: Follow) -> None:
        super().__init__()
        self.mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is largest_scores:
            return self.mode.chosen_scores(*args, **(kwargs or {}))
        if func in FUSED:
            return self.mode.fused(func, tuple(args), kwargs or {})
        if getattr(func, "__name__", "") in EXITS and args and isinstance(args[0], Tensor):
            self.mode.leaves(func.__name__, args[0])
        return func(*args, **(kwargs or {}))


@contextmanager
def _uncompiled() -> Iterator[None]:
    """A context in which functions of torch.compile run as they are written, because compiled code is not seen."""
    import torch._dynamo.eval_frame as frames

    before = frames._stance
    torch.compiler.set_stance("force_eager")
    try:
        yield
    finally:
        frames._stance = before


def tensors(values: Any) -> list[Tensor]:
    """The tensors among arguments or results, also those in lists."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensors(value)
    return found


def whole_memory(x: Tensor) -> Tensor:
    """All numbers in the memory of a tensor, as a view (m,)."""
    return x.as_strided((x.untyped_storage().nbytes() // x.itemsize,), (1,), 0)


def replaced(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """An argument with other tensors, also in lists."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        parts = [replaced(element, change) for element in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value


def _whole(x: Tensor) -> bool:
    return not x.is_floating_point() and not x.is_complex() and x.dtype != torch.bool


def _numbers_at(call: Call, index: Tensor) -> Tensor:
    """The numbers of a selecting operation's input at the given places."""
    x, named = call.args[0], dict(zip(call.operation.arguments, call.args, strict=False)) | call.kwargs
    dim = named.get("dim", -1)
    if index.dim() == x.dim():
        return x.gather(dim, index)
    return x.gather(dim, index.unsqueeze(dim)).squeeze(dim)


def checked_inputs(inputs: Sequence[Tensor]) -> None:
    """Refuse inputs in which nothing can be followed.

    Raises:
        UsageError: an input that is not float64.
    """
    for x in inputs:
        if x.dtype != torch.float64:
            raise UsageError(f"emulation: an input is {str(x.dtype)[6:]}; rounded numbers are held in float64")
