"""Attention to quantised keys and values, ``softmax(s Q K̂ᵀ) V̂``, and the declaration of formats.

A format is a law ``x -> x̂`` from vectors to what an engine reads back of their codes. It computes in float32. The most
recent tokens may stay exact: those of a row of causal inputs are the last ones before its query.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional

from ...errors import Unsupported, UsageError
from ...operators import SoftmaxAttention
from ...operators.blocks import row_blocks
from ...operators.groups import of_heads, repeated
from ...operators.precision import full_precision
from ...operators.visible import Visible
from ...qkv import QKV
from ...reference import masked_output, own_output
from ...rng import Streams
from ..base import Approximation, per_head
from ..registry import DISTRIBUTIONS, register
from ..rope import MODEL, Turns
from ..storage import Storage

Of = Literal["kv", "k", "v"]
SHARED = """
    of: what is quantised: ``kv``, keys and values; ``k``, the keys alone; ``v``, the values alone.
    exact: the number of most recent tokens whose keys and values stay exact.
    pre_rope: quantise keys before RoPE: they are turned back, quantised and turned again. It needs inputs of a model
        whose RoPE is known. By default keys are quantised after RoPE, as most engines store them.
"""
UNIT = 16  # bits of a scale, a minimum or a norm in float16
ROWS = 128  # of an output at a time: with more, more keys are stored for one row and exact for another


@dataclass(frozen=True, eq=False)
class Side:
    """The keys or the values that a law gets.

    Attributes:
        word: ``key`` or ``value``.
        heads: the original number of the head whose draws each row of x takes: the first head of its KV head.
        drawn: the draws by name, (h, …) each, which `draw` adds to.
    """

    word: str
    method: str
    streams: Streams
    heads: Sequence[int]
    drawn: dict[str, Tensor] = field(default_factory=dict)

    def draw(self, name: str, make: Callable[[torch.Generator], Tensor]) -> Tensor:
        """What ``make`` draws for each head, (h, …), on the CPU."""
        name = f"{self.word}_{name}"
        if name in self.drawn:
            return self.drawn[name]
        # Query heads of one KV head read one cache, so they must have the same draws.
        of_head = {head: make(self.streams.head(head, name)) for head in dict.fromkeys(self.heads)}
        self.drawn[name] = torch.stack([of_head[head] for head in self.heads])
        return self.drawn[name]


@dataclass(frozen=True)
class Format:
    """A way to store keys and values.

    Attributes:
        name: of the method that has it, in errors and for its draws.
        law: ``(x, side, **options) -> x̂``, both (h, …, n, p) float32: the n tokens of each head, or of sets of it.
        storage: ``(**options) -> Storage``, what is stored of keys and values, both quantised.
        alone: whether a token is read back the same whatever the other tokens are.
        group: ``(**options)`` -> the number of tokens that are quantised together; tokens of an incomplete group stay
            exact.
        options: the parameters of the law's own options. exact: the default of the option ``exact``.
    """

    name: str
    law: Callable[..., Tensor]
    storage: Callable[..., Storage]
    alone: bool
    group: Callable[..., int]
    options: Mapping[str, inspect.Parameter]
    exact: int = 0

    def parameters(self) -> dict[str, inspect.Parameter]:
        """The options of a method with this format: the shared ones, and the law's own."""
        shared_options = {"of": ("kv", Of), "exact": (self.exact, int), "pre_rope": (False, bool)}
        kind = inspect.Parameter.KEYWORD_ONLY
        shared = {
            name: inspect.Parameter(name, kind, default=default, annotation=hint)
            for name, (default, hint) in shared_options.items()
        }
        return {**self.options, **shared}

    def check(self, options: Mapping[str, Any]) -> None:
        """Refuse values of the shared options that contradict each other."""
        if options["exact"] < 0:
            raise UsageError(f"{self.name}: exact={options['exact']} is negative")
        if options["pre_rope"] and options["of"] == "v":
            raise UsageError(f"{self.name}: pre_rope=true is of keys, and of=v quantises none")

    def own(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of the law among those of a method."""
        return {name: options[name] for name in self.options}

    def stored(self, options: Mapping[str, Any]) -> Storage:
        """What a method with these options stores."""
        whole = self.storage(**self.own(options))
        sides = len(options["of"])
        return replace(
            whole,
            k=whole.k if "k" in options["of"] else None,
            v=whole.v if "v" in options["of"] else None,
            token=whole.token * sides / 2,
            head=whole.head * sides / 2,
            exact=options["exact"],
        )


def with_options(function: Callable[..., Approximation], parameters: Mapping[str, inspect.Parameter]) -> None:
    """Give a method's function, which takes ``**options``, these options in its signature."""
    own = inspect.signature(function).parameters.values()
    kept = [p for p in own if p.kind is not p.VAR_KEYWORD]
    function.__signature__ = inspect.Signature([*kept, *parameters.values()])
    function.__annotations__ = {name: p.annotation for name, p in parameters.items()}


def cache_format(
    *,
    storage: Callable[..., Storage],
    alone: bool = True,
    group: Callable[..., int] = lambda **options: 1,
    exact: int = 0,
    **facts: Any,
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register a law as a method: attention to the keys and values that it reads back.

    ``facts`` are those of `Method`, with the tags that not all formats have; the others are attributes of `Format`. A
    law whose scales are those of all tokens of a head has the tag ``whole_scale`` in place of ``causal``.
    """

    def put(law: Callable[..., Tensor]) -> Callable[..., Tensor]:
        hints = typing.get_type_hints(law)
        own = {
            name: p.replace(annotation=hints[name])
            for name, p in inspect.signature(law).parameters.items()
            if p.kind is p.KEYWORD_ONLY
        }
        stated = Format(facts["name"], law, storage, alone, group, own, exact)
        register(**method_facts(stated, facts))(method_of(stated, documented(law)))
        return law

    return put


def documented(law: Callable[..., Tensor]) -> str:
    """The docstring of a law with the options that all formats share."""
    text = inspect.getdoc(law) or ""
    head, options, rest = text.partition("\nOptions:\n")
    if not options:
        head, shapes, rest = text.partition("\nShapes:")
        rest = shapes + rest
        return f"{head}\nOptions:{SHARED}{rest}"
    return f"{head}{options}{SHARED.lstrip(chr(10))}{rest}"


def method_facts(stated: Format, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of the method of a format, as `Method` takes them."""
    check = facts.get("validate")

    def validate(target: str, **options: Any) -> None:
        stated.check(options)
        if check is not None:
            check(target, **stated.own(options))

    tags = (*facts["tags"], *DISTRIBUTIONS, "decodes", "local")
    common = {"family": "quantised", "budget": None, "cost": "2 n² p", "format": stated}
    more = {"validate": validate, "storage": lambda d, options: stated.stored(options), "tags": tags}
    return {**common, **facts, **more}


def method_of(stated: Format, text: str) -> Callable[..., Approximation]:
    """The function of the method of a format."""

    parameters = stated.parameters()
    defaults = {option: parameter.default for option, parameter in parameters.items()}

    def attended(qkv: QKV, d: None, *, streams: Streams, target: str = "softmax", **options: Any) -> Approximation:
        return attend(qkv, stated, streams, defaults | options)

    with_options(attended, parameters)
    attended.__doc__ = text
    return attended


@dataclass(frozen=True, eq=False)
class Coder:
    """The law of a format with its options, for the keys or the values of some inputs.

    Attributes:
        numbers: of a vector in a cache; later ones are positional and stay exact.
        turns: the RoPE that is undone before the law and done again after it; None is none.
    """

    stated: Format
    side: Side
    options: Mapping[str, Any]
    numbers: int
    turns: Turns | None = None

    @classmethod
    def of(
        cls, qkv: QKV, stated: Format, streams: Streams, options: Mapping[str, Any], heads: Sequence[int]
    ) -> dict[str, Coder]:
        """The coders of what is quantised, ``k`` and ``v``, for tensors whose rows take the draws of ``heads``."""
        turns = None
        if options["pre_rope"]:
            turns = Turns.of(qkv, MODEL, stated.name, "pre_rope=true", "leave pre_rope out")
        coders = {}
        for axis in options["of"]:
            side = Side("key" if axis == "k" else "value", stated.name, streams, heads)
            numbers, own_turns = (qkv.p_k, turns) if axis == "k" else (qkv.p_v, None)
            coders[axis] = cls(stated, side, stated.own(options), numbers, own_turns)
        return coders

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """What is read back of vectors x (h, …, n, p) at positions (…, n) of the text, in the dtype of x.

        Raises:
            Unsupported: a vector, or a scale, is beyond the range of the format or of the dtype.
        """
        # Codes are steps, of which no gradient is taken, and engines compute them in float32.
        narrow = x.detach()[..., : self.numbers].float()
        if self.turns is None:
            read = self.stated.law(narrow, self.side, **self.options)
        else:
            phases = self.turns.phases(positions)
            read = self.stated.law(self.turns.turned(narrow, phases.conj()), self.side, **self.options)
            read = self.turns.turned(read, phases)
        read = read.to(x.dtype)
        if not torch.isfinite(read).all():
            raise Unsupported(
                f"{self.side.method}: {self.side.word}s of up to {float(x.detach().abs().max()):.3g} are beyond the "
                "range of its scales or numbers; scale the inputs down"
            )
        return read if self.numbers == x.shape[-1] else torch.cat([read, x[..., self.numbers :]], -1)


def drawing_heads(qkv: QKV) -> list[int]:
    """The head whose draws each query head takes: the first of its KV head in the source, also in a part of a group."""
    return [qkv.kv_groups[number][0] for number in qkv.kv_numbers]


@full_precision()
def read_back(
    qkv: QKV, stated: Format, streams: Streams, options: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The keys and values of all tokens as they are read back, (h_kv, n_k, ·) by ``k`` and ``v``, and the draws."""
    places = qkv.in_text(torch.arange(qkv.n_k, device=qkv.device))
    read, drawn = {"k": qkv.shared_k, "v": qkv.shared_v}, {}
    for axis, coder in Coder.of(qkv, stated, streams, options, drawing_heads(qkv)[:: qkv.group]).items():
        read[axis] = coder(read[axis], places)
        drawn |= {name: repeated(value, qkv.h) for name, value in coder.side.drawn.items()}
    return read, drawn


def first_exact(lengths: Tensor, stated: Format, options: Mapping[str, Any]) -> Tensor:
    """The number of tokens that are quantised, of caches of these lengths (…) int64; later ones are exact."""
    group = stated.group(**stated.own(options))
    return (lengths - options["exact"]).clamp(min=0) // group * group


def attend(qkv: QKV, stated: Format, streams: Streams, options: Mapping[str, Any]) -> Approximation:
    """``softmax(s Q K̂ᵀ) V̂`` over what is read back, and exact recent tokens."""
    read, drawn = read_back(qkv, stated, streams, options)
    k, v = read["k"], read["v"]
    lengths = qkv.query_positions + 1 if qkv.causal else torch.full_like(qkv.query_positions, qkv.n_k)
    first = first_exact(lengths, stated, options)  # (n_q,)
    recent = bool((first < lengths).any())
    if recent and not qkv.causal:
        start = int(first[0])
        k, v = (torch.cat([x[:, :start], own[:, start:]], 1) for x, own in ((k, qkv.shared_k), (v, qkv.shared_v)))
    operator, same = SoftmaxAttention(qkv.q, k, qkv.scale, qkv.visible), not (recent and qkv.causal)
    if not same:
        operator = RecentExact(qkv.q, k, qkv.scale, qkv.visible, qkv.shared_k, first)
        output = operator.output(v, qkv.shared_v)
    else:
        output = own_output(qkv.replace(k=k, v=v))
    return Approximation(
        operator,
        output,
        draws=drawn,
        diagnostics={"visited": per_head(qkv.h, qkv.entries)},
        log_normalizer=operator.log_normalizer,
        stored=(k, v) if same else None,
    )


class RecentExact(SoftmaxAttention):
    """Softmax attention of rows to quantised keys, and to exact ones from a token of each row on, (h, n_q, n_k).

    Args:
        k: what is read back of the keys. exact: the keys themselves. Both (h_kv, n_k, p).
        first: the first exact key of each row, (n_q,) int64.

    Some rows at a time compute the scores of their exact keys beside those of all.
    """

    def __init__(
        self, q: Tensor, k: Tensor, scale: float, visible: Visible | None, exact: Tensor, first: Tensor
    ) -> None:
        super().__init__(q, k, scale, visible)
        self.exact, self.first = exact, first

    def heads(self, index: slice) -> RecentExact:
        exact = of_heads(self.exact, index, len(self.q))
        return RecentExact(self.q[index], self._keys(index), self.scale, self.visible, exact, self.first)

    def to(self, dtype: torch.dtype) -> RecentExact:
        tensors = (x.to(dtype) for x in (self.q, self.k, self.exact))
        q, k, exact = tensors
        return RecentExact(q, k, self.scale, self.visible, exact, self.first)

    def scores(self, heads: slice, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        stored = super().scores(heads, start, stop, out)
        keys, recent = self._recent(start, stop)
        k = of_heads(self.exact, heads, len(self.q))[:, keys]
        exact = SoftmaxAttention(self.q[heads, start:stop], k, self.scale).scores(slice(None), 0, stop - start)
        hidden = stored[..., keys] == float("-inf")  # scores of finite keys are finite
        stored[..., keys] = torch.where(recent & ~hidden, exact, stored[..., keys])
        return stored

    def is_differentiated(self, *operands: Tensor) -> bool:
        return super().is_differentiated(self.exact, *operands)

    def _recent(self, start: int, stop: int) -> tuple[slice, Tensor]:
        """The keys among which are all exact ones that these rows see, and whether each is exact, (b, ·) bool."""
        first, last = self.first[start:stop], self.seen(start, stop)
        begin = min(int(first.min()), last - 1)
        return slice(begin, last), torch.arange(begin, last, device=self.device) >= first[:, None]

    def output(self, v: Tensor, exact: Tensor) -> Tensor:
        """``B~ V``, (h, n_q, p_v), with values v, or ``exact`` ones where keys are exact; both (h_kv, n_k, p_v).

        Some rows at a time read the stored tokens up to the last one of them and, behind these, the exact tokens from
        the first one of them on. A mask leaves each row one of both, so that torch's fused kernel computes it.
        """
        assert self.visible is not None  # without it all rows have the same exact tokens
        out, firsts, lasts = [], self.first.tolist(), self.visible.last.tolist()
        for start, stop in row_blocks(self.shape[1], ROWS):
            first, visible = self.first[start:stop, None], self.visible.of(slice(start, stop))
            stored = slice(max(firsts[start:stop]))
            recent = slice(min(firsts[start:stop]), max(lasts[start:stop]) + 1)
            keys, values = (torch.cat([a[:, stored], b[:, recent]], 1) for a, b in ((self.k, self.exact), (v, exact)))
            number = torch.arange(self.shape[2], device=self.device)
            reads = torch.cat([number[stored] < first, number[recent] >= first], 1)
            reads &= ~visible.hides(torch.cat([number[stored], number[recent]]))
            out.append(masked_output(self.q[:, start:stop], keys, values, self.scale, reads))
        return torch.cat(out, 1)

    def first_keys(self, start: int, stop: int, seen: int) -> Self:
        part = super().first_keys(start, stop, seen)
        part.exact, part.first = self.exact[:, :seen], self.first[start:stop]
        return part

    def _lowest(self) -> Tensor:
        return SoftmaxAttention(self.q, torch.cat([self.k, self.exact], 1), self.scale)._lowest()


def in_blocks(x: Tensor, size: int) -> Tensor:
    """The numbers of vectors (…, p) in blocks, (…, ⌈p/size⌉, size); the last block is padded with zeros.

    >>> in_blocks(torch.ones(1, 3), 2)
    tensor([[[1., 1.],
             [1., 0.]]])
    """
    return functional.pad(x, (0, -x.shape[-1] % size)).unflatten(-1, (-1, size))


def of_blocks(blocks: Tensor, p: int) -> Tensor:
    """The vectors (…, p) of blocks, without the padding."""
    return blocks.flatten(-2)[..., :p]


def inverse_of(step: Tensor) -> Tensor:
    """``1 / step``, 0 where that is not finite, so that numbers of such a step are 0."""
    inverse = 1 / step
    return inverse.masked_fill(~torch.isfinite(inverse), 0.0)
