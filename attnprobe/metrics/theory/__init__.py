"""What the papers' theorems assume, promise and reach on given Q, K, V: one `Finding` a statement and layer."""

from . import chen2021, ma
from .finding import VERDICTS, Finding
from .registry import THEOREMS, Setting, Theorem, get_theorem, theorem

__all__ = ["THEOREMS", "VERDICTS", "Finding", "Setting", "Theorem", "chen2021", "get_theorem", "ma", "theorem"]
