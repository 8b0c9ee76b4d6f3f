"""The figures of ``attnprobe audit``.

They read rows of kind ``head``, one for each head, ``quantity``, ``epsilon`` and ``delta``: ``worst``, the share of
repeats whose error exceeds ε, its interval from ``lower`` to ``upper``, and the ``verdict``.
"""

from __future__ import annotations

from ..figure import EACH, Figure, Guide

FIGURES = (
    Figure(
        "calibration",
        "Share of errors above ε, measured against promised",
        x="epsilon",
        y="worst",
        marks=("bar lower upper", "point"),
        points=(EACH,),
        colour="verdict",
        columns=("quantity",),
        lines=("name", "d", "delta"),
        spaced=("epsilon",),
        guides=(Guide("level", "promised δ", "delta"),),
        caption="Share of repeats with an error above ε, a point for each head, with its simultaneous interval.",
    ),
)
