"""The figures of ``attnprobe budget``.

They read rows of kind ``head``, one for each head and ``epsilon``: ``found``, the smallest d, missing where no d is
enough, and ``fails``, whether the error exceeds ε again at a larger d.
"""

from __future__ import annotations

from ..figure import Figure

FIGURES = (
    Figure(
        "budget",
        "The smallest d of each head",
        x="head",
        y="layer",
        value="found",
        marks=("cell", "number"),
        columns=("epsilon",),
        lines=("name",),
        log=("found",),
        spaced=("head", "layer"),
        flags={"fails": "ring: above ε again at a larger d"},
        center="max",
        caption="The smallest d with which the error is at most ε: the largest over windows. Grey: no d is enough.",
    ),
)
