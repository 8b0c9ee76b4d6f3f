"""The best method at each budget, and the test that tells it from the others: the sentence above a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..files import Fields
from ..frame.metric import ROUNDING
from ..grammar.lists import options_of
from ..tables.duels import unproven

if TYPE_CHECKING:
    from pandas import DataFrame

Tested = Callable[[str, Sequence[tuple[Fields, Fields]]], Sequence[Fields | None]]  # see `Contest`
OF_THE_BEST = {"worse": "better", "better": "worse"}  # of the verdict on the other method
PLACE = ("source", "n", "target", "layer", "layers", "prefix", "d")
TEST = ("statistic", "test", "freedom", "p", "p_adjusted", "tests")


@dataclass(frozen=True)
class Best:
    """Names the best methods of tables, by the test of a `Contest`."""

    tested: Tested

    def methods(self, lines: DataFrame, table: Any) -> list[dict[str, Any]]:
        """The method with the best mean of a table's main metric at each place and budget, against the next one.

        Lines compete as for bold cells; a mean that rounding decides does not. The p-values of a place, of the best at
        each budget against every other method there, are corrected together. Two errors of rounding are not compared.

        Args:
            lines: of the table, as `attnprobe.show.grid.summarised` gives them. table: a `attnprobe.show.table.Table`.
        """
        metric, mean = table.metric, f"{table.metric}.mean"
        if mean not in lines:
            return []
        fragile = f"{mean}.fragile"
        sound = lines.query(table.competes)
        sound = sound[~sound[fragile].astype(bool)] if fragile in sound else sound
        sound = sound[sound[mean].notna() & sound["d"].notna()].sort_values(mean, kind="stable")
        found = []
        for _, place in sound.groupby([*table.each], sort=False, dropna=False):
            rivals = [name for name in ("layer", *table.rivals) if name in place]
            groups = [_rows(group, mean) for _, group in place.groupby(rivals, dropna=False)]
            compared = iter(self.tested(metric, [(group[0], other) for group in groups for other in group[1:]]))
            for first, *others in groups:
                judged = [next(compared) for _ in others]
                known = judged and judged[0] is not None and judged[0]["difference"] is not None
                if known and judged[0]["b"] > ROUNDING:
                    at = {name: first[name] for name in PLACE}
                    doubts = sorted({name for row in judged if row for name in row.get("unknown_draws") or ()})
                    found.append(
                        {**at, "metric": metric, **_duel(first, others[0], judged[0]), "unknown_draws": doubts}
                    )
        return found

    @staticmethod
    def sentence(best: Sequence[Fields], title: str) -> str:
        """See `best_in_words`."""
        return best_in_words(best, title)

    @staticmethod
    def doubts(best: Sequence[Fields]) -> list[str]:
        """See `attnprobe.tables.duels.unproven`."""
        return unproven(best)


def best_in_words(best: Sequence[Fields], title: str) -> str:
    """The best method at each budget of one place, in one line; empty without any.

    >>> duel = {"method": "a", "options": {}, "next": {"method": "b", "options": {}}, "verdict": "better"}
    >>> duel |= {"d": 8, "value": 0.25, "p_adjusted": 0.01, "test": "pairs", "freedom": None}
    >>> best_in_words([duel], "mean error")
    'Smallest mean error: a at d = 8 (better than b, p = 0.01 by heads).'
    """
    parts = []
    for duel in best:
        p = "" if duel["p_adjusted"] is None else f", p = {duel['p_adjusted']:.2g} by {_test(duel)}"
        told = f"{TOLD.get(duel['verdict'], 'not told apart from')} {_label(duel['next'])}{p}"
        parts.append(f"{_label(duel)} at d = {duel['d']} ({told})")
    return f"Smallest {title}: {'; '.join(parts)}." if parts else ""


TOLD = {"better": "better than", "same": "as good as"}


def _test(duel: Fields) -> str:
    return {"pairs": "heads"}.get(duel["test"], duel["test"] or "")


def _label(side: Fields) -> str:
    options = ",".join(f"{name}={value}" for name, value in side["options"].items())
    return f"{side['method']}:{options}" if options else side["method"]


def _rows(lines: DataFrame, mean: str) -> list[dict[str, Any]]:
    """Lines as rows that a `Contest` takes."""
    rows = []
    for line in lines.to_dict("records"):
        known = {str(name): value.item() if hasattr(value, "item") else value for name, value in line.items()}
        place = {name: None if _missing(known.get(name)) else known.get(name) for name in PLACE}
        options = (known["name"] or "").removeprefix(known["method"]).removeprefix(":")
        rows.append({**place, "method": known["method"], "options": options_of(options), "value": known[mean]})
    return rows


def _missing(value: Any) -> bool:
    return value is None or value == "" or str(value) == "<NA>" or (isinstance(value, float) and math.isnan(value))


def _duel(first: Fields, other: Fields, compared: Fields) -> dict[str, Any]:
    """The comparison of another method with the best one, as one of the best with it."""
    low, high = (None if (end := compared[name]) is None else -end for name in ("high", "low"))
    return {
        **{name: first[name] for name in ("method", "options")},
        "value": compared["a"],
        "next": {**{name: other[name] for name in ("method", "options")}, "value": compared["b"]},
        "verdict": OF_THE_BEST.get(compared["verdict"], compared["verdict"]),
        "difference": -compared["difference"],
        "low": low,
        "high": high,
        **{name: compared[name] for name in TEST},
    }
