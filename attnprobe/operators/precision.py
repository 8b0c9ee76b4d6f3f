"""Full precision of float32 products, and sums in one order, independent of the program's settings.

And such products on a CPU, by the faster of torch's two libraries.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from ..machine.processor import is_intel


@dataclass(frozen=True)
class _Choice:
    """One of torch's settings: how to read and to set it, and its value in a context of this module."""

    get: Callable[[], Any]
    put: Callable[[Any], None]
    setting: Any

    def read(self) -> Any:
        """The value; None if another setting contradicts this one, because torch then refuses to read it."""
        try:
            return self.get()
        except RuntimeError:
            return None

    def make(self, value: Any) -> None:
        """Sets the value unless it is set already or cannot be read."""
        if value is not None and self.read() not in (None, value):
            self.put(value)


def _precision() -> list[_Choice]:
    """All settings of this version of torch about float32 products, in the order in which they are set.

    The older ones come first, because they set some of the newer ones, which torch has from 2.9 on. Kernels read both.
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
    """Set ``value`` at one place. If the setting of all places has that value already, the place inherits it."""
    place.fp32_precision = "none"
    if place.fp32_precision != value:
        place.fp32_precision = value


def _order() -> list[_Choice]:
    """The setting about sums. It only warns, because other operations of a context may have no ordered form."""

    deterministic: Any = torch.utils.deterministic  # a module that changes its own class when it is imported

    def get() -> tuple[bool, bool, bool]:
        enabled, warns = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        return enabled, warns, deterministic.fill_uninitialized_memory

    def put(value: tuple[bool, bool, bool]) -> None:
        torch.use_deterministic_algorithms(value[0], warn_only=value[1])
        deterministic.fill_uninitialized_memory = value[2]

    return [_Choice(get, put, (True, True, False))]


class _Switch:
    """Settings of this process: the first user sets them, the last one restores them."""

    def __init__(self, choices: list[_Choice]) -> None:
        self.choices, self.lock, self.users = choices, Lock(), 0
        self.before: list[Any] = []

    def on(self) -> None:
        with self.lock:
            self.users += 1
            if self.users == 1:
                with warnings.catch_warnings():  # of torch about its older settings
                    warnings.simplefilter("ignore")
                    self.before = self.read()
                    wanted = [one.setting for one in self.choices]
                    if self.before != wanted:  # `make` reads each setting again, as long as a small product
                        self.make(wanted)

    def off(self) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0:
                self.make(self.before)

    def read(self) -> list[Any]:
        """The values of all choices, in their order."""
        return [one.read() for one in self.choices]

    def make(self, values: list[Any]) -> None:
        """Sets all choices to the values of `read`."""
        for choice, value in zip(self.choices, values, strict=True):
            choice.make(value)


PRECISION, _ORDER = _Switch(_precision()), _Switch(_order())


@contextmanager
def full_precision() -> Iterator[None]:
    """A context in which float32 products and convolutions are computed in float32: no TF32, bfloat16 or autocast.

    ``torch.backends.cuda.matmul.allow_tf32``, ``torch.set_float32_matmul_precision``, the ``fp32_precision`` of a
    backend and ``torch.autocast`` allow float32 products with 10 or 7 bits after the point. A reference or a metric
    with such products would measure that setting. So all references and metrics run inside this context. Methods run
    with the program's settings.

    It may be nested, and open in several threads at once. The settings are restored when the last one ends. It is a
    decorator too.

    >>> with full_precision():
    ...     torch.get_float32_matmul_precision()
    'highest'
    """
    PRECISION.on()
    try:
        with ExitStack() as stack:
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            yield
    finally:
        PRECISION.off()


@contextmanager
def ordered_sums(device: torch.device) -> Iterator[None]:
    """A context in which sums of scattered terms are added in the same order in every run.

    On a GPU ``index_add`` and ``scatter_add`` add terms in the order in which threads arrive, so the last digits change
    from run to run. Inside this context torch sorts the terms first. On a CPU the order is always the same.
    """
    if device.type != "cuda":
        yield
        return
    _ORDER.on()
    try:
        yield
    finally:
        _ORDER.off()


ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None)  # ``a bᵀ``; it is not part of torch's interface
LEAST = 2**20  # multiply-adds; below, the call of oneDNN costs more than it saves


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """``a @ b`` of a (g, m, k) and b (g, k, n), as (g, m, n). It may use the memory of ``out``, of the same shape.

    On a CPU torch computes float32 products by MKL, which is the fastest on Intel's processors, and uses half of the
    width of AVX-512 on others. There oneDNN computes large products head by head, and uses its whole width. Both round
    to float32 after each multiply-add; only the order of the sums differs.
    """
    if not _is_wide(a, b):
        return torch.matmul(a, b, out=out)
    if len(a) == 1:
        return _by_onednn(a[0], b[0])[None]
    if out is None:
        out = a.new_empty(len(a), a.shape[1], b.shape[2])
    for head, (of_a, of_b) in enumerate(zip(a, b, strict=True)):
        out[head] = _by_onednn(of_a, of_b)
    return out


def _by_onednn(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of two float32 matrices; with other strides oneDNN would take hundreds of times as long."""
    if not b.is_contiguous() and not b.mT.is_contiguous():
        b = b.contiguous()
    assert ONEDNN is not None  # `_onednn` has found it
    return ONEDNN(a, b.mT, None, "none", [], "")


def _is_wide(a: Tensor, b: Tensor) -> bool:
    """Whether oneDNN computes a product: large in each head, float32, without gradients, where `_onednn` has it."""
    if a.dtype != torch.float32 or b.dtype != torch.float32 or a.device.type != "cpu":
        return False
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return False
    return a.shape[1] * a.shape[2] * b.shape[2] >= LEAST and _onednn()


@cache
def _onednn() -> bool:
    """Whether this processor has AVX-512 and is not Intel's, and this torch has oneDNN's product."""
    if (
        ONEDNN is None
        or is_intel()
        or not torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        or not torch.backends.mkldnn.is_available()
    ):
        return False
    one = torch.ones(1, 1)
    try:
        return bool(_by_onednn(one, one) == one)
    except (AttributeError, RuntimeError, TypeError):
        return False
