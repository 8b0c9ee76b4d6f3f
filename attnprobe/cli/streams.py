"""stdout and stderr: printable text only, the answer last, and no error if the reader has left."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import Any

import click

from ..grammar.foreign import one_line, printable, undiverted

BEGAN = monotonic()  # when this process began, nearly

_waiting: ContextVar[list[tuple[str, bool]] | None] = ContextVar("answers that wait for the end", default=None)


class Tolerant(io.RawIOBase):
    """A stream that stores the first write error in ``error`` and drops all later text."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self.raw = raw
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        while self.error is None:
            try:
                written = self.raw.write(data)
                if written is not None:
                    return written
                # another process made the stream non-blocking, and it is full: wait
                select.select([], [self.raw], [])
            except OSError as error:
                self.error = error
        return len(data)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.raw.fileno()

    def isatty(self) -> bool:
        return self.raw.isatty()


def open_streams() -> None:
    """Make stdout and stderr safe: closed streams, readers that leave, and narrow encodings raise no error."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        raw = _raw(stream)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (open until the process ends)
        elif isinstance(raw, io.FileIO):
            stream.flush()
            buffer = io.BufferedWriter(Tolerant(raw))  # type: ignore[type-var]  # a raw stream, by what it does
            lines = stream.line_buffering or stream.write_through
            setattr(sys, name, io.TextIOWrapper(buffer, stream.encoding, "replace", line_buffering=lines))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _raw(stream: Any) -> Any:
    """The stream beneath the buffer, if Python buffers."""
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)


def unwritten() -> OSError | None:
    """The reason why part of the answer was not written; None if everything was written, or if the reader left."""
    sys.stdout.flush()
    raw = _raw(sys.stdout)
    error = raw.error if isinstance(raw, Tolerant) else None
    # BrokenPipeError is one: the reader, such as `head`, has left with what it wanted
    return None if isinstance(error, ConnectionError) else error


def echo(text: str, err: bool = False, styled: bool = False) -> None:
    """Print text on stdout or stderr.

    Args:
        styled: whether the text was made printable before it got colours, whose escapes must stay.
    """
    click.echo(text if styled else printable(text), err=err, file=None if err else undiverted())


def note(line: str) -> None:
    """One line for a person, on stderr."""
    echo(f"attnprobe: {one_line(line.strip())}", err=True)


def answer(text: str, styled: bool = False) -> None:
    """Print text on stdout at the end of the `answers_last` block; without a block, now."""
    waiting = _waiting.get()
    if waiting is None:
        echo(text, styled=styled)
    else:
        waiting.append((text, styled))


@contextmanager
def answers_last() -> Iterator[None]:
    """Print each `answer` at the end of the block, so that a reader that leaves costs no files, gates or exit code."""
    if _waiting.get() is not None:  # a block in another block: the outer one prints
        yield
        return
    waiting: list[tuple[str, bool]] = []
    token = _waiting.set(waiting)
    try:
        yield
    finally:
        _waiting.reset(token)
        for text, styled in waiting:
            echo(text, styled=styled)
