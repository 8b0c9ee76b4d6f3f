"""The caches between runs: of captures (Q, K and V, facts about a model and its text), and of converted models.

An entry is one file, or a folder with a model: ``KEY-SHA256.SUFFIX``. Its name has the hash of its bytes, so that
damage is detected by reading. An entry is written by a rename, so it is complete or absent. Several processes may read,
write and evict entries at the same time. Models have a folder of their own: captures do not evict them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from torch import Tensor

from ..errors import UsageError, cut
from ..files import GIB, MIB, parse_json, path_of, replacing
from ..machine.environment import CACHE_DIR, CACHE_SIZE
from .folder import Seal

FORM = 10  # raised when captures of the same source change
LARGEST = 4 * GIB  # of all entries, by default
UNCOUNTED = 64  # a process that has stored this part of a cache counts the entries again
ENTRY = re.compile(r"[^-]+-[0-9a-f]{64}\.(json|safetensors|model)")  # the name of an entry
FOLDER = ".model"  # the suffix of an entry that is a folder
# The number of the process is in the name, so that folders of killed processes can be told from live ones.
MAKING = re.compile(r"\.(\d+)-\w+\.tmp")  # the name of a folder in which a process makes an entry
TITLE = "name"  # the file in it that holds the user's name of the model
UNITS = {"": 1, "K": 2**10, "M": MIB, "G": GIB, "T": 2**40}


@dataclass(frozen=True)
class Entry:
    """A file or folder of the cache.

    Attributes:
        used: the time of the last reading or writing, in seconds since 1970. size: in bytes.
    """

    path: Path
    used: float
    size: int

    @property
    def key(self) -> str:
        """The key of the capture."""
        return self.path.name.partition("-")[0]

    @property
    def sha256(self) -> str:
        """The hash of its bytes, by its name."""
        return self.path.stem.partition("-")[2]


@dataclass(frozen=True)
class Cache:
    """Entries in a folder of limited size. If they exceed it, the least recently used ones are removed.

    Faults of the folder never end a run. An unreadable entry is computed again, an unwritable one is not stored, and
    ``notify`` gets a line.

    Args:
        folder: it is created for the first entry. largest: the bytes of all entries; 0 turns the cache off.
        notify: called with a line for the user.
    """

    folder: Path
    largest: int = LARGEST
    notify: Callable[[str], None] = lambda line: None

    def facts(self, key: str) -> dict[str, Any] | None:
        """The facts of a key; None if there are none."""
        data = self._bytes(key, ".json")
        return None if data is None else parse_json(data)

    def keep_facts(self, key: str, facts: Mapping[str, Any]) -> None:
        """Store JSON facts under a key, replacing earlier ones."""
        self._keep(key, ".json", json.dumps(facts, sort_keys=True).encode())

    def tensors(self, key: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The tensors of a key, on the CPU, and their facts; None if there are none."""
        from safetensors.torch import load

        data = self._bytes(key, ".safetensors")
        return None if data is None else (load(data), _stored_facts(BytesIO(data)))

    def holds_tensors(self, key: str) -> bool:
        """Whether tensors are stored under a key; they are not read."""
        return bool(self.largest) and any(self._files(key, ".safetensors"))

    def keep_tensors(self, key: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Store tensors and JSON facts under a key, replacing earlier ones."""
        from safetensors.torch import save

        if self.largest:
            stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            self._keep(key, ".safetensors", save(stored, {"facts": json.dumps(facts, sort_keys=True)}))

    def folder_of(self, key: str) -> Seal | None:
        """The seal of the files in the folder of a key; None if there is none."""
        for path in self._files(key, FOLDER):
            with suppress(OSError):
                # Hashing a model takes seconds, and a damaged one would give other numbers without a word.
                seal = Seal(sorted(path.iterdir()))
                if seal.sha256 == Entry(path, 0, 0).sha256:
                    os.utime(path)
                    return seal
                _remove(path)
                self.notify(f"{path}: the converted model is damaged; it is converted again")
        return None

    def keep_folder(self, key: str, seal: Seal) -> bool:
        """Move the folder of sealed files under a key. If the cache is off, small or faulty, it stays where it is."""
        folder, size = seal.files[0].parent, sum(file.stat().st_size for file in seal.files)
        if not self.largest:
            return False
        if size > self.largest:
            words = f"{size / MIB:,.0f} MiB are more than it may hold, see {CACHE_SIZE}"
            self.notify(f"{self.folder}: the converted model is not cached: {words}")
            return False
        path = self.folder / f"{key}-{seal.sha256}{FOLDER}"
        try:
            if not path.exists():  # another process may have made it
                os.rename(folder, path)
        except OSError as error:
            self.notify(f"{self.folder}: the converted model is not cached: {error.strerror or error}")
            return False
        seal.move(path)
        self._evict(path.name, size)
        return True

    def label(self, entry: Entry) -> str:
        """The contents of an entry, in words; empty if it cannot be read."""
        try:
            if entry.path.suffix == FOLDER:
                return f"model {(entry.path / TITLE).read_text(encoding='utf-8')}"
            with entry.path.open("rb") as file:
                if entry.path.suffix == ".json":
                    return _words("model and text", parse_json(file.read())["facts"])
                facts = _stored_facts(file)
            return _words(facts["what"], facts)
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def entries(self) -> list[Entry]:
        """Every entry, the least recently used first."""
        unordered = []
        for path in self._files():
            with suppress(OSError):  # another process may remove it
                files = path.iterdir() if path.is_dir() else [path]
                unordered.append(Entry(path, path.lstat().st_mtime, sum(file.stat().st_size for file in files)))
        return sorted(unordered, key=lambda entry: (entry.used, entry.path.name))

    def clear(self) -> int:
        """Remove every entry and every unfinished one, and return their number. Other files in the folder stay."""
        entries, unfinished = self.entries(), self.unfinished()
        for entry in entries:
            _remove(entry.path)
        for path in unfinished:
            rmtree(path, ignore_errors=True)
        return len(entries) + len(unfinished)

    def making(self) -> TemporaryDirectory[str]:
        """A new empty folder in this folder, whose folders can be renamed to entries."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return TemporaryDirectory(prefix=f".{os.getpid()}-", suffix=".tmp", dir=self.folder)

    def unfinished(self) -> list[Path]:
        """The folders of `making` that killed processes of this machine left."""
        with suppress(OSError):
            named = [(path, MAKING.fullmatch(path.name)) for path in self.folder.glob(".*.tmp")]
            folders = [(path, name) for path, name in named if name and path.is_dir() and not path.is_symlink()]
            return [path for path, name in folders if not _runs(int(name[1]))]
        return []

    def _files(self, key: str = "[!.]*", suffix: str = ".*") -> Iterator[Path]:
        """The entries of a key: files and folders with the name of an entry. All others are not the cache's."""
        with suppress(OSError):
            for path in self.folder.glob(f"{key}-*{suffix}"):
                fits = path.is_dir() if path.suffix == FOLDER else path.is_file()
                if fits and ENTRY.fullmatch(path.name) and not path.is_symlink():
                    yield path

    def _bytes(self, key: str, suffix: str) -> bytes | None:
        """The bytes of the entry of a key, if their hash is the one in its name. A damaged entry is removed."""
        if not self.largest:
            return None
        for path in self._files(key, suffix):
            with suppress(OSError):
                data = path.read_bytes()
                if hashlib.sha256(data).hexdigest() == Entry(path, 0, 0).sha256:
                    os.utime(path)  # the order of eviction; times of access are often not kept by a file system
                    return data
                path.unlink(missing_ok=True)
                self.notify(f"{path}: the cached capture is damaged; it is made again")
        return None

    def _keep(self, key: str, suffix: str, data: bytes) -> None:
        if len(data) > self.largest:
            return
        name = f"{key}-{hashlib.sha256(data).hexdigest()}{suffix}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with replacing(self.folder / name) as temporary:
                # Captures hold what a private text says, so nobody else may read them, not even while they are written.
                temporary.touch(mode=0o600)
                temporary.write_bytes(data)
        except OSError as error:
            self.notify(f"{self.folder}: the capture is not cached: {error.strerror or error}")
            return
        # Another hash has another name, so the earlier entry of the key is not replaced by the rename.
        for other in self._files(key, suffix):
            if other.name != name:
                other.unlink(missing_ok=True)
        self._evict(name, len(data))

    def _evict(self, newest: str, size: int) -> None:
        """Remove the least recently used entries beyond the size of the cache, after the newest one was stored.

        To read the sizes of thousands of entries takes longer than to store one. So they are read again only where the
        entries of the last time may exceed the cache with those stored since, or these are a share that other processes
        may have stored too.
        """
        counted, since = _counted.get(self.folder, (self.largest, 0))
        since += size
        if counted + since <= self.largest and since <= self.largest // UNCOUNTED:
            _counted[self.folder] = counted, since
            return
        entries = self.entries()
        total = sum(entry.size for entry in entries)
        for entry in entries:
            if total > self.largest and entry.path.name != newest:  # else a large entry would evict itself, and others
                _remove(entry.path)
                total -= entry.size
        _counted[self.folder] = total, 0


#: the bytes of the entries of each folder when they were last counted, and of those that this process stored since
_counted: dict[Path, tuple[int, int]] = {}

#: stores nothing
NO_CACHE = Cache(Path(), largest=0)


def default_cache(notify: Callable[[str], None] = lambda line: None, kind: str = "captures") -> Cache:
    """The user's cache of ``captures`` or ``models``: that folder in ``$ATTNPROBE_CACHE_DIR``.

    If the variable is not set, it is in ``$XDG_CACHE_HOME/attnprobe``, otherwise in ``~/.cache/attnprobe``.

    Raises:
        UsageError: ``ATTNPROBE_CACHE_SIZE`` is not a size, or a folder cannot be a path.
    """
    home = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "attnprobe")
    return Cache(path_of(os.environ.get(CACHE_DIR) or home) / kind, _largest(), notify)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is another user's
        return True
    return True


def _remove(path: Path) -> None:
    """Remove an entry, which another process may have removed already."""
    if path.suffix != FOLDER:
        path.unlink(missing_ok=True)
        return
    with suppress(OSError):  # a folder in it is not the cache's
        for file in path.iterdir():
            file.unlink(missing_ok=True)
        path.rmdir()


def _stored_facts(file: BinaryIO) -> dict[str, Any]:
    """The JSON facts in the header of a safetensors file."""
    # The length comes from a file that may be damaged: no more than MIB of it is believed.
    size = int.from_bytes(file.read(8), "little")
    return parse_json(parse_json(file.read(min(size, MIB)))["__metadata__"]["facts"])


def _words(what: str, facts: Mapping[str, Any]) -> str:
    named = (f"{name} {facts[name]}" for name in ("model", "weights", "text", "layer", "n", "window") if name in facts)
    return f"{what}: {', '.join(named)}"


def _largest() -> int:
    text = os.environ.get(CACHE_SIZE, "").strip()
    if not text:
        return LARGEST
    size = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if size is None:
        raise UsageError(f"{CACHE_SIZE}={cut(text)}: write a size, such as 4GiB or 500MB; 0 switches the cache off")
    return int(float(size[1]) * UNITS[size[2].upper()])


def key_of(*facts: Any) -> str:
    """The key of JSON facts: 32 hexadecimal digits of their SHA-256."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]
