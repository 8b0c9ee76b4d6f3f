"""Which methods of a run the paired test tells from the best one: what bold cells and results rest on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..experiments import experiment
from ..files import Fields
from ..records.file import strict_json
from ..tables.labels import with_source
from ..tables.long import Row
from ..tables.results import TOLERANCE
from ..tables.table import method_key
from .cells import Key, at_no_layer, cell_of, in_lists, place_of_cell
from .chance import LEVEL
from .drafts import drafted
from .pairing import paired
from .verdicts import TABLE, Draft, judgements


class Contest:
    """Compares rows of a run's table as `compare_runs` compares methods: it is a `Tested` of `tables.table`.

    Rows without a layer are those of all layers together.
    """

    def __init__(self, records: Sequence[Any], command: str) -> None:
        records = list(map(in_lists, records))
        self.cells: dict[str, dict[Key, Fields]] = {}
        several = len({record.get("layer") for record in records}) > 1 and not experiment(command).whole
        for record, source in with_source(records):
            for cell in (cell_of(record, command), *([at_no_layer(record)] if several else [])):
                place = _place(cell, source["source"])
                self.cells.setdefault(place, {})[place_of_cell(cell)] = {**cell, "pair": ""}
        self.drafts: dict[tuple[str, ...], list[Draft]] = {}  # by metric and pair: columns and the result share pairs

    def __call__(self, metric: str, pairs: Sequence[tuple[Row, Row]]) -> list[Row | None]:
        """The comparison of the right row of each pair with the left one; None if no test can tell.

        Their p-values are corrected together.
        """
        drafts: list[Draft] = []
        places = []
        for place, rows in enumerate(pairs):
            left, right = (_place(row, row.get("source")) for row in rows)
            if (metric, left, right) not in self.drafts:
                pairing = paired(self.cells.get(left, {}), self.cells.get(right, {}))
                self.drafts[metric, left, right] = drafted(pairing, (), [metric])
            if made := self.drafts[metric, left, right]:
                drafts += made
                places.append(place)
        compared: list[Row | None] = [None] * len(pairs)
        for place, judged in zip(places, judgements(drafts, TOLERANCE, LEVEL), strict=True):
            untested = judged.verdict == "undecided" and not judged.decisive
            compared[place] = None if untested else judged.row(LEVEL)
        return compared


def _place(row: Fields, source: Any) -> str:
    return strict_json([source, *(row.get(name) for name in (*TABLE[1:], "d")), *method_key(row)])
