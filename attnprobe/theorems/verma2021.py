"""Spectral shifting (Verma 2021, "Beyond Nyströmformer"; Wang et al. 2014): its shift, its exactness, its error bound.

F, A, W are the softmax factors over segment means, A⁺ the pseudo-inverse, Z* six steps of Nyströmformer's iteration,
δ the shift. For the lemma and the theorem: K a symmetric matrix of size N with eigenvalues λ_1 ≥ … ≥ λ_N, C~ d sampled
columns of ``K - δ̄ I`` with δ̄ the mean of λ_{d+1} … λ_N, P the projector on the range of C~, ``K^ss = C~ U C~ᵀ + δ I``
the spectral shifting model with its best U and δ. Our d is the paper's c. All in float64.

What cannot be right in the paper, and is reported so:

- equation 2's δ has the numerator ``tr A - tr(A⁺ A²)``, zero for every A (``shift-delta-zero``);
- equation 12 bounds a norm of a difference by an expression with the factor ``1 - ‖A⁺ - Z*‖``. A triangle inequality
  gives a sum, ``‖Z*‖ ≤ ‖A⁺‖ + ‖A⁺ - Z*‖``; with the minus it is no bound, and real heads exceed it (``shift-bound``);
- whatever the sign, the bound starts with ``‖B‖_∞ = 1``, so it is never below the error of ``B~ = 0``;
- Lemma 1 is about symmetric positive semidefinite K whose last eigenvalues are equal. Attention is neither symmetric
  nor semidefinite, and its Gaussian kernel has no such tail (``shift-lemma-1``).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..errors import Unsupported
from ..linalg.inverses import truncated_pinv
from ..linalg.shifting import shifted
from ..linalg.spectra import held
from ..operators import GaussianAttention, Operator, SoftmaxAttention, block_rows, row_blocks
from ..qkv import QKV
from ..reference import exact
from .finding import Finding
from .registry import Setting, theorem
from .runs import runs

__all__ = ["verma2021_delta_numerator", "verma2021_error_bound", "verma2021_tail"]

EPS = torch.finfo(torch.float64).eps
ROWS = 256  # of B alive at once
HELD = 4096  # tokens up to which the lifted kernel is decomposed, head by head: 512 MiB a matrix there, eight at once
MATRICES = ("C̄", "(B + Bᵀ)/2", "θI + rank d")
SIGNS = {"plus": 1, "minus": -1}


def verma2021_delta_numerator(core: Tensor) -> tuple[Tensor, Tensor]:
    """``tr A - tr(A⁺ A²)`` of cores (h, d, d), and what rounding can make of it, (h,) each.

    Zero for every A, since ``tr(A⁺ A A) = tr(A A⁺ A) = tr A``. Computed literally: A⁺ carries ``eps ‖A⁺‖``, which A²
    multiplies. Source: Verma 2021, equation 2, whose δ is this over ``c - rank A``.
    """
    pinv = truncated_pinv(core)
    trace = lambda x: x.diagonal(dim1=-2, dim2=-1).sum(-1)
    sizes = torch.linalg.matrix_norm(core), torch.linalg.matrix_norm(pinv)
    return trace(core) - trace(pinv @ (core @ core)), 8 * core.shape[-1] * EPS * sizes[0].square() * sizes[1]


def verma2021_error_bound(pinv_norm: Tensor, apart: Tensor, delta: Tensor, sign: int = 1) -> Tensor:
    """``1 + x (1 + δ x)`` with ``x = ‖A⁺‖_∞ ± ‖A⁺ - Z*‖_∞``: a bound of ``‖B - F Z* (I - δ Z*) W‖_∞``.

    ``‖B‖_∞ = ‖F‖_∞ = ‖W‖_∞ = 1``, and ``‖Z*‖_∞ ≤ x`` with the plus sign, by the triangle inequality. With the minus
    sign, which the factor ``1 - ‖A⁺ - Z*‖`` of Verma 2021, equation 12, has, x is a *lower* bound of ‖Z*‖_∞, and may be
    negative: the number is no bound. ‖·‖_∞ is the largest absolute row sum; all (h,).

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> [float(verma2021_error_bound(2 * one, 3 * one, 0 * one, sign)) for sign in (1, -1)]
    [6.0, 0.0]
    """
    x = pinv_norm + sign * apart
    return 1 + x * (1 + delta * x)


def verma2021_tail(values: Tensor, d: int) -> Tensor:
    """``Σ_{i>d} λ_i² - (Σ_{i>d} λ_i)² / (N - d)``: the error that shifting leaves of the best rank d, squared.

    It is ``Σ_{i>d} (λ_i - δ̄)²`` with δ̄ the mean of the tail, computed so. Source: Verma 2021, Theorem 1 (Wang et al.
    2014): ``‖K - K^ss‖_F² ≤ η`` times it, where a sampling of columns leaves η times the best rank-d error.

    >>> float(verma2021_tail(torch.tensor([5.0, 2.0, 2.0]), 1))
    0.0
    """
    tail = values.sort(descending=True).values[d:]
    return (tail - tail.mean()).square().sum() if len(tail) else values.new_zeros(())


@theorem(
    "shift-delta-zero",
    paper="Verma 2021, equation 2",
    says="the literal shift δ = [tr A - tr(A⁺A²)] / [c - rank A] is identically zero",
    cost="d³",
)
def shift_delta_zero(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The literal numerator on each core. ``of_trace`` is it over tr A; ``missing`` the denominator, 0 at full rank.

    With ``missing = 0`` the literal δ is 0/0. Vacuous where rounding would cover tr A itself.
    """
    for d, approx in runs(setting, "mss-literal"):
        core = approx.cores["A"].double().cpu()
        numerator, rounding = verma2021_delta_numerator(core)
        trace = core.diagonal(dim1=-2, dim2=-1).sum(-1)
        values = torch.linalg.svdvals(core)
        missing = (values <= d * EPS * values[:, :1]).sum(-1).double()
        yield Finding(
            "shift-delta-zero",
            d=d,
            assumption="none",
            met=torch.ones(qkv.h, dtype=torch.bool),
            promise="tr A - tr(A⁺A²) = 0",
            bound=torch.zeros_like(trace),
            measured=numerator.abs(),
            rounding=rounding,
            vacuous=rounding >= trace,
            details={"of_trace": numerator / trace, "trace": trace, "missing": missing},
        )


@theorem(
    "shift-bound",
    paper="Verma 2021, section 7, equation 12",
    says="‖B - B~‖_∞ is at most 1 + x (1 + δx), x = ‖A⁺‖_∞ + ‖A⁺ - Z*‖_∞ by the triangle; the paper has a minus",
    cost="n² d",
)
def shift_bound(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """Both sides of equation 12 for ``B~ = F Z* (I - δ Z*) W`` with six steps for Z*, with either sign in x.

    Plus is the triangle inequality; minus is all that is taken from the printed expression, whose other factors are
    those that the same steps give. Vacuous where the bound is at least 1, the error of ``B~ = 0``: always, with plus.
    """
    target = exact(qkv.to(dtype=torch.float64))
    for d, approx in runs(setting, "mss:inverse=schulz,identity=false"):
        core, inverse = (x["A"].double() for x in (approx.cores, approx.inverses))
        pinv = truncated_pinv(core)
        sizes = [torch.linalg.matrix_norm(x, float("inf")).cpu() for x in (pinv, pinv - inverse, inverse)]
        delta = approx.diagnostics["delta"].double().cpu()
        error = _infinity_error(target, approx.matrix())
        for name, sign in SIGNS.items():
            bound = verma2021_error_bound(sizes[0], sizes[1], delta, sign)
            yield Finding(
                "shift-bound",
                d=d,
                at={"sign": name},
                assumption="none",
                met=torch.ones(qkv.h, dtype=torch.bool),
                promise="‖B - B~‖_∞ ≤ 1 + x (1 + δx)",
                bound=bound,
                measured=error,
                vacuous=bound >= 1,
                rounding=torch.finfo(qkv.dtype).eps * d * (1 + sizes[2].square()),
                details={"pinv": sizes[0], "apart": sizes[1], "inverse": sizes[2], "delta": delta},
            )


@theorem(
    "shift-lemma-1",
    paper="Verma 2021, Lemma 1 (Wang et al. 2014)",
    says="spectral shifting is exact where K is semidefinite and all eigenvalues but the d largest are equal",
    cost="(2n)³, n ≤ 4096; some 4 minutes of one core and 4 GiB a head at n = 4096",
)
def shift_lemma_1(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """``‖K - K^ss‖_F / ‖K‖_F`` on real kernels, and on a matrix of the lemma's class made of the head's own kernel.

    K is the Gaussian kernel C̄ over [Q; K]; softmax attention made symmetric; and ``θI + rank d``, the d largest
    eigenvalues of C̄ above the mean of the others. ``spread`` is ``(λ_{d+1} - λ_N) / λ_1``, zero in the class, ``least``
    is λ_N/λ_1, ``rank`` that of the columns C~, which is enough where it is the number of eigenvalues that are off θ by
    more than √eps λ_1, ``needed``: columns that repeat each other cannot show the rest of K.
    """
    for d, name, found in _models(qkv, setting):
        met = (found["spread"] <= found["band"]) & (found["least"] >= -found["band"])
        met &= found["rank"] >= found["needed"]
        rounding = found["rounding"] / found["size"]
        error = found["error"] / found["size"]
        yield Finding(
            "shift-lemma-1",
            d=d,
            at={"matrix": name},
            promise="K^ss = K",
            met=met,
            assumption="K ≥ 0, λ_{d+1} = … = λ_N, C~ spans K - λ_N I",
            bound=torch.zeros_like(error),
            measured=error,
            rounding=rounding,
            vacuous=rounding >= 1,
            details={part: found[part] for part in ("spread", "least", "rank", "needed")},
        )


@theorem(
    "shift-theorem-1",
    paper="Verma 2021, Theorem 1 (Wang et al. 2014)",
    says="‖K - K^ss‖_F² ≤ η (Σ_{i>d} λ_i² - (Σ_{i>d} λ_i)²/(N-d)) for semidefinite K, η the sampling's own factor",
    cost="(2n)³, n ≤ 4096; some 4 minutes of one core and 4 GiB a head at n = 4096",
)
def shift_theorem_1(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """Both sides, as norms, of the same matrices as in ``shift-lemma-1``.

    The theorem takes η from a sampling of columns whose prototype model is within η of the best rank d; here η is that
    of the columns drawn, ``‖K̄ - P K̄ P‖_F²`` over the tail with ``K̄ = K - δ̄ I``. ``plain`` is the error of the best
    rank d without a shift, ``(Σ_{i>d} λ_i²)^½``. Vacuous where the bound is at least ``‖K‖_F``.
    """
    for d, name, found in _models(qkv, setting):
        bound = found["prototype"]  # √(η tail)
        yield Finding(
            "shift-theorem-1",
            d=d,
            at={"matrix": name},
            assumption="K ≥ 0",
            met=found["least"] >= -found["band"],
            promise="‖K - K^ss‖_F ≤ √(η tail)",
            bound=bound / found["size"],
            measured=found["error"] / found["size"],
            rounding=found["rounding"] / found["size"],
            vacuous=bound >= found["size"],
            details={"eta": found["eta"], "plain": found["plain"] / found["size"], "least": found["least"]},
        )


def _models(qkv: QKV, setting: Setting) -> Iterator[tuple[int, str, dict[str, Tensor]]]:
    """The spectral shifting model of every matrix at every budget, and the numbers of both statements, (h,) each."""
    if max(qkv.n_q, qkv.n_k) > HELD or qkv.n_q != qkv.n_k:
        raise Unsupported(f"spectral shifting: {qkv.n_q} queries, {qkv.n_k} keys; needs as many, up to {HELD}")
    parts: dict[tuple[int, str], list[dict[str, Tensor]]] = {}
    for row, head in enumerate(qkv.heads):
        q, k = (x[row : row + 1].double() for x in (qkv.q, qkv.k))
        x, order = torch.cat([q, k], 1), setting.streams("spectral-shift", setting.seeds[0]).head(head, "indices")
        b = held(SoftmaxAttention(q, k, qkv.scale))
        kernel = GaussianAttention(x, x, qkv.scale).dense()[0]
        indices = torch.randperm(len(kernel), generator=order, device="cpu").to(q.device)
        values, vectors = torch.linalg.eigh(kernel)
        symmetric = (b + b.T) / 2
        known = {"C̄": (kernel, values), "(B + Bᵀ)/2": (symmetric, torch.linalg.eigvalsh(symmetric))}
        for d in setting.budgets:
            if d < qkv.n_q:
                known["θI + rank d"] = _of_the_class(values, vectors, d)
                for name in MATRICES:
                    matrix, spectrum = known[name]
                    columns = indices[indices < len(matrix)][:d]
                    parts.setdefault((d, name), []).append(_model(matrix, spectrum, columns))
    if not parts:
        raise Unsupported(f"spectral shifting: no budget is below n={qkv.n_q}")
    for (d, name), rows in parts.items():
        yield d, name, {key: torch.stack([one[key] for one in rows]).cpu() for key in rows[0]}


def _of_the_class(values: Tensor, vectors: Tensor, d: int) -> tuple[Tensor, Tensor]:
    """``θI + (a positive semidefinite matrix of rank d)`` from ascending eigenvalues, and its own, ascending."""
    spectrum = values.clone()
    spectrum[:-d] = values[:-d].mean()
    matrix = (vectors * spectrum) @ vectors.T
    return (matrix + matrix.T) / 2, spectrum


def _model(matrix: Tensor, values: Tensor, columns: Tensor) -> dict[str, Tensor]:
    """What both statements need of one matrix, with its eigenvalues in ascending order, at one set of columns."""
    size, d = len(matrix), len(columns)
    h, core, delta = shifted(matrix, columns, values=values)  # h is a basis of the range of C~
    bar = matrix.clone()
    bar.diagonal().sub_(values[:-d].mean())
    sampled = bar[:, columns]
    prototype = (bar - h @ (h.T @ bar @ h) @ h.T).norm()
    weights = torch.linalg.lstsq(sampled, bar, rcond=size * EPS).solution  # C~ W ≈ K̄: W amplifies rounding of C~
    tail = verma2021_tail(values, d)
    top = values.abs().max()
    left = matrix - h @ core @ h.T
    left.diagonal().sub_(delta)
    return {
        "error": left.norm(),
        "size": matrix.norm(),
        "prototype": prototype,
        "eta": prototype.square() / tail,
        "plain": values[:-d].norm(),
        "rank": h.any(0).sum().double(),
        "needed": ((values - values[:-d].mean()).abs() > EPS**0.5 * top).sum().double(),
        "spread": (values[-d - 1] - values[0]) / top,
        "least": values[0] / top,
        "band": torch.full_like(top, 8 * size * EPS),
        # each of QR, two products and the eigenvalues that the shift is made of may be off by a few such terms
        "rounding": 8 * size * EPS * (matrix.norm() + sampled.norm() * weights.norm()),
    }


def _infinity_error(target: Operator, approx: Operator) -> Tensor:
    """``‖B - B~‖_∞``, the largest absolute row sum, (h,)."""
    found = torch.zeros(target.shape[0], dtype=torch.float64, device=target.device)
    approx = approx.to(torch.float64)
    for first, last in row_blocks(target.shape[1], block_rows(target, target.shape[0] * target.shape[2], ROWS)):
        error = target.rows(first, last) - approx.rows(first, last)
        found = torch.maximum(found, error.abs().sum(-1).amax(-1))
    return found.cpu()
