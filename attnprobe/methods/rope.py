"""RoPE on vectors of given positions: it turns pairs of coordinates by their angles times the position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import Unsupported
from ..qkv import QKV

MODEL = "model"


@dataclass(frozen=True, eq=False)
class Turns:
    """The pairs of coordinates that a RoPE turns, and their angles.

    Attributes:
        pairs: (2, m) int64. A pair (i, j) turns to ``x_i cos a - x_j sin a`` and ``x_i sin a + x_j cos a``.
        angles: of each pair at each token, (m,) float64.
    """

    pairs: Tensor
    angles: Tensor

    @classmethod
    def of(cls, qkv: QKV, rope: float | str, method: str, option: str, instead: str) -> Turns:
        """The RoPE of the layer of ``qkv``, or one of a base.

        Args:
            rope: ``model``, or the base θ of the angles ``θ^(-2i/p)`` of the pairs (i, i + p/2).
            option: the option of the method that asks for it. instead: the way out, in errors.

        Raises:
            Unsupported: the RoPE is not known; a base with an odd p.
        """
        known = qkv.label.get("rope") if rope == MODEL else rope
        if known is None:
            where = f" in layer {qkv.layer}" if "layer" in qkv.label else ""
            raise Unsupported(f"{method}: {option} needs inputs of a model with a RoPE that is known{where}; {instead}")
        if isinstance(known, float | int):
            if qkv.p % 2:
                raise Unsupported(
                    f"{method}: {option} turns pairs of coordinates, and the head dimension {qkv.p} is odd"
                )
            half = qkv.p // 2
            known = (known ** -(torch.arange(half, dtype=torch.float64) / half)).tolist()
        turning = torch.tensor(known, dtype=torch.float64, device=qkv.device)
        if turning.dim() == 2:  # each pair with its angle
            return cls(turning[:, :2].T.long(), turning[:, 2])
        first = torch.arange(len(turning), device=qkv.device)
        return cls(torch.stack([first, first + len(turning)]), turning)

    def phases(self, positions: Tensor) -> Tensor:
        """``exp(i a c)`` of each pair at the positions c (…), (…, m) complex128."""
        phase = positions[..., None] * self.angles
        return torch.polar(torch.ones_like(phase), phase)

    def turned(self, x: Tensor, phases: Tensor) -> Tensor:
        """Vectors x (…, p) times the complex numbers ``phases`` (…, m) of their pairs, in the dtype of x."""
        turned = torch.complex(*(x[..., places].double() for places in self.pairs)) * phases
        moved = x.clone()
        moved[..., self.pairs[0]], moved[..., self.pairs[1]] = turned.real.to(x), turned.imag.to(x)
        return moved
