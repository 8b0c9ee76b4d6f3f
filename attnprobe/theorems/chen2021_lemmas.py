"""Skyformer (Chen, Zeng, Ji & Yang 2021), lemmas 1 and 3: the spectra of its kernels."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..metrics.condition import RIDGE, lemma3_interval
from ..operators import GaussianAttention, UnnormalisedAttention
from ..qkv import QKV
from .chen2021 import PAPER
from .finding import Finding
from .lifted import Lifted, landmarks
from .registry import Setting, theorem

LARGEST = 4096  # the largest number of queries in the dense softmax kernel


@theorem(
    "skyformer-lemma-1",
    paper=f"{PAPER}, lemma 1",
    says="the softmax kernel exp(scale · x·y) is positive semidefinite",
    cost="n³",
)
def lemma_1(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The smallest eigenvalue of ``exp(scale · Q Qᵀ)`` over the largest, in float64, for the first 4096 queries.

    Rounding: an entry whose exponent is a sum of p products of size at most G has the relative error ``(p + 4) G eps``.
    The entries are positive, so the matrix has this error relative to its norm. The eigenvalues add ``n eps``.
    """
    inner = qkv.compressed()
    least, band = [], []
    for row in range(qkv.h):
        q = inner.q[row : row + 1, :LARGEST].double()
        values = torch.linalg.eigvalsh(UnnormalisedAttention(q, q, inner.scale).dense()[0])
        growth = 2 * float(inner.scale * q.square().sum(-1).max())  # the score, and the shift
        least.append(float(values[0] / values[-1]))
        band.append(torch.finfo(torch.float64).eps * ((inner.p + 4) * growth + q.shape[1]))
    measured = torch.tensor(least, dtype=torch.float64)
    never = torch.zeros(qkv.h, dtype=torch.bool)
    yield Finding(
        theorem="skyformer-lemma-1",
        assumption="none",
        met=~never,
        promise="the smallest eigenvalue of exp(scale · Q Qᵀ), over its largest, is at least 0",
        bound=torch.zeros_like(measured),
        measured=measured,
        rounding=torch.tensor(band, dtype=torch.float64),
        sense="at least",
        vacuous=never,
    )


@theorem(
    "skyformer-lemma-3",
    paper=f"{PAPER}, lemma 3",
    says="the scaled core D^-½ (SᵀC̄S + γI) D^-½ has its spectrum in (0, 1]; printed as (0, 1), which is false",
    cost="d³ for each seed",
)
def lemma_3(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The extreme eigenvalues of the scaled core over uniform landmarks at γ = 0.1, the worst of all seeds.

    ``D = diag((SᵀC̄S + γI) 1)``. The paper's interval is open at 1, so the printed lemma is false for every core: 1 is
    always an eigenvalue, with eigenvector ``D^½ 1``, because the core is similar to a row-stochastic matrix. The
    verdict is about the interval closed at 1, for which the lemma holds.
    """
    heads, never = [Lifted(qkv, row) for row in range(qkv.h)], torch.zeros(qkv.h, dtype=torch.bool)
    for d in setting.budgets:
        ends = []
        for seed in setting.seeds:
            picked = [one.x[:, landmarks(qkv, row, setting.streams, seed, d)] for row, one in enumerate(heads)]
            ends.append(lemma3_interval(_scaled_core(torch.cat(picked).double(), heads[0].scale))[:2])
        low, high = (torch.stack(end) for end in zip(*ends, strict=True))
        rounding = 16 * d * torch.finfo(torch.float64).eps
        for name, measured, bound, sense, printed in (
            ("largest", high.amax(0), 1.0, "at most", " (printed: below 1, which is false: it is 1)"),
            ("smallest", low.amin(0), 0.0, "at least", ""),
        ):
            yield Finding(
                theorem="skyformer-lemma-3",
                d=d,
                at={"gamma": RIDGE, "end": name},
                assumption="γ > 0",
                met=~never,
                promise=f"the {name} eigenvalue of D^-½ (SᵀC̄S + γI) D^-½ is {sense} {bound:g}{printed}",
                bound=torch.full_like(measured, bound),
                measured=measured,
                rounding=rounding,
                sense=sense,
                vacuous=never,
            )


def _scaled_core(landmarks: Tensor, scale: float) -> Tensor:
    """Lemma 3's matrix over landmarks (h, d, p), (h, d, d)."""
    core = GaussianAttention(landmarks, landmarks, scale).dense()
    core.diagonal(dim1=1, dim2=2).add_(RIDGE)
    r = core.sum(-1).rsqrt()
    return r[:, :, None] * core * r[:, None, :]
