"""The claims of a user's function on which rankings depend, tested on a few tokens before it is measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...errors import BadResult
from ...grammar.foreign import message
from ...qkv import QKV
from ...rng import generator
from .. import Method, approximate
from .recovered import Recovered

TOKENS, SEEN, P, BUDGET = 64, 32, 16, 8
LARGER = -8.0  # what later tokens are multiplied by
TOLERANCE = 1e-3  # of the largest entry of the rows


def broken_claim(method: Method, options: Mapping[str, Any]) -> str | None:
    """Why a claim of a user's method is false: that no later token changes a row, or that it is linear in V.

    `attnprobe check` tests all claims on many inputs; this is one head of normal tokens. A method of the project, and
    one that does not take these inputs, breaks no claim here. It costs two or three calls and the recovery of a matrix
    of 64 tokens.

    >>> from attnprobe.methods import get, method
    >>> broken_claim(get(method(lambda v: v.cumsum(1), tags=("causal",))), {})
    >>> broken_claim(get(method(lambda v: v * v, linear_in_v=True)), {}).partition(":")[0]
    '<lambda> claims to be linear in V, and is not'
    """
    if method.family != "user":
        return None
    q, k, v = torch.randn(3, 1, TOKENS, P, generator=generator(0, "claims"))
    inputs = QKV(q, k, v)
    causal = inputs.replace(causal=True)
    # Larger later tokens would win a maximum, a norm or a scale that looks ahead; equal ones might hide it.
    later = causal.replace(q=_with_larger(causal.q), k=_with_larger(causal.k), v=_with_larger(causal.v))
    try:
        made, *rows = (
            approximate(method, tokens, max(method.least, BUDGET), target=method.targets[0], **options)
            for tokens in (inputs, *([causal, later] if method.is_causal else []))
        )
        operator, outputs = made.operator, [part.output[:, :SEEN] for part in rows]
    except Exception:  # it is measured on other inputs, where its error is the cell's
        return None
    if outputs and not _equal(*outputs):
        return f"{method.name} claims causal, and is not: later tokens change earlier rows; hide what qkv.visible hides"
    if isinstance(operator, Recovered):
        try:
            operator.dense()
        except BadResult as error:
            return message(error)
    return None


def _with_larger(x: torch.Tensor) -> torch.Tensor:
    """Tokens of which the later ones are others, and larger."""
    return torch.cat([x[:, :SEEN], LARGER * x[:, SEEN:]], 1)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether rows are equal but for rounding. Those that are not finite say nothing."""
    size = float(a.abs().max())
    return not size < float("inf") or bool(((a - b).abs() <= TOLERANCE * size).all())
