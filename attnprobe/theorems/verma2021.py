"""Spectral shifting (Verma 2021, "Beyond Nyströmformer"; Wang et al. 2014): its shift, its exactness, its error bound.

F, A, W are the softmax factors over segment means, A⁺ is the pseudo-inverse, Z* is six steps of Nyströmformer's
iteration, δ the shift. For the lemma and the theorem, K is a symmetric matrix of size N with eigenvalues λ_1 ≥ … ≥
λ_N, δ̄ the mean of λ_{d+1} … λ_N, C~ d sampled columns of ``K - δ̄ I``, and P the projector on the range of C~. ``K^ss =
C~ U C~ᵀ + δ I`` is the spectral shifting model with its best U and δ. Our d is the paper's c. All in float64.

Four points of the paper are wrong or do not apply to attention:

- The δ of equation 2 has the numerator ``tr A - tr(A⁺ A²)``, which is zero for every A (``shift-delta-zero``).
- Equation 12 bounds the norm of a difference by an expression with the factor ``1 - ‖A⁺ - Z*‖``, which falls as Z* is
  further from A⁺ and may be negative. It is not a bound: real heads exceed it (``shift-bound``, as printed).
- What the triangle inequality gives, ``‖Z*‖ ≤ ‖A⁺‖ + ‖A⁺ - Z*‖``, is a bound (``shift-bound``, corrected). It contains
  ``‖B‖_∞ = 1``, so it is never below the error of ``B~ = 0``.
- Lemma 1 is about symmetric positive semidefinite K whose last eigenvalues are equal. Attention is neither symmetric
  nor semidefinite, and its Gaussian kernel does not have such a tail (``shift-lemma-1``).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ..errors import Unsupported
from ..operators import GaussianAttention, Operator, SoftmaxAttention
from ..operators.blocks import block_rows, row_blocks
from ..operators.kept import Kept
from ..operators.linalg.inverses import shifted, truncated_pinv
from ..operators.linalg.spectra import held
from ..qkv import QKV
from ..reference import exact
from .finding import Finding, Setting, theorem

EPS = torch.finfo(torch.float64).eps
PROMISES = {  # of equation 12
    "as printed": "‖B - B~‖_∞ ≤ 1 + ‖A⁺‖ (1 + δ‖A⁺‖) (1 - ‖A⁺ - Z*‖)",
    "corrected": "‖B - B~‖_∞ ≤ 1 + x (1 + δx), x = ‖A⁺‖ + ‖A⁺ - Z*‖",
}
ROWS = 256  # rows of B in memory at a time
HELD = 4096  # the most tokens for which the lifted kernel is decomposed, one head at a time: eight matrices of 512 MiB
MATRICES = ("C̄", "(B + Bᵀ)/2", "θI + rank d")
Model = dict[str, Tensor]  # numbers of a spectral shifting model, of a head or (h,)


def verma2021_delta_numerator(core: Tensor) -> tuple[Tensor, Tensor]:
    """``tr A - tr(A⁺ A²)`` of cores (h, d, d), and a bound of its rounding, (h,) each.

    It is zero for every A, because ``tr(A⁺ A A) = tr(A A⁺ A) = tr A``. It is computed literally: A⁺ has the rounding
    ``eps ‖A⁺‖``, which A² multiplies. Source: Verma 2021, equation 2, whose δ is this over ``c - rank A``.
    """
    pinv = truncated_pinv(core)

    def trace(x: Tensor) -> Tensor:
        return x.diagonal(dim1=-2, dim2=-1).sum(-1)

    sizes = torch.linalg.matrix_norm(core), torch.linalg.matrix_norm(pinv)
    return trace(core) - trace(pinv @ (core @ core)), 8 * core.shape[-1] * EPS * sizes[0].square() * sizes[1]


def verma2021_printed_bound(pinv_norm: Tensor, apart: Tensor, delta: Tensor) -> Tensor:
    """``1 + ‖A⁺‖ (1 + δ ‖A⁺‖) (1 - ‖A⁺ - Z*‖)``, the right side of Verma 2021, equation 12, as printed.

    It is said to bound ``‖B - F Z* (I - δ Z*) W‖_∞``, and is negative where Z* is far from A⁺. ‖·‖_∞ is the largest
    absolute row sum; all (h,).

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> float(verma2021_printed_bound(2 * one, 3 * one, one))
    -11.0
    """
    return 1 + pinv_norm * (1 + delta * pinv_norm) * (1 - apart)


def verma2021_corrected_bound(pinv_norm: Tensor, apart: Tensor, delta: Tensor) -> Tensor:
    """``1 + x (1 + δ x)`` with ``x = ‖A⁺‖ + ‖A⁺ - Z*‖``: a bound of ``‖B - F Z* (I - δ Z*) W‖_∞``, by our correction.

    ``‖B‖_∞ = ‖F‖_∞ = ‖W‖_∞ = 1``, and ``‖Z*‖_∞ ≤ x`` by the triangle inequality. It stands in place of Verma 2021,
    equation 12. ‖·‖_∞ is the largest absolute row sum; all (h,).

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> float(verma2021_corrected_bound(2 * one, 3 * one, one))
    31.0
    """
    x = pinv_norm + apart
    return 1 + x * (1 + delta * x)


ERROR_BOUNDS = {"as printed": verma2021_printed_bound, "corrected": verma2021_corrected_bound}


def verma2021_tail(values: Tensor, d: int) -> Tensor:
    """``Σ_{i>d} λ_i² - (Σ_{i>d} λ_i)² / (N - d)``, the squared error of the best rank d with a shift, of λ (N,).

    It is computed as ``Σ_{i>d} (λ_i - δ̄)²`` with δ̄ the mean of the tail. Source: Verma 2021, Theorem 1 (Wang et al.
    2014): ``‖K - K^ss‖_F² ≤ η`` times this, if the sampled columns have η times the best rank-d error.

    >>> float(verma2021_tail(torch.tensor([5.0, 2.0, 2.0]), 1))
    0.0
    """
    tail = values.sort(descending=True).values[d:]
    return (tail - tail.mean()).square().sum() if len(tail) else values.new_zeros(())


@theorem(
    "shift-delta-zero",
    paper="Verma 2021 (Beyond Nyströmformer), equation 2",
    says="the literal shift δ = [tr A - tr(A⁺A²)] / [c - rank A] is identically zero",
    cost="d³",
)
def shift_delta_zero(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The literal numerator on each core. ``of_trace`` is its ratio to tr A, ``missing`` the denominator of δ.

    At full rank ``missing`` is 0, and the literal δ is 0/0. Vacuous if rounding exceeds tr A itself.
    """
    for d, approx in setting.runs("mss-literal"):
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
    paper="Verma 2021 (Beyond Nyströmformer), section 7, equation 12",
    says="‖B - B~‖_∞ is at most 1 + ‖A⁺‖ (1 + δ‖A⁺‖) (1 - ‖A⁺ - Z*‖) as printed, which is no bound; corrected, at most "
    "1 + x (1 + δx), x = ‖A⁺‖ + ‖A⁺ - Z*‖",
    cost="n² d",
)
def shift_bound(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """Both sides of equation 12 for ``B~ = F Z* (I - δ Z*) W`` with six steps for Z*, as printed and corrected.

    Vacuous if the bound is at least 1, the error of ``B~ = 0``: the corrected one always is.
    """
    target = exact(qkv.to(dtype=torch.float64))
    for d, approx in setting.runs("mss:inverse=schulz,identity=false"):
        core, inverse = (x["A"].double() for x in (approx.cores, approx.inverses))
        pinv = truncated_pinv(core)
        sizes = [torch.linalg.matrix_norm(x, float("inf")).cpu() for x in (pinv, pinv - inverse, inverse)]
        delta = approx.diagnostics["delta"].double().cpu()
        error = _infinity_error(target, approx.matrix())
        for form, bound_of in ERROR_BOUNDS.items():
            bound = bound_of(sizes[0], sizes[1], delta)
            yield Finding(
                "shift-bound",
                d=d,
                at={"form": form},
                assumption="none",
                met=torch.ones(qkv.h, dtype=torch.bool),
                promise=PROMISES[form],
                bound=bound,
                measured=error,
                vacuous=bound >= 1,
                rounding=torch.finfo(qkv.dtype).eps * d * (1 + sizes[2].square()),
                details={"pinv": sizes[0], "apart": sizes[1], "inverse": sizes[2], "delta": delta},
            )


@theorem(
    "shift-lemma-1",
    paper="Verma 2021 (Beyond Nyströmformer), Lemma 1 (Wang et al. 2014)",
    says="spectral shifting is exact where K is semidefinite and all eigenvalues but the d largest are equal",
    cost="(2n)³, n ≤ 4096; some 4 minutes of one core and 4 GiB a head at n = 4096",
)
def shift_lemma_1(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """``‖K - K^ss‖_F / ‖K‖_F`` for two real matrices, and for a matrix of the lemma's class built from the head.

    K is the Gaussian kernel C̄ over [Q; K]; the symmetric part of softmax attention; and ``θI + rank d``, which has the
    d largest eigenvalues of C̄ and θ, the mean of the others. ``spread`` is ``(λ_{d+1} - λ_N) / λ_1``, zero in the
    class. ``least`` is λ_N/λ_1. ``rank`` is the rank of C~. It suffices if it reaches ``needed``, the number of
    eigenvalues that differ from θ by more than √eps λ_1; repeated columns may have a lower rank.
    """
    for d, name, model in _models(qkv, setting):
        met = (model["spread"] <= model["band"]) & (model["least"] >= -model["band"])
        met &= model["rank"] >= model["needed"]
        rounding = model["rounding"] / model["size"]
        error = model["error"] / model["size"]
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
            details={part: model[part] for part in ("spread", "least", "rank", "needed")},
        )


@theorem(
    "shift-theorem-1",
    paper="Verma 2021 (Beyond Nyströmformer), Theorem 1 (Wang et al. 2014)",
    says="‖K - K^ss‖_F² ≤ η (Σ_{i>d} λ_i² - (Σ_{i>d} λ_i)²/(N-d)) for semidefinite K, η the sampling's own factor",
    cost="(2n)³, n ≤ 4096; some 4 minutes of one core and 4 GiB a head at n = 4096",
)
def shift_theorem_1(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """Both sides, as norms, for the matrices of ``shift-lemma-1``.

    In the theorem η is the factor by which a sampling's prototype model exceeds the best rank d. Here it is that
    factor for the drawn columns: ``‖K̄ - P K̄ P‖_F²`` over the tail, with ``K̄ = K - δ̄ I``. ``plain`` is the error of the
    best rank d without a shift, ``(Σ_{i>d} λ_i²)^½``. Vacuous if the bound is at least ``‖K‖_F``.
    """
    for d, name, model in _models(qkv, setting):
        bound = model["prototype"]  # √(η tail)
        yield Finding(
            "shift-theorem-1",
            d=d,
            at={"matrix": name},
            assumption="K ≥ 0",
            met=model["least"] >= -model["band"],
            promise="‖K - K^ss‖_F / ‖K‖_F ≤ √(η tail) / ‖K‖_F",
            bound=bound / model["size"],
            measured=model["error"] / model["size"],
            rounding=model["rounding"] / model["size"],
            vacuous=bound >= model["size"],
            details={"eta": model["eta"], "plain": model["plain"] / model["size"], "least": model["least"]},
        )


def _models(qkv: QKV, setting: Setting) -> Iterator[tuple[int, str, Model]]:
    """The budget, the matrix and the numbers of both statements, (h,) each, for every spectral shifting model."""
    if max(qkv.n_q, qkv.n_k) > HELD or qkv.n_q != qkv.n_k:
        raise Unsupported(
            f"spectral shifting: {qkv.n_q} queries and {qkv.n_k} keys; it needs equal numbers, up to {HELD}"
        )
    parts: dict[tuple[int, str], list[Model]] = {}
    kept = Kept(qkv, qkv.tensors, "spectral-shift", setting.budgets)
    for row, head in enumerate(qkv.heads):
        order = setting.streams("spectral-shift", setting.seeds[0]).head(head, "indices")
        indices = torch.randperm(2 * qkv.n_q, generator=order)
        models = kept.once((row, *indices.tolist()), partial(_head_models, qkv, row, indices, setting.budgets))
        for place, model in models.items():
            parts.setdefault(place, []).append(model)
    if not parts:
        raise Unsupported(f"spectral shifting: no budget is below n={qkv.n_q}")
    for (d, name), rows in parts.items():
        yield d, name, {key: torch.stack([one[key] for one in rows]).cpu() for key in rows[0]}


def _head_models(qkv: QKV, row: int, indices: Tensor, budgets: tuple[int, ...]) -> dict[tuple[int, str], Model]:
    """The model of each budget and matrix of a head, whose columns are the first of the permuted ``indices``."""
    q, k = (x[row : row + 1].double() for x in (qkv.q, qkv.k))
    x = torch.cat([q, k], 1)
    b = held(SoftmaxAttention(q, k, qkv.scale))
    kernel = GaussianAttention(x, x, qkv.scale).dense()[0]
    indices = indices.to(q.device)
    values, vectors = torch.linalg.eigh(kernel)
    symmetric = (b + b.T) / 2
    matrices = {"C̄": (kernel, values), "(B + Bᵀ)/2": (symmetric, torch.linalg.eigvalsh(symmetric))}
    models = {}
    for d in budgets:
        if d < qkv.n_q:
            matrices["θI + rank d"] = _shifted_low_rank(values, vectors, d)
            for name in MATRICES:
                matrix, spectrum = matrices[name]
                models[d, name] = _model(matrix, spectrum, indices[indices < len(matrix)][:d])
    return models


def _shifted_low_rank(values: Tensor, vectors: Tensor, d: int) -> tuple[Tensor, Tensor]:
    """``θI + (a positive semidefinite matrix of rank d)`` from ascending eigenvalues, and its own eigenvalues."""
    spectrum = values.clone()
    spectrum[:-d] = values[:-d].mean()
    matrix = (vectors * spectrum) @ vectors.T
    return (matrix + matrix.T) / 2, spectrum


def _model(matrix: Tensor, values: Tensor, columns: Tensor) -> Model:
    """The numbers of both statements for one matrix, its ascending eigenvalues and one set of columns."""
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
        # QR, two products and the eigenvalues of the shift may each have an error of a few such terms
        "rounding": 8 * size * EPS * (matrix.norm() + sampled.norm() * weights.norm()),
    }


def _infinity_error(target: Operator, approx: Operator) -> Tensor:
    """``‖B - B~‖_∞``, the largest absolute row sum, (h,)."""
    largest = torch.zeros(target.shape[0], dtype=torch.float64, device=target.device)
    approx = approx.to(torch.float64)
    for first, last in row_blocks(target.shape[1], block_rows(target, target.shape[0] * target.shape[2], ROWS)):
        error = target.rows(first, last) - approx.rows(first, last)
        largest = torch.maximum(largest, error.abs().sum(-1).amax(-1))
    return largest.cpu()
