"""The metrics and statistics that gates of ``attnprobe error`` limit."""

from __future__ import annotations

from ...gates.check import Gated
from ...tables.metrics import ERROR

GATED = Gated(ERROR)
