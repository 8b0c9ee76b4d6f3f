"""Sets of keys from a file, ``selection:FILE``: the selection of any system, with exact softmax attention on it.

A safetensors file has ``indices``, (h, n_q, k) or (h_kv, n_q, k) int32: the keys of each row, each at most once, -1 in
an empty slot. Or it has ``blocks``, (h, ⌈n_q/b_q⌉, ⌈n_k/b_k⌉) bool: the blocks of keys of each block of rows. Several
layers and windows are ``layer{L}.window{W}.indices``. ``weights``, (h, n_q, k), belong to ``indices``.

Metadata, all optional: ``causal`` (``true`` or ``false``) and ``offset``, the position of the first row, which must
agree with Q, K and V; ``block``, ``b_q,b_k`` or one number for both; ``weights``, ``probability`` or ``log_bias``;
``heads``, the numbers of the heads as a JSON list; ``heads_of``, ``query`` or ``kv``; ``source``, the origin of the
sets.

With grouped queries, sets without ``heads`` are those of the KV heads if there are as many as the source has. KV heads
are numbered by their rows in the keys of the source. Numbers that can be those of either need ``heads_of``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ...approximation import Approximation
from ...errors import Unsupported, UsageError, cut
from ...files import MIB, open_regular, path_of, reading, replacing, save_tensors, writing
from ...grammar.lists import SELECTION
from ...grammar.metadata import SelectionMetadata
from ...operators import Sparse
from ...qkv import QKV
from ...rng import Streams
from ..registry import Method, Provenance
from .base import Selection, attend

WHOLE = ("I8", "I16", "I32", "I64", "U8")
STORED = {"indices": WHOLE, "blocks": ("BOOL",), "weights": ("F16", "BF16", "F32", "F64")}


def from_selection(name: str) -> Method:
    """The method ``selection:FILE``.

    Raises:
        UsageError: the file cannot be read, or has other tensors or metadata.
    """
    path = path_of(name.removeprefix(SELECTION))
    digest = hashlib.sha256()
    with reading(path, UsageError, ": no sets of keys can be read from it"), open_regular(path, None) as file:
        while part := file.read(MIB):
            digest.update(part)
    metadata = _checked(path)

    def judge(
        qkv: QKV,
        d: None,
        *,
        streams: Streams,
        target: str = "softmax",
        lookahead: Literal["refuse", "allow"] = "refuse",
    ) -> Approximation:
        return _judge(path, metadata, qkv, lookahead)

    judge.__doc__ = __doc__
    return Method(
        name=f"{SELECTION}{path.name}",
        function=judge,
        paper="sets of keys from a file",
        year=0,
        family="user",
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
        Unsupported: an approximation without sets of keys. UsageError: two of one layer and window; heads, a mask or
            positions of queries that differ between layers or windows; a path that cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    metadata = {"source": source}
    for qkv, approx in pairs:
        name = f"layer{qkv.layer}.window{qkv.window}.indices"
        if name in tensors:
            raise UsageError(f"selection: two sets of {name.removesuffix('.indices')}")
        tensors[name] = selected_keys(approx).to(torch.int32).cpu().contiguous()
        positions = qkv.query_positions.tolist()
        facts = {"causal": str(qkv.causal).lower(), "offset": str(positions[0])}
        facts["positions"] = json.dumps(positions) if positions != in_a_row(positions[0], qkv.n_q) else ""
        facts |= {"heads": json.dumps(list(qkv.heads)), "heads_of": "query"}
        for fact, value in facts.items():
            if metadata.setdefault(fact, value) != value:
                new, earlier = cut(value or "in a row"), cut(metadata[fact] or "in a row")
                raise UsageError(f"selection: {name} has {fact}={new}, others {earlier}: write two files")
    if not metadata.get("positions"):
        metadata.pop("positions", None)
    with writing(path), replacing(path_of(path)) as temporary:
        save_tensors(temporary, tensors, metadata)


def in_a_row(first: int, count: int) -> list[int]:
    """The positions of ``count`` queries from ``first`` on, without gaps."""
    return list(range(first, first + count))


def selected_keys(approx: Approximation) -> Tensor:
    """The keys of each row, (h, n_q, k) int64 with -1 in empty slots.

    A method that selects keys states them. The keys of another sparse operator are those with a weight that is not 0.
    """
    if approx.keys is not None:
        return approx.keys()
    operator = approx.operator
    if not isinstance(operator, Sparse):
        raise Unsupported("the method has no set of keys for each row; choose a sparse method, such as topk")
    of_row = torch.arange(operator.shape[1], device=operator.device) // operator.group
    return operator.index[:, of_row].masked_fill(operator.weight == 0, -1)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    with reading(path.name, UsageError):
        try:
            file = safe_open(path, framework="pt")
        except SafetensorError as error:
            raise UsageError(f"{path.name} is not a safetensors file: {error}") from error
        with file:
            yield file


def _checked(path: Path) -> SelectionMetadata:
    """The metadata of a file whose tensors have the axes and dtypes of sets."""
    with _opened(path) as file:
        names = list(file.keys())
        metadata = SelectionMetadata.read(path.name, file.metadata() or {}, UsageError)
        kinds = {name: kind for name in names if (kind := name.rpartition(".")[2]) in STORED}
        for name, kind in kinds.items():
            piece = file.get_slice(name)
            shape, dtype = tuple(piece.get_shape()), piece.get_dtype()
            if len(shape) != 3 or 0 in shape:
                raise UsageError(
                    f"{path.name}: {cut(name)} has shape {shape}; sets have three axes, none of length 0: heads, rows, "
                    "and keys or blocks"
                )
            if dtype not in STORED[kind]:
                raise UsageError(f"{path.name}: {cut(name)} is stored as {dtype}, not as {', '.join(STORED[kind])}")
            if metadata.heads is not None and len(metadata.heads) != shape[0]:
                heads = f"{len(metadata.heads)} numbers for the {shape[0]} heads of {cut(name)}"
                raise UsageError(f"{path.name}: metadata heads: {heads}")
    if not {"indices", "blocks"} & set(kinds.values()):
        raise UsageError(f"{path.name}: it has neither indices nor blocks")
    if "blocks" in kinds.values() and metadata.block is None:
        raise UsageError(f"{path.name}: blocks need the metadata block, their rows and keys, such as 64,128")
    return metadata


def _judge(path: Path, metadata: SelectionMetadata, qkv: QKV, lookahead: str) -> Approximation:
    tensors = _tensors(path, qkv)
    _check_facts(path, metadata, qkv)
    of_heads = partial(_of_heads, path, metadata=metadata, qkv=qkv)
    if "indices" in tensors:
        keys = of_heads(tensors["indices"]).long().to(qkv.device)
        _check_keys(path, keys, qkv)
    else:
        keys = _keys_of_blocks(path, of_heads(tensors["blocks"]), metadata, qkv).to(qkv.device)
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
    return _weighted(path, approx, qkv, of_heads(tensors["weights"]).to(qkv.q), metadata.weights)


def _tensors(path: Path, qkv: QKV) -> dict[str, Tensor]:
    """The tensors of the layer and window of ``qkv`` by their last names."""
    with _opened(path) as file:
        names = list(file.keys())
        here = f"layer{qkv.layer}.window{qkv.window}."
        # Files of one layer may name their tensors without a layer and window.
        prefix = here if any(name.startswith(here) for name in names) else ""
        tensors = {kind: file.get_tensor(prefix + kind) for kind in STORED if prefix + kind in names}
    if ("indices" in tensors) == ("blocks" in tensors):
        raise Unsupported(f"{path.name}: it needs either indices or blocks of layer {qkv.layer}, window {qkv.window}")
    return tensors


def _check_facts(path: Path, metadata: SelectionMetadata, qkv: QKV) -> None:
    facts = {"causal": qkv.causal, "offset": int(qkv.query_positions[0])}
    for name, value in facts.items():
        stated = getattr(metadata, name)
        if stated not in (None, value):
            of_file, of_qkv = (str(fact).lower() for fact in (stated, value))
            raise Unsupported(f"{path.name}: it is of inputs with {name}={of_file}, and these have {of_qkv}")
    stated, positions = metadata.positions, qkv.query_positions.tolist()
    if stated is None and metadata.offset is not None:
        stated = in_a_row(metadata.offset, qkv.n_q)
    if stated is None or len(stated) != qkv.n_q:  # another number of rows is refused by its sets
        return
    for row, (of_file, of_qkv) in enumerate(zip(stated, positions, strict=True)):
        if of_file != of_qkv:
            raise Unsupported(
                f"{path.name}: its row {row} is of a query at position {of_file}, and that of these inputs is at "
                f"{of_qkv}"
            )


def _of_heads(path: Path, tensor: Tensor, metadata: SelectionMetadata, qkv: QKV) -> Tensor:
    """The sets of the heads of ``qkv``, by their numbers, or by those of their KV heads in the source."""
    kv_heads, grouped = len(qkv.kv_groups), any(len(heads) > 1 for heads in qkv.kv_groups)
    numbers, kind = metadata.heads, metadata.heads_of
    if numbers is None:
        numbers = list(range(len(tensor)))
        kind = kind or ("kv" if grouped and len(tensor) == kv_heads else "query")
    elif kind is None and grouped and max(numbers) < kv_heads:
        raise Unsupported(
            f"{path.name}: its heads {numbers} can be query heads or KV heads; write heads_of, query or kv, into its "
            "metadata"
        )
    row_of = {number: row for row, number in enumerate(numbers)}
    wanted = qkv.kv_numbers if kind == "kv" else qkv.heads
    missing = [number for number in wanted if number not in row_of]
    if missing:
        raise Unsupported(f"{path.name}: it has no sets of {'KV ' if kind == 'kv' else ''}head {missing[0]}")
    return tensor[[row_of[number] for number in wanted]]


def _check_keys(path: Path, keys: Tensor, qkv: QKV) -> None:
    """Refuse sets of another number of rows, keys that do not exist, and keys that a row has twice."""
    if keys.shape[1] != qkv.n_q:
        raise Unsupported(f"{path.name}: it has {keys.shape[1]} rows, and there are {qkv.n_q} queries")
    if int(keys.max()) >= qkv.n_k or int(keys.min()) < -1:
        raise Unsupported(f"{path.name}: keys are -1 … {qkv.n_k - 1}; it has {int(keys.min())} … {int(keys.max())}")
    ordered = keys.sort(-1).values
    twice = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
    if twice.any():
        head, row, _ = (int(i) for i in twice.nonzero()[0])
        raise Unsupported(f"{path.name}: row {row} of head {qkv.heads[head]} has a key twice")


def _keys_of_blocks(path: Path, blocks: Tensor, metadata: SelectionMetadata, qkv: QKV) -> Tensor:
    """The keys of the blocks of each row, (h, n_q, k); keys after a row are left to the causal mask."""
    assert metadata.block is not None  # `_checked` has seen it
    of_rows, of_keys = metadata.block
    shape = (-(-qkv.n_q // of_rows), -(-qkv.n_k // of_keys))
    if blocks.shape[1:] != shape:
        raise Unsupported(f"{path.name}: blocks of {of_rows} x {of_keys} are {shape}, not {tuple(blocks.shape[1:])}")
    key = torch.arange(qkv.n_k, device=blocks.device)
    held = blocks[..., key // of_keys]  # (h, block rows, n_k)
    width = max(1, int(held.sum(-1).max()))
    order = torch.argsort((~held).to(torch.uint8), dim=-1, stable=True)[..., :width]
    keys = order.masked_fill(~held.gather(2, order), -1)
    return keys[:, torch.arange(qkv.n_q, device=blocks.device) // of_rows]


def _weighted(path: Path, approx: Approximation, qkv: QKV, weights: Tensor, kind: str) -> Approximation:
    """The rows with each weight divided by its inclusion probability, or times ``exp`` of its bias, renormalised."""
    operator = approx.operator
    assert isinstance(operator, Sparse) and approx.log_normalizer is not None
    if weights.shape != operator.weight.shape:
        raise Unsupported(f"{path.name}: weights {tuple(weights.shape)} do not fit indices {operator.weight.shape}")
    used = operator.weight > 0
    if kind == "probability" and not ((weights > 0) & (weights <= 1))[used].all():
        raise Unsupported(f"{path.name}: probabilities are in (0, 1]")
    if kind == "log_bias" and (weights.isnan() | (weights == float("inf")))[used].any():
        raise Unsupported(f"{path.name}: a log_bias is NaN or infinite")
    log_factor = (-weights.log() if kind == "probability" else weights).masked_fill(~used, float("-inf"))
    # The largest factor of a row is moved out before exp, so that biases of any size do not overflow.
    shift = log_factor.amax(-1, keepdim=True)
    shift = shift.masked_fill(shift == float("-inf"), 0)
    scaled = operator.weight * (log_factor - shift).exp()
    total = scaled.sum(-1, keepdim=True)
    tiny = torch.finfo(total.dtype).tiny
    row = Sparse(operator.index, scaled / total.clamp(min=tiny), qkv.n_k)
    log_sums = partial(_moved, approx.log_normalizer, (shift + total.clamp(min=tiny).log())[..., 0])
    return replace(approx, operator=row, output=row @ qkv.v, log_normalizer=log_sums)


def _moved(log_sums: Callable[[], Tensor], by: Tensor) -> Tensor:
    return log_sums() + by.to(log_sums())
