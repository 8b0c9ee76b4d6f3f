"""Rows before their verdicts: of heads, and of times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..files import Fields
from ..frame.metric import METRICS
from ..records.file import STATUSES
from ..tables.long import Row
from ..tables.methods import spoiled_heads
from .cells import layers_together
from .chance import Evidence, within_rounds
from .pairing import Pairing
from .samples import heads_share_draws, measured
from .verdicts import Draft, blank, numbers

BAD = "bad_rows"


def place_of(cells: Sequence[Fields], varying: Sequence[str]) -> Row:
    """A row without a comparison, at the place of some cells, with the facts in which the sources of runs differ."""
    facts, layers = cells[0]["source"], layers_together(cells)
    return blank(
        cells[0],
        weights=facts.get("weights"),
        source={name: facts.get(name) for name in varying},
        cells=len(cells),
        values=0,
        windows=len({cell.get("window") for cell in cells}),
        heads=len({head for cell in cells for head in cell["heads"]}),
        **({"layers_together": layers} if layers else {}),
    )


def drafted(pairing: Pairing, varying: Sequence[str], metrics: Sequence[str], costs: Row | None = None) -> list[Draft]:
    """A draft for each metric that either run has, or one draft if the status decides.

    Args:
        costs: of both sides, as fields of the rows (see `costs_of`); of a run's own tables none are asked for.
    """
    pairs, a, b = pairing.pairs, list(pairing.a.values()), list(pairing.b.values())
    seeds = [sorted({seed for cell in cells if (seed := cell.get("seed")) is not None}) for cells in (a, b)]
    statuses = [max((cell["status"] for cell in cells), key=STATUSES.index) for cells in (a, b)]
    worse, better = (_changed(pairs, a, b, fall) for fall in (True, False))
    bad = [run for run, cells in (("A", a), ("B", b)) if any(map(spoiled_heads, cells))]
    drafts = []
    for metric in metrics:
        fields, evidence, (few, more) = measured(METRICS[metric], pairing)
        absent = fields["a"] is None and fields["b"] is None  # anything to lose or gain has a value
        if absent and (drafts or statuses == ["ok", "ok"]):
            continue
        row = {
            **place_of(a if len(a) >= len(b) else b, varying),
            **fields,
            **(costs or {}),
            "metric": metric,
            "paired": pairing.kind,
            "seeds_a": seeds[0],
            "seeds_b": seeds[1],
            "status_a": statuses[0],
            "status_b": statuses[1],
        }
        row["reason"] = f"{statuses[0]} in both" if absent else None
        if evidence.test == "pairs":
            row["unknown_draws"] = [
                *dict.fromkeys(cell["method"] for cell in (*a, *b) if heads_share_draws(cell) is None)
            ]
        lost = f"no finite value in {few} places where A has one" if few else ""
        gained = f"a finite value in {more} places where A has none" if more else ""
        marked = bad[0] if len(bad) == 1 and metric != BAD else None
        drafts.append(Draft(row, METRICS[metric], evidence, worse or lost or None, better or gained or None, marked))
    return drafts


def _changed(pairs: Sequence[tuple[Fields, Fields]], a: Sequence[Fields], b: Sequence[Fields], fall: bool) -> str:
    """How a status got worse, or without ``fall`` better, from A to B, in words; empty if none did."""

    def rank(cell: Fields) -> int:
        return STATUSES.index(cell["status"])

    compared = pairs or [(max(a, key=rank), max(b, key=rank))]
    changed = [(x, y) for x, y in compared if (rank(y) > rank(x) if fall else rank(y) < rank(x))]
    if not changed:
        return ""
    x, y = max(changed, key=lambda pair: abs(rank(pair[1]) - rank(pair[0])))
    share = f" in {len(changed)} of {len(compared)} cells" if len(compared) > 1 else ""
    reason = y.get("reason")
    why = f": {reason}" if fall and reason else ""
    return f"{statuses_in_words(x, y)}{share}{why}"


def statuses_in_words(a: Fields, b: Fields) -> str:
    """The statuses of two cells: what became of one in another run, or those of two methods.

    >>> statuses_in_words({"status": "ok"}, {"status": "failed"})
    'ok became failed'
    >>> statuses_in_words({"status": "ok", "pair": "a → b"}, {"status": "failed", "pair": "a → b"})
    'ok on the left, failed on the right'
    """
    both = "{} on the left, {} on the right" if "pair" in a else "{} became {}"
    return both.format(a["status"], b["status"])


def timed_place(cell: Fields) -> Row:
    """A row without a comparison; runs that are compared have one source each."""
    return blank(cell, weights=cell["weights"], source={}, cells=1)


def timed_drafts(a: Fields, b: Fields, metrics: Iterable[str]) -> list[Draft]:
    """A draft for each metric that both cells have, or for every metric if their statuses differ.

    The noise of a time, or of its ratio to exact attention, is the sum of both runs' spreads over their rounds; of a
    ratio at least what the ratio of exact attention to itself was off from 1 (``noise_floor``). Memory and products
    have none but the floor of their metric.
    """
    change = statuses_in_words(a, b) if a["status"] != b["status"] else None
    fell = b["status"] != "ok"
    drafts = []
    for metric in metrics:
        if change is None and (a[metric] is None or b[metric] is None):
            continue
        row = {**timed_place(a), **numbers(a[metric], b[metric])}
        row |= {"metric": metric, "statistic": "median", "paired": "cells"}
        evidence = within_rounds(_noise(a, b, metric)) if METRICS[metric].timed else Evidence(certain=True)
        drafts.append(Draft(row, METRICS[metric], evidence, change if fell else None, None if fell else change))
    return drafts


def _noise(a: Fields, b: Fields, metric: str) -> float | None:
    """The largest difference of two times, or ratios to exact attention, that is noise; None for single rounds."""
    spreads = [row[f"{metric}_spread"] for row in (a, b)]
    if None in spreads:
        return None
    floors = [abs(row["noise_floor"] - 1) * row[metric] for row in (a, b) if row["noise_floor"] is not None]
    return max(sum(spreads), *floors) if metric == "ratio_to_exact" and floors else sum(spreads)
