"""The calls whose cost `attnprobe bench` measures, made from a file so that a process of its own can make them too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...approximation import Approximation
from ...errors import BadResult, Unsupported
from ...grammar.foreign import first_line, message
from ...methods import Method, approximate, get
from ...qkv import QKV
from ...reference import attention

__all__ = ["EXACT", "Work", "differentiated", "gradients", "load_call", "save_inputs"]

EXACT = "exact"  # the name of exact attention by torch's fused kernel


@dataclass(frozen=True)
class Work:
    """What is called: a method with its options and budget, or exact attention; with its gradient where asked for.

    A method's work is all of `attnprobe.approximate`: its draws, the operator and the product with V. The gradient is
    that of the sum of the output with respect to Q, K and V. ``sha256`` is that of a user's file.
    """

    name: str
    d: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    target: str = "softmax"
    seed: int = 0
    backward: bool = False
    sha256: str | None = None

    @cached_property
    def entry(self) -> Method:
        """The method, which a user's file must still hold as it was planned."""
        found = get(self.name)
        if self.sha256 is not None and (found.provenance is None or found.provenance.sha256 != self.sha256):
            raise BadResult(f"{found.name} changed while the run was on")
        return found

    def __getstate__(self) -> dict[str, Any]:
        """What another process makes the same call from: it finds the method by itself."""
        return {name: value for name, value in vars(self).items() if name != "entry"}

    def run(self, qkv: QKV) -> Approximation:
        """The approximation; for exact attention, one without an operator."""
        if self.name == EXACT:
            inner = qkv.compressed()
            return Approximation(None, attention(inner.q, inner.k, inner.v, inner.scale, inner.causal))
        return approximate(self.entry, qkv, self.d, seed=self.seed, target=self.target, **self.options)

    def call(self, qkv: QKV) -> Callable[[], Any]:
        """The work, ready to run any number of times."""
        if not self.backward:
            return torch.no_grad()(lambda: self.run(qkv))
        leaves = [getattr(qkv, axis).detach().clone().requires_grad_() for axis in "qkv"]
        inputs = replace(qkv, **dict(zip("qkv", leaves, strict=True)))
        return lambda: gradients(self.run(inputs).output, leaves)


def gradients(output: Tensor, leaves: list[Tensor]) -> tuple[Tensor | None, ...]:
    """The gradient of the output's sum; None for what the output does not depend on.

    Raises:
        Unsupported: the output depends on none of them as autograd sees it.
    """
    if not output.requires_grad:
        raise Unsupported("does not differentiate: no gradient reaches its output")
    return torch.autograd.grad(output.sum(), leaves, allow_unused=True)


def differentiated(work: Work, qkv: QKV) -> str:
    """The names of those of Q, K and V that a gradient reaches.

    Raises:
        Unsupported: none of them, or a step that autograd refuses; the message says which.
    """
    try:
        found = work.call(qkv)()
    except RuntimeError as error:
        raise Unsupported(f"does not differentiate: {first_line(message(error))[:160]}") from error
    return "".join(axis for axis, one in zip("QKV", found, strict=True) if one is not None)


def save_inputs(path: Path, qkv: QKV) -> None:
    """Leave Q, K, V, their scale, mask and whether they are causal where `load_call` finds them."""
    tensors = {axis: getattr(qkv, axis).cpu() for axis in "qkv"}
    label = {name: qkv.label[name] for name in ("layer", "window") if name in qkv.label}
    facts = {"scale": qkv.scale, "mask": qkv.mask, "heads": qkv.heads, "label": label, "causal": qkv.causal}
    torch.save({**tensors, **facts}, path)


def load_call(path: str, work: Work, device: str, few: bool = False) -> Callable[[], Any]:
    """The call on the inputs of `save_inputs`; with ``few`` on their first tokens, at most twice the budget."""
    parts = torch.load(path, weights_only=True)
    label, heads, scale, causal = (parts.pop(name) for name in ("label", "heads", "scale", "causal"))
    mask = None if parts["mask"] is None else parts["mask"].to(device)
    tensors = {axis: parts[axis].to(device) for axis in "qkv"}
    if few:
        n = min(len(parts["q"][0]), 2 * max(work.d or 0, 64))
        tensors = {axis: x[:1, :n].clone() for axis, x in tensors.items()}
        mask, heads = None, heads[:1]
    return work.call(QKV(**tensors, scale=scale, mask=mask, heads=heads, label=label, causal=causal))
