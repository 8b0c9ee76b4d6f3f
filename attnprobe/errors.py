"""The errors that a user can cause, each with the exit code that the command line gives it.

The library raises these; the command line turns them into one line on stderr in one place. An ``assert`` is
for what cannot happen.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

LINE = 1000  # characters of a message


class AttnprobeError(Exception):
    """Base class of every error that names a thing, its value and the way out."""

    exit_code = 2

    def __str__(self) -> str:
        """The message as one line of at most `LINE` characters, whatever text of a user it names."""
        return cut(" ".join(filter(None, map(str.strip, super().__str__().splitlines()))), LINE)


class UsageError(AttnprobeError, ValueError):
    """An impossible value: an unknown name, a budget, a layer, a sequence longer than the text."""

    exit_code = 2


class Unsupported(UsageError):
    """A method that cannot take a setting: a `skipped` row in a run of several cells, otherwise exit 2."""


class NotFinite(UsageError):
    """Q, K or V with NaN or infinity: an error for given inputs, a `diverged` row if a measurement produced them."""


class BadResult(AttnprobeError):
    """A user's method returned a wrong shape or dtype, or makes a false claim. Its cell fails; other cells continue."""

    exit_code = 4


class SourceError(AttnprobeError):
    """A named model, text, Q/K/V file or device that is absent, empty, undecodable, damaged or refused."""

    exit_code = 3


LONGEST = 80  # characters of a user's text in a message


def cut(text: str, most: int = LONGEST) -> str:
    """The beginning of a text that a user gave, for messages. It is marked if something is left out.

    >>> cut("skyformer"), cut("skyformer", 4)
    ('skyformer', 'sky…')
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def near(name: str, choices: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The choice that is similar to a misspelt name; None if none is similar.

    >>> near("skyfromer", ["skyformer", "vmean"])
    'skyformer'
    """
    if len(name) > LONGEST:
        return None  # no name is as long, and comparing takes the product of the lengths
    # of choices that differ in case only, the first one wins
    folded = {choice.lower(): choice for choice in reversed(list(choices))}
    matches = get_close_matches(name.lower(), folded, n=1, cutoff=cutoff)
    return folded[matches[0]] if matches else None


def nearest(name: str, choices: Iterable[str]) -> str:
    """The hint for a misspelt name: ``"; did you mean 'x'?"``, or all choices if none is similar.

    >>> nearest("skyfromer", ["skyformer", "vmean"])
    "; did you mean 'skyformer'?"
    >>> nearest("q", ["skyformer", "vmean"])
    '; choose from skyformer, vmean'
    """
    choices = list(choices)
    match = near(name, choices)
    if match is not None:
        return f"; did you mean '{match}'?"
    return f"; choose from {', '.join(choices)}" if choices else "; there is none"


def unknown(what: str, name: str, choices: Iterable[str]) -> UsageError:
    """The error for a name that does not exist, with a hint to the most similar one.

    >>> print(unknown("method", "nystromfomer", ["nystromformer", "vmean"]))
    unknown method 'nystromfomer'; did you mean 'nystromformer'?
    """
    return UsageError(f"unknown {what} '{cut(name)}'{nearest(name, choices)}")
