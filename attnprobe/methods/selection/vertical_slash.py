"""The vertical-slash pattern of MInference (Jiang et al. 2024): a few columns and a few diagonals for all rows.

A probe of the last queries scores columns j and diagonals. The diagonal o holds the keys at distance o before a query.
"""

from __future__ import annotations

from ...errors import UsageError
from ...qkv import QKV
from ...reference import exact
from ...rng import Streams
from ..base import Approximation
from ..registry import TWICE_KEYS
from .base import Selection, attend, last_queries, observed, selector
from .diagonals import columns_and_diagonals


def _check(target: str, *, vertical: float, probe: int, first: int, near: int) -> None:
    if not 0 < vertical < 1:
        raise UsageError(f"vertical-slash: vertical={vertical} is not between 0 and 1")
    for name, value, least in (("probe", probe, 1), ("first", first, 0), ("near", near, 1)):
        if value < least:
            raise UsageError(f"vertical-slash: {name}={value} is below {least}")


def _caution(d: int, *, vertical: float, probe: int, first: int, near: int) -> str | None:
    columns = int(d * vertical)
    if columns > first and d - columns > near:
        return None
    forced = [f"{columns} columns are the first ones (first={first})"] if columns <= first else []
    forced += [f"{d - columns} diagonals are the nearest ones (near={near})"] if d - columns <= near else []
    return f"at d={d} all {' and all '.join(forced)}, whatever the queries"


@selector(
    name="vertical-slash",
    paper="Jiang et al., MInference (vertical-slash head)",
    year=2024,
    tags=("shift_invariant", "prefill"),
    budget="at most d keys of each row: d · vertical columns, and diagonals",
    cost="2 n d p",
    **TWICE_KEYS,
    exact_at=lambda n: (2 * n, {}),
    validate=_check,
    small={"probe": 3, "first": 1, "near": 1},
    caution=_caution,
)
def vertical_slash(
    qkv: QKV,
    d: int,
    *,
    streams: Streams,
    target: str = "softmax",
    vertical: float = 0.5,
    probe: int = 64,
    first: int = 30,
    near: int = 100,
) -> Approximation:
    """The softmax of each row over the columns and the diagonals on which the last queries have the largest weights.

    P are the exact rows of the last ``probe`` queries. It selects the ``⌊d · vertical⌋`` columns with the largest ``Σ_i
    P_ij``, and the ``d - ⌊d · vertical⌋`` diagonals o with the largest ``Σ_i P_i,c(i)-o``. The ``first`` columns and
    the ``near`` nearest diagonals come before all others, in this order, so each row has its own key. Source: Jiang et
    al. 2024, section 3.

    ``first`` and ``near`` are those of the authors' code, which has 1,000 columns and thousands of diagonals. With the
    defaults, all columns are first ones for d up to 60, and all diagonals are near ones for d up to 200: the probe
    selects none. The authors' search for patterns has 30 near diagonals, and omits 1/√p in the probe.

    The probe is at the end of the text, so the selection of earlier rows looks ahead. No key after a row has weight.
    Inputs that are not causal have diagonals on both sides.

    Options:
        vertical: the share of columns in the budget; one diagonal is always left.
        probe: the number of last queries that are computed exactly.
        first: the number of first columns that come before others.
        near: the number of nearest diagonals that come before others.

    Shapes: index and weights (h, n_q, d), output (h, n_q, p_v). Deterministic; cost ``probe · n_k p`` for the probe and
    ``n d (p + p_v)``, memory O(n d). ``scored`` is the scores of the probe.

    Raises:
        Unsupported: d above 2 n_k. UsageError: an option out of its range.
    """
    columns, queries = min(max(1, int(d * vertical)), d - 1), last_queries(observed(qkv), probe)
    weights = exact(queries).rows(0, queries.n_q)
    index = columns_and_diagonals(qkv, weights, queries.query_positions, columns, d - columns, first, near)
    return attend(qkv, Selection(index, 1, float(queries.entries)))
