"""The columns of `error`'s tables: of methods, of kernels and of row metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...tables.long import Row
from ...tables.methods import (
    FAMILY,
    STATUS,
    budget_used,
    label,
    marked,
    reach,
    several_families,
    smallest,
    statistic,
)
from ...tables.numbers import OPEN, cell_text, is_fragile, method_label, significant
from ...tables.table import Column


def _matrix(row: Row) -> str:
    if row.get("matrix_skipped"):
        return "–"
    median = cell_text(["{metrics[matrix_spectral_relative][median]:3}"], row)
    return OPEN + median if is_open(row) and not median.startswith(OPEN) else median


def is_open(row: Row) -> bool:
    """Whether an interval of a matrix error did not close."""
    known = statistic(row, "matrix_spectral_relative", "median") is not None
    return known and bool(row.get("matrix_open")) and not row.get("matrix_skipped")


def _over_vmean(row: Row) -> str:
    ratio = significant(row.get("median_over_vmean"), 3)
    return OPEN + ratio if ratio and is_fragile(row, RELATIVE, "median") else ratio


def _sum(row: Row, metric: str) -> int:
    statistics = row["metrics"][metric]
    return round(statistics["mean"] * statistics["count"])


def _bad_rows(row: Row) -> str:
    return "" if statistic(row, "bad_rows", "mean") is None else str(_sum(row, "bad_rows"))


def _guarded_rows(row: Row) -> str:
    return str(_sum(row, "guarded_rows")) if statistic(row, "guarded_rows", "mean") else ""


SPREAD = "over heads, windows, repeats"
RELATIVE = "output_spectral_relative"
OF_OUTPUT = "of the relative error of the output, ‖E‖₂ / ‖BV‖₂"
MEAN = smallest(RELATIVE)


def _mean_error(row: Row) -> str:
    half = reach(row, "output_spectral")
    return cell_text(["{metrics[output_spectral][mean]:4}"], row) + (half and f" ± {half}")


METHOD = Column("method", lambda row: marked(row, label(row)), key=True)
BUDGET = Column("d\n(used)", budget_used, "budget (mean of what was used)", short="d", key=True)
METHOD_COLUMNS = (
    METHOD,
    FAMILY,
    Column(
        "scores\ntimes",
        "{scale_inputs:g}",
        "the factor s of --scale-inputs",
        spare=9,
        more="Q and K are each times √s",
        key=True,
    ),
    BUDGET,
    Column(
        "‖E‖₂\nmean ± 95 %",
        _mean_error,
        "the spectral norm of the output's error",
        spare=9,
        short="‖E‖₂",
        more="E is the exact minus the approximate output of a head; 95 % by Student's test of windows",
        best=smallest("output_spectral"),
    ),
    Column(
        "‖E‖₂ / ‖BV‖₂\nmedian [p10 – p90]",
        "{metrics[output_spectral_relative][median]:3} "
        "[{metrics[output_spectral_relative][p10]:2} – {metrics[output_spectral_relative][p90]:2}]",
        SPREAD,
        short="median",
        more=OF_OUTPUT,
    ),
    Column("\nmean", "{metrics[output_spectral_relative][mean]:3}", SPREAD, more=OF_OUTPUT, best=MEAN),
    Column("\nmax", "{metrics[output_spectral_relative][max]:3}", SPREAD, more=OF_OUTPUT),
    Column(
        "‖E‖F / ‖BV‖F\nmedian",
        "{metrics[output_frobenius_relative][median]:3}",
        "‖E‖F / ‖BV‖F, median",
        spare=5,
        short="Frobenius",
        more="the same error in the Frobenius norm",
    ),
    Column(
        "‖B − B~‖₂\n/ ‖B‖₂ median",
        _matrix,
        "‖B − B~‖₂ / ‖B‖₂ of whole matrices",
        spare=3,
        short="matrix",
        more="a certified interval's upper end; in half precision of the stored factors, in float32",
    ),
    Column(
        "median /\nV-Mean's",
        _over_vmean,
        "1 is no better than the mean of V",
        more="the method's median over that of V-Mean, which replaces attention by the mean of V and costs nothing",
    ),
    Column(
        "bad\nrows",
        _bad_rows,
        "rows whose sum of weights is ≤ 0 or lost to rounding",
        more="before a guard, summed over heads, windows and repeats",
    ),
    Column("guarded\nrows", _guarded_rows, "replaced by the method", spare=1, more="summed as bad rows are"),
    Column(
        "inverse\nresidual",
        "{metrics[inverse_residual][median]:2}",
        "‖I − NZ‖_F/√d of core N, inverse Z",
        spare=6,
        more="median; repeated landmarks count",
    ),
    Column(
        "δ\nmedian (max)",
        "{metrics[delta][median]:2} ({metrics[delta][max]:2})",
        "the spectral shift of a head",
        spare=6,
        short="δ",
    ),
    Column(
        "visited\nof n_q·n_k",
        "{metrics[visited_fraction][mean]:share}",
        "scores or features of the output, over queries times keys",
        spare=6,
        short="visited",
        more="above 1 with 2 d n features from d = n/2 on",
    ),
    Column(
        "used\np10 – p90",
        "{metrics[realised_d_p10][mean]:3} – {metrics[realised_d_p90][mean]:3}",
        "quantiles over rows of the keys that a row has",
        spare=8,
        short="used",
        more="pages, blocks and thresholds do not hit d; means over heads, windows and repeats",
    ),
    Column(
        "scored\na row",
        "{metrics[scored][mean]:3}",
        "scores computed to choose the keys of a row",
        spare=7,
        short="scored",
        more="a score is an inner product of p numbers",
    ),
    Column(
        "keys\nread",
        "{metrics[kv_read][mean]:3}",
        "rows of K and V loaded for a query",
        spare=7,
        short="keys read",
        more="by the query heads of a KV head together: the union of their keys",
    ),
    STATUS,
)


def _one_minus_cosine(row: Row) -> str:
    """One minus the mean cosine. The digits of a cosine near 1 are all nines."""
    mean = statistic(row, "cosine", "mean")
    return "" if mean is None else significant(max(1 - mean, 0.0), 2)


def _within(row: Row) -> str:
    mean, tolerance = statistic(row, "rows_within", "mean"), row.get("row_tolerance")
    return "" if mean is None else f"{100 * mean:.2f} % ({tolerance:g})"


ROWS = "quantiles over rows of ‖E_i‖ / ‖O_i‖"
FRAMEWORK = "max |E| over eager attention's"
EAGER = "eager softmax attention in the kernel's dtype; median and worst head"
KERNEL_COLUMNS = (
    Column(
        "kernel",
        method_label,
        "E = O~ − O, of O in float64",
        more="O is the exact output of Q, K and V rounded to the kernel's dtype; medians unless said otherwise",
        key=True,
    ),
    Column("in", "{kernel_dtype}", "the dtype that the kernel works in", spare=1, key=True),
    Column("1 − cosine", _one_minus_cosine, "mean over heads", spare=6),
    Column("max |E|", "{metrics[max_abs][max]:3}", "over all heads"),
    Column("‖E‖F / ‖O‖F", "{metrics[relative_frobenius][median]:3}", "median over heads"),
    Column("row p50", "{metrics[row_error_p50][median]:3}", ROWS, spare=3),
    Column("row p99", "{metrics[row_error_p99][median]:3}", ROWS, spare=5),
    Column("row p99.9", "{metrics[row_error_p99_9][median]:3}", ROWS, spare=2),
    Column("rows within", _within, "share within the tolerance"),
    Column("× framework", "{metrics[ratio_to_framework][median]:3}", FRAMEWORK, more=EAGER),
    Column("worst", "{metrics[ratio_to_framework][max]:3}", FRAMEWORK, more=EAGER),
    Column("× framework F", "{metrics[ratio_to_framework_frobenius][median]:3}", "the same of ‖E‖F", spare=4),
)


def _divergence(row: Row) -> str:
    """The mean divergence, with the number of heads that have one if not all do."""
    mean, count = significant(statistic(row, "kl", "mean"), 3), statistic(row, "kl", "count")
    return f"{mean} ({count} of {row['values']})" if count and count < row["values"] else mean


OVER_HEADS = "mean over rows and heads"
MASS = "the exact weight of the keys that the method uses"
ROW_COLUMNS = (
    METHOD,
    BUDGET,
    Column(
        "mass",
        "{metrics[mass][mean]:3}",
        MASS,
        more=f"{OVER_HEADS}; 1 minus it is the lost mass, which is the total variation of a renormalised selection",
    ),
    Column("p10", "{metrics[mass_p10][mean]:3}", "mass of the rows at the 10 % quantile", more="mean over heads"),
    Column(
        "of best",
        "{metrics[mass_efficiency][mean]:3}",
        "mass over the most that as many keys hold",
        spare=1,
        more="it separates the choice of keys from their number",
    ),
    Column("recall", "{metrics[recall_k][mean]:3}", "share of the largest keys that are used", spare=4),
    Column(
        "½ Σ|B~ − B|",
        "{metrics[tv][mean]:3}",
        "of a row",
        spare=3,
        short="TV",
        more="the total variation if no weight is negative; else it may exceed 1",
        best=smallest("tv"),
    ),
    Column(
        "KL",
        _divergence,
        "of rows, in nats (heads that have it)",
        spare=6,
        more="a head has none if one of its rows has a negative weight",
    ),
    Column(
        "row error\np50",
        "{metrics[row_error_p50][mean]:3}",
        "quantiles over rows of ‖o~ − o‖ / ‖o‖",
        short="p50",
        best=smallest("row_error_p50"),
    ),
    Column(
        "\np99",
        "{metrics[row_error_p99][mean]:3}",
        "quantiles over rows of ‖o~ − o‖ / ‖o‖",
        best=smallest("row_error_p99"),
    ),
    Column(
        "residual\nerror",
        "{metrics[residual_error][mean]:3}",
        "size of a head's error beside the residual stream",
        short="residual",
        more="mean over rows of r² / (1 + r²) with r = ‖W_O,h (o~ − o)‖ / ‖x + y‖; only of a model",
        best=smallest("residual_error"),
    ),
    Column(
        "ln D~ / D\nmean ± s.d.",
        ("{metrics[log_normaliser_error][mean]:2}", " ± {metrics[log_normaliser_error_sd][mean]:2}"),
        "bias and noise of the log normaliser",
        spare=5,
        short="ln D",
    ),
    Column("keys", "{metrics[keys][mean]:3}", "keys of a row with a weight, mean", spare=2),
    Column("k 90", "{metrics[k_90][mean]:3}", "the least keys with a mass of 0.9", spare=2),
    Column("needle", "{metrics[needle_mass_kept][mean]:3}", "weight of the needle's keys", spare=2),
    STATUS,
)
COLUMNS = tuple(dict.fromkeys((*METHOD_COLUMNS, *KERNEL_COLUMNS, *ROW_COLUMNS)))


def error_columns(rows: Sequence[Row]) -> list[Column]:
    """The columns that tables may have. Those of families and factors need several of them."""
    scaled = any(row.get("scale_inputs", 1) != 1 for row in rows)
    absent = [*([] if several_families(rows) else ["family"]), *([] if scaled else ["scores times"])]
    columns = [column for column in METHOD_COLUMNS if column.title not in absent]
    if any(statistic(row, "output_spectral", "se") is not None for row in rows):
        return columns
    return [replace(one, heading="‖E‖₂\nmean") if one.name == "‖E‖₂" else one for one in columns]


def row_columns(rows: Sequence[Row]) -> list[Column]:
    """The columns of row metrics.

    The rows of a renormalised selection have the total variation ``1 - mass`` and the divergence ``-ln mass``. If that
    is true of every method, both are left out.
    """
    known = [(statistic(row, "tv", "mean"), statistic(row, "mass", "mean")) for row in rows]
    said = all(tv is None or mass is None or abs(tv + mass - 1) < 1e-6 for tv, mass in known)
    return [column for column in ROW_COLUMNS if not (said and column.name in ("TV", "KL"))]
