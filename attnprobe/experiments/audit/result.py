"""The sentence of result of ``attnprobe audit``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...linalg.exceedance import VERDICTS
from ...tables.results import at_budget, in_words, lost, sentences
from .rows import AuditRow, StatementRow, is_statement

WORDS = {"holds": "hold", "violated": "are violated", "undecided": "are undecided"}


def audit_result(rows: Sequence[AuditRow | StatementRow]) -> str:
    """How many promises hold, head by head, and which methods are biased."""
    heads = list(filter(is_statement, rows))
    counts = Counter(row["verdict"] for row in heads)
    parts = [f"{counts[verdict]} {WORDS[verdict]}" for verdict in VERDICTS if counts[verdict]]
    share = f"Of {len(heads)} promises, head by head, {in_words(parts)}." if parts else ""
    biased = list(dict.fromkeys(at_budget(row) for row in heads if row["biased"]))
    which = f"The normaliser is biased: {', '.join(biased)}." if biased else ""
    return sentences(share, which, lost(rows, at_budget))
