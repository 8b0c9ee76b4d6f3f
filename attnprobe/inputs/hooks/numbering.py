"""The numbers of a model's layers, and of the attention calls of a forward.

A layer has the number that the model itself gives it: the ``layer_idx`` of its attention, else the number in the
module's name. So layers without attention (convolutions, Mamba, linear attention) leave gaps. Where a model runs its
modules again (ALBERT, HRM), each run is a layer, and layers are numbered in the order of the forward.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .interface import put, quiet, switched, unwrapped
from .kinds import attends

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "attnprobe_trace"
NUMBER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")  # of an item of a list, in the name of a module
TOKENS = 4  # of the forward of a trace

_traces: WeakKeyDictionary[nn.Module, Trace | None] = WeakKeyDictionary()
_tracing: ContextVar[Numbering | None] = ContextVar(NAME, default=None)


@dataclass(frozen=True)
class Place:
    """An attention call of a forward.

    Attributes:
        module: the module's qualified name; of a shared module, that of the layer which calls it.
        call: the number of this call among those of the name. layer: of the model. number: of the call in the forward.
    """

    module: str
    call: int
    layer: int
    number: int


class Numbering:
    """Numbers the attention calls of each forward of a model, while `numbered` is open.

    Attributes:
        forwards: the forwards that have begun. depth: of models that are running, one inside another.
        loops: whether a module runs again at the same place of the model. It is found by `trace`, else when it happens.
        seen: the attention calls of all forwards.
    """

    def __init__(self, model: nn.Module, loops: bool = False, ended: Callable[[], None] = lambda: None) -> None:
        self.model, self.loops, self._ended = model, loops, ended
        self.forwards = self.depth = 0
        self.seen: set[Place] = set()
        self._paths = names_of(model)
        self._first: dict[nn.Module, Place] = {}
        self._begin()

    def _begin(self) -> None:
        self._runs: dict[nn.Module, int] = {}  # of each module in this forward
        self._calls: dict[str, int] = {}
        self._last: tuple[nn.Module | None, int] = (None, 0)  # the last run with an attention call
        self._layers = self._number = 0

    def begin(self, *_: Any) -> None:
        """The model begins a forward, or a model inside it does."""
        if self.depth == 0:
            self.forwards += 1
            self._begin()
        self.depth += 1

    def end(self, *_: Any) -> None:
        """The model, or one inside it, ends a forward."""
        self.depth -= 1
        if self.depth == 0:
            self._ended()

    def run(self, module: nn.Module, *_: Any) -> None:
        """A module that calls attention begins to run."""
        self._runs[module] = self._runs.get(module, 0) + 1

    def next(self, module: nn.Module) -> Place:
        """The place of an attention call that a module makes now.

        Outside a forward it is that of the module's first call: gradient checkpointing runs modules again later.
        """
        if self.depth == 0 and module in self._first:
            return self._first[module]
        if module not in self._paths:  # a model may replace its modules in its forward
            self._paths = names_of(self.model)
        paths = self._paths.get(module) or [type(module).__name__]
        run = max(self._runs.get(module, 1), 1)
        # More runs than names: the module is not merely shared by several layers, it runs again in one.
        self.loops |= run > len(paths)
        if self._last != (module, run):
            self._last, self._layers = (module, run), self._layers + 1
        path = paths[(run - 1) % len(paths)]
        own = layer_of(path, module, shared=len(paths) > 1)
        layer = self._layers - 1 if self.loops or own is None else own
        place = Place(path, self._calls.get(path, 0), layer, self._number)
        self._calls[path], self._number = place.call + 1, place.number + 1
        self._first.setdefault(module, place)
        self.seen.add(place)
        return place


@contextmanager
def numbered(model: nn.Module, ended: Callable[[], None] = lambda: None) -> Iterator[Numbering]:
    """A context in which the attention calls of a model's forwards are numbered. `Numbering.next` must be called.

    ``ended`` is called when a forward ends.
    """
    known = trace(model)
    with _counted(Numbering(model, known is not None and known.loops, ended)) as numbering:
        yield numbering


@contextmanager
def _counted(numbering: Numbering) -> Iterator[Numbering]:
    """A context in which a numbering knows of forwards and of runs of modules."""
    hooks: list[Any] = []
    try:
        for module in numbering.model.modules():
            if module is numbering.model or hasattr(module, "set_attn_implementation"):
                hooks.append(module.register_forward_pre_hook(numbering.begin))
                hooks.append(module.register_forward_hook(numbering.end, always_call=True))
            if attends(type(module)):
                hooks.append(module.register_forward_pre_hook(numbering.run))
        yield numbering
    finally:
        for hook in hooks:
            hook.remove()


def names_of(model: nn.Module) -> dict[nn.Module, list[str]]:
    """The names of each module of a model; a shared module has several."""
    names: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(path)
    return names


def layer_of(path: str, module: nn.Module, *, shared: bool = False) -> int | None:
    """The number that a model gives the layer of an attention module; None if it gives none.

    Args:
        shared: several layers have this module, so it knows no number of its own.
    """
    own = getattr(module, "layer_idx", None)
    if isinstance(own, int) and own >= 0 and not shared:
        return own
    item = NUMBER.search(path)
    return None if item is None else int(item[1])


def attention_layers(model: nn.Module, layers: int) -> list[int]:
    """Those of the ``layers`` of a model that have attention; all if none is found, or if modules run again.

    Nothing is run, so the model may be on the device ``meta``.
    """
    found, longest = set(), 0
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.ModuleList):
            longest = max(longest, len(module))
        if attends(type(module)):
            found.add(layer_of(path, module))
    numbers = sorted(number for number in found if number is not None and number < layers)
    return numbers if numbers and longest >= layers else list(range(layers))


@dataclass(frozen=True)
class Trace:
    """The attention calls of a forward of tokens, in their order, and whether modules run again in it."""

    places: Sequence[Place]
    loops: bool

    def last(self, takes: Callable[[Place], bool]) -> int | None:
        """The number of the last call that ``takes`` selects; None if it selects none."""
        return max((place.number for place in self.places if takes(place)), default=None)


def trace(model: nn.Module) -> Trace | None:
    """The calls of a short forward of tokens, by a copy of the model; None if the model does not read tokens alone."""
    if model not in _traces:
        _traces[model] = _traced(model)
    return _traces[model]


def _traced(model: Any) -> Trace | None:
    if getattr(model, "main_input_name", None) != "input_ids":
        return None
    inputs: dict[str, Any] = {"input_ids": torch.zeros(1, TOKENS, dtype=torch.int64, device=model.device)}
    if "use_cache" in inspect.signature(model.forward).parameters:
        inputs["use_cache"] = False
    put(NAME, _attention)
    try:
        copied = bare_copy(model)
        numbering = _read(copied, inputs, loops=False)
        if numbering.loops:
            numbering = _read(copied, inputs, loops=True)
    except Exception:  # a model may have a part that cannot be copied, not use the interface, or not read such a text
        return None
    return Trace(sorted(numbering.seen, key=lambda place: place.number), numbering.loops)


def _read(model: PreTrainedModel, inputs: Mapping[str, Any], *, loops: bool) -> Numbering:
    """The numbering of a forward in which attention gives 0."""
    with quiet(), torch.no_grad(), switched(model, NAME), _counted(Numbering(model, loops)) as numbering:
        token = _tracing.set(numbering)
        try:
            model(**inputs)
        finally:
            _tracing.reset(token)
    return numbering


def _attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """The attention function of a trace."""
    numbering = _tracing.get()
    assert numbering is not None
    numbering.next(module)
    b, h, n, _p = query.shape
    return query.new_zeros(b, n, h, value.shape[-1]), None


def bare_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model with the same weights and without its hooks. A forward can change the state of a model."""
    copied = deepcopy(model, {id(weight): weight for weight in model.parameters()}).eval()
    for module in copied.modules():
        unwrapped(module)
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    return copied
