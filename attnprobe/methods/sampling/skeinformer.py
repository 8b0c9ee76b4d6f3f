"""Skeinformer (Chen et al. 2022): columns sampled by means of pilot rows, with an estimate for all other columns.

J are the paper's pilot rows, B_J their exact softmax rows, p̂_i its sampling probabilities, J' the sampled columns.
``A' = exp(l)`` are the exact entries of A in those columns (its ``A^{J'}``), g the geometric mean of a row of A' (its
adaptive row normalisation), D̂ the normaliser, R its output. Our d is the number of pilots and also of columns.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ...errors import Unsupported, UsageError
from ...operators import Columns, Dense, Operator, RankOne, RowOverride, Scaled, SoftmaxAttention, Sum
from ...operators.blocks import block_rows, head_blocks, row_blocks
from ...operators.groups import tokens
from ...operators.linalg.norms import row_norms
from ...operators.linalg.sampling import weighted_with_replacement, weighted_without_replacement
from ...operators.precision import product
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, distinct, per_head, ragged
from ..registry import DISTRIBUTIONS, INVARIANT, KEYS, register
from ..summary import Summary, dyadic

EXACT_NORM = ("no-norm", "no-norm-weighted")  # ablations that divide by the exact D
ROWS = 64  # rows of B in memory at a time, for options that need all of B


def _check(target: str, *, ablation: str, share_heads: bool) -> None:
    if share_heads and ablation == "uniform":
        raise UsageError("skeinformer: share_heads shares the pilots, and ablation=uniform has none")


@register(
    name="skeinformer",
    paper="Chen et al., Skeinformer",
    year=2022,
    family="sampling",
    tags=(*DISTRIBUTIONS, "uses_values", *INVARIANT, "exact_at_full_budget", "causal"),
    budget="d pilot rows and d columns",
    cost="4 n d p",
    oracle="steps of Algorithm 1; laws of its draws",
    **KEYS,
    validate=_check,
    exact_at=lambda n: (n, {}),
)
def skeinformer(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    ablation: Literal["none", "uniform", "no-norm", "simple-norm", "no-pilot-reuse", "no-norm-weighted"] = "none",
    share_heads: bool = False,
) -> Approximation:
    """``B~ = diag(1/D̂) (A' Selᵀ + g (1 - 1_J')ᵀ)`` with the rows J replaced by those of B.

    Chen et al. 2022, Algorithm 1, in seven steps with the lines of the algorithm:

    1. J: d pilot rows, uniform with replacement (line 1).
    2. ``B_J = softmax(scale · Q_J Kᵀ)`` (lines 2 and 3).
    3. ``p̂_i ∝ (Σ_{j in J} B_ji²)^½ ‖V_i‖`` (line 4, equation 5).
    4. J': d columns drawn one after another without replacement, by p̂ (line 5).
    5. ``l = scale · Q K_J'ᵀ``, ``A' = exp(l)``, ``g_i = exp(mean_j l_ij)``, ``D̂_i = Σ_j A'_ij + (n_k - d) g_i``
       (lines 6 to 9, equation 6).
    6. ``R = diag(1/D̂) (A' V_J' + g (Σ_i V_i - Σ_{i in J'} V_i))`` (lines 10 and 11).
    7. Rows J of R are ``B_J V`` (line 12).

    The largest l of each row is subtracted in A' and g. It cancels in the quotient, so large scores stay finite (the
    authors' code has no such shift and overflows at 88 in float32). p̂ is computed in float64 for every dtype. If V is
    zero, p̂ is uniform. A column of weight zero gets 1e-12 of the largest weight, so that d columns can be drawn. The
    paper's error bound assumes columns with replacement and weights 1/(d p̂). It does not apply to this algorithm,
    whose B~ is biased.

    Options:
        ablation: ``none`` is the algorithm. The others are the authors' modules of the paper's table 1, as coded, all
            without step 7. ``no-pilot-reuse`` changes nothing else. ``uniform`` has a constant p̂, so it needs neither
            pilots nor V. ``simple-norm`` is the softmax over the columns J' only (the paper calls it Informer's
            normalisation). ``no-norm`` is ``B[:, J']`` with the exact D, which costs n² p; it has no weights, so B~ is
            too small. ``no-norm-weighted`` follows the paper's formula instead of the code: columns with replacement,
            weights 1/(d p̂), exact D, unbiased.
        share_heads: the same pilots for all heads, as in the authors' code; otherwise each head draws its own. Columns
            are always drawn for each head.

    The authors limit d to n - 1; here d = n_k is allowed and exact. With a padding mask, pilots and columns are drawn
    among the valid tokens and B_J is zero on the others, as in the paper's section 4.4.

    Shapes: A' (h, n_q, d), g and D̂ (h, n_q), B_J (h, d, n_k), in the Q/K/V's dtype. Draws: ``pilot_rows`` (h, d) with
    repeats (none for ``uniform``), ``columns`` (h, d). The operator depends on V through the columns. Cost ``4 n d p``
    (``n² p`` more for the exact D), memory O(n d). ``visited`` counts the entries of B_J and A'; with the exact D it
    counts all of B instead of A'.

    Causal inputs have the form of `methods.summary.dyadic`, which is not in the paper: exact attention to the query's
    own leaf of ``2 d`` keys, and d columns of each earlier block, with ``g`` for its other keys. Pilots are queries of
    the block, so this form needs all queries of the text, except with ``uniform``. It has no step 7.

    Raises:
        Unsupported: d above n_k; causal inputs with the exact D. UsageError: ``share_heads`` without pilots.
    """
    if qkv.causal:
        if ablation in EXACT_NORM:
            raise Unsupported(f"skeinformer: ablation={ablation} needs the exact D, and has no causal form")
        summarise = partial(_summarised, d=d, ablation=ablation, share_heads=share_heads)
        return dyadic(qkv, d, streams, summarise, queries=ablation != "uniform")
    draws, probability, b_j = _draw(qkv, d, streams, ablation, share_heads)
    columns = draws["columns"].to(qkv.device)
    visited = d * qkv.n_k if "pilot_rows" in draws else 0
    if ablation in EXACT_NORM:
        weight = _exact_columns(qkv, columns)
        if ablation == "no-norm-weighted":
            weight = weight / (d * torch.gather(probability, 1, columns))[:, None, :].to(weight)
        operator = Columns(weight, columns, qkv.n_k)
        visited += qkv.n_q * qkv.n_k
    else:
        scores = product(qkv.scale * qkv.q, tokens(qkv.k, columns).mT)  # l, (h, n_q, d)
        visited += d * qkv.n_q
        if ablation == "simple-norm":
            operator = Columns(torch.softmax(scores, -1), columns, qkv.n_k)
        else:
            operator = _filled(scores, columns, qkv.n_k)
    if ablation == "none" and b_j is not None:
        operator = _with_rows(operator, draws["pilot_rows"].to(qkv.device), b_j)
    diagnostics = {"realised_d": distinct(draws["columns"]), "visited": per_head(qkv.h, visited)}
    return Approximation.of(operator, qkv, draws=draws, diagnostics=diagnostics)


def _summarised(
    qkv: QKV, streams: Streams, *, d: int, ablation: str, share_heads: bool
) -> tuple[Summary, dict[str, Tensor]]:
    """Steps 1 to 5 as a summary. One more landmark, the mean k̄ of the keys J', gives ``g_i = exp(s q_i·k̄)``."""
    draws, _, _ = _draw(qkv, d, streams, ablation, share_heads)
    columns = draws["columns"].to(qkv.device)
    keys = tokens(qkv.k, columns).double()
    right = torch.nn.functional.one_hot(columns, qkv.n_k).double()
    if ablation != "simple-norm":
        keys = torch.cat([keys, keys.mean(1, keepdim=True)], 1)
        right = torch.cat([right, 1 - right.sum(1, keepdim=True)], 1)
    return Summary(keys, torch.zeros_like(keys[..., 0]), [], right, right.sum(-1)), draws


def _draw(
    qkv: QKV, d: int, streams: Streams, ablation: str, share_heads: bool
) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
    """Steps 1 to 4: the draws of every head, p̂ (h, n_k) float64, and B_J (h, d, n_k) in the Q/K/V's dtype."""
    draws, b_j = {}, None
    p = torch.full((qkv.h, qkv.n_k), 1 / qkv.n_k, dtype=torch.float64, device=qkv.device)
    if ablation != "uniform":
        streams_of = [streams.shared if share_heads else partial(streams.head, head) for head in qkv.heads]
        pilots = [torch.randint(qkv.n_q, (d,), generator=stream("pilot_rows"), device="cpu") for stream in streams_of]
        draws["pilot_rows"] = torch.stack(pilots)
        b_j, norms = _pilot_rows(qkv, draws["pilot_rows"].to(qkv.device))
        weights = norms * row_norms(qkv.v.double())  # (h, n_k)
        total = weights.sum(-1, keepdim=True)
        p = torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), p)
    sample = weighted_with_replacement if ablation == "no-norm-weighted" else weighted_without_replacement
    of_heads = zip(p.detach().cpu(), qkv.heads, strict=True)
    draws["columns"] = torch.stack([sample(of_head, d, streams.head(head, "columns")) for of_head, head in of_heads])
    return draws, p, b_j


def _pilot_rows(qkv: QKV, pilots: Tensor) -> tuple[Tensor, Tensor]:
    """B_J (h, d, n_k) in the Q/K/V's dtype, and the norms of its columns (h, n_k), both computed in float64."""
    exact = SoftmaxAttention(tokens(qkv.q, pilots).double(), qkv.k.double(), qkv.scale)
    b_j = qkv.q.new_empty(exact.shape)
    norms = exact.q.new_zeros(qkv.h, qkv.n_k)
    for heads, start, stop in head_blocks(exact, pilots.shape[1]):
        b = torch.softmax(exact.scores(heads, start, stop), -1)  # (heads, b, n_k)
        b_j[heads, start:stop] = b.to(qkv.dtype)
        # Blocks of rows add their squares; hypot does not underflow where a square would.
        norms[heads] = torch.hypot(norms[heads], b.norm(dim=1)) if start else b.norm(dim=1)
    return b_j, norms


def _exact_columns(qkv: QKV, columns: Tensor) -> Tensor:
    """Some columns (h, d) of B, (h, n_q, d), from blocks of its rows."""
    attention, blocks = SoftmaxAttention(qkv.q, qkv.k, qkv.scale), []
    for start, stop in row_blocks(qkv.n_q, block_rows(qkv, qkv.h * qkv.n_k, ROWS)):
        index = columns[:, None, :].expand(-1, stop - start, -1)
        blocks.append(torch.gather(attention.rows(start, stop), 2, index))
    return torch.cat(blocks, 1)


def _filled(scores: Tensor, columns: Tensor, n_k: int) -> Operator:
    """Steps 5 and 6: the columns J', with their geometric mean in the other entries of a row, normalised."""
    scores = scores - scores.amax(-1, keepdim=True)
    a, g = torch.exp(scores), torch.exp(scores.mean(-1))  # (h, n_q, d), (h, n_q)
    others = torch.ones(scores.shape[0], n_k, dtype=a.dtype, device=a.device).scatter(1, columns, 0.0)  # 1 - 1_J'
    mass = a.sum(-1) + (n_k - columns.shape[1]) * g  # D̂, (h, n_q): at least 1 by the shift
    return Scaled(Sum([Columns(a, columns, n_k), RankOne(g, others)]), left=1 / mass)


def _with_rows(operator: Operator, pilots: Tensor, b_j: Tensor) -> Operator:
    """Step 7: replaces the rows J (h, d) by B_J (h, d, n_k). A row drawn twice is replaced once."""
    h, d = pilots.shape
    last = torch.full((h, operator.shape[1]), -1, device=pilots.device)  # the last draw of each row, (h, n_q)
    last = last.scatter_reduce(1, pilots, torch.arange(d, device=pilots.device).expand(h, d), "amax")
    rows = ragged(last >= 0)  # (h, at most d)
    slots = torch.gather(last, 1, rows.clamp(min=0)).clamp(min=0)
    return RowOverride(operator, rows, Dense(tokens(b_j, slots)))
