"""Options that are lists, parsed from a user's text."""

from __future__ import annotations

from ...errors import UsageError
from ...grammar.lists import parse_numbers, parse_positive


def numbers(text: str, what: str) -> tuple[int, ...]:
    """A list of whole numbers and ranges, such as ``16,32`` or ``0-5``."""
    return tuple(parse_numbers(text, what))


def lengths(text: str, what: str) -> tuple[int, ...]:
    """A list of numbers of tokens."""
    values = numbers(text, what)
    if min(values) < 2:
        raise UsageError(f"{what}={min(values)}: attention needs at least 2 tokens")
    return values


def positives(text: str, what: str) -> tuple[float, ...]:
    """A list of numbers above 0, in rising order."""
    return tuple(parse_positive(text, what))


def words(text: str, what: str) -> tuple[str, ...]:
    """A list of words."""
    parts = tuple(word.strip() for word in text.split(","))
    if not all(parts):
        raise UsageError(f"{what} '{text}': an empty word; write words with commas between them, such as a,b")
    return parts
