"""Texts of any length with statements hidden in prose, and a question about one of them at the end."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from ..errors import UsageError, unknown
from ..rng import generator

__all__ = ["Needle", "is_needle", "parse_needle"]

WORD = "needle"
MOST = 20_000  # statements; names and values are distinct numbers of five digits
DEFAULTS = {"pairs": 16, "chain": 4, "chains": 4, "seed": 0}

Encode = Callable[[Sequence[str]], list[list[int]]]


@dataclass(frozen=True)
class Needle:
    """Prose with ``groups`` groups of ``links`` statements at random places, and a question about one group at its end.

    With one link the statements are pairs, ``The code of item 48213 is 90761.``; the question asks for the code of one
    item. With more, a group is a chain: a variable has a value, and each of the others equals the one before it; the
    question asks for the variables of one value. The statements of a chain keep their order. Numbers, places and the
    question depend on ``seed`` and on the number of the text window.

    >>> needle = parse_needle("needle:pairs=2,seed=1")
    >>> statements, question, answer = needle.statements(0)
    >>> question.split()[-2] in statements[answer][0]
    True
    """

    groups: int
    links: int
    seed: int

    @property
    def name(self) -> str:
        """The name of the text, with all settings."""
        what = f"pairs={self.groups}" if self.links == 1 else f"chain={self.links},chains={self.groups}"
        return f"{WORD}:{what},seed={self.seed}"

    def statements(self, window: int) -> tuple[list[list[str]], str, int]:
        """The statements of each group, the question, and the number of the group that it asks for."""
        draws = generator(self.seed, "needle", self.groups, self.links, window)
        numbers = (torch.randperm(90_000, generator=draws) + 10_000).tolist()
        target = int(torch.randint(self.groups, (1,), generator=draws))
        groups = []
        for group in range(self.groups):
            value, *names = numbers[group * (self.links + 1) : (group + 1) * (self.links + 1)]
            groups.append(_pair(names[0], value) if self.links == 1 else _chain(names, value))
        value, item = numbers[target * (self.links + 1)], numbers[target * (self.links + 1) + 1]
        if self.links == 1:
            return groups, f" Question: what is the code of item {item}? The code of item {item} is", target
        return groups, f" Question: which variables have the value {value}? The variables of {value} are", target

    def compose(self, encode: Encode, prose: Sequence[str], count: int, window: int) -> tuple[list[int], list[int]]:
        """``count`` token ids, and the indices of those that are the statements of the group in question.

        Args:
            encode: returns the token ids of each line. prose: the lines of the other text, which repeat if necessary.
            count: the number of tokens. window: the number of the text window.

        Raises:
            UsageError: ``count`` is too small for the statements and the question.
        """
        groups, question, target = self.statements(window)
        *stated, last = encode([text for group in groups for text in group] + [question])
        room = count - sum(map(len, stated)) - len(last)
        if room < 0:
            raise UsageError(
                f"text {self.name}: its statements and its question have {count - room} tokens, but n leaves {count}: "
                "choose a larger n or fewer statements"
            )
        draws = generator(self.seed, "needle places", self.groups, self.links, window)
        units = _filler(encode, prose, room, draws)
        slots = torch.randint(len(units) + 1, (len(stated),), generator=draws).sort().values.tolist()
        order = torch.randperm(len(stated), generator=draws) // self.links  # the group of each statement, in the text
        following = [iter(stated[group * self.links : (group + 1) * self.links]) for group in range(self.groups)]
        ids: list[int] = []
        marked: list[int] = []
        waiting = list(zip(slots, order.tolist(), strict=True))
        for place in range(len(units) + 1):
            while waiting and waiting[0][0] == place:
                _, group = waiting.pop(0)
                statement = next(following[group])
                marked += range(len(ids), len(ids) + len(statement)) if group == target else ()
                ids += statement
            ids += units[place] if place < len(units) else last
        return ids, marked


def is_needle(name: str) -> bool:
    """Whether a text's name is that of a `Needle`."""
    return name == WORD or name.startswith(f"{WORD}:")


def parse_needle(name: str) -> Needle:
    """The needle of ``needle``, ``needle:pairs=64,seed=0`` or ``needle:chain=4,chains=8,seed=0``.

    Raises:
        UsageError: an unknown setting, a value that is not an integer, or too many statements.
    """
    given: dict[str, int] = {}
    for part in filter(None, name.partition(":")[2].split(",")):
        key, _, value = part.partition("=")
        if key.strip() not in DEFAULTS:
            raise unknown(f"setting of the text {WORD}", key.strip(), DEFAULTS)
        if not re.fullmatch(r"\s*[0-9]{1,9}\s*", value):
            raise UsageError(f"text {name}: {key.strip()}={value} is not a whole number")
        given[key.strip()] = int(value)
    if "pairs" in given and {"chain", "chains"} & set(given):
        raise UsageError(f"text {name}: choose pairs, or chain and chains")
    values = {**DEFAULTS, **given}
    chained = bool({"chain", "chains"} & set(given))
    groups, links = (values["chains"], values["chain"]) if chained else (values["pairs"], 1)
    if groups < 1 or links < (2 if chained else 1):
        raise UsageError(f"text {name}: it needs at least one pair, or a chain of two statements")
    if groups * (links + 1) > 2 * MOST:
        raise UsageError(f"text {name}: it has more than {MOST} statements")
    return Needle(groups, links, values["seed"])


def _pair(item: int, code: int) -> list[str]:
    return [f" The code of item {item} is {code}."]


def _chain(names: Sequence[int], value: int) -> list[str]:
    first = f" Variable {names[0]} has the value {value}."
    return [first, *(f" Variable {b} equals variable {a}." for a, b in zip(names, names[1:], strict=False))]


def _filler(encode: Encode, prose: Sequence[str], room: int, draws: torch.Generator) -> list[list[int]]:
    """Sentences with ``room`` tokens in total, from a random sentence on; the last one may be cut."""
    sentences = [f" {one}" for line in prose for one in re.split(r"(?<=[.!?])\s+", line.strip()) if one]
    start = int(torch.randint(len(sentences), (1,), generator=draws))
    encoded = [ids for ids in encode(sentences[start:] + sentences[:start]) if ids]
    total = sum(map(len, encoded))
    units = encoded * (room // total + 1)
    ends = list(accumulate(map(len, units)))
    complete = sum(end <= room for end in ends)
    rest = room - (ends[complete - 1] if complete else 0)
    return units[:complete] + ([units[complete][:rest]] if rest else [])
