"""From the numbers of two runs to a verdict, with the reason; drafts of times."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import UsageError
from ..files import Fields
from ..frame.metric import BENCH, Metric
from ..records.file import strict_json
from ..tables.long import Row
from ..tables.methods import ROUNDING
from ..tables.numbers import significant
from .chance import EQUAL, Evidence, holm
from .costs import COST_FIELDS

MACHINE = ("device", "cpu", "threads", "cores", "system")  # whose times are compared
VERSIONS = ("attnprobe", "python", "torch")
BENCHED = tuple(metric.name for metric in BENCH)
WON_BY: dict[str | None, str] = {"A": "worse", "B": "better"}
ROUNDED = "alone has bad rows"
EXACT = f"both errors may be rounding, at most {ROUNDING:g}"
WIDE = "its interval is wider than the tolerance"


@dataclass(frozen=True)
class Draft:
    """A row before its verdict.

    Attributes:
        row: its place and numbers; ``a`` and ``b`` are None if a run has none.
        worse: the reason why B is worse whatever its numbers. better: the reason why it is better, unless its numbers
            are worse. marked: ``A`` or ``B``, the run that alone left bad rows as they are. Its numbers are not better.
    """

    row: Row
    metric: Metric
    evidence: Evidence
    worse: str | None = None
    better: str | None = None
    marked: str | None = None

    @property
    def tells(self) -> bool:
        """Whether there is anything to compare: a number of either run, or a status that changed."""
        return (self.row["a"], self.row["b"]) != (None, None) or bool(self.worse or self.better)

    @property
    def table(self) -> Any:
        """The table of the row, over whose rows p-values are corrected."""
        return self.metric.name, strict_json([self.row.get(name) for name in TABLE])


def with_verdicts(drafts: Iterable[Draft | Row], tolerance: float, level: float) -> list[Row]:
    """The rows with their verdicts; p-values are corrected by Holm's method over the rows of each table.

    A row that is not a draft already has its verdict.
    """
    rows = list(drafts)
    judged = iter(judgements([draft for draft in rows if isinstance(draft, Draft)], tolerance, level))
    return [next(judged).row(level) if isinstance(draft, Draft) else draft for draft in rows]


class Judgement(NamedTuple):
    """A draft with its corrected p-value, None without a test, and its verdict with the reason.

    ``tests`` is the number of rows over which p is corrected, and ``decisive`` is whether a test can reach the level
    among them.
    """

    draft: Draft
    p: float | None
    verdict: str
    reason: str | None
    tests: int
    decisive: bool

    def row(self, level: float) -> Row:
        """The draft as a row with its verdict; its interval is at the level."""
        evidence = self.draft.evidence
        low, high = evidence.interval(self.draft.row["difference"], level) or (None, None)
        return {
            **self.draft.row,
            "low": low,
            "high": high,
            "test": evidence.test,
            "freedom": evidence.freedom,
            "p": evidence.p,
            "p_adjusted": self.p,
            "tests": None if self.p is None else self.tests,
            "verdict": self.verdict,
            "reason": self.reason or self.draft.row["reason"],
        }


def judgements(drafts: Sequence[Draft], tolerance: float, level: float) -> list[Judgement]:
    """The verdicts on drafts; p-values are corrected by Holm's method over the drafts of each table."""
    counts = Counter(draft.table for draft in drafts if draft.evidence.p is not None)
    tables: dict[Any, dict[int, float]] = {}
    for place, draft in enumerate(drafts):
        if draft.evidence.p is not None:
            tables.setdefault(draft.table, {})[place] = draft.evidence.p
    adjusted: dict[int, float] = {}
    for values in tables.values():
        adjusted |= zip(values, holm(values.values()), strict=True)
    judged = []
    for place, draft in enumerate(drafts):
        p, count = adjusted.get(place), counts[draft.table]
        verdict, reason = _judged(draft, p, count, tolerance, level)
        if draft.metric.rounds and verdict != "same" and max(draft.row["a"], draft.row["b"]) <= ROUNDING:
            verdict, reason = "same", EXACT
        if draft.worse:
            verdict, reason = "worse", draft.worse
        elif draft.better and verdict != "worse":
            verdict, reason = "better", draft.better
        if verdict == WON_BY.get(draft.marked) and not draft.worse:
            verdict, reason = "undecided", f"{draft.marked} {ROUNDED}"
        decisive = p is not None and draft.evidence.least * count <= level
        judged.append(Judgement(draft, p, verdict, reason, count, decisive))
    return judged


def _may_exceed(draft: Draft, tolerated: float, level: float) -> bool:
    """Whether a difference within what is tolerated may be larger than that by chance: its interval ends beyond."""
    evidence, difference = draft.evidence, draft.row["difference"]
    if evidence.certain or evidence.test == "rounds":
        return False
    interval = evidence.interval(difference, level)
    if interval is None:  # equal medians of heads that differ tell nothing of the others
        close = math.isclose(draft.row["a"], draft.row["b"], rel_tol=EQUAL)
        return draft.row["statistic"] == "median" or not close
    return max(map(abs, interval)) > tolerated


def _judged(draft: Draft, p: float | None, count: int, tolerance: float, level: float) -> tuple[str, str | None]:
    """The verdict on the numbers alone, from the corrected p-value."""
    metric, evidence = draft.metric, draft.evidence
    a, b = draft.row["a"], draft.row["b"]
    if a is None or b is None:
        return "same", None
    change, tolerated = metric.cost(b) - metric.cost(a), metric.tolerated(a, tolerance)
    if abs(change) <= tolerated:
        why = evidence.why if p is None else WIDE
        return ("undecided", why) if _may_exceed(draft, tolerated, level) else ("same", None)
    verdict = "worse" if change > 0 else "better"
    if evidence.certain:
        return verdict, None
    if evidence.noise is not None:
        within = abs(change) <= evidence.noise
        return ("undecided", f"within the noise of {evidence.why}, {evidence.noise:.3g}") if within else (verdict, None)
    if p is None:
        return "undecided", evidence.why
    if p <= level:
        return verdict, None
    more = ""
    if evidence.least * count > level:
        more = f", too few for {count} row{'s' * (count > 1)}"
    elif evidence.p is not None and evidence.p <= level and evidence.interval(draft.row["difference"], level):
        more = f"; p is corrected over {count} rows, the interval is not"  # which excludes 0
    return "undecided", f"p = {significant(p, 2)} over {evidence.why}{more}"


TABLE = ("source", "layer", "layers_together", "layers", "kv_head", "prefix", "n", "target")
OF_MODEL = ("layers", "kv_head", "prefix")  # further places of rows of a whole model
ONLY = {"A": "only in A", "B": "only in B"}
MISSING = "missing"  # the verdict on a requested row that one run lacks
PLACE = ("method", "options", "target", "n", "d", "layer", "weights", "source", "reference")
NUMBERS = ("a", "b", "difference", "se", "difference_in_se", "low", "high", "ratio")
OF_ROW = (
    *PLACE,
    *NUMBERS,
    *COST_FIELDS,
    "at_equal_cost",
    *("metric", "statistic", "test", "freedom", "p", "p_adjusted", "tests", "verdict", "paired"),
    *("cells", "values", "windows", "heads", "seeds_a", "seeds_b", "status_a", "status_b", "reason", "unknown_draws"),
)
FIELDS = (*OF_ROW, *OF_MODEL, "layers_together")


def blank(first: Fields, **known: Any) -> Row:
    """A row without a comparison, at the place of a cell or row of a run; its further fields are null."""
    place = {name: first.get(name) for name in PLACE}
    place |= {"options": dict(first.get("options") or {}), "reference": bool(first.get("reference"))}
    place |= {name: first[name] for name in OF_MODEL if first.get(name) is not None}
    if "pair" in first:
        place |= {"method": first["pair"], "options": {}, "reference": False}
    return {**dict.fromkeys(OF_ROW), **place, **known}


def numbers(a: float | None, b: float | None, se: float | None = None) -> Row:
    """The two values of a row, with their difference and ratio."""
    difference = None if a is None or b is None else b - a
    return {
        "a": a,
        "b": b,
        "difference": difference,
        "se": se,
        "difference_in_se": difference / se if difference is not None and se else None,
        "ratio": b / a if b is not None and a and a * b >= 0 else None,  # of a change of sign it would mean nothing
    }


def alone(row: Row, run: str, missing: bool, why: str) -> Row:
    """A row of cells that only one run has.

    Args:
        row: its place. run: ``A`` or ``B``. missing: whether the cells were requested and no cell of their place is
            compared; such a row is missing. why: the cells in words.
    """
    if missing:
        return {**row, "verdict": MISSING, "reason": ONLY[run]}
    return {**row, "verdict": ONLY[run], "reason": why}


def refuse_other_machines(a: Sequence[Fields], b: Sequence[Fields]) -> None:
    """Refuse times of different machines, which cannot be compared."""
    machines = [[{name: cell.get(name) for name in MACHINE} for cell in run] for run in (a, b)]
    ours, others = ({strict_json(machine): machine for machine in run} for run in machines)
    if ours.keys() == others.keys():
        return
    first, second = next(iter(ours.values())), next(iter(others.values()))
    machines = [
        f"{name} {first.get(name)} in A, {second.get(name)} in B"
        for name in {**first, **second}
        if first.get(name) != second.get(name)
    ]
    raise UsageError(f"A and B were measured on different machines: {'; '.join(machines) or 'one of them on several'}")


def other_versions(a: Sequence[Fields], b: Sequence[Fields]) -> list[str]:
    """Notes on versions that differ. They may be what is compared, so they are not refused."""

    def version(records: Sequence[Fields], name: str) -> str | None:
        return " and ".join(dict.fromkeys(record[name] for record in records if record.get(name))) or None

    pairs = {name: (version(a, name), version(b, name)) for name in VERSIONS}
    return [f"{name} {ours} in A, {others} in B" for name, (ours, others) in pairs.items() if ours != others]
