"""KIVI (Liu et al. 2024): keys by channel over groups of tokens, values by token over groups of channels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import UsageError
from ..storage import Storage
from .base import UNIT, Side, cache_format, in_blocks, of_blocks

MOST = 8  # bits


def _check(target: str, *, bits: int, group: int) -> None:
    if not 1 <= bits <= MOST:
        raise UsageError(f"kivi: bits={bits} is not in 1..{MOST}")
    if group < 1:
        raise UsageError(f"kivi: group={group} is not positive")


def _storage(bits: int, group: int) -> Storage:
    share = bits + 2 * UNIT / group
    return Storage(k=share, v=share, group=group)


def _group(group: int, **options: Any) -> int:
    return group


@cache_format(
    name="kivi",
    paper="Liu et al., KIVI",
    year=2024,
    tags=("deterministic", "causal"),
    oracle="errors of at most half a step",
    storage=_storage,
    alone=False,
    group=_group,
    exact=128,
    validate=_check,
    small={"group": 4, "exact": 3},
)
def kivi(x: Tensor, side: Side, *, bits: int = 2, group: int = 32) -> Tensor:
    """Groups of numbers as ``x̂ = s c + m`` with codes c from 0 to ``2^b - 1``.

    ``m = min x`` and ``s = (max x - m) / (2^b - 1)``, in float16. Codes are rounded to even at ties. A group has the
    numbers of a channel of K of consecutive tokens, or consecutive channels of a token of V. A group of tokens that is
    not complete stays exact. The last group of channels may be shorter. Source: Liu et al. 2024, section 3.2
    and algorithm 1, where R = 128 recent tokens are exact. There the exact keys are those after the last multiple of R;
    here the last R are, and those of an incomplete group before them.

    Options:
        bits: b, from 1 to 8.
        group: the number of numbers that share s and m.

    Shapes: codes (h_kv, n_k, p), output (h, n_q, p_v). Deterministic; ``b + 32/group`` bits a number, cost ``2 n² p``.

    Raises:
        Unsupported: a scale beyond float16. UsageError: ``bits`` or ``group`` out of their limits.
    """
    if side.word == "value":
        last = x[..., -1:].expand(*x.shape[:-1], -x.shape[-1] % group)  # zeros would widen the range of the last group
        return of_blocks(_by_range(in_blocks(torch.cat([x, last], -1), group), bits), x.shape[-1])
    whole = x.shape[-2] // group * group  # later tokens are not in a complete group
    groups = x[..., :whole, :].mT.unflatten(-1, (-1, group))  # (…, p, groups, group)
    read = x.clone()
    read[..., :whole, :] = _by_range(groups, bits).flatten(-2).mT
    return read


def _by_range(groups: Tensor, bits: int) -> Tensor:
    """What is read back of groups (…, g) of numbers."""
    most = 2**bits - 1
    least = groups.amin(-1, keepdim=True)
    step = ((groups.amax(-1, keepdim=True) - least) / most).half().float()
    least = least.half().float()
    codes = ((groups - least) / step.masked_fill(step == 0, torch.inf)).round().clamp(0, most)
    return codes * step + least
