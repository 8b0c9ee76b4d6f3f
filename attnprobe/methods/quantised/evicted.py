"""``POLICY+FORMAT``: a policy drops keys, and the format stores those that stay.

The kept tokens of a set are quantised in their order, so that scales, groups and exact recent tokens are those of what
stays. Both methods draw what they draw alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...errors import UsageError
from ...operators import Sparse
from ...operators.blocks import row_groups
from ...operators.groups import tokens
from ...operators.precision import full_precision
from ...qkv import QKV
from ...rng import Streams
from ..base import Approximation
from ..registry import Method
from ..selection.base import Selection, attend, facts_of
from ..selection.files import selected_keys
from ..storage import Storage
from .base import Coder, Format, drawing_heads, first_exact, read_back, with_options

OF_BOTH = ("deterministic", "causal")  # tags that both methods need
OF_POLICY = ("row_sums_one", "nonnegative", "uses_values", "decodes", "local", "prefill")


def evicted_format(policy: Method, entry: Method) -> Method:
    """The method ``POLICY+FORMAT``.

    Raises:
        UsageError: the first drops no keys, the second is no format, or both have an option of one name.
    """
    name, stated = f"{policy.name}+{entry.name}", entry.format
    if policy.format is not None or not _evicts(policy):
        raise UsageError(f"{name}: {policy.name} drops no keys; choose a policy that does, such as snapkv+{entry.name}")
    if twice := policy.options.keys() & stated.parameters():
        raise UsageError(f"{name}: both methods have an option {min(twice)}; rename that of {policy.name}")
    parts = _Parts(policy, entry)

    def attended(qkv: QKV, d: int, *, streams: Streams, target: str = "softmax", **options: Any) -> Approximation:
        of_policy, of_format = parts.options(options)
        streams = replace(streams, method=policy.name)
        if policy.choose is not None:
            selection = policy.choose(qkv, d, streams=streams, target=target, **of_policy)
        else:
            made = policy.function(qkv, d, streams=streams, target=target, **of_policy)
            selection = Selection(selected_keys(made), 1, 0.0, made.draws)
        return attend_to_kept(qkv, selection, stated, replace(streams, method=stated.name), of_format)

    def choose(qkv: QKV, d: int, *, streams: Streams, target: str = "softmax", **options: Any) -> Any:
        assert policy.choose is not None
        streams = replace(streams, method=policy.name)
        return policy.choose(qkv, d, streams=streams, target=target, **parts.options(options)[0])

    own = inspect.signature(policy.function).parameters
    with_options(attended, {**{option: own[option] for option in policy.options}, **stated.parameters()})
    attended.__annotations__ |= {option: _hint(policy, option) for option in policy.options}
    attended.__doc__ = (
        f"The keys that ``{policy.name}`` keeps, as ``{entry.name}`` reads them back. Its exact tokens are the most "
        f"recent of those that stay.\n\n``{policy.name}``: {inspect.getdoc(policy.function)}\n\n``{entry.name}``: "
        f"{inspect.getdoc(entry.function)}"
    )
    tags = [tag for tag in OF_BOTH if tag in policy.tags and tag in entry.tags]
    tags += [tag for tag in OF_POLICY if tag in policy.tags]
    if "whole_scale" in entry.tags and "causal" in policy.tags:
        tags.append("whole_scale")
    return replace(
        policy,
        name=name,
        function=attended,
        paper=f"{policy.paper}; {entry.paper}",
        year=max(policy.year, entry.year),
        family="quantised",
        tags=tuple(tags),
        oracle="the policy on what the format reads back",
        validate=parts.check,
        exact_at=None,
        small={**policy.small, **entry.small},
        choose=None if policy.choose is None else choose,
        storage=parts.stored,
        format=stated,
    )


def _evicts(policy: Method) -> bool:
    """Whether keys leave the cache; of a policy that says so by its options it is not known before."""
    if policy.storage is None:
        return policy.compress is not None
    return policy.storage.evicts if isinstance(policy.storage, Storage) else True


def _hint(policy: Method, option: str) -> Any:
    import typing

    return typing.get_type_hints(policy.function)[option]


class _Parts:
    """The options of two methods in one."""

    def __init__(self, policy: Method, entry: Method) -> None:
        self.policy, self.entry = policy, entry
        self.defaults = {name: parameter.default for name, parameter in entry.format.parameters().items()}

    def options(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Those of the policy that are given, and all of the format."""
        of_policy = {name: value for name, value in options.items() if name not in self.defaults}
        return of_policy, self.defaults | {name: value for name, value in options.items() if name in self.defaults}

    def check(self, target: str, **options: Any) -> None:
        of_policy, of_format = self.options(options)
        if self.policy.validate is not None:
            self.policy.validate(target, **of_policy)
        if self.entry.validate is not None:
            self.entry.validate(target, **of_format)

    def stored(self, d: int | None, options: Mapping[str, Any]) -> Storage:
        """What stays, in the bits of the format."""
        of_policy, of_format = self.options(options)
        return replace(self.entry.format.stored(of_format), evicts=self.policy.stored(d, of_policy).evicts)


def attend_to_kept(
    qkv: QKV, selection: Selection, stated: Format, streams: Streams, options: Mapping[str, Any]
) -> Approximation:
    """The softmax of each row over its set, whose keys and values are quantised as the tokens of a cache.

    Each set is a cache. If no token depends on others and none is exact, all tokens are read back once. Otherwise
    memory is O(u p) for each set of u keys of a block, and cost ``n_q u p`` multiply-adds a head, twice.
    """
    if stated.alone and not options["exact"]:
        read, drawn = read_back(qkv, stated, streams, options)
        made = attend(qkv.replace(k=read["k"], v=read["v"]), selection)
        return replace(made, draws={**made.draws, **drawn}, stored=(read["k"], read["v"]))
    return _attend_to_sets(qkv, selection, stated, streams, options)


@full_precision()
def _attend_to_sets(
    qkv: QKV, selection: Selection, stated: Format, streams: Streams, options: Mapping[str, Any]
) -> Approximation:
    index = in_order(selection.index.to(qkv.device), qkv.n_k)
    coders = Coder.of(qkv, stated, streams, options, drawing_heads(qkv))
    visible, position = qkv.visible, qkv.query_positions
    weights = qkv.q.new_empty(qkv.h, qkv.n_q, index.shape[2])
    output = qkv.q.new_empty(qkv.h, qkv.n_q, qkv.p_v)
    log_sums = qkv.q.new_empty(qkv.h, qkv.n_q)
    for groups, rows in row_groups(qkv.q, qkv.n_q, selection.group, qkv.h * index.shape[2] * (qkv.p + qkv.p_v)):
        kept = index[:, groups]  # (h, m, u)
        absent = (kept < 0)[:, :, None]
        k, v, read_k, read_v = _read_sets(qkv, kept, coders)
        q = qkv.q[:, rows].unflatten(1, (kept.shape[1], -1)) * qkv.scale  # (h, m, r, p)
        positions = position[rows].unflatten(0, (kept.shape[1], -1))  # (m, r)
        before = (
            ~absent & (kept[:, :, None] <= positions[..., None])
            if qkv.causal
            else ~absent.expand(-1, -1, q.shape[2], -1)
        )
        first = first_exact(before.sum(-1), stated, options)  # (h, m, r)
        recent = torch.arange(kept.shape[2], device=kept.device) >= first[..., None]
        scores = torch.where(recent, q @ k.mT, q @ read_k.mT)  # (h, m, r, u)
        if visible is not None:
            absent = absent | visible.of(rows).hides_of_groups(kept).view(scores.shape)
        scores = scores.masked_fill(absent, float("-inf"))
        row = torch.softmax(scores, -1).masked_fill(absent, 0)
        weights[:, rows] = row.flatten(1, 2)
        output[:, rows] = ((row * ~recent) @ read_v + (row * recent) @ v).flatten(1, 2)
        log_sums[:, rows] = scores.logsumexp(-1).flatten(1, 2)
    drawn = {name: value for coder in coders.values() for name, value in coder.side.drawn.items()}
    facts = facts_of(qkv, replace(selection, index=index, draws={**selection.draws, **drawn}))
    operator = Sparse(index, weights, qkv.n_k, selection.group, zeroed=True)
    return Approximation(operator, output, log_normalizer=lambda: log_sums, **facts)


def in_order(index: Tensor, n_k: int) -> Tensor:
    """Sets of keys (…, u) in ascending order, -1 in the last slots."""
    ordered = index.masked_fill(index < 0, n_k).sort(-1).values
    return ordered.masked_fill(ordered == n_k, -1)


def _read_sets(qkv: QKV, kept: Tensor, coders: Mapping[str, Coder]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The keys and values of sets (h, m, u), and what is read back of them, (h, m, u, ·); 0 in empty slots."""
    empty = (kept < 0)[..., None]
    places = qkv.in_text(kept.clamp(min=0))
    exact = {
        axis: tokens(x, kept.flatten(1)).unflatten(1, kept.shape[1:]).masked_fill(empty, 0)
        for axis, x in (("k", qkv.shared_k), ("v", qkv.shared_v))
    }
    # Empty slots are zeros here, so they widen no scale beyond the token's own.
    read = {axis: coders[axis](x, places) if axis in coders else x for axis, x in exact.items()}
    return exact["k"], exact["v"], read["k"], read["v"]


@full_precision()
def kept_cache(
    method: Method, prompt: QKV, index: Tensor, seed: int, options: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    """What is read back of the kept keys and values of a prompt, (h, u, ·) each, in the order of ``index``.

    Args:
        method: a policy with a format. prompt: its keys and values. options: of the method.
        index: the kept keys of each head, (h, u) int64 in ascending order; -1 in the last slots.
    """
    stated = method.format
    chosen = {name: options.get(name, parameter.default) for name, parameter in stated.parameters().items()}
    streams = Streams(seed, stated.name, prompt.layer, prompt.window)
    coders = Coder.of(prompt, stated, streams, chosen, drawing_heads(prompt))
    k, v, read_k, read_v = (x[:, 0] for x in _read_sets(prompt, index[:, None], coders))
    first = first_exact((index >= 0).sum(-1), stated, chosen)
    recent = (torch.arange(index.shape[1], device=index.device) >= first[:, None])[..., None]
    return torch.where(recent, k, read_k), torch.where(recent, v, read_v)
