"""The figures of ``attnprobe stability``.

They read rows of kind ``step``, one for each seed and ``step`` of training: ``tau``, ``loss``, ``gradient_norm``, and
``cond``, the median condition number of the core that a method inverts, or of its own matrix.
"""

from __future__ import annotations

from ..figure import Figure

FIGURES = (
    Figure(
        "stability",
        "First steps of training",
        x="step",
        y=("tau", "loss", "gradient_norm", "cond"),
        marks=("band min max", "line"),
        kind="step",
        columns=("task", "d"),
        apart=("source", "weights", "scale_inputs", "n"),
        log=("tau", "cond"),
        yardsticks="method == 'softmax'",
        caption="Medians over seeds, with all seeds between the least and the largest.",
    ),
)
