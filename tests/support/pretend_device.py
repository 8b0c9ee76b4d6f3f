"""A device that is not the CPU, pretended, so that a machine without an accelerator notices a mixture of devices.

A `Pretended` tensor says that it lives on ``meta`` and holds its numbers in an ordinary tensor. Inside `pretending`
every operation computes on those numbers, and what is made on that device is pretended too. As on an accelerator, an
operation on tensors of both devices is an error, unless the one on the CPU is a scalar or an index of another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

AWAY = torch.device("meta")
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default)


class Pretended(torch.Tensor):
    """``held``, said to be on another device."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Pretended:
        facts = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=AWAY, **facts)

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    def tolist(self) -> list:
        return self.held.tolist()

    def __getitem__(self, index):
        if isinstance(index, list):  # of which torch would make a true tensor on AWAY, without numbers
            index = torch.tensor(index, device="cpu").to(AWAY)
        return super().__getitem__(index)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


class _Making(TorchFunctionMode):
    """What makes a tensor of Python's numbers: torch would make a true one on AWAY, without numbers."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.tensor and kwargs.get("device") is not None and torch.device(kwargs["device"]) == AWAY:
            return func(*args, **{**kwargs, "device": "cpu"}).to(AWAY)
        if func is torch.Tensor.new_tensor and isinstance(args[0], Pretended):
            return args[0].held.new_tensor(*args[1:], **kwargs).to(AWAY)
        return func(*args, **kwargs)


class pretending(TorchDispatchMode):  # noqa: N801  (a context)
    """The context in which tensors may be made on the pretended device."""

    def __enter__(self):
        self.making = _Making()
        self.making.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.making.__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


def _run(func, args, kwargs):
    tensors = [*tensors_of(args), *tensors_of(kwargs.values())]
    away = [x for x in tensors if isinstance(x, Pretended)]
    assert all(isinstance(x, Pretended) or x.device != AWAY for x in tensors), f"{func}: a tensor without numbers"
    here = [x for x in tensors if not isinstance(x, Pretended) and x.dim() > 0]
    if away and here and func not in COPIES and not (func in INDEXING and isinstance(args[0], Pretended)):
        raise RuntimeError(f"{func}: tensors on the CPU {[tuple(x.shape) for x in here]} meet tensors on {AWAY}")
    expected = kwargs.get("device")
    if expected is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    goes = bool(away) if expected is None else torch.device(expected) == AWAY
    if func is torch.ops.aten.copy_.default:
        goes = isinstance(args[0], Pretended)

    def held(x):
        return x.held if isinstance(x, Pretended) else x

    out = func(*mapped(held, args), **{name: mapped(held, value) for name, value in kwargs.items()})
    if not goes:
        return out
    wrapped = mapped(lambda x: Pretended(x) if isinstance(x, torch.Tensor) else x, out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if _aliases(func) else wrapped


@cache
def _aliases(func: torch._ops.OpOverload) -> bool:
    """Whether a result is a view of an argument, or the argument itself."""
    return any(value.alias_info is not None for value in (*func._schema.arguments, *func._schema.returns))


def tensors_of(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among the arguments or results of an operation; of its lists, too."""
    for x in values:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from tensors_of(x)


def mapped(function: Callable[[Any], Any], x: Any) -> Any:
    """The arguments or results of an operation with a function of each; torch's own for any tree is slow."""
    return type(x)(mapped(function, item) for item in x) if type(x) in (list, tuple) else function(x)
