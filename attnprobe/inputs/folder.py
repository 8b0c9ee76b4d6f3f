"""A model's directory: its required files, with a one-line error for each fault."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from reprlib import repr as shown
from typing import Any

from ..errors import SourceError, nearest
from ..files import MIB, path_of, read_json, read_regular, reading
from ..grammar.arguments import fault

LARGEST = 64 * MIB  # the size limit of a configuration and of the list of a model's shards
# far above any real model; transformers would try to build a module for each
MOST = {"layer": 10_000, "head": 100_000, "expert": 100_000, "label": 1_000_000}  # by a word in the setting's name
KINDS: dict[str, Any] = {  # of settings that transformers reads before it checks any
    "architectures": list[str] | None,
    "dtype": str | None,
    "id2label": dict | None,
    "layer_types": list[str] | None,
    "model_type": str | None,
    "num_labels": int | None,
    "rope_parameters": dict | None,
    "torch_dtype": str | None,
}
SETTINGS = ("*.json", "*.txt", "*.model")  # configuration and tokenizer
PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "tf_model.h5", "flax_model.msgpack")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def looks_like_a_path(name: str) -> bool:
    """Whether ``name`` is a path: it does not have the form of a hub id (``NAME`` or ``OWNER/NAME``), or it exists.

    >>> looks_like_a_path("bert-base-cased"), looks_like_a_path("google-bert/bert-base-cased")
    (False, False)
    >>> looks_like_a_path("/models/bert"), looks_like_a_path("./bert"), looks_like_a_path("a/b/c")
    (True, True, True)
    """
    marked = name.startswith((".", "~", os.sep)) or name.endswith(os.sep) or name.count("/") > 1 or "\\" in name
    return marked or path_of(name, SourceError).exists()


def directory(name: str) -> Path:
    """The directory that a path-like argument names."""
    path = path_of(name, SourceError)
    if path.is_dir():
        return path
    if path.exists():
        raise SourceError(f"{name} is a file: name a directory with config.json, or a GGUF file (.gguf)")
    siblings = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
    near = nearest(path.name, siblings) if siblings else ""
    raise SourceError(f"no such directory: {name}{near if 'did you mean' in near else ''}")


def settings_sha256(folder: Path) -> str:
    """The SHA-256 of all files of configuration and tokenizer in a model's directory."""
    names = {path.name for pattern in SETTINGS for path in folder.glob(pattern)}
    digests = [(name, hashlib.sha256(read_regular(folder / name, LARGEST)).hexdigest()) for name in sorted(names)]
    return hashlib.sha256(repr(digests).encode()).hexdigest()


class Seal:
    """Files that are hashed before they are read, and checked to be unchanged afterwards.

    Attributes:
        sha256: the hash of the files, see `combined_sha256`.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = list(files)
        self._stamps = self._now()  # before hashing, to detect a write during it
        self.sha256 = combined_sha256(self.files)

    def hold(self) -> None:
        """Refuse files that changed since they were hashed."""
        if self._now() == self._stamps:
            return
        try:
            same = combined_sha256(self.files) == self.sha256
        except OSError:  # one is gone
            same = False
        if not same:
            where = self.files[0] if len(self.files) == 1 else self.files[0].parent
            raise SourceError(f"{where}: changed while it was read; run again")

    def move(self, folder: Path) -> None:
        """Follow the files into the folder to which theirs was renamed, or into one with the same files."""
        self.files = [folder / file.name for file in self.files]

    def _now(self) -> list[tuple[int, ...]]:
        stats = [file.stat() if file.exists() else None for file in self.files]
        return [(s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) if s else () for s in stats]


@dataclass(frozen=True)
class ModelFolder:
    """A directory with a model.

    Attributes:
        name: the user's name of it, for messages. revision: that of the hub; None for a local directory.
        seals: the hashes of its files, which must be the same after reading.
        origin_sha256: the SHA-256 of the GGUF file that the directory was converted from, which all seals belong to.
    """

    name: str
    path: Path
    revision: str | None = None
    seals: tuple[Seal, ...] = ()
    origin_sha256: str | None = None

    @property
    def weights_sha256(self) -> str:
        """The SHA-256 of the weights of a sealed folder, as they were published."""
        return self.origin_sha256 or self.seals[-1].sha256

    def sealed(self) -> ModelFolder:
        """The same folder with a seal on its tensors, as the last seal."""
        if self.origin_sha256 is not None:
            return self
        files = self.tensors()
        of_tensors = [seal for seal in self.seals if seal.files == files]
        others = [seal for seal in self.seals if seal.files != files]
        return replace(self, seals=(*others, *(of_tensors or [Seal(files)])))

    def hold(self) -> None:
        """Refuse a directory whose files changed since they were hashed. Call it after reading them."""
        for seal in self.seals:
            seal.hold()

    def settings(self) -> dict[str, Any]:
        """The contents of config.json."""
        file = self.path / "config.json"
        if not file.is_file():
            raise SourceError(f"{self.name} has no config.json: name a directory written by save_pretrained")
        with reading(f"{self.name}/config.json", SourceError, " is not valid"):
            settings = read_json(file, LARGEST)
            if not isinstance(settings, dict):
                raise ValueError("no object at the top level")
            refuse_settings(settings)
        return settings

    def tensors(self) -> list[Path]:
        """The safetensors files, each with a header that fits its length."""
        from safetensors import SafetensorError, safe_open

        single, index = self.path / "model.safetensors", self.path / "model.safetensors.index.json"
        if single.is_file():
            files = [single]
        elif index.is_file():
            files = [self.path / shard for shard in self._shards(index)]
        else:
            pickled = [path.name for pattern in PICKLES for path in sorted(self.path.glob(pattern))]
            if pickled:
                way_out = f", only {pickled[0]}: convert it first (load it if you trust it, then save_pretrained)"
            else:
                way_out = ": --weights initialized needs only config.json"
            raise SourceError(f"{self.name} has no model.safetensors{way_out}")
        for file in files:
            try:
                with safe_open(file, framework="pt"):
                    pass
            except (SafetensorError, OSError, ValueError) as error:
                raise SourceError(f"{self.name}/{file.name} is damaged: {error}") from error
        return files

    def _shards(self, index: Path) -> list[str]:
        with reading(f"{self.name}/{index.name}", SourceError, " is not valid"):
            shards = sorted(set(read_json(index, LARGEST)["weight_map"].values()))
            for shard in shards:
                if not isinstance(shard, str) or shard in ("", ".", "..") or set(shard) & {"/", "\\", "\0"}:
                    raise ValueError(f"a shard's name is {shown(shard)}, not that of a file in the same directory")
        for shard in shards:
            if not (self.path / shard).is_file():
                raise SourceError(f"{self.name}/{shard} is missing ({index.name} lists it)")
        return shards


def refuse_settings(settings: Any, where: str = "") -> None:
    """Refuse what transformers would not, or not in words: absurd numbers of layers, heads, experts or labels, before
    any is built, and settings of another kind than `KINDS`.
    """
    for name, value in settings.items():
        if name in KINDS and (problem := fault(value, KINDS[name])) is not None:
            raise ValueError(f"{where}{name}{problem}")
        if isinstance(value, dict):
            refuse_settings(value, f"{where}{name}.")
        elif isinstance(value, (int, float)):
            for word, most in MOST.items():
                if word in name and value > most:
                    raise ValueError(f"{where}{name} is {shown(value)}, which is more than {most}")


def combined_sha256(files: Sequence[Path]) -> str:
    """The SHA-256 of one file, or of the sorted lines ``NAME DIGEST`` of several."""
    if len(files) == 1:
        return sha256_of(files[0])
    lines = "".join(f"{file.name} {sha256_of(file)}\n" for file in sorted(files))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()
