"""The Johnson-Lindenstrauss sketch of B V, which Linformer's theorem is about (Wang et al. 2020, theorem 1).

S is the paper's ``Rᵀ``, (n, d) with ``E[S Sᵀ] = I``. Our B is its P, our ``d`` its ``k``.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch

from ...errors import UsageError
from ...operators import LowRank
from ...operators.linalg import sketches
from ...qkv import QKV
from ...reference import exact
from ...rng import Streams
from ..base import Approximation, per_head
from ..registry import INVARIANT, KEYS, register


def _check(target: str, *, sketch: str, density: float, terms: int) -> None:
    if not 0 < density <= 1:
        raise UsageError(f"linformer-jlt: density={density} is not in (0, 1]")
    if terms < 1:
        raise UsageError(f"linformer-jlt: terms={terms} is not positive")
    if sketch != "sparse" and density != 1 / 3:
        raise UsageError(f"linformer-jlt: density belongs to sketch=sparse, not to sketch={sketch}")
    if sketch != "accumulate" and terms != 4:
        raise UsageError(f"linformer-jlt: terms belongs to sketch=accumulate, not to sketch={sketch}")


@register(
    name="linformer-jlt",
    paper="Wang et al., Linformer (theorem 1, unreduced)",
    year=2020,
    family="sketch",
    tags=(*INVARIANT, "diagnostic"),
    budget="d columns of a random sketch",
    cost="n² (p + d)",
    oracle="variance identity of each sketch",
    **KEYS,
    validate=_check,
)
def linformer_jlt(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    sketch: Literal["gaussian", "srht", "countsketch", "sparse", "accumulate"] = "gaussian",
    density: float = 1 / 3,
    terms: int = 4,
) -> Approximation:
    """``B~ = B S Sᵀ`` with ``E[S Sᵀ] = I``, so that ``E[B~] = B``: the matrix of Linformer's theorem.

    For the Gaussian S, ``E‖B~V - BV‖_F² = (‖B‖_F² ‖V‖_F² + ‖BV‖_F²) / d``. Source: Wang et al. 2020, theorem 1, whose
    proof multiplies by ``RᵀR`` in equation 5. The other sketches are listed by Chen et al. 2022 (Skeinformer) in
    section 3.2 as "unreduced JLT". A diagnostic: B S needs all of B.

    Options:
        sketch: ``gaussian`` has entries N(0, 1/d); ``srht`` is random signs times d columns of a Hadamard matrix;
            ``countsketch`` has one ±1 in each row; ``sparse`` has entries ±1/√(d·density) with probability density,
            otherwise 0; ``accumulate`` is the sum of signed uniform samplings.
        density: the share of nonzero entries of ``sparse``.
        terms: the number of samplings in the sum of ``accumulate``.

    Shapes: B S (h, n_q, d), S (h, n_k, d), in float64; B is streamed in blocks of rows. Draws: ``sketch`` (h, n_k, d),
    separately for each head. Cost ``n² (p + d)``.

    Raises:
        Unsupported: d above n_k. UsageError: density or terms out of range, or given for another sketch.

    >>> from attnprobe import approximate
    >>> qkv = QKV(*torch.randn(3, 1, 8, 4, generator=torch.Generator().manual_seed(0)))
    >>> full = approximate("linformer-jlt", qkv, 8, sketch="srht")
    >>> torch.allclose(full.operator.dense(), exact(qkv.to(dtype=torch.float64)).dense())
    True
    """
    draw = getattr(sketches, sketch)
    if sketch == "sparse":
        draw = partial(draw, density=density)
    elif sketch == "accumulate":
        draw = partial(draw, terms=terms)
    drawn = torch.stack([draw(qkv.n_k, d, streams.head(head, sketch)) for head in qkv.heads])  # (h, n_k, d)
    s = drawn.to(qkv.device)
    operator = LowRank(exact(qkv.to(dtype=torch.float64), target) @ s, None, s.mT)
    diagnostics = {"realised_d": per_head(qkv.h, d), "visited": per_head(qkv.h, qkv.n_q * qkv.n_k)}
    return Approximation.of(operator, qkv, draws={"sketch": drawn}, diagnostics=diagnostics)
