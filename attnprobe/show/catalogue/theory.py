"""The figures of ``attnprobe theory``.

They read rows of kind ``head``, one for each finding: ``theorem``; ``statement``, the theorem with its parameters in
words; ``epsilon``; ``verdict``; ``measured`` against ``bound``; and of the statistical dimension ``d_stat`` with
``sufficient``, the landmarks that Skyformer's Theorem 2 requires. Rows of kind ``failure`` have, for each
head and some ``epsilon``, the ``rate`` of seeds whose error ``of`` the matrix or the output is larger.
"""

from __future__ import annotations

from ..figure import EACH, Figure, Guide

DIMENSION = "d_stat == d_stat and d_stat > 0"

FIGURES = (
    Figure(
        "verdicts",
        "Verdicts on heads",
        x="values",
        y="statement",
        marks=("stack",),
        colour="verdict",
        columns=(),
        caption="How many findings of each statement have each verdict: one for each head, budget and ε.",
    ),
    Figure(
        "bounds",
        "Measured against bound",
        x="bound",
        y="measured",
        marks=("point",),
        rows="measured > 0 and bound > 0",
        points=(EACH,),
        colour="verdict",
        columns=("statement",),
        log=("bound", "measured"),
        shared="",
        guides=(Guide("equal", "measured = bound"),),
        caption="What was measured against the bound of the statement: a point for each head, budget and ε.",
    ),
    Figure(
        "dimension",
        "Statistical dimension against λ",
        x="epsilon",
        y="d_stat",
        marks=("band p10 p90", "line", "point"),
        rows=DIMENSION,
        colour="n",
        log=("epsilon", "d_stat"),
        several="epsilon",
        caption="Statistical dimension of the lifted kernel at λ = ε‖C‖, over heads and windows.",
    ),
    Figure(
        "tokens",
        "Statistical dimension and sufficient landmarks against n",
        x="n",
        y=("d_stat", "sufficient"),
        marks=("band p10 p90", "line", "point"),
        rows=DIMENSION,
        colour="epsilon",
        log=("n", "d_stat", "sufficient"),
        several="n",
        caption="Statistical dimension, and the landmarks that Theorem 2 requires, over heads and windows.",
    ),
    Figure(
        "failures",
        "Share of seeds with an error above ε",
        x="epsilon",
        y="rate",
        marks=("band median max", "line"),
        kind="failure",
        center="max",
        shade="d",
        columns=("of",),
        log=("epsilon",),
        caption="Share of seeds whose error is above ε: the median head, and the head with the largest share.",
    ),
    Figure(
        "collapse",
        "What attention leaves of V beyond rank one",
        x="layer",
        y=("measured", "bound"),
        marks=("band p10 p90", "line", "point"),
        rows="theorem == 'rank-collapse'",
        colour="theorem",
        columns=(),
        log=("measured", "bound"),
        several="layer",
        caption="Residual of BV over that of V, and its bound, layer by layer.",
    ),
)
