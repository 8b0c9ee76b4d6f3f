"""Zandieh et al. 2025 (TurboQuant): the errors of randomly rotated and quantised vectors, on the keys of a layer.

x is a key, x̂ what is read back of it at b bits, and D(b) the distortion of the Lloyd–Max quantiser of N(0, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf, pi

import torch
from torch import Tensor

from ..approximation import Approximation
from ..metrics.guarantees import GuaranteeReference
from ..operators.groups import repeated
from ..operators.linalg.exceedance import CONFIDENCE
from ..operators.linalg.lloyd_max import distortion
from ..operators.linalg.norms import row_norms
from ..qkv import QKV
from .finding import Finding, Setting, theorem

PAPER = "Zandieh et al. 2025 (TurboQuant)"
BITS = (1, 2, 3, 4)
NORM = 2.0**-10  # the relative rounding of two norms in float16


def rate(bits: int) -> float:
    """``(√3 π / 2) 4^-b``, the bound of the distortion of b bits; Panter & Dite 1951 have it for many bits.

    >>> round(rate(1), 3), round(rate(4), 4)
    (0.68, 0.0106)
    """
    return 3**0.5 * pi / 2 * 4.0**-bits


@theorem(
    "lloyd-max",
    paper="Max 1960, Panter & Dite 1951",
    says="the best b-bit quantiser of a normal number has a distortion D(b) of at most (√3 π / 2) 4^-b",
    cost="D(b) of 1 to 4 bits",
    causal=True,
    decompositions=0,
)
def lloyd_max_bound(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """D(b) of the levels that `turboquant` uses, the same for each head."""
    for bits in BITS:
        measured = torch.full((qkv.h,), distortion(bits), dtype=torch.float64)
        yield _finding("lloyd-max", bits, "D(b)", rate(bits), measured, promise="D(b) ≤ (√3 π / 2) 4^-b")


@theorem(
    "turboquant-mse",
    paper=f"{PAPER}, theorem 1",
    says="the mean squared error of a rotated and quantised vector: E ‖x̂ - x‖² ≤ (√3 π / 2) 4^-b ‖x‖²",
    cost="for each seed and 1 to 4 bits: turboquant",
    per_seed=True,
    causal=True,
    decompositions=0,
)
def turboquant_mse(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The error of the keys of a head, a mean over keys and seeds. For many numbers it is D(b), ``lloyd_max``."""
    sizes = _sizes(qkv)
    for bits in BITS:

        def error(approx: Approximation) -> Tensor:
            return _mean((row_norms(_change(qkv, approx)) / sizes).square()).nan_to_num(0.0)  # no key but 0 is exact

        measured = _over_seeds(setting, f"turboquant:bits={bits},of=k", error)
        details = {"lloyd_max": torch.full((qkv.h,), distortion(bits), dtype=torch.float64)}
        promise = "E ‖x̂ - x‖² / ‖x‖² ≤ (√3 π / 2) 4^-b"
        yield _finding("turboquant-mse", bits, "keys", rate(bits), *measured, promise=promise, details=details)


@theorem(
    "turboquant-prod",
    paper=f"{PAPER}, theorem 2",
    says="inner products of prod are unbiased, with a variance of at most (√3 π² / p) 4^-b ‖y‖² ‖x‖²",
    cost="for each seed and 1 to 4 bits: turboquant twice, and n p²",
    per_seed=True,
    causal=True,
    decompositions=0,
)
def turboquant_prod(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The scores of a head with the keys of ``variant=prod``: their bias, and the variance of inner products.

    The bias is that of the slope ``Σ S_ij S~_ij / Σ S_ij²`` over all queries and keys, which is 1 for unbiased scores.
    ``mse`` is the same of ``variant=mse``, which is -D(b) for many numbers.
    """
    q, reference = qkv.q.double(), GuaranteeReference(qkv)
    # a query of 0 has no direction; 0 / 1e-300 is 0
    unit, sizes = q / row_norms(q).clamp(min=1e-300)[..., None], _sizes(qkv)
    own = unit.mT @ unit

    def slope(approx: Approximation) -> Tensor:
        bias = reference.score_bias(approx)
        assert bias is not None
        return bias.nan_to_num(0.0)  # scores of 0 stay 0

    def variance(approx: Approximation) -> Tensor:
        change = _change(qkv, approx) / sizes[..., None]
        counted = torch.isfinite(change).all(-1).sum(-1)
        change = change.nan_to_num(0.0)
        return (own * (change.mT @ change)).sum((1, 2)) / (qkv.n_q * counted.clamp(min=1))

    for bits in BITS:
        method = f"turboquant:bits={bits},of=k"
        prod = f"{method},variant=prod"
        mean, low, high = _over_seeds(setting, prod, slope)
        shrunk, _, _ = _over_seeds(setting, method, slope)
        # the interval of a size: its lower end is 0 where the signed interval contains 0
        across = (low < 0) & (high > 0)
        ends = torch.minimum(low.abs(), high.abs()).masked_fill(across, 0.0), torch.maximum(low.abs(), high.abs())
        yield _finding(
            "turboquant-prod",
            bits,
            "bias",
            0.0,
            mean.abs(),
            *ends,
            promise="|E Σ S S~ / Σ S² - 1| ≤ 0",
            rounding=NORM,
            details={"slope": mean, "mse": shrunk},
        )
        bound = 2 * pi * rate(bits) / qkv.p
        promise = "E |⟨y, x~⟩ - ⟨y, x⟩|² / (‖y‖² ‖x‖²) ≤ (√3 π² / p) 4^-b"
        yield _finding(
            "turboquant-prod", bits, "variance", bound, *_over_seeds(setting, prod, variance), promise=promise
        )


def _sizes(qkv: QKV) -> Tensor:
    """``‖k_j‖``, (h, n_k) float64."""
    return row_norms(repeated(qkv.shared_k.double(), qkv.h))


def _change(qkv: QKV, approx: Approximation) -> Tensor:
    """``k̂ - k``, (h, n_k, p) float64."""
    assert approx.stored is not None
    return repeated(approx.stored[0].double() - qkv.shared_k.double(), qkv.h)


def _mean(values: Tensor) -> Tensor:
    """The mean over keys (h, n_k) that are not 0, whose error has no share."""
    return values.nanmean(-1)


def _over_seeds(
    setting: Setting, method: str, number: Callable[[Approximation], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean of a number of heads over seeds, and Student's interval of its expectation, (h,) each."""
    from scipy.stats import t

    values = torch.stack([number(setting.run(method, None, seed)) for seed in setting.seeds]).cpu()
    mean, count = values.mean(0), len(values)
    # one seed has no variance
    if count < 2:
        return mean, torch.full_like(mean, -inf), torch.full_like(mean, inf)
    half = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * values.std(0) / count**0.5
    return mean, mean - half, mean + half


def _finding(
    name: str,
    bits: int,
    of: str,
    bound: float,
    measured: Tensor,
    lower: Tensor | None = None,
    upper: Tensor | None = None,
    **facts: object,
) -> Finding:
    every = torch.ones_like(measured, dtype=torch.bool)
    return Finding(
        name,
        assumption="R, G are random",
        met=every,
        bound=torch.full_like(measured, bound),
        measured=measured,
        vacuous=torch.full_like(every, bound >= 1),
        at={"bits": bits, "of": of},
        lower=lower,
        upper=upper,
        **facts,  # type: ignore[arg-type]
    )
