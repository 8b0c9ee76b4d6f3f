"""Queries, keys and values of one attention layer, checked once."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .errors import LINE, NotFinite, UsageError, cut
from .grammar.arguments import tensor_fault
from .operators.groups import as_index, repeated, shared_heads
from .operators.terms import Terms
from .operators.visible import Visible

if TYPE_CHECKING:
    from .operators.block import Block

TOKENS = 2**13  # tokens that are checked for NaN and infinity at once
LARGEST = 2**53  # of a whole number: rows hold numbers as JSON, whose readers use float64
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, eq=False, init=False)
class QKV:
    """Queries, keys and values of every head of one layer.

    With grouped queries (GQA) consecutive query heads share a KV head. ``shared_k`` and ``shared_v`` have h_kv heads;
    `k` and `v` repeat them for each query head when they are first read.

    Args:
        q: queries, ``(h, n_q, p)``; ``(n_q, p)`` counts as one head.
        k: keys, ``(h_kv, n_k, p)``, on the same device and of the same dtype. h is a multiple of h_kv.
        v: values, ``(h_kv, n_k, p_v)``.
        scale: the factor on ``Q Kᵀ``; ``None`` is ``1/√p``. The attention applies it exactly once.
        mask: ``(n,)`` bool, true at valid tokens (a padding mask; needs ``n_q == n_k``); ``None`` means all valid.
        heads: the original numbers of the heads, which `select` preserves; ``None`` is ``0 … h-1``.
        label: the origin of the tensors (``layer``, ``window`` and the source's facts).
        causal: each query sees only the keys up to its position. The exact attention is then causal, and methods
            without a causal form refuse the inputs.
        positions: the number of the key at each query's own place, ``(n_q,)`` int64. ``None``: the queries of causal
            inputs are the last n_q tokens, so that query i sees the keys up to ``i + n_k - n_q``; the queries of other
            inputs are the first n_q tokens, and surplus ones stand at the last key.
        sliding_window: w; a query at position c sees only the keys at a distance below w: ``c - w + 1 … c`` if causal,
            otherwise ``c - w + 1 … c + w - 1``. Padding between valid tokens counts. ``None`` is no window.
        sinks: s; every query of causal inputs sees the keys at the positions ``0 … s - 1`` up to its own, also outside
            of its window. With a mask, position 0 is that of the first valid token.
        sink_logits: one more score of each head, ``(h,)``, whose key has no value. The normaliser of a row is then
            ``Σ_j exp(S_ij) + exp(sink)``, and its weights sum to less than 1. ``None`` is no such score.
        kv_groups: the numbers of the heads that share each KV head of the source. `select` preserves it, so that the
            KV heads of a part keep their numbers. ``None``: the heads that share each head of ``k``.
        all_queries: the queries of all tokens, ``(h, n_k, p)``, if ``q`` has those of some. Methods that choose keys by
            earlier queries read them, see `complete`. ``None``: they are not given.
        key_positions: the position of each key in the text, ``(n_k,)`` int64, ascending. Sliding windows and sinks go
            by them. ``None``: the keys are tokens in a row, ``0 … n_k - 1``. `compressed` keeps the positions of the
            valid tokens if padding was between them.
        bias: added to the scores after the scale, ``(h or 1, n_q, n_k)``. ``None`` is no bias.
        softcap: c; the scores s become ``c tanh(s / c)``, before the bias. ``None`` is no cap.
        own: what the module of a model computes in place of exact attention, ``(h, n_q, p_v)``. `replace` drops it with
            `block`. ``None``: it computes exact attention, or it is not known.
        block: what these heads add to a model's residual stream at the queries, from which `row_metrics` has residual
            errors. Sources with a model give it. `replace` drops it, except with another label. ``None``: not known.
        positional: the number of the last coordinates of ``q`` and ``k`` that carry a bias of positions, such as
            ALiBi's. A cache does not hold them, so formats leave them exact.

    Raises:
        UsageError: an argument of another type, an axis that does not fit, a dtype that is not floating point, or
            different dtypes or devices. The message names the argument and the axis.
        NotFinite: a value that is not finite; a `UsageError` too.

    >>> qkv = QKV(torch.zeros(2, 5, 4), torch.zeros(2, 5, 4), torch.ones(2, 5, 3))
    >>> qkv.h, qkv.n_q, qkv.n_k, qkv.p, qkv.p_v, qkv.scale
    (2, 5, 5, 4, 3, 0.5)
    >>> grouped = QKV(torch.zeros(8, 5, 4), torch.zeros(2, 5, 4), torch.ones(2, 5, 3))
    >>> grouped.group, grouped.kv_heads, grouped.k.shape
    (4, 2, torch.Size([8, 5, 4]))
    >>> QKV(torch.zeros(5, 4), torch.zeros(5, 3), torch.ones(5, 4))
    Traceback (most recent call last):
    attnprobe.errors.UsageError: k: head dimension 3 differs from q's 4
    """

    q: Tensor
    shared_k: Tensor
    shared_v: Tensor
    scale: float
    mask: Tensor | None
    heads: tuple[int, ...]
    label: Mapping[str, Any]
    causal: bool
    positions: Tensor | None
    sliding_window: int | None
    sinks: int
    sink_logits: Tensor | None
    kv_groups: tuple[tuple[int, ...], ...]
    all_queries: Tensor | None
    key_positions: Tensor | None
    bias: Tensor | None
    softcap: float | None
    own: Tensor | None
    block: Block | None
    positional: int

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float | None = None,
        mask: Tensor | None = None,
        heads: Iterable[int] | None = None,
        label: Mapping[str, Any] | None = None,
        causal: bool = False,
        positions: Tensor | None = None,
        sliding_window: int | None = None,
        sinks: int = 0,
        sink_logits: Tensor | None = None,
        kv_groups: Iterable[Iterable[int]] | None = None,
        all_queries: Tensor | None = None,
        key_positions: Tensor | None = None,
        bias: Tensor | None = None,
        softcap: float | None = None,
        own: Tensor | None = None,
        block: Block | None = None,
        positional: int = 0,
    ) -> None:
        q, k, v = (_three_axes(name, x) for name, x in zip("qkv", (q, k, v), strict=True))
        _check_axes(q, k, v)
        if label is not None and not isinstance(label, Mapping):
            raise UsageError(f"label: expected a mapping, got {type(label).__name__}")
        if not isinstance(causal, bool):
            raise UsageError(f"causal: {causal!r} is neither True nor False")
        fields = vars(self)  # frozen: the fields are set here alone
        # each check reads the fields that are set before it, so their order matters
        fields |= {"q": q, "shared_k": k, "shared_v": v, "scale": _scale(scale, q.shape[2]), "mask": None}
        fields |= {"heads": _numbers(heads, q.shape[0]), "label": label or {}, "causal": causal}
        fields["sliding_window"] = None if sliding_window is None else whole("sliding_window", sliding_window, 1)
        fields["sinks"] = whole("sinks", sinks)
        if positions is None and causal and self.n_q > self.n_k:
            raise UsageError(f"causal: {self.n_q} queries and {self.n_k} keys: give the positions of the queries")
        placed = None if positions is None else check_positions(positions, self.n_q, self.n_k, causal)
        fields["positions"] = None if placed is None else placed.to(self.device)
        if mask is not None:
            # `_checked_mask` has seen that the positions are those of the tokens, so they say nothing more
            fields |= {"mask": self._checked_mask(mask), "positions": None}
        fields["sink_logits"] = None if sink_logits is None else self._checked_sinks(sink_logits)
        starts = range(0, self.h, self.group)
        shared = [self.heads[start : start + self.group] for start in starts] if kv_groups is None else kv_groups
        fields["kv_groups"] = tuple(map(tuple, shared))
        if absent := set(self.heads).difference(*self.kv_groups):
            raise UsageError(f"kv_groups: head {min(absent)} is in none of them")
        fields["all_queries"] = None if all_queries is None else self._checked_queries(all_queries)
        fields["key_positions"] = None if key_positions is None else self._checked_key_positions(key_positions)
        fields["bias"] = None if bias is None else self._checked_bias(bias)
        fields["softcap"] = None if softcap is None else _positive("softcap", softcap)
        fields["positional"] = whole("positional", positional)
        if self.positional >= self.p:
            raise UsageError(f"positional: {positional} coordinates of {self.p} leave none to the keys")
        fields["own"] = None if own is None else self._checked_own(own)
        if block is not None and tuple(block.size.shape) != (self.n_q,):
            raise UsageError(f"block: its sizes have shape {tuple(block.size.shape)}, not ({self.n_q},)")
        fields["block"] = block
        if self.sinks and not causal:
            raise UsageError(f"sinks: {sinks} is for causal inputs only")

    def _checked_mask(self, mask: Tensor) -> Tensor:
        _check_tensor("mask", mask)
        if mask.dtype != torch.bool or mask.shape != (self.n_k,) or self.n_q != self.n_k:
            raise UsageError(
                f"mask: needs shape ({self.n_k},), dtype bool and as many queries as keys; "
                f"got {tuple(mask.shape)}, {mask.dtype}, {self.n_q} queries"
            )
        if not mask.any():
            raise UsageError("mask: no valid token")
        if not self.square:
            raise UsageError("mask: the queries are not the tokens in their order; drop the padded keys instead")
        return mask.to(self.device)

    def _checked_sinks(self, logits: Tensor) -> Tensor:
        _check_tensor("sink_logits", logits)
        if logits.shape != (self.h,) or logits.dtype not in DTYPES:
            raise UsageError(
                f"sink_logits: needs shape ({self.h},), one number for each head, and a floating dtype; "
                f"got {tuple(logits.shape)}, {logits.dtype}"
            )
        logits = logits.to(self.q)
        if not torch.isfinite(logits).all():
            raise NotFinite(f"sink_logits: a number is not finite in {self.dtype}")
        return logits

    def _checked_bias(self, bias: Tensor) -> Tensor:
        _check_tensor("bias", bias)
        bias = bias[None] if bias.dim() == 2 else bias
        shapes = [(heads, self.n_q, self.n_k) for heads in (1, self.h)]
        if bias.dtype not in DTYPES or tuple(bias.shape) not in shapes:
            raise UsageError(
                f"bias: needs shape ({self.h} or 1, {self.n_q}, {self.n_k}) and a floating dtype; "
                f"got {tuple(bias.shape)}, {bias.dtype}"
            )
        bias = bias.to(self.q)
        if not torch.isfinite(bias).all():
            raise NotFinite(f"bias: a number is not finite in {self.dtype}; hide keys by a mask")
        return bias

    def _checked_own(self, output: Tensor) -> Tensor:
        output = _three_axes("own", output)
        if output.shape != (self.h, self.n_q, self.p_v):
            raise UsageError(f"own: needs shape ({self.h}, {self.n_q}, {self.p_v}); got {tuple(output.shape)}")
        return output.to(self.q)

    def _checked_queries(self, queries: Tensor) -> Tensor:
        queries = _three_axes("all_queries", queries)
        shape = (self.h, self.n_k, self.p)
        if queries.shape != shape or queries.dtype != self.dtype or queries.device != self.device:
            raise UsageError(
                f"all_queries: needs shape {shape}, dtype {self.dtype} and device {self.device}; "
                f"got {tuple(queries.shape)}, {queries.dtype}, {queries.device}"
            )
        return queries

    def _checked_key_positions(self, positions: Tensor) -> Tensor | None:
        """The positions of the keys; None if the keys are tokens in a row."""
        _check_tensor("key_positions", positions)
        if positions.dtype != torch.int64 or positions.shape != (self.n_k,):
            shape, dtype = tuple(positions.shape), positions.dtype
            raise UsageError(f"key_positions: needs shape ({self.n_k},) and dtype int64; got {shape}, {dtype}")
        if self.mask is not None:
            raise UsageError("key_positions: tokens with a mask have the positions 0 … n - 1; drop one of both")
        if int(positions[0]) < 0 or not (positions.diff() > 0).all():
            raise UsageError("key_positions: they are not ascending numbers from 0 on")
        in_a_row = int(positions[-1]) == self.n_k - 1
        return None if in_a_row else positions.to(self.device)

    def __repr__(self) -> str:
        dtype, origin = str(self.dtype).removeprefix("torch."), f", layer={self.layer}, window={self.window}"
        masked = "" if self.mask is None else f", valid={int(self.mask.sum())}"
        masked += ", causal" if self.causal else ""
        masked += "" if self.sliding_window is None else f", sliding_window={self.sliding_window}"
        masked += f", sinks={self.sinks}" if self.sinks else ""
        masked += "" if self.sink_logits is None else ", sink_logits"
        masked += "" if self.bias is None else ", bias"
        masked += "" if self.softcap is None else f", softcap={self.softcap:g}"
        masked += f", positional={self.positional}" if self.positional else ""
        masked += (
            ""
            if self.key_positions is None
            else f", key_positions={int(self.key_positions[0])}…{int(self.key_positions[-1])}"
        )
        shared = f", kv_heads={self.kv_heads}" if self.group > 1 else ""
        return (
            f"QKV(h={self.h}{shared}, n_q={self.n_q}, n_k={self.n_k}, p={self.p}, p_v={self.p_v}, "
            f"scale={self.scale:.6g}{masked}, dtype={dtype}, device={self.device}{origin if self.label else ''})"
        )

    @property
    def h(self) -> int:
        """The number of query heads."""
        return self.q.shape[0]

    @property
    def kv_heads(self) -> int:
        """h_kv, the number of heads of keys and values."""
        return self.shared_k.shape[0]

    @property
    def group(self) -> int:
        """The number of query heads that share a KV head: query head i reads KV head ``i // group``."""
        return self.h // self.kv_heads

    @property
    def kv_numbers(self) -> tuple[int, ...]:
        """The number of the KV head that each query head reads in the source, which `select` preserves.

        >>> QKV(torch.ones(8, 5, 4), *torch.ones(2, 2, 5, 4)).select([1, 6]).kv_numbers
        (0, 1)
        """
        number_of = {head: number for number, heads in enumerate(self.kv_groups) for head in heads}
        return tuple(number_of[head] for head in self.heads)

    @property
    def kv_rows(self) -> list[list[int]]:
        """The rows of the heads that read each KV head of the source; of a part of a group these may be fewer.

        >>> QKV(torch.ones(8, 5, 4), *torch.ones(2, 2, 5, 4)).select([1, 6, 2]).kv_rows
        [[0, 2], [1]]
        """
        rows: dict[int, list[int]] = {}
        for row, number in enumerate(self.kv_numbers):
            rows.setdefault(number, []).append(row)
        return list(rows.values())

    @cached_property
    def k(self) -> Tensor:
        """The keys of each query head, (h, n_k, p): ``shared_k``, repeated for the heads of a group."""
        return repeated(self.shared_k, self.h)

    @cached_property
    def v(self) -> Tensor:
        """The values of each query head, (h, n_k, p_v): ``shared_v``, repeated for the heads of a group."""
        return repeated(self.shared_v, self.h)

    @property
    def n_q(self) -> int:
        """The number of queries."""
        return self.q.shape[1]

    @property
    def n_k(self) -> int:
        """The number of keys."""
        return self.shared_k.shape[1]

    @property
    def n(self) -> int:
        """The number of tokens, if there are as many queries as keys.

        Raises:
            UsageError: the numbers of queries and keys differ.
        """
        if self.n_q != self.n_k:
            raise UsageError(f"{self.n_q} queries and {self.n_k} keys: this needs equal numbers")
        return self.n_q

    @property
    def p(self) -> int:
        """The head dimension of queries and keys."""
        return self.q.shape[2]

    @property
    def p_k(self) -> int:
        """The numbers of a key in a cache: p without the positional coordinates."""
        return self.p - self.positional

    @property
    def p_v(self) -> int:
        """The value dimension."""
        return self.shared_v.shape[2]

    @property
    def query_positions(self) -> Tensor:
        """The number of the key at each query's own place, (n_q,) int64."""
        if self.positions is not None:
            return self.positions
        first = self.n_k - self.n_q if self.causal else 0
        # queries of no text with these keys (cross-attention) may be more than the keys
        return torch.arange(first, first + self.n_q, device=self.device).clamp(max=self.n_k - 1)

    @property
    def square(self) -> bool:
        """Whether every token is a query and a key: the place of query i is that of key i."""
        if self.n_q != self.n_k or self.positions is None:
            return self.n_q == self.n_k
        return torch.equal(self.positions, torch.arange(self.n_k, device=self.device))

    @property
    def visible(self) -> Visible | None:
        """The keys that each query sees; None means all."""
        if not self.causal and self.sliding_window is None:
            return None
        own = self.query_positions
        if self.sliding_window is None:
            return Visible(own)
        # a window counts positions in the text; the keys are numbered without the gaps of padding
        reach, place = self.sliding_window - 1, self.in_text(own)
        last = own if self.causal else self._keys_before(place + reach + 1) - 1
        sinks = self.sinks if self.key_positions is None else int((self.key_positions < self.sinks).sum())
        return Visible(last, self._keys_before(place - reach), sinks)

    def in_text(self, keys: Tensor) -> Tensor:
        """The positions in the text of the keys of these numbers, int64; with a mask, those of the tokens."""
        return keys if self.key_positions is None else self.key_positions[keys]

    def _keys_before(self, positions: Tensor) -> Tensor:
        """The number of keys before each of these positions in the text."""
        if self.key_positions is None:
            return positions.clamp(0, self.n_k)
        # ascending, as `_checked_key_positions` demands
        return torch.searchsorted(self.key_positions, positions)

    @property
    def terms(self) -> Terms | None:
        """The cap and the bias of the scores; None for none."""
        return None if self.bias is None and self.softcap is None else Terms(self.softcap, self.bias)

    @property
    def entries(self) -> int:
        """The number of pairs of a query and a key that it sees, in each head."""
        visible = self.visible
        return self.n_q * self.n_k if visible is None else int(visible.counts().sum())

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of Q, K and V."""
        return self.q.dtype

    @property
    def device(self) -> torch.device:
        """The device of Q, K and V."""
        return self.q.device

    @property
    def layer(self) -> int | str:
        """The layer in `label`; 0 by default."""
        return self.label.get("layer", 0)

    @property
    def window(self) -> int:
        """The text window in `label`; 0 by default."""
        return self.label.get("window", 0)

    def parts(self) -> dict[str, Any]:
        """The arguments that make this `QKV`, by name; ``k`` and ``v`` have h_kv heads."""
        own = {name: getattr(self, name) for name in PARTS if name not in ("k", "v")}
        return own | {"k": self.shared_k, "v": self.shared_v}

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors on which every method's result depends."""
        return self.q, self.shared_k, self.shared_v, self.all_queries, self.bias

    def replace(self, **changes: Any) -> QKV:
        """The same inputs with other values of some arguments. If k or v alone has h heads, the other is repeated.

        Other ``heads`` are those of another source: without ``kv_groups`` among the changes, its KV heads are those of
        ``k``. Other queries or keys have no `all_queries`, unless these are among the changes.

        Raises:
            UsageError: as for a new `QKV`.

        >>> QKV(*torch.ones(3, 1, 9, 2)).replace(causal=True).visible.counts().sum()
        tensor(45)
        """
        parts = self.parts() | changes
        if "heads" in changes and "kv_groups" not in changes:
            parts["kv_groups"] = None
        if {"q", "k", "positions"} & changes.keys() and "all_queries" not in changes:
            parts["all_queries"] = None
        # what the model computed is known for the old inputs only
        if changes.keys() - {"label"}:
            parts |= {name: None for name in ("block", "own") if name not in changes}
        for name, other in (("k", "v"), ("v", "k")):
            if name in changes and other not in changes and len(changes[name]) == self.h:
                parts[other] = getattr(self, other)
        return QKV(**parts)

    def select(self, heads: Iterable[int]) -> QKV:
        """The heads with these *original* numbers, in this order. They keep their numbers.

        Keys and values of entire groups stay shared; those of other heads are repeated.

        Raises:
            UsageError: no heads, or a number that is not in `heads`.

        >>> QKV(*torch.ones(3, 4, 5, 2)).select([3, 1]).heads
        (3, 1)
        """
        heads = [whole("head", head) for head in heads]
        missing = [head for head in heads if head not in self.heads]
        if missing or not heads:
            raise UsageError(f"head {missing[0] if missing else '(none)'} is not among {list(self.heads)}")
        rows = [self.heads.index(head) for head in heads]
        of_q, of_kv = as_index(rows), as_index(shared_heads(rows, self.group))
        logits = None if self.sink_logits is None else self.sink_logits[of_q]
        k, v = self.shared_k[of_kv], self.shared_v[of_kv]
        numbers = {"heads": heads, "kv_groups": self.kv_groups}
        queries = None if self.all_queries is None else self.all_queries[of_q]
        bias = self.bias if self.bias is None or len(self.bias) == 1 else self.bias[of_q]
        parts = {**numbers, "sink_logits": logits, "all_queries": queries, "bias": bias, "block": self.block}
        parts["own"] = None if self.own is None else self.own[of_q]
        return self.replace(q=self.q[of_q], k=k, v=v, **parts)

    def head(self, row: int) -> QKV:
        """The head at one row of the tensors, with its original number.

        >>> QKV(*torch.ones(3, 4, 5, 2)).select([3, 1]).head(1).heads
        (1,)
        """
        return self.select([self.heads[row]])

    def first(self, n: int) -> QKV:
        """A copy of the first head with its first ``n`` queries, keys and values, without mask and positions."""
        head = self.head(0)
        # a copy, so that the memory of all heads can be freed
        q, k, v = (x[:, :n].clone() for x in (head.q, head.shared_k, head.shared_v))
        bias = None if head.bias is None else head.bias[:, :n, :n]
        return head.replace(q=q, k=k, v=v, mask=None, positions=None, key_positions=None, bias=bias)

    def queries(self, index: Tensor) -> QKV:
        """The queries of the rows ``index`` (u,) int64, against all keys. They keep `all_queries`.

        Raises:
            UsageError: the inputs have a mask.

        >>> QKV(*torch.ones(3, 1, 9, 2), causal=True).queries(torch.tensor([3, 8])).visible.counts()
        tensor([4, 9])
        """
        if self.mask is not None:
            raise UsageError("queries: masked inputs have no selected rows; call `compressed` first")
        index = index.to(self.device)
        # a second selection keeps the queries of the first one's text
        queries = self.q if self.square else self.all_queries
        bias = None if self.bias is None else self.bias[:, index]
        parts = {"positions": self.query_positions[index], "all_queries": queries, "bias": bias}
        own = None if self.own is None else self.own[:, index]
        return self.replace(q=self.q[:, index], **parts, own=own, block=self.block and self.block.at(index))

    def complete(self) -> QKV | None:
        """The same inputs with the queries of all tokens; None if these, or their biases, are not given.

        >>> qkv = QKV(*torch.ones(3, 1, 9, 2), causal=True)
        >>> qkv.queries(torch.tensor([3, 8])).complete().n_q
        9
        """
        if self.square:
            return self
        if self.all_queries is None or self.bias is not None:
            return None
        return self.replace(q=self.all_queries, positions=None)

    def to(self, *args: Any, **kwargs: Any) -> QKV:
        """The same inputs on another device or in another dtype: a device, a dtype, both, or a tensor that has them.

        Args: as in `torch.Tensor.to`.

        Raises:
            UsageError: what torch refuses, or a dtype that is not floating point. NotFinite: a value overflows.

        >>> qkv = QKV(*torch.ones(3, 1, 9, 2))
        >>> qkv.to(torch.float64).dtype, qkv.to("cpu", torch.bfloat16).dtype, qkv.half().dtype
        (torch.float64, torch.bfloat16, torch.float16)
        """
        if args and isinstance(args[0], QKV):
            args = args[0].q, *args[1:]
        try:
            q = self.q.to(*args, **kwargs)
        except (TypeError, RuntimeError, AssertionError) as error:  # torch without CUDA raises the last
            raise UsageError(f"to: {cut(str(error).partition(chr(10))[0], LINE)}") from error
        k, v = self.shared_k.to(q), self.shared_v.to(q)
        queries = None if self.all_queries is None else self.all_queries.to(q)
        block = self.block and self.block.to(device=q.device)
        return self.replace(q=q, k=k, v=v, all_queries=queries, own=self.own, block=block)

    def cpu(self) -> QKV:
        """The same inputs on the CPU."""
        return self.to("cpu")

    def cuda(self, device: torch.device | str | int | None = None) -> QKV:
        """The same inputs on a CUDA device, the current one by default."""
        return self.to("cuda" if device is None else torch.device(device))

    def float(self) -> QKV:
        """The same inputs in float32."""
        return self.to(torch.float32)

    def double(self) -> QKV:
        """The same inputs in float64."""
        return self.to(torch.float64)

    def half(self) -> QKV:
        """The same inputs in float16."""
        return self.to(torch.float16)

    def bfloat16(self) -> QKV:
        """The same inputs in bfloat16."""
        return self.to(torch.bfloat16)

    def compressed(self) -> QKV:
        """The valid tokens only, without a mask; itself if it has no mask.

        Their positions are counted from the first of them on, so that padding before and after them has no influence.
        """
        if self.mask is None:
            return self
        q, k, v = (x[:, self.mask] for x in (self.q, self.shared_k, self.shared_v))
        valid = self.mask.nonzero()[:, 0]
        block = self.block and self.block.at(self.mask)
        bias = None if self.bias is None else self.bias[:, self.mask][:, :, self.mask]
        own = None if self.own is None else self.own[:, self.mask]
        placed = {"key_positions": valid - valid[0], "bias": bias, "own": own}
        return self.replace(q=q, k=k, v=v, mask=None, **placed, block=block)


PARTS = tuple(signature(QKV).parameters)


def _check_axes(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse tensors whose dtypes, devices, heads, tokens or dimensions do not fit each other."""
    for name, tensor in (("k", k), ("v", v)):
        for attribute in ("dtype", "device"):
            value, of_q = getattr(tensor, attribute), getattr(q, attribute)
            if value != of_q:
                raise UsageError(f"{name}: {attribute} {value} differs from q's {of_q}")
        if q.shape[0] % tensor.shape[0]:
            raise UsageError(f"{name}: {tensor.shape[0]} heads, but q has {q.shape[0]}, which is no multiple")
    if v.shape[0] != k.shape[0]:
        raise UsageError(f"v: {v.shape[0]} heads, but k has {k.shape[0]}")
    if k.shape[2] != q.shape[2]:
        raise UsageError(f"k: head dimension {k.shape[2]} differs from q's {q.shape[2]}")
    if v.shape[1] != k.shape[1]:
        raise UsageError(f"v: {v.shape[1]} tokens, but k has {k.shape[1]}")


def check_positions(positions: Tensor, n_q: int, n_k: int, causal: bool) -> Tensor:
    """The positions of n_q queries among n_k keys, if they are an argument of `QKV`."""
    _check_tensor("positions", positions)
    if positions.dtype != torch.int64 or positions.shape != (n_q,):
        raise UsageError(
            f"positions: needs shape ({n_q},) and dtype int64; got {tuple(positions.shape)}, {positions.dtype}"
        )
    low, high = int(positions.min()), int(positions.max())
    if low < 0 or high >= n_k:
        raise UsageError(f"positions: {low} … {high} are not all among the {n_k} keys")
    if causal and len(positions.unique()) < n_q:
        raise UsageError("positions: two queries share a position")
    return positions


def whole(name: str, value: Any, least: int = 0) -> int:
    """An integer from ``least`` to `LARGEST`.

    >>> whole("sinks", True)
    Traceback (most recent call last):
    attnprobe.errors.UsageError: sinks: True is not a whole number
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype == torch.bool):
        raise UsageError(f"{name}: {cut(repr(value))} is not a whole number")
    if not least <= number <= LARGEST:
        raise UsageError(f"{name}: {cut(repr(number))} is not between {least} and {LARGEST}")
    return number


def _numbers(heads: Iterable[int] | None, h: int) -> tuple[int, ...]:
    if heads is None:
        return tuple(range(h))
    if not isinstance(heads, Iterable):
        raise UsageError(f"heads: expected a list of numbers, got {type(heads).__name__}")
    numbers = tuple(whole("heads", head) for head in heads)
    if len(numbers) != h:
        raise UsageError(f"heads: {len(numbers)} numbers for {h} heads")
    if len(set(numbers)) != len(numbers):
        raise UsageError(f"heads: the numbers {list(numbers)} repeat")
    return numbers


def _scale(scale: Any, p: int) -> float:
    return p**-0.5 if scale is None else _positive("scale", scale)


def _positive(name: str, value: Any) -> float:
    try:
        factor = float("nan") if isinstance(value, (str, bytes, bool)) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        factor = float("nan")
    if not 0 < factor < float("inf"):
        raise UsageError(f"{name}: {cut(repr(value))} is not a positive number")
    return factor


def _check_tensor(name: str, x: Any) -> None:
    """Refuse what is no dense tensor with values."""
    if not isinstance(x, Tensor):
        raise UsageError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
    if (problem := tensor_fault(x)) is not None:
        raise UsageError(f"{name}{problem}")


def _three_axes(name: str, x: Tensor) -> Tensor:
    """``x`` as a contiguous (h, n, p). It refuses other dtypes than floating point, empty axes and values not finite.

    It is contiguous, because gathers and products of a view of all heads side by side are slower.
    """
    _check_tensor(name, x)
    if x.dim() == 2:
        x = x[None]
    if x.dim() != 3:
        raise UsageError(f"{name}: shape {tuple(x.shape)} is not (heads, tokens, dimension)")
    for axis, size in zip(("heads", "tokens", "dimension"), x.shape, strict=True):
        if size == 0:
            raise UsageError(f"{name}: the axis '{axis}' has length 0")
    if x.dtype not in DTYPES:
        raise UsageError(f"{name}: dtype {x.dtype} is not one of {', '.join(map(str, DTYPES))}")
    if x.detach().sum().isfinite():  # then every value is; a sum may overflow, so the others are asked one by one
        return x.contiguous()
    parts = x.split(TOKENS, 1)  # a check of all at once takes as much memory again
    if not torch.stack([torch.isfinite(part).all() for part in parts]).all():
        head, token, column = (int(i) for i in (~torch.isfinite(x)).nonzero()[0])
        value = float(x.detach()[head, token, column])
        raise NotFinite(f"{name}: the value at head {head}, token {token}, column {column} is {value}")
    return x.contiguous()
