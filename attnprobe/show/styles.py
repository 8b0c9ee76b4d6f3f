"""The names of styles, and the kinds of files that a figure has; they need no matplotlib."""

from __future__ import annotations

STYLES = ("paper", "slide")
FILES = (".svg", ".png", ".pdf", ".txt")  # of a figure; the last is its caption


def check_style(style: str) -> None:
    """Refuse a style that is neither ours nor one of matplotlib's, by its name or as a file.

    Raises:
        UsageError: no such style or file, or a line in it that matplotlib does not know.
    """
    if style not in STYLES:
        from .looks import settings_of

        settings_of(style)
