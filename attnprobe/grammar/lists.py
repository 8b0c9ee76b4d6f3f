"""The grammar of values: lists of integers, ``512,1024``, ``0-5``, of positive numbers, ``0.05,0.1``, and of words;
methods, ``NAME[:k=v,…]``, ``torch:KERNEL[:k=v,…]``, ``selection:FILE``, ``PATH.py:FUNCTION``, ``rotated:FORMAT``,
``POLICY+FORMAT``; the names of Wikitext-2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..errors import UsageError, unknown

SELECTION = "selection:"  # starts the names of methods that are sets of keys in a file

JOINT = re.compile(r":(?=[A-Za-z_]\w*=)")  # a colon in the place of a comma between options
ROTATED = "rotated:"  # starts the names of formats behind a rotation
SPELLING = re.compile(
    r"(?P<name>(?:torch|selection):[^:]*|.*?\.py(?::[^:+]*\+rotated:[^:]*|:[^:]*)?|(?:[^:+]*\+)?rotated:[^:]*|[^:]*)"
    r"(?P<colon>:?)(?P<options>.*)",
    re.S,
)


def parts(text: str) -> tuple[str, str | None]:
    """The name of a method and the text of its options, None without a colon after the name.

    >>> parts("skyformer:ridge=0.1,guard=none"), parts("./mine.py:fn:width=4"), parts("torch:flex")
    (('skyformer', 'ridge=0.1,guard=none'), ('./mine.py:fn', 'width=4'), ('torch:flex', None))
    >>> parts("snapkv+rotated:q4_0:observe=8"), parts("./mine.py:fn+rotated:q4_0:exact=4")
    (('snapkv+rotated:q4_0', 'observe=8'), ('./mine.py:fn+rotated:q4_0', 'exact=4'))
    """
    match = SPELLING.fullmatch(text)
    assert match is not None  # the pattern takes every text
    return match["name"].strip(), match["options"] if match["colon"] else None


def options_text(options: Mapping[str, object] | str | None) -> str:
    """Options of a method as one canonical text; a text stays as it is.

    >>> options_text({"ridge": 0.001, "inverse": "newton"}), options_text("guard=sampled"), options_text(None)
    ('inverse=newton,ridge=0.001', 'guard=sampled', '')
    """
    if isinstance(options, str):
        return options
    return ",".join(f"{name}={value}" for name, value in sorted((options or {}).items()))


def method_label(cell: Mapping[str, Any]) -> str:
    """The method of a row as the command line takes it, ``NAME[:k=v,…]``; empty for a row without a method.

    >>> method_label({"method": "skyformer", "options": {"ridge": 0.001, "inverse": "newton"}})
    'skyformer:inverse=newton,ridge=0.001'
    """
    options = options_text(cell.get("options"))
    return (cell["method"] or "") + (f":{options}" if options else "")


def options_of(text: str) -> dict[str, Any]:
    """The options of a canonical text (see `options_text`), with numbers and truth values.

    >>> options_of("inverse=newton,ridge=0.001,share_heads=True"), options_of("")
    ({'inverse': 'newton', 'ridge': 0.001, 'share_heads': True}, {})
    """
    pairs = (part.partition("=") for part in text.split(",") if part)
    return {name: _option(value) for name, _, value in pairs}


def _option(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    # whole numbers first: "8" is a float too
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def with_commas(text: str) -> str:
    """A method whose options are joined by commas, also where colons join them.

    >>> with_commas("skyformer:guard=sampled:d=8"), with_commas("./mine.py:fn:width=4"), with_commas("window:d=8")
    ('skyformer:guard=sampled,d=8', './mine.py:fn:width=4', 'window:d=8')
    >>> with_commas("guard=sampled:ridge=0.1")  # behind an earlier option
    'guard=sampled,ridge=0.1'
    """
    name, options = parts(text)
    if options is None:
        return text
    # a "name" with an equals sign is an option itself
    return name + ("," if "=" in name else ":") + JOINT.sub(",", options)


def refuse_colons(item: str) -> None:
    """Refuse colons between the options of an item, which has no comma itself."""
    if "," in (joined := with_commas(item)):
        raise UsageError(f"{item}: join options by commas: {joined}")


def file_and_function(name: str) -> tuple[str, str] | None:
    """The file and the function of ``PATH.py:FUNCTION``; the function may be empty. None for other names.

    >>> file_and_function("a/mine.py:fn"), file_and_function("mine.py"), file_and_function("svd")
    (('a/mine.py', 'fn'), ('mine.py', ''), None)
    """
    file, py, rest = name.rpartition(".py")  # the last one, because a folder's name may end in .py too
    return (file + py, rest[1:]) if py and (not rest or rest[0] == ":") else None


def policy_and_format(name: str) -> tuple[str, str] | None:
    """The two names of ``POLICY+FORMAT``; None for other names, such as that of a file with a plus.

    >>> policy_and_format("snapkv+rotated:q4_0"), policy_and_format("c++/mine.py:fn"), policy_and_format("svd")
    (('snapkv', 'rotated:q4_0'), None, None)
    """
    policy, plus, stored = name.rpartition("+")
    return (policy, stored) if plus and re.fullmatch(r"(rotated:)?[a-z0-9_-]+", stored) else None


def short_name(name: str) -> str:
    """The name in rows and legends: without the folder of a file.

    >>> short_name("a/mine.py:fn"), short_name("svd"), short_name("selection:a/sets.safetensors")
    ('mine.py:fn', 'svd', 'selection:sets.safetensors')
    """
    if name.startswith(SELECTION):
        return SELECTION + re.split(r"[/\\]", name.removeprefix(SELECTION))[-1]
    found = file_and_function(name)
    if found is None:
        return name
    path, function = found
    file = re.split(r"[/\\]", path)[-1]
    return f"{file}:{function}"


#: the names of Wikitext-2, and the configuration of the data set that each is
WIKITEXT = {"wikitext-2": "wikitext-2-raw-v1", "wikitext-2:tokenised": "wikitext-2-v1"}
EMBEDDED, NEEDLE = "embedded", "needle"
TEXTS = (*WIKITEXT, EMBEDDED, NEEDLE)
WEIGHTS = ("pretrained", "initialized", "initialized-qkv")
POSITIONS = ("segment", "wrap", "interpolate")  # of texts beyond a model's positions
SCORES = ("model", "plain")  # with what the model adds to its scores, or Q Kᵀ alone
SPLITS = ("train", "validation", "test")
DTYPES = ("float64", "float32", "bfloat16", "float16")


def check_device(name: str) -> None:
    """Refuse a name of no device.

    Raises:
        UsageError: the name is not ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", name):
        raise unknown("device", name, ("auto", "cpu", "cuda", "cuda:0"))


def is_file_of_text(name: str) -> bool:
    """Whether a text is a file, not one of `TEXTS`.

    >>> [is_file_of_text(name) for name in ("wikitext-2:tokenized", "needle:pairs=8", "embedded", "a.txt")]
    [False, False, False, True]
    """
    return wikitext_name(name) is None and name.partition(":")[0] not in (EMBEDDED, NEEDLE)


def wikitext_name(name: str) -> str | None:
    """The canonical name of Wikitext-2 for ``name``, in British or American spelling; None for another text.

    >>> wikitext_name("wikitext-2:tokenized"), wikitext_name("./tokenized.txt")
    ('wikitext-2:tokenised', None)
    """
    name = name.replace("tokenized", "tokenised")
    return name if name in WIKITEXT else None


LARGEST = 1e300  # of numbers that are given or measured, so that their sums are finite


def numbers(text: str, called: str, least: int = 0) -> tuple[int, ...]:
    """A list of whole numbers and ranges. Repeats count once.

    Raises:
        UsageError: a part that is no number or range, or a number below 0; the message names ``least``.

    >>> numbers("0,5,2-4", "layer")
    (0, 5, 2, 3, 4)
    """
    every: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            if not first and last.isdecimal():
                raise UsageError(f"{called}: {part.strip()} is below {least}; write a whole number from {least} on")
            raise UsageError(f"{called}: '{part.strip()}' is not a whole number or a range like 0-5")
        if max(len(first), len(last)) > 9:  # by its digits: a number of a million digits is slow to read
            raise UsageError(f"{called}: {part.strip()[:20]}… is too large; choose a number below 1000000000")
        low, high = int(first), int(last or first)
        if high < low:
            raise UsageError(f"{called}: the range {part.strip()} runs backwards; write {high}-{low}")
        if high - low >= 100_000:
            raise UsageError(f"{called}: the range {part.strip()} is too long; write at most 100000 numbers")
        every += range(low, high + 1)
    return tuple(dict.fromkeys(every))


def positive_numbers(text: str, called: str) -> tuple[int, ...]:
    """A list of whole numbers and ranges above 0, such as budgets."""
    values = numbers(text, called, least=1)
    if 0 in values:
        raise UsageError(f"{called}: 0 is below 1; write a whole number from 1 on")
    return values


def lengths(text: str, called: str) -> tuple[int, ...]:
    """A list of numbers of tokens, at least 2 each."""
    values = numbers(text, called, least=2)
    if min(values) < 2:
        raise UsageError(f"{called}={min(values)}: attention needs at least 2 tokens")
    return values


def chosen_numbers(numbers: Sequence[int] | str, called: str, available: Sequence[int]) -> tuple[int, ...]:
    """The requested numbers, if they are available; ``all`` is everything ``available``.

    >>> chosen_numbers("all", "head", range(3))
    (0, 1, 2)
    """
    if isinstance(numbers, str):
        return tuple(available)
    for number in numbers:
        if number not in available:
            raise UsageError(f"{called} {number} does not exist; choose from {spans(available)}")
    return tuple(numbers)


def positives(text: str, called: str) -> tuple[float, ...]:
    """A list of numbers above 0, in rising order. Repeats count once.

    >>> positives("0.5,0.1", "epsilon")
    (0.1, 0.5)
    """
    return tuple(sorted({positive(part, called) for part in text.split(",")}))


def positive(text: str, called: str) -> float:
    """A number above 0.

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
        raise UsageError(f"{called}: '{text.strip()}' is not a number above 0")
    if number > LARGEST:
        raise UsageError(f"{called}: '{text.strip()}' is too large; choose a number up to {LARGEST:g}")
    return number


def words(text: str, called: str) -> tuple[str, ...]:
    """A list of words."""
    parts = tuple(word.strip() for word in text.split(","))
    if not all(parts):
        raise UsageError(f"{called} '{text}': an empty word; write words with commas between them, such as a,b")
    return parts


def either(names: Sequence[str]) -> str:
    """Names as alternatives.

    >>> either(("train", "validation", "test")), either(("csv",))
    ('train, validation or test', 'csv')
    """
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def counted(word: str, numbers: Sequence[int]) -> str:
    """Sorted numbers behind the word for them, such as layers.

    >>> counted("layer", [5]), counted("layer", [0, 1, 5])
    ('layer 5', 'layers 0-1, 5')
    """
    return f"{word if len(numbers) < 2 else f'{word}s'} {spans(numbers)}"


def spans(numbers: Sequence[int]) -> str:
    """Sorted numbers, with ranges where they follow one another.

    >>> spans([0, 1, 2, 5])
    '0-2, 5'
    """
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in spans)
