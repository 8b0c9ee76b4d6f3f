"""The check of a user's objects: what methods share, values of functions of claims, products of operators."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import attrgetter, is_
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...arguments import fault
from ...errors import AttnprobeError, BadResult, UsageError
from ...grammar.foreign import reason
from ...operators import Operator
from ...operators.precision import PRECISION

R = TypeVar("R")
# Of torch, if its version has them. What others inherit comes first.
FLAGS = (
    *(f"backends.{place}fp32_precision" for place in ("", "cudnn.", "mkldnn.")),
    *(f"backends.cudnn.{name}" for name in ("enabled", "benchmark", "deterministic")),
    *(f"backends.cuda.matmul.allow_{name}_reduced_precision_reduction" for name in ("fp16", "bf16")),
    "backends.mkldnn.enabled",
    "backends.opt_einsum.enabled",
)
SPACES = {  # whose functions the methods share
    "torch": torch,
    "torch.nn.functional": torch.nn.functional,
    "torch.linalg": torch.linalg,
    "torch.special": torch.special,
    "torch.Tensor": torch.Tensor,
}
OWN = ("manual_seed", "Storage")  # torch sets these itself: when it first compiles something, by the default dtype


def _put_flag(flag: str, value: Any) -> None:
    place, _, name = flag.rpartition(".")
    setattr(attrgetter(place)(torch), name, value)


def _put_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)  # None leaves no mode behind


def _has(flag: str) -> bool:
    try:
        attrgetter(flag)(torch)
    except AttributeError:
        return False
    return True


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {  # how each is read and set
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's default device": (torch.get_default_device, _put_device),
    "torch's grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "torch's deterministic algorithms": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    **{f"torch.{flag}": (partial(attrgetter(flag), torch), partial(_put_flag, flag)) for flag in FLAGS if _has(flag)},
    "torch's precision of float32 products": (PRECISION.read, PRECISION.make),
    "torch's flushing of denormal numbers": (lambda: sys.float_info.min / 2 == 0, torch.set_flush_denormal),
    **{
        f"torch's autocast on {kind}": (
            partial(torch.is_autocast_enabled, kind),
            partial(torch.set_autocast_enabled, kind),
        )
        for kind in ("cpu", "cuda")
    },
    "the working folder": (os.getcwd, os.chdir),
}


@contextmanager
def same_settings(what: str, kind: type[AttnprobeError] = BadResult) -> Iterator[None]:
    """A context at whose end the `SETTINGS` and the functions of `SPACES`, which all methods share, are as before.

    It costs about 0.1 ms.

    Raises:
        BadResult: they were not, or an error of another ``kind``. The line begins with ``what``, and names them.
    """
    before = {name: get() for name, (get, _) in SETTINGS.items()}
    functions = {name: vars(space).copy() for name, space in SPACES.items()}
    changed = []
    try:
        yield
    finally:
        for name, space in SPACES.items():  # first, because the settings are read and set by functions
            changed += [f"{name}.{one}" for one in _put_back(space, functions[name])]
        for name, (get, put) in SETTINGS.items():
            if get() != before[name]:
                changed.append(name)
                put(before[name])
    if changed:
        raise kind(f"{what} changes {', '.join(changed)}, which other methods share; set it back at the end")


def _put_back(space: Any, before: dict[str, Any]) -> list[str]:
    """Set the functions of a module or a class back that are not those of ``before``; their names.

    A function that a class gained is removed if it hides one of its base class.
    """
    now = vars(space)
    if len(now) == len(before) and all(map(is_, now.values(), before.values())):
        return []
    replaced = [name for name, one in before.items() if now.get(name) is not one and callable(one) and name not in OWN]
    for name in replaced:
        setattr(space, name, before[name])
    base = space.__base__ if isinstance(space, type) else None
    hiding = [name for name in now.keys() - before.keys() if hasattr(base, name)]
    for name in hiding:
        delattr(space, name)
    return replaced + hiding


def asked(work: Callable[[], R], what: str, kind: type[AttnprobeError] = UsageError) -> R:
    """The value of ``work()``, which asks a user's object for something.

    Raises:
        UsageError: it raises anything but Ctrl-C, or an error of another ``kind``. The line begins with ``what``.
    """
    try:
        return work()
    except (AttnprobeError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a user's code may raise anything, SystemExit too
        raise kind(f"{what} raises {reason(error)}") from error


def checking_answer(function: Callable[..., R] | None, kind: Any, what: str) -> Callable[..., R] | None:
    """A user's function of a claim, whose values must be of a type; None stays None.

    Raises:
        UsageError: when it is called, if it raises or returns something else.
    """
    if function is None:
        return None

    def call(*args: Any) -> R:
        value = asked(lambda: function(*args), what)
        if (problem := fault(value, kind)) is not None:
            raise UsageError(f"{what} returns a wrong value: it{problem}")
        return value

    return call


def check_tensor(x: Any, shape: tuple[int, ...], what: str) -> Tensor:
    """``x``, if it is a dense, real tensor of a shape.

    Raises:
        BadResult: it is not. The line begins with ``what``.
    """
    if (problem := fault(x, Tensor)) is not None:
        raise BadResult(f"{what}{problem}")
    if tuple(x.shape) != shape:
        raise BadResult(f"{what} has shape {tuple(x.shape)}; {shape} is needed")
    return x


class Guarded(Operator):
    """An operator of a user's own class. What its methods return is checked, so that no shape is broadcast.

    Args:
        operator: the user's. name: its function's, for messages.

    Raises:
        BadResult: it lacks what every operator has, or later: a method returns another type, shape, dtype or device.
    """

    def __init__(self, operator: Operator, name: str) -> None:
        if (problem := fault(operator, Operator)) is not None:
            raise BadResult(f"{name}: its operator{problem}")
        self.operator, self.name = operator, name
        h, n_q, n_k = operator.shape
        self.shape, self.dtype, self.device = (h, n_q, n_k), operator.dtype, operator.device

    def heads(self, index: slice) -> Operator:
        h = len(range(*index.indices(self.shape[0])))
        return self._part(self.operator.heads(index), "heads", (h, *self.shape[1:]), self.dtype, self.device)

    def to(self, dtype: torch.dtype) -> Operator:
        return self._part(self.operator.to(dtype), "to", self.shape, dtype, self.device)

    def on(self, device: torch.device) -> Operator:
        return self._part(self.operator.on(device), "on", self.shape, self.dtype, device)

    def _part(
        self, part: Any, method: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> Operator:
        guarded = Guarded(part, f"{self.name}, {method} of its operator")
        guarded.name = self.name
        if (guarded.shape, guarded.dtype, guarded.device) != (shape, dtype, device):
            raise BadResult(f"{self.name}: {method} of its operator gives {guarded!r} on {guarded.device}")
        return guarded

    def _apply(self, x: Tensor) -> Tensor:
        h, n_q, _ = self.shape
        return self._tensor(self.operator._apply(x), (h, n_q, x.shape[2]), "_apply")

    def _apply_transpose(self, y: Tensor) -> Tensor:
        h, _, n_k = self.shape
        return self._tensor(self.operator._apply_transpose(y), (h, n_k, y.shape[2]), "_apply_transpose")

    def _rows(self, start: int, stop: int) -> Tensor:
        h, _, n_k = self.shape
        return self._tensor(self.operator._rows(start, stop), (h, stop - start, n_k), "_rows")

    def _tensor(self, x: Any, shape: tuple[int, ...], method: str) -> Tensor:
        what = f"{self.name}: the result of {method} of its operator"
        check_tensor(x, shape, what)
        if (x.dtype, x.device) != (self.dtype, self.device):
            raise BadResult(f"{what} is {str(x.dtype)[6:]} on {x.device}, not {str(self.dtype)[6:]} on {self.device}")
        return x
