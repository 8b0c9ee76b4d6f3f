"""The table of the statistics of Q, K and V, and a note on them, for every command that reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..table import KEY, Column, Table

if TYPE_CHECKING:
    from pandas import DataFrame

LAYER = Column("layer", "layer", priority=KEY, meaning="the layer of the model")
INPUTS = Table(
    "inputs",
    "Q, K and V before any method, medians of heads",
    kind="inputs",
    each=("source", "n"),
    by=("layer",),
    columns=(
        LAYER,
        Column("score\ns.d.", "score_std.median"),
        Column("max\n|score|", "score_max.median"),
        Column("entropy\nnats", "entropy.median"),
        Column("of\nuniform", "entropy_share.median", unit="%"),
        Column("first\ntoken", "sink_first.median", unit="%"),
        Column("top\ntoken", "sink_most.median", unit="%"),
        Column("stable rank\nof B", "stable_rank.median"),
    ),
    more=(
        *(Column(f"stable rank\nof {x.upper()}", f"{x}_stable_rank.median") for x in "qkv"),
        *(Column(f"mean\n‖{x}‖", f"{x}_norm_mean.median") for x in "qkv"),
        *(Column(f"max\n‖{x}‖", f"{x}_norm_max.median") for x in "qkv"),
        *(Column(f"max / median\n‖{x}‖", f"{x}_norm_ratio.median") for x in "qkv"),
    ),
)

TITLE = "Statistics of Q, K and V"
TABLES = (INPUTS,)


def repeated(rows: DataFrame) -> list[str]:
    """A note on tokens with the same Q, K and V, which make landmarks equal and cores singular."""
    counts = [int(count) for count in rows["duplicates"].dropna()] if "duplicates" in rows else []
    return [f"{max(counts)} tokens repeat another token's Q, K and V"] if any(counts) else []
