"""Texts: a user's file, Wikitext-2, or the prose in the package."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType

from ..errors import SourceError
from ..files import GIB, path_of, read_regular, text_file
from ..grammar.lists import EMBEDDED, NEEDLE, WIKITEXT, wikitext_name
from .hub import Unreachable, hub_reachable
from .needle import Needle, parse_needle

EMBEDDED_FILE = Path(__file__).with_name("embedded.txt")
EMBEDDED_SHA256 = "3ba6561d0056ac519ae2e66aac12fe3a80a0ebff32263186f4895966272877fd"
READINGS = 64  # how many times in a row the embedded text may be read
DATASET = "Salesforce/wikitext"


@dataclass(frozen=True)
class Text:
    """A text as it is in its file, with its line breaks.

    Attributes:
        name: its name in rows and titles.
        sha256: of the bytes of its file, with a byte order mark, which ``content`` does not have.
        readings: how many times in a row it may be read to give more tokens than it has.
        needle: makes a text of any length from the content, see `Needle`; None if the text is the content itself.
    """

    name: str
    content: str
    sha256: str
    split: str | None = None
    readings: int = 1
    needle: Needle | None = None

    @cached_property
    def lines(self) -> list[str]:
        """The content between line breaks: ``\\r\\n``, ``\\r`` or ``\\n``."""
        return re.split(r"\r\n|\r|\n", self.content)


def open_text(name: str, split: str = "test") -> Text:
    """The text that the user named."""
    if name == EMBEDDED:
        return embedded()
    if name.partition(":")[0] == NEEDLE:
        needle, prose = parse_needle(name), embedded()
        return Text(needle.name, prose.content, _sha256(f"{needle.name} in {prose.sha256}"), needle=needle)
    known = wikitext_name(name)
    return _file(name) if known is None else wikitext(known, split)


def embedded() -> Text:
    """The prose in the package: 42,626 English words, frozen, one paragraph per line."""
    data = EMBEDDED_FILE.read_bytes()
    # Runs on this text are compared between machines, so an edited copy must not pass for it.
    digest = hashlib.sha256(data).hexdigest()
    if digest != EMBEDDED_SHA256:
        raise SourceError(f"the embedded text {EMBEDDED_FILE} is not the published file (sha256): reinstall attnprobe")
    return Text(EMBEDDED, data.decode(), digest, readings=READINGS)


def wikitext(name: str = "wikitext-2", split: str = "test") -> Text:
    """Wikitext-2 from the hub or the cache of ``datasets``; ``wikitext-2:tokenised`` has ``<unk>`` for rare words.

    Raises:
        Unreachable: it is not cached, and the hub does not answer.
        SourceError: the split is empty, or ``datasets`` is not installed.
    """
    lost = f"cannot reach the hub for Wikitext-2 ('{name}'): use --text FILE or --text {EMBEDDED}"
    reachable = hub_reachable()
    if not reachable and not prepared(WIKITEXT[name]):
        raise Unreachable(lost)
    try:
        import datasets
    except ImportError as error:
        raise SourceError(f"'{name}' needs the package datasets: pip install datasets, or use --text FILE") from error
    with quiet_datasets(datasets, offline=not reachable):
        try:
            rows = datasets.load_dataset(DATASET, WIKITEXT[name], split=split)["text"]
        except Exception as error:  # connection, HTTP and cache errors of three libraries
            raise Unreachable(f"{lost} ({type(error).__name__})") from error
    content = "".join(str(row) for row in rows)  # a row has its own line break
    if not content.strip():
        raise SourceError(f"the split '{split}' of '{name}' is empty")
    return Text(name, content, _sha256(content), split)


@contextmanager
def quiet_datasets(datasets: ModuleType, *, offline: bool) -> Iterator[None]:
    """A context in which ``datasets`` prints nothing, and does not use the network if ``offline``."""
    bars, level = datasets.is_progress_bar_enabled(), datasets.logging.get_verbosity()
    before = datasets.config.HF_HUB_OFFLINE
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    datasets.config.HF_HUB_OFFLINE = before or offline
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
        datasets.logging.set_verbosity(level)
        if bars:
            datasets.enable_progress_bars()


def prepared(configuration: str, dataset: str = DATASET) -> bool:
    """Whether the cache of ``datasets`` holds this configuration, without importing ``datasets``."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    cache = path_of(os.environ.get("HF_DATASETS_CACHE") or os.path.join(home, "datasets"), SourceError)
    return any((cache / dataset.replace("/", "___") / configuration).glob("*/*/*.arrow"))


def _file(name: str) -> Text:
    path = text_file(name)
    try:
        data = read_regular(path, GIB)
        text = data.decode("utf-8")
    except OSError as error:
        raise SourceError(f"text {name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SourceError(
            f"text {name} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}; convert it first"
        ) from error
    if not text.strip():
        raise SourceError(f"text {name} is empty" if not data else f"text {name} holds nothing but white space")
    return Text(name, text.removeprefix("\ufeff"), hashlib.sha256(data).hexdigest())


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
