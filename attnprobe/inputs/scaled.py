"""A source with multiplied scores, which make attention sharper or flatter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..errors import UsageError
from ..grammar.arguments import checked
from ..qkv import QKV
from .spec import Source


@checked()
def scaled(qkv: QKV, factor: float) -> QKV:
    """``qkv`` with every score multiplied by ``factor``: Q and K times its root, a bias and a cap times it.

        ``Q' = √s Q,  K' = √s K:  S' = scale · Q'K'ᵀ = s S,  B' = softmax(s S),  C'_ij = exp(-s ‖q_i - k_j‖² scale/2)``

    The factor s is an inverse temperature of both targets: every exponent is s times as large, and the entries of A and
    C are raised to the power s. It differs from a change of ``scale``, because methods that read Q and K directly
    (features without a scale, hashes, norms) get larger tensors, as with a model of larger weights.

    Raises:
        UsageError: a factor that is not positive, or products that overflow the dtype.

    >>> import torch
    >>> scaled(QKV(*torch.ones(3, 1, 2, 4)), 4.0).q[0, 0]
    tensor([2., 2., 2., 2.])
    """
    if not 0 < factor < float("inf"):
        raise UsageError(f"scale-inputs={factor:g}: choose a number above 0")
    root = factor**0.5
    try:
        changed = {"q": qkv.q * root, "k": qkv.shared_k * root, "label": {**qkv.label, "scale_inputs": factor}}
        queries = None if qkv.all_queries is None else qkv.all_queries * root
        # The bias and the cap are added to and bound the scores after the product, so they take the whole factor.
        changed["bias"] = None if qkv.bias is None else qkv.bias * factor
        changed["softcap"] = None if qkv.softcap is None else qkv.softcap * factor
        return qkv.replace(**changed, all_queries=queries)
    except UsageError as error:
        raise UsageError(f"scale-inputs={factor:g}: {error}") from error


class ScaledSource(Source):
    """Another source's Q, K and V with scores multiplied by ``factor`` (see `scaled`). Its facts hold the factor."""

    def __init__(self, source: Source, factor: float) -> None:
        self.source, self.factor = source, factor
        self.layers, self.heads, self.default_n = source.layers, source.heads, source.default_n
        self.local, self.device = source.local, source.device
        self.facts: dict[str, Any] = {**source.facts, "scale_inputs": factor}

    @property
    def head_numbers(self) -> tuple[int, ...]:
        return self.source.head_numbers

    @property
    def available(self) -> tuple[int, ...]:
        return self.source.available

    def why_absent(self, layer: int) -> str:
        return self.source.why_absent(layer)

    def check(self, n: int, windows: int, layers: Sequence[int]) -> None:
        self.source.check(n, windows, layers)

    def qkv(self, n: int, layers: Sequence[int], window: int) -> dict[int, QKV]:
        layers_qkv = self.source.qkv(n, layers, window)
        self.facts = {**self.source.facts, "scale_inputs": self.factor}  # some are known only after a forward
        return {layer: scaled(qkv, self.factor) for layer, qkv in layers_qkv.items()}

    def held(self, n: int, layer: int, window: int, heads: Sequence[int] = (), what: str | None = None) -> bool:
        return self.source.held(n, layer, window, heads, what and f"{what}, scores x {self.factor!r}")

    def remembered(
        self, what: str, n: int, layer: int, window: int, heads: Sequence[int], make: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        return self.source.remembered(f"{what}, scores x {self.factor!r}", n, layer, window, heads, make)

    def describe(self) -> list[str]:
        root = f"{self.factor**0.5:.6g}"
        return [*self.source.describe(), f"scores x {self.factor:g}: Q and K each times {root} (--scale-inputs)"]


@checked()
def scaled_inputs(source: Source, factors: Sequence[float]) -> list[Source]:
    """A scaled source for each factor. For 1 it is the source itself, so its facts and cell keys do not change."""
    return [source if factor == 1 else ScaledSource(source, factor) for factor in factors]
