"""One attention call of a model, with all inputs of its exact attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

import torch
from torch import Tensor

from ...errors import Unsupported
from ...operators.block import Block
from ...operators.blocks import reach
from ...operators.groups import folded, repeated, unfolded
from ...qkv import QKV
from .masks import FULL, Pattern

Angles = float | Sequence[float] | Sequence[Sequence[float]]  # of a RoPE, see `AttentionCall.rope`
ROUNDING = 16  # roundings by which biases of heads that share keys may differ from one bias times a number
BLOCK_BYTES = 2**24  # of scores alive at a time on a CPU, where they stay in the cache; elsewhere twice as many


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One call of one attention module: ``softmax(cap(scale · Q Kᵀ) + bias) V`` over the visible keys.

    Attributes:
        module, call: the module's qualified name, and the number of this call of it (ALBERT has one module for all).
        number: the number of this attention call in the forward, from 0.
        kind: the module's class.
        q: (b, h, n_q, p). k: (b, h_kv, n_k, p). v: (b, h_kv, n_k, p_v). All after RoPE and norms; h is a multiple of
            h_kv, and consecutive heads share keys.
        scale: the scale that the model passed.
        visible: the keys that each query sees, (b, 1 or h, n_q, n_k) bool; None means all.
        bias: added to the scores, (b or 1, 1 or h, n_q or 1, n_k); None for no bias.
        softcap: c of ``cap(s) = c tanh(s / c)``; None for no cap.
        sinks: one more score of each head, (h,), whose key has no value; None for no sinks.
        pattern: the form of ``visible``: padding, causal, a window.
        cross: whether the queries and the keys are different tokens (cross attention).
        window: the sliding window of the model, which hides nothing in shorter inputs; None for no window.
        positions: the numbers of the keys at the places of the queries, (n_q,) int64; None: the last tokens.
        all_queries: the queries of all tokens, (b, h, n, p), if q has those of some.
        delta: relative Frobenius distance of this attention, in float64, from the model's own output.
        rope: how the model's RoPE turns pairs of coordinates of a query at each token: the base θ of the angles
            ``θ^(-2i/p)`` of the pairs (i, i + p/2); or the angles of these pairs, (p/2,); or the other pairs with their
            angles, (i, j, angle) each. None: the module has no RoPE, or its RoPE is not known at so many tokens.
        block: what the attention adds to the residual stream, if it was captured and found.
        exact: `output`, if the verification kept it; NaN in rows that it left out.
        own: what the module computes in place of this exact attention, (b, n_q, h, p_v); None if it computes this.
        captured: where it was seen: at transformers' interface, or in the module's code (see
            `attnprobe.inputs.hooks.products`), or in the exact form of a module that approximates it.
        layer: the number of the layer in the model, as in ``--layer``; that of the call by default.
        windows: the number of the text window of each row, by which methods draw; None: each is 0.
        positional: as in `QKV`.
    """

    module: str
    call: int
    number: int
    kind: str
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    visible: Tensor | None = None
    bias: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    pattern: Pattern = field(default=FULL)
    cross: bool = False
    window: int | None = None
    positions: Tensor | None = None
    all_queries: Tensor | None = None
    delta: float = float("nan")
    rope: Angles | None = None
    block: Block | None = None
    exact: Tensor | None = None
    windows: Sequence[int] | None = None
    own: Tensor | None = None
    captured: Literal["interface", "code", "exact form"] = "interface"
    layer: int = -1
    positional: int = 0

    def __post_init__(self) -> None:
        if self.layer < 0:
            object.__setattr__(self, "layer", self.number)

    def __repr__(self) -> str:
        return f"AttentionCall({self.module}, call={self.call}, {', '.join(self.facts())}, delta={self.delta:.1e})"

    @property
    def heads(self) -> int:
        """h, the number of query heads."""
        return self.q.shape[1]

    @property
    def kv_heads(self) -> int:
        """h_kv, the number of heads of keys and values."""
        return self.k.shape[1]

    def facts(self) -> list[str]:
        """The sizes, scale, mask and further features of the call, in words."""
        (b, h, n_q, p), (_, h_kv, n_k, p_v) = self.q.shape, self.v.shape
        facts = [f"batch={b}", f"h={h}" if h == h_kv else f"h={h} (kv {h_kv})"]
        facts += [f"n={n_q}" if n_q == n_k else f"n_q={n_q}, n_k={n_k}", f"p={p}" if p == p_v else f"p={p}, p_v={p_v}"]
        return [*facts, f"scale={self.scale:.6g}", f"mask={self.pattern}", *self.extras()]

    def extras(self) -> list[str]:
        """The features besides scale and mask: ``cross``, ``bias``, ``softcap=50``, ``sinks``, a wider window.

        ``key bias`` is one more coordinate of Q and K, as ALiBi is, see `with_coordinate`.
        """
        extras = ["cross"] if self.cross else []
        extras += [f"window={self.window}"] if self.window and self.pattern.left is None else []
        of_keys = self.bias is not None and self.with_coordinate() is not self
        extras += ["key bias" if of_keys else "bias"] if self.bias is not None else []
        extras += [f"softcap={self.softcap:g}"] if self.softcap is not None else []
        return extras + (["sinks"] if self.sinks is not None else [])

    @property
    def causal(self) -> bool:
        """Whether the queries are the last tokens, and each sees no token after itself."""
        if self.cross or not self.pattern.regular:
            return False
        last_alone = self.cached and self.q.shape[2] == 1  # after a cache; no key is after it
        return self.pattern.right == 0 or (last_alone and self.pattern.right is None)

    @property
    def cached(self) -> bool:
        """Whether the queries are only the last tokens, and the earlier keys come from a cache."""
        return not self.cross and self.positions is None and self.q.shape[2] < self.k.shape[2]

    @property
    def sliding_window(self) -> int | None:
        """w if keys at a distance of w or more are hidden, as in `QKV`; None if no key is hidden by its distance."""
        return None if self.pattern.left is None else self.pattern.left + 1

    @property
    def local(self) -> bool:
        """Whether the model has a sliding window here, even if it hides none of these keys."""
        return self.window is not None or self.sliding_window is not None

    def beyond(self) -> str | None:
        """The reason why a `QKV` cannot describe this call; None if it can.

        A `QKV` has Q, K, V, a padding mask, a sliding window that is causal or as wide on both sides, sinks, a bias and
        a cap.
        """
        if self.pattern.band and (self.cross or not (self.causal or self.pattern.symmetric)):
            return f"{self.pattern} attention{' to other tokens' if self.cross else ''} is not supported"
        if self.cached and self._has_padded_queries():
            return "queries that are padding follow a cache of keys"
        return None

    def _has_padded_queries(self) -> bool:
        keys = self.pattern.keys
        return keys is not None and not bool(keys[:, -self.q.shape[2] :].all())

    def output(self) -> Tensor:
        """The exact attention of this call in float64, (b, n_q, h, p_v), computed in blocks of rows."""
        if self.exact is not None:
            return self.exact
        return torch.cat([rows for _, _, rows, _ in self.output_blocks()], dim=1)

    def output_blocks(self, first: int = 0) -> Iterator[tuple[int, int, Tensor, float]]:
        """Yields ``(start, stop, rows, largest score)``. The rows of queries without visible keys are 0.

        Blocks that end before the row ``first`` are left out. Keys that come after all rows of a block are not read.
        """
        k, v = self.k.double(), self.v.double()
        for start, stop in blocks(self.q, k, bytes_each=8):
            if stop <= first:
                continue
            n_k, queries = k.shape[2], slice(start, stop)
            # Half of all scores of a causal text are hidden: keys behind the block are left out rather than computed.
            in_order = self.causal and self.positions is None
            seen = reach(stop - 1 + n_k - self.q.shape[2], n_k) if in_order else n_k
            visible, bias = rows_of(self.visible, queries), rows_of(self.bias, queries)
            rows, largest = exact_rows(
                self.q[:, :, queries].double(),
                k[:, :, :seen],
                v[:, :, :seen],
                self.scale,
                visible=None if visible is None else visible[..., :seen],
                bias=None if bias is None else bias[..., :seen],
                softcap=self.softcap,
                sinks=self.sinks,
            )
            yield start, stop, rows, largest

    def at(self, queries: Tensor) -> AttentionCall:
        """The call with the queries of some tokens (n_q,) only. In this call all tokens must be queries."""
        rows = {name: rows_of(getattr(self, name), queries) for name in ("q", "visible", "bias")}
        block = None if self.block is None else self.block.at(slice(None), queries)
        own = None if self.own is None else self.own[:, queries]
        return replace(self, **rows, positions=queries, all_queries=self.q, exact=None, block=block, own=own)

    def with_coordinate(self) -> AttentionCall:
        """The call with a bias of the keys (b, h, 1, n_k), as ALiBi is, as one more coordinate of Q and K.

        With the bias ``β_j = m c_j`` it is ``q' = [q, m / scale]``, ``k' = [k, c]``, so that ``scale · q'·k'`` is the
        score with its bias. Heads that share keys have one c, with an m each; where they have none, keys and values are
        repeated. RoPE does not turn the coordinate. Another bias, and one beside a cap, stays. Of one query every bias
        is one of keys, so that of the only query stays too, unless it grows by equal steps, as ALiBi does.
        """
        if self.bias is None or self.bias.shape[2] > 1 or self.softcap is not None:
            return self
        if self.q.shape[2] == 1 and not self._by_steps(self.bias):
            return self
        (b, h, _, _), h_kv = self.q.shape, self.kv_heads
        bias = self.bias.to(self.k).expand(b, h, 1, -1)[:, :, 0].unflatten(1, (h_kv, -1))  # (b, h_kv, group, n_k)
        # ALiBi has another slope for each head, so heads that share keys share the distances c and differ in m alone.
        common = bias[:, :, 0]
        size = common.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(bias.dtype).tiny)
        slope = (bias * common[:, :, None]).sum(-1) / common.square().sum(-1, keepdim=True).clamp(min=1e-30)
        apart = (bias - slope[..., None] * common[:, :, None]).abs().amax(-1) / size
        k, v = self.k, self.v
        if bool((apart > ROUNDING * torch.finfo(bias.dtype).eps).any()):
            k, v, common = repeated(k, h), repeated(v, h), bias.flatten(1, 2)
            slope = torch.ones_like(common[..., :1])
        factor = (slope.flatten(1) / self.scale)[:, :, None, None]

        def longer(q: Tensor) -> Tensor:
            return torch.cat([q, factor.to(q).expand(-1, -1, q.shape[2], -1)], -1)

        queries = None if self.all_queries is None else longer(self.all_queries)
        k = torch.cat([k, common[..., None].to(k)], -1)
        longer_by = {"bias": None, "rope": None, "positional": 1}
        return replace(self, q=longer(self.q), k=k, v=v, all_queries=queries, **longer_by)

    def _by_steps(self, bias: Tensor) -> bool:
        """Whether biases (b, h, 1, n_k) grow by equal steps over the visible keys, but for the rounding of bfloat16."""
        seen = torch.ones_like(bias, dtype=torch.bool) if self.visible is None else self.visible
        last = seen.shape[3] - 1 - seen.flip(3).byte().argmax(3, keepdim=True)
        first = seen.byte().argmax(3, keepdim=True)
        ends = [bias.gather(3, end.expand(len(bias), bias.shape[1], 1, 1)) for end in (first, last)]
        place = (torch.arange(seen.shape[3], device=bias.device) - first) / (last - first).clamp(min=1)
        gap = (bias - ends[0] - place * (ends[1] - ends[0])).abs().masked_fill(~seen, 0)
        return bool(gap.amax() <= torch.finfo(torch.bfloat16).eps * bias.abs().amax())

    def plain(self) -> AttentionCall:
        """The call without its bias and cap: softmax of ``scale · Q Kᵀ`` over the visible keys.

        The model's own output and residual stream are not those of this attention, so it has none of them.
        """
        return replace(self, bias=None, softcap=None, exact=None, own=None, block=None)

    def without_end(self) -> AttentionCall:
        """The call without padding behind the tokens of all rows, which some models add to a text themselves."""
        keys = self.pattern.keys
        if keys is None or self.cross or self.cached or not self.pattern.regular:
            return self
        # Only the same end in all rows can be cut off; other padding stays a mask.
        n = int(keys[0].sum())
        if not bool(keys[:, :n].all()) or bool(keys[:, n:].any()):
            return self
        parts = {name: getattr(self, name)[:, :, :n] for name in "qkv"}
        for name in ("visible", "bias"):
            x = getattr(self, name)
            parts[name] = None if x is None else x[..., : n if x.shape[-2] > 1 else 1, :n]
        seen = parts["visible"]
        parts["visible"] = None if seen is None or bool(seen.all()) else seen
        own = None if self.own is None else self.own[:, :n]
        return replace(self, **parts, own=own, pattern=replace(self.pattern, keys=None))

    def qkv(self, row: int = 0) -> QKV:
        """The inputs of a method for one batch row: Q, K, V, and what each query sees.

        In self-attention a padded key is also a padded query. In cross attention and before the queries of a cache,
        padded keys are removed.

        Raises:
            Unsupported: the call has a mask, bias or cap that a `QKV` cannot describe.
        """
        reason = self.beyond()
        if reason is not None:
            raise Unsupported(f"{self.module}: {reason}, and a method that gets only Q, K and V would miss it")
        if (longer := self.with_coordinate()) is not self:
            return longer.qkv(row)
        q, k, v = self.q[row], self.k[row], self.v[row]
        bias = None if self.bias is None else self.bias.expand(len(self.q), -1, q.shape[1], k.shape[1])[row]
        mask = None if self.pattern.keys is None else self.pattern.keys[row]
        if mask is not None and bool(mask.all()):
            mask = None
        key_positions = None
        if mask is not None and (self.cross or self.cached):
            # A mask of a `QKV` is of keys and queries alike; here the keys are not the queries, so padding is cut out.
            valid = mask.nonzero()[:, 0]
            k, v, mask = k[:, valid], v[:, valid], None
            bias = None if bias is None else bias[..., valid]
            key_positions = None if self.cross else valid - valid[0]
        n_q, n_k = q.shape[1], k.shape[1]
        window = 0 if self.windows is None else self.windows[row]
        return QKV(
            q,
            k,
            v,
            scale=self.scale,
            mask=mask,
            label={"layer": self.layer, "window": window, **({} if self.rope is None else {"rope": self.rope})},
            causal=self.causal,
            positions=torch.arange(n_k - n_q, n_k, device=k.device) if self.cached else self.positions,
            sliding_window=self.sliding_window,
            sink_logits=self.sinks,
            all_queries=None if self.all_queries is None else self.all_queries[row],
            key_positions=key_positions,
            bias=bias,
            softcap=self.softcap,
            positional=self.positional,
            own=None if self.own is None else self.own[row].transpose(0, 1),
            block=None if self.block is None else self.block.at(row),
        )


def joined(calls: Sequence[AttentionCall]) -> AttentionCall | None:
    """The calls of a layer as one call, whose values are those of all, side by side; None if they differ otherwise.

    Calls with equal queries, keys and masks have the same attention matrix (DiffLlama calls it for each half of V).
    """
    first, *others = calls
    if not others:
        return first
    if not all(_same_matrix(first, other) for other in others):
        return None
    outputs = [call.exact for call in calls if call.exact is not None]
    return replace(
        first,
        v=torch.cat([call.v for call in calls], -1),
        exact=torch.cat(outputs, -1) if len(outputs) == len(calls) else None,
        delta=max(call.delta for call in calls),
        block=None,
    )


def _same_matrix(call: AttentionCall, other: AttentionCall) -> bool:
    """Whether two calls have the same exact attention matrix."""
    if (call.scale, call.softcap, call.cross, call.window) != (other.scale, other.softcap, other.cross, other.window):
        return False
    names = ("q", "k", "visible", "bias", "sinks", "positions")
    return all(_same(getattr(call, name), getattr(other, name)) for name in names)


def _same(x: Tensor | None, other: Tensor | None) -> bool:
    if x is None or other is None:
        return x is other
    return x is other or (x.shape == other.shape and torch.equal(x, other))


def rows_of(x: Tensor | None, queries: Tensor | slice) -> Tensor | None:
    """The rows of some queries of x (..., n_q or 1, ·). One row, or none, serves all queries and stays."""
    return x if x is None or x.shape[-2] == 1 else x[..., queries, :]


def exact_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    *,
    visible: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, float]:
    """Exact attention of the given queries over all keys, (b, n_q, h, p_v), and the largest |score| of a key.

    With a bias it is also the largest with its bias among keys that have a weight. Its size decides the rounding.

    ``softmax([c tanh(S / c) + bias, sink]) [V; 0]`` with hidden keys at -∞. Q is (b, h, n_q, p), K and V are
    (b, h_kv, n_k, ·). The output of a query without visible keys is 0.
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    scores = unfolded(folded(q * scale, kv_heads) @ k.mT, heads)  # (b, h, n_q, n_k)
    largest = float(torch.maximum(scores.detach().amax(), -scores.detach().amin()))
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    hidden = None if visible is None else ~visible
    if hidden is not None:
        scores = scores.masked_fill_(hidden, torch.finfo(scores.dtype).min)
    if sinks is not None:
        sink = sinks.to(scores.dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : k.shape[-2]]
    if bias is not None:
        sizes = scores[..., : k.shape[-2]].detach().abs().masked_fill(weights.detach() == 0, 0)
        sizes = sizes if hidden is None else sizes.masked_fill(hidden, 0)
        largest = max(largest, float(sizes.amax()))
    if hidden is not None and (bias is not None or bool(hidden.all(-1).any())):  # else they have no weight
        weights = weights.masked_fill(hidden, 0.0)
    return unfolded(folded(weights, kv_heads) @ v, heads).transpose(1, 2), largest


def blocks(q: Tensor, k: Tensor, bytes_each: int = 4) -> Iterator[tuple[int, int]]:
    """Yields ``(start, stop)`` of blocks of query rows, of at most `BLOCK_BYTES` of scores."""
    return row_blocks(q[..., :1].expand(*q.shape[:3], k.shape[2]), bytes_each)


def row_blocks(scores: Tensor, bytes_each: int = 8) -> Iterator[tuple[int, int]]:
    """Yields ``(start, stop)`` of blocks of rows of scores (…, n_q, n_k), of at most `BLOCK_BYTES`."""
    *heads, n_q, n_k = scores.shape
    row = prod(heads) * n_k * bytes_each
    step = max(1, (1 if scores.device.type == "cpu" else 2) * BLOCK_BYTES // row)
    for start in range(0, n_q, step):
        yield start, min(start + step, n_q)
