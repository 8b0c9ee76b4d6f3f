"""Texts of any length with statements hidden in prose, and a question about one of them at the end."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle

import torch

from ..errors import UsageError, unknown
from ..grammar.lists import NEEDLE as WORD
from ..rng import generator

MOST = 20_000  # statements; names and values are distinct numbers of five digits
SPARE = 64  # tokens of prose beyond the expected ones, for a cut that gives the exact number
DEFAULTS = {"pairs": 16, "chain": 4, "chains": 4, "copy": 8, "first": 0, "seed": 0, "answer": 0}

NUMBER = re.compile(r"[0-9]{5}")
Read = Callable[[str], tuple[list[int], list[tuple[int, int]]]]


@dataclass(frozen=True)
class Needle:
    """Prose with ``groups`` groups of ``links`` statements at random places, and a question about one group at its end.

    With one link the statements are pairs, ``The code of item 48213 is 90761.``; the question asks for the code of one
    item. With more, a group is a chain: a variable has a value, and each of the others equals the one before it; the
    question asks for the variables of one value. The statements of a chain keep their order. With ``copied`` there is
    one statement, a list of so many numbers, and the question asks for the list. With ``first`` the statements in
    question are the first words of the text, as an instruction is. Numbers, places and the question depend on ``seed``
    and on the number of the text window. With ``answered`` the answer follows the question.

    >>> needle = parse_needle("needle:pairs=2,seed=1")
    >>> statements, question, answer = needle.statements(0)
    >>> question.split()[-2] in statements[answer][0]
    True
    """

    groups: int
    links: int
    seed: int
    answered: bool = False
    copied: int = 0
    first: bool = False

    @property
    def name(self) -> str:
        """The name of the text, with all settings."""
        what = f"pairs={self.groups}" if self.links == 1 else f"chain={self.links},chains={self.groups}"
        settings = [f"copy={self.copied}" if self.copied else what, f"seed={self.seed}"]
        settings += [f"{word}=1" for word, is_set in (("first", self.first), ("answer", self.answered)) if is_set]
        return f"{WORD}:{','.join(settings)}"

    def ending(self, window: int) -> tuple[str, str]:
        """The question at the end of a window, and its answer: a code, the names of a chain, or a list."""
        groups, question, target = self.statements(window)
        numbers = [NUMBER.findall(statement) for statement in groups[target]]
        if self.copied:
            answer = numbers[0]
        else:
            answer = [numbers[0][-1]] if self.links == 1 else [of_statement[0] for of_statement in numbers]
        return question, f" {', '.join(answer)}"

    def statements(self, window: int) -> tuple[list[list[str]], str, int]:
        """The statements of each group, the question, and the number of the group that it asks for."""
        draws = generator(self.seed, "needle", self.groups, self.links, window)
        numbers = (torch.randperm(90_000, generator=draws) + 10_000).tolist()
        if self.copied:
            listed = ", ".join(map(str, numbers[: self.copied]))
            return [[f" The list is {listed}."]], " Question: what is the list? The list is", 0
        target = int(torch.randint(self.groups, (1,), generator=draws))
        groups = []
        for group in range(self.groups):
            value, *names = numbers[group * (self.links + 1) : (group + 1) * (self.links + 1)]
            pair = [f" The code of item {names[0]} is {value}."]
            groups.append(pair if self.links == 1 else _chain(names, value))
        value, item = numbers[target * (self.links + 1)], numbers[target * (self.links + 1) + 1]
        if self.links == 1:
            return groups, f" Question: what is the code of item {item}? The code of item {item} is", target
        return groups, f" Question: which variables have the value {value}? The variables of {value} are", target

    def compose(self, read: Read, prose: Sequence[str], count: int, window: int) -> tuple[list[int], list[int]]:
        """``count`` token ids, and the indices of those that are the statements of the group in question.

        The ids are those of a text: its prose is cut where the text has ``count`` tokens. If no cut gives as many, the
        text has a few more, and its first ids are left out.

        Args:
            read: returns the token ids of a text, and the first character and the end of each.
            prose: the lines of the other text, which repeat if necessary.
            count: the number of tokens. window: the number of the text window.
        """
        groups, _, target = self.statements(window)
        question, answer = self.ending(window)
        question += answer if self.answered else ""
        stated = [text for group in groups for text in group]
        room = count - len(read("".join(stated) + question)[0])
        if room < 0:
            raise UsageError(
                f"text {self.name}: its statements and its question have {count - room} tokens, but n leaves {count}: "
                "choose a larger n or fewer statements"
            )
        draws = generator(self.seed, "needle places", self.groups, self.links, window)
        sentences, ends = self._filler(read, prose, room + SPARE, draws)
        begins = [0, *accumulate(map(len, sentences))]
        cut = ends[room - 1] if room else 0
        units = bisect_left(begins, cut)  # the sentences that begin before the cut
        slots = torch.randint(units + 1, (len(stated),), generator=draws).sort().values.tolist()
        order = torch.randperm(len(stated), generator=draws) // self.links  # the group of each statement, in the text
        if self.first:
            order = torch.cat([order[order == target], order[order != target]])
            slots[: self.links] = [0] * self.links
        following = [iter(group) for group in groups]
        placed = [
            (begins[slot], next(following[group]), group == target)
            for slot, group in zip(slots, order.tolist(), strict=True)
        ]
        filler = "".join(sentences)
        texts: dict[int, tuple[list[int], list[int]]] = {}  # by the tokens of prose
        kept = room
        # Near the cut a tokenizer may merge words, so the number of tokens is not the sum of the parts; a few
        # corrections reach it, or return to a cut that was tried.
        while kept not in texts:
            texts[kept] = _tokens(read, filler[: ends[kept - 1] if kept else 0], placed, question)
            excess = len(texts[kept][0]) - count
            kept = min(max(kept - excess, 0), len(ends))
        long_enough = [text for text in texts.values() if len(text[0]) >= count]
        if not long_enough:
            raise UsageError(f"text {self.name}: no cut of its prose gives {count} tokens: choose another n")
        ids, marked = min(long_enough, key=lambda text: len(text[0]))
        excess = len(ids) - count
        # Cutting off first ids would cut the statements, which are first.
        if self.first and excess:
            raise UsageError(f"text {self.name}: no cut of its prose gives exactly {count} tokens: choose another n")
        return ids[excess:], [index - excess for index in marked if index >= excess]

    def _filler(
        self, read: Read, prose: Sequence[str], count: int, draws: torch.Generator
    ) -> tuple[list[str], list[int]]:
        """Sentences with at least ``count`` tokens, from a random sentence on, and the ends of the tokens."""
        sentences = [
            f" {sentence}" for line in prose for sentence in re.split(r"(?<=[.!?])\s+", line.strip()) if sentence
        ]
        start = int(torch.randint(len(sentences), (1,), generator=draws))
        following = cycle(sentences[start:] + sentences[:start])
        taken: list[str] = []
        ends: list[int] = []
        while len(ends) < count:
            taken += [next(following) for _ in range(len(taken) + count // 16 + 1)]
            ends = [end for _, end in read("".join(taken))[1]]
            if not ends:
                raise UsageError(f"text {self.name}: the tokenizer makes no tokens of its prose")
        return taken, ends


def _tokens(
    read: Read, filler: str, placed: Sequence[tuple[int, str, bool]], question: str
) -> tuple[list[int], list[int]]:
    """The token ids of a text, and the indices of those of marked statements.

    Args:
        placed: statements in their order, each with its place in the filler, and whether it is marked.
    """
    pieces: list[str] = []
    marks: list[tuple[int, int]] = []
    done = length = 0
    for offset, statement, marked in placed:
        offset = min(offset, len(filler))
        pieces += [filler[done:offset], statement]
        length += offset - done + len(statement)
        done = offset
        marks += [(length - len(statement), length)] if marked else []
    ids, spans = read("".join([*pieces, filler[done:], question]))
    indices = []
    for index, (begin, end) in enumerate(spans):
        before = bisect_left(marks, (end, 0))  # the marks that begin before the end of the token
        if before and begin < marks[before - 1][1]:
            indices.append(index)
    return ids, indices


def parse_needle(name: str) -> Needle:
    """The needle of ``needle``, ``needle:pairs=64,answer=1``, ``needle:chain=4,chains=8`` or ``needle:copy=8``."""
    stated: dict[str, int] = {}
    for part in filter(None, name.partition(":")[2].split(",")):
        key, _, value = part.partition("=")
        if key.strip() not in DEFAULTS:
            raise unknown(f"setting of the text {WORD}", key.strip(), DEFAULTS)
        if key.strip() in stated:
            raise UsageError(f"text {name}: {key.strip()} is given twice")
        if not re.fullmatch(r"\s*[0-9]{1,9}\s*", value):
            raise UsageError(f"text {name}: {key.strip()}={value} is not a whole number")
        stated[key.strip()] = int(value)
    values = {**DEFAULTS, **stated}
    chained, copied = bool({"chain", "chains"} & set(stated)), values["copy"] if "copy" in stated else 0
    if ("pairs" in stated) + chained + ("copy" in stated) > 1:
        raise UsageError(f"text {name}: choose pairs, or chain and chains, or copy")
    groups, links = (values["chains"], values["chain"]) if chained else (1 if "copy" in stated else values["pairs"], 1)
    if values["answer"] > 1:
        raise UsageError(f"text {name}: answer={values['answer']}; choose 1 for a text that ends with the answer, or 0")
    if values["first"] > 1:
        raise UsageError(f"text {name}: first={values['first']}; choose 1 for a text that begins with it, or 0")
    if "copy" in stated and not 1 <= copied <= MOST:
        raise UsageError(f"text {name}: copy={copied}; choose a list of 1 to {MOST} numbers")
    if groups < 1 or links < (2 if chained else 1):
        raise UsageError(f"text {name}: it needs at least one pair, or a chain of two statements")
    if groups * (links + 1) > 2 * MOST:
        raise UsageError(f"text {name}: it has more than {MOST} statements")
    return Needle(groups, links, values["seed"], bool(values["answer"]), copied, bool(values["first"]))


def _chain(names: Sequence[int], value: int) -> list[str]:
    first = f" Variable {names[0]} has the value {value}."
    return [first, *(f" Variable {b} equals variable {a}." for a, b in zip(names, names[1:], strict=False))]
