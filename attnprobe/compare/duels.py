"""Which of two methods is better, in a sentence for each table of `error`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..errors import UsageError
from ..tables.labels import identity, source_labels
from ..tables.numbers import method_label
from ..tables.rows import AnyRow
from ..tables.table import gathered
from .runs import compare_runs
from .view import pair_line

METRIC = "output_spectral_relative"


def duels(records: Sequence[AnyRow]) -> dict[tuple[Any, ...], str]:
    """A sentence for each (source, layer, n, target) where exactly two requested methods share budgets.

    It compares their mean relative errors, the second method's with the first's (see `compare_runs`).
    """
    labels = source_labels(records)

    def place(record: AnyRow) -> tuple[Any, ...]:
        return labels[identity(record["source"])], record["layer"], record["n"], record["target"]

    lines: dict[tuple[Any, ...], str] = {}
    for group in gathered([one for one in records if one.get("requested") and one.get("d") is not None], place):
        budgets: dict[str, set[int]] = {}
        for record in group:
            budgets.setdefault(method_label(record), set()).add(record["d"])
        if len(budgets) == 2 and set.intersection(*budgets.values()):
            with suppress(UsageError):  # methods that a pair cannot tell apart
                lines[place(group[0])] = pair_line(
                    compare_runs(group, group, [METRIC], pairs=["=".join(budgets)]).compared
                )
    return lines
