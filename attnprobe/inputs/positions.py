"""One verified forward over ``n`` tokens, by the policy for sequences longer than the model's positions.

``segment``: each segment is read separately with positions from 0, and Q, K, V are concatenated (the papers' protocol).
``wrap``: one sequence, whose positions restart with each segment. ``interpolate``: one sequence, with a table of
position embeddings that is interpolated linearly to ``n`` rows. For shorter sequences the three are the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import SourceError, UsageError
from ..operators.block import Block
from .hooks.call import BLOCK_BYTES, Angles, AttentionCall
from .hooks.capture import capture_layers
from .hooks.standins import only_length

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: model types whose first position is numbered pad_token_id + 1
OFFSET = ("roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "data2vec-text", "xmod")
OFFSET += ("ibert", "lilt", "longformer", "luke", "mpnet")


LONGEST = 8192  # the most tokens that a decoder reads in one forward for some queries; its mask has n² numbers
PART = 512  # tokens of a forward with a cache of keys
NEAR = 1e-3  # the relative distance of hidden states behind a cache from those of the whole text
ROUNDING = 16  # or so many roundings of the model's dtype
TENSORS = ("q", "k", "v", "sink_logits", "positions", "all_queries", "bias", "own")  # the tensors of a capture
OF_BLOCK = ("size", "projected", "gain")  # those of its block, without W_O


@dataclass(frozen=True)
class Captured:
    """Q (h, n, p), K and V (h_kv, n, ·) of one layer, as the model computed them.

    Attributes:
        scale: the factor on the scores. causal, sliding_window, sink_logits, positions, all_queries, bias, softcap,
            own, positional: as in `QKV`. A bias of keys is one more coordinate of Q and K, see
            `AttentionCall.with_coordinate`.
        delta: the relative distance between exact attention, recomputed from these tensors, and the model's own. It is
            verified to be small.
        block: what the layer adds to the residual stream, with sizes (n,); None if it was not found.
        rope: as in `AttentionCall`; None too if positions begin again in each segment.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    causal: bool
    delta: float
    sliding_window: int | None = None
    sink_logits: Tensor | None = None
    positions: Tensor | None = None
    all_queries: Tensor | None = None
    block: Block | None = None
    rope: Angles | None = None
    bias: Tensor | None = None
    softcap: float | None = None
    own: Tensor | None = None
    positional: int = 0

    def of(self, queries: Tensor) -> Captured:
        """The same capture with the queries of some tokens (n_q,) only."""
        block = None if self.block is None else self.block.at(queries)
        bias, own = (x if x is None else x[:, queries] for x in (self.bias, self.own))
        return replace(
            self, q=self.q[:, queries], positions=queries, all_queries=self.q, block=block, bias=bias, own=own
        )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the capture by name, except W_O."""
        named = {name: getattr(self, name) for name in TENSORS}
        if self.block is not None:
            named |= {f"block_{name}": getattr(self.block, name) for name in OF_BLOCK}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @property
    def proved(self) -> dict[str, Any]:
        """The other facts of the capture by name, as JSON values."""
        facts = {part.name: getattr(self, part.name) for part in fields(self) if part.name not in (*TENSORS, "block")}
        return facts if self.block is None else facts | {"block_eps": self.block.eps}

    @classmethod
    def stored(cls, tensors: Mapping[str, Tensor], proved: Mapping[str, Any], weight: Tensor | None) -> Captured:
        """The capture of its `tensors` and `proved` facts, and of W_O if it has a block."""
        parts = {**tensors, **proved}
        of_block = {name[len("block_") :]: parts.pop(name) for name in [*parts] if name.startswith("block_")}
        return cls(**parts, block=None if weight is None else Block(weight, **of_block))


def first_position(config: Any) -> int:
    """The row of the position table that the first token uses."""
    return (config.pad_token_id or 0) + 1 if config.model_type in OFFSET else 0


def max_positions(config: Any) -> int | None:
    """The number of positions of the model; None if it has no limit."""
    rows = getattr(config, "max_position_embeddings", None)
    return int(rows) - first_position(config) if isinstance(rows, int) and rows > 0 else None


def read(
    model: PreTrainedModel,
    name: str,
    segments: Sequence[Sequence[int]],
    layers: Sequence[int],
    policy: str,
    queries: Tensor | None = None,
    scores: str = "model",
) -> dict[int, Captured]:
    """The capture of each of ``layers`` for the tokens of ``segments``, by layer.

    Args:
        name: the model's name in messages. policy: that for more tokens than the model has positions.
        queries: the tokens whose queries are captured, (n_q,) int64; None is all.
        scores: ``plain`` leaves out their bias and cap, after the capture was verified with both.
    """
    parted = len(segments) == 1 and len(segments[0]) > LONGEST and _caches(model)
    if queries is not None and parted and _continues(model, segments[0][: 2 * PART]):
        return _in_parts(model, name, segments[0], layers, queries, scores)
    if len(segments) == 1:
        return _joined([_forward(model, name, segments, layers, queries=queries)], scores)
    if policy == "segment":
        joined = _joined([_forward(model, name, batch, layers) for batch in _batches(model, segments)], scores)
        # Positions begin again in each segment, so one rotation does not describe the joined queries.
        joined = {layer: replace(capture, rope=None) for layer, capture in joined.items()}
        return {layer: capture if queries is None else capture.of(queries) for layer, capture in joined.items()}
    table = _table(model, name, policy)
    first, longest = first_position(model.config), len(segments[0])
    tokens = [token for segment in segments for token in segment]
    if policy == "wrap":
        rows = [first + position for segment in segments for position in range(len(segment))]
        return _joined([_forward(model, name, [tokens], layers, rows, queries)], scores)
    with _stretched(model, table, first, longest, len(tokens)):
        rows = list(range(first, first + len(tokens)))
        return _joined([_forward(model, name, [tokens], layers, rows, queries)], scores)


def _forward(
    model: PreTrainedModel,
    name: str,
    batch: Sequence[Sequence[int]],
    layers: Sequence[int],
    rows: list[int] | None = None,
    queries: Tensor | None = None,
) -> dict[int, AttentionCall]:
    if (tokens := only_length(model.config)) not in (None, len(batch[0])):
        raise SourceError(f"n={len(batch[0])}: {name} reads only texts of {tokens} tokens; choose n={tokens}")
    ids = torch.tensor(batch, device=model.device)
    extras: dict[str, Any] = {}
    accepted = inspect.signature(model.forward).parameters
    if rows is not None:
        extras["position_ids"] = torch.tensor([rows], device=model.device)
        if "token_type_ids" in accepted:  # the model's own buffer is as long as its positions
            extras["token_type_ids"] = torch.zeros_like(ids)
    if "use_cache" in accepted:
        extras["use_cache"] = False
    return capture_layers(model, name, layers, lambda: model(input_ids=ids, **extras), queries)


def _caches(model: PreTrainedModel) -> bool:
    """Whether a model is a decoder that takes a cache of keys."""
    takes = {"past_key_values", "use_cache"} <= set(inspect.signature(model.forward).parameters)
    return takes and not model.config.is_encoder_decoder


@torch.no_grad()
def _continues(model: PreTrainedModel, tokens: Sequence[int]) -> bool:
    """Whether a decoder reads tokens behind a cache of keys as it reads them in a text, from two parts of ``tokens``.

    Hybrid models may begin their other layers anew with each part. Some models take a cache of their own class alone.
    """
    from transformers import DynamicCache

    ids, cache = torch.tensor([tokens], device=model.device), DynamicCache(config=model.config)
    whole = model(input_ids=ids, use_cache=False)[0]
    try:
        parts = [model(input_ids=part, past_key_values=cache, use_cache=True)[0] for part in ids.split(PART, 1)]
    except Exception:  # the code of any model may raise anything
        return False
    distance = (torch.cat(parts, 1) - whole).norm() / whole.norm()
    return float(distance) <= max(NEAR, ROUNDING * torch.finfo(whole.dtype).eps)


def _in_parts(
    model: PreTrainedModel, name: str, tokens: Sequence[int], layers: Sequence[int], queries: Tensor, scores: str
) -> dict[int, Captured]:
    """The capture of each layer for a long text, read in parts with a cache of keys, so that no mask has n² numbers."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    parts: list[dict[int, AttentionCall]] = []
    for start in range(0, len(tokens), PART):
        ids = torch.tensor([tokens[start : start + PART]], device=model.device)
        part_queries = queries[(queries >= start) & (queries < start + PART)] - start

        def forward(ids: Tensor = ids) -> Any:
            return model(input_ids=ids, past_key_values=cache, use_cache=True)

        calls = capture_layers(model, name, layers, forward, part_queries, cached=start > 0)
        last = slice(-ids.shape[1], None)  # the keys of a part itself; the others are in the parts before

        def new(x: Tensor, last: slice = last) -> Tensor:
            return x[:, :, last].clone()

        parts.append({n: replace(call, k=new(call.k), v=new(call.v), visible=None) for n, call in calls.items()})
    joined = _joined(parts, scores)
    for layer, call in joined.items():
        widths = [part[layer].sliding_window for part in parts if part[layer].sliding_window is not None]
        joined[layer] = replace(call, positions=queries, sliding_window=widths[0] if widths else None)
    return joined


def _batches(model: PreTrainedModel, segments: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """Batches of segments of equal length, small enough for the memory of the scores."""
    heads = getattr(model.config, "num_attention_heads", 1)
    for length, group in groupby(segments, key=len):
        equal = list(group)
        step = max(1, BLOCK_BYTES // (4 * heads * length * length))
        for start in range(0, len(equal), step):
            yield equal[start : start + step]


def _joined(parts: Sequence[dict[int, AttentionCall]], scores: str) -> dict[int, Captured]:
    """The captures of batches of segments, concatenated along the tokens. The longest segments show the window."""

    def flat(x: Tensor) -> Tensor:
        return x.transpose(0, 1).flatten(1, 2)  # (b, h, n, p) -> (h, b·n, p)

    joined = {}
    parts = [
        {layer: call.plain() if scores == "plain" else call.with_coordinate() for layer, call in part.items()}
        for part in parts
    ]
    for layer, call in parts[0].items():
        alone = len(parts) == 1 and len(call.q) == 1
        if call.bias is not None and not alone:
            raise SourceError(
                f"layer {layer} adds a bias to its scores, which it does not have between segments of a text: choose a "
                "smaller n, or --scores plain to leave the bias out"
            )
        q, k, v = (torch.cat([flat(getattr(part[layer], axis)) for part in parts], dim=1) for axis in "qkv")
        delta = max(part[layer].delta for part in parts)
        of_parts = [one for part in parts if (one := part[layer].all_queries) is not None]
        queries = torch.cat([flat(one) for one in of_parts], dim=1) if of_parts else None
        more = call.sliding_window, call.sinks, call.positions, queries
        block = _joined_block([part[layer].block for part in parts])
        own = call.own[0].transpose(0, 1) if call.own is not None and alone else None
        bias = None if call.bias is None else call.bias[0].expand(-1, q.shape[1], k.shape[1])
        terms = bias, call.softcap, own, call.positional
        joined[layer] = Captured(q, k, v, call.scale, call.causal, delta, *more, block, call.rope, *terms)
    return joined


def _joined_block(blocks: Sequence[Block | None]) -> Block | None:
    """The blocks (b, n) of batches of segments as one (b n,); None if one was not found."""
    found = [block for block in blocks if block is not None]
    if len(found) < len(blocks):
        return None
    normed = [block.projected.flatten(0, 1) for block in found if block.projected is not None]
    size = torch.cat([block.size.flatten() for block in found])
    return replace(found[0], size=size, projected=torch.cat(normed) if normed else None)


def _table(model: PreTrainedModel, name: str, policy: str) -> nn.Embedding:
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    if not isinstance(table, nn.Embedding) or "position_ids" not in inspect.signature(model.forward).parameters:
        raise UsageError(
            f"--positions {policy}: {name} ({model.config.model_type}) has no table of learned absolute positions; "
            "use --positions segment"
        )
    return table


@contextmanager
def _stretched(model: PreTrainedModel, table: nn.Embedding, first: int, longest: int, n: int) -> Iterator[None]:
    """Give the model a position table of ``n`` rows inside the block, and restore its own afterwards."""
    used = table.weight[first : first + longest].T[None]  # (1, hidden, longest)
    rows = torch.nn.functional.interpolate(used, size=n, mode="linear", align_corners=True)[0].T
    longer = nn.Embedding.from_pretrained(torch.cat([table.weight[:first], rows]), padding_idx=table.padding_idx)
    embeddings: Any = model.embeddings
    embeddings.position_embeddings = longer
    try:
        yield
    finally:
        embeddings.position_embeddings = table
