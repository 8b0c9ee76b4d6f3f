"""The sentence that states the result of ``attnprobe theory``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...tables.results import in_words, lost, sentences
from .rows import VERDICTS, TheoryRow

WORDS = {
    "holds": "hold",
    "violated": "are violated",
    "vacuous": "are vacuous",
    "assumption not met": "have an assumption that is not met",
}


def theory_result(rows: Sequence[TheoryRow]) -> str:
    """The number of statements that hold, head by head."""
    counts = Counter(row["verdict"] for row in rows if row["verdict"] is not None)
    parts = [f"{counts[verdict]} {WORDS[verdict]}" for verdict in VERDICTS if counts[verdict]]
    broken = list(dict.fromkeys(row["theorem"] for row in rows if row["verdict"] == "violated"))
    share = f"Of {sum(counts.values())} statements, head by head, {in_words(parts)}." if parts else ""
    which = f"Violated: {', '.join(broken)}." if broken else ""
    return sentences(share, which, lost(rows, lambda row: row["theorem"]))
