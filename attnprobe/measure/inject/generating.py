"""A cache policy or a format while a model generates: `decoding`, for any call of ``model.generate``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...errors import Unsupported, UsageError
from ...grammar.arguments import checked
from ...inject import attention_by
from ...inputs import AttentionCall
from ...methods import Method, get
from ...methods.fitting import fitted
from . import keys_of_share
from .bench import widened
from .plan import why_not_decoded
from .policy import PromptPolicy, Steps, kept_keys, prompt_text

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@checked(model=nn.Module)
@contextmanager
def decoding(
    model: PreTrainedModel,
    method: str | Method | Callable[..., Any],
    d: float | None = None,
    *,
    bytes: float | None = None,
    layer: str | int | Iterable[str | int] = "all",
    seed: int = 0,
    texts: Sequence[int] | None = None,
    **options: Any,
) -> Iterator[PreTrainedModel]:
    """Inside the block ``model.generate`` decodes with what a method keeps, or reads, of each prompt.

    The unmodified model reads the prompt, so it also gives the first new token. Each later token sees d keys of the
    prompt in each head, as the method stores them, and all new tokens exactly: ``attnprobe inject --phase decode``
    measures the same. Rows of a batch may be padded on the left, and each is decoded as if it were alone. Beams of a
    prompt share its keys. Cost: a step computes in float32, and reads a prompt of a format back anew.

    Args:
        method, seed, options: as in `injected`; methods that keep part of a prompt, or have the tag ``decodes``.
        d: a number of keys, all of a shorter prompt; or a share of each prompt, above 0 and at most 1.
        bytes: in place of ``d``, the share of each prompt's bytes in 16 bits a number that the method may keep.
        layer: as in `injected`.
        texts: a number for each prompt, by which random methods draw; 0 by default.

    Raises:
        UsageError: an unknown method or option, or an impossible budget. Unsupported: the method cannot decode; and in
            ``generate``, an attention or a prompt that it cannot take, or a prompt that is read in parts.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=9, initializer_range=1.0, eos_token_id=None, **sizes)).eval()
    >>> ids, new = torch.arange(8)[None], {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    >>> with decoding(model, "snapkv", d=8, observe=2):
    ...     whole = model.generate(ids, **new)
    >>> torch.equal(whole, model.generate(ids, **new))
    True
    """
    entry = get(method)
    with attention_by(model, _Generation(entry, entry.check("softmax", options), d, bytes, seed, texts), layer):
        yield model


@dataclass(frozen=True, eq=False)
class _Generation:
    """The attention of a model that generates.

    Attributes:
        policies: on the prompt that was read last, by layer and row of the batch.
    """

    method: Method
    options: Mapping[str, Any]
    d: float | None
    bytes: float | None
    seed: int
    texts: Sequence[int] | None
    policies: dict[tuple[int, int], PromptPolicy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        entry = self.method
        if (why := why_not_decoded(entry)) is not None:
            raise Unsupported(f"{entry.name} cannot decode: {why}")
        for name, share in (("d", self.d if isinstance(self.d, float) else None), ("bytes", self.bytes)):
            if share is not None and not 0 < share <= 1:
                raise UsageError(f"{name}={share:g}: a share of the prompt lies between 0 and 1; choose 0.25, or 1")
        if self.d is not None and self.bytes is not None:
            raise UsageError(f"d={self.d:g} and bytes={self.bytes:g}: both set the budget; choose one")
        if entry.budget is not None and self.d is None and self.bytes is None:
            raise UsageError(f"{entry.name} needs a budget: pass d ({entry.budget}), or bytes")

    def __call__(self, call: AttentionCall) -> Tensor | None:
        """The output of a step, (b, 1, h, p_v); None for a prompt, which the model reads itself."""
        repeats = 1 if self.texts is None else len(call.q) // len(self.texts)  # beams
        texts = None if self.texts is None else [text for text in self.texts for _ in range(repeats)]
        call = replace(call, windows=texts)
        if not call.cached:
            for row in range(len(call.q)):
                self.policies[call.layer, row] = self._policy(widened(call), row)
            return None
        if call.q.shape[2] > 1 or (call.layer, len(call.q) - 1) not in self.policies:
            raise Unsupported(
                f"{call.module}: decoding needs one forward of the whole prompt and then one of each token"
            )
        outputs = []
        for row in range(len(call.q)):
            policy = self.policies[call.layer, row]
            outputs.append(policy.output(Steps.of(call, row, policy.prompt)))
        return torch.stack(outputs).transpose(1, 2).to(call.q.dtype)

    def _policy(self, call: AttentionCall, row: int) -> PromptPolicy:
        """The method on the prompt of a row. A method that compresses has chosen its keys."""
        qkv = call.qkv(row).compressed()
        prompt, kept = qkv.n_k, {}
        d, options = self._budget(prompt, qkv.p_k, qkv.p_v)
        if self.method.compress is not None:
            assert d is not None  # methods that compress have a budget
            text = prompt_text(qkv, prompt)
            kept[call.layer, row, d] = kept_keys(self.method, text, prompt, d, self.seed, options)
        return PromptPolicy(self.method, d, self.seed, options, prompt, kept=kept, read=None)

    def _budget(self, prompt: int, k: int, v: int) -> tuple[int | None, dict[str, Any]]:
        """The budget of a prompt, with the method's options."""
        options = dict(self.options)
        if self.bytes is not None:
            fit = fitted(self.method, options, self.bytes, prompt, k=k, v=v)
            return fit.d, {**options, **fit.options}
        if self.d is None or self.method.budget is None:
            return None, options
        return (keys_of_share(self.d, prompt) if isinstance(self.d, float) else min(self.d, prompt)), options
