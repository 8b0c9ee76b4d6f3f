"""The names of methods and quantities in tables and figures of ``attnprobe stability``, and the paper's ratios."""

from __future__ import annotations

from ...tables.numbers import method_label
from ...tables.rows import Named

SELF_ATTENTION = "softmax"
TASKS = ("text", "listops", "retrieval", "pathfinder", "image")
# Chen et al. 2021 (Skyformer), appendix F: mean instability over that of self-attention
PAPER: dict[str, dict[str, float]] = {
    name: dict(zip(TASKS, values, strict=True))
    for name, values in {
        SELF_ATTENTION: (1.0,) * 5,
        "nystromformer": (1.03, 1.01, 0.97, 0.99, 1.02),
        "kernelized": (0.83, 0.77, 0.64, 0.74, 0.62),
        "skyformer": (0.81, 0.79, 0.64, 0.79, 0.65),
    }.items()
}


def stability_label(row: Named) -> str:
    """The method in the form of the command line; softmax attention by its name in the paper."""
    return "self-attention" if row["method"] == SELF_ATTENTION and not row["options"] else method_label(row)
