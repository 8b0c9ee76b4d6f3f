"""Folding text to a width: docstrings by paragraph, and names at signs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

PART = re.compile(r"(?:\[[^\]]*\]|[^\s:,])*[:,]*\s*")  # of a name: up to a space, a colon or a comma outside brackets


def fold_text(text: str, width: int) -> str:
    """A docstring in lines of at most ``width``; a paragraph that fits stays as it is.

    >>> print(fold_text("One sentence of words.\\n\\n    eps: a number that\\n        is small.", 16))
    One sentence of
    words.
    <BLANKLINE>
        eps: a
            number
            that is
            small.
    """
    lines: list[str] = []
    for paragraph in _paragraphs(text):
        if all(len(line) <= width for line in paragraph):
            lines += paragraph
            continue
        first = _indent(paragraph[0])
        # an entry of Args continues deeper than it begins
        later = _indent(paragraph[-1]) if len(paragraph) > 1 else first
        lines += textwrap.wrap(
            " ".join(line.strip() for line in paragraph),
            width,
            initial_indent=" " * first,
            subsequent_indent=" " * later,
            break_on_hyphens=False,
            break_long_words=False,
        )
    return "\n".join(lines)


def _paragraphs(text: str) -> Iterator[list[str]]:
    """Groups of lines: a paragraph, or an indented entry with its continuation lines."""
    paragraph: list[str] = []
    for line in text.splitlines():
        if paragraph and not _continues(paragraph[0], line):
            yield paragraph
            paragraph = []
        paragraph.append(line)
    yield paragraph


def _continues(first: str, line: str) -> bool:
    """Whether a line belongs to the paragraph that begins with the line ``first``."""
    if not line.strip() or not first.strip():
        return False
    if _indent(first) == 0 and not first.startswith("- "):
        return _indent(line) == 0 and not first.endswith(":") and not line.startswith("- ")
    return _indent(line) > _indent(first)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def name_parts(name: str) -> list[str]:
    """The parts of a name that are never split.

    >>> name_parts("skyformer:guard=sampled,rtol=0.1 (ref.)")
    ['skyformer:', 'guard=sampled,', 'rtol=0.1 ', '(ref.)']
    >>> name_parts("0.5 [0.2 – 1.3]")
    ['0.5 ', '[0.2 – 1.3]']
    """
    return [part for part in PART.findall(name) if part]


def fold_name(name: str, width: int) -> str:
    """A name in lines of at most ``width`` if its parts allow it; later lines are indented.

    >>> print(fold_name("skyformer:guard=sampled,rtol=0.1", 16))
    skyformer:
     guard=sampled,
     rtol=0.1
    """
    lines = [""]
    for part in name_parts(name):
        if lines[-1].strip() and len((lines[-1] + part).rstrip()) > width:
            lines.append(" ")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)
