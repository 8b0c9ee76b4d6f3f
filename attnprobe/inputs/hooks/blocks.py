"""What an attention block adds to the residual stream of a model: its output projection, a norm behind it, the stream.

The names of a model's modules are not used. In a forward the output projection is the linear module that reads the
heads' outputs. A norm belongs to the block if it reads the projection itself and is an RMS norm. The stream ``x + y``
is the first input of a later module that equals an input x of a module around the attention plus the block's output y.
So what is found is verified on the forward's own numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...operators.block import Block

NEAR = 1e-5  # the relative distance of x + y from the stream that a later module reads


class Finished(Exception):
    """Ends a forward after the last part that is needed."""


class Blocks:
    """The blocks of a forward by the numbers of attention calls, while `watched` is open.

    With ``until`` the forward ends when the block of that call is found.
    """

    def __init__(self, until: int | None = None) -> None:
        self.found: dict[int, Block] = {}
        self.until = until
        self.forwards = 0  # of the whole model; blocks are those of the first
        self.last: int | None = None  # the last attention call
        self._inputs: dict[str, Tensor] = {}  # the last input of each module that has modules
        self._number: int | None = None
        self._reset()

    def _reset(self) -> None:
        self._path, self._output = "", torch.empty(0)
        self._weight: Tensor | None = None
        self._projected: Tensor | None = None
        self._norm: nn.Module | None = None
        self._behind: tuple[Tensor | None, Tensor | None, float] = (None, None, 0.0)  # of a norm
        self._added: Tensor | None = None  # y

    def attended(self, path: str, number: int, output: Tensor) -> None:
        """The attention call ``number`` of the module ``path`` has this output, (b, n, h, p_v)."""
        if self.forwards > 1:
            return
        self._reset()
        self.last = number
        self._number, self._path, self._output = number, path, output.flatten(2)
        # The stream is an input of a module around the attention; the others only hold memory.
        self._inputs = {name: own for name, own in self._inputs.items() if _holds(name, path)}

    def enter(self, path: str, module: nn.Module, x: Tensor) -> None:
        """A module begins with its first input."""
        if next(module.children(), None) is not None:
            self._inputs[path] = x
        if self._number is None or self._added is None or isinstance(module, nn.Dropout | nn.Identity):
            return
        assert self._projected is not None
        assert self._weight is not None
        if x.shape != self._added.shape:
            return
        # The same memory, not equal numbers: a norm of another branch may read numbers that happen to be equal.
        if x.data_ptr() == self._projected.data_ptr():
            self._norm = module
            return
        around = [own for name, own in self._inputs.items() if _holds(name, self._path)]
        if any(own.shape == x.shape and _near(x, own + self._added) for own in around):
            self.found[self._number] = Block(self._weight, x.detach().double().norm(dim=-1), *self._behind)
            last, self._number = self._number == self.until, None
            self._reset()
            if last:
                raise Finished

    def leave(self, module: nn.Module, x: Tensor, output: Any) -> None:
        """A module ends with its first input and its output."""
        if self._number is None or not isinstance(output, Tensor):
            return
        if self._norm is module:
            self._added = output
            self._fit(module, x, output)
        elif self._weight is None and torch.equal(x, self._output):
            weight = _weight_of(module, x, output)
            if weight is not None:
                self._weight, self._projected, self._added = weight, output, output

    def _fit(self, module: nn.Module, x: Tensor, output: Tensor) -> None:
        """Find what reads the projection: a scale of each column, or an RMS norm. With another there is no block."""
        assert self._weight is not None
        gain = module.forward(torch.ones_like(x[:1, :1]))[0, 0].detach()
        eps = float(getattr(module, "eps", None) or getattr(module, "variance_epsilon", None) or 0.0)
        # The gain is read off a row of ones, whose root mean square with eps is (1 + eps)^½.
        rms = Block(self._weight, x, x, gain * (1 + eps) ** 0.5, eps)
        if _near(output, gain * x):
            self._weight = gain[:, None] * self._weight
        elif _near(output, rms.normed(x)):
            self._behind = x, rms.gain, eps
        else:
            self._number = None


@contextmanager
def watched(model: nn.Module, until: int | None = None) -> Iterator[Blocks]:
    """A context in which a forward of ``model`` shows its attention blocks. `Blocks.attended` must be called."""
    blocks, hooks = Blocks(until), []

    def before(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            blocks.forwards += path == ""
            if (x := _first(args, kwargs)) is not None:
                blocks.enter(path, module, x)

        return hook

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if (x := _first(args, kwargs)) is not None:
            blocks.leave(module, x, output)

    try:
        for path, module in model.named_modules():
            hooks.append(module.register_forward_pre_hook(before(path), with_kwargs=True))
            hooks.append(module.register_forward_hook(after, with_kwargs=True))
        yield blocks
    finally:
        for hook in hooks:
            hook.remove()


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The first input of a module, if it is a tensor (b, n, m) of numbers."""
    x = args[0] if args else next(iter(kwargs.values()), None)
    return x if isinstance(x, Tensor) and x.dim() == 3 and x.is_floating_point() else None


def _holds(name: str, path: str) -> bool:
    """Whether the module ``name`` contains the module ``path``, or is it."""
    return name in ("", path) or path.startswith(f"{name}.")


def _weight_of(module: nn.Module, x: Tensor, output: Tensor) -> Tensor | None:
    """The matrix of a linear module, (out, in), if it gives a row of the output; GPT-2's Conv1D has its transpose."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    weight = weight.detach().mT if type(module).__name__ == "Conv1D" else weight.detach()
    if weight.shape != (output.shape[-1], x.shape[-1]):
        return None
    bias = getattr(module, "bias", None)
    # One row is enough to tell a linear module, and costs a thousandth of the product.
    rows = nn.functional.linear(x[:, -1:], weight, bias)
    return weight if _near(output[:, -1:], rows) else None


def _near(x: Tensor, other: Tensor) -> bool:
    gap = (x.detach().double() - other.detach().double()).norm()
    return bool(gap <= max(NEAR, torch.finfo(x.dtype).eps) * x.detach().double().norm())
