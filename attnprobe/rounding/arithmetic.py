"""An arithmetic as options name it, in which computations run. Call `Arithmetic.read`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from ..approximation import Approximation
from ..errors import NotFinite
from ..grammar.arithmetic import EVERY, FLOAT64, Format
from ..qkv import QKV
from .computation import INPUTS
from .emulation import Emulation
from .following import Report
from .formats import arithmetic_named

Result = TypeVar("Result")


@dataclass(eq=False)
class Arithmetic:
    """The arithmetic of a format, and what it has rounded so far.

    Attributes:
        format: of the numbers; in float64 nothing is rounded.
        model: what is rounded, one of `ARITHMETICS`.
        report: the operations of all computations.
    """

    format: Format
    model: str = EVERY
    report: Report = field(default_factory=Report)

    @classmethod
    def read(cls, text: str) -> Arithmetic:
        """The arithmetic of ``FORMAT`` or ``FORMAT:MODEL``.

        Raises:
            UsageError: an unknown name. Unsupported: this version of torch lacks the format.

        >>> Arithmetic.read("bf16").model, Arithmetic.read("fp16:autocast").model
        ('every', 'autocast')
        """
        return cls(*arithmetic_named(text))

    def run(self, compute: Callable[..., Result], *inputs: Tensor) -> Result:
        """The result of ``compute(*inputs)``. Inputs are float64, and so are tensors of the result.

        Raises:
            Unsupported: numbers leave torch, or an operation is none of torch's.
        """
        if self.format == FLOAT64:
            return compute(*inputs)
        mode = Emulation(self.format, self.model)
        with torch.no_grad():
            started = [mode.start(x) for x in inputs]
            with mode:
                made = compute(*started)
        self.report += mode.report
        return made

    def approximate(self, run: Callable[[QKV], Approximation], qkv: QKV, joint: bool = False) -> Approximation:
        """What a method makes of Q, K and V in float64.

        The output of a head is NaN where an input is too large for the format, or where LAPACK refuses a number.

        Args:
            joint: whether the result of a head depends on the other heads, so that all are lost together.
        """
        inputs = {name: value for name in INPUTS if (value := qkv.parts()[name]) is not None}

        def replaced(*started: Tensor) -> Approximation:
            return run(qkv.replace(**dict(zip(inputs, started, strict=True))))

        try:
            return self.run(replaced, *inputs.values())
        except (torch.linalg.LinAlgError, NotFinite):  # pyright: ignore[reportPrivateImportUsage]
            # heads that choose together are lost together
            if joint or qkv.h == 1:
                return Approximation(None, qkv.q.new_full((qkv.h, qkv.n_q, qkv.p_v), torch.nan))
        # alone, to find the heads that are lost: LAPACK refuses a batch for one of them
        outputs = [self.approximate(run, qkv.head(row)).output for row in range(qkv.h)]
        return Approximation(None, torch.cat(outputs))
