"""Replaces the attention of a model by a method: ``injected`` for a block, ``register_attention`` by name.

transformers passes every attention call with its mask to a function (see `attnprobe.inputs.hooks.interface`). Here this
function is a `Replacement`, which says what calls a method can take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch  # noqa: F401  (in the examples)
from torch import Tensor, nn

from ..errors import SourceError, UsageError
from ..grammar.arguments import checked
from ..inputs.hooks.call import AttentionCall
from ..inputs.hooks.interface import Masks, Selection, bypassed, call_of, put, switched
from ..inputs.hooks.numbering import Numbering, Place, layer_of, numbered
from ..inputs.hooks.rope import Rope, rope_of, ropes
from ..methods import Method, get
from ..rounding import Arithmetic
from .replacement import Budget, Replacement

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "attnprobe_injected"

# by module: transformers hands the attention function its module and not the model
_injections: WeakKeyDictionary[nn.Module, _Injection] = WeakKeyDictionary()


@dataclass(eq=False)
class _Injection:
    """The injection into one model, and the masks of the current forward."""

    replacement: Callable[[AttentionCall], Tensor | None]
    selection: Selection
    ropes: Mapping[str, Rope]
    numbering: Numbering = field(init=False)
    implementation: Callable[[nn.Module], str] = field(init=False)
    masks: Masks | None = None

    def masks_now(self) -> Masks:
        """The masks of the current forward; outside a forward a call has its own."""
        # a module called alone begins no forward that would clear shared masks
        if not self.numbering.depth:
            return Masks(self.implementation)
        self.masks = self.masks or Masks(self.implementation)
        return self.masks

    def forget(self) -> None:
        """A forward has ended."""
        self.masks = None


@checked(model=nn.Module)
@contextmanager
def injected(
    model: PreTrainedModel,
    method: str | Method | Callable[..., Any],
    d: Budget = None,
    *,
    layer: str | int | Iterable[str | int] = "all",
    seed: int = 0,
    target: str = "softmax",
    arithmetic: str | None = None,
    **options: Any,
) -> Iterator[PreTrainedModel]:
    """Inside the block ``model`` computes its attention by a method. Afterwards it uses its own attention again.

    Every row of a batch is approximated separately on its valid tokens. Draws depend on ``seed``, the layer and the
    head, so a row gives the same result alone, in a batch, and in every forward. Different texts share these draws: for
    a mean over texts give each its own seed. Outputs at padded tokens are 0 before the output projection. A query that
    sees no key, whose own key others see, gets what the model gives it. Half precision is computed in float32. Calls
    that are not selected use the model's own eager attention. Gradients flow to Q, K and V. Attention dropout is left
    out. During generation with a cache of keys the queries are the last tokens: methods without the tag ``decodes``,
    whose rows depend on the number of keys, refuse them and need ``use_cache=False``.

    Args:
        model: any model whose attention `attnprobe.capture` takes.
        method, d, seed, target, options: as in `approximate`. ``d`` may also map a layer or a (layer, head) to its
            budget. Heads of equal budget run together, and None keeps exact attention.
        layer: the layers of the model: ``"all"`` with attention, numbers and ranges (``"0-5"``, ``[0, 3]``) or
            patterns of module names (``"decoder.*.encoder_attn"``). A number means every attention call of the layer,
            in encoder-decoders those of both.
        arithmetic: the arithmetic in which the method runs, emulated and without gradients: a format such as
            ``bf16``, or ``bf16:autocast`` (see `attnprobe.rounding_errors`). ``float64`` rounds nothing.

    Raises:
        SourceError: the model has no softmax attention.
        UsageError: an unknown method or option, a second injection, or a layer that no forward in the block reached.
        Unsupported: in a forward, the method cannot take the call, for example a causal mask without a causal form, or
            a budget above the tokens of a row. The message names the module.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(
    ...     BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, initializer_range=0.5)
    ... ).eval()
    >>> ids = torch.arange(6)[None]
    >>> own = model(ids).last_hidden_state
    >>> with injected(model, "softmax"):
    ...     exact = model(ids).last_hidden_state
    >>> with injected(model, "skyformer", d=4, layer="1"):
    ...     rough = model(ids).last_hidden_state
    >>> bool((exact - own).abs().max() < 1e-5), bool((rough - own).abs().max() > 1e-5)
    (True, True)
    """
    computed = None if arithmetic is None else Arithmetic.read(arithmetic)
    with attention_by(model, Replacement(get(method), d, seed, target, options, arithmetic=computed), layer):
        yield model


@contextmanager
def attention_by(
    model: PreTrainedModel,
    function: Callable[[AttentionCall], Tensor | None],
    layer: str | int | Iterable[str | int] = "all",
) -> Iterator[None]:
    """Inside the block the selected attention calls of ``model`` are computed by a function, as in `injected`.

    Args:
        function: from a call to its output, (b, n_q, h, p_v); None leaves the call to the model.
    """
    # models that share a module (tied encoders) must not be injected twice either
    modules = list(model.modules())
    if any(module in _injections for module in modules):
        raise UsageError(f"{type(model).__name__} has a method injected already; leave that block first")
    injection = _Injection(function, Selection(layer), ropes(model))
    put(NAME, _injected_attention)
    try:
        with (
            numbered(model, injection.forget) as injection.numbering,
            switched(model, NAME) as injection.implementation,
        ):
            for module in modules:
                _injections[module] = injection
            yield
    finally:
        for module in modules:
            _injections.pop(module, None)
    # a block without a forward selects nothing wrongly; only a forward that reached no selected layer does
    if injection.numbering.forwards == 0:
        return
    seen = injection.numbering.seen
    # checked at the end of the block, because only a forward shows which layers call the function
    if not seen:
        raise bypassed(model)
    if missing := injection.selection.missing((place.layer, place.module) for place in seen):
        raise UsageError(f"{type(model).__name__}: {missing}")


@checked()
def register_attention(
    method: str | Method | Callable[..., Any],
    d: Budget = None,
    *,
    seed: int = 0,
    target: str = "softmax",
    name: str | None = None,
    **options: Any,
) -> str:
    """Register a method with transformers, and return the name for ``model.set_attn_implementation``.

    It acts like `injected` in every layer. The model keeps the method, for example in training. Draws depend on the
    module's ``layer_idx`` (0 if it has none). The model has no own implementation beside it, so a mask is read as by
    eager attention: some models take its softmax in float32, also in a model in float64.

    A model whose attention is code of its own takes no name: ``set_attn_implementation`` then logs a warning and
    changes nothing. `injected` replaces the attention of such a model.

    Args:
        method, d, seed, target, options: as in `injected`.
        name: ``attnprobe-METHOD`` by default. A second registration of a name replaces the first.

    Raises:
        UsageError: an unknown method or option, or a missing budget.

    >>> register_attention("skyformer", d=4)
    'attnprobe-skyformer'
    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2))
    >>> model.set_attn_implementation("attnprobe-skyformer")
    >>> model(torch.arange(6)[None]).last_hidden_state.shape
    torch.Size([1, 6, 8])
    """
    replacement = Replacement(get(method), d, seed, target, options)
    name = f"attnprobe-{replacement.method.name}" if name is None else name
    put(name, partial(_registered_attention, replacement))
    return name


def _injected_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,  # by its place, where kvpress has wrapped this function
    scaling: float | None = None,
    **extras: Any,
) -> tuple[Tensor, None]:
    """The attention function inside `injected`."""
    injection = _injections.get(module)
    if injection is None:  # another model shares the configuration and so the name of this function
        raise SourceError(f"{type(module).__name__} has no method injected: leave `injected` before using its model")
    place, masks = injection.numbering.next(module), injection.masks_now()
    own = masks.own(module, query, key, value, attention_mask, scaling, dropout, extras)
    if not injection.selection.takes(place.layer, place.module):
        return own(slice(0, query.shape[2])), None
    call = call_of(module, query, key, value, own.mask.numbers, scaling, extras, place, masks)
    output = injection.replacement(replace(call, rope=rope_of(injection.ropes, call)))
    if output is None:
        return own(slice(0, query.shape[2])), None
    return own.where_blind(call, output).contiguous(), None


def _registered_attention(
    replacement: Replacement,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **extras: Any,
) -> tuple[Tensor, None]:
    """The attention function of `register_attention`."""
    place = Place(type(module).__name__, 0, layer_of("", module) or 0, 0)
    own = Masks().own(module, query, key, value, attention_mask, scaling, dropout, extras)
    # no forward is numbered here, so every call counts as the first of its layer
    call = call_of(module, query, key, value, own.mask.numbers, scaling, extras, place)
    return own.where_blind(call, replacement(call)).contiguous(), None
