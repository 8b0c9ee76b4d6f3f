"""NSA (Yuan et al. 2025) without its training: means of blocks, selected blocks and a window.

Block g holds the keys ``g b … (g + 1) b - 1``. A causal row has the means of the blocks before its own.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ...operators import LowRank, Sparse, Sum
from ...operators.precision import full_precision
from ...operators.terms import Terms
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation
from ..option import at_least
from ..registry import TWICE_KEYS
from .base import (
    Selection,
    Share,
    attend,
    keys_of_pages,
    page_means,
    selector,
    shared,
    top_pages,
    widened,
)

Branch = Literal["merge", "selected", "window", "compressed"]


@selector(
    name="nsa",
    paper="Yuan et al., Native Sparse Attention (untrained)",
    year=2025,
    joint=True,
    tags=("shift_invariant", "causal", "decodes"),
    budget="at most d exact keys of each row: a window, its own block, and those of the largest weights of means",
    cost="2 n d p + O(n² p)",
    oracle="identity: the merge with blocks of one key is exact",
    **TWICE_KEYS,
    exact_at=lambda n: (2 * n, {"branch": "selected"}),
    validate=at_least("nsa", 1, "block", "window"),
    small={"block": 3},
)
def nsa(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    branch: Branch = "merge",
    share: Share = "group-mean",
    block: int = 64,
    window: int = 512,
) -> Approximation:
    """One softmax over a window, selected blocks, and the means of the other blocks, each with the bias ``ln c_g``.

    ``B~_ij = exp(S_ij)/D~_i`` on the exact keys E_i. The mean key of block g has the weight ``w_ig = c_ig exp(scale
    q_i·k̄_g)/D~_i`` on the mean value of the block: ``w_ig/|g|`` for each key. c_ig is the number of keys of block g
    outside of E_i, so that every key counts once. A row selects its own block, and those with the largest weights of
    the softmax over means, summed over the heads of a group. Source: Yuan et al. 2025, section 3.

    A query behind a prompt (``inject --phase decode``) stands at the prompt's last key, so the last block and the
    window before it are always read, and count.

    Untrained: the paper compresses by a trained network and adds the outputs of its three branches with trained gates.
    Such a sum does not approximate softmax attention. ``merge`` has means and one softmax instead. It approximates
    softmax attention, and is exact if E_i has all keys. The paper's blocks of compression have 32 keys and overlap;
    here they are those of the selection.

    Options:
        branch: ``merge``, or one branch alone: ``selected`` blocks, the ``window``, or ``compressed``, the means alone
            (rows of the first block are exact there).
        share: the query heads of a KV head select by the mean or the largest of their weights, or each ``head`` for
            itself. The paper has their sum, which chooses as the mean does. The mean is over the given heads, so a part
            of a group has other sets.
        block: b, the number of keys of a block.
        window: the largest number of keys of the window, which has at most half of the budget of ``merge``.

    Shapes: index and weights (h, n_q, u), u ≤ d + b, and w (h, n_q, ⌈n_k/b⌉); output (h, n_q, p_v). Deterministic; cost
    ``n (n/b) p`` for the means and ``n d (p + p_v)``, memory O(n d + n²/b). ``realised_d`` counts exact keys, and
    ``kv_read`` also the means, ``scored`` the scores of the means.

    Raises:
        Unsupported: d above 2 n_k. UsageError: ``block`` or ``window`` below 1.
    """
    near = {"merge": min(window, d // 2), "window": d}.get(branch, 0)
    numbers, position = widened(qkv), qkv.query_positions
    pages, own = torch.arange(-(-qkv.n_k // block), device=qkv.device), position // block
    before = pages < own[:, None] if qkv.causal else torch.ones_like(pages, dtype=torch.bool).expand(qkv.n_q, -1)
    with full_precision():
        means = page_means(numbers.k, block)
        scores = _of_means(qkv, qkv.scale * numbers.q @ means.mT, block).masked_fill(~before, float("-inf"))
    room = {"merge": d - near, "selected": d}.get(branch, 0)
    chosen = torch.where(before.any(1), -1, own)[:, None].expand(qkv.h, -1, 1) if branch == "compressed" else None
    if room:
        chosen = top_pages(shared(scores.detach().softmax(-1), qkv, share), position, room, block, qkv.n_k, qkv.causal)
    approx = attend(
        qkv, Selection(_exact_keys(qkv, chosen, block, near), 1, float(before.sum()) if branch != "window" else 0.0)
    )
    return _with_means(qkv, approx, scores, block) if branch in ("merge", "compressed") else approx


def _of_means(qkv: QKV, scores: Tensor, block: int) -> Tensor:
    """The scores of the means of blocks, (h, n_q, blocks), with the cap, and the mean of the bias of each block."""
    bias = None if qkv.bias is None else page_means(qkv.bias.to(scores.dtype).mT, block).mT
    return Terms(qkv.softcap, bias).applied(scores)


def _exact_keys(qkv: QKV, chosen: Tensor | None, block: int, near: int) -> Tensor:
    """The ``near`` keys around each row, and those of the chosen blocks that are no such keys, (h, n_q, u)."""
    right = 0 if qkv.causal else (near - 1) // 2
    around = qkv.query_positions[:, None] + right - torch.arange(near, device=qkv.device)
    around = around.masked_fill((around < 0) | (around >= qkv.n_k), -1).expand(qkv.h, -1, -1)
    if chosen is None:
        return around
    keys = keys_of_pages(chosen, block, qkv.n_k)
    distance = qkv.query_positions[:, None] + right - keys
    return torch.cat([around, keys.masked_fill((distance >= 0) & (distance < near), -1)], 2)


def _with_means(qkv: QKV, exact: Approximation, scores: Tensor, block: int) -> Approximation:
    """The softmax over the exact keys and the means of blocks, with the bias of their other keys."""
    assert exact.keys is not None and exact.log_normalizer is not None and isinstance(exact.operator, Sparse)
    keys, softmax = exact.keys(), exact.operator
    block_of_key = torch.arange(qkv.n_k, device=qkv.device) // block
    sizes = torch.bincount(block_of_key).to(scores.dtype)
    taken = torch.zeros_like(scores).scatter_add_(2, keys.clamp(min=0) // block, (keys >= 0).to(scores.dtype))
    # A block whose keys are all exact has the bias ln 0 = -∞, and no weight.
    logits = scores + (sizes - taken).log()
    every = torch.cat([exact.log_normalizer()[..., None].to(scores.dtype), logits], -1)
    share = every.softmax(-1).to(qkv.dtype)  # of the exact keys, and of each mean
    pooling = torch.zeros(len(sizes), qkv.n_k, dtype=qkv.dtype, device=qkv.device)
    pooling.scatter_(0, block_of_key[None], (1 / sizes)[block_of_key][None].to(qkv.dtype))
    means = LowRank(share[..., 1:], None, pooling.expand(qkv.h, -1, -1))
    operator = Sum([Sparse(softmax.index, softmax.weight * share[..., :1], qkv.n_k, softmax.group, zeroed=True), means])
    read = (logits > float("-inf")).sum(-1).double().mean(1).cpu()
    diagnostics = {**exact.diagnostics, "kv_read": exact.diagnostics["kv_read"] + read}
    output = share[..., :1] * exact.output + share[..., 1:] @ page_means(qkv.v, block)

    def log_normalizer() -> Tensor:
        return every.logsumexp(-1).to(qkv.dtype)

    return Approximation(operator, output, diagnostics=diagnostics, log_normalizer=log_normalizer)
