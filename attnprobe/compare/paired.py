"""The rows of one place of two runs: each metric, and the change of the cells' status."""

from __future__ import annotations

from collections.abc import Sequence

from ..records.file import STATUSES
from ..tables.long import Row
from ..tables.metrics import METRICS
from ..tables.rows import AnyRow
from .rows import blank, numbers
from .samples import Pairing, measured
from .verdicts import Draft


def place_of(cells: Sequence[AnyRow], varying: Sequence[str]) -> Row:
    """A row without a comparison, at the place of some cells, with the facts in which the sources of runs differ."""
    facts = cells[0]["source"]
    return blank(
        cells[0],
        weights=facts.get("weights"),
        source={name: facts.get(name) for name in varying},
        cells=len(cells),
        values=0,
        windows=len({cell.get("window") for cell in cells}),
        heads=len({head for cell in cells for head in cell["heads"]}),
    )


def drafted(pairing: Pairing, varying: Sequence[str], metrics: Sequence[str]) -> list[Draft]:
    """A draft for each metric that either run has, or one draft if the status decides."""
    pairs, a, b = pairing.pairs, list(pairing.a.values()), list(pairing.b.values())
    seeds = [sorted({seed for cell in cells if (seed := cell.get("seed")) is not None}) for cells in (a, b)]
    statuses = [max((cell["status"] for cell in cells), key=STATUSES.index) for cells in (a, b)]
    worse, better = (_changed(pairs, a, b, fall) for fall in (True, False))
    drafts = []
    for metric in metrics:
        pair = measured(METRICS[metric], pairing)
        absent = pair.a is None and pair.b is None  # anything to lose or gain has a value
        if absent and (drafts or statuses == ["ok", "ok"]):
            continue
        row = {
            **place_of(a if len(a) >= len(b) else b, varying),
            **numbers(pair.a, pair.b, pair.evidence.se),
            "metric": metric,
            "statistic": pair.statistic,
            "paired": pairing.kind,
            "values": pair.count,
            "seeds_a": seeds[0],
            "seeds_b": seeds[1],
            "status_a": statuses[0],
            "status_b": statuses[1],
        }
        row["reason"] = f"{statuses[0]} in both" if absent else None
        lost = f"no finite value in {pair.lost} places where A has one" if pair.lost else ""
        gained = f"a finite value in {pair.gained} places where A has none" if pair.gained else ""
        drafts.append(Draft(row, METRICS[metric], pair.evidence, worse or lost or None, better or gained or None))
    return drafts


def _changed(pairs: Sequence[tuple[AnyRow, AnyRow]], a: Sequence[AnyRow], b: Sequence[AnyRow], fall: bool) -> str:
    """How a status got worse, or without ``fall`` better, from A to B, in words; empty if none did."""

    def rank(cell: AnyRow) -> int:
        return STATUSES.index(cell["status"])

    compared = pairs or [(max(a, key=rank), max(b, key=rank))]
    changed = [(x, y) for x, y in compared if (rank(y) > rank(x) if fall else rank(y) < rank(x))]
    if not changed:
        return ""
    x, y = max(changed, key=lambda pair: abs(rank(pair[1]) - rank(pair[0])))
    share = f" in {len(changed)} of {len(compared)} cells" if len(compared) > 1 else ""
    reason = y.get("reason")
    why = f": {reason}" if fall and reason else ""
    return f"{x['status']} became {y['status']}{share}{why}"
