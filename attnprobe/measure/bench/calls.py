"""The calls whose cost `attnprobe bench` measures. Their inputs are in a file, for other processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
from ...reference import own_output

EXACT = "exact"  # the name of exact attention, by torch's fused kernel where it has one


@dataclass(frozen=True)
class Work:
    """A method with its options and budget, or exact attention, with its gradient on request.

    A method's work is all of `attnprobe.approximate`: its draws, the operator and the product with V. The gradient is
    that of the sum of the output with respect to Q, K and V. ``sha256`` is the hash of a user's file.
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
        """The method. A user's file must be the same as when the run was planned."""
        registered = get(self.name)
        now = registered.provenance and registered.provenance.sha256
        if self.sha256 not in (None, now):
            # another process reads the file again, after the run has begun
            raise BadResult(f"{registered.name}: its file changed while the run was on; start the run again")
        return registered

    def __getstate__(self) -> dict[str, Any]:
        """The state for another process, which looks up the method itself."""
        # a method holds functions, which cannot be pickled
        return {name: value for name, value in vars(self).items() if name != "entry"}

    def run(self, qkv: QKV) -> Approximation:
        """The approximation; for exact attention, one without an operator."""
        if self.name == EXACT:
            return Approximation(None, own_output(qkv.compressed()))
        return approximate(self.entry, qkv, self.d, seed=self.seed, target=self.target, **self.options)

    def call(self, qkv: QKV) -> Callable[[], Any]:
        """The work, ready to run any number of times."""
        if not self.backward:
            return torch.no_grad()(lambda: self.run(qkv))
        # the shared KV heads, so that the gradient of a group is summed once, as in a model
        leaves = [qkv.parts()[axis].detach().clone().requires_grad_() for axis in "qkv"]
        inputs = qkv.replace(**dict(zip("qkv", leaves, strict=True)))
        return lambda: gradients(self.run(inputs).output, leaves)


def gradients(output: Tensor, leaves: list[Tensor]) -> tuple[Tensor | None, ...]:
    """The gradient of the output's sum; None for leaves that the output does not depend on."""
    if not output.requires_grad:
        raise Unsupported("does not differentiate: no gradient reaches its output")
    return torch.autograd.grad(output.sum(), leaves, allow_unused=True)


def differentiated(work: Work, qkv: QKV) -> str:
    """The names of those of Q, K and V that a gradient reaches."""
    try:
        grads = work.call(qkv)()
    except RuntimeError as error:
        raise Unsupported(f"does not differentiate: {first_line(message(error))[:160]}") from error
    return "".join(name for name, gradient in zip("QKV", grads, strict=True) if gradient is not None)


def save_inputs(path: Path, qkv: QKV) -> None:
    """Write a `QKV`, without its block, to a file that `load_call` reads in another process."""
    facts = {name: _on_cpu(part) for name, part in qkv.parts().items()}
    label = {name: qkv.label[name] for name in ("layer", "window", "rope") if name in qkv.label}
    torch.save({**facts, "label": label, "block": None}, path)


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def load_call(path: str, work: Work, device: str) -> Callable[[], Any]:
    """The call on the inputs of `save_inputs`."""
    parts: dict[str, Any] = torch.load(path, weights_only=True)
    parts |= {name: part.to(device) for name, part in parts.items() if isinstance(part, Tensor)}
    return work.call(QKV(**parts))
