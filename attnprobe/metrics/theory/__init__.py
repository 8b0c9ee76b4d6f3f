"""What the papers' theorems assume, promise and reach on given Q, K, V: one `Finding` a statement and layer."""

from . import chen2021, chen2021_lemmas, ma  # noqa: F401  (they register themselves)
from .finding import VERDICTS, Finding
from .registry import THEOREMS, Setting, Theorem, get_theorem, theorem

__all__ = ["THEOREMS", "VERDICTS", "Finding", "Setting", "Theorem", "get_theorem", "theorem"]
