"""A plan of budgets: how many keys each KV head gets of a fixed total, by a local error of each head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from ...metrics import residual_errors
from ...qkv import QKV
from ...reference import exact
from ...rng import generator
from . import SHUFFLED

if TYPE_CHECKING:
    from ...inputs import AttentionCall

STEPS = 13  # budgets at which heads are measured, from the least to half of the prompt
LEAST = 64  # a head gets at least a 64th of the prompt, …
SMALLEST = 6  # … or a 6th of the mean budget, if that is less
LAVA_QUERIES, LAVA_WIDTH = 32, 7  # the window of queries and the width of the pooling in the authors' code


def tried_budgets(prompt: int, d: int, least: int = 1) -> list[int]:
    """The numbers of keys at which heads are measured: `STEPS` of equal ratio up to half of the prompt, and all.

    Args:
        least: the smallest budget of the method, at most d.
    """
    lowest = max(float(least), min(prompt / LEAST, d / SMALLEST))
    ratio = max(prompt / 2 / lowest, 1.0) ** (1 / (STEPS - 1))
    return sorted({min(prompt, max(1, round(lowest * ratio**step))) for step in range(STEPS)} | {prompt})


def planned_budgets(errors: Tensor, tried: Sequence[int], total: int) -> list[int]:
    """The number of keys of each head, at most ``total`` together, that makes the sum of the heads' errors small.

    Each head begins with the first of the ``tried`` numbers. Then keys go, step by step, to the head whose error falls
    most per key, on the lower convex envelope of its errors. For convex errors the sum is the least possible; the last
    step is cut where the total is used up.

    Args:
        errors: (heads, len(tried)), the error of each head at each number of keys, which ascend.

    >>> planned_budgets(torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.2, 0.0]]), [2, 4, 8], 10)
    [4, 6]
    >>> planned_budgets(torch.tensor([[0.9, 0.1, 0.1], [0.2, 0.2, 0.2]]), [2, 4, 8], 16)
    [4, 2]
    """
    budgets = [tried[0]] * len(errors)
    steps = [
        (slope, head, keys) for head, of_head in enumerate(errors.tolist()) for slope, keys in _falls(of_head, tried)
    ]
    left = total - sum(budgets)
    # slopes of an envelope fall, so a head's steps come in their own order; the sort is stable where slopes are equal
    for _, head, keys in sorted(steps, key=lambda step: -step[0]):
        more = min(keys, left)
        budgets[head] += more
        left -= more
    return budgets


def _falls(errors: Sequence[float], tried: Sequence[int]) -> list[tuple[float, int]]:
    """The falling sides of the lower convex envelope of a head's errors: the fall per key, and the keys."""
    hull: list[int] = []
    for number in range(len(tried)):
        while len(hull) > 1 and _slope(errors, tried, hull[-2], hull[-1]) >= _slope(errors, tried, hull[-2], number):
            hull.pop()
        hull.append(number)
    sides = [(-_slope(errors, tried, a, b), tried[b] - tried[a]) for a, b in zip(hull, hull[1:], strict=False)]
    return [side for side in sides if side[0] > 0]


def _slope(errors: Sequence[float], tried: Sequence[int], a: int, b: int) -> float:
    return (errors[b] - errors[a]) / (tried[b] - tried[a])


def shuffled_budgets(budgets: Sequence[int], seed: int, window: int) -> list[int]:
    """The same budgets in a random order, another one in each text window."""
    order = torch.randperm(len(budgets), generator=generator(seed, "plan", SHUFFLED, window))
    return [budgets[head] for head in order.tolist()]


def lava_budgets(inputs: Mapping[int, QKV], prompt: int, d: int) -> dict[int, list[int]]:
    """LAVa's number of keys of each KV head, by layer, at most ``d`` in the mean.

    The score of key j is the mean weight ``B_ij`` of the last w = min(32, d/2) queries of the prompt, the largest of 7
    neighbours and of the query heads of a KV head, times ``max_j ‖v_j‖₁``. Each head has the last w keys. The others of
    a layer are in proportion to the entropy of its scores, and go to the heads with the largest scores. Cost: the
    weights of w queries. Source: Shen et al. 2025 (LAVa, arXiv 2509.09754), settings of the authors' code.

    Args:
        inputs: by layer, the exact inputs of a text that begins with the prompt.
    """
    last = min(LAVA_QUERIES, d // 2)
    scores = {layer: _lava_scores(qkv, prompt, last) for layer, qkv in inputs.items()}
    shares = {layer: torch.special.entr(score / score.sum()).sum() for layer, score in scores.items()}
    room, budgets = (d - last) * len(scores) / float(sum(shares.values())), {}
    for layer, score in scores.items():
        count = min(int(room * float(shares[layer])) * len(score), score.numel())
        best = score.flatten().topk(count).indices // score.shape[1]
        budgets[layer] = [last + keys for keys in best.bincount(minlength=len(score)).tolist()]
    return budgets


def _lava_scores(qkv: QKV, prompt: int, last: int) -> Tensor:
    """The scores of the keys before the last ones of a prompt, (h_kv, prompt - last)."""
    complete, rows = qkv.complete() or qkv, torch.arange(prompt - last, prompt, device=qkv.device)
    keys, values = qkv.shared_k[:, :prompt], qkv.shared_v[:, :prompt]
    observed = complete.replace(q=complete.q[:, rows], k=keys, v=values, positions=rows)
    weights = exact(observed).rows(0, last)[..., : prompt - last].mean(1)
    best = max_pool1d(weights[:, None], LAVA_WIDTH, 1, LAVA_WIDTH // 2)[:, 0].unflatten(0, (qkv.kv_heads, -1)).amax(1)
    return best * values[:, : prompt - last].abs().sum(-1).amax(1)[:, None]


def of_query_heads(
    budgets: Mapping[int, Sequence[int]], calls: Mapping[int, AttentionCall]
) -> dict[tuple[int, int], int]:
    """Budgets of the KV heads of layers, by (layer, query head)."""
    return {
        (layer, head): of_layer[head * calls[layer].kv_heads // calls[layer].heads]
        for layer, of_layer in budgets.items()
        for head in range(calls[layer].heads)
    }


def head_errors(call: AttentionCall, row: int, exact: Tensor, got: Tensor, lost: Tensor, by: str) -> Tensor:
    """The local error of each KV head of a row of the batch, (h_kv,) float64.

    Args:
        exact, got: the outputs of the steps, (n, h, p_v). lost: the lost mass of each query head, (h,).
        by: residual, measured, row or mass. The residual error is that of the query heads of a KV head together, beside
            `Block.between`; that of measured is beside the layer's own stream.
    """
    gap = got.double() - exact.double()
    if by == "mass":
        return lost.double().unflatten(0, (call.kv_heads, -1)).mean(1)
    if by == "row":
        rows = gap.norm(dim=2) / exact.double().norm(dim=2).clamp(min=1e-300)
        return rows.mean(0).unflatten(0, (call.kv_heads, -1)).mean(1)
    assert call.block is not None  # checked where a plan is asked for
    block, group = call.block.at(row), call.heads // call.kv_heads
    heads = [range(first, first + group) for first in range(0, call.heads, group)]
    changes = [block.change(gap[:, list(of_group)], of_group) for of_group in heads]
    return residual_errors(torch.stack(changes), (block.between if by == "residual" else block.size)[:, None])
