"""The columns of `error`'s tables of row metrics."""

from __future__ import annotations

from ...tables.methods import STATUS, best_of, statistic
from ...tables.numbers import significant
from ...tables.table import Column
from .columns import BUDGET, METHOD, statistic_cell
from .rows import ErrorRow


def _log_normaliser(row: ErrorRow) -> str:
    mean = significant(statistic(row, "log_normaliser_error", "mean"), 2)
    spread = significant(statistic(row, "log_normaliser_error_sd", "mean"), 2)
    return f"{mean} ± {spread}" if mean else ""


def _divergence(row: ErrorRow) -> str:
    """The mean divergence, with the number of heads that have one if not all do."""
    mean, count = significant(statistic(row, "kl", "mean"), 3), statistic(row, "kl", "count")
    return f"{mean} ({count} of {row['values']})" if count and count < row["values"] else mean


OVER_HEADS = "mean over rows and heads"
MASS = "the exact weight of the keys that the method uses"
ROW_COLUMNS: tuple[Column, ...] = (
    METHOD,
    BUDGET,
    Column(
        "mass",
        statistic_cell("mass", "mean"),
        MASS,
        more=f"{OVER_HEADS}; 1 minus it is the lost mass, which is the total variation of a renormalised selection",
    ),
    Column(
        "p10",
        statistic_cell("mass_p10", "mean"),
        "mass of the rows at the 10 % quantile",
        more="mean over heads",
    ),
    Column(
        "of best",
        statistic_cell("mass_efficiency", "mean"),
        "mass over the most that as many keys hold",
        spare=1,
        more="it separates the choice of keys from their number",
    ),
    Column("recall", statistic_cell("recall_k", "mean"), "share of the largest keys that are used", spare=4),
    Column("TV", statistic_cell("tv", "mean"), "total variation of the rows", spare=3, best=best_of("tv", "mean")),
    Column(
        "KL",
        _divergence,
        "of rows, in nats (heads that have it)",
        spare=6,
        more="a head has none if one of its rows has a negative weight",
    ),
    Column(
        "row error\np50",
        statistic_cell("row_error_p50", "mean"),
        "quantiles over rows of ‖o~ − o‖ / ‖o‖",
        short="p50",
        best=best_of("row_error_p50", "mean"),
    ),
    Column(
        "\np99",
        statistic_cell("row_error_p99", "mean"),
        "quantiles over rows of ‖o~ − o‖ / ‖o‖",
        best=best_of("row_error_p99", "mean"),
    ),
    Column("ln D~ / D\nmean ± s.d.", _log_normaliser, "bias and noise of the log normaliser", spare=5, short="ln D"),
    Column("keys", statistic_cell("keys", "mean"), "with a weight, mean", spare=2),
    Column("k 90", statistic_cell("k_90", "mean"), "the least keys with a mass of 0.9", spare=2),
    Column("needle", statistic_cell("needle_mass_kept", "mean"), "weight of the needle's keys", spare=2),
    STATUS,
)
