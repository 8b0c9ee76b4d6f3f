"""Theorems of the papers, checked on given Q, K, V: one `Finding` for each statement and layer."""

from . import (  # noqa: F401  (each registers its theorems)
    alman2023,
    carrell2025,
    chen2021,
    chen2022,
    dong2021,
    eckart,
    ma,
    schroder2026,
    tzachristas2025,
    verma2021,
    xiong2021,
    zandieh2025,
)
from .finding import THEOREMS, VERDICTS, Finding, Setting, Theorem, get_theorem, theorem

__all__ = ["THEOREMS", "VERDICTS", "Finding", "Setting", "Theorem", "get_theorem", "theorem"]
