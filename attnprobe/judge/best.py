"""The best method at each budget against the next one, by the test of `compare`: the sentence above a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..files import Fields
from ..frame import Rows
from ..frame.metric import ROUNDING
from ..frame.read import found_by
from ..show.grid import line_keys, plain
from ..show.table import Table
from .chance import LEVEL
from .compare import TOLERANCE, doubts_of_draws, drafts_of, judged, ready
from .runs import with_draws
from .samples import paired

FROM_BEST = {"worse": "better", "better": "worse"}  # the verdict on the best method, by that on the other method
TOLD = {"better": "better than", "same": "as good as"}
# the fields of a duel: where it is, and its test
PLACE = ("source", "n", "target", "layer", "layers", "prefix", "d")
TEST = ("statistic", "test", "freedom", "p", "p_adjusted", "tests")


@dataclass(frozen=True)
class Best:
    """Names the best methods in the tables of a run.

    Attributes:
        cells: of the run. whole: whether a cell measures the whole model, so that a cell is one value.
    """

    cells: Sequence[Fields]
    whole: bool = False

    def methods(self, rows: Rows, lines: Rows, table: Table, each: Sequence[str]) -> list[dict[str, Any]]:
        """The method with the best mean of a table's main metric at each place and budget, against the next one.

        Lines compete as for bold cells, but without those whose mean rounding decides. At a place, the best method of
        each budget is tested against every other method at this budget, and all these p-values are corrected together.
        Two errors of rounding are not compared.

        Args:
            rows: that the table selects. lines: their summary. each: further columns that tell lines apart.
        """
        mean = f"{table.metric}.mean"
        if mean not in lines:
            return []
        fragile = f"{mean}.fragile"
        sound = found_by(lines, table.competes)
        sound = sound[~sound[fragile].astype(bool)] if fragile in sound else sound
        sound = sound[sound[mean].notna() & sound["d"].notna()].sort_values(mean, kind="stable")
        if sound.empty:
            return []
        keys = line_keys(rows, table, each)
        rows_of_line = self._of_lines(rows, keys)
        duels = []
        for _, lines_here in sound.groupby([*table.each, *each], sort=False, dropna=False):
            rivals = [name for name in ("layer", *table.rivals) if name in lines_here]
            budgets = [group for _, group in lines_here.groupby(rivals, dropna=False)]  # each sorted, the best first
            duels += _duels(budgets, rows_of_line, keys, table.metric)
        return duels

    def _of_lines(self, rows: Rows, keys: Sequence[str]) -> dict[tuple[Any, ...], Rows]:
        """The rows of each line, as `compare` takes them, by the line's values of ``keys``."""
        rows = rows.assign(of_line=rows.groupby(keys, sort=False, dropna=False).ngroup())
        prepared = ready(with_draws(rows, self.cells, self.whole), "layer" not in keys)
        names = {line["of_line"]: _key(line, keys) for line in rows.drop_duplicates("of_line").to_dict("records")}
        return {names[number]: group for number, group in prepared.groupby("of_line", sort=False)}

    @staticmethod
    def sentence(best: Sequence[Fields], title: str) -> str:
        """The best method at each budget of one place, in one line; empty without any.

        >>> duel = {"name": "a", "next": "b", "verdict": "better", "d": 8, "p_adjusted": 0.01, "test": "heads"}
        >>> Best.sentence([duel], "mean error")
        'Smallest mean error: a at d = 8 (better than b, p = 0.01 over heads).'
        """
        budgets: dict[tuple[str, str], list[str]] = {}
        for duel in best:
            p = "" if duel["p_adjusted"] is None else f", p = {duel['p_adjusted']:.2g} over {duel['test']}"
            told = f"{TOLD.get(duel['verdict'], 'not shown better than')} {duel['next']}{p}"
            budgets.setdefault((duel["name"], told), []).append(str(duel["d"]))
        parts = [f"{name} at d = {', '.join(d)} ({told})" for (name, told), d in budgets.items()]
        return f"Smallest {title}: {'; '.join(parts)}." if parts else ""

    @staticmethod
    def doubts(best: Iterable[Fields]) -> list[str]:
        """Sentences on methods whose pairs are tested, though it is not known whether their heads share draws."""
        return doubts_of_draws(duel["unknown_draws"] for duel in best)


def _duels(
    budgets: Sequence[Rows], rows_of_line: Mapping[tuple[Any, ...], Rows], keys: Sequence[str], metric: str
) -> list[dict[str, Any]]:
    """The duel of the best method with the next one at each budget of one place.

    Args:
        budgets: the lines at each budget, the best first. rows_of_line: by the line's values of ``keys``.
    """
    drafts = []
    for number, lines in enumerate(budgets):
        best, *others = (rows_of_line[_key(line, keys)] for line in lines[[*keys]].to_dict("records"))
        for rank, other in enumerate(others, 1):
            for draft in drafts_of(paired(best, other, other_method=True), [metric], None, counts=True):
                drafts.append({**draft, "budget": number, "rank": rank})
    results = zip(drafts, judged(drafts, TOLERANCE, LEVEL), strict=True)
    told = {(draft["budget"], draft["rank"]): row for draft, row in results if _tells(draft, row)}
    duels = []
    for number, lines in enumerate(budgets):
        against = told.get((number, 1))
        if against is None or against["difference"] is None or against["b"] <= ROUNDING:
            continue
        # a doubt about any method of the budget is a doubt about the correction
        of_budget = [row for (budget, _), row in told.items() if budget == number]
        doubts = ", ".join(dict.fromkeys(row["unknown_draws"] for row in of_budget if row["unknown_draws"]))
        duels.append(_duel(lines, against, metric) | {"unknown_draws": doubts or None})
    return duels


def _key(line: Mapping[Any, Any], keys: Iterable[str]) -> tuple[Any, ...]:
    return tuple(plain(line[name]) for name in keys)


def _tells(draft: Mapping[str, Any], row: Fields) -> bool:
    """Whether the row has a verdict, or a test that could have reached the level."""
    if row["verdict"] != "undecided":
        return True
    return row["p_adjusted"] is not None and draft["of"].evidence.least * row["tests"] <= LEVEL


def _duel(lines: Rows, against: Fields, metric: str) -> dict[str, Any]:
    """The duel of the best method with the next one.

    Args:
        lines: at one budget, the best first. against: the next method compared with the best, as `judged` gives it.
    """
    best, following = (dict(line) for line in lines.head(2).to_dict("records"))
    # seen from the best method, the difference has the other sign, and its interval the other ends
    low, high = (None if (end := against[name]) is None else -end for name in ("high", "low"))
    return {
        **{name: None if (value := plain(best.get(name))) == "" else value for name in PLACE},
        "metric": metric,
        "name": best["name"],
        "method": best["method"],
        "value": against["a"],
        "next": following["name"],
        "next_value": against["b"],
        "verdict": FROM_BEST.get(against["verdict"], against["verdict"]),
        "difference": -against["difference"],
        "low": low,
        "high": high,
        **{name: against[name] for name in TEST},
    }
