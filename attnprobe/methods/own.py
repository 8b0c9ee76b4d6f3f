"""What the module of a model computes in place of exact attention: the published approximation itself."""

from __future__ import annotations

from ..errors import Unsupported
from ..qkv import QKV
from ..rng import Streams
from .base import Approximation, per_head
from .registry import register


@register(
    name="own",
    paper="the model's own module",
    year=0,
    family="reference",
    kind="model",
    tags=("causal", "local", "biases"),
    budget=None,
    cost="0",
    oracle="the module's output",
)
def own(qkv: QKV, d: None, *, streams: Streams, target: str = "softmax") -> Approximation:
    """The output ``qkv.own`` of a module that stands for softmax attention, as Nyströmformer's does.

    So do those of BigBird, Longformer and Reformer. Beside exact attention of the module's own Q, K and V it shows how
    far a trained model is from the attention that it approximates. It has the settings of the checkpoint: its
    landmarks, blocks, window or hashes. Nyströmformer's output has its convolution of V. The random blocks of BigBird
    and the hashes of Reformer are those of the captured forward.

    Shapes: output (h, n_q, p_v), without a matrix. Cost: none.

    Raises:
        Unsupported: inputs without such an output.
    """
    if qkv.own is None:
        raise Unsupported(
            "own: these inputs have no output of a module that approximates attention; choose a Nyströmformer, "
            "BigBird, Longformer or Reformer model, and a text of at most its positions"
        )
    return Approximation(None, qkv.own, diagnostics={"visited": per_head(qkv.h, 0)})
