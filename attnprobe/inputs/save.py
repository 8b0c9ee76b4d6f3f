"""Writing Q, K and V of a source to a safetensors file, which `FileSource` reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from ..errors import UsageError
from ..files import naming, path_of, replacing, save_tensors, writing
from ..grammar.arguments import checked
from ..grammar.metadata import OF_LAYERS
from .files import ENTRY, EXTRA, SCHEMA
from .spec import Source


@checked()
def save_qkv(path: str | Path, source: Source, n: int, layers: Sequence[int], windows: int = 1) -> Path:
    """Write Q, K, V of ``n`` tokens for each of ``layers`` and ``windows`` text windows, and return the path.

    The file is replaced atomically. All tensors are in memory until the end: ``(h + 2 h_kv) n p`` numbers for each
    layer and window.

    Raises:
        UsageError: the path cannot be written; a mask, or causal layers beside others, which the format cannot store;
            see also `Source.check`.
    """
    if not str(path).strip():
        raise UsageError("the name of the file to write is empty")
    with writing(path):
        path = path_of(path).resolve()
        if path.exists() and not path.is_file():
            raise UsageError(f"{path}: not a regular file")
    source.check(n, windows, layers)
    with naming(path), replacing(path) as temporary:
        temporary.touch()  # a folder that takes no file is refused before the forward
        tensors: dict[str, Tensor] = {}
        storages: set[int] = set()
        numbers: dict[str, dict[str, float]] = {}  # by field and layer
        heads: tuple[int, ...] = ()
        causal: set[bool] = set()
        for window in range(windows):
            for layer, qkv in source.qkv(n, layers, window).items():
                if qkv.mask is not None:
                    raise UsageError(f"{path}: layer {layer} has a mask, which this file format cannot store")
                heads = qkv.heads
                causal.add(qkv.causal)
                parts = qkv.parts()
                for field in OF_LAYERS:
                    if parts[field]:
                        numbers.setdefault(field, {})[str(layer)] = parts[field]
                for axis in ("q", "k", "v", *EXTRA):
                    if parts[axis] is not None:
                        tensor = parts[axis].cpu().contiguous()
                        if tensor.untyped_storage().data_ptr() in storages:  # layers share the positions of queries
                            tensor = tensor.clone()  # the format needs memory of its own
                        storages.add(tensor.untyped_storage().data_ptr())
                        tensors[f"layer{layer}.window{window}.{axis}"] = tensor
        if len(causal) > 1:
            raise UsageError(f"{path}: only some layers are causal, which this file format cannot store")
        facts = {name: fact for name, fact in source.facts.items() if name != "captured"}
        entry = {"schema": SCHEMA, "facts": facts, "n": n, "heads": list(heads), **numbers}
        entry |= {"causal": True} if True in causal else {}
        save_tensors(temporary, tensors, {ENTRY: json.dumps(entry, sort_keys=True)})
    return path
