"""The figures of ``attnprobe bench``.

They read rows of kind ``time``, one for each cell and round, with ``seconds``, and rows of kind ``head``, one for each
cell, with ``seconds``, ``peak_bytes``, ``flops``, ``kv_read`` and errors. Exact attention has rows of its own, which
are a reference and have no d.
"""

from __future__ import annotations

from ..figure import Figure

ERROR = "output_spectral_relative"
EXACT = "method == 'exact' or method == 'vmean' and not requested"
VMEAN = "method == 'vmean' and not requested"

FIGURES = (
    Figure(
        "bench-time",
        "Time against n",
        x="n",
        y="seconds",
        marks=("bar p10 p90", "line", "point"),
        kind="time",
        columns=("layer", "d"),
        log=("n", "seconds"),
        yardsticks=EXACT,
        note="exponent",
        several="n",
        caption="Time of a method against n over rounds, with the exponent of its growth.",
    ),
    Figure(
        "bench-memory",
        "Peak memory against n",
        x="n",
        y="peak_bytes",
        marks=("line", "point"),
        columns=("layer", "d"),
        log=("n", "peak_bytes"),
        yardsticks=EXACT,
        note="exponent",
        several="n",
        caption="Peak memory beyond Q, K and V against n, with the exponent of its growth.",
    ),
    *(
        Figure(
            f"bench-pareto{name}",
            f"Error against {words}",
            x=cost,
            y=ERROR,
            marks=("line", "point"),
            points=("d",),
            size="d",
            columns=("layer",),
            log=(cost, ERROR),
            yardsticks=VMEAN,
            caption=f"Relative error of the output against {words}: medians.",
        )
        for name, cost, words in (
            ("", "seconds", "time"),
            ("-memory", "peak_bytes", "memory"),
            ("-products", "flops", "matrix products"),
            ("-read", "kv_read", "keys read"),
        )
    ),
)
