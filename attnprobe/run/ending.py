"""The status of a method that ran: ok, or diverged."""

from __future__ import annotations

from ..approximation import Approximation
from ..files import JsonObject
from ..qkv import QKV

NOT_FINITE = "exact attention itself is not finite: the scores overflow float64"


def ending(approx: Approximation, qkv: QKV) -> JsonObject:
    """The status and reason of a method that ran: ``diverged`` if an output is not finite."""
    if not approx.diagnostics["bad_rows"].any():  # which counts the rows that are lost
        return {}
    broken = [str(head) for head, lost in zip(qkv.heads, approx.lost_rows().tolist(), strict=True) if lost]
    return {"status": "diverged", "reason": f"the output is not finite in head {', '.join(broken)}"} if broken else {}
