"""Keys summarised by few landmarks or a coreset, attention to the summary, and its causal form.

`dyadic` has the exact recent keys, and summaries of dyadic blocks of earlier ones. A leaf has ℓ consecutive keys, and a
block has ``2^t`` leaves. The earlier leaves of a query form at most ``log₂(n/ℓ)`` blocks, one for each binary digit 1
of their number. Source: merge and reduce, as in Gong et al. 2026 (Express). Here a summary is made from the keys of its
block, not from other summaries.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..approximation import Approximation
from ..errors import Unsupported
from ..operators import Dense, LowRank, Mosaic, Operator, Rows
from ..qkv import QKV
from ..rng import Streams
from .base import per_head


@dataclass(frozen=True, eq=False)
class Summary:
    """Keys as c landmarks: ``exp(S_ij) ≈ (L M R)_ij`` with ``L_ic = exp(s q_i·x_c + b_c)``, and ``D~_i = L_i m``.

    It does not depend on the queries that attend to it. All tensors are float64.

    Attributes:
        landmarks: x, (h, c, p). bias: b, (h, c).
        middle: the factors of M, (h, c, c) each; no factors are the identity.
        right: R, (h, c, n_k). mass: m, (h, c).
        noise: ``‖M‖ ‖R 1‖``, (h,), if ``m = M R 1``, whose terms may cancel; None if no terms of D~ cancel.
    """

    landmarks: Tensor
    bias: Tensor
    middle: Sequence[Tensor]
    right: Tensor
    mass: Tensor
    noise: Tensor | None = None

    @classmethod
    def normalised(cls, landmarks: Tensor, bias: Tensor, middle: Sequence[Tensor], right: Tensor) -> Summary:
        """The summary whose normalisers are the row sums of ``L M R``: ``m = M R 1``."""
        mass = right.sum(-1, keepdim=True)
        noise = mass.norm(dim=(1, 2))
        for factor in reversed(middle):
            mass = factor @ mass
            noise = noise * torch.linalg.matrix_norm(factor)
        return cls(landmarks, bias, middle, right, mass[..., 0], noise)

    def logits(self, q: Tensor, scale: float) -> Tensor:
        """``ln L``, (h, n_q, c), for queries (h, n_q, p)."""
        return scale * (q.double() @ self.landmarks.mT) + self.bias[:, None]

    def attended(self, left: Tensor) -> LowRank:
        """``L M R``, (h, n_q, n_k), for any L (h, n_q, c)."""
        return LowRank(left, list(self.middle), self.right)

    def normaliser(self, left: Tensor) -> Tensor:
        """``D~ = L m``, (h, n_q), for any L (h, n_q, c)."""
        return (left @ self.mass[..., None])[..., 0]

    def floor(self, left: Tensor) -> Tensor:
        """The value below which ``L m`` is rounding, (h, n_q): 100 times ``eps ‖L_i‖ ‖M‖ ‖R 1‖``."""
        noise = self.bias.new_zeros(len(self.bias)) if self.noise is None else self.noise
        return 100 * torch.finfo(left.dtype).eps * left.norm(dim=-1) * noise[:, None]


Summarise = Callable[[QKV, Streams], tuple[Summary, dict[str, Tensor]]]
LEAF = 2  # times d: a block of d keys would be as long as its summary


def dyadic(
    qkv: QKV, d: int, streams: Streams, summarise: Summarise, *, queries: bool = False, gaussian: bool = False
) -> Approximation:
    """Causal rows: exact over the keys of the query's own leaf of ``2 d`` keys, and over summaries of earlier blocks.

    ``B~_ij = exp(S_ij) / D~_i`` in the leaf, and ``(L M R)_ij / D~_i`` in a block, with ``D~_i = Σ_leaf exp(S_ij) +
    Σ_blocks L_i m``. A block is summarised from its own tokens and with its own draws. So no later token changes a row,
    and decoding gives the same rows as the complete text. A block of b keys is used by the b queries after it.

    Args:
        summarise: ``(block, streams) -> (summary, draws)`` for a block as Q, K, V. Without ``queries`` the block has
            its keys in place of its queries.
        queries: whether the summary needs the queries of the block. Then all queries of the text are needed.
        gaussian: whether the rows are those of ``exp(-‖q - k‖² s/2)``, which have no normaliser.

    Cost: the summaries of n keys for each of ``log₂(n/2d)`` sizes, and ``n d log₂(n/2d)`` entries.

    Raises:
        Unsupported: ``queries``, and only some queries of the text are given.
    """
    if queries and not qkv.square:
        raise Unsupported(f"{streams.method}: its causal form summarises earlier queries; give all queries of the text")
    order = qkv.query_positions.argsort()
    places, q = qkv.query_positions[order], qkv.q[:, order]
    pieces, draws = [], {}
    for first, start, stop, rows in _blocks(places.tolist(), qkv.n_k, LEAF * d):
        if start == first:  # its own leaf
            logits = _scores(qkv, q[:, rows], start, stop, gaussian)
            after = torch.arange(start, stop, device=qkv.device) > places[rows, None]
            pieces.append(_Piece(rows, start, logits.masked_fill(after, -torch.inf), None))
            continue
        block = slice(start, stop)
        # The block is inputs of its own: a summary cannot see, or draw by, what comes after it.
        of_block = qkv.q[:, block] if queries else qkv.k[:, block]
        part = QKV(of_block, qkv.k[:, block], qkv.v[:, block], qkv.scale, heads=qkv.heads, label=qkv.label)
        summary, drawn = summarise(part, streams.part(f"{start}-{stop}"))
        draws |= {f"{name}:{start}-{stop}": value for name, value in drawn.items()}
        logits = summary.logits(q[:, rows], qkv.scale)
        if gaussian:
            logits = logits - _half(q[:, rows], qkv.scale)
        pieces.append(_Piece(rows, start, logits, summary))
    return _merged(qkv, pieces, order, draws, d, gaussian)


@dataclass(frozen=True, eq=False)
class _Piece:
    """Some rows, in the order of their places, and the keys from ``column`` on; ``summary`` is None for exact keys."""

    rows: slice
    column: int
    logits: Tensor
    summary: Summary | None

    def normaliser(self, left: Tensor) -> Tensor:
        return left.sum(-1) if self.summary is None else self.summary.normaliser(left)

    def operator(self, left: Tensor) -> Operator:
        return Dense(left) if self.summary is None else self.summary.attended(left)


def _blocks(places: list[int], n_k: int, leaf: int) -> Iterator[tuple[int, int, int, slice]]:
    """Yields ``(first, start, stop, rows)``: the queries from place ``first`` on, and their keys ``start … stop - 1``.

    The leaves come first, then the blocks by size.
    """

    def inside(first: int, last: int) -> slice:
        return slice(bisect_left(places, first), bisect_left(places, last))

    blocks = [(start, start, min(start + leaf, n_k), inside(start, start + leaf)) for start in range(0, n_k, leaf)]
    size = leaf
    while size < n_k:
        for start in range(0, n_k - size, 2 * size):
            blocks.append((start + size, start, start + size, inside(start + size, start + 2 * size)))
        size *= 2
    return (block for block in blocks if block[3].start < block[3].stop)  # those that a query uses


def _half(x: Tensor, scale: float) -> Tensor:
    """``‖x_i‖² s/2``, (h, n, 1)."""
    return x.double().square().sum(-1, keepdim=True) * scale / 2


def _scores(qkv: QKV, q: Tensor, start: int, stop: int, gaussian: bool) -> Tensor:
    """The scores, or logarithms of the Gaussian kernel, of queries and keys, (h, b, stop - start)."""
    k = qkv.k[:, start:stop]
    scores = qkv.scale * (q.double() @ k.double().mT)
    return scores - _half(q, qkv.scale) - _half(k, qkv.scale).mT if gaussian else scores


def _merged(
    qkv: QKV, pieces: list[_Piece], order: Tensor, draws: dict[str, Tensor], d: int, gaussian: bool
) -> Approximation:
    """The approximation of all pieces; ``order`` (n_q,) sorts the queries by their places."""
    shift = torch.full((qkv.h, qkv.n_q), 0.0 if gaussian else -torch.inf, dtype=torch.float64, device=qkv.device)
    mass, floor = torch.zeros_like(shift), torch.zeros_like(shift)
    if not gaussian:
        for piece in pieces:
            shift[:, piece.rows] = torch.maximum(shift[:, piece.rows], piece.logits.detach().amax(-1))
    lefts = [(piece.logits - shift[:, piece.rows, None]).exp() for piece in pieces]
    for piece, left in zip(pieces, lefts, strict=True):
        mass[:, piece.rows] += piece.normaliser(left)
        if piece.summary is not None:
            floor[:, piece.rows] += piece.summary.floor(left.detach())
    if gaussian:
        mass = torch.ones_like(mass)
    parts, visited = [], 0
    for piece, left in zip(pieces, lefts, strict=True):
        parts.append((piece.operator(left / mass[:, piece.rows, None]), piece.rows.start, piece.column))
        visited += int((piece.logits[0] > -torch.inf).sum())
    operator: Operator = Mosaic(parts, (qkv.h, qkv.n_q, qkv.n_k))
    back = order.argsort()
    if not torch.equal(back, torch.arange(qkv.n_q, device=back.device)):
        operator = Rows(operator, back)
    return Approximation.of(
        operator,
        qkv,
        draws=draws,
        diagnostics={
            "bad_rows": (~(mass >= floor)).sum(-1),
            "rounded_rows": (~(mass.abs() >= floor)).sum(-1),
            "realised_d": per_head(qkv.h, min(d, qkv.n_k)),
            "visited": per_head(qkv.h, visited),
        },
        log_normalizer=None if gaussian else lambda: (mass.clamp(min=0).log() + shift)[:, back],
    )
