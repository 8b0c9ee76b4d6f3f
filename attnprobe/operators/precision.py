"""Full precision of float32 products, whatever a program has chosen."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import torch

__all__ = ["full_precision"]


@dataclass(frozen=True)
class _Choice:
    """One of torch's choices about float32 products: how to read and to make it, and its value of full precision."""

    get: Callable[[], Any]
    put: Callable[[Any], None]
    full: Any

    def read(self) -> Any:
        """The value; None where another choice contradicts this one, for then torch refuses to say it."""
        try:
            return self.get()
        except RuntimeError:
            return None

    def make(self, value: Any) -> None:
        """Leaves alone what is so already, and what cannot be read."""
        if value is not None and self.read() not in (None, value):
            self.put(value)


def _choices() -> list[_Choice]:
    """All choices of this version of torch, in the order in which they are made.

    The older ones come first: they set some of the newer ones, which torch has from 2.9 on. Kernels read either.
    """
    cudnn = torch.backends.cudnn
    older = [
        _Choice(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"),
        _Choice(lambda: cudnn.allow_tf32, lambda value: setattr(cudnn, "allow_tf32", value), False),
    ]
    if not hasattr(torch.backends, "fp32_precision"):
        return older
    backends: Any = torch.backends
    of_cudnn, of_mkldnn = (backends.cudnn.conv, backends.cudnn.rnn), (backends.mkldnn.conv, backends.mkldnn.rnn)
    places = [backends.cuda.matmul, backends.mkldnn.matmul, *of_cudnn, *of_mkldnn]
    return older + [_Choice(partial(getattr, one, "fp32_precision"), partial(_put, one), "ieee") for one in places]


def _put(place: Any, value: str) -> None:
    """``value``, by way of the choice for all places where that is the same, so that it goes on to count here."""
    place.fp32_precision = "none"
    if place.fp32_precision != value:
        place.fp32_precision = value


class _Switch:
    """The choices of this process: the first user makes them, the last puts them back."""

    def __init__(self) -> None:
        self.lock, self.users = Lock(), 0
        self.choices: list[_Choice] = []
        self.before: list[Any] = []

    def on(self) -> None:
        with self.lock:
            self.users += 1
            if self.users == 1:
                self.choices = _choices()
                with warnings.catch_warnings():  # of torch about its older choices
                    warnings.simplefilter("ignore")
                    self.before = [one.read() for one in self.choices]
                    self._make([one.full for one in self.choices])

    def off(self) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0:
                self._make(self.before)

    def _make(self, values: list[Any]) -> None:
        for choice, value in zip(self.choices, values, strict=True):
            choice.make(value)


_SWITCH = _Switch()


@contextmanager
def full_precision() -> Iterator[None]:
    """Float32 products and convolutions in float32: no TF32, no bfloat16 and no autocast; put back at the end.

    ``torch.backends.cuda.matmul.allow_tf32``, ``torch.set_float32_matmul_precision``, the ``fp32_precision`` of a
    backend and ``torch.autocast`` let float32 products be made with 10 or 7 bits after the point. A reference or a
    metric made so would measure that choice. So all that is exact, and all that judges, runs in here. A method runs
    under the program's choice.

    Nests, and may be open in several threads at once: the choice is put back when the last has ended. Also a decorator.

    >>> with full_precision():
    ...     torch.get_float32_matmul_precision()
    'highest'
    """
    _SWITCH.on()
    try:
        with ExitStack() as stack:
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            yield
    finally:
        _SWITCH.off()
