"""Methods with one set of keys for many queries, as a cache of keys has: the sets, and when they are selected.

Causal rows are cut into segments of s consecutive tokens. A row has the keys of its segment up to itself, and at most
d - s keys before the segment, which are selected at its start. So a row has at most d keys, and depends on earlier
tokens only. Rows of inputs that are not causal have one set of d keys. With an allocation other than ``uniform`` the
numbers of keys of heads or layers differ, with a mean of d.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import chain
from math import ceil
from typing import Any, Literal

import torch
from torch import Tensor

from ...errors import Unsupported, UsageError
from ...operators.blocks import reach
from ...operators.groups import of_members
from ...operators.linalg.order import largest_scores
from ...operators.precision import full_precision
from ...qkv import QKV
from ..base import Approximation, ragged
from ..registry import BOTH_WAYS
from .base import AnySets, Selection, attend, fills_blocks, joint, rows_of_sets, selector

Allocation = Literal["uniform", "ada", "pyramid"]
LEAST = 0.2  # the share of the room that every head has
STEEPNESS = 20  # the room divided by that of the last layer


def room_of_layer(room: int, layer: int | str, layers: int) -> int:
    """The room of a layer in a pyramid: it falls linearly from ``2 room - room/20`` to ``room/20``.

    The mean over layers is ``room`` up to rounding. Source: Cai et al. 2024 (PyramidKV), section 3.2, with β = 20.

    >>> [room_of_layer(100, layer, 6) for layer in range(6)]
    [195, 157, 119, 81, 43, 5]
    >>> room_of_layer(100, 0, 1)
    100
    """
    if not isinstance(layer, int) or layer >= layers:
        raise UsageError(f"allocation=pyramid: layer {layer} is not among layers={layers}")
    if layers == 1:
        return room
    last = room // STEEPNESS
    first = 2 * room - last
    return first - (first - last) * layer // (layers - 1)


def allocated(scores: Tensor, room: int, qkv: QKV, sets: AnySets, allocation: Allocation, layers: int | None) -> Tensor:
    """The selected keys of each head, those with the largest of ``scores`` (h, end), (h, u) int64; -1 is none.

    ``uniform``: every head has ``room`` keys. ``ada``: the sets of the layer have ``room`` keys on average. Each has
    its best ``0.2 room`` keys, and the others are the best of the other keys of all heads together (Feng et al. 2024,
    Ada-KV, algorithm 1, with a safeguard as in AdaKVPress of kvpress). The authors' code has another safeguard: a head
    keeps ``0.8 c + 0.2 room`` keys, rounded, where c are those of the best keys of all heads that are its own.
    ``pyramid``: every head has the room of its layer. Of equal scores, keys with smaller places come first.

    Args:
        sets: the heads that have the same set, and so the same scores, as in `subset`.
        layers: the number of layers, for ``pyramid``.

    Raises:
        UsageError: the layer of ``qkv`` is not among ``layers``.
    """
    if allocation == "pyramid":
        assert layers is not None
        room = room_of_layer(room, qkv.layer, layers)
    room = min(room, scores.shape[1])
    if allocation != "ada":
        return largest_scores(scores, room)[1]
    rows = rows_of_sets(qkv, sets)
    of_sets = scores[[of_set[0] for of_set in rows]]
    own = largest_scores(of_sets, ceil(LEAST * room))[1]
    # Infinite scores keep what each set has safe; the rest of all sets competes for what is left.
    pooled = of_sets.scatter(1, own, float("inf")).flatten()
    best = largest_scores(pooled, len(of_sets) * room)[1]
    keeps = torch.zeros_like(pooled, dtype=torch.bool).index_fill(0, best, True).view_as(of_sets)
    return of_members(ragged(keeps), rows)


Sets = Literal["group", "head"]
NOT_GIVEN = "these inputs do not have the queries of all tokens"
Score = Callable[[QKV, int], Tensor]


def subset_selector(**facts: Any) -> Callable[[Callable[..., Selection]], Callable[..., Approximation]]:
    """`selector` for a function that chooses one set of keys, to which rows then attend.

    It is exact at d = 2n, because a segment then has all tokens.
    """
    limits = {**BOTH_WAYS, "exact_at": lambda n: (2 * n, {})}
    budget = "at most d keys of each row: recent ones, and selected ones before them"

    def put(choose: Callable[..., Selection]) -> Callable[..., Approximation]:
        @wraps(choose)
        def attended(qkv: QKV, d: int, **options: Any) -> Approximation:
            return attend(qkv, choose(qkv, d, **options))

        return selector(**{"budget": budget, "joint": True, "choose": choose, **limits, **facts})(attended)

    return put


def check_subset(method: str, *names: str) -> Callable[..., None]:
    """A `Method.validate` for the named options, and for ``allocation`` and ``layers`` if the method has them.

    It raises a `UsageError` for a negative ``first``, for another option below 1, for an even ``kernel``, and for an
    allocation that contradicts other options.
    """

    def check(target: str, **options: Any) -> None:
        for name in names:
            if options[name] is not None and options[name] < (name != "first"):
                problem = "negative" if name == "first" else "below 1" if options[name] > 0 else "not positive"
                raise UsageError(f"{method}: {name}={options[name]} is {problem}")
        if options.get("kernel", 1) % 2 == 0:
            raise UsageError(f"{method}: kernel={options['kernel']} is even; choose an odd width")
        allocation, layers = options.get("allocation", "uniform"), options.get("layers")
        if (allocation == "pyramid") != (layers is not None):
            line = "allocation=pyramid and layers, the number of the model's layers, belong together"
            raise UsageError(f"{method}: {line}")
        if layers is not None and layers < 1:
            raise UsageError(f"{method}: layers={layers} is not positive")
        if allocation != "uniform" and options.get("streaming"):
            raise UsageError(f"{method}: allocation={allocation} belongs to streaming=false")

    return check


@full_precision()
def subset(
    qkv: QKV,
    d: int,
    score: Score,
    *,
    every: int,
    scored: Callable[[QKV, int], float] = lambda observed, end: float(end),
    first: int = 0,
    last: int = 0,
    observe: int | None = 0,
    sets: AnySets = "group",
    allocation: Allocation = "uniform",
    layers: int | None = None,
) -> Selection:
    """The keys of each row, from the scores of the keys before its segment.

    All queries of the text are observed, also where ``qkv`` has the rows of some, see `QKV.complete`.

    Args:
        score: ``(observed, end) -> (h, end)``, the scores of the keys ``0 … end - 1``; those with the largest are
            selected. ``observed`` are the inputs with the observed queries, and at least these keys. ``end`` grows from
            call to call.
        every: the largest s. A segment has at most half of the budget: ``s = min(every, ⌈d/2⌉)``.
        scored: the number of scores that ``score`` computes for a head, with the same arguments; one for each key.
        first, last: the numbers of first and of last keys before the segment that are selected for any scores. Last
            keys have at most half of the room.
        observe: the number of observed queries before the segment; None is all of them.
        sets: ``layer``: all heads have one set, by their mean score; ``group``: the query heads of a KV head have one;
            ``head``: each has its own.
        allocation, layers: the distribution of the room for keys before a segment, see `allocated`.

    Raises:
        Unsupported: queries that must be observed are not given.
    """

    def best(scores: Tensor, room: int) -> Tensor:
        return allocated(_forced(scores, room, first, last), room, qkv, sets, allocation, layers)

    complete = qkv.complete()
    if complete is None:
        if not qkv.causal and qkv.positions is not None and observe != 0:
            raise Unsupported(f"keys are chosen by queries of the text, and {NOT_GIVEN}")
        complete = qkv
    if not qkv.causal:
        observed = complete
        if observe is not None:
            observed = _queries(complete, torch.arange(max(0, complete.n_q - observe), complete.n_q, device="cpu"))
        scores = joint(score(observed, qkv.n_k), qkv, sets)
        return Selection(best(scores, d)[:, None], qkv.n_q, scored(observed, qkv.n_k))
    size = min(every, -(-d // 2))
    position = qkv.query_positions.cpu()
    numbers = (position // size).unique().tolist()
    position_of = complete.query_positions.cpu()
    selected, cost = [], 0.0  # the keys before each segment
    for number in numbers:
        end = number * size
        if end == 0:
            selected.append(torch.empty(qkv.h, 0, dtype=torch.int64, device=qkv.device))
            continue
        least = 0 if observe is None else max(0, end - observe)
        rows = ((position_of >= least) & (position_of < end)).nonzero()[:, 0]
        if len(rows) < end - least:
            raise Unsupported(
                f"a set of keys is chosen by {end - least} queries before token {end}, and {len(rows)} are given: "
                f"{NOT_GIVEN}"
            )
        observed = _with_first_keys(_queries(complete, rows), reach(end - 1, qkv.n_k))
        scores = joint(score(observed, end), qkv, sets)
        cost += scored(observed, end)
        selected.append(best(scores, d - size))
    # With `ada` a head may have more than d keys.
    width = max(d, size + max(keys.shape[1] for keys in selected))
    index = torch.full((qkv.h, len(numbers), width), -1, device=qkv.device)
    for segment, (number, keys) in enumerate(zip(numbers, selected, strict=True)):
        own = torch.arange(number * size, min((number + 1) * size, qkv.n_k), device=qkv.device)
        index[:, segment, : keys.shape[1]] = keys
        index[:, segment, width - len(own) :] = own
    if fills_blocks(qkv, size):
        return Selection(index, size, cost)
    of_row = torch.bucketize(position // size, torch.tensor(numbers, device="cpu"))
    return Selection(index[:, of_row.to(qkv.device)], 1, cost)


@full_precision()
def streamed(qkv: QKV, d: int, recent: int, *, accumulate: bool, sets: AnySets) -> Selection:
    """The keys of each row for a cache of d keys that gets one token after another.

    A full cache drops the key of the least weight, except the last ``recent`` tokens. Weights are those of the softmax
    over the cache, of the last query, or with ``accumulate`` summed over all queries since the key was added. Cost ``n
    d p`` multiply-adds a head, in n steps.

    Raises:
        Unsupported: the queries of all tokens are not given.
    """
    complete = qkv.complete()
    if complete is None:
        raise Unsupported(f"keys are evicted token by token, and {NOT_GIVEN}; choose streaming=false")
    rows = rows_of_sets(qkv, sets)
    share = len(rows[0])
    if [*chain(*rows)] != [*range(qkv.h)] or {*map(len, rows)} != {share}:  # of a part of the heads
        index = torch.empty(qkv.h, qkv.n_q, d, dtype=torch.int64, device=qkv.device)
        for of_set in rows:
            of_heads = qkv.select([qkv.heads[row] for row in of_set])
            index[of_set] = streamed(of_heads, d, recent, accumulate=accumulate, sets=sets).index
        return Selection(index, 1, 0.0)
    row_of = {place: row for row, place in enumerate(qkv.query_positions.tolist())}
    k, queries = (x.detach().transpose(0, 1) for x in (qkv.k, complete.q))  # (n, h, p)
    cache = torch.full((qkv.h // share, d), -1, device=qkv.device)  # of each set
    keys = k.new_zeros(qkv.h * d, qkv.p)  # of the tokens in the cache of each head
    keys_of_heads = keys.view(qkv.h, d, -1).mT
    weights = k.new_zeros(qkv.h // share, d)
    first = d * torch.arange(qkv.h, device=qkv.device).view(-1, share)  # the first slot of each head
    index = torch.empty(qkv.h // share, qkv.n_q, d, dtype=torch.int64, device=qkv.device)
    for i in range(max(row_of) + 1):
        if i < d:
            slot = torch.full((qkv.h // share, 1), i, device=qkv.device)
        else:
            # Keys are evicted before the new one is scored, so it cannot evict itself.
            older = weights.masked_fill(cache >= i - recent, float("inf")) if recent else weights
            slot = older.argmin(1, keepdim=True)
        cache.scatter_(1, slot, i)
        keys.index_copy_(0, (first + slot).view(-1), k[i])
        if i in row_of:
            index[:, row_of[i]] = cache
        if i < d - 1 and not accumulate:  # no key is evicted by these weights
            continue
        scores = torch.bmm(queries[i, :, None], keys_of_heads)  # rows: on a CPU several times faster than columns
        scores = scores.view(-1, share, d).mul_(qkv.scale)
        if qkv.terms is not None:
            columns = cache.repeat_interleave(share, 0)[:, None]  # (h, 1, d)
            own = slice(i, i + 1)
            scores = qkv.terms.applied_at(scores.view(-1, 1, d), slice(None), own, columns).view(scores.shape)
        if i < d - 1:
            scores.masked_fill_(cache[:, None] < 0, float("-inf"))
        new = scores.softmax(-1).mean(1)
        if accumulate:
            weights.scatter_(1, slot, 0).add_(new)
        else:
            weights = new
    return Selection(index.repeat_interleave(share, 0), 1, 0.0)


def _queries(qkv: QKV, rows: Tensor) -> QKV:
    """The queries of some rows; all queries if there are no rows."""
    return qkv.queries(rows) if len(rows) else qkv


def _with_first_keys(qkv: QKV, count: int) -> QKV:
    """The inputs with their first ``count`` keys, on a CPU: later ones, which no query sees, would cost as much.

    Elsewhere all keys stay, because a GPU would sum a shorter row in another order.
    """
    if count >= qkv.n_k or qkv.device.type != "cpu" or qkv.square:
        return qkv
    keys = slice(count)
    parts = {
        name: None if x is None else x[..., keys]
        for name, x in (("bias", qkv.bias), ("key_positions", qkv.key_positions))
    }
    return qkv.replace(k=qkv.shared_k[:, keys], v=qkv.shared_v[:, keys], **parts)


def _forced(scores: Tensor, room: int, first: int, last: int) -> Tensor:
    """Scores (h, end) in float64, infinite for the ``first`` keys, and for ``last`` keys up to half of the room."""
    end = scores.shape[1]
    room = min(room, end)
    forced = scores.to(torch.float64, copy=True)
    forced[:, max(0, end - min(last, room // 2)) :] = float("inf")
    forced[:, : min(first, room)] = float("inf")
    return forced
