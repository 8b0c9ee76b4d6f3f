"""Kernels that compute a case of a pack block by block: correct ones, and ones with a planted fault."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import e, inf, log2
from typing import Any

import torch
from torch import Tensor

from attnprobe.testing.packs import Case, expected


@dataclass(frozen=True)
class Kernel:
    """Online softmax over blocks of keys, in float32, with weights rounded to the dtype of V.

    Each field but ``block`` and ``base2`` is a place where a fault can be planted.
    """

    block: int = 64
    base2: bool = False
    blocks: Callable[[list[Tensor]], list[Tensor]] = lambda blocks: blocks  # which blocks of keys are read
    scores: Callable[[Tensor], Tensor] = lambda scores: scores
    weights: Callable[[Tensor], Tensor] = lambda weights: weights
    accumulator: Callable[[Tensor], Tensor] = lambda total: total  # after each addition to the output
    normaliser: Callable[[Tensor], Tensor] = lambda total: total  # after each addition to the sum of weights
    start: float = -inf  # of the running maximum
    shift: bool = True
    rescale_output: bool = True
    rescale_sum: bool = True
    hidden_score: float = -inf
    hidden_weight: float = 0.0
    sinks: int = 1  # how often the sink is added to the sum
    value_of: Callable[[int], int] = lambda block: block  # the block of V beside a block of K
    group: Callable[[int, int, int], int] = lambda head, heads, kv: head // (heads // kv)
    value_group: Callable[[int, int, int], int] | None = None
    output: Callable[[Case, Tensor], Tensor] = lambda case, output: output

    def __call__(self, case: Case) -> Tensor:
        heads, kv = len(case.q), len(case.k)
        of_value = self.value_group or self.group
        rows = [
            self._head(case, head, case.k[self.group(head, heads, kv)], case.v[of_value(head, heads, kv)])
            for head in range(heads)
        ]
        return self.output(case, torch.stack(rows)).to(case.dtype)

    def _head(self, case: Case, head: int, k: Tensor, v: Tensor) -> Tensor:
        q, hidden = case.q[head].float(), case.hidden
        top = torch.full((len(q), 1), self.start)
        if case.sink_logits is not None:
            top = top.clamp(min=float(case.sink_logits[head]))
        total, out = torch.zeros(len(q), 1), torch.zeros(len(q), v.shape[1])
        blocks = list(torch.arange(len(k)).split(self.block))
        for number, block in enumerate(self.blocks(blocks)):
            scores = case.scale * (q @ k[block].float().mT)
            if case.softcap is not None:
                scores = case.softcap * torch.tanh(scores / case.softcap)
            scores = self.scores(scores).masked_fill(hidden[:, block], self.hidden_score)
            new = torch.maximum(top, scores.amax(-1, keepdim=True)) if self.shift else torch.zeros_like(top)
            base = torch.where(new == -inf, 0.0, new)
            weights = self._exp(scores - base)
            if self.hidden_weight:
                weights = weights.masked_fill(hidden[:, block], self.hidden_weight)
            shrink = self._exp(torch.where(top == new, 0.0, top - base)) if self.shift else torch.ones_like(top)
            total = self.normaliser(total * (shrink if self.rescale_sum else 1) + weights.sum(-1, keepdim=True))
            values = v[self._block(blocks, block, number)].float()
            rounded = self.weights(weights).to(v.dtype).float()
            out = self.accumulator(out * (shrink if self.rescale_output else 1) + rounded @ values)
            top = new
        if case.sink_logits is not None:
            total = total + self.sinks * self._exp(case.sink_logits[head] - torch.where(top == -inf, 0.0, top))
        return out / total

    def _block(self, blocks: list[Tensor], block: Tensor, number: int) -> Tensor:
        other = blocks[self.value_of(number)] if self.value_of(number) < len(blocks) else block
        return other if len(other) == len(block) else block

    def _exp(self, x: Tensor) -> Tensor:
        return torch.exp2(x * log2(e)) if self.base2 else torch.exp(x)


def naive(case: Case, inner: torch.dtype = torch.float32, rounded: bool = True) -> Tensor:
    """``softmax(scores) V`` at once, with scores and sums in a dtype, and weights rounded to the dtype of V."""
    heads = []
    for head in range(len(case.q)):
        k, v = (x[head // (len(case.q) // len(x))].to(inner) for x in (case.k, case.v))
        scores = case.scale * (case.q[head].to(inner) @ k.mT)
        if case.softcap is not None:
            scores = case.softcap * torch.tanh(scores / case.softcap)
        scores = scores.masked_fill(case.hidden, -inf)
        if case.sink_logits is not None:
            scores = torch.cat([scores, case.sink_logits[head].to(inner).expand(len(scores), 1)], -1)
        weights = torch.softmax(scores, -1)[:, : len(k)]
        heads.append((weights.to(case.dtype).to(inner) if rounded else weights) @ v)
    return torch.stack(heads).to(case.dtype)


def sdpa(case: Case, backend: Any) -> Tensor:
    """torch's own kernel, or its math kernel where it has none; it cannot compute capped scores.

    A sink is one more key with this score and a value of 0.
    """
    if case.softcap is not None:
        return naive(case)
    group = len(case.q) // len(case.k)
    k, v = (x.repeat_interleave(group, 0) for x in (case.k, case.v))
    bias = torch.zeros(len(case.q), *case.hidden.shape).masked_fill(case.hidden, -inf)
    if case.sink_logits is not None:
        k, v = (torch.cat([x, x.new_zeros(len(x), 1, x.shape[2])], 1) for x in (k, v))
        bias = torch.cat([bias, case.sink_logits[:, None, None].expand(-1, bias.shape[1], 1)], -1)
    with warnings.catch_warnings(), torch.nn.attention.sdpa_kernel([backend, MATH], set_priority=True):
        warnings.simplefilter("ignore")  # torch tells why it leaves a kernel out
        return torch.nn.functional.scaled_dot_product_attention(
            case.q[None], k[None], v[None], attn_mask=bias[None].to(case.dtype), scale=case.scale
        )[0]


MATH, FLASH = torch.nn.attention.SDPBackend.MATH, torch.nn.attention.SDPBackend.FLASH_ATTENTION
CORRECT: dict[str, Callable[[Case], Tensor]] = {
    "sdpa math": lambda case: sdpa(case, MATH),
    "sdpa flash": lambda case: sdpa(case, FLASH),
    "naive, float32 sums, rounded weights": naive,
    "naive, float32 sums, unrounded weights": lambda case: naive(case, rounded=False),
    "naive, float64 sums, rounded weights": lambda case: naive(case, torch.float64),
    "blocks of 16": Kernel(16),
    "blocks of 64": Kernel(64),
    "blocks of 128": Kernel(128),
    "blocks of 64, exp2": Kernel(64, base2=True),
    "float64": lambda case: expected(case).output.to(case.dtype),
}


def on(case: Case, **changes: Any) -> Tensor:
    """A correct kernel on a case that is read wrongly."""
    return Kernel()(replace(case, **changes))


def shifted(case: Case, by: int) -> Tensor:
    """Positions of causal queries that are wrong by one; rows that would see nothing see the first key."""
    return (case.positions + by).clamp(0, case.k.shape[1] - 1) if case.causal else case.positions


def first_rows(case: Case) -> Tensor:
    return torch.arange(len(case.positions)).clamp(max=case.k.shape[1] - 1)


def lengthened(case: Case, by: int) -> Tensor | None:
    if case.keys_seen is None:
        return None
    return torch.arange(len(case.keys_seen)) < max(1, int(case.keys_seen.sum()) + by)


def to(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: x.to(dtype).float()


def at(place: tuple[Any, ...], value: float) -> Callable[[Case, Tensor], Tensor]:
    def changed(case: Case, output: Tensor) -> Tensor:
        output = output.clone()
        output[place] = value
        return output

    return changed


def cut_rows(case: Case, output: Tensor) -> Tensor:
    """Rows behind the last full block of 16 are never written."""
    output = output.clone()
    output[:, output.shape[1] // 16 * 16 :] = 0
    return output


def wrong_head(case: Case, output: Tensor) -> Tensor:
    return output.roll(1, 0)


def fp8(x: Tensor) -> Tensor:
    return x.to(torch.float8_e4m3fn).float()


def int8(x: Tensor) -> Tensor:
    step = x.float().abs().amax(-1, keepdim=True) / 127
    return (x.float() / step).round().mul(step).to(x.dtype)


PLANTED: dict[str, Callable[[Case], Tensor]] = {
    "causal sees one key too many": lambda case: on(case, positions=shifted(case, 1)),
    "causal misses its own key": lambda case: on(case, positions=shifted(case, -1)),
    "causal mask from the first corner": lambda case: on(case, positions=first_rows(case)),
    "causal mask lost": lambda case: on(case, causal=False, sink_tokens=0),
    "causal where it is not": lambda case: on(case, causal=True),
    "sinks lost": lambda case: on(case, sink_logits=None),
    "sinks counted twice": Kernel(sinks=2),
    "sinks in the maximum only": Kernel(sinks=0),
    "sinks of the first head for all": lambda case: on(
        case, sink_logits=None if case.sink_logits is None else case.sink_logits[:1].expand(len(case.q))
    ),
    "window lost": lambda case: on(case, window=None),
    "window one too wide": lambda case: on(case, window=case.window and case.window + 1),
    "window one too narrow": lambda case: on(case, window=case.window and max(1, case.window - 1)),
    "window of one side": lambda case: on(case, causal=case.causal or case.window is not None),
    "sink tokens lost": lambda case: on(case, sink_tokens=0),
    "one sink token too many": lambda case: on(case, sink_tokens=case.sink_tokens and case.sink_tokens + 1),
    "tail block skipped": Kernel(blocks=lambda blocks: blocks[:-1] or blocks),
    "first block skipped": Kernel(blocks=lambda blocks: blocks[1:] or blocks),
    "last block read twice": Kernel(blocks=lambda blocks: [*blocks, blocks[-1]]),
    "block of the middle skipped": Kernel(16, blocks=lambda blocks: blocks[:2] + blocks[3:]),
    "tail beyond full blocks skipped": Kernel(
        blocks=lambda blocks: [block for block in blocks if len(block) == 64] or blocks
    ),
    "padding read": lambda case: on(case, keys_seen=None),
    "length one too long": lambda case: on(case, keys_seen=lengthened(case, 1)),
    "length one too short": lambda case: on(case, keys_seen=lengthened(case, -1)),
    "hidden scores of -50000": Kernel(hidden_score=-5e4),
    "hidden scores of -10": Kernel(hidden_score=-10.0),
    "hidden scores of 0": Kernel(hidden_score=0.0),
    "running maximum starts at 0": Kernel(start=0.0),
    "running maximum starts at -50000": Kernel(start=-5e4),
    "scores not shifted": Kernel(shift=False),
    "output summed in bfloat16": Kernel(16, accumulator=to(torch.bfloat16)),
    "weights summed in bfloat16": Kernel(16, normaliser=to(torch.bfloat16)),
    "output summed in float16": Kernel(16, accumulator=to(torch.float16)),
    "scores rounded to bfloat16": Kernel(scores=to(torch.bfloat16)),
    "weights rounded to fp8": Kernel(weights=fp8),
    "keys rounded to int8": lambda case: on(case, k=int8(case.k)),
    "values rounded to int8": lambda case: on(case, v=int8(case.v)),
    "scale of the values' size": lambda case: on(case, scale=case.v.shape[2] ** -0.5),
    "scale 1/p": lambda case: on(case, scale=1 / case.q.shape[2]),
    "scale applied twice": lambda case: on(case, scale=case.scale**2),
    "scale of 1/√p whatever is asked": lambda case: on(case, scale=case.q.shape[2] ** -0.5),
    "cap lost": lambda case: on(case, softcap=None),
    "cap at half": lambda case: on(case, softcap=case.softcap and case.softcap / 2),
    "groups dealt in turn": Kernel(group=lambda head, heads, kv: head % kv),
    "all groups read the first": Kernel(group=lambda head, heads, kv: 0),
    "values of another group": Kernel(value_group=lambda head, heads, kv: (head // (heads // kv) + 1) % kv),
    "zeros": Kernel(output=lambda case, output: torch.zeros_like(output)),
    "mean of the values": Kernel(output=lambda case, output: case.v.float().mean(1, keepdim=True)[0].expand_as(output)),
    "NaN in one row": Kernel(output=at((0, -1), torch.nan)),
    "infinity in one entry": Kernel(output=at((-1, 0, 3), torch.inf)),
    "values of the block before": Kernel(value_of=lambda block: max(0, block - 1)),
    "output not rescaled": Kernel(16, rescale_output=False),
    "sum not rescaled": Kernel(16, rescale_sum=False),
    "hidden keys counted in the sum": Kernel(hidden_weight=1e-3),
    "last rows never written": Kernel(output=cut_rows),
    "heads shifted by one": Kernel(output=wrong_head),
    "rows shifted by one": Kernel(output=lambda case, output: output.roll(1, 1)),
    "values shifted by one": Kernel(output=lambda case, output: output.roll(1, 2)),
    "output 2 % too large": Kernel(output=lambda case, output: 1.02 * output),
    "last entry lost": Kernel(output=at((slice(None), slice(None), -1), 0.0)),
    "exp2 without its factor": lambda case: on(case, scale=case.scale * 0.6931471805599453),
}
