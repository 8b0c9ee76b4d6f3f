"""Errors of whole attention matrices, without storing an n x n matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf

import torch
from torch import Tensor

from ..errors import UsageError
from ..grammar.arguments import checked
from ..operators import Operator, Padded, Sum
from ..operators.blocks import BLOCK_MEMORY
from ..operators.linalg.differences import Differences, FirstPass
from ..operators.linalg.krylov import start_block
from ..operators.linalg.norms import row_norms
from ..operators.linalg.spectral import DELTA, Interval, block_size, norm_intervals
from ..operators.precision import full_precision

MATRIX_METRICS = {
    "matrix_spectral": "‖B - B~‖₂, absolute",
    "matrix_spectral_relative": "‖B - B~‖₂ / ‖B‖₂",
    "matrix_frobenius": "‖B - B~‖_F, absolute",
    "matrix_frobenius_relative": "‖B - B~‖_F / ‖B‖_F",
    "matrix_infinity": "the largest row sum of |B - B~|",
}
USUAL = 5  # the usual number of passes until an interval closes, for progress
DENSE = 256  # keys; a matrix up to this size is computed densely: cheaper, and exact
MEMORY = 2**24  # bytes of Krylov bases at a time on a CPU; on other devices as many as a block of rows
SMALL = 0.02  # relative to B; a smaller error is measured again in float64 if its float32 interval stays open
CANCELLED = 1e-6  # and one this small from its entries, if its float64 interval stays open: products with B cancel

Show = Callable[[str, float], None]


@dataclass(frozen=True)
class ExactNorms:
    """The norms of an exact matrix B, per head, float64 (h,): all errors of its approximations are relative to them.

    Attributes:
        value: ``‖B‖₂``. lower, upper: the ends of its interval, as for ``‖E‖₂`` in `matrix_errors`.
        frobenius: ``‖B‖_F``.
    """

    value: Tensor
    lower: Tensor
    upper: Tensor
    frobenius: Tensor

    def open(self, tol: float) -> Tensor:
        """Whether each interval is wider than ``tol``, (h,) bool; false for matrices that are not finite."""
        return self.upper > (1 + tol) * self.lower


@dataclass(frozen=True)
class MatrixErrors:
    """The errors of one approximation, per head.

    Attributes:
        metrics: as `matrix_errors` returns them.
        kind: the bound that gives the upper end: ``exact`` (dense matrix), ``A`` or ``frobenius`` (certain), ``B`` or
            ``apriori`` (fail with probability at most δ), ``none`` (a matrix that is not finite).
        open: whether the interval of ``‖E‖₂`` or that of ``‖B‖₂`` is still wider than ``tol``.
    """

    metrics: dict[str, Tensor]
    kind: list[str]
    open: list[bool]


@checked()
def matrix_errors(
    exact: Operator,
    approx: Operator,
    *,
    tol: float = 1e-3,
    seed: int = 0,
    delta: float = DELTA,
) -> dict[str, Tensor]:
    """The errors of an approximation's operator against the exact matrix, per head.

    With ``E = B - B~`` (or C for the Gaussian target). All are (h,) float64, except ``matrix_spectral_passes``:

    =================================  ===========================================================================
    ``matrix_spectral``                ``‖E‖₂``, the largest Ritz value of a block Krylov space of ``EᵀE``
    ``matrix_spectral_lower, _upper``  the ends of a certified interval: the lower one is certain, the upper one
                                       fails with probability at most ``delta`` over the draw of the start block
    ``matrix_spectral_passes``         products with ``EᵀE`` until ``upper/lower - 1 < tol``, at most 12
    ``matrix_spectral_relative``       ``‖E‖₂ / ‖B‖₂``; ``_upper``: the upper end of ``‖E‖₂`` over the lower of ``‖B‖₂``
    ``matrix_frobenius, _relative``    ``‖E‖_F``, and over ``‖B‖_F``: entry by entry, so nothing cancels
    ``matrix_infinity``                ``max_i Σ_j |E_ij|``
    =================================  ===========================================================================

    Passes run in the dtype of ``exact``, or in float32 for half precision: then B is computed in float32 from the
    half-precision Q and K, and the stored factors of B~ are applied in float32. An error of less than 2 % of B that
    float32 cannot resolve to ``tol`` is measured again in float64, and one of less than 1e-6 of B from its entries, if
    products with B and B~ cannot resolve it. The errors are those of the operators as computed:
    float32 entries of B have errors up to 5e-6 of ‖B‖. Up to 256 keys, E is computed densely and its norm is exact. A
    pass of a head costs ``n_q n_k (p + 2 s)`` multiply-adds with s = 32 (16 below 512 keys). Memory on a CPU: 128 MiB
    of rows that later passes read again, for each thread three blocks of rows, at most ``max(2^18, 64 n_k)`` numbers
    each, and ``s n_k`` numbers for each pass and head.

    Args:
        tol: the relative width at which the interval of ``‖E‖₂`` counts as closed.
        delta: the failure probability of one interval. With the default of 1e-10, ten thousand intervals jointly fail
            with probability at most 1e-6.
        seed: the seed of the start block, whose stream is ``certificate``.

    Raises:
        UsageError: shapes that differ.

    >>> from attnprobe import QKV, approximate, exact
    >>> qkv = QKV(*torch.randn(3, 1, 8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    >>> errors = matrix_errors(exact(qkv), approximate("vmean", qkv).operator)
    >>> bool(errors["matrix_spectral"] <= errors["matrix_frobenius"])
    True
    """
    if not 0 <= tol < inf:
        raise UsageError(f"tol={tol:g}: choose a relative width of 0 or more")
    if not 0 < delta < 1:
        raise UsageError(f"delta={delta:g}: choose a probability above 0 and below 1")
    return shared_matrix_errors(exact, [approx], tol=tol, seed=seed, delta=delta)[0].metrics


@checked()
@full_precision()
def shared_matrix_errors(
    exact: Operator,
    approximations: Sequence[Operator],
    *,
    tol: float = 1e-3,
    seed: int = 0,
    delta: float = DELTA,
    norms: ExactNorms | None = None,
    progress: Show = lambda label, share: None,
) -> list[MatrixErrors]:
    """The `matrix_errors` of several approximations of one exact matrix, which share the exponentials of each pass.

    Each approximation stops by its own rule, so its errors equal those of `matrix_errors` up to rounding.

    Args:
        norms: `exact_norms` of the same matrix, tolerance and seed, to avoid computing them again.
        progress: called before each pass with its heads and number, such as ``heads 0-3 of 12, pass 2``, and with the
            approximate share of the finished work.

    Raises:
        UsageError: shapes or padding masks that differ.
    """
    if isinstance(exact, Padded):
        padded = [op for op in approximations if isinstance(op, Padded) and torch.equal(op.mask, exact.mask)]
        if len(padded) < len(approximations):
            raise UsageError("the padding masks of the operator and the exact matrix differ; make both of one QKV")
        exact, approximations = exact.operator, [op.operator for op in padded]
    for op in approximations:
        if op.shape != exact.shape:
            raise UsageError(f"{op!r} and the exact {exact!r} differ in shape")
    exact, *approximations = (at_least_float32(op) for op in (exact, *approximations))
    operators = [*approximations] if norms is not None else [None, *approximations]  # B itself first
    with torch.no_grad():
        spectral, frobenius, infinity = _norms(exact, operators, _Settings(tol, delta, seed), progress)
    if norms is None:
        norms = ExactNorms(spectral[0].value, spectral[0].lower, spectral[0].upper, frobenius[0])
        spectral, frobenius, infinity = spectral[1:], frobenius[1:], infinity[1:]
    return [
        MatrixErrors(
            {
                "matrix_spectral": interval.value,
                "matrix_spectral_lower": interval.lower,
                "matrix_spectral_upper": interval.upper,
                "matrix_spectral_passes": interval.passes,
                "matrix_spectral_relative": interval.value / norms.value,
                "matrix_spectral_relative_upper": interval.upper / norms.lower,
                "matrix_frobenius": f,
                "matrix_frobenius_relative": f / norms.frobenius,
                "matrix_infinity": i,
            },
            interval.kind,
            (interval.open(tol) | norms.open(tol)).tolist(),
        )
        for interval, f, i in zip(spectral, frobenius, infinity, strict=True)
    ]


@checked()
@full_precision()
@torch.no_grad()
def exact_norms(
    exact: Operator,
    *,
    tol: float = 1e-3,
    seed: int = 0,
    delta: float = DELTA,
    progress: Show = lambda label, share: None,
) -> ExactNorms:
    """The norms of an exact matrix as `shared_matrix_errors` computes them; its arguments are the same."""
    exact = at_least_float32(exact.operator if isinstance(exact, Padded) else exact)
    (spectral,), (frobenius,), _ = _norms(exact, [None], _Settings(tol, delta, seed), progress)
    return ExactNorms(spectral.value, spectral.lower, spectral.upper, frobenius)


def at_least_float32(op: Operator) -> Operator:
    """The operator in float32 instead of half precision; other operators do not change."""
    return op.to(torch.float32) if torch.finfo(op.dtype).bits < 32 else op


Norms = tuple[list[Interval], list[Tensor], list[Tensor]]  # spectral, Frobenius, infinity of each operator


@dataclass(frozen=True)
class _Settings:
    """The parameters of `matrix_errors`."""

    tol: float
    delta: float
    seed: int


def _norms(exact: Operator, operators: Sequence[Operator | None], settings: _Settings, progress: Show) -> Norms:
    """Norms of all ``B - B~_c``: densely if they are small, otherwise by passes."""
    return _dense(exact, operators) if exact.shape[2] <= DENSE else _streamed(exact, operators, settings, progress)


def _dense(exact: Operator, operators: Sequence[Operator | None]) -> Norms:
    b = exact.to(torch.float64).dense()
    spectral, frobenius, infinity = [], [], []
    for op in operators:
        e = b if op is None else b - op.dense().double()  # (h, n_q, n_k)
        finite = torch.isfinite(e).all(-1).all(-1)
        value = torch.linalg.matrix_norm(torch.where(finite[:, None, None], e, torch.zeros_like(e)), 2)
        value = torch.where(finite, value, torch.full_like(value, float("nan")))
        passes = torch.zeros(len(e), dtype=torch.int64, device=e.device)
        spectral.append(Interval(value, value * (1 - 1e-12), value * (1 + 1e-12), passes, ["exact"] * len(e)))
        frobenius.append(row_norms(e, 2))
        infinity.append(torch.linalg.vector_norm(e, 1, dim=-1).amax(-1))
    return spectral, frobenius, infinity


def _streamed(exact: Operator, operators: Sequence[Operator | None], settings: _Settings, progress: Show) -> Norms:
    """Norms by passes over a few heads at a time, so that their Krylov bases stay small."""
    h, _, m = exact.shape
    each = len(operators) * m * block_size(m) * 8 * (torch.finfo(exact.dtype).bits // 8)  # bytes: a basis of 8 passes
    on_cpu = exact.device.type == "cpu"
    together = torch.get_num_threads() if on_cpu else 1  # heads side by side: every thread has one
    size = max(1, (MEMORY if on_cpu else BLOCK_MEMORY.bytes(exact.device)) // each)
    size = min(h, -(-size // together) * together)
    heads = [slice(start, min(start + size, h)) for start in range(0, h, size)]
    norms = []
    for part in heads:

        def show(label: str, share: float, part: slice = part) -> None:
            done = (part.start + share * (part.stop - part.start)) / h
            progress(f"heads {part.start}-{part.stop - 1} of {h}, {label}", done)

        operators_part = [op and op.heads(part) for op in operators]
        norms.append(_passes(exact.heads(part), operators_part, settings, show))
    spectral, frobenius, infinity = zip(*norms, strict=True)  # each (parts of the heads, operators)
    return (
        [Interval.joined(parts) for parts in zip(*spectral, strict=True)],
        [torch.cat(parts) for parts in zip(*frobenius, strict=True)],
        [torch.cat(parts) for parts in zip(*infinity, strict=True)],
    )


def _passes(exact: Operator, operators: Sequence[Operator | None], settings: _Settings, progress: Show) -> Norms:
    """Norms by shared passes. Small matrices whose interval stays open are measured again, each alone."""
    interval, first = _interval(exact, operators, settings, progress)
    h, is_double = exact.shape[0], exact.dtype == torch.float64

    def small(share: float) -> Tensor:
        return interval.open(settings.tol) & (interval.value < share * first.size)

    for i in small(CANCELLED if is_double else SMALL).nonzero()[:, 0].tolist():
        op, head = operators[i // h], slice(i % h, i % h + 1)
        if op is None:
            continue
        own, other = exact.heads(head).to(torch.float64), op.heads(head)
        if not is_double:
            _measure_again(interval, first, i, own, other, settings, progress)
        if small(CANCELLED)[i]:
            entries = Sum([own, other.to(torch.float64)], [1, -1])
            _measure_again(interval, first, i, entries, None, settings, progress)
    split = [slice(c * h, (c + 1) * h) for c in range(len(operators))]
    return [interval[c] for c in split], [first.frobenius[c] for c in split], [first.infinity[c] for c in split]


def _measure_again(
    interval: Interval,
    first: FirstPass,
    i: int,
    exact: Operator,
    op: Operator | None,
    settings: _Settings,
    progress: Show,
) -> None:
    """Put the norms of ``exact - op``, of one head in float64, in place of those of matrix ``i``."""

    def show(label: str, share: float) -> None:
        return progress(f"{label} of one head in float64", 1.0)

    refined, refined_first = _interval(exact, [op], settings, show)
    interval.replace(i, refined)
    first.frobenius[i], first.infinity[i] = refined_first.frobenius[0], refined_first.infinity[0]


def _interval(
    exact: Operator, operators: Sequence[Operator | None], settings: _Settings, progress: Show
) -> tuple[Interval, FirstPass]:
    """The intervals of all ``B - B~_c``, (C h,), and the results of the first pass."""
    m, matrices = exact.shape[2], Differences(exact, operators)
    v1, r = start_block(m, block_size(m), settings.seed, exact.dtype, exact.device)
    progress("pass 1", 0.0)
    first = matrices.in_units(v1)
    passes = count(1)

    def normal(x: Tensor, which: Tensor) -> Tensor:
        done = next(passes)
        progress(f"pass {done + 1}", min(done / USUAL, 1.0))
        return matrices.normal(x, which)

    interval = norm_intervals(
        normal,
        first.normal,
        v1,
        r,
        tol=settings.tol,
        delta=settings.delta,
        seed=settings.seed,
        frobenius2=first.frobenius2,
        parts=2 * first.size / first.unit,
    )
    return interval.times(first.unit), first
