"""The figures of ``attnprobe condition``.

They read rows of kind ``matrix``, one for each ``matrix`` of a head: its condition number ``cond``, infinite if it is
singular, whether the method has ``inverted`` it, and the method's
``output_spectral_relative``. Rows of kind ``iteration`` have the
``residual`` of the Schulz iteration on it at each ``iteration``.
"""

from __future__ import annotations

from ..figure import EACH, Figure, Guide

ERROR = "output_spectral_relative"
NOT_INVERTED = {"inverted == False and method.notna()": "hollow: not inverted by the method"}

FIGURES = (
    Figure(
        "conditions",
        "Condition numbers, head by head",
        x="cond",
        y="matrix",
        marks=("point", "tick median"),
        kind="matrix",
        points=(EACH,),
        columns=("d",),
        lines=("layer",),
        log=("cond",),
        flags=NOT_INVERTED,
        caption="Condition number of each matrix: a point for each head and window. Singular matrices are counted.",
    ),
    Figure(
        "condition-errors",
        "Condition of the inverted core against the error",
        x="cond",
        y=ERROR,
        marks=("point",),
        kind="matrix",
        rows="inverted",
        points=(EACH,),
        columns=("layer", "d"),
        log=("cond", ERROR),
        note="correlation",
        caption="Condition number of the core that a method inverts against its error: a point for each head.",
    ),
    Figure(
        "iterations",
        "Residual of the Schulz iteration",
        x="iteration",
        y="residual",
        marks=("band p10 p90", "line", "point"),
        kind="iteration",
        rows="inverted",
        columns=("d",),
        lines=("layer",),
        log=("residual",),
        guides=(Guide("x", "the six steps that methods take", 6.0),),
        caption="Residual of the iteration on the core that a method inverts, over heads and windows.",
    ),
)
