"""The residual error: the size of an attention error beside the residual stream that it enters."""

from __future__ import annotations

from torch import Tensor

from ..arguments import checked
from ..errors import UsageError


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
        change: Δy, (…, n, m). stream: ``x + y``, (n, m), or a shape that broadcasts.

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
    if change.dim() < 2 or stream.dim() < 2 or change.shape[-2:] != stream.shape[-2:] or not change.shape[-2]:
        raise UsageError(
            f"the change has shape {tuple(change.shape)} and the stream {tuple(stream.shape)}; (…, n, m) and (n, m) "
            "with n of at least 1 are needed"
        )
    moved, size = change.double().square().sum(-1), stream.double().square().sum(-1)  # (…, n)
    share = moved / (moved + size)  # r² / (1 + r²)
    share = share.masked_fill((moved == 0) & (size == 0), 0.0).masked_fill(moved == float("inf"), 1.0)
    return share.mean(-1)
