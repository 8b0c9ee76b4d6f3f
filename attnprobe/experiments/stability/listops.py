"""ListOps (Nangia & Bowman 2018) with the settings of the Long Range Arena (Tay et al. 2021), generated from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ...rng import generator

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
SYMBOLS = (*map(str, range(10)), *OPERATORS, "]")
CLASSES = 10
DEPTH = 10  # of the tree, its root at depth 1
ARGUMENTS = 10  # of an operator, at most; 2 at least
NESTED = 0.25  # the chance that a node above the greatest depth is an operator


class _TooLong(Exception):
    """An expression that has outgrown its length."""


def expression(seed: int, number: int, shortest: int, longest: int) -> tuple[list[int], int]:
    """The expression of this number: its tokens, as indices into `SYMBOLS`, and its value, 0 … 9.

    A node above depth 10 is an operator with probability ¼, and otherwise one of ten equally likely digits. An operator
    is MIN, MAX, MED or SM (the sum modulo 10), with 2 to 10 arguments; every number is equally likely. Trees are drawn
    until one has more than ``shortest`` and fewer than ``longest`` tokens. An operator with its bracket is one token.
    There are no parentheses: the published tokeniser drops those of its files.

    >>> tokens, value = expression(0, 0, 10, 20)
    >>> " ".join(SYMBOLS[token] for token in tokens), value, value == evaluated(tokens)
    ('[MAX 2 [MIN 5 6 ] 4 5 6 2 5 7 3 ]', 7, True)
    """
    draw = random.Random(generator(seed, "listops", number).initial_seed())
    while True:
        tokens: list[int] = []
        try:
            value = _grown(draw, 1, tokens, longest)
        except _TooLong:
            continue
        if shortest < len(tokens) < longest:
            return tokens, value


def evaluated(tokens: Sequence[int]) -> int:
    """The value of an expression.

    >>> evaluated([SYMBOLS.index(symbol) for symbol in "[SM 7 [MED 1 2 5 8 ] 4 ]".split()])
    4
    """
    open_: list[tuple[int, list[int]]] = [(-1, [])]
    for token in tokens:
        symbol = SYMBOLS[token]
        if symbol in OPERATORS:
            open_.append((token, []))
        elif symbol == "]":
            operator, arguments = open_.pop()
            open_[-1][1].append(_applied(SYMBOLS[operator], arguments))
        else:
            open_[-1][1].append(token)
    return open_[0][1][0]


def _grown(draw: random.Random, depth: int, tokens: list[int], longest: int) -> int:
    """Append a tree's tokens, and return its value."""
    if len(tokens) >= longest:
        raise _TooLong
    if depth >= DEPTH or draw.random() > NESTED:
        digit = draw.randrange(10)
        tokens.append(digit)
        return digit
    place = len(tokens)
    tokens.append(-1)  # its operator is drawn after its arguments, as in the published generator
    arguments = [_grown(draw, depth + 1, tokens, longest) for _ in range(draw.randint(2, ARGUMENTS))]
    operator = draw.choice(OPERATORS)
    tokens[place] = SYMBOLS.index(operator)
    tokens.append(SYMBOLS.index("]"))
    return _applied(operator, arguments)


def _applied(operator: str, arguments: Sequence[int]) -> int:
    if operator == "[MIN":
        return min(arguments)
    if operator == "[MAX":
        return max(arguments)
    if operator == "[SM":
        return sum(arguments) % 10
    ordered, half = sorted(arguments), len(arguments) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) // 2  # the mean, rounded down
