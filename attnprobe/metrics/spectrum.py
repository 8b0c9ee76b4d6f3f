"""Spectra of attention matrices: the choice of matrix, and its singular values or eigenvalues."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from ..errors import Unsupported, UsageError, unknown
from ..grammar.arguments import checked
from ..operators import GaussianAttention, Operator, UnnormalisedAttention
from ..operators.linalg.norms import row_norms, tail_singular_values
from ..operators.linalg.spectra import (
    eigenvalues,
    entropy_rank,
    held,
    leading_singular_values,
    participation_ratio,
    rank_for,
    singular_values,
    stable_rank,
    tail_rank,
)
from ..qkv import QKV
from ..reference import exact, exact_output

MATRICES = {
    "softmax": "B = D⁻¹A, softmax attention",
    "unnormalised": "A = exp(S) in its log-scale form, e^-max S · A",
    "gaussian": "C_ij = exp(-‖q_i - k_j‖² scale/2)",
    "lifted-softmax": "Ā, the softmax kernel over [Q; K], 2n x 2n, in its log-scale form",
    "lifted-gaussian": "C̄, the Gaussian kernel over [Q; K], 2n x 2n",
    "output": "B V, the attention output, n x p_v",
}
KINDS = ("singular", "eigen")
SYMMETRIC = ("lifted-softmax", "lifted-gaussian")
FULL = 4096  # the largest size of a matrix whose values are all computed
LEADING = 64  # the number of leading values of a larger matrix
SHARES = (90, 95, 99)


@dataclass(frozen=True)
class Spectrum:
    """The spectrum of one matrix, or its leading part.

    Attributes:
        kind: ``singular`` or ``eigen``.
        values: by descending modulus, on the CPU: float64, or complex128 for eigenvalues of a matrix that is not
            symmetric. All values if ``complete``, otherwise the leading ones.
        size: the number of all values.
        complete: whether all values are computed.
        symmetric: whether the matrix is known to be symmetric and positive semidefinite.
        log_scale: the matrix is ``e^log_scale`` times the matrix with these values; 0 except for A and Ā.
        frobenius: ``‖·‖_F``, for singular values and for leading values.
        error, upper, passes, closed: for leading values, see `attnprobe.operators.linalg.spectra.Leading`.
    """

    kind: str
    values: Tensor
    size: int
    complete: bool = True
    symmetric: bool = False
    log_scale: float = 0.0
    frobenius: float | None = None
    error: Tensor | None = None
    upper: Tensor | None = None
    passes: int | None = None
    closed: bool = True

    @property
    def weights(self) -> Tensor:
        """The weights of shares, (k,): the energy ``(σ/σ₁)²`` for singular values, ``|λ|`` for eigenvalues."""
        return (self.values / self._top).abs().square() if self.kind == "singular" else self.values.abs()

    @property
    def _top(self) -> float:
        """σ₁; 1 if it is 0 or not finite."""
        top = float(self.values[0].abs())
        return top if 0 < top < inf else 1.0

    @property
    def finite(self) -> bool:
        """Whether all values are finite."""
        return bool(torch.isfinite(self.values.abs()).all())

    @property
    def stable_rank(self) -> float | None:
        """``‖·‖_F² / σ₁²``; None for eigenvalues of a matrix that is not symmetric."""
        if self.kind == "eigen" and not self.symmetric:
            return None
        return stable_rank(self.values, None if self.complete else self.frobenius)

    @property
    def entropy_rank(self) -> float | None:
        """``exp(-Σ p log p)`` of the shares p of `weights`; None if not all values are known."""
        return entropy_rank(self.weights) if self.complete else None

    @property
    def participation_ratio(self) -> float | None:
        """``1 / Σ p²`` of the shares p of `weights`; None if not all values are known."""
        return participation_ratio(self.weights) if self.complete else None

    @property
    def total(self) -> float | None:
        """The sum of all `weights`; None if it is unknown."""
        if self.complete:
            return float(self.weights.sum())
        if self.kind == "eigen" or self.frobenius is None:
            return None
        return (self.frobenius / self._top) ** 2

    @property
    def decay(self) -> Tensor | None:
        """``|value_i| / |value_1|``, (k,); None for a matrix of zeros."""
        top = self.values[0].abs()
        return self.values.abs() / top if top > 0 else None

    @property
    def cumulative(self) -> Tensor | None:
        """The share of `total` that the values up to each rank have, (k,); None if it is unknown."""
        return self.weights.cumsum(0) / self.total if self.total else None

    def rank(self, per_cent: float) -> float | None:
        """The least number of leading values with ``per_cent`` of all `weights`.

        It is infinite if the known values have less, and None if it is unknown.
        """
        return None if self.total is None else self._known(rank_for(self.weights, per_cent / 100, self.total))

    def rank_within(self, epsilon: float, norm: str = "spectral") -> float | None:
        """The smallest d whose best rank-d approximation is within a relative ``epsilon`` of the matrix.

        ``norm`` is ``spectral`` or ``frobenius``. The result is infinite if the known values are too few. It is None if
        it is unknown, as for eigenvalues of a matrix that is not symmetric.
        """
        if self.kind == "eigen" and not self.symmetric:
            return None
        return self._known(tail_rank(self.values.abs(), epsilon, norm, None if self.complete else self.frobenius))

    def _known(self, rank: int | None) -> float | None:
        """The rank; infinite if there is one, but beyond the known values."""
        is_beyond = not self.complete and 0 < float(self.values[0].abs()) < inf
        return inf if rank is None and is_beyond else rank


@checked()
def attention_matrix(qkv: QKV, of: str) -> Operator:
    """One of `MATRICES` except ``output`` as an operator on the valid tokens, in the dtype of ``qkv``.

    ``unnormalised`` and ``lifted-softmax`` are divided by their largest entry; its logarithm is the operator's
    ``shift`` (h,). The shape is (h, n_q, n_k), and (h, n_q + n_k, n_q + n_k) for lifted kernels.

    Raises:
        UsageError: an unknown name. Unsupported: a lifted kernel of causal or windowed inputs.

    >>> qkv = QKV(*torch.ones(3, 1, 3, 2))
    >>> attention_matrix(qkv, "lifted-gaussian").shape
    (1, 6, 6)
    """
    names = [name for name in MATRICES if name != "output"]
    if of not in names:
        raise unknown("matrix", of, names)
    qkv = qkv.compressed()
    if of.startswith("lifted-"):
        if qkv.visible is not None:
            word = "causal" if qkv.causal else "local"
            raise Unsupported(f"attention is {word}, and {of} has no {word} form")
        if qkv.terms is not None:
            raise Unsupported(f"its scores have {qkv.terms}, and {of} has no form for it")
        both = torch.cat([qkv.q, qkv.k], 1)  # (h, n_q + n_k, p)
        if of == "lifted-gaussian":
            return GaussianAttention(both, both, qkv.scale)
        largest = qkv.scale * both.square().sum(-1).amax(-1)  # the diagonal of a Gram matrix holds its maximum
        return UnnormalisedAttention(both, both, qkv.scale, largest)
    if of == "unnormalised":
        return UnnormalisedAttention(qkv.q, qkv.shared_k, qkv.scale, visible=qkv.visible, terms=qkv.terms)
    return exact(qkv, of)


@checked()
def spectra(
    qkv: QKV, of: str | Operator = "softmax", kind: str = "singular", *, k: int | None = None, seed: int = 0
) -> list[Spectrum]:
    """The spectrum of the matrix of each head, a list of h. Heads are computed one at a time.

    If the smaller side of the matrix is at most 4096, all values are computed in float64 from its dense entries, in
    O(n³). For larger matrices, and for a given ``k`` of at most an eighth of the size, the leading values come from a
    block Krylov space with an error for each (`attnprobe.operators.linalg.spectra.leading_singular_values`), and no
    n x n matrix is stored.

    Args:
        of: one of `MATRICES`, or any operator, such as ``approximate(…).operator``.
        kind: ``singular``, or ``eigen`` (square matrices only; complex unless the matrix is symmetric).
        k: only the k leading values. The default is all up to 4096, and 64 for larger matrices.
        seed: the seed of the start block.

    Memory of a dense matrix: about ``24 n²`` bytes, 384 MiB at n = 4096 (``eigen``: up to 512 MiB); a lifted kernel has
    2n rows.

    Raises:
        UsageError: an unknown name or kind; a k that is too large.
        Unsupported: eigenvalues of a matrix that is not square, or is too large and not symmetric.

    >>> g = torch.Generator().manual_seed(0)
    >>> qkv = QKV(*torch.randn(3, 2, 8, 4, generator=g, dtype=torch.float64))
    >>> [len(spectrum.values) for spectrum in spectra(qkv)], bool(spectra(qkv)[0].stable_rank < 8)
    ([8, 8], True)
    """
    qkv = qkv.compressed()
    if isinstance(of, str) and of not in MATRICES:
        raise unknown("matrix", of, MATRICES)
    rows, columns = of.shape[1:] if isinstance(of, Operator) else shape_of(of, qkv.n_q, qkv.n_k, qkv.p_v)
    refuse_spectrum(of if isinstance(of, str) else "operator", kind, rows, columns, k)
    heads = range(of.shape[0] if isinstance(of, Operator) else qkv.h)
    with torch.no_grad():
        if of == "output":
            values = tail_singular_values(exact_output(qkv)).cpu()
            return [Spectrum("singular", head, len(head), frobenius=float(row_norms(head))) for head in values]
        return [_of_head(qkv, of, head, kind, k, seed) for head in heads]


def shape_of(of: str, n_q: int, n_k: int, p_v: int = 1) -> tuple[int, int]:
    """The rows and columns of one of `MATRICES`. Any other name is an approximation, n_q x n_k."""
    if of in SYMMETRIC:
        return n_q + n_k, n_q + n_k
    return (n_q, p_v) if of == "output" else (n_q, n_k)


def refuse_spectrum(of: str, kind: str, rows: int, columns: int, k: int | None = None) -> None:
    """Refuse an impossible spectrum before any computation."""
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    small = min(rows, columns)
    if k is not None and k < 1:
        raise UsageError(f"k={k}: choose 1 or more leading values")
    if of != "output" and small > FULL and (k or LEADING) > small // 4:
        raise UsageError(
            f"{of}: k={k or LEADING} values of a {rows} x {columns} matrix are too many; choose k up to {small // 4}"
        )
    if kind == "singular":
        return
    if of == "output" or rows != columns:
        raise Unsupported(
            f"{of}: a {'tall' if of == 'output' else f'{rows} x {columns}'} matrix has no eigenvalues; "
            "use --kind singular"
        )
    if of not in SYMMETRIC and (small > FULL or k is not None):
        raise Unsupported(
            f"{of}: eigenvalues of a matrix that is not symmetric need n={small} up to {FULL} and no k; "
            "use --kind singular"
        )


def _of_head(qkv: QKV, of: str | Operator, head: int, kind: str, k: int | None, seed: int) -> Spectrum:
    """The spectrum of one head. Only this head is copied to float64."""
    if isinstance(of, Operator):
        op, symmetric, log_scale = of.heads(slice(head, head + 1)), False, 0.0
    else:
        one = qkv.head(head).to(dtype=torch.float64)
        op, symmetric = attention_matrix(one, of), of in SYMMETRIC
        log_scale = float(op.shift[0]) if isinstance(op, UnnormalisedAttention) else 0.0
    size = min(op.shape[1:])
    facts = {"kind": kind, "size": size, "symmetric": symmetric, "log_scale": log_scale}
    count = LEADING if k is None and size > FULL else k
    if count is not None and (size > FULL or count <= size // 8):
        leading = leading_singular_values(op, count, seed=seed)
        return Spectrum(complete=False, **vars(leading), **facts)
    matrix = held(op)
    if kind == "eigen":
        return Spectrum(values=eigenvalues(matrix, symmetric), **facts)
    values = singular_values(matrix)
    return Spectrum(values=values, frobenius=float(row_norms(values)), **facts)
