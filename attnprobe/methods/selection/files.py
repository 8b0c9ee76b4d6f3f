"""Sets of keys from a file, ``selection:FILE``: the selection of any system, with exact softmax attention on it.

A safetensors file has ``indices``, (h, n_q, k) or (h_kv, n_q, k) int32: the keys of each row, each at most once, -1 in
an empty slot. Or it has ``blocks``, (h, ⌈n_q/b_q⌉, ⌈n_k/b_k⌉) bool: the blocks of keys of each block of rows. Several
layers and windows are ``layer{L}.window{W}.indices``. ``weights``, (h, n_q, k), belong to ``indices``.

Metadata, all optional: ``causal`` (``true`` or ``false``) and ``offset``, the position of the first row, which must
agree with Q, K and V; ``block``, ``b_q,b_k`` or one number for both; ``weights``, ``probability`` or ``log_bias``;
``heads``, the numbers of the heads as a JSON list; ``source``, the origin of the sets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ...approximation import Approximation
from ...errors import Unsupported, UsageError
from ...files import MIB, open_regular, reading, replacing, save_tensors, writing
from ...grammar.spelling import SELECTION
from ...operators import Sparse
from ...qkv import QKV
from ...rng import Streams
from ..registry import Method, Provenance
from .base import Selection, attend

__all__ = ["from_selection", "save_selection", "selected_keys"]


def from_selection(name: str) -> Method:
    """The method ``selection:FILE``.

    Raises:
        UsageError: the file cannot be read.
    """
    path = Path(name.removeprefix(SELECTION)).expanduser()
    digest = hashlib.sha256()
    with reading(path, UsageError, ": no sets of keys can be read from it"), open_regular(path, None) as file:
        while part := file.read(MIB):
            digest.update(part)

    def judge(
        qkv: QKV,
        d: None,
        *,
        streams: Streams,
        target: str = "softmax",
        lookahead: Literal["refuse", "allow"] = "refuse",
    ) -> Approximation:
        return _judge(path, qkv, lookahead)

    judge.__doc__ = __doc__
    return Method(
        name=f"{SELECTION}{path.name}",
        function=judge,
        paper="sets of keys from a file",
        year=0,
        family="user",
        targets=("softmax",),
        kind="user",
        tags=("deterministic", "nonnegative", "causal", "local"),
        budget=None,
        cost="not stated",
        oracle="the sets of the file",
        provenance=Provenance(str(path), digest.hexdigest()),
    )


def save_selection(path: str | Path, pairs: Iterable[tuple[QKV, Approximation]], source: str = "") -> None:
    """Write the keys that approximations use, for each layer and window of their Q, K and V.

    Args:
        pairs: Q, K and V with their approximation.
        source: the origin of the sets, for the metadata.

    Raises:
        Unsupported: an approximation without sets of keys. UsageError: two of one layer and window; a path that cannot
            be written.
    """
    tensors: dict[str, Tensor] = {}
    metadata = {"source": source}
    for qkv, approx in pairs:
        name = f"layer{qkv.layer}.window{qkv.window}.indices"
        if name in tensors:
            raise UsageError(f"selection: two sets of {name.removesuffix('.indices')}")
        tensors[name] = selected_keys(approx).to(torch.int32).cpu().contiguous()
        facts = {"causal": str(qkv.causal).lower(), "offset": str(int(qkv.query_positions[0]))}
        metadata |= facts | {"heads": json.dumps(list(qkv.heads))}
    with writing(path), replacing(Path(path)) as temporary:
        save_tensors(temporary, tensors, metadata)


def selected_keys(approx: Approximation) -> Tensor:
    """The keys of each row, (h, n_q, k) int64 with -1 in empty slots.

    A method that selects keys states them. The keys of another sparse operator are those with a weight that is not 0.

    Raises:
        Unsupported: the approximation has no sets of keys.
    """
    if approx.keys is not None:
        return approx.keys()
    operator = approx.operator
    if not isinstance(operator, Sparse):
        raise Unsupported("the method has no set of keys for each row; choose a sparse method, such as topk")
    of_row = torch.arange(operator.shape[1], device=operator.device) // operator.group
    return operator.index[:, of_row].masked_fill(operator.weight == 0, -1)


def _judge(path: Path, qkv: QKV, lookahead: str) -> Approximation:
    tensors, metadata = _read(path, qkv)
    _check_facts(path, metadata, qkv)
    if "indices" in tensors:
        keys = _of_heads(path, tensors["indices"], metadata, qkv).long().to(qkv.device)
        _check_keys(path, keys, qkv)
    else:
        keys = _keys_of_blocks(path, _of_heads(path, tensors["blocks"], metadata, qkv), metadata, qkv).to(qkv.device)
    ahead = torch.zeros_like(keys, dtype=torch.bool)
    if "indices" in tensors and qkv.causal:
        ahead = keys > qkv.query_positions[:, None]
    if lookahead == "refuse" and ahead.any():
        head, row, slot = (int(i) for i in ahead.nonzero()[0])
        raise Unsupported(
            f"{path.name}: row {row} of head {qkv.heads[head]} has key {int(keys[head, row, slot])}, which comes after "
            "it; lookahead=allow leaves such keys out and counts them"
        )
    approx = attend(qkv, Selection(keys.masked_fill(ahead, -1), 1, 0.0))
    diagnostics = {**approx.diagnostics, "future_keys": ahead.sum((1, 2)).double().cpu()}
    approx = replace(approx, diagnostics=diagnostics)
    if "weights" not in tensors:
        return approx
    weights = _of_heads(path, tensors["weights"], metadata, qkv).to(qkv.q)
    return _weighted(path, approx, qkv, weights, metadata.get("weights", "probability"))


def _read(path: Path, qkv: QKV) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of the layer and window of ``qkv`` by their last names, and the metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            names, metadata = list(file.keys()), file.metadata() or {}
            place = f"layer{qkv.layer}.window{qkv.window}."
            prefix = place if any(name.startswith(place) for name in names) else ""
            kinds = ("indices", "blocks", "weights")
            tensors = {kind: file.get_tensor(prefix + kind) for kind in kinds if prefix + kind in names}
    except SafetensorError as error:
        raise UsageError(f"{path.name} is not a safetensors file: {error}") from error
    if ("indices" in tensors) == ("blocks" in tensors):
        raise UsageError(f"{path.name}: it needs either indices or blocks of layer {qkv.layer}, window {qkv.window}")
    if any(tensor.dim() != 3 for tensor in tensors.values()):
        raise UsageError(f"{path.name}: sets have three axes: heads, rows, and keys or blocks")
    return tensors, metadata


def _check_facts(path: Path, metadata: dict[str, str], qkv: QKV) -> None:
    facts = {"causal": str(qkv.causal).lower(), "offset": str(int(qkv.query_positions[0]))}
    for name, value in facts.items():
        if metadata.get(name, value) != value:
            raise UsageError(f"{path.name}: it is of inputs with {name}={metadata[name]}, and these have {value}")


def _of_heads(path: Path, tensor: Tensor, metadata: dict[str, str], qkv: QKV) -> Tensor:
    """The sets of the heads of ``qkv``, by their numbers, or by those of their KV heads."""
    numbers = json.loads(metadata["heads"]) if "heads" in metadata else list(range(len(tensor)))
    places = {number: place for place, number in enumerate(numbers)}
    heads: tuple[int, ...] = qkv.heads
    if max(heads) not in places and qkv.group > 1:
        heads = tuple(head // qkv.group for head in heads)
    missing = [head for head in heads if head not in places]
    if missing or len(numbers) != len(tensor):
        raise UsageError(f"{path.name}: it has no sets of head {missing[0] if missing else 'numbers'}")
    return tensor[[places[head] for head in heads]]


def _check_keys(path: Path, keys: Tensor, qkv: QKV) -> None:
    """Refuse sets of another number of rows, keys that do not exist, and keys that a row has twice."""
    if keys.shape[1] != qkv.n_q:
        raise UsageError(f"{path.name}: it has {keys.shape[1]} rows, and there are {qkv.n_q} queries")
    if int(keys.max()) >= qkv.n_k or int(keys.min()) < -1:
        raise UsageError(f"{path.name}: keys are -1 … {qkv.n_k - 1}; it has {int(keys.min())} … {int(keys.max())}")
    ordered = keys.sort(-1).values
    twice = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
    if twice.any():
        head, row, _ = (int(i) for i in twice.nonzero()[0])
        raise UsageError(f"{path.name}: row {row} of head {qkv.heads[head]} has a key twice")


def _keys_of_blocks(path: Path, blocks: Tensor, metadata: dict[str, str], qkv: QKV) -> Tensor:
    """The keys of the blocks of each row, (h, n_q, k); keys after a row are left to the causal mask."""
    sizes = [int(part) for part in metadata.get("block", "0").split(",")]
    of_rows, of_keys = sizes[0], sizes[-1]
    shape = (-(-qkv.n_q // max(1, of_rows)), -(-qkv.n_k // max(1, of_keys)))
    if of_rows < 1 or of_keys < 1 or blocks.shape[1:] != shape:
        raise UsageError(f"{path.name}: blocks of {of_rows} x {of_keys} are {shape}, not {tuple(blocks.shape[1:])}")
    held = blocks.bool().repeat_interleave(of_keys, 2)[..., : qkv.n_k]  # (h, block rows, n_k)
    width = max(1, int(held.sum(-1).max()))
    order = torch.argsort((~held).to(torch.uint8), dim=-1, stable=True)[..., :width]
    keys = order.masked_fill(~held.gather(2, order), -1)
    return keys.repeat_interleave(of_rows, 1)[:, : qkv.n_q]


def _weighted(path: Path, approx: Approximation, qkv: QKV, weights: Tensor, kind: str) -> Approximation:
    """The rows with each weight divided by its inclusion probability, or times ``exp`` of its bias, renormalised."""
    if kind not in ("probability", "log_bias"):
        raise UsageError(f"{path.name}: weights are probability or log_bias, not {kind}")
    operator = approx.operator
    assert isinstance(operator, Sparse) and approx.log_normalizer is not None
    if weights.shape != operator.weight.shape:
        raise UsageError(f"{path.name}: weights {tuple(weights.shape)} do not fit indices {operator.weight.shape}")
    used = operator.weight > 0
    if kind == "probability" and not ((weights > 0) & (weights <= 1))[used].all():
        raise UsageError(f"{path.name}: probabilities are in (0, 1]")
    log_factor = (-weights.log() if kind == "probability" else weights).masked_fill(~used, 0)
    shift = log_factor.amax(-1, keepdim=True)
    scaled = operator.weight * (log_factor - shift).exp()
    total = scaled.sum(-1, keepdim=True)
    tiny = torch.finfo(total.dtype).tiny
    row = Sparse(operator.index, scaled / total.clamp(min=tiny), qkv.n_k)
    log_sums = partial(_moved, approx.log_normalizer, (shift + total.clamp(min=tiny).log())[..., 0])
    return replace(approx, operator=row, output=row @ qkv.v, log_normalizer=log_sums)


def _moved(log_sums: Callable[[], Tensor], by: Tensor) -> Tensor:
    return log_sums() + by.to(log_sums())
