"""The methods, one file for each paper in the folder of its family, and `approximate`, which runs any of them.

The names of draws:

- ``indices`` (h, d) int64: rows of [Q; K]. Queries are 0 … n_q-1, keys follow.
- ``order`` (h, n_q + n_k): a random order of [Q; K].
- ``centroids`` (h, d, p), or ``query_centroids`` and ``key_centroids`` if Q and K have their own.
- ``projection`` (h, d, p) float64: random rows with their norms, applied to √scale · Q and K.
- ``pilot_rows``, ``columns`` (h, d): queries and keys, repeats included.
- ``sampled_keys`` (h, n_q, u): keys of each query. ``top_queries`` (h, u): the queries with exact rows.
- ``sketch`` (h, n, d), and ``sketch_values`` if the values have their own.
- ``blocks`` (h, n_b, r): the random key blocks of each query block, -1 in an empty slot.
- ``rotations`` (h, rounds, f, p) float64: the directions of a hash.
- ``pivot_numbers`` (h, d), ``halving_numbers`` (h, u) float64: uniform numbers from [0, 1).
- ``generator_seed`` (h, 1) int64: the seeds of the generators that a user's function gets.
- ``row_keys`` (h, n_q) int64: the keys from which `attnprobe.rng.hashed_uniform` makes the numbers of each row.

The causal form of `methods.summary.dyadic` has the draws of each block, ``NAME:START-STOP``. With a padding mask,
indices count the valid tokens only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import Unsupported
from ..grammar.arguments import checked
from ..operators import Padded, Scaled
from ..qkv import QKV
from ..reference import check_terms, sink_share
from ..rng import Streams
from . import (  # noqa: F401  (their methods register)
    coresets,
    estimators,
    features,
    hashing,
    kernels,
    nystrom,
    own,
    quantised,
    reference,
    sampling,
    selection,
    sketch,
    sparse,
)
from .base import Approximation, Counted
from .kernels import working_dtype
from .lookup import get, is_method
from .option import Option
from .registry import FAMILIES, KERNELS, METHODS, TAGS, Method, Provenance, by_family
from .storage import Storage
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
    "Storage",
    "approximate",
    "by_family",
    "get",
    "is_method",
    "error_text",
    "line_of",
    "method",
    "working_dtype",
]


@checked(d=float | None)
def approximate(
    method: str | Method | Callable[..., Any],
    qkv: QKV,
    d: int | None = None,
    *,
    seed: int = 0,
    target: str = "softmax",
    **options: Any,
) -> Approximation:
    """Run a method on all heads of ``qkv``: its operator (h, n_q, n_k), its output (h, n_q, p_v) and its draws.

    With a padding mask the method runs on the valid tokens: its own windows, blocks, pages and recent keys count these.
    The window and the sinks of the inputs go by positions. Padded rows and columns of its operator are zero. Causal Q,
    K, V (``qkv.causal``) get its causal form, in which no row depends on later tokens. For inputs with ``sink_logits``
    the rows of the method are multiplied by ``D~ / (D~ + exp(sink))`` with its own normalisers ``D~``; only methods
    that state them (`Approximation.log_normalizer`) take such inputs. For every method ``diagnostics["bad_rows"]``
    counts at least the output rows that are not finite.

    Args:
        method: a registered name (``attnprobe methods`` lists them), ``PATH.py:FUNCTION``, or a function of any of ``q,
            k, v, d, scale, mask, generator`` (see `attnprobe.method`).
        d: the budget. A method without a budget ignores it.
        seed: determines the method's draws, together with the layer and window of ``qkv.label`` and the head's number.
        target: the exact matrix to approximate, ``softmax`` or ``gaussian``.
        options: the method's options, see ``attnprobe methods NAME``.

    Raises:
        Unsupported: a budget or target that the method cannot take; causal inputs to a method without a causal form;
            a sliding window, sinks, a bias or a cap to a method without a form for them.
        UsageError: an unknown name or an invalid value.
        BadResult: a user's function returned an invalid result.

    >>> import torch
    >>> qkv = QKV(*torch.randn(3, 1, 8, 4, generator=torch.Generator().manual_seed(0)))
    >>> approximate("vmean", qkv).operator.row_sums()
    tensor([[1., 1., 1., 1., 1., 1., 1., 1.]])
    >>> approximate("skyformer", qkv, d=4, gama=0.1)
    Traceback (most recent call last):
    attnprobe.errors.UsageError: unknown option of skyformer 'gama'; did you mean 'gamma'?
    """
    entry, inner = get(method), qkv.compressed()
    d, arguments = _arguments(entry, qkv, inner, d, seed, target, options)
    inputs = qkv if entry.takes_mask else inner
    if inner.sink_logits is not None:
        # Methods know no sinks: they enter below, as a factor of each row of any method that states its normalisers.
        inputs = inputs.replace(sink_logits=None)
    result = _count_lost_rows(entry.function(inputs, d, **arguments))
    if inner.sink_logits is not None:
        result = _with_sinks(entry, result, inner.sink_logits)
    if qkv.mask is None:
        return result
    output = result.output.new_zeros(qkv.h, qkv.n_q, qkv.p_v)
    output[:, qkv.mask] = result.output
    operator = None if result.operator is None else Padded(result.operator, qkv.mask)
    return replace(result, operator=operator, output=output)


def chosen_keys(method: Method, qkv: QKV, d: int, seed: int = 0, **options: Any) -> Tensor:
    """The keys of each group of rows that a method which compresses chooses, (h, groups, u) int64; -1 is an empty slot.

    They are those of `approximate`, which also attends to them.

    Args:
        qkv: without a mask.

    Raises:
        Unsupported, UsageError: as in `approximate`.
    """
    assert method.choose is not None and qkv.mask is None
    checked_d, arguments = _arguments(method, qkv, qkv, d, seed, "softmax", options)
    return method.choose(qkv, checked_d, **arguments).index


def _arguments(
    entry: Method, qkv: QKV, inner: QKV, d: int | None, seed: int, target: str, options: dict[str, Any]
) -> tuple[int | None, dict[str, Any]]:
    """The checked budget and the other arguments of a method's function; ``inner`` are the valid tokens."""
    chosen = entry.check(target, options)
    entry.check_form(inner.causal, inner.sliding_window is not None, inner.terms)
    check_terms(inner, target)
    d = entry.check_budget(d, inner.n_q, inner.n_k)
    if entry.square and not inner.square:
        raise Unsupported(f"{entry.name}: its queries are the tokens in their order, and these have other positions")
    streams = Streams(seed, entry.name, qkv.layer, qkv.window)
    return d, {"streams": streams, "target": target, **chosen}


def _with_sinks(entry: Method, result: Approximation, logits: Tensor) -> Approximation:
    """``result`` with a sink in each head: every row is scaled by `sink_share`, the weight that its keys have."""
    if result.log_normalizer is None:
        raise Unsupported(f"heads have sinks of their own, and {entry.name} states no normaliser to add them to")
    log_sum = result.log_normalizer()
    share = sink_share(log_sum, logits.to(log_sum))
    operator = None if result.operator is None else Scaled(result.operator, left=share.to(result.operator.dtype))
    log_sum = torch.logaddexp(log_sum, logits.to(log_sum)[:, None])
    output = result.output * share[..., None].to(result.output.dtype)
    return replace(result, operator=operator, output=output, log_normalizer=lambda: log_sum)


def _count_lost_rows(result: Approximation) -> Approximation:
    """``result`` with ``bad_rows`` (h,): the larger of the method's own count and the number of non-finite rows."""

    def bad_rows() -> Tensor:
        lost = result.lost_rows()
        counted = result.diagnostics.get("bad_rows", torch.zeros_like(lost))
        return torch.maximum(counted.to(lost), lost)

    known = {name: partial(result.diagnostics.__getitem__, name) for name in result.diagnostics}
    return replace(result, diagnostics=Counted({**known, "bad_rows": bad_rows}))
