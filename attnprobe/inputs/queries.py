"""A selection of the tokens of a text as queries."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..errors import SourceError, UsageError, nearest
from ..files import MIB, path_of, read_regular
from ..grammar.lists import numbers
from ..rng import generator

KIND = re.compile(r"(last|every|random):(.*)", re.DOTALL)
NUMBERS = re.compile(r"[\d\s,-]+")
FORMS = "last:256, every:64, random:512, numbers such as 0,1000-1255, or a file of numbers"
LARGEST = 64 * MIB  # of a file of numbers


@dataclass(frozen=True)
class Queries:
    """A selection of the tokens of a text, written as one of

    - ``last:256``: the last 256 tokens;
    - ``every:64``: the tokens 63, 127, …, the last of each 64;
    - ``random:512``: 512 tokens, drawn without replacement. They depend on n only;
    - ``1000-1255`` or ``0,5,1000-1255``: these tokens, from 0;
    - the name of a file: the numbers in it, between white space or commas.

    Raises:
        UsageError: a form without a positive number. SourceError: the file is missing, or has other contents.

    >>> Queries("every:4").positions(10)
    tensor([3, 7])
    >>> Queries("last:3").positions(10)
    tensor([7, 8, 9])
    """

    text: str

    def __post_init__(self) -> None:
        _ = self.fact  # reads the numbers

    @cached_property
    def kind(self) -> str:
        """``last``, ``every``, ``random``, ``numbers`` or ``file``."""
        match = KIND.fullmatch(self.text)
        if match:
            return match[1]
        return "numbers" if NUMBERS.fullmatch(self.text) else "file"

    @cached_property
    def count(self) -> int:
        """The number of ``last:``, ``every:`` or ``random:``."""
        text = self.text.partition(":")[2]
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) == 0:
            raise UsageError(f"queries: {self.kind}:{text} needs a positive number, as in {self.kind}:64")
        return int(text)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the selected tokens, sorted, for numbers and files."""
        if self.kind == "numbers":
            return tuple(sorted(set(numbers(self.text, "queries"))))
        path = path_of(self.text, SourceError)
        if not path.is_file():
            raise SourceError(f"queries '{self.text}' is neither a file nor one of {FORMS}{nearest(self.text, WORDS)}")
        try:
            words = re.split(r"[\s,]+", read_regular(path, LARGEST).decode("utf-8").strip())
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"queries {self.text} cannot be read: {error}") from error
        wrong = [word for word in words if not re.fullmatch(r"[0-9]{1,9}", word)]
        if wrong:
            raise SourceError(f"queries {self.text}: '{wrong[0][:40]}' is not the number of a token")
        return tuple(sorted({int(word) for word in words}))

    @cached_property
    def fact(self) -> str:
        """The selection as a text that determines its tokens; for a file this is the hash of its numbers."""
        if self.kind not in ("numbers", "file"):
            return f"{self.kind}:{self.count}"
        digest = hashlib.sha256(",".join(map(str, self.numbers)).encode()).hexdigest()
        return self.text.replace(" ", "") if self.kind == "numbers" else f"{len(self.numbers)} tokens, sha256 {digest}"

    def positions(self, n: int) -> Tensor:
        """The numbers of the selected ones of ``n`` tokens, ascending, (n_q,) int64."""
        if self.kind == "every":
            selected = torch.arange(self.count - 1, n, self.count)
        elif self.kind == "last":
            selected = torch.arange(n)[-self.count :]
        elif self.kind == "random":
            selected = torch.randperm(n, generator=generator(0, "queries", n))[: self.count].sort().values
        else:
            selected = torch.tensor(self.numbers)
        needed = self.count if self.kind in ("last", "every", "random") else self.numbers[-1] + 1
        if needed > n:
            raise UsageError(f"queries {self.text}: n={n} is too short, at least n={needed} is needed")
        return selected


WORDS = ("last:", "every:", "random:")
