"""Text from outside: file names, keys, metadata, messages of exceptions.

Such text may hold characters that move a cursor, change colours, reverse a line or have no encoding. Everything that
leaves the program passes `printable` on its way to a terminal, a file or a page, and rows hold text that has passed
it. The result is plain text in every encoding of Unicode, and passing it again changes nothing.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

from ..errors import LINE, cut

# Controls of ASCII and Latin-1 but for newline and tab; the soft hyphen; what is invisible or turns the direction of
# writing; separators of lines; halves of surrogate pairs; what Unicode keeps out of text. Joiners of emoji and of
# Persian words stay.
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufdd0-\ufdef\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f"
    + "".join(f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(1, 17))
    + "]"
)
LINE_BREAKS = re.compile(r"\s*[\r\n]\s*|[\t\v\f]")


def printable(text: str) -> str:
    r"""``text`` with control characters and unencodable characters as escapes; newlines and tabs stay.

    >>> print(printable("a\x1b[31mb\u202ec\udc80 \U000e0041"))
    a\x1b[31mb\u202ec\udc80 \U000e0041
    """
    if text.isascii() and text.isprintable():  # almost every text, and quicker than the pattern
        return text
    return UNPRINTABLE.sub(_escaped, text)


def printable_within(value: Any) -> Any:
    r"""A JSON value in which every string and key is `printable`.

    >>> printable_within({"a\x1b": [1, None, "b\x07"]})
    {'a\\x1b': [1, None, 'b\\x07']}
    """
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): printable_within(item) for key, item in value.items()}
    return [printable_within(item) for item in value] if isinstance(value, list) else value


def one_line(text: str) -> str:
    r"""`printable` text with its line breaks as spaces.

    >>> print(one_line("  first,\n  then\tsecond\r\x1b"))
      first, then second \x1b
    """
    return printable(LINE_BREAKS.sub(" ", text))


def first_line(text: str) -> str:
    r"""The first line that is not empty.

    >>> first_line("\n  mat1 and mat2 do not fit\nat aten/src"), first_line("")
    ('mat1 and mat2 do not fit', '')
    """
    return one_line(re.split(r"[\r\n]", text.strip(), maxsplit=1)[0])


def message(error: BaseException) -> str:
    """The text of an exception, cut after `LINE` characters; the name of its type if it has no text or refuses it.

    >>> message(ValueError("no such head")), message(KeyError())
    ('no such head', 'KeyError')
    """
    return _text_of(error) or _name(error)


def reason(error: BaseException) -> str:
    """The type of an exception and the first line of its message.

    >>> reason(ValueError("no such head")), reason(KeyError())
    ('ValueError: no such head', 'KeyError')
    """
    text = first_line(_text_of(error))
    return f"{_name(error)}: {text}" if text else _name(error)


def notes(error: BaseException) -> list[str]:
    """The notes of an exception, those that are text, each as one line.

    >>> error = ValueError("no such head")
    >>> error.__notes__ = ["in layer\\n3", 5]
    >>> notes(error)
    ['in layer 3']
    """
    own = vars(error).get("__notes__")
    return [one_line(cut(note, LINE)) for note in own if type(note) is str] if type(own) is list else []


class _Diverted(io.TextIOBase):
    """A stream in place of stdout whose text goes to stderr, as `printable` text."""

    def __init__(self, stdout: TextIO) -> None:
        self.stdout = stdout

    def write(self, text: str) -> int:
        sys.stderr.write(printable(text))
        return len(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self.stdout.isatty()

    def fileno(self) -> int:
        return self.stdout.fileno()


@contextmanager
def diverted() -> Iterator[None]:
    """A block that runs foreign code: what it prints goes to stderr and can move no cursor."""
    with redirect_stdout(_Diverted(sys.stdout)):
        yield


def undiverted() -> TextIO | None:
    """The stdout that a `diverted` block has replaced; None outside of such blocks."""
    stream = sys.stdout
    # blocks may stand in one another: a command's, and a method's in it
    while isinstance(stream, _Diverted):
        stream = stream.stdout
    return None if stream is sys.stdout else stream


def _text_of(error: BaseException) -> str:
    try:
        return cut(printable(re.sub(r"\r\n?", "\n", str(error)[: 2 * LINE])).strip(), LINE)
    except KeyboardInterrupt:
        raise
    except BaseException:  # the text of an exception may be made by foreign code
        return ""


def _name(error: BaseException) -> str:
    return one_line(type(error).__name__)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def short_hashes(line: str) -> str:
    """A line with every SHA-256 cut to its first 12 digits; JSON, Markdown and the manifest have all digits.

    >>> short_hashes("sha256 " + 16 * "53aa")
    'sha256 53aa53aa53aa…'
    """
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1…", line)
