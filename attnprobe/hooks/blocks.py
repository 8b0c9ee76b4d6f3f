"""What an attention block adds to the residual stream of a model: its output projection, a norm behind it, the stream.

The names of a model's modules are not used. In a forward the output projection is the linear module that reads the
heads' outputs. A norm belongs to the block if it reads the projection itself. The stream ``x + y`` is the first input
of a later module that equals an input x of a module around the attention plus the block's output y. So what is found
is verified on the forward's own numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

NEAR = 1e-5  # the relative distance of x + y from the stream that a later module reads


@dataclass(frozen=True, eq=False)
class Block:
    """The attention block of one call: ``y = norm(W_O o + b)`` of the heads' outputs o, and the stream ``x + y``.

    Attributes:
        weight: W_O, (m, h p_v). stream: x + y, (b, n, m).
        projected: ``W_O o + b``, (b, n, m), and ``norm``: the norm that reads it; both None if no norm does.
    """

    weight: Tensor
    stream: Tensor
    projected: Tensor | None = None
    norm: Callable[[Tensor], Tensor] | None = None

    @torch.no_grad()
    def change(self, error: Tensor, heads: Sequence[int] | None = None) -> Tensor:
        """Δy, (b, n, m), if the outputs of ``heads`` (all by default) change by ``error`` (b, n, heads, p_v).

        Without a norm ``Σ_h W_O,h e_h``, else ``norm(W_O o + b + Σ_h W_O,h e_h) - norm(W_O o + b)``.
        """
        width = error.shape[-1]
        weight = self.weight.unflatten(1, (-1, width))  # (m, h, p_v)
        weight = weight if heads is None else weight[:, list(heads)]
        moved = error.to(weight).flatten(2) @ weight.flatten(1).mT
        if self.projected is None or self.norm is None:
            return moved
        return self.norm(self.projected + moved) - self.norm(self.projected)

    def at(self, row: int, tokens: slice) -> Block:
        """The block of one row of the batch at some tokens, with b = 1."""
        projected = None if self.projected is None else self.projected[row : row + 1, tokens]
        return Block(self.weight, self.stream[row : row + 1, tokens], projected, self.norm)


class Blocks:
    """The blocks of a forward by the numbers of attention calls, while `watched` is open."""

    def __init__(self) -> None:
        self.found: dict[int, Block] = {}
        self._inputs: dict[str, Tensor] = {}  # the last input of each module that has modules
        self._number: int | None = None
        self._reset()

    def _reset(self) -> None:
        self._path, self._output = "", None
        self._weight: Tensor | None = None
        self._projected: Tensor | None = None
        self._norm: nn.Module | None = None
        self._added: Tensor | None = None  # y

    def attended(self, path: str, number: int, output: Tensor) -> None:
        """The attention call ``number`` of the module ``path`` has this output, (b, n, h, p_v)."""
        self._reset()
        self._number, self._path, self._output = number, path, output.flatten(2)

    def enter(self, path: str, module: nn.Module, x: Tensor) -> None:
        """A module begins with its first input."""
        if next(module.children(), None) is not None:
            self._inputs[path] = x
        if self._number is None or self._added is None or isinstance(module, nn.Dropout | nn.Identity):
            return
        assert self._projected is not None and self._weight is not None
        if x.shape != self._added.shape:
            return
        if x.data_ptr() == self._projected.data_ptr():
            self._norm = module
            return
        around = [own for name, own in self._inputs.items() if name == "" or self._path.startswith(f"{name}.")]
        if any(own.shape == x.shape and _near(x, own + self._added) for own in around):
            projected = None if self._norm is None else self._projected
            self.found[self._number] = Block(self._weight, x, projected, self._norm)
            self._number = None
            self._reset()

    def leave(self, module: nn.Module, x: Tensor, output: Any) -> None:
        """A module ends with its first input and its output."""
        if self._number is None or not isinstance(output, Tensor):
            return
        if self._norm is module:
            self._added = output
        elif self._weight is None and _reads(x, self._output) and (weight := _weight_of(module)) is not None:
            self._weight, self._projected, self._added = weight, output, output


@contextmanager
def watched(model: nn.Module) -> Iterator[Blocks]:
    """A context in which a forward of ``model`` shows its attention blocks. `Blocks.attended` must be called."""
    blocks, hooks = Blocks(), []

    def before(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
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


def _reads(x: Tensor, output: Tensor | None) -> bool:
    return output is not None and x.shape == output.shape and torch.equal(x, output)


def _weight_of(module: nn.Module) -> Tensor | None:
    """The matrix of a linear module, (out, in); None of another module. GPT-2's Conv1D has it transposed."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    return weight.detach().mT if type(module).__name__ == "Conv1D" else weight.detach()


def _near(x: Tensor, other: Tensor) -> bool:
    gap = (x.detach().double() - other.detach().double()).norm()
    return bool(gap <= NEAR * x.detach().double().norm())
