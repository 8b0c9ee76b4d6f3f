"""The grammar of lists: integers, ``512,1024``, ``0-5``, ``all``, and positive numbers, ``0.05,0.1``."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UsageError

LARGEST = 1e300  # of a number that is given or measured: sums of it are finite


def parse_numbers(text: str, what: str, available: Sequence[int] | None = None) -> list[int]:
    """A list of integers and ranges; ``all`` is everything ``available``. Repeats count once.

    Raises:
        UsageError: a part that is no number or range, a number below 0, or one that is not available.

    >>> parse_numbers("0,5,2-4", "layer")
    [0, 5, 2, 3, 4]
    >>> parse_numbers("all", "head", range(3))
    [0, 1, 2]
    """
    if text.strip() == "all" and available is not None:
        return list(available)
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            everything = " or 'all'" if available is not None else ""
            if not first and last.isdecimal():
                raise UsageError(f"{what}: {part.strip()} is below 0; write a whole number from 0 on")
            raise UsageError(f"{what}: '{part.strip()}' is not a whole number or a range like 0-5{everything}")
        if max(len(first), len(last)) > 9:
            raise UsageError(f"{what}: {part.strip()[:20]}… is too large; choose a number below 1000000000")
        low, high = int(first), int(last or first)
        if high < low:
            raise UsageError(f"{what}: the range {part.strip()} runs backwards; write {high}-{low}")
        if high - low >= 100_000:
            raise UsageError(f"{what}: the range {part.strip()} is too long")
        numbers += range(low, high + 1)
    if available is not None:
        available_ones(numbers, what, available)
    return list(dict.fromkeys(numbers))


def available_ones(numbers: Sequence[int] | str, what: str, available: Sequence[int]) -> tuple[int, ...]:
    """The requested numbers, if they are available; ``all`` is everything ``available``.

    Raises:
        UsageError: one that is not available.

    >>> available_ones("all", "head", range(3))
    (0, 1, 2)
    """
    if isinstance(numbers, str):
        return tuple(available)
    for number in numbers:
        if number not in available:
            raise UsageError(f"{what} {number} does not exist; choose from {_spans(available)}")
    return tuple(numbers)


def parse_positive(text: str, what: str) -> list[float]:
    """A list of numbers above 0, in rising order. Repeats count once.

    Raises:
        UsageError: as `positive`.

    >>> parse_positive("0.5,0.1", "epsilon")
    [0.1, 0.5]
    """
    return sorted({positive(part, what) for part in text.split(",")})


def positive(text: str, what: str) -> float:
    """A number above 0.

    Raises:
        UsageError: not a number, or not above 0 and up to `LARGEST`.

    >>> positive("1e301", "epsilon")
    Traceback (most recent call last):
        ...
    attnprobe.errors.UsageError: epsilon: '1e301' is too large; choose a number up to 1e+300
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise UsageError(f"{what}: '{text.strip()}' is not a number above 0")
    if number > LARGEST:
        raise UsageError(f"{what}: '{text.strip()}' is too large; choose a number up to {LARGEST:g}")
    return number


def _spans(numbers: Sequence[int]) -> str:
    """``0-11`` for consecutive numbers, else the numbers."""
    numbers = list(numbers)
    if len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(map(str, numbers))
