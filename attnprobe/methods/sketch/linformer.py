"""Linformer (Wang et al. 2020), untrained: keys and values projected to d tokens by a random matrix.

E, F are the paper's projections of K and V, transposed: ours are (n, d). S is one matrix for both. B~ is its ``P̄``
times Fᵀ. Our ``d`` is its ``k``. The paper trains E and F; here they are random, as before training.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch

from ...operators import LowRank
from ...operators.linalg.sketches import gaussians
from ...operators.precision import product
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, per_head, softmax_in_place
from ..registry import KEYS, register

AUTHORS_STD = 0.02


@register(
    name="linformer",
    paper="Wang et al., Linformer (untrained)",
    year=2020,
    family="sketch",
    tags=("permutation_equivariant",),
    budget="d random combinations of the keys and of the values",
    cost="4 n d p",
    oracle="linformer LinformerSelfAttention",
    **KEYS,
)
def linformer(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    std: Literal["unit", "authors"] = "unit",
    share: bool = True,
    share_heads: bool = False,
) -> Approximation:
    """``B~ = softmax(s Q (SᵀK)ᵀ) Sᵀ`` with a random S, so that the output is ``softmax(s Q (SᵀK)ᵀ) (SᵀV)``; untrained.

    Source: Wang et al. 2020, section 4, equation 7. The softmax is over d random combinations of keys. No S makes it
    the softmax over the keys, so the error does not vanish as d grows. The result is the starting point of a trained
    Linformer, not its quality.

    Options:
        std: standard deviation of the entries of S. ``unit`` is N(0, 1/d), with ``E[S Sᵀ] = I``; ``authors`` is N(0,
            0.02²) of the authors' code, with ``E[S Sᵀ] = 0.0004·d·I``, which shrinks the output.
        share: one S for keys and values; false uses a separate E for K and F for V, as in the paper.
        share_heads: the same S (or E and F) for all heads, the paper's headwise sharing.

    Shapes: the softmax (h, n_q, d), S (h, n_k, d); in the Q/K/V's dtype, but SᵀK in float32 at least. Draws:
    ``sketch`` (h, n_k, d), and ``sketch_values`` of the same shape with ``share=false``, separately for each head. Cost
    ``4 n d p``. Row sums are not 1, and adding a vector to every key changes the result.

    Raises:
        Unsupported: d above n_k.

    >>> from attnprobe import approximate
    >>> approximate("linformer", QKV(*torch.ones(3, 1, 6, 4)), 3).draws["sketch"].shape
    torch.Size([1, 6, 3])
    """
    draws = {"sketch": _draw(qkv, d, streams, "sketch", std, share_heads)}
    if not share:
        draws["sketch_values"] = _draw(qkv, d, streams, "sketch_values", std, share_heads)
    # SᵀK sums n keys with random signs: in half precision the rounding would be as large as the sum.
    wide = torch.promote_types(qkv.dtype, torch.float32)
    of_k = draws["sketch"].to(qkv.device, wide)  # (h, n_k, d)
    keys = qkv.scale * product(of_k.mT, qkv.k.to(wide))  # (h, d, p)
    weights = softmax_in_place(product(qkv.q, keys.to(qkv.dtype).mT))  # (h, n_q, d)
    of_v = (of_k if share else draws["sketch_values"]).to(qkv.q)  # (h, n_k, d)
    diagnostics = {"realised_d": per_head(qkv.h, d), "visited": per_head(qkv.h, d * qkv.n_q)}
    return Approximation.of(LowRank(weights, None, of_v.mT), qkv, draws=draws, diagnostics=diagnostics)


def _draw(qkv: QKV, d: int, streams: Streams, label: str, std: str, share_heads: bool) -> torch.Tensor:
    """S of every head, (h, n_k, d) float64 on the CPU."""
    streams_of = [streams.shared if share_heads else partial(streams.head, head) for head in qkv.heads]
    drawn = gaussians(qkv.n_k, d, [stream(label) for stream in streams_of])
    return drawn if std == "unit" else drawn.mul_(AUTHORS_STD * d**0.5)
