"""What the papers' theorems assume, promise and reach on given Q, K, V: one `Finding` a statement and layer."""

from . import chen2022, dong2021, eckart, verma2021, xiong2021  # noqa: F401  (each registers its theorems)
from .finding import VERDICTS, Finding
from .registry import THEOREMS, Setting, Theorem, get_theorem, theorem

__all__ = ["THEOREMS", "VERDICTS", "Finding", "Setting", "Theorem", "get_theorem", "theorem"]
