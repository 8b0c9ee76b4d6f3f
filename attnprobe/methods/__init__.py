"""The methods, one paper a file in the folder of its family, and the one call that runs any of them.

Draws, by name: ``indices`` (h, d) int64 into [Q; K], queries 0 … n_q-1 first, then keys; ``order`` (h, n_q + n_k), all
of [Q; K] in random order; ``centroids`` (h, d, p), ``query_centroids`` and ``key_centroids`` where Q and K have their
own; ``projection`` (h, d, p) float64, norms included, applied to √scale · Q and K; ``pilot_rows`` and ``columns`` (h,
d), queries and keys, repeats kept; ``sampled_keys`` (h, n_q, u), keys of each query; ``top_queries`` (h, u);
``sketch`` (h, n, d), and ``sketch_values`` where the values have their own; ``blocks`` (h, n_b, r), the random key
blocks of each query block, -1 for none; ``rotations`` (h, rounds, f, p) float64, the directions of a hash;
``generator_seed`` (h, 1) int64, of the generators that a user's function was given.
They refer to the valid tokens where there is a padding mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch

from ..errors import UsageError
from ..operators import Padded
from ..qkv import QKV
from ..rng import Streams
from . import features, hashing, kernels, nystrom, reference, sampling, sketch, sparse  # noqa: F401  (their methods register)
from .base import Approximation
from .kernels import working_dtype
from .lookup import get, is_method
from .registry import FAMILIES, KERNELS, METHODS, TAGS, Method, Option, Provenance, by_family
from .user.claims import method
from .user.files import error_text, line_of

__all__ = [
    "FAMILIES",
    "KERNELS",
    "METHODS",
    "TAGS",
    "Approximation",
    "Method",
    "Option",
    "Provenance",
    "approximate",
    "by_family",
    "get",
    "is_method",
    "error_text",
    "line_of",
    "method",
    "working_dtype",
]


def approximate(
    method: str | Method | Callable[..., Any],
    qkv: QKV,
    d: int | None = None,
    *,
    seed: int = 0,
    target: str = "softmax",
    **options: Any,
) -> Approximation:
    """Run a method on all heads of ``qkv``.

    With a padding mask the method runs on the valid tokens, and padded rows and columns of its operator are zero.
    Causal Q, K, V (``qkv.causal``) get its causal form, in which no later token moves an earlier row.
    Whatever the method, ``diagnostics["bad_rows"]`` counts at least the rows of its output that are not finite.

    Args:
        method: a registered name (``attnprobe methods`` lists them), ``PATH.py:FUNCTION``, or a function of any of ``q,
            k, v, d, scale, mask, generator`` (see `attnprobe.method`).
        d: the budget, which a method without one ignores.
        seed: drives the method's draws, together with the layer and window of ``qkv.label`` and each head's number.
        target: the exact matrix that it shall stand for, ``softmax`` or ``gaussian``.
        options: the method's own, as ``attnprobe methods NAME`` explains them.

    Raises:
        Unsupported: a budget or target that the method cannot take, or causal inputs where it has no causal form.
        UsageError: unknown names or impossible values.
        BadResult: a user's function that returned no result.

    >>> import torch
    >>> qkv = QKV(*torch.randn(3, 1, 8, 4, generator=torch.Generator().manual_seed(0)))
    >>> approximate("vmean", qkv).operator.row_sums()
    tensor([[1., 1., 1., 1., 1., 1., 1., 1.]])
    >>> approximate("skyformer", qkv, d=4, gama=0.1)
    Traceback (most recent call last):
    attnprobe.errors.UsageError: unknown option of skyformer 'gama'; did you mean 'gamma'?
    """
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise UsageError(f"seed={seed!r} is not a whole number")
    entry = get(method)
    chosen = entry.check(target, options)
    inner = qkv.compressed()
    entry.check_causal(inner.causal)
    d = entry.check_budget(d, inner.n_q, inner.n_k)
    streams = Streams(seed, entry.name, qkv.layer, qkv.window)
    given = qkv if entry.takes_mask else inner
    result = _lost_rows_counted(entry.function(given, d, streams=streams, target=target, **chosen))
    if qkv.mask is None:
        return result
    output = result.output.new_zeros(qkv.h, qkv.n_q, qkv.p_v)
    output[:, qkv.mask] = result.output
    operator = None if result.operator is None else Padded(result.operator, qkv.mask)
    return replace(result, operator=operator, output=output)


def _lost_rows_counted(result: Approximation) -> Approximation:
    """``result`` with ``bad_rows``, (h,): those that the method found, or the rows that are lost if they are more."""
    lost = result.lost_rows()
    found = result.diagnostics.get("bad_rows", torch.zeros_like(lost))
    return replace(result, diagnostics={**result.diagnostics, "bad_rows": torch.maximum(found.to(lost), lost)})
