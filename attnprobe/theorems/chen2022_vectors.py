"""Skeinformer's (ε, δ)-JL guarantee for vectors: whether a sketch preserves the lengths of B's rows and V's columns.

S (n, d) is a sketch with ``E[S Sᵀ] = I``. It has the guarantee if ``‖Sᵀx‖²`` is within ``ε ‖x‖²`` of ``‖x‖²`` with
probability 1 - δ, for every x. Then it nearly preserves products too (see `skeinformer-jl`, with the same sketches).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..qkv import QKV
from .chen2022 import SKETCHES
from .finding import Finding
from .frequency import frequency
from .registry import Setting, theorem
from .sketched import SketchedHead

VECTORS = ("rows of B", "columns of V")


def chen2022_vector_failure(d: int, epsilon: float) -> float:
    """``P(|‖Sᵀx‖² - ‖x‖²| > ε ‖x‖²) = P(|χ²_d/d - 1| > ε)`` for a Gaussian S, ``S_ij ~ N(0, 1/d)``, and any x.

    It is exact: the d entries of Sᵀx are independent ``N(0, ‖x‖²/d)``. With P the regularised incomplete gamma function
    it is ``P(d/2, d (1 - ε)/2) + 1 - P(d/2, d (1 + ε)/2)``, at most ``2 exp(-d (ε - ln(1 + ε))/2)``. This gives the
    paper's ``d = Ω(ε⁻² log(1/δ))`` its constant. Source: Chen et al. 2022, section 3, the JL guarantee; Johnson &
    Lindenstrauss 1984.

    >>> round(chen2022_vector_failure(2, 0.5), 6)  # 1 - e^-½ + e^-1½
    0.6166
    """
    half = torch.tensor(d / 2, dtype=torch.float64)
    below = torch.special.gammainc(half, half * max(0.0, 1 - epsilon))
    return float(below + torch.special.gammaincc(half, half * (1 + epsilon)))


@theorem(
    "skeinformer-jl-vector",
    paper="Chen et al. 2022, section 3 (the (ε, δ)-JL guarantee, of a vector)",
    says="a sketch of size d keeps ‖Sᵀx‖² within ε‖x‖² of ‖x‖² with probability 1 - δ for every x",
    cost="n² to choose x, and n d for each sketch and seed",
)
def skeinformer_jl_vector(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The frequency with which each sketch violates the guarantee for the hardest row of B and column of V, against δ.

    The hardest x is the one whose length varies most under sampling (`SketchedHead.hardest`); for a Gaussian S all
    vectors are alike. It is chosen independently of the draws, so each seed is one trial of one event. The assumption,
    for all sketches, is that d suffices for a Gaussian S by `chen2022_vector_failure`. For a sampling sketch the
    verdict says whether it has the guarantee at this d too. No sampling of fewer than n entries has it for every x,
    because it can miss the only nonzero entry of a vector. The guarantee is vacuous for ``ε ≥ 1``, because ``S = 0``
    has it. ``share`` is the share of columns of V and seeds that violate it.
    """
    heads = SketchedHead.of(qkv)
    for sketch in SKETCHES:
        chosen = {of: [h.hardest(h.probabilities(sketch), of) for h in heads] for of in VECTORS}
        for d in setting.budgets:
            columns = torch.stack([h.length_errors(h.v, sketch, d, setting) for h in heads])  # (h, p_v, R)
            for of in VECTORS:
                errors = torch.stack(
                    [h.length_errors(x, sketch, d, setting) for h, x in zip(heads, chosen[of], strict=True)]
                )
                for epsilon in setting.epsilons:
                    failure = torch.full((qkv.h,), chen2022_vector_failure(d, epsilon), dtype=torch.float64)
                    failures = frequency((errors > epsilon).T)
                    yield Finding(
                        "skeinformer-jl-vector",
                        d=d,
                        at={"sketch": sketch, "of": of, "epsilon": epsilon, "delta": setting.delta},
                        assumption="d is large enough for a Gaussian S",
                        met=failure <= setting.delta,
                        promise="P(|‖Sᵀx‖² - ‖x‖²| > ε‖x‖²) ≤ δ",
                        vacuous=torch.full((qkv.h,), epsilon >= 1),
                        bound=torch.full_like(failure, setting.delta),
                        measured=failures.value,
                        lower=failures.lower,
                        upper=failures.upper,
                        details={
                            "failure": failure,
                            "error_mean": errors.mean(1),
                            "share": (columns > epsilon).double().mean((1, 2)),
                        },
                    )
