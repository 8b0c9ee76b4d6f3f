"""Thinformer (Carrell et al. 2025): the error of the numerators of attention with a coreset of equal weights.

J are the d keys that ``thinformer`` selects; ``w_j`` is ``n_k/d`` for them and 0 for other keys. β is the scale of the
scores, ``A = exp(β Q Kᵀ)``, ``N = A V`` and ``N~ = A diag(w) V``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..approximation import Approximation
from ..operators import Columns
from ..qkv import QKV
from .entries import Bound, Entries, EntryErrors, entry_blocks, entry_errors, entry_findings, least_bound
from .finding import Finding, Setting, theorem

ROUNDING = 64  # eps of the dtype of Q, K and V, in which the scores of J are computed


def log_discrepancies(x: Tensor, u: Tensor) -> Tensor:
    """``ln √(u_cᵀ h u_c)`` for ``h_jl = exp(x_j·x_l)``, x (n, p) and u (n, c), as (c,) float64; -∞ if it vanishes.

    ``h = D G D`` with the Gaussian kernel G and ``D = diag(exp(‖x_j‖²/2))``, which is divided by its largest entry.
    The form is never too small by rounding: two eps of the sum of its entries' sizes are added. Cost ``n² (p + c)``.

    >>> log_discrepancies(torch.zeros(3, 2).double(), torch.tensor([[1.0], [1.0], [-1.0]]).double()).round(decimals=9)
    tensor([0.], dtype=torch.float64)
    """
    half = x.square().sum(-1) / 2
    tilted = u * (half - half.max()).exp()[:, None]
    # entries of h itself overflow float64; those of G are at most 1
    gauss = (-0.5 * torch.cdist(x, x).square()).exp()
    form = (tilted * (gauss @ tilted)).sum(0).clamp(min=0)
    rounding = 2 * torch.finfo(x.dtype).eps * tilted.abs().sum(0).square()  # entries of G are at most 1
    return 0.5 * (form + rounding).log() + half.max()


@theorem(
    "thinformer-entry",
    paper="Carrell et al. 2025 (Thinformer), from the reproducing property",
    says="no entry of A V errs by more than exp(β τ² ‖q‖²/2) times the coreset's discrepancy in exp(β k·k'/τ²)",
    cost="for each d: 16 n² (p + p_v)",
    per_budget=True,
    decompositions=0,
)
def thinformer_entry(qkv: QKV, setting: Setting) -> Iterator[Finding]:
    """The largest error of an entry of N against the bound of the head, both over the largest entry of N.

    ``A_ij = ⟨φ(τ q_i), φ(k_j/τ)⟩`` in the Hilbert space of ``exp(β x·y)``, for every τ. So ``(N~ - N)_ic = ⟨φ(τ q_i),
    Σ_j (w_j - 1) v_jc φ(k_j/τ)⟩`` is at most ``exp(β τ² ‖q_i‖²/2) √(u_cᵀ h u_c)`` with ``u_c = (w - 1) ∘ v_c`` and
    ``h = exp(β K Kᵀ/τ²)``. At τ = 1, the paper's, that is the discrepancy which kernel halving makes small. A second
    finding has the τ that makes the bound of the head least. ``squared_temperature`` is τ², ``share`` the largest ratio
    of an error to the bound of its own entry. A bound from 1 on is vacuous: ``N~ = 0`` keeps it too. The paper's bound
    of the discrepancy itself has unknown constants and is not checked.
    """
    wide = qkv.to(dtype=torch.float64)
    promise = "‖N - N~‖_max / ‖N‖_max ≤ max_i exp(β τ² ‖q_i‖²/2) max_c √(u_cᵀ h u_c) / ‖N‖_max"
    for d, approx in setting.runs("thinformer"):
        heads = [_entry_errors(wide.head(row), approx, row, qkv.dtype) for row in range(wide.h)]
        yield from entry_findings("thinformer-entry", d, promise, heads)


def _entry_errors(qkv: QKV, approx: Approximation, row: int, dtype: torch.dtype) -> list[EntryErrors]:
    """The errors of N~ of one head, each less its own rounding."""
    matrix = approx.matrix().heads(slice(row, row + 1))
    assert isinstance(matrix, Columns) and approx.log_normalizer is not None
    log_sums = approx.log_normalizer()[row].double()
    q, k, v = qkv.q[0], qkv.k[0], qkv.v[0]
    weight = torch.zeros_like(k[:, 0]).index_fill(0, matrix.index[0], qkv.n_k / matrix.index.shape[1])
    u = (weight - 1)[:, None] * v

    def at(squared: float) -> Bound:
        log_u = log_discrepancies(k * (qkv.scale / squared) ** 0.5, u)  # (c,)
        return Bound(qkv.scale * squared * q.square().sum(-1) / 2, log_u, squared)

    def of_block(block: Entries) -> tuple[Tensor, Tensor]:  # ln |N| and ln |N~ - N|, (b, p_v) each
        exact = block.exact @ v
        error = (block.approximate @ v - exact).abs()
        # rounding must not count as an error of the coreset
        error -= ROUNDING * torch.finfo(dtype).eps * block.approximate @ v.abs()
        # as logarithms: exp(top) of one row may overflow float64
        return exact.abs().log() + block.top, error.clamp(min=0).log() + block.top

    blocks = entry_blocks(q, k, qkv.scale, matrix, log_sums)
    return entry_errors(map(of_block, blocks), [at(1.0), least_bound(at, 1.0)])
