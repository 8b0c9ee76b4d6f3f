"""transformers' attention interface: register a function, switch a model to it and back, name and describe its calls.

transformers ≥ 5 passes every attention call to a registered function, after RoPE and the norms of q and k, before heads
are repeated. A mask function must be registered under the same name; without it masks are silently ignored.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ...errors import SourceError, UsageError
from ...grammar.lists import counted, numbers
from ...operators.blocks import reach
from .call import AttentionCall, rows_of
from .kinds import NAMED, calls_attention, computes_attention
from .masks import Added, Pattern, added, cleared, lowest, pattern_of, split_mask
from .products import NotSoftmax, Seen, Watch
from .standins import EXACT, Exact
from .weightless import HIDDEN, but_itself, hide_weightless, of_keys

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .numbering import Place

_functions: dict[str, Callable[..., tuple[Tensor, None]]] = {}  # that were put, by name
_refused: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()  # why code of a module's own is no softmax attention
NUMBERS = re.compile(r"\s*\d+(\s*-\s*\d+)?\s*")
CROSS = re.compile(r"cross|encoder_attn|encdec", re.IGNORECASE)  # in the name of a class or of a module
STATES = re.compile(r"(encoder_hidden|key_value|cross_attention)_states|memory|context")  # of other tokens: arguments


def put(name: str, function: Callable[..., tuple[Tensor, None]]) -> None:
    """Register ``function`` under ``name``, with the mask function of eager attention."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    _functions[name] = function
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, eager_mask)


@contextmanager
def switched(model: PreTrainedModel, name: str, called: str | None = None) -> Iterator[Callable[[nn.Module], str]]:
    """A context in which the function that is registered as ``name`` gets a model's attention calls.

    Modules that compute softmax attention by code of their own call it too, with ``computed``, see `Computed`. The
    context gives the name of a module's own implementation. ``called`` is the model's name in messages.

    Raises:
        SourceError: the model has no attention of either kind.
    """
    before = {id(config): (config, config._attn_implementation) for config in _configurations(model)}
    kinds = {type(module) for module in model.modules()}
    by_code = any(map(computes_attention, kinds))
    if any(map(calls_attention, kinds)) or not by_code:
        if not hasattr(model, "set_attn_implementation"):  # no model of transformers
            raise bypassed(model, called)
        with quiet():
            try:
                model.set_attn_implementation(name)
            except ValueError as error:  # the model accepts only implementations of its own
                _restore(before)
                raise bypassed(model, called) from error
    try:
        if not by_code and model.config._attn_implementation != name:
            raise bypassed(model, called)

        def own(module: nn.Module) -> str:
            configs = (getattr(of, "config", None) for of in (module, model))
            return next((before[id(config)][1] for config in configs if id(config) in before), "")

        with _by_code(model, _functions[name]) if by_code else nullcontext():
            yield own
    finally:
        _restore(before)


@contextmanager
def _by_code(model: nn.Module, function: Callable[..., tuple[Tensor, None]]) -> Iterator[None]:
    """A context in which modules with attention of their own code call a function.

    A module around them may replace them in its forward, as BigBird's does for short texts.
    """
    wrapped: list[nn.Module] = []

    def wrap(module: nn.Module) -> None:
        if module in wrapped or not NAMED.search(type(module).__name__) or calls_attention(type(module)):
            return
        own, computes = module.forward, computes_attention(type(module))

        @wraps(own)
        def forward(*args: Any, **kwargs: Any) -> Any:
            if computes:
                return _of_code(module, own, function, args, kwargs)
            # In the forward, not before: a module may build or replace its inner modules when it runs.
            for inner in module.modules():
                wrap(inner)
            return own(*args, **kwargs)

        forward.around = vars(module).get("forward")  # type: ignore[attr-defined]
        module.forward = forward
        wrapped.append(module)

    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # torch's encoder layers would not call their attention
    try:
        for module in list(model.modules()):
            wrap(module)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module in wrapped:
            unwrapped(module)


def unwrapped(module: nn.Module) -> None:
    """Give a module the forward back that it had before its attention was watched."""
    around = getattr(vars(module).get("forward"), "around", module)
    if around is module:  # it is not watched
        return
    del module.forward
    if around is not None:
        module.forward = around


def _of_code(
    module: nn.Module,
    own: Callable[..., Any],
    function: Callable[..., tuple[Tensor, None]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """The result of a module's forward, in which ``function`` computes its softmax attention."""

    arguments = signature(own).bind_partial(*args, **kwargs).arguments
    cross = any(STATES.search(name) and isinstance(x, Tensor) for name, x in arguments.items())
    if isinstance(module, nn.MultiheadAttention):
        more = module.bias_k is not None or module.add_zero_attn  # a key beside those of the tokens
        cross = more or not _same_tokens(arguments["query"], arguments["key"])

    def attend(seen: Seen, own: Tensor | None = None) -> Tensor:
        computed = Computed(seen.output, seen.coarse, own, cross)
        return function(module, seen.q, seen.k, seen.v, seen.mask, scaling=seen.scale, computed=computed)[0]

    exact = EXACT.get(type(module).__name__)
    if exact is not None:
        return _beside(module, exact, own, attend, args, kwargs)
    with Watch(module, attend) as watch:
        result = own(*args, **kwargs)
    if (why := watch.why()) is not None:
        _refused[module] = why
        if watch.found:  # what was seen is only a part of what it computes
            raise SourceError(f"{type(module).__name__} computes attention by code of its own, and {why}")
    return result


def _same_tokens(x: Tensor, y: Tensor) -> bool:
    """Whether two hidden states are one tensor, or the same part of one."""
    return (x.data_ptr(), x.shape, x.stride()) == (y.data_ptr(), y.shape, y.stride())


def _beside(
    module: nn.Module,
    exact: Exact,
    own: Callable[..., Any],
    attend: Callable[[Seen, Tensor], Tensor],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """The result of a module that stands for exact attention, which it computes once more for ``attend``."""
    result = own(*args, **kwargs)
    output: Tensor = result[0]  # (b, n, h·p_v)
    answers: list[Tensor] = []

    def answer(seen: Seen) -> Tensor:
        answers.append(attend(seen, output.unflatten(-1, seen.output.shape[2:])))
        return seen.output

    try:
        run = exact(module, own, args, kwargs, output)
    except NotSoftmax as why:
        _refused[module] = str(why)
        return result
    with Watch(module, answer):
        run()
    changed = answers[0].flatten(2).to(output)
    if hasattr(result, "_replace"):  # a named tuple
        return result._replace(**{result._fields[0]: changed})
    return (changed, *result[1:])


def bypassed(model: PreTrainedModel, called: str | None = None) -> SourceError:
    """The error for a model whose attention does not use the interface."""
    names = sorted({type(module).__name__ for _, module in bypassing(model, ())})
    whys = [_refused[module] for module in model.modules() if module in _refused]
    why = f"and {whys[0]}" if whys else "in which no softmax of Q Kᵀ was seen"
    return SourceError(
        f"{called or type(model).__name__} bypasses transformers' attention interface ({type(model).__name__} made no "
        f"call): {', '.join(names) or 'its attention'} is computed by code of its own, {why}"
    )


def why_refused(module: nn.Module) -> str:
    """Why a module with attention in its name has no call."""
    return _refused.get(module, "made no call through the interface, and no softmax of Q Kᵀ was seen in it")


def bypassing(model: nn.Module, called: Iterable[str]) -> list[tuple[str, nn.Module]]:
    """The innermost modules whose class is named Attention and that are not among ``called``, with their names."""
    called = set(called)
    named = {path: module for path, module in model.named_modules() if "Attention" in type(module).__name__}
    outer = {path[: match.start()] for path in [*named, *called] for match in re.finditer(r"\.", path)}

    def inside(path: str) -> bool:
        return any(path.startswith(f"{other}.") for other in called)

    return [(path, module) for path, module in named.items() if path not in called | outer and not inside(path)]


def eager_of(module: nn.Module) -> Callable[..., tuple[Tensor, Any]]:
    """The eager attention function of the file that defines a module."""
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        raise SourceError(
            f"{type(module).__name__}: {type(module).__module__} has no eager attention to compare with: not supported"
        )
    return eager


def is_cross(module: nn.Module, path: str, n_q: int, n_k: int, causal: bool) -> bool:
    """Whether a call is cross attention, so that a padded key is not a padded query.

    The module's ``is_cross_attention``, its class or its name decides. Non-causal attention of a decoder is cross
    attention too. Causal attention with fewer queries than keys has new tokens after a cache.
    """
    if getattr(module, "is_cross_attention", False) or CROSS.search(f"{type(module).__name__} {path}"):
        return True
    if causal or getattr(module, "is_causal", False):
        return False
    return n_q != n_k or bool(getattr(module, "is_decoder", False))


class Selection:
    """A selection of attention calls: ``all``, the numbers of layers in the model, or patterns of module names.

    >>> selection = Selection("0-1, decoder.*")
    >>> selection.takes(1, "encoder.0"), selection.takes(2, "encoder.1"), selection.takes(9, "decoder.5.self_attn")
    (True, False, True)
    """

    def __init__(self, layers: str | int | Iterable[str | int] | None = None) -> None:
        layers = "all" if layers is None else layers
        self.everything = layers == "all"
        self.numbers: set[int] = set()
        self.patterns: list[str] = []
        if self.everything:
            return
        parts = [layers] if isinstance(layers, int) else layers.split(",") if isinstance(layers, str) else layers
        for part in parts:
            if isinstance(part, str) and not NUMBERS.fullmatch(part):
                self.patterns.append(part.strip())
            else:
                self.numbers |= set(numbers(str(part), "layer"))
        if not self.numbers and not any(self.patterns):
            raise UsageError("layer: name at least one")

    def takes(self, layer: int, path: str) -> bool:
        """Whether a call of the layer ``layer``, of the module at ``path``, is selected."""
        return self.everything or layer in self.numbers or any(fnmatchcase(path, p) for p in self.patterns)

    def missing(self, seen: Iterable[tuple[int, str]]) -> str | None:
        """Which selected number or pattern matches no call; None if all do.

        Args:
            seen: the layers and the names of the modules of calls.
        """
        seen = set(seen)
        layers = {layer for layer, _ in seen}
        absent = [f"layer {number}" for number in sorted(self.numbers - layers)]
        absent += [f"'{p}'" for p in self.patterns if not any(fnmatchcase(path, p) for _, path in seen)]
        if not absent:
            return None
        return f"{absent[0]} was never reached; attention was called in {counted('layer', sorted(layers))}"


@contextmanager
def quiet() -> Iterator[None]:
    """A context in which transformers writes no log lines, progress bars and warnings."""
    import warnings
    from logging import CRITICAL

    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _configurations(model: PreTrainedModel) -> Iterator[Any]:
    """Every configuration in a model that states an attention implementation."""
    waiting: list[Any] = [
        module.config for module in model.modules() if hasattr(getattr(module, "config", None), "sub_configs")
    ]
    while waiting:
        config = waiting.pop()
        yield config
        waiting += [inner for key in config.sub_configs if (inner := getattr(config, key, None)) is not None]


def _restore(before: dict[int, tuple[Any, Any]]) -> None:
    for config, name in before.values():
        config._attn_implementation_internal = name


def call_of(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    extras: Mapping[str, Any],
    place: Place,
    masks: Masks | None = None,
) -> AttentionCall:
    """The attention call that transformers hands over, not yet verified.

    Args:
        mask: the numbers of `Masks.added`, which are added to the scores. masks: those of the forward.
    """
    path = place.module
    n_q, n_k = query.shape[2], key.shape[2]
    computed: Computed | None = extras.get("computed")
    stated = is_cross(module, path, n_q, n_k, causal=True)  # as far as the module itself says
    stated = stated if computed is None else computed.cross
    visible, bias, pattern = (Masks() if masks is None or "computed" in extras else masks).split(
        mask, (len(query), n_q, n_k), stated
    )
    position, softcap = extras.get("position_bias"), extras.get("softcap")
    if position is not None:
        bias = position if bias is None else bias + position
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    if bias is not None:
        visible, pattern, bias = _hidden_or_biased(visible, pattern, bias, (query, key, scale, softcap), stated)
    sinks = extras.get("s_aux")
    sinks = getattr(module, "sinks", None) if sinks is None else sinks
    sinks = None if sinks is None else sinks.clone()  # a parameter moves with its model, and training changes it
    return AttentionCall(
        path,
        place.call,
        place.number,
        type(module).__name__,
        query,
        key,
        value,
        scale,
        visible,
        bias,
        softcap,
        sinks,
        pattern,
        is_cross(module, path, n_q, n_k, pattern.causal or pattern.band) if computed is None else computed.cross,
        extras.get("sliding_window"),
        own=None if computed is None else computed.own,
        captured="interface" if computed is None else "code" if computed.own is None else "exact form",
        layer=place.layer,
    )


def _hidden_or_biased(
    visible: Tensor | None, pattern: Pattern, bias: Tensor, scores: tuple[Tensor, Tensor, float, Any], cross: bool
) -> tuple[Tensor | None, Pattern, Tensor | None]:
    """What each query sees, its pattern, and the bias, of keys if it can be; keys without weight are hidden.

    ALiBi leaves the first keys of a long text no weight in some heads. They are not hidden, because no pattern is then
    that of all heads.

    Args:
        scores: Q, K, the scale and the cap.
    """
    seen, rest = hide_weightless(visible, bias, *scores)
    found = pattern if seen is visible else pattern_of(seen, cross)
    if pattern.regular and not found.regular:
        keys = of_keys(bias, visible)
        if keys is not None and keys.shape[2] == 1 and float(keys.abs().amax()) < HIDDEN:
            return visible, pattern, keys
    seen, found, rest = but_itself(seen, found, rest, scores[0].dtype)
    return seen, found, None if rest is None else of_keys(rest, seen)


@dataclass
class Masks:
    """The masks of a forward, each read once, because models pass one tensor to all layers.

    Attributes:
        implementation: the name of a module's own implementation of attention, by which a bool mask is read.
    """

    implementation: Callable[[nn.Module], str] = lambda module: ""
    _added: dict[tuple[int, str, torch.dtype], tuple[Tensor, Added]] = field(default_factory=dict)
    _split: dict[tuple[int, bool], tuple[Tensor | None, Tensor | None, Tensor | None, Pattern]] = field(
        default_factory=dict
    )

    def added(self, module: nn.Module, mask: Tensor | None, dtype: torch.dtype) -> Added:
        """The mask that a module gets, in numbers, see `attnprobe.inputs.hooks.masks.added`."""
        if mask is None:
            return Added(mask)
        own = self.implementation(module)
        if (id(mask), own, dtype) not in self._added:
            self._added[id(mask), own, dtype] = mask, added(mask, own, dtype)  # a reference keeps the id unique
        return self._added[id(mask), own, dtype][1]

    def own(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scaling: float | None,
        dropout: float,
        extras: Mapping[str, Any],
    ) -> OwnAttention | Computed:
        """The own attention of a call, as transformers hands it over, or as the module's own code computed it."""
        if (computed := extras.get("computed")) is not None:
            return replace(computed, mask=Added(mask))
        found, own = self.added(module, mask, query.dtype), self.implementation(module)
        return OwnAttention(module, query, key, value, found, scaling, dropout, extras, own)

    def split(
        self, mask: Tensor | None, sizes: tuple[int, int, int], cross: bool
    ) -> tuple[Tensor | None, Tensor | None, Pattern]:
        """The visible keys, the bias and the pattern of a mask in numbers, see `split_mask` and `pattern_of`."""
        if (id(mask), cross) not in self._split:
            visible, bias = split_mask(mask, sizes)
            self._split[id(mask), cross] = mask, visible, bias, pattern_of(visible, cross)
        return self._split[id(mask), cross][1:]


class _Rows:
    """A module's own attention of one call, by query rows."""

    def __call__(self, index: slice | Tensor) -> Tensor:
        """The output of some query rows, (b, rows, h, p_v)."""
        raise NotImplementedError

    def where_blind(self, call: AttentionCall, output: Tensor) -> Tensor:
        """A method's output (b, n_q, h, p_v) of the call, with this output for queries that see no key.

        What they get is no approximation: a finite mask leaves them a mean of all values, a bool mask zeros. Queries
        that are padding keep the method's output, which no other token reads.
        """
        if call.visible is None or call.pattern.regular:
            return output
        blind = ~call.visible.any(-1)  # (b, 1 or h, n_q)
        rows = blind.any(0).any(0).nonzero()[:, 0]
        if not len(rows):
            return output
        chosen = blind[:, :, rows].transpose(1, 2)[..., None]
        return output.index_copy(1, rows, torch.where(chosen, self(rows), output[:, rows]))


@dataclass(frozen=True)
class Computed(_Rows):
    """What a module's own code computed in a call.

    Attributes:
        output: softmax attention, (b, n_q, h, p_v). coarse: whether its softmax was in float32 beside float64 values.
        own: what it computes in place of softmax attention, (b, n_q, h, p_v); None if it computes that.
        cross: whether it was given hidden states for its keys.
        mask: what the code adds to the scores.
    """

    output: Tensor
    coarse: bool = False
    own: Tensor | None = None
    cross: bool = False
    mask: Added = Added(None)

    def __call__(self, index: slice | Tensor) -> Tensor:
        return (self.output if self.own is None else self.own)[:, index]


@dataclass(frozen=True)
class OwnAttention(_Rows):
    """A module's own attention of one call, by query rows.

    It is eager attention. If all numbers of a query's mask are negative, their size decides which scores are lost in
    rounding, and so does the implementation: such a query has the module's own one, as far as it is torch's.

    Attributes:
        query: (b, h, n_q, p). key, value: (b, h_kv, n_k, ·). mask: that of `Masks.added`. scaling, dropout, extras: as
            transformers passes them. implementation: the name of the module's own.
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Added
    scaling: float | None
    dropout: float
    extras: Mapping[str, Any]
    implementation: str

    def __call__(self, index: slice | Tensor) -> Tensor:
        """The output of some query rows, (b, rows, h, p_v)."""
        numbers, empty = self.mask
        n_q, n_k = self.query.shape[2], self.key.shape[2]
        end = _end(numbers, n_q, n_k, index)

        def cut(x: Any) -> Any:
            """The query rows and first keys of a tensor shaped like scores; anything else unchanged."""
            scores = isinstance(x, Tensor) and x.dim() >= 2 and x.shape[-2:] == (n_q, n_k)
            return x[..., index, :end] if scores else x

        extras = {name: cut(extra) for name, extra in self.extras.items()}
        shown = cut(numbers)
        arguments = (self.module, self.query[:, :, index], self.key[:, :, :end], self.value[:, :, :end], shown)
        options = {"scaling": self.scaling, "dropout": self.dropout, **extras}
        output = eager_of(self.module)(*arguments, **options)[0]
        if shown is not None and self.implementation == "sdpa":
            low = shown.amax(-1, keepdim=True) < 0  # (b, 1 or h, rows or 1, 1)
            if bool(low.any()):
                from transformers.integrations.sdpa_attention import sdpa_attention_forward

                output = torch.where(low.transpose(1, 2), sdpa_attention_forward(*arguments, **options)[0], output)
        return cleared(output, rows_of(empty, index))

    @property
    def coarse(self) -> bool:
        """Whether its softmax is in float32 for every dtype, as that of Llama and others."""
        return _softmax_in_float32(eager_of(self.module))


@cache
def _softmax_in_float32(eager: Callable[..., Any]) -> bool:
    return re.search(r"softmax\(.*dtype=torch\.float32", inspect.getsource(eager)) is not None


def _end(mask: Tensor | None, n_q: int, n_k: int, index: slice | Tensor) -> int:
    """The number of first keys that the query rows need: a mask that lets each see itself hides all later ones.

    It is a `reach`, so sums over fewer keys add the same numbers in the same order.
    """
    if mask is None or mask.dim() != 4 or mask.shape[-2:] != (n_q, n_k) or n_q != n_k:
        return n_k
    last = index.stop if isinstance(index, slice) else 1 + max(index.tolist(), default=n_k - 1)
    end = reach(last - 1, n_k)
    later, own = mask[..., index, end:], mask.diagonal(dim1=-2, dim2=-1)[..., index]
    causal = bool((later <= lowest(mask.dtype)).all()) and bool((own == 0).all())
    return end if causal else n_k
