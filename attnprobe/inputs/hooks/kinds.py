"""Which classes of modules compute attention: through transformers' interface, or by code of their own."""

from __future__ import annotations

import inspect
import re
from functools import cache

from torch import nn

NAMED = re.compile(r"att(entio)?n", re.IGNORECASE)  # in the name of a class
SOFTMAX = re.compile(
    r"\b(softmax|logsumexp|scaled_dot_product_attention|multi_head_attention_forward)\(", re.IGNORECASE
)


@cache
def calls_attention(kind: type[nn.Module]) -> bool:
    """Whether a class of modules calls transformers' attention functions: its ``forward`` looks them up by name."""
    return "ALL_ATTENTION_FUNCTIONS" in _source(kind.forward)


@cache
def computes_attention(kind: type[nn.Module]) -> bool:
    """Whether a class of modules that is named for attention takes a softmax itself, and does not call the interface.

    torch's own `MultiheadAttention` is one. What it computes is shown by its forward, see
    `attnprobe.inputs.hooks.products`.
    """
    if not NAMED.search(kind.__name__) or calls_attention(kind):
        return False
    if issubclass(kind, nn.MultiheadAttention):
        return True
    own = [base for base in kind.__mro__ if issubclass(base, nn.Module) and not base.__module__.startswith("torch.")]
    return any(SOFTMAX.search(_source(base)) for base in own if NAMED.search(base.__name__))


@cache
def attends(kind: type[nn.Module]) -> bool:
    """Whether a class of modules computes attention in either way."""
    return calls_attention(kind) or computes_attention(kind)


def _source(of: object) -> str:
    """The text of a class or function; empty if it has none."""
    try:
        return inspect.getsource(of)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""
