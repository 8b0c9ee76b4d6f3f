"""The check of a user's objects: values of functions of claims, products of operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...errors import AttnprobeError, BadResult, UsageError
from ...grammar.arguments import fault
from ...grammar.foreign import reason
from ...operators import Operator

R = TypeVar("R")


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
