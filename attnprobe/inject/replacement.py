"""A method in place of a model's attention function, for one call at a time.

If a `QKV` describes the call, the method gets it row by row, on the valid tokens, in float32 or wider. Gradients flow
through it. An `Arithmetic` runs the method in few bits, without gradients, on float64 tensors. A causal call needs a
method with a causal form. A sliding window needs the tag ``local``, sinks a method that states its normaliser, and
queries behind a cache of keys the tag ``decodes``, a bias or a cap the tag ``biases``. A call with another mask needs
the exact ``softmax``, which computes it as the model does. Any other method refuses such a call; no part of a call is
silently ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from ..approximation import Approximation, Counted
from ..errors import Unsupported, UsageError
from ..grammar.foreign import message
from ..inputs.hooks.call import AttentionCall, blocks, exact_rows, rows_of
from ..methods import Method, approximate, get
from ..qkv import QKV
from ..rounding import Arithmetic

EXACT = "softmax"

#: one budget for all heads, or one by layer or by (layer, head), where None keeps exact attention
Budget = int | Mapping[int | tuple[int, int], int | None] | None


@dataclass(frozen=True)
class Replacement:
    """A method with its budget, seed and options, as an attention function.

    ``observe`` gets each approximation, with its row of the batch. ``arithmetic`` is that of the method; None is the
    arithmetic of torch in the dtype of the call.

    Raises:
        UsageError: an unknown or contradictory option, or a missing budget. Unsupported: the method does not take the
            target.
    """

    method: Method
    d: Budget
    seed: int
    target: str
    options: dict[str, Any]
    observe: Callable[[int, Approximation], None] | None = None
    arithmetic: Arithmetic | None = None

    def __post_init__(self) -> None:
        entry = self.method
        entry.check(self.target, self.options)
        if entry.budget is not None and self.d is None:
            raise UsageError(f"{entry.name} needs a budget: pass d ({entry.budget})")

    def __call__(self, call: AttentionCall) -> Tensor:
        """The output that replaces the call's own, (b, n_q, h, p_v) in its dtype.

        Raises:
            Unsupported: the method cannot take the call's mask, extras or length. The message names the module.
        """
        if isinstance(self.d, Mapping):
            return self._by_head(call, self.d)
        return self._of_heads(call)

    def _by_head(self, call: AttentionCall, budgets: Mapping[int | tuple[int, int], int | None]) -> Tensor:
        """The output with a separate budget for each head. Heads of equal budget run together."""
        groups: dict[int | None, list[int]] = {}
        for head in range(call.heads):
            key = (call.layer, head) if (call.layer, head) in budgets else call.layer
            if key not in budgets:
                raise UsageError(f"{call.module}: no budget for layer {call.layer}, head {head}; add it to d")
            groups.setdefault(budgets[key], []).append(head)
        # index_copy makes a new tensor, so that gradients flow
        output = call.q.new_empty(*call.q.shape[:1], call.q.shape[2], call.heads, call.v.shape[3])
        for d, heads in groups.items():
            part = replace(self, d=d) if d is not None else Replacement(get(EXACT), None, self.seed, EXACT, {})
            output = output.index_copy(2, torch.tensor(heads, device=output.device), part._of_heads(call, heads))
        return output

    def _of_heads(self, call: AttentionCall, heads: Sequence[int] | None = None) -> Tensor:
        """The output of ``heads``, all by default, (b, n_q, heads, p_v)."""
        # half precision would add its own rounding to the method's error
        wide = torch.promote_types(call.q.dtype, torch.float32 if self.arithmetic is None else torch.float64)
        full = replace(call, **{name: getattr(call, name).to(wide) for name in "qkv"})
        if call.beyond() is not None and self.method.name == EXACT and self.target == EXACT:
            exact = self._exact(full).to(call.q.dtype)
            return exact if heads is None else exact[:, :, list(heads)]
        try:
            rows = [self._row(full, row, heads) for row in range(len(call.q))]
        except UsageError as error:
            line = message(error)
            # the same type: a run counts an Unsupported cell as skipped and others as failed
            raise type(error)(line if line.startswith(call.module) else f"{call.module}: {line}") from error
        return torch.stack(rows).transpose(1, 2).to(call.q.dtype)

    def _row(self, call: AttentionCall, row: int, heads: Sequence[int] | None = None) -> Tensor:
        """The method's output for one row of the batch, (heads, n_q, p_v); rows of padding are 0.

        A method whose heads choose together runs on all heads, as where its budgets were measured.
        """
        parts = [x[row] for x in (call.q, call.k, call.v)]
        if self.arithmetic is not None and not all(torch.isfinite(x).all() for x in parts):  # an earlier layer is lost
            count = call.heads if heads is None else len(heads)
            return call.q.new_full((count, call.q.shape[2], call.v.shape[3]), torch.nan)
        qkv = self._qkv(call, row)
        part = qkv if heads is None or self.method.joint else qkv.select(heads)
        made = self._approximate(part)
        if part is qkv and heads is not None:
            some, every = list(heads), made.diagnostics
            of_heads = Counted({name: lambda name=name: every[name][some] for name in every})
            made = replace(made, output=made.output[some], diagnostics=of_heads)
        if self.observe is not None:
            self.observe(row, made)
        return made.output

    def _approximate(self, qkv: QKV) -> Approximation:
        def run(of: QKV) -> Approximation:
            d = cast("int | None", self.d)
            return approximate(self.method, of, d, seed=self.seed, target=self.target, **self.options)

        return run(qkv) if self.arithmetic is None else self.arithmetic.approximate(run, qkv, self.method.joint)

    def _exact(self, call: AttentionCall) -> Tensor:
        """Exact attention with the call's mask, bias, cap and sinks, (b, n_q, h, p_v)."""

        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return _exact_with_extras(replace(call, q=q, k=k, v=v))

        parts = call.q, call.k, call.v
        return run(*parts) if self.arithmetic is None else self.arithmetic.run(run, *parts)

    def _qkv(self, call: AttentionCall, row: int) -> QKV:
        """The inputs of the method for one row."""
        entry, feature = self.method, call.beyond()
        if feature is not None:
            raise Unsupported(f"{call.module}: {feature}, which {entry.name} does not support")
        if call.causal and not entry.replaces_causal:
            entry.check_form(causal=True, local=False)
            raise Unsupported(f"attention is causal, but {entry.name} looks ahead")
        if call.cached and (why := entry.why_not_decoding()) is not None:
            raise Unsupported(
                f"{call.module}: a query follows a cache of keys, and {entry.name} cannot decode ({why}): pass "
                "use_cache=False"
            )
        # a method that does not care for the order of keys may read a cache whose first keys are gone
        placed = "permutation_equivariant" not in entry.tags
        if call.cached and call.local and placed:
            raise Unsupported(
                f"{call.module}: a query follows a cache that may lack the keys behind the sliding window, and "
                f"{entry.name} goes by the places of tokens: pass use_cache=False"
            )
        if not call.causal and self._asks_for_causal():
            raise Unsupported(f"{call.module}: {entry.name}:causal=true, and {call.pattern} attention looks ahead")
        return call.qkv(row)

    def _asks_for_causal(self) -> bool:
        """Whether the method has an option ``causal`` and it is on."""
        option = self.method.options.get("causal")
        return option is not None and option.coerce(self.options.get("causal", option.default), self.method.name)


def _exact_with_extras(call: AttentionCall) -> Tensor:
    """Exact attention with the call's mask, bias, cap and sinks in the dtype of Q, (b, n_q, h, p_v), by blocks."""
    return torch.cat(
        [
            exact_rows(
                call.q[:, :, start:stop],
                call.k,
                call.v,
                call.scale,
                visible=rows_of(call.visible, slice(start, stop)),
                bias=rows_of(call.bias, slice(start, stop)),
                softcap=call.softcap,
                sinks=call.sinks,
            )[0]
            for start, stop in blocks(call.q, call.k)
        ],
        dim=1,
    )
