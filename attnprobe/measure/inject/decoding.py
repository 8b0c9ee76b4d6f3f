"""Decoding behind a prefix that the unmodified model has read: teacher-forced steps, and greedy ones."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ...errors import SourceError, Unsupported
from ...grammar.foreign import reason
from ...inject.replacement import Replacement
from ...inputs import AttentionCall
from ...inputs.hooks.call import rows_of
from ...inputs.positions import NEAR, ROUNDING
from ...methods import get
from ...operators.precision import full_precision
from ...qkv import QKV
from ...rounding import Arithmetic
from ...run.cells import Result
from .allocation import head_errors
from .bench import Bench, replaced_heads, widened
from .cache import CacheLayer, CacheReaders, Read, copied_cache, empty_cache
from .drift import Local, Outputs, answer_metrics, step_rows
from .language import LanguageModel
from .plan import InjectWork, why_not_decoded
from .policy import PromptPolicy, Steps, prompt_text

if TYPE_CHECKING:
    from transformers import Cache


@dataclass(frozen=True)
class Way:
    """How a model reads tokens behind a cache: all at once or one by one, and whether it is told their positions."""

    at_once: bool
    positions: bool


WAYS = [Way(at_once, positions) for at_once in (True, False) for positions in (False, True)]  # cheap ones first
_ways: WeakKeyDictionary[nn.Module, Way] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Prefix:
    """The first tokens of a batch of rows of one length, read by the unmodified model.

    Attributes:
        ids: all tokens, (b, n). length: of the prefix.
        cache: the keys and values of the prefix. next: the likeliest token after it, (b, 1).
    """

    model: LanguageModel
    ids: Tensor
    length: int
    cache: Cache
    next: Tensor

    @classmethod
    def of(cls, model: LanguageModel, ids: Tensor, length: int, whole: Cache, following: Tensor) -> Prefix:
        """The first ``length`` tokens of ``ids`` (b, n), before the tokens ``following``.

        Args:
            whole: the keys and values of all tokens. If a layer has only those of a window, the prefix is read again.
        """
        from transformers import DynamicCache, DynamicLayer

        cache = empty_cache(model.model)
        layers: Any = whole.layers  # type: ignore[attr-defined]  # of transformers 5
        if all(getattr(layer, "keys", None) is None for layer in layers) and type(whole) is DynamicCache:
            raise SourceError(
                f"{type(model.model).__name__}: it keeps no keys in transformers' cache, so it cannot decode"
            )
        if type(whole) is DynamicCache and all(type(layer) is DynamicLayer for layer in layers):
            for number, layer in enumerate(layers):
                cache.update(layer.keys[:, :, :length], layer.values[:, :, :length], number)
        else:
            model.behind(cache, {"input_ids": ids[:, :length]}, last=1)
        return cls(model, ids, length, cache, following)

    @property
    def steps(self) -> slice:
        """The tokens that steps read: all after the prefix except the last, which no word follows."""
        return slice(self.length, self.ids.shape[1] - 1)

    def outputs(self, way: Way) -> list[Outputs]:
        """The model's outputs for each row, of all tokens of `steps`, read in some way behind the cache."""
        cache, ids = copied_cache(self.cache), self.ids[:, self.steps]
        step = ids.shape[1] if way.at_once else 1
        starts = range(self.length, self.steps.stop, step)
        parts = [
            self.model.behind(cache, {"input_ids": part}, start=start if way.positions else None)
            for start, part in zip(starts, ids.split(step, 1), strict=True)
        ]
        hidden, logits = (torch.cat(part, 1) for part in zip(*parts, strict=True))
        return [Outputs(*row) for row in zip(hidden, logits, strict=True)]

    def greedy(self, steps: int, way: Way) -> Tensor:
        """The tokens of ``steps`` greedy steps, (b, steps). Each step reads the likeliest token of the step before."""
        cache, tokens = copied_cache(self.cache), [self.next]
        for step in range(steps):
            start = self.length + step if way.positions else None
            _, logits = self.model.behind(cache, {"input_ids": tokens[-1]}, start=start)
            tokens.append(logits[:, -1:].argmax(-1))
        return torch.cat(tokens[1:], dim=1) if steps else self.next[:, :0]


@dataclass
class ExactSteps:
    """The exact attention of the steps in one layer.

    Attributes:
        call: with the queries of the steps alone, behind the keys before them. rows: of the batch.
        output: of the steps, (b, n_q, h, p_v) float64. texts: the prompts of rows.
    """

    call: AttentionCall
    rows: Sequence[Steps]
    output: Tensor
    texts: dict[int, QKV] = field(default_factory=dict)


@dataclass(kw_only=True)
class DecodingBench(Bench):
    """The same batch read by exact attention up to a prefix, and then token by token."""

    prefix_length: int
    greedy_steps: int
    answers: Sequence[slice] = ()  # the places of the predictions of each row's answer of a needle
    prefix: Prefix = field(init=False)
    whole: Cache = field(init=False)  # of all tokens
    readers: CacheReaders = field(init=False)
    stored: list[CacheLayer] | None = field(init=False, default=None)  # of the prompt
    following: Tensor = field(init=False)  # the likeliest token after the prompt, (b, 1)
    kept: dict[tuple[Any, ...], dict[Any, Tensor]] = field(default_factory=dict)
    read: dict[tuple[int, int], list[Read]] = field(default_factory=dict)  # by the method that is measured
    exact: dict[int, ExactSteps] = field(default_factory=dict)
    way: Way = field(init=False)  # in which the model reads steps

    @property
    def first(self) -> int:
        return self.prefix_length

    @full_precision()
    def __post_init__(self) -> None:
        self.whole = empty_cache(self.model.model)
        super().__post_init__()
        ids = self.reading.inputs["input_ids"]
        self.prefix = Prefix.of(self.model, ids, self.prefix_length, self.whole, self.following)
        self.way = _way(self.prefix, self.own)
        # after the way is known: greedy steps read tokens behind the cache
        self.own = self._with_greedy(self.own, self.prefix)

    def _keys(self, number: int, module: nn.Module, keys: Tensor) -> None:
        self.readers(number, module, keys)

    def _outputs(self) -> list[Outputs]:
        self.readers = CacheReaders(self.whole)
        last = self.lengths[0] - self.prefix_length + 1
        hidden, logits = self.model.behind(self.whole, self.reading.inputs, last)
        self.following = logits[:, :1].argmax(-1)
        steps = slice(self.prefix_length, -1)  # no word follows the last token
        return [Outputs(*row) for row in zip(hidden[:, steps], logits[:, 1:-1], strict=True)]

    def measure(self, work: InjectWork) -> list[Result]:
        if (why := why_not_decoded(work.request.entry)) is not None:
            raise Unsupported(f"{work.request.name} cannot decode: {why}")
        if work.why is not None:
            raise Unsupported(work.why)
        if (why := work.request.entry.why_no_test(work.d, work.options, self.prefix_length)) is not None:
            raise Unsupported(why)
        if self.stored is None:
            self.stored = self.readers.of(self.prefix.cache)
        if (why := self._why_not_quantised(work)) is not None:
            raise Unsupported(why)
        if work.exact:
            self.read = {}  # each head reads all tokens
        results = super().measure(work)
        if work.request.entry.family != "exact" and not self._acted():
            raise Unsupported(
                f"{work.request.name}: no test: each head reads all {self.prefix_length} tokens of the prompt, as "
                "exact attention does; choose a smaller budget"
            )
        return results

    def _acted(self) -> bool:
        """Whether some head of the last forward did not attend to the whole prompt exactly."""
        return any(not bool(read.whole.all()) for reads in self.read.values() for read in reads)

    def _why_not_quantised(self, work: InjectWork) -> str | None:
        """Why a format cannot stand for the caches of a work's layers, or a method cannot read the prompt."""
        entry = work.request.entry
        quantised = entry.format is not None and work.head is None
        if work.prompt != "exact" and entry.family != "exact" and not quantised:
            return f"{entry.name}: prompt={work.prompt} needs a format in all heads, alone or behind a policy"
        if entry.format is None:
            return None
        for number, call in self.calls.items():
            readable = [layer for layer in self.stored or () if call.number in layer.readers]
            latent = [layer for layer in readable if layer.heads < call.kv_heads]
            if number in work.layers and latent:
                return (
                    f"{entry.name}: layer {number} caches {latent[0].heads} rows of each token for {call.kv_heads} KV "
                    "heads (latent attention), and a format stores keys and values of heads"
                )
        return None

    @torch.no_grad()
    def _local(self, work: InjectWork, layer: int) -> list[Local]:
        policy, exact = self._policy(work), self._exact(layer)
        errors, call = [], exact.call
        heads = replaced_heads(call, work)
        for row, steps in enumerate(exact.rows):
            got, lost = policy.row(steps)
            own = self._exact_output(call, exact.output, row, slice(None), heads)
            found = own.errors(got.transpose(0, 1)[:, heads.start : heads.stop])
            errors.append(replace(found, lost=lost[list(heads)].tolist()))
        return errors

    @torch.no_grad()
    @full_precision()
    def errors_of_heads(self, work: InjectWork, tried: Sequence[int], by: str) -> Tensor:
        """The error of each KV head of the first row at each number of keys, (heads of all layers, numbers)."""
        errors = []
        for layer in work.layers:
            exact = self._exact(layer)
            call = exact.call
            if by in ("residual", "measured") and call.block is None:
                raise Unsupported(f"{call.module}: no block around it was verified, so it has no residual error")
            of_layer = []
            for d in tried:
                got, lost = self._policy(replace(work, budget=d)).row(exact.rows[0])
                of_layer.append(head_errors(call, 0, exact.output[0], got.transpose(0, 1), lost, by))
            errors.append(torch.stack(of_layer, 1))
        return torch.cat(errors)

    def _exact(self, layer: int) -> ExactSteps:
        if layer not in self.exact:
            call, steps = self.calls[layer].with_coordinate(), self.prefix.steps
            parts = {"q": call.q[:, :, steps], "k": call.k[:, :, : steps.stop], "v": call.v[:, :, : steps.stop]}
            block = None if call.block is None else call.block.at(slice(None), steps)
            bias = rows_of(call.bias, steps)
            bias = None if bias is None else bias[..., : steps.stop]
            alone = replace(call, **parts, visible=None, bias=bias, own=None, exact=None, block=block)
            rows = [Steps.of(alone, row, self.prefix_length) for row in range(len(call.q))]
            self.exact[layer] = ExactSteps(alone, rows, call.output()[:, steps])
        return self.exact[layer]

    def _text(self, layer: int, row: int) -> QKV:
        """The prompt of a row as policies read it."""
        texts = self._exact(layer).texts
        if row not in texts:
            texts[row] = prompt_text(self.calls[layer].qkv(row), self.prefix_length)
        return texts[row]

    def _policy(self, work: InjectWork) -> PromptPolicy:
        kept = self.kept.setdefault(work.method, {})
        fields = work.request.entry, work.budget, work.seed, work.options, self.prefix_length
        return PromptPolicy(*fields, self._text, None if work.head is None else (work.head,), kept)

    def _words(self, row: int) -> Tensor:
        words = super()._words(row)
        assert words is not None  # of a causal model
        return words[self.prefix.steps]

    def _injected(self, work: InjectWork, arithmetic: Arithmetic | None = None) -> list[Outputs]:
        """The outputs of the steps. A request with an arithmetic of its own reads no prompt."""
        calls = {call.number: call for call in self.calls.values()}
        shared = [call for layer in self.stored or () for call in layer.readers if _shares(layer, calls.get(call))]
        prefix, policy = self.prefix, replace(self._policy(work), shared=shared)
        if work.prompt != "exact" and work.request.entry.format is not None:
            prefix, read = self._read_by(work)
            policy = replace(policy, text=lambda layer, row: prompt_text(read[layer].qkv(row), prefix.length), kept={})
        with self._attention_by(policy, work.layers):
            outputs = prefix.outputs(self.way)
        self.read = policy.read or {}  # bytes are those of the text's steps
        with self._attention_by(replace(policy, read=None, shared=()), work.layers):
            return self._with_greedy(outputs, prefix)

    def _read_by(self, work: InjectWork) -> tuple[Prefix, dict[int, AttentionCall]]:
        """The prompt as the model reads it with a format in some layers, and the calls of these layers.

        The cache, and the keys of the calls, are not quantised yet.
        """
        stated, options = work.request.entry.format, work.options
        assert stated is not None
        own = {name: options[name] for name in stated.parameters() if name in options}
        method, calls = Replacement(get(stated.name), None, work.seed, "softmax", own), dict[int, AttentionCall]()

        def read(call: AttentionCall) -> Tensor:
            calls[call.layer] = widened(call)
            return method(call)

        cache = empty_cache(self.model.model)
        with self._attention_by(read, work.layers):
            _, logits = self.model.behind(cache, {"input_ids": self.prefix.ids[:, : self.prefix_length]}, last=1)
        return replace(self.prefix, cache=cache, next=logits[:, -1:].argmax(-1)), calls

    def _with_greedy(self, outputs: Sequence[Outputs], prefix: Prefix) -> list[Outputs]:
        """The outputs of each row with its greedy tokens."""
        greedy = prefix.greedy(self.greedy_steps, self.way)
        return [replace(row, greedy=tokens) for row, tokens in zip(outputs, greedy, strict=True)]

    def _result(self, work: InjectWork, row: int, got: Outputs, local: Mapping[int, Local]) -> Result:
        words, own = self._words(row), self.own[row]
        assert own.logits is not None and got.logits is not None
        result, steps = self._drift(work, row, got, local)
        # a sentinel: without a divergence its place is the number of steps
        same = [*steps["top1_agreement"], 0.0]
        kept, read = self._bytes(row)
        numbers = {
            "first_divergence": float(same.index(0.0)),
            "cache_bytes": kept,
            "read_bytes": read,
        }
        if self.answers:
            answer = slice(*(end - self.prefix_length for end in (self.answers[row].start, self.answers[row].stop)))
            numbers |= answer_metrics(own.logits[answer], got.logits[answer], words[answer])
        [whole, *rows] = result["rows"]
        return {**result, "rows": [whole | numbers, *rows, *step_rows(steps)]}

    def _bytes(self, row: int) -> tuple[float, float]:
        """The bytes of a text's prompt in the cache, and of those that heads keep or read, a mean over steps."""
        assert self.stored is not None
        reads = {call: parts for (call, text), parts in self.read.items() if text == row}
        steps = [dict(zip(reads, parts, strict=True)) for parts in zip(*reads.values(), strict=True)] or [{}]
        sizes = [layer.bytes(step) for layer in self.stored for step in steps]
        kept, read = (sum(size) / len(steps) for size in zip(*sizes, strict=True))
        return kept, read


def _shares(layer: CacheLayer, call: AttentionCall | None) -> bool:
    """Whether KV heads of a call read rows of the cache that other heads or calls read too."""
    return len(layer.readers) > 1 or (call is not None and layer.heads < call.kv_heads)


def _way(prefix: Prefix, own: Sequence[Outputs]) -> Way:
    """The first of the `WAYS` in which a model reads tokens behind a cache as it reads them in a text.

    Hybrid models may not continue their other layers by several tokens, or take positions from the cache of a layer
    without keys. A model is asked once.

    Raises:
        Unsupported: it reads them in no way as in a text.
    """
    model = prefix.model.model
    if model in _ways:
        return _ways[model]
    takes = "position_ids" in inspect.signature(model.forward).parameters
    allowed, least, failed = max(NEAR, ROUNDING * torch.finfo(model.dtype).eps), inf, ""
    for way in [way for way in WAYS if takes or not way.positions]:
        try:
            found = prefix.outputs(way)
        except Exception as error:  # the code of any model may raise anything
            failed = f"behind a cache its forward failed ({reason(error)})"
            continue
        pairs = zip(found, own, strict=True)
        far = max(float((behind.hidden - whole.hidden).norm() / whole.hidden.norm()) for behind, whole in pairs)
        if far <= allowed:
            _ways[model] = way
            return way
        least = min(far, least)
    differs = (
        f"behind a cache its hidden states differ by {least:.1e} from those of the whole text (relative; {allowed:.0e} "
        "is allowed)"
    )
    raise Unsupported(f"{type(model).__name__}: {differs if least < inf else failed}, so it cannot decode")
