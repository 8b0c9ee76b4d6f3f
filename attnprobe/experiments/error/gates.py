"""The metrics and statistics that gates of ``attnprobe error`` limit."""

from __future__ import annotations

from ...gates.check import Gated
from ...tables.metrics import ERROR

__all__ = ["GATED"]

GATED = Gated(ERROR)
