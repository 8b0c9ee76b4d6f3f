"""The relative errors of guarantees: of normalisers, numerators, outputs and matrices, over heads or rows."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, linalg

from ..approximation import CACHED_ENTRIES, Approximation
from ..errors import Unsupported
from ..operators import SoftmaxAttention
from ..operators.blocks import row_blocks
from ..operators.groups import repeated
from ..operators.linalg.norms import row_norms, unit_of_squares
from ..operators.precision import full_precision
from ..qkv import QKV
from ..reference import exact, exact_output
from ..rng import generator
from .residual import head_residuals, heads_alone

if TYPE_CHECKING:
    from ..operators.block import Block

QUANTITIES = {
    "normaliser": "|D~/D - 1|",
    "numerator": "‖N~ - N‖/‖N‖, N = D o",
    "output": "‖o~ - o‖/‖o‖",
    "matrix": "‖E‖₂/‖B‖₂, E = B - B~",
}
STEPS = 4  # of the power method before a decomposition
LARGEST = 2048  # queries, or keys, of a matrix whose spectral norm is computed in every repeat


@dataclass(frozen=True, eq=False)
class GuaranteeReference:
    """The exact outputs, normalisers and matrices with which all repeats of a method are compared.

    Each is computed when it is first used.

    Attributes:
        qkv: the inputs, without a mask. target: ``softmax`` or ``gaussian``, which has no normaliser.
        matrix: whether spectral norms are computed.
    """

    qkv: QKV
    target: str = "softmax"
    matrix: bool = True

    @cached_property
    def output(self) -> Tensor:
        """``o``, (h, n_q, p_v) float64."""
        return exact_output(self.qkv, self.target)

    @cached_property
    def sizes(self) -> Tensor:
        """``‖o_i‖`` of each row, (h, n_q) float64."""
        return row_norms(self.output)

    def sizes_of(self, quantity: str) -> Tensor | None:
        """The sizes of rows by which `over_heads` makes errors of ``quantity`` those of a head; None is 1 for all."""
        if quantity == "normaliser":
            return None
        return self.numerator_sizes if quantity == "numerator" else self.sizes

    @cached_property
    def log_normaliser(self) -> Tensor | None:
        """``ln D``, (h, n_q) float64, with the sinks of heads; None for targets without a normaliser."""
        if self.target != "softmax":
            return None
        x = self.qkv.to(dtype=torch.float64)
        log_sum = SoftmaxAttention(x.q, x.k, x.scale, x.visible, x.terms).log_normalizer()
        return log_sum if x.sink_logits is None else torch.logaddexp(log_sum, x.sink_logits.double()[:, None])

    @cached_property
    def numerator_sizes(self) -> Tensor:
        """``‖N_i‖ = D_i ‖o_i‖`` of each row over the largest D of its head, (h, n_q) float64."""
        assert self.log_normaliser is not None
        return (self.log_normaliser - self.log_normaliser.amax(-1, keepdim=True)).exp() * self.sizes

    @cached_property
    def dense(self) -> Tensor:
        """B as a dense matrix, (h, n_q, n_k) float64."""
        if min(self.qkv.n_q, self.qkv.n_k) > LARGEST:
            raise Unsupported(
                f"the norm of a {self.qkv.n_q} x {self.qkv.n_k} matrix in every repeat takes too long: choose fewer "
                f"--queries, up to {LARGEST}, or --no-matrix"
            )
        return exact(self.qkv, self.target).dense().double()

    @cached_property
    def norm(self) -> Tensor:
        """``‖B‖₂``, (h,) float64. Cost O(n³)."""
        return _spectral_norm(self.dense)

    @cached_property
    def block(self) -> Block | None:
        """What each head alone adds to the residual stream; None without a model."""
        return self.qkv.block and heads_alone(self.qkv.block, self.qkv.p_v)

    @full_precision()
    @torch.no_grad()
    def residuals(self, approx: Approximation) -> Tensor | None:
        """The residual error of each head, (h,), see `residual_errors`; None without the block of a model."""
        if self.block is None:
            return None
        return head_residuals(approx.output.double() - self.output, self.block, self.qkv.heads).mean(-1)

    @cached_property
    def _gram(self) -> tuple[Tensor, Tensor, Tensor]:
        """K, ``QᵀQ Kᵀ`` (h, p, n_k) and ``Σ S_ij²`` without the scale, in float64."""
        q, k = self.qkv.q.double(), self.qkv.k.double()
        weighted = q.mT @ q @ k.mT
        return k, weighted, (weighted * k.mT).sum((1, 2))

    @full_precision()
    @torch.no_grad()
    def score_bias(self, approx: Approximation) -> Tensor | None:
        """``Σ S_ij S~_ij / Σ S_ij² - 1`` over all queries and keys, (h,), of quantised keys; None of others.

        It is the slope of their scores, less 1. Cost: ``n_k p`` multiply-adds a head.
        """
        if approx.stored is None:
            return None
        k, weighted, squares = self._gram
        change = repeated(approx.stored[0], self.qkv.h).double() - k
        return (weighted * change.mT).sum((1, 2)) / squares

    @full_precision()
    @torch.no_grad()
    def errors(self, approx: Approximation, *, enough: float = math.inf) -> dict[str, Tensor]:
        """The relative errors of an approximation, by the names of `QUANTITIES`: (h, n_q), and (h,) for ``matrix``.

        ``normaliser`` and ``numerator`` need a method that states its normaliser. For an exact size of zero the error
        is 0 or infinite. Errors of values that are not finite are not finite.

        Args:
            enough: a matrix error above it may be a lower bound above it, from a few steps of the power method. They
                cost ``8 n_q n_k`` multiply-adds a head; an exact error costs O(n³).
        """
        output = approx.output.double()
        errors = {"output": _relative(output - self.output, self.sizes)}
        ratio = normaliser_ratio(approx, self.log_normaliser)
        if ratio is not None:
            errors["normaliser"] = (ratio - 1).abs()
            errors["numerator"] = _relative(ratio[..., None] * output - self.output, self.sizes)
        if self.matrix and approx.operator is not None:
            h, n_q, n_k = approx.operator.shape  # on a CPU as many heads at once as stay in the cache
            together = max(1, CACHED_ENTRIES // (n_q * n_k)) if approx.operator.device.type == "cpu" else h
            norms = []
            for heads in itertools.starmap(slice, row_blocks(h, together)):
                difference = self.dense[heads] - approx.operator.heads(heads).dense()
                # an audit asks only whether an error exceeds ε, and a few steps often show that it does
                norms.append(_spectral_norm(difference, enough * self.norm[heads]))
            errors["matrix"] = torch.cat(norms) / self.norm
        return {name: errors[name] for name in QUANTITIES if name in errors}


def normaliser_ratio(approx: Approximation, log_normaliser: Tensor | None) -> Tensor | None:
    """``D~/D`` of each row, (h, n_q) float64; None if the method states no normaliser."""
    if approx.log_normalizer is None or log_normaliser is None:
        return None
    return (approx.log_normalizer().double() - log_normaliser).exp()


def over_heads(errors: Tensor, sizes: Tensor | None = None) -> Tensor:
    """``(Σ_i (s_i e_i)² / Σ_i s_i²)^½``, (h,), of errors e (h, n_q) and ``sizes`` s (h, n_q); None is 1 for all rows.

    With the norms of the exact rows as sizes it is the relative Frobenius error of the head.

    >>> over_heads(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]))
    tensor([3.])
    """
    if sizes is None:
        return row_norms(errors) / errors.shape[-1] ** 0.5
    return row_norms(errors * sizes) / row_norms(sizes)


def _relative(difference: Tensor, sizes: Tensor) -> Tensor:
    """The norms of rows (h, n_q, c) over their sizes (h, n_q), (h, n_q); 0 if both are zero."""
    norms = row_norms(difference)
    return torch.where((norms == 0) & (sizes == 0), norms, norms / sizes)


def _spectral_norm(matrix: Tensor, enough: Tensor | None = None) -> Tensor:
    """``‖M‖₂`` of each head, (h,), from the Gram matrix of the shorter side; NaN for entries that are not finite.

    A norm above ``enough`` (h,) may be a lower bound above it.
    """
    if matrix.shape[1] > matrix.shape[2]:
        matrix = matrix.mT
    unit = unit_of_squares(matrix.abs().amax((1, 2)))
    if (unit != 1).any():
        return _spectral_norm(matrix / unit[:, None, None], None if enough is None else enough / unit) * unit
    if enough is None or not torch.isfinite(enough).any():
        return _from_gram(matrix)
    lower = _power_bound(matrix, enough)
    exactly = ~((lower > (1 + 1e-9) * enough) & torch.isfinite(lower))
    if exactly.any():
        lower[exactly] = _from_gram(matrix[exactly])
    return lower


def _power_bound(matrix: Tensor, enough: Tensor) -> Tensor:
    """A lower bound of ``‖M‖₂`` of each head, (h,), by the power method, which ends where all are above ``enough``."""
    x = torch.randn(1, matrix.shape[1], generator=generator(0, "power"), dtype=matrix.dtype, device="cpu")
    x = x.to(matrix.device).expand(len(matrix), -1, -1)  # rows: a CPU multiplies columns several times slower
    for step in range(STEPS + 1):
        x = x / linalg.vector_norm(x, dim=2, keepdim=True)
        y = x @ matrix
        lower = linalg.vector_norm(y, dim=(1, 2))
        if step == STEPS or (lower > (1 + 1e-9) * enough).all():
            return lower
        x = y @ matrix.mT
    raise AssertionError


def _from_gram(matrix: Tensor) -> Tensor:
    gram = matrix @ matrix.mT
    finite = torch.isfinite(gram).flatten(1).all(1)
    gram = torch.where(finite[:, None, None], gram, torch.zeros_like(gram))
    norm = linalg.eigvalsh(gram)[:, -1].clamp(min=0).sqrt()
    return torch.where(finite, norm, torch.nan)
