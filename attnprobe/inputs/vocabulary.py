"""Tokenizers: from a tokenizer.json, a WordPiece vocab.txt, a model's directory, or built from the text itself.

Each becomes a ``tokenizers.Tokenizer`` without truncation and padding: some published files set both, which would cut
or pad the text. A ``vocab.txt`` is read here, because ``BertTokenizerFast(vocab_file=…)`` of transformers 5 silently
maps every word to [UNK].
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SourceError
from ..files import MIB, path_of, read_json, read_regular, reading
from .hooks.interface import quiet
from .hub import SENTENCEPIECE, fetch
from .packaged import is_gguf, local_model
from .text import Text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LARGEST = 256 * MIB  # the size limit of a tokenizer
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST = 1_000_000  # a larger model_max_length means "unset"
MARGIN = 2**10  # characters that a tokenizer sees behind a word that counts, see `Vocabulary.start`
MOST_GROWTH = 256  # the factor by which a normaliser may lengthen a text, beside `LENGTHENING`
LENGTHENING = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "BertNormalizer": 12, "ByteLevel": 4}
COUNTED = 4_000_000  # the first characters of the text, whose words make the fallback vocabulary


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer with its name, hash, length limit and special tokens.

    Args:
        name: its name in rows and titles.
        tokenizer: the tokenizer itself.
        sha256: the hash of its file.
        longest: its ``model_max_length``, if it is set.
    """

    name: str
    tokenizer: Tokenizer
    sha256: str
    longest: int | None = None
    before: tuple[int, ...] = field(init=False)
    after: tuple[int, ...] = field(init=False)
    unknown: int | None = field(init=False)

    def __post_init__(self) -> None:
        with self._used():
            growth = _growth(self.tokenizer.normalizer)
            # A file of a few bytes can otherwise make a text that does not fit into memory.
            if growth > MOST_GROWTH:
                raise ValueError(
                    f"its normaliser may lengthen a text {growth:.3g} times, and {MOST_GROWTH} times is allowed"
                )
            self.tokenizer.no_truncation()
            self.tokenizer.no_padding()
            before, after = _around(self.tokenizer)
            object.__setattr__(self, "before", before)
            object.__setattr__(self, "after", after)
            object.__setattr__(self, "unknown", _unknown(self.tokenizer))

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Turns the exceptions of a defective tokenizer into a `SourceError`."""
        with reading(f"tokenizer {self.name}", SourceError, " cannot be used"), _silenced():
            yield

    @cached_property
    def drops_line_breaks(self) -> bool:
        """Whether a line break is only a border between words, as in BERT: it makes no token and changes none."""
        parts = (self.tokenizer.normalizer, self.tokenizer.pre_tokenizer)
        return [type(part).__name__ for part in parts] == ["BertNormalizer", "BertPreTokenizer"]

    def read(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The token ids of a text without special tokens, and the first character and the end of each."""
        with self._used():
            encoding = self.tokenizer.encode(text, add_special_tokens=False)
            return encoding.ids, encoding.offsets

    def start(self, text: str, length: int) -> list[int]:
        """The first token ids of the whole text, as far as its first ``length`` characters determine them.

        Only these characters are tokenised. A tokenizer cuts a text into words and works on each word alone. The last
        words depend on what follows, so only words before a border count. The border is the last end of a run of
        characters without white space that has `MARGIN` characters behind it. The last word before it does not count
        either, because some tokenizers state its end without its white space.

        So the ids are those of the whole text if the cut into words at a border depends on no character more than
        `MARGIN` behind it, as with every pattern that looks ahead to the end of a word or of white space. A tokenizer
        that does not cut a text into words (Llama 2, Gemma 3) gives no ids until ``length`` covers the text.
        """
        if length >= len(text):
            return self.read(text)[0]
        border = _border(text, length - MARGIN)
        with self._used():
            encoding = self.tokenizer.encode(text[:length], add_special_tokens=False)
        words = encoding.word_ids
        inside = next((index for index, (_, end) in enumerate(encoding.offsets) if end > border), len(words))
        last = words[inside - 1] if inside else None
        return [number for number, word in zip(encoding.ids[:inside], words[:inside], strict=True) if word != last]

    def unopened(self, ids: list[int]) -> list[int]:
        """The ids of a text without the special tokens `before` it, which are added again, if it begins with them.

        >>> from tokenizers import Tokenizer, models, processors
        >>> tokenizer = Tokenizer(models.WordLevel({"a": 0, "<s>": 1}))
        >>> tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        >>> Vocabulary("v", tokenizer, "").unopened([1, 0, 1])
        [0, 1]
        """
        before = list(self.before)
        return ids[len(before) :] if before and ids[: len(before)] == before else ids


@contextmanager
def _silenced() -> Iterator[None]:
    """Discard the stderr output of compiled code inside the block: a panic prints its own trace."""
    try:
        saved = os.dup(2)
    except OSError:  # closed
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def open_tokenizer(name: str, *, cache: bool = True) -> Vocabulary:
    """The tokenizer that the user named: a file, or that of a model as in `SourceSpec`.

    Args:
        cache: see `local_model`.
    """
    path = path_of(name, SourceError)
    if path.is_file() and not is_gguf(name):
        return _of_json(name, path) if path.suffix == ".json" else _of_vocabulary_file(name, path)
    if path.suffix in (".txt", ".json"):
        raise SourceError(f"no such tokenizer file: {name}")
    local = local_model(name, cache=cache)
    vocabulary = of_folder(name, fetch(name, weights=False) if local is None else local.path)
    if local is not None:
        local.hold()
    if vocabulary is None:
        raise SourceError(f"{name} has no tokenizer: no tokenizer.json and no vocab.txt")
    return vocabulary


def of_folder(name: str, folder: Path) -> Vocabulary | None:
    """The tokenizer in a model's directory; None if the directory has no tokenizer file."""
    longest = _longest(folder)
    if (folder / "tokenizer.json").is_file():
        return _of_json(name, folder / "tokenizer.json", longest)
    if (folder / "vocab.txt").is_file():
        return _of_vocabulary_file(name, folder / "vocab.txt", longest)
    if not any((folder / file).is_file() for file in ("vocab.json", *SENTENCEPIECE)):
        return None
    from transformers import AutoTokenizer

    with reading(name, SourceError, ": its tokenizer cannot be read; use --tokenizer"), _silenced(), quiet():
        slow = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    backend = getattr(slow, "backend_tokenizer", None)
    if backend is None:
        raise SourceError(f"{name}: its tokenizer has no fast form; save it as tokenizer.json or use --tokenizer")
    return Vocabulary(name, backend, hashlib.sha256(backend.to_str().encode()).hexdigest(), longest)


def wordpiece(tokens: Sequence[str], *, cased: bool) -> Tokenizer:
    """BERT's tokenizer over ``tokens``, numbered in their order.

    >>> tokenizer = wordpiece(["[UNK]", "[CLS]", "[SEP]", "a", "##b"], cased=True)
    >>> tokenizer.encode("ab a c").tokens
    ['[CLS]', 'a', '##b', 'a', '[UNK]', '[SEP]']
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    ids = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([token for token in SPECIALS if token in ids])
    if "[CLS]" in ids and "[SEP]" in ids:
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    return tokenizer


def fallback_vocabulary(text: Text, size: int) -> Vocabulary:
    """A cased WordPiece vocabulary of the words of the text, with at most ``size`` entries, the same in every run.

    It has the five special tokens, the characters, the ``##`` characters, then the words by (-count, word). (The
    training of WordPiece in ``tokenizers`` is not deterministic.)
    """
    from tokenizers import normalizers, pre_tokenizers

    normalizer, split = normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    seen = 0
    for line in text.lines:
        words.update(word for word, _ in split.pre_tokenize_str(normalizer.normalize_str(line)))
        seen += len(line)
        if seen >= COUNTED:
            break
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    ranked = [character for character, _ in sorted(characters.items(), key=lambda item: (-item[1], item[0]))]
    pieces = [*SPECIALS, *ranked, *("##" + character for character in ranked)]
    known = set(pieces)
    pieces += [w for w, _ in sorted(words.items(), key=lambda item: (-item[1], item[0])) if w not in known]
    pieces = pieces[:size]
    digest = hashlib.sha256("\n".join(pieces).encode()).hexdigest()
    return Vocabulary(f"words of {text.name}", wordpiece(pieces, cased=True), digest)


def _of_json(name: str, path: Path, longest: int | None = None) -> Vocabulary:
    from tokenizers import Tokenizer

    with reading(path, SourceError, " is not a tokenizer.json"), _silenced():
        data = read_regular(path, LARGEST)
        tokenizer = Tokenizer.from_buffer(data)
    return Vocabulary(name, tokenizer, hashlib.sha256(data).hexdigest(), longest)


def _of_vocabulary_file(name: str, path: Path, longest: int | None = None) -> Vocabulary:
    with reading(path, SourceError, " is not a vocabulary"):
        data = read_regular(path, LARGEST)
        tokens = data.decode("utf-8").replace("\r\n", "\n").split("\n")
    if tokens[-1] == "":
        tokens.pop()
    if "[UNK]" not in tokens:
        raise SourceError(f"{path} is not a WordPiece vocabulary: it has no line [UNK]")
    plain = (token for token in tokens if not (token.startswith("[") and token.endswith("]")))
    # A vocab.txt does not say whether its words are cased; a capital letter in one does.
    cased = any(token != token.lower() for token in plain)
    return Vocabulary(name, wordpiece(tokens, cased=cased), hashlib.sha256(data).hexdigest(), longest)


def _longest(folder: Path) -> int | None:
    try:
        longest: Any = read_json(folder / "tokenizer_config.json", LARGEST).get("model_max_length")
    except (OSError, ValueError, AttributeError):
        return None
    return int(longest) if isinstance(longest, (int, float)) and 2 <= longest < LONGEST else None


def _growth(normalizer: Any) -> float:
    """The largest factor by which a normaliser may lengthen a text.

    The first normaliser of each kind of `LENGTHENING` counts as 1.
    """
    settings = {} if normalizer is None else json.loads(normalizer.__getstate__())
    steps = list(_steps(settings))
    growth = 1.0
    for index, (kind, step) in enumerate(steps):
        if kind == "Replace":
            matched = step["pattern"].get("String")
            growth *= (
                1 + len(step["content"]) if matched is None else max(1, len(step["content"]) / max(1, len(matched)))
            )
        elif kind == "Prepend":
            growth *= 1 + len(step["prepend"])
        elif kind == "Precompiled":
            growth *= _longest_replacement(base64.b64decode(step["precompiled_charsmap"]))
        elif kind in [earlier for earlier, _ in steps[:index]]:
            growth *= LENGTHENING.get(kind, 1)
    return growth


def _steps(settings: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The normalisers of a sequence, in their order, each with its kind."""
    for step in settings.get("normalizers", []):
        yield from _steps(step)
    if settings.get("type", "Sequence") != "Sequence":
        yield settings["type"], settings


def _longest_replacement(charsmap: bytes) -> int:
    """The characters of the longest text in a map of SentencePiece: a size, a trie of it, texts that end with a 0."""
    texts = charsmap[4 + int.from_bytes(charsmap[:4], "little") :]
    return max(1, *(len(text.decode(errors="replace")) for text in texts.split(b"\0")))


def _border(text: str, stop: int) -> int:
    """The last place up to ``stop`` at which white space follows another character; 0 if there is none."""
    for index in range(min(stop, len(text) - 1), 0, -1):
        if text[index] in " \t\r\n" and not text[index - 1].isspace():
            return index
    return 0


def _around(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special tokens that the tokenizer adds before and after a text."""
    bare, full = tokenizer.encode("a", add_special_tokens=False).ids, tokenizer.encode("a").ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    return (), ()


def _unknown(tokenizer: Tokenizer) -> int | None:
    token = getattr(tokenizer.model, "unk_token", None)
    if token is not None:
        return tokenizer.token_to_id(token)
    if hasattr(tokenizer.model, "nbest_size"):  # Unigram, whose unknown id is only in its JSON
        return json.loads(tokenizer.to_str())["model"].get("unk_id")
    return None
