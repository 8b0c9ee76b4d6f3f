"""What the heads of an attention layer add to the residual stream of their model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Block:
    """The attention block of one call: ``y = norm(W_O o + b)`` of the heads' outputs o, and the stream ``x + y``.

    Attributes:
        weight: W_O, (m, h p_v). size: ``‖x + y‖`` of each token, (b, n) float64; without b in a `QKV`.
        projected: ``u = W_O o + b``, (b, n, m), if an RMS norm reads it: ``norm(u) = gain u / √(mean u² + eps)`` with
            ``gain`` (m,). None: y is u.
        last: the size of the last block of the forward, (b, n) float64, if the forward was whole.
    """

    weight: Tensor
    size: Tensor
    projected: Tensor | None = None
    gain: Tensor | None = None
    eps: float = 0.0
    last: Tensor | None = None

    @torch.no_grad()
    def change(self, error: Tensor, heads: Sequence[int]) -> Tensor:
        """Δy, (…, n, m), if the outputs of ``heads``, consecutive numbers, change by ``error`` (…, n, heads, p_v).

        Without a norm ``Σ_h W_O,h e_h``, else ``norm(u + Σ_h W_O,h e_h) - norm(u)``. In the dtype of the weight.
        """
        width = error.shape[-1]
        weight = self.weight[:, heads[0] * width : (heads[-1] + 1) * width]
        moved = error.to(weight).flatten(-2) @ weight.mT  # (…, n, m)
        if self.projected is None:
            return moved
        return self.normed(self.projected + moved) - self.normed(self.projected)

    def normed(self, x: Tensor) -> Tensor:
        """The norm behind the projection, of x (…, m)."""
        assert self.gain is not None
        return self.gain * x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()

    @property
    def between(self) -> Tensor:
        """The geometric mean of the sizes of this stream and the last one, (b, n), or this size if that is not known.

        Beside it errors of different layers can be added: beside its own stream a layer with a small one, such as the
        first, has the largest numbers and little damage, and beside the last stream late layers have all of the sum.
        """
        return self.size if self.last is None else (self.size * self.last).sqrt()

    def at(self, *index: Any) -> Block:
        """The block at an index of (b, n), or of (n,)."""
        projected, last = (None if x is None else x[index] for x in (self.projected, self.last))
        return replace(self, size=self.size[index], projected=projected, last=last)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Block:
        """The block on another device, or computing in another dtype."""
        parts = {name: getattr(self, name) for name in ("weight", "projected", "gain")}
        moved = {name: x if x is None else x.to(device=device, dtype=dtype) for name, x in parts.items()}
        last = None if self.last is None else self.last.to(device=device)
        return replace(self, size=self.size.to(device=device), last=last, **moved)
