"""The device that the tests of ``tests/cuda`` compare with the CPU: a GPU, or what stands in for one.

Without a GPU the CPU itself stands in (``cpu``), or a pretended device (`pretend_device`) whose tensors may not meet
those of the CPU (``pretended``). Then the tests show that they work, and nothing about a GPU.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from pretend_device import AWAY, Pretended, pretending

from attnprobe.machine.environment import TEST_DEVICE
from attnprobe.qkv import QKV

__all__ = ["STAND_INS", "Place", "here", "missing"]

STAND_INS = ("cpu", "pretended")


class Place:
    """A device: tensors are sent to it and taken back. ``name`` is ``cuda``, ``cpu`` or ``pretended``."""

    def __init__(self, name: str) -> None:
        self.name, self.real = name, name == "cuda"
        self.device = AWAY if name == "pretended" else torch.device(name)

    def inside(self) -> AbstractContextManager[Any]:
        """Where tensors may be made on it."""
        return pretending() if self.name == "pretended" else nullcontext()

    def sent(self, x: Any) -> Any:
        """A tensor, or Q, K and V with their mask, on the device."""
        if isinstance(x, QKV):
            mask = None if x.mask is None else self.sent(x.mask)
            parts = (self.sent(x.q), self.sent(x.k), self.sent(x.v))
            return QKV(*parts, scale=x.scale, mask=mask, heads=x.heads, label=x.label, causal=x.causal)
        return x.to(self.device) if self.device.type != "cpu" else x.clone()

    def back(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor on the CPU."""
        return x.held if isinstance(x, Pretended) else x.detach().cpu()

    def holds(self, x: torch.Tensor) -> bool:
        """Whether a tensor is there."""
        return x.device.type == self.device.type

    def settle(self) -> None:
        """Wait until all that was asked of it is done."""
        if self.real:
            torch.cuda.synchronize()

    def __repr__(self) -> str:
        return self.name


def missing() -> str | None:
    """Why there is no GPU; None where there is one."""
    if torch.cuda.is_available():
        return None
    return "this torch is built without CUDA" if torch.version.cuda is None else "torch sees no CUDA device"


def here(share: bool) -> Place | str:
    """The device of a test, or why there is none.

    Args:
        share: the test is one of those that a pretended device runs in the ordinary suite.
    """
    if (why := missing()) is None:
        return Place("cuda")
    arguments = os.environ.get(TEST_DEVICE)
    if arguments is not None:
        return (
            Place(arguments)
            if arguments in STAND_INS
            else f"{TEST_DEVICE}={arguments}: choose {' or '.join(STAND_INS)}"
        )
    return Place("pretended") if share else f"{why}; {TEST_DEVICE}=cpu lets the CPU stand in"
