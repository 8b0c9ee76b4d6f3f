"""The figures of ``attnprobe inject``.

They read rows of kind ``head``, one for each cell, whose ``layer`` is missing where all layers are replaced: ``drift``,
``local_error``, ``kl``, ``loss_change``, ``read_bytes``. Rows of kind ``step`` have ``kl_so_far``, the mean divergence
of decoding up to each ``step``, which is the position of its token.
"""

from __future__ import annotations

from ..figure import Figure

FIGURES = (
    Figure(
        "inject-layers",
        "Drift of each layer alone",
        x="layer",
        y="drift",
        marks=("line", "point"),
        rows="method != 'softmax'",
        columns=("d",),
        log=("drift",),
        spaced=("layer",),
        several="layer",
        center="mean",
        caption="Drift of the last hidden states where one layer is replaced, and where all are: means.",
    ),
    Figure(
        "inject-local",
        "Local error against drift",
        x="local_error",
        y="drift",
        marks=("point",),
        rows="layer.notna() and method != 'softmax'",
        points=("layer",),
        columns=("d",),
        log=("local_error", "drift"),
        center="mean",
        note="correlation",
        caption="Error of the layer that is replaced against the drift that it causes: a point for each layer, means.",
    ),
    Figure(
        "inject-bytes",
        "Divergence and loss against bytes read",
        x="read_bytes",
        y=("kl", "loss_change"),
        marks=("bar p10 p90", "line", "point"),
        rows="layer.isna() and method != 'softmax'",
        points=("d",),
        size="d",
        log=("read_bytes", "kl"),
        center="mean",
        caption="Divergence of predictions, and change of the loss, against the bytes that a step reads: means.",
    ),
    Figure(
        "inject-steps",
        "Divergence of decoding so far",
        x="step",
        y="kl_so_far",
        marks=("line",),
        kind="step",
        rows="layer.isna() and method != 'softmax'",
        columns=("d",),
        log=("kl_so_far",),
        center="mean",
        caption="Mean divergence of the predictions up to each step of decoding, over windows and repeats.",
    ),
)
