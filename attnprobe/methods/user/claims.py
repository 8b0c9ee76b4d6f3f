"""A user's function as a method: arguments are passed by parameter name, and the result is checked.

A function may take any of ``q`` (h, n_q, p), ``k`` (h, n_k, p), ``v`` (h, n_k, p_v), ``d``, ``scale`` (the factor on Q
Kᵀ, not applied yet), ``mask`` (n_k,) bool, true at valid tokens, ``generator``, ``target``, the `QKV` ``qkv``, and
``streams`` as in the built-in methods. Further parameters need defaults and are its options. It returns the output (h,
n_q, p_v), the matrix (h, n_q, n_k), an `Operator` of that shape, or an `Approximation`.

A function with ``generator`` is called head by head, h = 1, with the CPU generator of that head. So a head draws the
same numbers alone and among others. A function without ``mask`` gets the valid tokens only. Its inputs are copies.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, Union

from ...approximation import Approximation
from ...errors import UsageError, cut
from ...grammar.arguments import a_type, check_fields, checked, fault
from ...qkv import QKV
from ...rng import Streams
from ..registry import TAGS, Method, Provenance
from ..storage import Storage
from .calls import UserFunction
from .foreign import asked, checking_answer

GIVEN = ("q", "k", "v", "d", "scale", "mask", "generator", "target", "qkv", "streams")
ExactAt = tuple[int | None, dict[str, Any]]
SIMPLE = (int, float, bool, str, type(None))
UNSTATED = "not stated"


@dataclass(frozen=True)
class Claims:
    """The claims of a user's function; see `method`."""

    linear_in_v: bool = False
    kind: str = "user"
    targets: tuple[str, ...] = ("softmax",)
    tags: tuple[str, ...] = ()
    budget: str = UNSTATED
    cost: str = UNSTATED
    paper: str = "a user's own"
    year: int = 0
    least: int = 1
    limit: Callable[[int, int], int] | None = None
    exact_at: Callable[[int], ExactAt] | None = None
    storage: Storage | Callable[[int | None, dict[str, Any]], Storage] | None = None

    def __post_init__(self) -> None:
        check_fields(self, "attnprobe.method")


CLAIMS = tuple(claim.name for claim in fields(Claims))


@checked()
def method(function: Callable[..., Any] | None = None, **claims: Any) -> Callable[..., Any]:
    """A decorator that attaches claims to a function and does not change it. `attnprobe check` tests the claims.

    Args:
        linear_in_v: the output is a matrix times V, and the matrix does not depend on V. The matrix is then recovered
            by applying the function to blocks of the identity, so that errors, spectra and condition numbers exist.
        kind: ``kernel`` for an implementation of exact softmax attention, which is measured as kernels are. A kernel
            with an option ``dtype`` casts Q, K and V to that dtype itself.
        targets: the exact matrices that it can approximate, of ``softmax`` and ``gaussian``.
        tags: further claims, from the list of ``attnprobe methods``. budget: the meaning of d. cost: multiply-adds per
            head, such as ``"4 n d p"``. paper, year: the source.
        least, limit: the smallest budget, and ``(n_q, n_k) ->`` the largest.
        exact_at: ``n -> (d, options)`` at which it is exact, for the tag ``exact_at_full_budget``.
        storage: a ``Storage``, what a KV-cache policy stores of a prompt, or ``(d, options) -> Storage``.

    Raises:
        UsageError: an unknown claim.

    >>> import torch
    >>> @method(linear_in_v=True, tags=("row_sums_one",))
    ... def mean(v):
    ...     return v.mean(1, keepdim=True).expand_as(v)
    >>> mean(torch.ones(1, 2, 3)).shape
    torch.Size([1, 2, 3])
    """
    if function is None:
        return partial(method, **claims)
    for name in ("targets", "tags"):
        if type(claims.get(name)) is str:
            claims[name] = (claims[name],)
    for name in claims:
        if name not in CLAIMS:
            raise UsageError(f"attnprobe.method: there is no claim '{cut(name)}'; it takes {', '.join(CLAIMS)}")
    values: dict[str, Any] = {name: tuple(value) if type(value) is list else value for name, value in claims.items()}
    stated = Claims(**values)
    try:
        # An attribute, not a wrapper: the function stays callable and picklable as it was written.
        function.attnprobe_claims = stated
    except (AttributeError, TypeError) as error:
        raise UsageError(f"attnprobe.method: {a_type(function)} takes no claims; wrap it in a function") from error
    return function


def claims_of(function: Callable[..., Any], name: str) -> Claims:
    """The claims of a function, from the decorator or from its attributes ``linear_in_v`` and ``kind``.

    Raises:
        UsageError: an unknown tag, target or kind.
    """
    claims = getattr(function, "attnprobe_claims", None) or Claims(
        linear_in_v=bool(getattr(function, "linear_in_v", False)), kind=getattr(function, "kind", "user")
    )
    if (problem := fault(claims, Claims)) is not None:
        raise UsageError(f"{name}: attnprobe_claims{problem}; state claims by the decorator attnprobe.method")
    if claims.kind not in ("user", "kernel"):
        raise UsageError(f"{name}: there is no kind '{claims.kind}'; use kind=\"kernel\" or leave it out")
    if claims.kind == "kernel" and claims.targets != ("softmax",):
        raise UsageError(f"{name}: a kernel stands for softmax attention; drop its targets")
    for tag in claims.tags:
        if tag.partition("@")[0] not in TAGS:
            raise UsageError(f"{name}: there is no tag '{tag}'; choose from {', '.join(TAGS)}")
    if not claims.targets:
        raise UsageError(f"{name}: targets=() names no exact matrix; choose from softmax, gaussian")
    for target in claims.targets:
        if target not in ("softmax", "gaussian"):
            raise UsageError(f"{name}: there is no target '{target}'; choose from softmax, gaussian")
    if any(tag.startswith("exact_at_full_budget") for tag in claims.tags) != (claims.exact_at is not None):
        raise UsageError(f"{name}: the tag exact_at_full_budget and exact_at=n -> (d, options) go together")
    return claims


def as_method(function: Callable[..., Any], name: str, provenance: Provenance | None = None) -> Method:
    """The `Method` of a user's function. Its function is an adapter with the interface of every method.

    Raises:
        UsageError: a parameter outside `GIVEN` without a default, an option of an unsupported type, or a wrong claim.
    """
    parameters, claims = asked(lambda: (_parameters(function, name), claims_of(function, name)), f"{name}: reading it")
    inputs = {p.name for p in parameters if p.name in GIVEN}
    options = {p.name: p for p in parameters if p.name not in GIVEN}
    adapter = _adapter(UserFunction(function, name, tuple(parameters), claims.linear_in_v), options)
    tags = claims.tags
    if not inputs & {"generator", "streams"} and "deterministic" not in tags:
        tags = ("deterministic", *tags)  # it takes no generator, and `check` detects other sources of randomness
    if provenance is not None:
        by_itself = False if "generator" in inputs or "deterministic" in claims.tags else None  # of one head each
        shared = options["share_heads"].default if "share_heads" in options else by_itself
        provenance = replace(provenance, share_heads=shared)
    return Method(
        name=name,
        function=adapter,
        **{claim: getattr(claims, claim) for claim in ("paper", "year", "targets", "kind", "cost", "least")},
        family="user",
        tags=tags,
        budget=claims.budget if "d" in inputs else None,
        oracle="nothing yet: run attnprobe check",
        limit=checking_answer(claims.limit, int, f"{name}: limit=(n_q, n_k) -> d"),
        exact_at=checking_answer(claims.exact_at, ExactAt, f"{name}: exact_at=n -> (d, options)"),
        takes_mask="mask" in inputs,
        storage=_storage(claims, name),
        provenance=provenance,
    )


def _storage(claims: Claims, name: str) -> Storage | Callable[[int | None, dict[str, Any]], Storage] | None:
    """What a function says that it stores; a value that it computes is checked."""
    if claims.storage is None or isinstance(claims.storage, Storage):
        return claims.storage
    return checking_answer(claims.storage, Storage, f"{name}: storage=(d, options) -> Storage")


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    """The named parameters of the function, with the types of its options as annotations."""
    if not callable(function):
        raise UsageError(f"{name} is {a_type(function)}, not a function")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} has no readable signature; wrap it in a function of q, k, v, …") from error
    parameters = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    for p in parameters:
        if p.name not in GIVEN and p.default is p.empty:
            raise UsageError(
                f"{name}: the parameter '{p.name}' has no default; give it one, or use one of {', '.join(GIVEN)}"
            )
    hints = _hints(function)
    return [p.replace(annotation=_type(name, p, hints)) if p.name not in GIVEN else p for p in parameters]


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # names that only a type checker knows
        return {}


def _type(name: str, p: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    """The type of an option: its annotation, or the type of its default."""
    hint = hints.get(p.name)
    is_union = typing.get_origin(hint) in (Union, types.UnionType)
    if hint in SIMPLE or (is_union and all(member in SIMPLE for member in typing.get_args(hint))):
        return hint
    if typing.get_origin(hint) is Literal and all(isinstance(member, str) for member in typing.get_args(hint)):
        return hint
    if p.default is None:
        return int | float | str | None
    if type(p.default) in SIMPLE:
        return type(p.default)
    raise UsageError(
        f"{name}: the option '{p.name}' has a default of type {type(p.default).__name__}; options are numbers, words, "
        "true or false, or none"
    )


def _adapter(function: UserFunction, options: Mapping[str, inspect.Parameter]) -> Callable[..., Approximation]:
    """The function with the interface of every method, its options in the signature."""

    def adapter(qkv: QKV, d: int | None, *, streams: Streams, target: str = "softmax", **chosen: Any) -> Approximation:
        return function.approximation(qkv, {"d": d, "target": target}, streams, chosen)

    head = [p for p in inspect.signature(adapter).parameters.values() if p.kind is not p.VAR_KEYWORD]
    own = [p.replace(kind=p.KEYWORD_ONLY) for p in options.values()]
    adapter.__signature__ = inspect.Signature([*head, *own])
    adapter.__annotations__ = {p.name: p.annotation for p in own}
    adapter.__doc__ = inspect.getdoc(function.function) or "It has no docstring."
    return adapter
