"""WildCat (Schröder & Mackey 2026): few keys drawn by randomly pivoted Cholesky, with weights for all other keys.

S are the keys drawn, our ``d`` is the paper's ``r``. β is the scale of the scores, τ the temperature, ``h(x, y) =
exp(β x·y/τ²)`` the kernel of the keys.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ...errors import UsageError
from ...operators import Scaled
from ...operators.groups import tokens
from ...operators.linalg.coresets import SQUARED_TEMPERATURE, randomly_pivoted
from ...operators.linalg.inverses import inverse_root, residual
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation, per_head
from ..registry import KEYS, register
from ..summary import Summary, dyadic


def _check(target: str, *, tau: float | None, temperature: str) -> None:
    if tau is not None and tau <= 0:
        raise UsageError(f"wildcat: tau={tau:g} is not positive")
    if tau is not None and temperature != "keys":
        raise UsageError("wildcat: tau is the temperature itself; give tau or temperature, not both")


@register(
    name="wildcat",
    paper="Schröder & Mackey, WildCat",
    year=2026,
    family="Nyström",
    tags=("row_sums_one", "shift_invariant", "exact_at_full_budget", "vanishing_normaliser", "causal", "decodes"),
    budget="d keys, drawn by randomly pivoted Cholesky",
    cost="5 n d p + O(n d²)",
    oracle="the residual bound on the largest entry; exact at n keys",
    **KEYS,
    validate=_check,
    exact_at=lambda n: (n, {}),
)
def wildcat(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    tau: float | None = None,
    temperature: Literal["keys", "queries"] = "keys",
) -> Approximation:
    """``B~ = D~⁻¹ L W`` with ``L = exp(β Q K_Sᵀ)``, ``W = h_SS⁻¹ h(K_S, K)`` and ``D~ = L W 1``.

    S are d keys of randomly pivoted Cholesky: one after another, each with probability proportional to its residual
    ``h_jj - h_jS h_SS⁻¹ h_Sj``. The keys of h are centred by their mean, which changes no softmax. W is the best
    reproduction of all keys' kernel functions by those of S, so for every entry ``|A_ij - (L W)_ij| ≤ exp(β τ²
    ‖q_i‖²/2) (h_jj - h_jS h_SS⁻¹ h_Sj)^½``. Source: Schröder & Mackey 2026, and their code.

    A large τ makes the second factor of this bound small, because h is smooth, and the first factor large. W may be
    negative, and so may entries of B~. The authors clip each output to the range of its column of V. That is not a
    linear map of V and not included: here the output is B~ V.

    Options:
        tau: τ; none is by ``temperature``.
        temperature: with ``keys``, τ² is 3.94582, the default of the authors' code, which assumes that queries are as
            long as keys. ``queries`` multiplies it by the paper's ``max ‖k‖ / max ‖q‖``, of
            the centred keys.

    Shapes: L (h, n_q, d), W (h, d, n_k) as the factors of a pseudo-inverse and ``h(K_S, K)``, in float64. h is factored
    as a Gaussian kernel, whose diagonal is 1, so it does not overflow. Draws: ``pivot_numbers`` (h, d) from [0, 1), one
    for each drawn key. Cost ``5 n d p``, of which the output takes ``2 n d p``, and ``n d²/2`` for the pivots; memory
    O(n d).

    Causal inputs have the form of `methods.summary.dyadic`: exact attention to the query's own leaf of ``2 d`` keys,
    and d pivots of each earlier block. With ``temperature=queries`` it needs all queries of the text.

    ``bad_rows`` counts rows whose normaliser is not positive, or so small that it is rounding.

    Raises:
        Unsupported: d above n_k. UsageError: options outside their ranges.

    >>> from attnprobe import approximate
    >>> qkv = QKV(*torch.randn(3, 1, 64, 4, generator=torch.Generator().manual_seed(0)))
    >>> approximate("wildcat", qkv, 16).operator.row_sums().sum().round()
    tensor(64., dtype=torch.float64)
    """
    if qkv.causal:

        def summarise(block: QKV, own: Streams) -> tuple[Summary, dict[str, Tensor]]:
            return summarised(block, d, own, tau, temperature)[:2]

        return dyadic(qkv, d, streams, summarise, queries=temperature == "queries")
    summary, draws, core, root = summarised(qkv, d, streams, tau, temperature)
    logits = summary.logits(qkv.q, qkv.scale)
    shift = logits.detach().amax(-1)  # (h, n_q); it cancels
    low_rank = summary.attended((logits - shift[..., None]).exp())
    mass = summary.normaliser(low_rank.left)  # D~, up to exp(shift)
    inverse = root @ root.mT
    diagnostics = {
        "bad_rows": (~(mass >= summary.floor(low_rank.left))).sum(-1),
        "inverse_residual": residual(core, inverse),
        "realised_d": per_head(qkv.h, d),
        "visited": per_head(qkv.h, d * (qkv.n_q + qkv.n_k)),
    }
    return Approximation.of(
        Scaled(low_rank, left=1 / mass),
        qkv,
        draws=draws,
        cores={"core": core},
        inverses={"core": inverse},
        diagnostics=diagnostics,
        log_normalizer=lambda: mass.clamp(min=0).log() + shift,
    )


def summarised(
    qkv: QKV, d: int, streams: Streams, tau: float | None, temperature: str
) -> tuple[Summary, dict[str, Tensor], Tensor, Tensor]:
    """The summary of the keys, the draws, the core ``G_SS`` (h, d, d) and a root of its pseudo-inverse (h, d, d).

    ``h_ij = exp(a_i + a_j) G_ij`` for ``a_i = β ‖k_i‖²/(2 τ²)`` and a Gaussian kernel G. So W is ``exp(-a_s) G_SS⁻¹
    G_Sj exp(a_j)``; the largest a of the head moves from R to the bias of the landmarks.
    """
    of_heads = [streams.head(head, "pivots") for head in qkv.heads]
    numbers = torch.stack(
        [torch.rand(d, generator=generator, dtype=torch.float64, device="cpu") for generator in of_heads]
    )
    k = qkv.k.double()
    centred = k - k.mean(1, keepdim=True)
    x = centred * (qkv.scale / _squared_temperature(qkv, centred, tau, temperature))[:, None, None] ** 0.5
    # Which keys are drawn is a choice, of which no gradient is taken.
    pivots = randomly_pivoted(x.detach(), numbers.to(qkv.device))  # (h, d)
    marks = tokens(x, pivots)
    a, of_marks = x.square().sum(-1) / 2, marks.square().sum(-1) / 2  # (h, n_k), (h, d)
    # The diagonal of a Gaussian kernel is 1; rounding may put an exponent above 0 and make the core indefinite.
    core = (marks @ marks.mT - of_marks[:, :, None] - of_marks[:, None]).clamp(max=0).exp()
    largest = a.detach().amax(-1, keepdim=True)
    right = (marks @ x.mT - of_marks[..., None] - largest[..., None]).exp()  # G_Sj exp(a_j - largest)
    root = inverse_root(core)
    summary = Summary.normalised(tokens(k, pivots), largest - of_marks, [root, root.mT], right)
    return summary, {"pivot_numbers": numbers}, core, root


def _squared_temperature(qkv: QKV, centred: Tensor, tau: float | None, temperature: str) -> Tensor:
    """τ² of each head, (h,)."""
    longest_key = centred.norm(dim=-1).amax(-1)
    if tau is not None:
        return torch.full_like(longest_key, tau**2)
    if temperature == "keys":
        return torch.full_like(longest_key, SQUARED_TEMPERATURE)
    longest_query = qkv.q.double().norm(dim=-1).amax(-1)
    known = (longest_key > 0) & (longest_query > 0)
    return SQUARED_TEMPERATURE * torch.where(known, longest_key / torch.where(known, longest_query, 1.0), 1.0)
