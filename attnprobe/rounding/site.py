"""The names of a computation's steps: an operation, the function that calls it, and that function's caller."""

from __future__ import annotations

import contextlib
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType

import torch

from ..errors import UsageError, cut
from ..grammar import arguments

# files whose functions stand between a method and its operation: this package, torch, and decorators
HIDDEN = (str(Path(__file__).parent), str(Path(torch.__file__).parent), str(arguments.__file__), contextlib.__file__)


NAME = re.compile(r"(?:(\S+):(\d+) > )?(\S+):(\d+) (.+)")


@dataclass(frozen=True, order=True)
class Site:
    """A step of a computation.

    Attributes:
        caller, caller_line: the function that called the helper, and the line of the call; empty if there is none.
        callee, line: the function with the operation, and the line of the operation.
        operation: the operation's name in torch.

    >>> str(Site("softmax_factors", 43, "product", 167, "bmm"))
    'softmax_factors:43 > product:167 bmm'
    """

    caller: str
    caller_line: int
    callee: str
    line: int
    operation: str

    def __str__(self) -> str:
        caller = f"{self.caller}:{self.caller_line} > " if self.caller else ""
        return f"{caller}{self.callee}:{self.line} {self.operation}"

    @classmethod
    def read(cls, text: str) -> Site:
        """The site of a name that `str` gave.

        Raises:
            UsageError: it is no such name.
        """
        found = NAME.fullmatch(text.strip())
        if found is None:
            raise UsageError(f"site '{cut(text)}': expected CALLER:LINE > FUNCTION:LINE OPERATION")
        caller, caller_line, callee, line, operation = found.groups()
        return cls(caller or "", int(caller_line or 0), callee, int(line), operation)


INPUTS = Site("", 0, "inputs", 0, "Q, K, V")


def here(operation: str) -> Site:
    """The site of an operation that the calling code runs now, by the two innermost functions outside of torch."""
    # frames by hand: `inspect.stack` reads source files, for every operation
    frame, found = sys._getframe(1), []
    while frame is not None and len(found) < 2:
        if not _hidden(frame.f_code):
            found.append((_name(frame.f_code), frame.f_lineno))
        frame = frame.f_back
    callee, line = found[0] if found else ("", 0)
    caller, caller_line = found[1] if len(found) > 1 else ("", 0)
    return Site(caller, caller_line, callee, line, operation)


@cache
def _hidden(code: CodeType) -> bool:
    return code.co_filename.startswith(HIDDEN)


@cache
def _name(code: CodeType) -> str:
    return code.co_qualname.replace("<locals>.", "")
