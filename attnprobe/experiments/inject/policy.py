"""Decoding on part of a prompt: which keys a method keeps, and attention of new tokens over them.

A prompt of N tokens has been read by exact attention. New tokens see what the method keeps of the prompt, and each
other by causal attention. A method that compresses chooses d keys of each head once, from the exact Q, K and V of the
prompt. Any other method reads the whole prompt at each step, with d as its budget for one row. Row by row the two parts
are joined by their normalisers: ``o = (D₁ o₁ + D₂ o₂) / (D₁ + D₂)``. So T steps are one forward of T rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...errors import Unsupported
from ...groups import folded, tokens, unfolded
from ...methods import Method, approximate
from ...qkv import QKV
from ...replacement import Budget
from ...sources import AttentionCall

Part = tuple[Tensor, Tensor]  # the output (h, n_q, p_v) and the logarithm of the normaliser (h, n_q) of some keys


@dataclass(frozen=True, eq=False)
class PromptPolicy:
    """A method on the keys of a prompt, as an attention function of the tokens after it.

    Attributes:
        prompt: N. calls: the exact calls of a text that begins with the prompt, by layer, with its Q, K and V.
        heads: the KV heads of which the method chooses keys; None is all. Others keep the whole prompt.
        kept: the chosen keys by (layer, row), which one policy chooses once.
    """

    method: Method
    d: Budget
    seed: int
    options: Mapping[str, Any]
    prompt: int
    calls: Mapping[int, AttentionCall]
    heads: Sequence[int] | None = None
    kept: dict[tuple[int, int, int | None], Tensor] = field(default_factory=dict)

    def __call__(self, call: AttentionCall) -> Tensor:
        """The outputs of the new tokens, (b, n_q, h, p_v), in the dtype of the call.

        Raises:
            Unsupported: the call or the method has no such form.
        """
        outputs = [self.row(call, row)[0] for row in range(len(call.q))]
        return torch.stack(outputs).transpose(1, 2).to(call.q.dtype)

    def row(self, call: AttentionCall, row: int) -> tuple[Tensor, Tensor]:
        """The outputs (h, n_q, p_v) of one row of the batch, and the share of the exact weights that no key has.

        The share, (h,), is ``1 - D~/D``, mean over rows; NaN for methods whose weights are not those of the keys.
        """
        if call.local:
            raise Unsupported(f"{call.module}: a layer with a sliding window has no cache beyond its window")
        qkv = call.qkv(row)
        qkv = qkv.to(dtype=torch.promote_types(qkv.dtype, torch.float32))
        whole = _part(qkv, qkv.shared_k[:, : self.prompt], qkv.shared_v[:, : self.prompt])
        new = _new(qkv, self.prompt)
        exact_size = torch.logaddexp(whole[1], new[1])
        kept = [whole[0].clone(), whole[1].clone()]
        for d, heads in self._budgets(call).items():
            part = self._kept_part(call, row, qkv, d)
            for one, other in zip(kept, part, strict=True):
                one[heads] = other[heads].to(one)
        sizes = [kept[1], new[1]]
        if qkv.sink_logits is not None:
            sizes.append(qkv.sink_logits[:, None].expand_as(kept[1]))
        size = torch.stack(sizes).logsumexp(0)
        output = (kept[1] - size).exp()[..., None] * kept[0] + (new[1] - size).exp()[..., None] * new[0]
        if self.method.family not in ("selection", "sparse", "exact"):
            return output, torch.full((qkv.h,), torch.nan)
        lost = -torch.expm1(torch.logaddexp(kept[1], new[1]).double() - exact_size.double())
        return output, lost.clamp(min=0).mean(-1)

    def _budgets(self, call: AttentionCall) -> dict[int | None, list[int]]:
        """The query heads of which the method chooses keys, by their budget."""
        groups: dict[int | None, list[int]] = {}
        for head in range(call.heads):
            if self.heads is not None and head * call.kv_heads // call.heads not in self.heads:
                continue
            d = self.d
            if isinstance(d, Mapping):
                d = d[(call.number, head)] if (call.number, head) in d else d[call.number]
                if d is None:  # exact attention
                    continue
            groups.setdefault(d, []).append(head)
        return groups

    def _kept_part(self, call: AttentionCall, row: int, qkv: QKV, d: int | None) -> Part:
        if self.method.compress is None:
            return self._read(qkv, d)
        place = call.number, row, d
        if place not in self.kept:
            assert d is not None  # methods that compress have a budget
            own = self.calls[call.number].qkv(row)
            self.kept[place] = kept_keys(self.method, own, self.prompt, d, self.seed, self.options)
        index = self.kept[place]  # (h, u)
        at = index.clamp(min=0)
        scores = qkv.scale * (qkv.q @ tokens(qkv.shared_k, at).mT)
        return _joined(scores.masked_fill((index < 0)[:, None], float("-inf")), tokens(qkv.shared_v, at))

    def _read(self, qkv: QKV, d: int | None) -> Part:
        """The part of a method that reads the prompt at each step: all new tokens stand at the prompt's last one."""
        last = torch.full((qkv.n_q,), self.prompt - 1, device=qkv.device)
        prompt = qkv.replace(
            k=qkv.shared_k[:, : self.prompt],
            v=qkv.shared_v[:, : self.prompt],
            causal=False,  # each of them sees the whole prompt
            positions=last,
            sink_logits=None,
            all_queries=None,
        )
        back = {"causal": True} if "causal" in self.method.options else {}  # a window looks back
        got = approximate(self.method, prompt, d, seed=self.seed, **{**self.options, **back})
        if got.log_normalizer is None:
            raise Unsupported(
                f"{self.method.name} does not state its normaliser, by which the prompt and new tokens are joined"
            )
        return got.output, got.log_normalizer()


def kept_keys(
    method: Method, qkv: QKV, prompt: int, d: int, seed: int = 0, options: Mapping[str, Any] | None = None
) -> Tensor:
    """The keys of the first ``prompt`` tokens that a method keeps, (h, d) int64; -1 are empty slots.

    They are the choice before the token that follows the prompt, by the queries of the prompt.

    Args:
        qkv: the exact inputs of a text that begins with the prompt, with the queries of all tokens.
        options: of the method. Those that cut a text into segments are given by `Method.compress`.

    Raises:
        Unsupported: the method does not compress, or d is not in 1..prompt.
    """
    chosen = dict(options or {})
    if method.compress is None:
        raise Unsupported(f"{method.name} does not compress a prompt once")
    if (fault := why_not_kept(method, prompt, d, chosen)) is not None:
        raise Unsupported(fault)

    def beyond(x: Tensor) -> Tensor:
        return torch.cat([x[:, :prompt], x[:, :1]], 1)  # the last query and key are not looked at

    given = qkv.complete() or qkv
    queries = beyond(given.q)
    text = QKV(
        queries[:, prompt:],
        beyond(qkv.shared_k),
        beyond(qkv.shared_v),
        scale=qkv.scale,
        heads=qkv.heads,
        label=qkv.label,
        causal=True,
        positions=torch.tensor([prompt], device=qkv.device),
        all_queries=queries,
    )
    got = approximate(method, text, d + 1, seed=seed, **{**method.compress, **chosen})
    assert got.keys is not None  # of a method that selects keys
    keys = got.keys()[:, 0]
    keys = keys.masked_fill(keys == prompt, -1)
    width = int((keys >= 0).sum(1).max())
    return keys.sort(1, descending=True).values[:, :width]


def evicts(method: Method) -> bool:
    """Whether the keys that a method does not keep leave the cache: it compresses, or has a window and sinks."""
    return method.compress is not None or method.name == "window"


def why_not_kept(method: Method, prompt: int, d: int, options: Mapping[str, Any]) -> str | None:
    """Why a method cannot keep d keys of a prompt; None if it can, or if it does not compress."""
    if not 1 <= d <= prompt:
        return f"{method.name}: d={d} exceeds the prompt of {prompt} tokens; choose d in 1..{prompt}"
    if method.compress is None:
        return None
    for name in ("every", "streaming"):
        if options.get(name, False) is not False:  # streaming=false, with which an allocation goes, is the form here
            return f"{method.name}:{name}={options[name]}: a prompt is compressed once, so it has no segments"
    observe = method.options.get("observe")
    count = None if observe is None else options.get("observe", observe.default)
    if count is not None and count > prompt:
        return f"{method.name}: observe={count} exceeds the prompt of {prompt} tokens; choose a longer prompt"
    return None


def _part(qkv: QKV, k: Tensor, v: Tensor) -> Part:
    """Exact attention of all queries over keys and values (h_kv, n, ·) that each of them sees."""
    return _joined(_scores(qkv, k), v)


def _new(qkv: QKV, prompt: int) -> Part:
    """Causal attention of the last tokens over the tokens after a prompt."""
    k, v = qkv.shared_k[:, prompt:], qkv.shared_v[:, prompt:]
    place = torch.arange(k.shape[1], device=k.device)
    later = place > qkv.query_positions[:, None] - prompt  # (n_q, new)
    return _joined(_scores(qkv, k).masked_fill(later, float("-inf")), v)


def _scores(qkv: QKV, k: Tensor) -> Tensor:
    return qkv.scale * unfolded(folded(qkv.q[None], qkv.kv_heads) @ k[None].mT, qkv.h)[0]


def _joined(scores: Tensor, v: Tensor) -> Part:
    """The softmax of scores (h, n_q, n) over values (h or h_kv, n, p_v), and its normaliser."""
    size = scores.logsumexp(-1)
    weights = (scores - size[..., None]).exp()
    if len(v) == len(scores):
        return weights @ v, size
    return unfolded(folded(weights[None], len(v)) @ v[None], len(scores))[0], size
