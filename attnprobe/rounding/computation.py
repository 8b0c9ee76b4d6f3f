"""A method on given Q, K and V, run in float64, in a format, or with its operations followed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..approximation import Approximation
from ..methods import Method, approximate
from ..operators.linalg.norms import output_norms
from ..operators.precision import full_precision
from ..qkv import QKV
from ..reference import exact_output
from .choices import Choices
from .following import Follow

INPUTS = ("q", "k", "v", "all_queries", "sink_logits", "bias")


@dataclass(frozen=True, eq=False)
class Computation:
    """A method with all that determines its output, on Q, K and V in float64.

    Attributes:
        qkv, method, d, seed, target, options: as in `attnprobe.approximate`; ``qkv`` is float64.
    """

    qkv: QKV
    method: Method
    d: int | None
    seed: int = 0
    target: str = "softmax"
    options: Mapping[str, Any] = field(default_factory=dict)

    def run(self, qkv: QKV | None = None) -> Approximation:
        """The approximation of these inputs, or of others."""
        inputs = self.qkv if qkv is None else qkv
        # products in tf32, which a user may have allowed on a GPU, are no reference
        with full_precision():
            return approximate(self.method, inputs, self.d, seed=self.seed, target=self.target, **self.options)

    @cached_property
    def approximation(self) -> Approximation:
        """The approximation in float64."""
        return self.run()

    def head(self, row: int) -> Computation:
        """The same method on one head."""
        return Computation(self.qkv.head(row), self.method, self.d, self.seed, self.target, self.options)

    @cached_property
    def exact(self) -> Tensor:
        """``B V``, (h, n_q, p_v)."""
        return exact_output(self.qkv, self.target)

    @cached_property
    def sizes(self) -> tuple[Tensor, Tensor]:
        """``‖B V‖₂`` and ``‖B V‖_F``, (h,) each."""
        return output_norms(self.exact)

    @cached_property
    def plain(self) -> tuple[Tensor, Choices]:
        """The output in float64, and the choices that it made."""
        choices = Choices()
        return self.followed(Follow(choices=choices)), choices

    def followed(self, mode: Follow) -> Tensor:
        """The output with all operations followed.

        Raises:
            NotFinite: an input is not finite in the format of ``mode``; `lost_inputs` tells of which heads.
        """
        inputs = {name: value for name in INPUTS if (value := self.qkv.parts()[name]) is not None}
        with torch.no_grad():
            qkv = self.qkv.replace(**{name: mode.start(x) for name, x in inputs.items()})
            with mode:
                return self.run(qkv).output

    def lost_inputs(self, mode: Follow) -> Tensor:
        """The heads with queries, keys or values that are not finite in the format of ``mode``, (h,) bool."""
        every = (mode.start(x) for x in (self.qkv.q, self.qkv.k, self.qkv.v))
        return torch.stack([~torch.isfinite(x).flatten(1).all(1) for x in every]).any(0)
