"""The table of a paper's values beside the measured ones."""

from __future__ import annotations

from typing import Any

from ..table import BUDGET, KEY, METHOD, Column, Computed, Table

ERROR = "output_spectral"


def _ratio(lines: Any) -> Any:
    """The measured mean over the paper's value; none of a value of 0."""
    return lines[f"{ERROR}.mean"] / lines["paper"].replace(0, None)  # without a value of 0, which has no ratio


PAPERS = Table(
    "papers",
    "Error of the output beside the values of a paper",
    each=("source", "n"),
    by=("init", "weights", "name", "d", "paper", "uncertainty"),
    columns=(
        Column("its\nweights", "init", priority=KEY, meaning="what the paper calls its weights"),
        METHOD,
        BUDGET,
        Column("error\nmean ± 95 %", f"{ERROR}.mean", half=f"{ERROR}.half", priority=8),
        Column(
            "paper's", "paper", half="uncertainty", priority=8, meaning="its value ± what reading the figure may miss"
        ),
        Column(
            "error /\npaper's",
            Computed((f"{ERROR}.mean", "paper"), _ratio),
            name="ratio",
            meaning="the measured mean over the paper's value",
            priority=7,
        ),
    ),
)
TITLE = "Values of papers"
TABLES = (PAPERS,)
