"""Data of tasks: ListOps, generated from a seed, and texts with a class.

ListOps (Nangia & Bowman 2018) has the settings of the Long Range Arena (Tay et al. 2021). Texts are the user's, IMDb if
a hub can be reached, or a text whose halves are the classes.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import SourceError
from ...files import GIB, path_of, read_regular, reading
from ...inputs.hub import Unreachable, hub_reachable
from ...inputs.spec import SourceSpec
from ...inputs.text import embedded, open_text, prepared, quiet_datasets
from ...rng import generator

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
SYMBOLS = (*map(str, range(10)), *OPERATORS, "]")
CLASSES = 10
DEPTH = 10  # the greatest depth of a tree, whose root is at depth 1
ARGUMENTS = 10  # the most arguments of an operator; the fewest are 2
NESTED = 0.25  # the chance that a node above the greatest depth is an operator
IMDB = "imdb"
DATASET, CONFIGURATION = "stanfordnlp/imdb", "plain_text"
HALVES = "which half of the text a window is from"
WAY_OUT = "use --text FILE, a DIR with a folder for each label, or --text embedded"


class _TooLong(Exception):
    """An expression that has outgrown its length."""


def expression(seed: int, number: int, shortest: int, longest: int) -> tuple[list[int], int]:
    """The expression of this number: its tokens, as indices into `SYMBOLS`, and its value, 0 … 9.

    A node above depth 10 is an operator with probability ¼, and otherwise a digit; the ten digits are equally likely.
    An operator is MIN, MAX, MED or SM (the sum modulo 10), with 2 to 10 arguments; every number of arguments is equally
    likely. Trees are drawn until a tree has more than ``shortest`` and fewer than ``longest`` tokens. An operator with
    its bracket is one token. There are no parentheses, because the published tokeniser drops them.

    >>> tokens, value = expression(0, 0, 10, 20)
    >>> " ".join(SYMBOLS[token] for token in tokens), value
    ('[MAX 2 [MIN 5 6 ] 4 5 6 2 5 7 3 ]', 7)
    """
    # Python's generator, whose choices of lists are the same on every platform
    draw = random.Random(generator(seed, "listops", number).initial_seed())
    while True:
        tokens: list[int] = []
        try:
            value = _grown(draw, 1, tokens, longest)
        except _TooLong:
            continue
        # both ends are excluded, as in the published generator
        if shortest < len(tokens) < longest:
            return tokens, value


def _grown(draw: random.Random, depth: int, tokens: list[int], longest: int) -> int:
    """Append a tree's tokens, and return its value."""
    if len(tokens) >= longest:
        raise _TooLong
    if depth >= DEPTH or draw.random() > NESTED:
        digit = draw.randrange(10)
        tokens.append(digit)
        return digit
    # the operator stands before its arguments and is drawn after them, as in the published generator
    position = len(tokens)
    # its place, filled below
    tokens.append(-1)
    arguments = [_grown(draw, depth + 1, tokens, longest) for _ in range(draw.randint(2, ARGUMENTS))]
    operator = draw.choice(OPERATORS)
    tokens[position] = SYMBOLS.index(operator)
    tokens.append(SYMBOLS.index("]"))
    return _applied(operator, arguments)


def _applied(operator: str, arguments: Sequence[int]) -> int:
    """The value of an operator; the median of an even number of arguments is the mean of two, rounded down."""
    if operator == "[MIN":
        return min(arguments)
    if operator == "[MAX":
        return max(arguments)
    if operator == "[SM":
        return sum(arguments) % 10
    ordered, half = sorted(arguments), len(arguments) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) // 2


@dataclass(frozen=True)
class Documents:
    """Documents as bytes with their labels.

    Attributes:
        name: of the text in rows and titles. labels: indices into ``classes``.
        labelling: the meaning of a label, in words. synthetic: whether the labels are made up here.
        fallback: a line on the substitution of the text; empty without one.
    """

    name: str
    texts: Sequence[bytes]
    labels: Sequence[int]
    classes: Sequence[str]
    labelling: str
    sha256: str
    synthetic: bool = False
    fallback: Sequence[str] = field(default_factory=tuple)

    @property
    def facts(self) -> dict[str, Any]:
        return {"text": self.name, "text_sha256": self.sha256, "labels": self.labelling, "classes": len(self.classes)}

    def at_least(self, least: int) -> Documents:
        """The documents of at least ``least`` bytes."""
        pairs = [(text, label) for text, label in zip(self.texts, self.labels, strict=True) if len(text) >= least]
        return replace(self, texts=[text for text, _ in pairs], labels=[label for _, label in pairs])


def labelled_text(spec: SourceSpec, n: int, notify: Callable[[str], None] = lambda line: None) -> Documents:
    """The documents that ``spec.text`` names.

    - ``FILE.tsv``: a document a line, ``label<TAB>text``;
    - ``DIR``: a folder for each label, a document in each ``.txt`` file;
    - ``imdb``: the training half of IMDb through ``datasets``; the default if a hub can be reached;
    - any other text of `open_text`: windows of n bytes of it, labelled with the half that a window is from. The papers
      have no such task, and facts and titles say so.

    Raises:
        SourceError: the text is absent, empty, not UTF-8, or has no label; IMDb is out of reach.
    """
    if spec.text is None:
        try:
            return _imdb()
        except Unreachable as error:
            if spec.strict:
                raise
            line = f"{error}; reading the embedded text"
            notify(line)
            return _halves(embedded(), n, line)
    if spec.text == IMDB:
        return _imdb()
    path = path_of(spec.text, SourceError)
    if path.is_dir():
        return _folders(spec.text, path)
    if path.suffix == ".tsv":
        return _lines(spec.text, path)
    return _halves(open_text(spec.text, spec.split), n)


def _halves(text: Any, n: int, *fallback: str) -> Documents:
    """Windows of n bytes of a text, each with the half of the text that it is from."""
    data = text.content.encode()
    windows = [data[start : start + n] for start in range(0, len(data) - n + 1, n)]
    labels = [int(2 * number >= len(windows)) for number in range(len(windows))]
    return Documents(text.name, windows, labels, ("first", "second"), HALVES, text.sha256, True, fallback)


def _lines(name: str, path: Path) -> Documents:
    """``label<TAB>text``, a document a line."""
    try:
        data = read_regular(path, GIB)
        lines = [line for line in data.decode("utf-8-sig").splitlines() if line.strip()]
    except OSError as error:
        raise SourceError(f"text {name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"text {name} is not UTF-8: byte {error.start}; convert it first") from error
    pairs = []
    for number, line in enumerate(lines, 1):
        label, tab, text = line.partition("\t")
        if not tab or not label.strip():
            raise SourceError(f"text {name}: document {number} is not label<TAB>text")
        pairs.append((label.strip(), text.encode()))
    return _of_pairs(name, pairs, f"given, of {len({label for label, _ in pairs})}", hashlib.sha256(data).hexdigest())


def _folders(name: str, path: Path) -> Documents:
    """A folder for each label, with a document in each file."""
    digest, pairs = hashlib.sha256(), []
    with reading(f"text {name}", SourceError):
        for folder in sorted(entry for entry in path.iterdir() if entry.is_dir()):
            for file in sorted(folder.glob("*.txt")):
                data = read_regular(file, GIB)
                # with names and lengths, so that a text moved to another file changes the hash
                header = f"{folder.name}/{file.name} {len(data)}\n"
                digest.update(header.encode("utf-8", "surrogateescape") + data)
                pairs.append((folder.name, data))
    if not pairs:
        raise SourceError(f"text {name} is a directory without a folder of .txt files for each label")
    return _of_pairs(name, pairs, f"the folder, of {len({label for label, _ in pairs})}", digest.hexdigest())


def _imdb() -> Documents:
    """The 25,000 reviews of IMDb's training half."""
    reachable = hub_reachable()
    lost = f"cannot reach the hub for IMDb: {WAY_OUT}"
    if not reachable and not prepared(CONFIGURATION, DATASET):
        raise Unreachable(lost)
    try:
        import datasets
    except ImportError as error:
        raise SourceError(f"'{IMDB}' needs the package datasets: pip install datasets, or {WAY_OUT}") from error
    with quiet_datasets(datasets, offline=not reachable):
        try:
            rows = datasets.load_dataset(DATASET, CONFIGURATION, split="train")
        except Exception as error:  # connection, HTTP and cache errors of three libraries
            raise Unreachable(f"{lost} ({type(error).__name__})") from error
    words = ("negative", "positive")
    pairs = [(words[label], text.encode()) for text, label in zip(rows["text"], rows["label"], strict=True)]
    digest = hashlib.sha256(b"".join(text for _, text in pairs)).hexdigest()
    return _of_pairs(IMDB, pairs, "of the review, 2 of them", digest)


def _of_pairs(name: str, pairs: Sequence[tuple[str, bytes]], labelling: str, digest: str) -> Documents:
    """The documents of ``(label, text)`` pairs."""
    classes = sorted({label for label, _ in pairs})
    if len(classes) < 2:
        raise SourceError(f"text {name} has documents of {len(classes)} label; a classifier needs at least 2")
    index_of = {label: index for index, label in enumerate(classes)}
    texts, labels = [text for _, text in pairs], [index_of[label] for label, _ in pairs]
    return Documents(name, texts, labels, classes, labelling, digest)
