"""The file of a pack: the cases' tensors, and what a kernel must know of them as metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import SourceError, cut
from ...files import path_of, reading, replacing, save_tensors, writing
from .case import UNIT, Case, Expected, expected

ENTRY = "attnprobe_pack"  # the key of the metadata
SCHEMA = 1
TENSORS = ("q", "k", "v", "positions", "sink_logits", "keys_seen")  # of a case; the last two only where it has them
NUMBERS = ("scale", "causal", "window", "sink_tokens", "softcap")


@dataclass(frozen=True)
class Pack:
    """Cases, and the name under which they were made."""

    name: str
    cases: Sequence[Case]

    @cached_property
    def id(self) -> str:
        """The first 16 digits of a SHA-256 of all numbers, names and settings. Outputs can name it."""
        digest = hashlib.sha256()
        for name, tensor in self.tensors.items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            # as bytes, because numpy has no bfloat16
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        digest.update(json.dumps(self.settings).encode())
        return digest.hexdigest()[:16]

    @cached_property
    def expected(self) -> dict[str, Expected]:
        """What a kernel should return, by case."""
        return {case.name: expected(case) for case in self.cases}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors, each as ``CASE.NAME``."""
        named = {f"{case.name}.{name}": getattr(case, name) for case in self.cases for name in TENSORS}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """What a kernel must know of each case beside its tensors."""
        return {case.name: _settings(case) for case in self.cases}


def _settings(case: Case) -> dict[str, Any]:
    (heads, n_q, p), (kv_heads, n_k, p_v) = case.q.shape, case.v.shape
    facts: dict[str, Any] = {"dtype": str(case.dtype).removeprefix("torch."), "heads": heads, "kv_heads": kv_heads}
    facts |= {"n_q": n_q, "n_k": n_k, "p": p, "p_v": p_v}
    facts |= {name: getattr(case, name) for name in NUMBERS}
    facts["length"] = None if case.keys_seen is None else int(case.keys_seen.sum())
    return facts


def save_pack(pack: Pack, path: str | Path) -> Path:
    """Write a pack to a safetensors file, replaced atomically, and return its path.

    Raises:
        UsageError: the file cannot be written.
    """
    entry = {"schema": SCHEMA, "name": pack.name, "id": pack.id, "cases": pack.settings}
    with writing(path), replacing(path_of(path).resolve()) as temporary:
        save_tensors(temporary, pack.tensors, {ENTRY: json.dumps(entry)})
    return path_of(path)


def read_pack(path: str | Path) -> Pack:
    """The pack of a file.

    Raises:
        SourceError: no file, no pack, or one whose tensors are not those that were written.
    """
    with opened(path) as file:
        entry = json.loads((file.metadata() or {}).get(ENTRY, "null"))
        if not isinstance(entry, dict):
            raise SourceError(f"{path} is no pack: it lacks the metadata {ENTRY}; `attnprobe extract --pack` makes one")
        if entry["schema"] != SCHEMA:
            raise SourceError(f"{path} is a pack of schema {cut(str(entry['schema']))}; this version reads {SCHEMA}")
        names = set(file.keys())
        cases = []
        for name, facts in entry["cases"].items():
            tensors = {kind: file.get_tensor(f"{name}.{kind}") for kind in TENSORS if f"{name}.{kind}" in names}
            case = Case(name, **tensors, **{number: facts[number] for number in NUMBERS})
            if case.dtype not in UNIT:
                raise SourceError(f"{path}: case {cut(name)} has the dtype {case.dtype}, which no pack has")
            cases.append(case)
    pack = Pack(entry["name"], cases)
    if pack.id != entry["id"]:
        raise SourceError(f"{path}: its numbers are not those of pack {cut(str(entry['id']))}; make it again")
    return pack


@contextmanager
def opened(path: str | Path) -> Iterator[Any]:
    """A safetensors file.

    Raises:
        SourceError: it is absent, truncated, or no such file.
    """
    from safetensors import safe_open

    where = path_of(path, SourceError)
    if not where.is_file():
        raise SourceError(f"{path} {'is a directory' if where.is_dir() else 'does not exist'}: name a safetensors file")
    with reading(path, SourceError), safe_open(where, framework="pt") as file:
        yield file
