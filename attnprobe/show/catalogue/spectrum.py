"""The figures of ``attnprobe spectrum``.

They read rows of kind ``singular``: one for each value of each matrix of a head, with its ``index`` from 1 on, the
share ``decay`` of the first value, and ``cumulative``, the share of Σσ² that the values up to it have (of Σ|λ| for
eigenvalues). ``of`` names the matrix: the method with its options, or the exact one.
"""

from __future__ import annotations

from ..figure import Figure

FIGURES = (
    Figure(
        "spectra",
        "Decay of singular values",
        x="index",
        y="decay",
        marks=("band p10 p90", "line"),
        kind="singular",
        colour="of",
        shade="d",
        log=("index", "decay"),
        caption="Singular values over the largest one, by rank: medians and quantiles over heads and windows.",
    ),
    Figure(
        "cumulative",
        "Cumulative share of squared singular values",
        x="index",
        y="cumulative",
        marks=("band p10 p90", "line"),
        kind="singular",
        colour="of",
        shade="d",
        log=("index",),
        caption="Share of Σσ² that the values up to a rank have: medians and quantiles over heads and windows.",
    ),
)
