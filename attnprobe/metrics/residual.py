"""The residual error: the size of an attention error beside the residual stream that it enters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import torch
from torch import Tensor, linalg

from ..errors import UsageError
from ..grammar.arguments import checked
from ..operators.linalg.norms import in_range, unit_of

if TYPE_CHECKING:
    from ..operators.block import Block
    from ..qkv import QKV


@checked()
def residual_errors(change: Tensor, stream: Tensor) -> Tensor:
    """The mean over rows of ``r² / (1 + r²)`` with ``r = ‖Δy‖ / ‖x + y‖``, in [0, 1), without a unit.

    x is the residual stream before attention, y is what the attention block adds to it, and Δy is the change of y by an
    approximation: of one head, or of all heads of a layer together. Without a norm behind the output projection
    ``Δy = W_O,h e_h``, where e_h is the error of the head's output. `capture` with ``blocks=True`` provides ``x + y``
    and computes Δy. While r is small the value is the mean of r². A row whose output explodes counts as 1.

    Over the layers and the heads of small language models this number has a higher rank correlation with the KL
    divergence of the model's predictions than errors relative to the head's own output, which know neither the size of
    the head nor W_O. ``attnprobe inject --per-head`` measures the correlation on any model.

    Args:
        change: Δy, (…, n, m). stream: ``x + y``, (n, m), or its size ``‖x + y‖``, (n, 1); or shapes that broadcast.

    Returns:
        float64 (…,). Cost: ``n m`` for each change. A row with NaN makes it NaN. A stream of 0 with a change counts 1.

    Raises:
        UsageError: different sizes, or no row.

    >>> import torch
    >>> stream = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    >>> changes = torch.tensor([[[0.0, 5.0], [0.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]])
    >>> [round(float(error), 4) for error in residual_errors(changes, stream)]
    [0.25, 0.1192]
    """
    return residual_rows(change, stream).mean(-1)


def residual_rows(change: Tensor, stream: Tensor) -> Tensor:
    """``r² / (1 + r²)`` of each row, (…, n) float64; see `residual_errors`."""
    fits = change.dim() > 1 and stream.dim() > 1 and stream.shape[-1] in (change.shape[-1], 1)
    if not fits or change.shape[-2] != stream.shape[-2] or not change.shape[-2:].numel():
        raise UsageError(
            f"the change has shape {tuple(change.shape)} and the stream {tuple(stream.shape)}; (…, n, m) and (n, m) "
            "with n and m of at least 1 are needed"
        )
    change, stream = change.double(), stream.double()
    moved, size = change.square().sum(-1), stream.square().sum(-1)  # (…, n)
    if change.device.type != "cpu":  # which rows are right would have to be waited for
        return _scaled_shares(change, stream)
    wrong = ~(in_range(moved) & in_range(size)).reshape(-1, moved.shape[-1]).all(0)  # (n,)
    shares = _shares(moved, size)
    if wrong.any():
        shares[..., wrong] = _scaled_shares(change[..., wrong, :], stream[..., wrong, :])
    return shares


def _scaled_shares(change: Tensor, stream: Tensor) -> Tensor:
    """The shares of rows that are divided by a power of two, so that no square that counts under- or overflows."""
    unit = unit_of(torch.maximum(*(linalg.vector_norm(x, inf, dim=-1, keepdim=True) for x in (change, stream))))
    return _shares((change / unit).square().sum(-1), (stream / unit).square().sum(-1))


def _shares(moved: Tensor, size: Tensor) -> Tensor:
    """``r² / (1 + r²)`` from the squared sizes of Δy and of the stream."""
    share = moved / (moved + size)
    return share.masked_fill((moved == 0) & (size == 0), 0.0).masked_fill(moved == inf, 1.0)


def why_no_block(qkv: QKV) -> str | None:
    """Why the errors of inputs have no residual error; None if they have."""
    if qkv.block is not None:
        return None
    if qkv.label.get("scale_inputs", 1) != 1:
        return "scaled scores are not those of the model"
    if "model" not in qkv.label:
        return "Q, K and V without their model have no residual stream"
    return f"the output projection of layer {qkv.layer} and the stream behind it were not found in this model"


def head_residuals(errors: Tensor, block: Block, heads: Sequence[int]) -> Tensor:
    """`residual_rows` of each head alone, (h, n), from the errors of outputs (h, n, p_v) of the heads ``heads``.

    In the dtype of the block's weight. Cost for each head: ``n m p_v`` multiply-adds.
    """
    size = block.size[..., None]
    changes = (block.change(error[:, None], [head]) for error, head in zip(errors, heads, strict=True))
    return torch.stack([residual_rows(change, size) for change in changes])


def heads_alone(block: Block, p_v: int) -> Block:
    """The block in float64, with the same `head_residuals`, at a cost of ``n p_v²`` for each head without a norm.

    Then only ``‖W_O,h e_h‖ = ‖R_h e_h‖`` is needed, of ``W_O,h = Q_h R_h`` with orthonormal Q_h.
    """
    block = block.to(dtype=torch.float64)
    if block.projected is not None:
        return block
    of_heads = block.weight.unflatten(1, (-1, p_v)).movedim(1, 0)  # (h, m, p_v)
    return replace(block, weight=torch.cat(list(linalg.qr(of_heads, mode="r").R), 1))
