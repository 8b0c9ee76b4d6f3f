"""The tokens of a text, and its windows, cut into segments.

The ids of a text are those that its tokenizer makes of the whole text, without special tokens. A text may be long, so
only its start is read, see `Vocabulary.start`. A text that itself begins with special tokens which the tokenizer adds,
such as ``<s>``, has them once.

A segment has as many tokens as the model has positions: ``[CLS]``, text, ``[SEP]`` if the tokenizer has these. A window
of ``n`` tokens has ``⌈n / positions⌉`` segments; the last may be shorter. A window starts in the text after the one
before it. The policy for long sequences changes only positions, not these tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import SourceError, UsageError
from .needle import Needle
from .text import Text
from .vocabulary import MARGIN, Vocabulary

MOST_WHOLE = 2**24  # characters of a text that its tokenizer does not cut into words
PER_TOKEN = 8  # characters that are read for a token; more are read if these are too few


class TokenStream:
    """The token ids of a text, read as far as needed.

    Attributes:
        ids: the first ids of the text, as many as have been read.
    """

    def __init__(self, text: Text, vocabulary: Vocabulary) -> None:
        self.text, self.vocabulary = text, vocabulary
        self.ids: list[int] = []
        self._read = 0  # characters of the text
        self._composed: dict[tuple[int, int], tuple[list[int], list[int]]] = {}  # the last text of a needle

    def first(self, count: int) -> list[int]:
        """The first ``count`` ids, with the text repeated as far as allowed; fewer if the text is too short.

        Raises:
            SourceError: a tokenizer that does not cut a long text into words, which needs all of its memory at once.
        """
        content = self.text.content
        while len(self.ids) < count and self._read < len(content):
            # Doubled, so that reading again from the start costs at most twice the last reading.
            self._read = max(2 * self._read, PER_TOKEN * count + MARGIN)
            self.ids = self.vocabulary.unopened(self.vocabulary.start(content, self._read))
            if not self.ids and self._read > MOST_WHOLE:
                raise SourceError(
                    f"tokenizer {self.vocabulary.name} reads the text '{self.text.name}' as one word of "
                    f"{len(content)} characters: use a text of at most {MOST_WHOLE}"
                )
        readings = min(-(-count // max(len(self.ids), 1)), self.text.readings)
        return self.ids[:count] if readings <= 1 else (self.ids * readings)[:count]

    def window(self, count: int, window: int) -> list[int]:
        """The ids of text window ``window`` of ``count`` tokens each; fewer if the text is too short."""
        if self.text.needle is not None:
            return self._compose(self.text.needle, count, window)[0]
        return self.first((window + 1) * count)[window * count :]

    def needle(self, count: int, window: int) -> list[int]:
        """The places of the needle among the ids of a window, of a text that has one."""
        assert self.text.needle is not None
        return self._compose(self.text.needle, count, window)[1]

    def _compose(self, needle: Needle, count: int, window: int) -> tuple[list[int], list[int]]:
        if (count, window) not in self._composed:
            self._composed = {(count, window): needle.compose(self.vocabulary.read, self.text.lines, count, window)}
        return self._composed[count, window]

    def unknown_fraction(self, count: int = 4096) -> float:
        """The share of unknown tokens among the first ``count``."""
        ids = self.first(count)
        return ids.count(self.vocabulary.unknown) / max(len(ids), 1) if self.vocabulary.unknown is not None else 0.0


@dataclass(frozen=True)
class Layout:
    """The cut of ``n`` tokens into segments of at most ``positions`` tokens (None: one segment of any length).

    >>> layout = Layout(positions=5, before=(101,), after=(102,))
    >>> layout.segments(list(range(5)), n=7)
    [[101, 0, 1, 2, 102], [3, 4]]
    >>> layout.places(7)
    [1, 2, 3, 5, 6]
    """

    positions: int | None
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def lengths(self, n: int) -> list[int]:
        """The lengths of the segments of ``n`` tokens."""
        longest = self.positions or n
        return [longest] * (n // longest) + ([n % longest] if n % longest else [])

    def text_tokens(self, n: int) -> int:
        """The number of text tokens among ``n`` tokens, without special tokens."""
        return sum(self._text(length) for length in self.lengths(n))

    def places(self, n: int) -> list[int]:
        """The numbers of the text tokens among ``n`` tokens."""
        places: list[int] = []
        start = 0
        for length in self.lengths(n):
            text = self._text(length)
            first = start + (0 if text == length else len(self.before))
            places += range(first, first + text)
            start += length
        return places

    def segments(self, ids: list[int], n: int) -> list[list[int]]:
        """The segments of a window with these text tokens."""
        start = 0
        segments = []
        for length in self.lengths(n):
            text = ids[start : start + self._text(length)]
            start += len(text)
            segments.append(text if len(text) == length else [*self.before, *text, *self.after])
        assert sum(map(len, segments)) == n
        return segments

    def _text(self, length: int) -> int:
        """The text tokens of a segment. One too short for the special tokens and a text token holds only text."""
        specials = len(self.before) + len(self.after)
        return length - specials if length > specials else length


def check_length(stream: TokenStream, layout: Layout, n: int, windows: int) -> str | None:
    """Refuse ``windows`` windows of ``n`` tokens that are longer than the text.

    Several windows are read once, because tests count each as a text of its own.

    Returns:
        A notice if one window reads the text more than once, otherwise None.
    """
    each = layout.text_tokens(n)
    if stream.text.needle is not None:
        stream.needle(each, 0)  # refuses a length that it does not fit
        return None
    have, once = len(stream.first(each * windows)), len(stream.ids)
    have = have if windows == 1 else min(have, once)
    if have >= each * windows:
        again = f"the text '{stream.text.name}' is read again from its start after {once} tokens"
        return again if have > once else None
    request = f"n={n}" + (f" in {windows} windows" if windows > 1 else "")
    fits = have // each
    way = f"choose at most {fits} windows" if fits else "choose a smaller n"
    raise UsageError(
        f"{request} needs {each * windows} tokens, but the text '{stream.text.name}' has {have}: {way} or a longer text"
    )
