"""Decoding on part of a prompt: which keys a method keeps, and attention of new tokens over them.

A prompt of N tokens has been read by exact attention. New tokens see what the method keeps of the prompt, and each
other by causal attention. A method that compresses chooses d keys of each head once, from the exact Q, K and V of the
prompt. Any other method reads the whole prompt at each step, with d as its budget for one row. Row by row the two parts
are joined by their normalisers: ``o = (D₁ o₁ + D₂ o₂) / (D₁ + D₂)``. So T steps are one forward of T rows.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...errors import Unsupported
from ...inject.replacement import Budget
from ...inputs import AttentionCall
from ...methods import Approximation, Method, Storage, approximate, chosen_keys
from ...methods.quantised.evicted import in_order, kept_cache
from ...methods.selection.files import selected_keys
from ...operators.groups import folded, tokens, unfolded
from ...qkv import QKV
from .cache import OWN, Read

KEYED = ("selection", "sparse", "exact")  # families whose weights are those of keys
Part = tuple[Tensor, Tensor]  # the output (h, n_q, p_v) and the logarithm of the normaliser (h, n_q) of some keys


@dataclass(frozen=True, eq=False)
class _Kept:
    """Attention over what all heads keep or read at one budget, and what that is, as in `Read`."""

    part: Part
    whole: bool = True
    tokens: Tensor | None = None
    count: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Steps:
    """The new tokens of one row of a call behind a prompt, and their exact attention, which is computed once.

    Attributes:
        layer: of the model. number: of the call in the forward. row: of the batch.
        qkv: of the new tokens, with the keys of the prompt too.
    """

    layer: int
    number: int
    row: int
    qkv: QKV
    prompt: int

    @classmethod
    def of(cls, call: AttentionCall, row: int, prompt: int) -> Steps:
        """The steps of one row."""
        qkv = call.qkv(row)
        if call.local:
            raise Unsupported(f"{call.module}: a layer with a sliding window has no cache beyond its window")
        return cls(call.layer, call.number, row, qkv.to(dtype=torch.promote_types(qkv.dtype, torch.float32)), prompt)

    @cached_property
    def whole(self) -> Part:
        """Exact attention over the prompt."""
        return _joined(_scores(self.qkv, slice(None, self.prompt)), self.v)

    @cached_property
    def new(self) -> Part:
        """Causal attention over the tokens after the prompt."""
        v = self.qkv.shared_v[:, self.prompt :]
        own = torch.arange(v.shape[1], device=v.device)
        later = own > self.qkv.query_positions[:, None] - self.prompt  # (n_q, new)
        return _joined(_scores(self.qkv, slice(self.prompt, None)).masked_fill(later, float("-inf")), v)

    @property
    def k(self) -> Tensor:
        """The keys of the prompt, (h_kv, prompt, p)."""
        return self.qkv.shared_k[:, : self.prompt]

    @property
    def v(self) -> Tensor:
        """The values of the prompt, (h_kv, prompt, p_v)."""
        return self.qkv.shared_v[:, : self.prompt]


@dataclass(frozen=True, eq=False)
class PromptPolicy:
    """A method on the keys of a prompt, as an attention function of the tokens after it.

    Attributes:
        prompt: N. text: by layer and row, the prompt as `prompt_text` gives it; None if all keys are chosen.
        heads: the KV heads of which the method chooses keys; None is all. Others keep the whole prompt.
        kept: the chosen keys by (layer, row, d), which one policy chooses once.
        shared: the numbers of calls whose part of the cache other KV heads or calls read too.
        read: gets what the heads keep or read of the prompt, by the number of the call and the row, in each forward;
            None: it is not looked at.
    """

    method: Method
    d: Budget
    seed: int
    options: Mapping[str, Any]
    prompt: int
    text: Callable[[int, int], QKV] | None = None
    heads: Sequence[int] | None = None
    kept: dict[tuple[int, int, int | None], Tensor] = field(default_factory=dict)
    shared: Container[int] = ()
    read: dict[tuple[int, int], list[Read]] | None = field(default_factory=dict)

    def __call__(self, call: AttentionCall) -> Tensor:
        """The outputs of the new tokens, (b, n_q, h, p_v), in the dtype of the call.

        Raises:
            Unsupported: the call or the method has no such form.
        """
        outputs = [self.output(Steps.of(call, row, self.prompt)) for row in range(len(call.q))]
        return torch.stack(outputs).transpose(1, 2).to(call.q.dtype)

    def output(self, steps: Steps) -> Tensor:
        """The outputs (h, n_q, p_v) of one row of the batch."""
        return self._output(steps, self._kept(steps))

    def row(self, steps: Steps) -> tuple[Tensor, Tensor]:
        """The outputs (h, n_q, p_v) of one row of the batch, and the share of the exact weights that no key has.

        The share, (h,), is ``1 - D~/D``, mean over rows; NaN for methods whose weights are not those of the keys.
        """
        kept = self._kept(steps)
        if self.method.family not in KEYED:
            return self._output(steps, kept), torch.full((steps.qkv.h,), torch.nan)
        exact = torch.logaddexp(steps.whole[1], steps.new[1])
        lost = -torch.expm1(torch.logaddexp(kept[1], steps.new[1]).double() - exact.double())
        return self._output(steps, kept), lost.clamp(min=0).mean(-1)

    def _output(self, steps: Steps, kept: Part) -> Tensor:
        """The outputs over kept keys and the new tokens."""
        sizes = [kept[1], steps.new[1]]
        if steps.qkv.sink_logits is not None:
            sizes.append(steps.qkv.sink_logits[:, None].expand_as(kept[1]))
        # a sink has a share of each row and no value
        size = torch.stack(sizes).logsumexp(0)
        shares = [(own - size).exp()[..., None] for own in sizes[:2]]
        return shares[0] * kept[0] + shares[1] * steps.new[0]

    def _kept(self, steps: Steps) -> Part:
        """Attention over what the heads keep of the prompt, or read."""
        groups = self._budgets(steps)
        parts = {d: self._kept_part(steps, d) for d in groups}
        if self.read is not None:
            storage = {d: self.method.stored(d, self.options) for d in groups}
            self.read.setdefault((steps.number, steps.row), []).append(_read(steps, groups, parts, storage))
        if [*groups.values()] == [[*range(steps.qkv.h)]]:
            return parts[next(iter(groups))].part
        # heads without a budget keep exact attention to the whole prompt
        outputs, sizes = (x.clone() for x in steps.whole)
        for d, heads in groups.items():
            part = parts[d].part
            outputs[heads], sizes[heads] = part[0][heads].to(outputs), part[1][heads].to(sizes)
        return outputs, sizes

    def _budgets(self, steps: Steps) -> dict[int | None, list[int]]:
        """The query heads of which the method chooses keys, by their budget."""
        groups: dict[int | None, list[int]] = {}
        for head in range(steps.qkv.h):
            if self.heads is not None and head // steps.qkv.group not in self.heads:
                continue
            d = self.d
            if isinstance(d, Mapping):
                d = d[steps.layer, head]
                if d is None:  # exact attention
                    continue
            groups.setdefault(d, []).append(head)
        return groups

    def _kept_part(self, steps: Steps, d: int | None) -> _Kept:
        if self.method.compress is None:
            return _Kept(steps.whole) if self._reads_all(d) else self._read(steps, d)
        if steps.qkv.bias is not None:
            raise Unsupported(
                f"{self.method.name} chooses keys of a prompt once by its queries, and scores have {steps.qkv.terms}, "
                "of each query its own; choose a method that reads the prompt at each step, such as topk"
            )
        key = steps.layer, steps.row, d
        if key not in self.kept:
            assert d is not None and self.text is not None  # methods that compress have a budget
            text = self.text(steps.layer, steps.row)
            self.kept[key] = kept_keys(self.method, text, self.prompt, d, self.seed, self.options)
        index, qkv = self.kept[key], steps.qkv  # (h, u)
        if self.method.format is not None:
            k, v = kept_cache(self.method, qkv, index, self.seed, self.options)
        elif index.shape[1] == self.prompt and (index >= 0).all():
            return _Kept(steps.whole)  # not by other products, whose rounding would be lost mass
        else:
            k, v = (tokens(x, index) for x in (qkv.shared_k, qkv.shared_v))
        scores = qkv.scale * (qkv.q @ k.mT)
        scores = scores if qkv.terms is None else qkv.terms.capped(scores)
        part = _joined(scores.masked_fill((index < 0)[:, None], float("-inf")), v)
        return _Kept(part, False, index[:, None])

    def _reads_all(self, d: int | None) -> bool:
        """Whether a method that selects keys states that d of them are exact attention to the prompt."""
        if d is None or self.method.exact_at is None or self.method.family not in KEYED:
            return False
        least, needed = self.method.exact_at(self.prompt)
        return (least is None or d >= least) and all(self.options.get(name) == value for name, value in needed.items())

    def _read(self, steps: Steps, d: int | None) -> _Kept:
        """The part of a method that reads the prompt at each step: all new tokens stand at the prompt's last one.

        The label has the number of the first step, so that steps have draws of their own in forwards of their own too.
        """
        qkv = steps.qkv
        prompt = qkv.replace(
            k=steps.k,
            v=steps.v,
            causal=False,  # each of them sees the whole prompt
            positions=torch.full((qkv.n_q,), self.prompt - 1, device=qkv.device),
            sink_logits=None,
            all_queries=None,
            bias=None if qkv.bias is None else qkv.bias[..., : self.prompt],
            label={**qkv.label, "step": int(qkv.query_positions[0]) - self.prompt},
        )
        back = {"causal": True} if "causal" in self.method.options else {}  # a window looks back
        got = approximate(self.method, prompt, d, seed=self.seed, **{**self.options, **back})
        if got.log_normalizer is None:
            raise Unsupported(
                f"{self.method.name} does not state its normaliser, by which the prompt and new tokens are joined; "
                "return an Approximation with log_normalizer, as in docs/guide/add-a-method.md"
            )
        read, count = None, got.diagnostics.get("kv_read")
        if count is None or steps.number in self.shared:
            with suppress(Unsupported):  # it has no sets of keys
                read = selected_keys(got)
        return _Kept((got.output, got.log_normalizer()), self._has_all(got), read, count)

    def _has_all(self, got: Approximation) -> bool:
        """Whether every row attends to all keys of the prompt, with exact weights."""
        count = got.diagnostics.get("kv_read")
        if self.method.family not in KEYED or (count is not None and bool((count < self.prompt).any())):
            return False
        with suppress(Unsupported):
            return bool(((selected_keys(got) >= 0).sum(-1) >= self.prompt).all())
        return False


def _read(
    steps: Steps,
    groups: Mapping[int | None, Sequence[int]],
    parts: Mapping[int | None, _Kept],
    storage: Mapping[int | None, Storage],
) -> Read:
    """What the heads of a call keep or read; heads without a budget have the whole prompt."""
    h = steps.qkv.h
    whole, count = torch.ones(h, dtype=torch.bool), torch.full((h,), torch.inf, dtype=torch.float64)
    some = {d: heads for d, heads in groups.items() if not parts[d].whole}
    sets = {d: own for d in some if (own := parts[d].tokens) is not None}
    shape = [max((own.shape[axis] for own in sets.values()), default=0) for axis in (1, 2)]
    tokens = torch.full((h, *shape), -1)
    for d, heads in some.items():
        whole[heads] = False
        if (stated := parts[d].count) is not None:
            count[heads] = stated[heads].double().cpu()
        if d in sets:
            tokens[heads, :, : sets[d].shape[2]] = sets[d][heads].cpu()
    of_heads = {head: storage[d] for d, heads in groups.items() for head in heads}
    forms = [of_heads.get(head, OWN) for head in range(h)]
    return Read(steps.qkv.kv_heads, forms, whole, tokens if len(sets) == len(some) else None, count)


def prompt_text(qkv: QKV, prompt: int) -> QKV:
    """A prompt as methods that compress read it: all its queries and keys, and the query of the token behind it.

    Args:
        qkv: the exact inputs of a text that begins with the prompt, with the queries of all tokens.
    """

    def beyond(x: Tensor) -> Tensor:
        return torch.cat([x[:, :prompt], x[:, :1]], 1)  # the last query and key are not looked at

    complete = qkv.complete() or qkv
    queries = beyond(complete.q)
    return QKV(
        queries[:, prompt:],
        beyond(qkv.shared_k),
        beyond(qkv.shared_v),
        scale=qkv.scale,
        heads=qkv.heads,
        label=qkv.label,
        causal=True,
        positions=torch.tensor([prompt], device=qkv.device),
        all_queries=queries,
        softcap=qkv.softcap,
        positional=qkv.positional,
    )


def kept_keys(
    method: Method, text: QKV, prompt: int, d: int, seed: int = 0, options: Mapping[str, Any] | None = None
) -> Tensor:
    """The keys of a prompt that a method keeps, (h, d) int64 in ascending order; -1 are empty slots, the last ones.

    They are the choice before the token that follows the prompt, by the queries of the prompt.

    Args:
        text: the prompt by `prompt_text`.
        options: of the method. Those that cut a text into segments are given by `Method.compress`.
    """
    chosen = dict(options or {})
    assert method.compress is not None  # what is kept is asked of no others
    if (fault := why_not_kept(method, prompt, d, chosen)) is not None:
        raise Unsupported(fault)
    # d + 1, because the key of the token behind the prompt is chosen too, and is dropped below
    keys = chosen_keys(method, text, d + 1, seed, **{**method.compress, **chosen})[:, 0]
    keys = keys.masked_fill(keys == prompt, -1)
    # without the slots that are empty in all heads
    width = int((keys >= 0).sum(1).max())
    return in_order(keys, text.n_k)[:, :width]


def why_not_kept(method: Method, prompt: int, d: int, options: Mapping[str, Any]) -> str | None:
    """Why a method that compresses cannot keep d keys of a prompt; None if it can."""
    if not 1 <= d <= prompt:
        return f"{method.name}: d={d} exceeds the prompt of {prompt} tokens; choose d in 1..{prompt}"
    for name in ("every", "streaming"):
        if options.get(name, False) is not False:  # streaming=false, with which an allocation goes, is the form here
            return f"{method.name}:{name}={options[name]}: a prompt is compressed once, so it has no segments"
    observe = method.options.get("observe")
    count = None if observe is None else options.get("observe", observe.default)
    if count is not None and count > prompt:
        return (
            f"{method.name}: observe={count} exceeds the prompt of {prompt} tokens; choose observe in 1..{prompt}, "
            "or a longer prompt"
        )
    return None


def _scores(qkv: QKV, keys: slice) -> Tensor:
    """The scores of some keys with their cap and bias, (h, n_q, keys)."""
    scores = qkv.scale * unfolded(folded(qkv.q[None], qkv.kv_heads) @ qkv.shared_k[None, :, keys].mT, qkv.h)[0]
    return scores if qkv.terms is None else qkv.terms.of(keys=keys).applied(scores)


def _joined(scores: Tensor, v: Tensor) -> Part:
    """The softmax of scores (h, n_q, n) over values (h or h_kv, n, p_v), and its normaliser."""
    size = scores.logsumexp(-1)
    weights = (scores - size[..., None]).exp()
    if len(v) == len(scores):
        return weights @ v, size
    return unfolded(folded(weights[None], len(v)) @ v[None], len(scores))[0], size
