"""The matrices whose condition numbers are measured: attention matrices and the cores of methods.

X = [Q; K] stacks queries and keys, S picks the landmarks, and ``κ(x, y) = exp(-‖x - y‖²·scale/2)``. Skyformer has these
cores over its landmarks: ``SᵀĀS = exp(scale · X_S X_Sᵀ)`` of the softmax kernel; ``SᵀC̄S = κ(X_S, X_S)``; its ridged
form ``SᵀC̄S + γI``; Lemma 3's scaled ``N = D^-½ (SᵀC̄S + γI) D^-½`` with ``D = diag((SᵀC̄S + γI) 1)`` (Chen et al.
2021).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..approximation import Approximation
from ..errors import UsageError
from ..grammar.arguments import checked
from ..operators import Operator, UnnormalisedAttention
from ..operators.blocks import block_rows, row_blocks
from ..operators.linalg.condition import Condition, repeats
from ..operators.linalg.inverses import razavi, residual, start
from ..operators.linalg.norms import row_norms
from ..qkv import QKV
from ..reference import exact
from ..rng import Streams, generator

EXACT = ("A", "B", "C")
CORES = {
    "A_S": "softmax over the landmarks, which Nyströmformer and the spectral shift invert",
    "SAS": "SᵀĀS, the softmax kernel over Skyformer's landmarks, up to one factor",
    "SCS": "SᵀC̄S, the Gaussian kernel over the same landmarks",
    "SCS+ridge": "SᵀC̄S + γI",
    "N0": "SᵀC̄S scaled as in Lemma 3, without γ",
    "N": "SᵀC̄S + γI scaled as in Lemma 3",
}
RIDGE = 0.1  # Skyformer's γ on the 0/1-sampled core, for methods whose own γ is 0
DIRECTIONS = 8
POWER = 40  # products of a power iteration
STEP = 1e-5  # near eps^⅓, where truncation and rounding of a central difference balance
BLOCK = 256  # rows compared at a time


@dataclass(frozen=True)
class Core:
    """A d x d matrix of every head.

    Attributes:
        name: one of `CORES`, or the method's own name for it.
        matrix: (h, d, d) float64.
        inverted: whether the method inverts this matrix. The others are for comparison.
        start: the starting point of the Schulz iteration on it, as in `attnprobe.operators.linalg.inverses.start`.
        log_scale: ``matrix`` is ``exp(-log_scale)`` times the named core, (h,). Condition numbers do not depend on it.
        repeated: the number of landmarks that equal an earlier one bit by bit, (h,).
        scaled: whether it has the scaling of Lemma 3.
    """

    name: str
    matrix: Tensor
    inverted: bool
    start: str
    log_scale: Tensor
    repeated: Tensor
    scaled: bool = False


def exact_matrices(qkv: QKV, row: int) -> Iterator[tuple[str, Tensor, int]]:
    """``A``, ``B`` and ``C`` of one head, (n_q, n_k) float64, one at a time, with their number of repeated rows.

    A is ``exp(S - max S)``. All entries have the same factor, so its condition number is that of ``exp(S)``, which may
    overflow. Repeated queries repeat rows, and repeated keys repeat columns; the number is the larger of both. For
    causal inputs all three are 0 above the diagonal, so equal queries have different rows. Inputs with a bias or a cap
    have no C. Memory ``8 n_q n_k`` bytes.

    Args:
        row: the row of the head in Q, K and V.
    """
    inner = qkv.compressed()
    head = inner.head(row).to(dtype=torch.float64)
    repeated = max(repeats(inner.q[row]), repeats(inner.k[row]))
    raw = UnnormalisedAttention(head.q, head.k, head.scale, visible=head.visible, terms=head.terms)
    yield "A", raw.dense()[0], repeated
    yield "B", exact(head).dense()[0], repeated
    if head.terms is None:
        yield "C", exact(head, "gaussian").dense()[0], repeated


@checked()
def core_matrices(qkv: QKV, approx: Approximation, options: Mapping[str, Any]) -> list[Core]:
    """The cores that a method inverts; for Skyformer also the cores before and after each of its steps.

    Skyformer computes the softmax target in its Gaussian form, so the raw ``SᵀĀS`` is computed here from the drawn
    landmarks and divided by its largest entry. If the method has no ridge, ``SCS+ridge`` and ``N`` take γ = 0.1.

    Args:
        approx: the approximation of ``qkv``.
        options: the method's options; ``gamma``, ``inverse``, ``center_keys``, ``scale_dim`` and ``z0`` are used.
    """
    if not ("core" in approx.cores and {"indices", "centroids"} & set(approx.draws)):
        z0 = "global" if options.get("z0") == "global" else "norms"
        return [_plain(name, matrix, z0) for name, matrix in approx.cores.items()]
    inner = qkv.compressed()
    scale = inner.scale if options.get("scale_dim") is None else options["scale_dim"] ** -0.5
    x = _landmarks(inner, approx.draws, bool(options.get("center_keys")))  # (h, d, p)
    repeated = torch.tensor([repeats(row) for row in x], device="cpu")
    inner_products = scale * x @ x.mT
    top = inner_products.amax((1, 2))
    raw = torch.exp(inner_products - top[:, None, None])
    half = inner_products.diagonal(dim1=1, dim2=2) / 2
    # at most 0 in exact arithmetic: equal landmarks must have an entry of exactly 1
    kernel = torch.exp((inner_products - half[:, :, None] - half[:, None, :]).clamp(max=0))
    ridged = "scaled" in approx.cores or options.get("inverse") == "cholesky"
    gamma = options.get("gamma") or (RIDGE if not ridged or options.get("gamma") is None else 0.0)
    eye = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    z0 = options.get("z0")
    z0 = z0 if z0 in ("global", "identity") else "columns"
    none = torch.zeros_like(top)
    return [
        Core("SAS", raw, False, "norms", top, repeated),
        Core("SCS", kernel if ridged else approx.cores["core"], not ridged, "norms", none, repeated),
        Core(
            "SCS+ridge",
            approx.cores["core"] if ridged else kernel + gamma * eye,
            ridged and "scaled" not in approx.cores,
            "norms",
            none,
            repeated,
        ),
        Core("N0", lemma3_scaled(kernel), False, z0, none, repeated, True),
        Core(
            "N",
            approx.cores.get("scaled", lemma3_scaled(kernel + gamma * eye)),
            "scaled" in approx.cores,
            z0,
            none,
            repeated,
            True,
        ),
    ]


@checked()
def lemma3_interval(core: Tensor) -> tuple[Tensor, Tensor, list[str]]:
    """The extreme eigenvalues (h,) of scaled cores N (h, d, d), and verdicts on Lemma 3's interval (0, 1], h words.

    For a symmetric nonnegative kernel G, ``N = D^-½ G D^-½`` with ``D = diag(G 1)`` is similar to the row-stochastic
    ``D⁻¹ G``. So its largest eigenvalue is exactly 1, with eigenvector ``D^½ 1``. N is positive semidefinite if G is,
    and with a ridge its smallest eigenvalue is positive. The verdict of each head is ``violated`` if the smallest
    eigenvalue is below ``-16 d eps`` or the largest differs from 1 by more than that (the scaling rounds too); ``zero``
    if the smallest is not above the rounding ``d eps``; otherwise ``holds``.
    """
    _refuse_other_than_cores(core)
    values = torch.linalg.eigvalsh(core.double())
    low, high = values[:, 0].cpu(), values[:, -1].cpu()
    band = core.shape[-1] * torch.finfo(torch.float64).eps
    verdicts = []
    for least, largest in zip(low.tolist(), high.tolist(), strict=True):
        broken = not abs(largest - 1) <= 16 * band or least < -16 * band
        verdicts.append("violated" if broken else "holds" if least > band else "zero")
    return low, high, verdicts


@checked()
def schulz_residuals(core: Tensor, rule: str, n_iter: int) -> Tensor:
    """``‖I - M Z_t‖_F / √d`` of the iteration of Razavi et al. (2014) on a core, for t = 0 … n_iter; (h, n_iter + 1).

    The iteration and its start are `attnprobe.operators.linalg.inverses.razavi` and ``start``; methods run six steps of
    it. If it diverges, the residuals become infinite or NaN. Cost ``5 d³`` multiply-adds a step.
    """
    _refuse_other_than_cores(core)
    core = core.double()
    z = start(core, rule)
    residuals = [residual(core, z)]
    for _ in range(n_iter):
        z = razavi(core, z, 1)
        residuals.append(residual(core, z))
    return torch.stack(residuals, 1)


@checked()
def inverse_gradient(measured: Condition, log_scale: float = 0.0) -> float | None:
    """``‖∂(M⁻¹)/∂M‖₂ = ‖M⁻¹‖₂² = 1/σ_m²``: the largest growth of a gradient through the inverse of a core.

    ``d(M⁻¹) = -M⁻¹ dM M⁻¹`` is the linear map ``-(M⁻ᵀ ⊗ M⁻¹)`` of dM. Its norm (from Frobenius norm to Frobenius norm)
    is the product of the norms of its factors. The backward pass is the transposed map, of the same norm. The result is
    None for a singular matrix, whose inverse has no derivative. This is for the inverse itself; for a few steps of an
    iteration see `iteration_gradient`.

    Args:
        measured: the condition of the matrix. log_scale: the matrix is ``exp(-log_scale)`` times the core M.

    >>> from attnprobe.operators.linalg.condition import condition
    >>> inverse_gradient(condition(torch.diag(torch.tensor([2.0, 0.5]))))
    4.0
    """
    if measured.value is None:
        return None
    least = torch.log(measured.values[0]) - torch.log(torch.tensor(measured.value, dtype=torch.float64))
    return float(torch.exp(-2 * (least + log_scale)))


@checked()
def iteration_gradient(core: Tensor, rule: str, n_iter: int = 6) -> Tensor:
    """``‖∂Z_t/∂M‖₂`` after t steps of the Schulz iteration on a core, (h,): the norm for backpropagation through it.

    It is the norm of the derivative of ``M → Z_t``, including the starting point ``Z₀(M)``, from Frobenius norm to
    Frobenius norm. Power iteration on ``JᵀJ`` with products from autograd gives a lower bound, within about 1 % after
    at most 40 products. It is far below ``‖M⁻¹‖₂²`` while Z_t is far from the inverse, and tends to it as t grows.

    Args:
        core: (h, d, d). rule: the start, as in `attnprobe.operators.linalg.inverses.start`. n_iter: t.

    Cost: at most 80 passes through the iteration, each a few times its ``4 t d³`` multiply-adds.

    >>> float(iteration_gradient(torch.eye(2, dtype=torch.float64)[None] / 2, "identity", 12).round(decimals=6)[0])
    4.0
    """
    _refuse_other_than_cores(core)
    core = core.double().detach()

    def inverse(m: Tensor) -> Tensor:
        return razavi(m, start(m, rule), n_iter)

    pull = torch.func.vjp(inverse, core)[1]
    first = torch.randn(core.shape[1:], generator=generator(0, "gradient", core.shape[-1]), dtype=torch.float64)
    x = first.to(core).expand_as(core)  # the same of every head, so that a head alone has the result of its batch
    largest = torch.zeros(len(core), dtype=torch.float64, device=core.device)
    ended = torch.zeros_like(largest, dtype=torch.bool)
    for _ in range(POWER):
        x = x / x.norm(dim=(1, 2), keepdim=True)
        y = torch.func.jvp(inverse, (core,), (x,))[1]
        size = y.norm(dim=(1, 2))
        close = (size - largest).abs() <= 1e-4 * size
        largest = torch.where(ended, largest, torch.maximum(largest, size))  # NaN stays
        ended |= close | ~torch.isfinite(size)
        if ended.all():
            break
        (x,) = pull(y / size[:, None, None])
    return largest.masked_fill(~torch.isfinite(largest), float("nan")).cpu()


@checked()
def sensitivity(
    run: Callable[[QKV], Operator], qkv: QKV, *, directions: int = DIRECTIONS, seed: int = 0, step: float = STEP
) -> Tensor:
    """The relative change of a matrix per relative change of Q and K, in random directions, (h, directions) float64.

    For a matrix F of Q and K, and random normal U, W scaled to Frobenius norm 1, it is

        ``‖F(Q + t‖Q‖_F U, K + t‖K‖_F W) - F(Q - t‖Q‖_F U, K - t‖K‖_F W)‖_F / (2 t ‖F(Q, K)‖_F)``

    as t → 0. This equals ``‖DF[dQ, dK]‖_F / ‖F‖_F`` for changes of Q and of K of relative size 1. The central
    difference uses ``t = 1e-5`` in float64; its error is about t² plus the rounding of F over t. ``run`` must use the
    same draws in each call. A method that selects by the data (hashes, top k) is discontinuous: the result is then a
    jump over t.

    Args:
        run: maps Q, K, V to an operator, for example ``exact``.
        seed: the seed of the directions, which differ between heads, and between the layers and windows of
            ``qkv.label``.

    Rows are compared in blocks, so no n x n matrix is stored. Cost: 2 directions + 1 runs, and their rows.
    """
    qkv = qkv.to(dtype=torch.float64)
    streams = Streams(seed, "sensitivity", qkv.layer, qkv.window)
    size = _frobenius(run(qkv))
    changes = torch.zeros(qkv.h, directions, dtype=torch.float64)
    for index in range(directions):
        change = [
            torch.stack(
                [_direction(x[row], streams.head(head, str(index), name)) for row, head in enumerate(qkv.heads)]
            )
            for name, x in (("q", qkv.q), ("k", qkv.k))
        ]
        ends = []
        for sign in (step, -step):
            q, k = (x + sign * dx for x, dx in zip((qkv.q, qkv.k), change, strict=True))
            ends.append(run(qkv.replace(q=q, k=k)))
        changes[:, index] = (_frobenius(*ends) / (2 * step * size)).cpu()
    return changes


def _refuse_other_than_cores(core: Tensor) -> None:
    if core.dim() != 3 or core.shape[1] != core.shape[2]:
        raise UsageError(f"core has shape {tuple(core.shape)}; (h, d, d) is needed")


def _plain(name: str, matrix: Tensor, z0: str) -> Core:
    """A core without known landmarks; its repeated rows are counted instead."""
    repeated = torch.tensor([repeats(rows) for rows in matrix], device="cpu")
    name = "A_S" if name == "A" else name
    return Core(name, matrix.double(), True, z0, matrix.new_zeros(len(matrix)), repeated)


def _landmarks(qkv: QKV, draws: Mapping[str, Tensor], center_keys: bool) -> Tensor:
    """The landmarks of each head, (h, d, p) float64."""
    if "centroids" in draws:
        return draws["centroids"].to(qkv.device).double()
    k = qkv.k.double()
    x = torch.cat([qkv.q.double(), k - k.mean(1, keepdim=True) if center_keys else k], 1)
    indices = draws["indices"].to(x.device)
    if len(indices) != len(x) or int(indices.max()) >= x.shape[1]:
        raise UsageError("core_matrices: approx was made of other Q and K than those of qkv; pass both of one call")
    return torch.gather(x, 1, indices[..., None].expand(-1, -1, x.shape[2]))


def lemma3_scaled(kernel: Tensor) -> Tensor:
    """``D^-½ G D^-½`` of G (h, d, d) with ``D = diag(G 1)``."""
    r = kernel.sum(-1).rsqrt()
    return r[:, :, None] * kernel * r[:, None, :]


def _direction(x: Tensor, stream: torch.Generator) -> Tensor:
    """``‖x‖_F U`` with a random normal U scaled to norm 1."""
    draw = torch.randn(x.shape, generator=stream, dtype=torch.float64)
    return (draw * (row_norms(x, 2).cpu() / draw.norm())).to(x.device)


def _frobenius(operator: Operator, other: Operator | None = None) -> Tensor:
    """``‖F‖_F`` or ``‖F - G‖_F``, (h,), computed by blocks of rows."""
    if other is not None and operator.shape != other.shape:
        raise UsageError(f"{operator!r} and {other!r} differ in shape; run must give one shape")
    sizes, h = [], operator.shape[0]
    block = block_rows(torch.empty(0, device=operator.device), h * operator.shape[2], BLOCK)
    for first, last in row_blocks(operator.shape[1], block):
        rows = operator.rows(first, last).double()
        if other is not None:
            rows = rows - other.rows(first, last).double()
        sizes.append(row_norms(rows, 2))
    return row_norms(torch.stack(sizes, 1))
