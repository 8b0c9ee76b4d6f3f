"""The tables and figures of ``attnprobe error``: errors of heads, row metrics (``--rows``), kernels, inputs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from ...frame import Rows
from ...frame.rows import YARDSTICKS
from ...frame.summary import summary
from ..figure import Figure, Guide
from ..grid import plain
from ..table import BUDGET, KEY, METHOD, SOUND, Column, Table, ratio_to
from ..writers.text import number
from .inputs import repeated

ERROR = "output_spectral_relative"
PLACE = ("source", "scale_inputs", "n", "target")
MEASURED = "kernel_dtype.isna()"  # kernels of exact attention have a table of their own
PLAIN_MEAN = "method == 'vmean' and target == 'softmax'"
RIVALS = f"{SOUND} and method not in {sorted(YARDSTICKS)}"


def _notes(rows: Rows) -> list[str]:
    """Tokens that repeat others, and why methods have no matrix error."""
    found = repeated(rows)
    if "matrix_skipped" in rows:
        for why, group in rows.dropna(subset=["matrix_skipped"]).groupby("matrix_skipped", sort=False):
            found.append(f"no matrix error of {', '.join(group['name'].unique())}: {why}")
    return found


def _medians(rows: Rows) -> str:
    """The median errors of a method that is measured alone, beside V-Mean's; of several methods the best is named."""
    if not {"requested", ERROR} <= {*rows}:
        return ""  # nothing was measured
    names = rows[rows["requested"] & rows[ERROR].notna()]["name"].unique()
    # of several methods another sentence names the best, see `Shown._told`
    if len(names) != 1:
        return ""
    lines: Rows = summary(rows.query("status == 'ok'"), ["name", "d", "method", "target"], [ERROR])
    own = [_median(line) for line in lines[lines["name"] == names[0]].to_dict("records")]
    floor = [_median(line) for line in lines.query(PLAIN_MEAN).to_dict("records")]
    beside = f" The mean of V in place of attention: {floor[0]}." if floor and floor != own else ""
    return f"Median error of {names[0]}: {', '.join(own)}.{beside}"


def _median(line: Mapping[Hashable, Any]) -> str:
    d = "" if plain(line["d"]) is None else f" at d = {line['d']}"
    return f"{'≈' if line.get(f'{ERROR}.median.fragile') else ''}{number(line[f'{ERROR}.median'])}{d}"


HEADS = Table(
    "error",
    "Relative error of the output (0 is exact attention)",
    rows=f"{MEASURED} and not (method == 'lower-bound' and output_spectral == 0)",
    each=PLACE,
    by=("name", "d"),
    within=("layer",),
    metric=ERROR,
    main=f"{ERROR}.mean",
    of_best="mean error",
    rivals=("d",),
    competes=RIVALS,
    sentence=_medians,
    notes=_notes,
    columns=(
        METHOD,
        BUDGET,
        Column("median\n[p10 – p90]", f"{ERROR}.median", low=f"{ERROR}.p10", high=f"{ERROR}.p90", priority=8),
        Column("mean", f"{ERROR}.mean", best="smaller", priority=7),
        Column("max", f"{ERROR}.max", priority=4),
        Column(
            "median /\nV-Mean's",
            ratio_to(f"{ERROR}.median", PLAIN_MEAN),
            name="median_over_vmean",
            meaning="the median over that of V-Mean, which costs nothing: from 1 on a method is of no use",
            priority=6,
        ),
        Column(
            "matrix error\nmedian",
            "matrix_spectral_relative.median",
            flag="matrix_open.max",
            priority=3,
            tex=r"$\|E\|_2 / \|B\|_2$ median",
        ),
        Column("bad\nrows", "bad_rows.sum", digits=0, priority=5),
    ),
    more=(
        Column("family", "family", meaning="the family of the method"),
        Column("‖EV‖₂\nmean", "output_spectral.mean", half="output_spectral.half", digits=4),
        Column("‖EV‖_F / ‖BV‖_F\nmedian", "output_frobenius_relative.median"),
        Column("guarded\nrows", "guarded_rows.sum", digits=0),
        Column("inverse\nresidual", "inverse_residual.median", digits=2),
        Column("δ\nmedian", "delta.median", digits=2),
        Column("entries\nvisited", "visited_fraction.mean", unit="%"),
        Column("d used\n[p10 – p90]", "realised_d.mean", low="realised_d_p10.mean", high="realised_d_p90.mean"),
        Column("scored\na query", "scored.mean"),
        Column("keys\nread", "kv_read.mean"),
        Column("seconds", "seconds.mean"),
    ),
)
ROWS = Table(
    "rows",
    "Rows of attention, means over rows and heads",
    rows=f"{MEASURED} and tv == tv",
    each=PLACE,
    by=("name", "d"),
    within=("layer",),
    main="row_error_p50.mean",
    rivals=("d",),
    competes=RIVALS,
    columns=(
        METHOD,
        BUDGET,
        Column("mass\nkept", "mass.mean", priority=8),
        Column("over\nthe best", "mass_efficiency.mean", priority=4),
        Column("row error\np50", "row_error_p50.mean", best="smaller", priority=7),
        Column("row error\np99", "row_error_p99.mean", best="smaller", priority=6),
        Column("residual\nerror", "residual_error.mean", best="smaller", priority=6),
        Column("keys", "keys.mean", priority=3),
    ),
    more=(
        Column("mass\np10", "mass_p10.mean"),
        Column("recall", "recall_k.mean"),
        Column("½ Σ|E_ij|", "tv.mean", best="smaller"),
        Column("KL", "kl.mean"),
        Column("ln(D~ / D)", "log_normaliser_error.mean", half="log_normaliser_error_sd.mean", digits=2),
        Column("keys that\nhold 0.9", "k_90.mean"),
        Column("needle's\nmass kept", "needle_mass_kept.mean"),
    ),
)
KERNELS = Table(
    "kernels",
    "Kernels against exact attention in float64",
    rows="kernel_dtype.notna()",
    each=PLACE,
    by=("name", "kernel_dtype", "row_tolerance"),
    within=("layer",),
    beside="error",
    columns=(
        Column("kernel", "name", priority=KEY, meaning="the kernel of exact attention"),
        Column("in", "kernel_dtype", priority=KEY, meaning="the dtype that the kernel works in"),
        Column("max |error|", "max_abs.max", priority=8),
        Column("‖O~ − O‖_F / ‖O‖_F\nmedian", "relative_frobenius.median", priority=7),
        Column("rows\nwithin", "rows_within.mean", unit="%", priority=6),
        Column("× plain torch\nmedian", "ratio_to_framework.median", priority=8),
        Column("worst\nhead", "ratio_to_framework.max", priority=5),
    ),
    more=(
        Column("tolerance", "row_tolerance", meaning="the relative error that a row within may have"),
        Column("row error\np50", "row_error_p50.median"),
        Column("row error\np99", "row_error_p99.median"),
        Column("row error\np99.9", "row_error_p99_9.median"),
        Column("× plain torch\nFrobenius", "ratio_to_framework_frobenius.median"),
    ),
)
TITLE = "Errors of attention approximations"
TABLES = (HEADS, ROWS, KERNELS)
FIGURES = (
    Figure(
        "errors",
        "Error against the budget",
        x="d",
        y=ERROR,
        marks=("band p10 p90", "line", "point", "tick max"),
        columns=("layer",),
        log=("d", ERROR),
        rows="requested",
        yardsticks="method == 'vmean'",
        caption="Relative error of the output against the budget d, over heads, windows and repeats.",
    ),
    Figure(
        "ranking",
        "Error of each method, best first",
        x=ERROR,
        y="name",
        marks=("bar p10 p90", "point", "tick max"),
        shade="d",
        columns=("layer",),
        log=(ERROR,),
        rows="requested",
        yardsticks="method == 'vmean'",
        best_first=True,
        caption="Relative error of the output at each budget, over heads, windows and repeats.",
    ),
    Figure(
        "heads",
        "Error head by head",
        x="head",
        y="name",
        value=ERROR,
        marks=("cell",),
        lines=("layer",),
        columns=("d",),
        log=(ERROR,),
        rows="requested or method == 'vmean'",
        best_first=True,
        nothing="no requested method has an error to draw; the notes below the table say why",
        caption="Relative error of the output of each head: mean over windows and repeats.",
    ),
    Figure(
        "cost",
        "Error against entries visited",
        x="visited_fraction",
        y=ERROR,
        marks=("line", "point"),
        points=("d",),
        size="d",
        columns=(),
        log=("visited_fraction", ERROR),
        rows="requested",
        yardsticks="method == 'vmean'",
        guides=(Guide("x", "exact attention", 1.0),),
        caption="Relative error of the output against the share of the matrix's entries that a method visits: medians.",
    ),
    Figure(
        "read",
        "Error against keys read",
        x="kv_read",
        y=ERROR,
        marks=("line", "point"),
        points=("d",),
        size="d",
        columns=(),
        log=("kv_read", ERROR),
        rows="requested",
        yardsticks="method == 'vmean'",
        caption="Relative error of the output against the keys that a query reads: medians over heads and layers.",
    ),
    Figure(
        "positions",
        "Errors of rows over position",
        x="position",
        y=("row_error", "tv", "mass"),
        nothing="no requested method has row metrics; measure them with --rows",
        marks=("line", "point"),
        kind="position",
        rows="requested",
        columns=("d",),
        lines=("layer",),
        log=("position", "row_error", "tv"),
        caption="Error of a row, its total variation and the mass that it keeps, by the keys that it sees: medians.",
    ),
    Figure(
        "maps",
        "Exact and approximate attention",
        x="column",
        y="row",
        value="weight",
        marks=("cell",),
        kind="map",
        columns=("name", "d"),
        lines=("source", "n", "layer", "head"),
        log=("weight",),
        spaced=("row", "column"),
        square=True,
        nothing="no requested method has a matrix to draw",
        caption="Means of blocks of the matrix: queries run downward, keys to the right.",
    ),
    Figure(
        "papers",
        "Error of the output against the values of a paper",
        x="d",
        y="output_spectral",
        marks=("bar low95 high95", "line", "point"),
        columns=("layer",),
        log=("d", "output_spectral"),
        rows="requested",
        yardsticks="method == 'vmean'",
        center="mean",
        overlaid=True,
        nothing="no values of papers to draw; add them with --reference FILE.csv",
        caption="Error of the output against d, means with 95 % intervals, beside the values of a paper.",
    ),
)
