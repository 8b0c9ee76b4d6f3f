"""Modules that compute an approximation of softmax attention, and the exact attention for which they stand.

`EXACT` has what must be known of each family: how its module computes exact attention with its own projections. Nearly
always the module has such a form itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .masks import lowest
from .products import NotSoftmax

NEAR = 1e-4  # the relative distance of a module's output from the pattern that it is said to have
WHOLE = 2**62  # a chunk of so many tokens holds every text

#: from a module, its forward, the arguments of that and its output (b, n, h·p_v), to what computes exact attention
Exact = Callable[[Any, Callable[..., Any], Sequence[Any], Mapping[str, Any], Tensor], Callable[[], Any]]


@contextmanager
def changed(module: nn.Module, **attributes: Any) -> Iterator[None]:
    """A context in which a module has other attributes."""
    before = {name: getattr(module, name) for name in attributes if hasattr(module, name)}
    try:
        for name, value in attributes.items():
            setattr(module, name, value)
        yield
    finally:
        for name in attributes:
            setattr(module, name, before[name]) if name in before else delattr(module, name)


def only_length(config: Any) -> int | None:
    """The number of tokens of every text that the model reads; None if it reads others. Nyströmformer has one."""
    tokens = getattr(config, "segment_means_seq_len", None)
    return tokens if isinstance(tokens, int) else None


def _by_attributes(attributes: Callable[[Any], dict[str, Any]]) -> Exact:
    """The module's own forward is exact with other attributes."""

    def exact(module: Any, own: Callable[..., Any], args: Any, kwargs: Any, output: Tensor) -> Callable[[], Any]:
        def run() -> Any:
            with changed(module, **attributes(module)):
                return own(*args, **kwargs)

        return run

    return exact


def _bigbird(module: Any, own: Any, args: Any, kwargs: Mapping[str, Any], output: Tensor) -> Callable[[], Any]:
    """The forward of BigBird's full attention, which has the same projections."""
    from transformers.models.big_bird.modeling_big_bird import BigBirdSelfAttention

    arguments = signature(own).bind(*args, **kwargs).arguments
    hidden, shown = arguments["hidden_states"], arguments.get("to_mask")
    mask = None if shown is None else (1.0 - shown) * lowest(hidden.dtype)

    def run() -> Any:
        with changed(module, dropout=nn.Identity()):
            return BigBirdSelfAttention.forward(module, hidden, mask)

    return run


def _longformer(module: Any, own: Any, args: Any, kwargs: Mapping[str, Any], output: Tensor) -> Callable[[], Any]:
    """Softmax attention of the projections over all keys. Over the keys of the window it is the module's output."""
    arguments = signature(own).bind(*args, **kwargs).arguments
    if arguments.get("is_global_attn"):
        raise NotSoftmax("its global tokens have projections of their own")
    hidden, mask = arguments["hidden_states"], arguments["attention_mask"] < 0
    q, k, v = (
        project(hidden).unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
        for project in (module.query, module.key, module.value)
    )
    tokens = torch.arange(hidden.shape[1], device=hidden.device)
    inside = (tokens[:, None] - tokens).abs() <= module.one_sided_attn_window_size
    shown = ~mask[:, None, None]
    windowed = functional.scaled_dot_product_attention(q, k, v, shown & inside).transpose(1, 2).flatten(2)
    # The projections are trusted only if attention over the window, made of them, is what the module computed.
    gap = (windowed - output).masked_fill(mask[..., None], 0).norm()
    if not gap <= max(NEAR, torch.finfo(output.dtype).eps) * output.norm():
        raise NotSoftmax("its output is not that of a window over its projections")
    return lambda: functional.scaled_dot_product_attention(q, k, v, shown)


#: how a module of a class computes the exact attention for which it stands
EXACT: dict[str, Exact] = {
    "NystromformerSelfAttention": _by_attributes(lambda module: {"num_landmarks": module.seq_len}),
    "BigBirdBlockSparseAttention": _bigbird,
    "LongformerSelfAttention": _longformer,
    "LSHSelfAttention": _by_attributes(lambda module: {"chunk_length": WHOLE}),
    "LocalSelfAttention": _by_attributes(lambda module: {"chunk_length": WHOLE}),
}
