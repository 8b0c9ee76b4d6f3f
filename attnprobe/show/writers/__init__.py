"""Writers: text of grids for a terminal, Markdown and LaTeX, and of frames as CSV and JSON. Each takes any table.

`llamacpp` alone takes numbers of tokens. A catalogue offers it by its ``WRITERS``.
"""

from __future__ import annotations

from .data import csv, json_rows, jsonl
from .latex import latex
from .markdown import markdown
from .terminal import terminal

__all__ = ["csv", "json_rows", "jsonl", "latex", "markdown", "terminal"]
