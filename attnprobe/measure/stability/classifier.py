"""The small transformer that the Long Range Arena's comparisons train, as a function of its weights.

x is a sequence of n tokens, W the weights by name. Embeddings of tokens and positions are added; two pre-norm layers,

    ``Y = X + Attention(LN(X)) W_O``,   ``X' = Y + W₂ GELU(W₁ LN(Y))``,

and a last layer norm give the embedding ``f(x, W)``, (n, 64); a classifier with one hidden layer reads its mean over
the tokens. Width 64, hidden width 128 and 2 heads of 32 are those of Skyformer's appendix. The order of the norms, the
last norm, the biases and the initial values are those of its code. There is no dropout and no padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ...rng import generator

Weights = Mapping[str, Tensor]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q, k, v of (h, n, p) each -> (h, n, p)

HEAD = "head."  # names of the weights on which the embedding does not depend
SPREAD = 0.02  # of the initial embeddings


@dataclass(frozen=True)
class Classifier:
    """The sizes of the model.

    Attributes:
        vocabulary, length, classes: of tokens, positions and labels. pairs: sequences of an example; of two, x and y,
            the classifier reads ``[x, y, x y, x - y]``.
    """

    vocabulary: int
    length: int
    classes: int
    pairs: int = 1
    width: int = 64
    hidden: int = 128
    heads: int = 2
    layers: int = 2

    def initial(self, seed: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Weights:
        """W_0: embeddings N(0, 0.02²), matrices and biases uniform within ``±1/√(inputs)``, norms 1 and 0.

        Each weight has its own random stream, by its name, so that it does not depend on the sizes of the others.
        """
        weights = {}
        for name, shape in self._shapes().items():
            stream = generator(seed, "weights", name)
            if name.endswith("norm.weight"):
                x = torch.ones(shape)
            elif name.endswith("norm.bias"):
                x = torch.zeros(shape)
            elif len(shape) == 2 and name.startswith("embed."):
                # Drawn in float64 on the CPU, so that every dtype and device begins at the same weights, rounded.
                x = SPREAD * torch.randn(shape, generator=stream, dtype=torch.float64)
            else:
                # A bias is drawn by the inputs of its matrix, as torch's Linear draws both.
                inputs = self._shapes()[name.replace(".bias", ".weight")][1]
                x = (2 * torch.rand(shape, generator=stream, dtype=torch.float64) - 1) / inputs**0.5
            weights[name] = x.to(dtype=dtype, device=device)
        return weights

    def embedding(self, weights: Weights, tokens: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        """``f(x, W)``, (n, width), and the embedding before the last norm.

        Args:
            tokens: (n,) int64. attend: computes the attention of each layer.
        """
        x = weights["embed.token"][tokens] + weights["embed.position"][: len(tokens)]  # (n, width)
        for layer in range(self.layers):
            name = f"layer{layer}."
            inner = self._norm(weights, f"{name}attention_norm", x)
            q, k, v = (self._split(_linear(weights, name + part, inner)) for part in ("query", "key", "value"))
            x = x + _linear(weights, name + "output", attend(layer, q, k, v).transpose(0, 1).flatten(1))
            inner = self._norm(weights, f"{name}mlp_norm", x)
            x = x + _linear(weights, name + "down", functional.gelu(_linear(weights, name + "up", inner)))
        return self._norm(weights, "last_norm", x), x

    def logits(self, weights: Weights, embeddings: Sequence[Tensor]) -> Tensor:
        """The scores of the classes, (classes,), from the embeddings of an example's sequences."""
        means = [embedding.mean(0) for embedding in embeddings]
        if len(means) == 2:  # an example of retrieval has two sequences
            x, y = means
            means = [x, y, x * y, x - y]
        inner = functional.relu(_linear(weights, HEAD + "up", torch.cat(means)))
        return _linear(weights, HEAD + "down", inner)

    def _split(self, x: Tensor) -> Tensor:
        """(n, width) as (heads, n, width/heads)."""
        return x.unflatten(1, (self.heads, -1)).transpose(0, 1).contiguous()

    def _norm(self, weights: Weights, name: str, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (self.width,), weights[f"{name}.weight"], weights[f"{name}.bias"])

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        w, h = self.width, self.hidden
        shapes: dict[str, tuple[int, ...]] = {"embed.token": (self.vocabulary, w), "embed.position": (self.length, w)}
        linear = {}
        for layer in range(self.layers):
            name = f"layer{layer}."
            linear |= {name + part: (w, w) for part in ("query", "key", "value", "output")}
            linear |= {name + "up": (h, w), name + "down": (w, h)}
            for norm in ("attention_norm", "mlp_norm"):
                shapes |= {f"{name}{norm}.{part}": (w,) for part in ("weight", "bias")}
        linear |= {HEAD + "up": (h, w * (4 if self.pairs == 2 else 1)), HEAD + "down": (self.classes, h)}
        shapes |= {f"last_norm.{part}": (w,) for part in ("weight", "bias")}
        for name, shape in linear.items():
            shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        return shapes


def _linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])
