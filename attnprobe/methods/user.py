"""A user's function as a method: it gets what its parameters name, and what it returns is told apart and checked.

A function may take any of ``q`` (h, n_q, p), ``k`` (h, n_k, p), ``v`` (h, n_k, p_v), ``d``, ``scale`` (the factor on Q
Kᵀ, which nothing has applied yet), ``mask`` (n_k,) bool, true at valid tokens, ``generator``, ``target``, the whole
``qkv``, and ``streams`` as the built-in methods do; further parameters have defaults and are its options. It returns
the output (h, n_q, p_v), the matrix (h, n_q, n_k) or an `Operator` of that shape, or an `Approximation`.

One that takes ``generator`` is called head by head, h = 1, each with the CPU generator of that head: so heads draw the
same alone and together. One that takes no ``mask`` sees the valid tokens alone. Its inputs are copies.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Union

import torch
from torch import Tensor

from ..approximation import Approximation
from ..errors import BadResult, Unsupported, UsageError
from ..operators import Dense, Operator, Stacked
from ..qkv import QKV
from ..rng import Streams
from .recovered import LARGEST, Recovered
from .registry import TAGS, Method, Provenance

__all__ = ["GIVEN", "Claims", "as_method", "claims_of", "method"]

GIVEN = ("q", "k", "v", "d", "scale", "mask", "generator", "target", "qkv", "streams")
SIMPLE = (int, float, bool, str, type(None))
UNSAID = "what its author means by d"


@dataclass(frozen=True)
class Claims:
    """What a function says of itself; see `method`."""

    linear_in_v: bool = False
    targets: tuple[str, ...] = ("softmax",)
    tags: tuple[str, ...] = ()
    budget: str = UNSAID
    cost: str = "not said"
    paper: str = "a user's own"
    year: int = 0
    least: int = 1
    limit: Callable[[int, int], int] | None = None
    exact_at: Callable[[int], tuple[int | None, dict[str, Any]]] | None = None


def method(function: Callable[..., Any] | None = None, **claims: Any) -> Callable[..., Any]:
    """Say of a function what it is; a decorator that changes nothing but this. `attnprobe check` proves the claims.

    Args:
        linear_in_v: the output is a matrix times V, and the matrix does not depend on V. The matrix is then recovered
            from what the function does to blocks of the identity, and has errors, spectra and condition numbers.
        targets: of ``softmax`` and ``gaussian``, the exact matrices that it can stand for.
        tags: further claims, of those that ``attnprobe methods`` shows. budget: what d means. cost: multiply-adds per
            head, such as ``"4 n d p"``. paper, year: the source.
        least, limit: the smallest budget, and ``(n_q, n_k) ->`` the largest.
        exact_at: ``n -> (d, options)`` at which it is exact, for the tag ``exact_at_full_budget``.

    Raises:
        UsageError: a claim that does not exist.

    >>> @method(linear_in_v=True, tags=("row_sums_one",))
    ... def mean(v):
    ...     return v.mean(1, keepdim=True).expand_as(v)
    >>> mean(torch.ones(1, 2, 3)).shape
    torch.Size([1, 2, 3])
    """
    if function is None:
        return partial(method, **claims)
    for name in ("targets", "tags"):
        if isinstance(claims.get(name), str):
            claims[name] = (claims[name],)
    try:
        function.attnprobe_claims = Claims(**{name: _frozen(value) for name, value in claims.items()})
    except TypeError as error:
        raise UsageError(f"attnprobe.method: {str(error).partition('() ')[2]}; it takes {', '.join(vars(Claims()))}"
                         ) from error  # fmt: skip
    return function


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def claims_of(function: Callable[..., Any], name: str) -> Claims:
    """What a function says of itself, by the decorator or by its attribute ``linear_in_v``.

    Raises:
        UsageError: an unknown tag or target.
    """
    claims = getattr(function, "attnprobe_claims", None) or Claims(
        linear_in_v=bool(getattr(function, "linear_in_v", False))
    )
    for tag in claims.tags:
        if tag.partition("@")[0] not in TAGS:
            raise UsageError(f"{name}: there is no tag '{tag}'; choose from {', '.join(TAGS)}")
    for target in claims.targets:
        if target not in ("softmax", "gaussian"):
            raise UsageError(f"{name}: there is no target '{target}'; choose from softmax, gaussian")
    if any(tag.startswith("exact_at_full_budget") for tag in claims.tags) != (claims.exact_at is not None):
        raise UsageError(f"{name}: the tag exact_at_full_budget and exact_at=n -> (d, options) go together")
    return claims


def as_method(function: Callable[..., Any], name: str, provenance: Provenance | None = None) -> Method:
    """The registry's entry of a function, whose adapter is called as every method is.

    Raises:
        UsageError: a function whose parameters are none of `GIVEN` and have no default, or an option of a strange type.
    """
    parameters = _parameters(function, name)
    claims = claims_of(function, name)
    given = {p.name for p in parameters if p.name in GIVEN}
    options = {p.name: p for p in parameters if p.name not in GIVEN}
    adapter = _adapter(_Function(function, name, tuple(parameters), claims.linear_in_v), options)
    tags = claims.tags
    if not given & {"generator", "streams"} and "deterministic" not in tags:
        tags = ("deterministic", *tags)  # it has no draws of ours, and `check` notices others
    return Method(
        name=name, function=adapter, paper=claims.paper, year=claims.year, family="user", targets=claims.targets,
        kind="user", tags=tags, budget=claims.budget if "d" in given else None, cost=claims.cost,
        oracle="attnprobe check", limit=claims.limit, least=claims.least, exact_at=claims.exact_at,
        takes_mask="mask" in given, provenance=provenance,
    )  # fmt: skip


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    """The parameters that a call fills in."""
    if not callable(function):
        raise UsageError(f"{name} is a {type(function).__name__}, not a function")
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} does not tell its parameters; wrap it in a function of q, k, v, …") from error
    found = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    for p in found:
        if p.name not in GIVEN and p.default is p.empty:
            raise UsageError(
                f"{name}: the parameter '{p.name}' has no default and is none of {', '.join(GIVEN)}; give it a default"
            )
    hints = _hints(function)
    return [p.replace(annotation=_type(name, p, hints)) if p.name not in GIVEN else p for p in found]


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # names that only a type checker knows
        return {}


def _type(name: str, p: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    """What an option may be: its annotation, or the type of its default."""
    hint = hints.get(p.name)
    several = typing.get_origin(hint) in (Union, types.UnionType)
    if hint in SIMPLE or (several and all(one in SIMPLE for one in typing.get_args(hint))):
        return hint
    if typing.get_origin(hint) is Literal and all(isinstance(one, str) for one in typing.get_args(hint)):
        return hint
    if p.default is None:
        return int | float | str | None
    if type(p.default) in SIMPLE:
        return type(p.default)
    raise UsageError(
        f"{name}: the option '{p.name}' has a default of type {type(p.default).__name__}; options are numbers, words, "
        "true or false, or none"
    )


def _adapter(function: _Function, options: Mapping[str, inspect.Parameter]) -> Callable[..., Approximation]:
    """The function in the form of every method, with its options in the signature."""

    def adapter(qkv: QKV, d: int | None, *, streams: Streams, target: str = "softmax", **given: Any) -> Approximation:
        return function.approximation(qkv, {"d": d, "target": target}, streams, given)

    head = [p for p in inspect.signature(adapter).parameters.values() if p.kind is not p.VAR_KEYWORD]
    own = [p.replace(kind=p.KEYWORD_ONLY) for p in options.values()]
    adapter.__signature__ = inspect.Signature([*head, *own])
    adapter.__annotations__ = {p.name: p.annotation for p in own}
    adapter.__doc__ = inspect.getdoc(function.function) or "It has no docstring."
    return adapter


@dataclass(frozen=True)
class _Function:
    """A user's function and how it is called."""

    function: Callable[..., Any]
    name: str
    parameters: tuple[inspect.Parameter, ...]
    linear_in_v: bool

    @property
    def wanted(self) -> set[str]:
        return {p.name for p in self.parameters}

    def approximation(
        self, qkv: QKV, plain: Mapping[str, Any], streams: Streams, options: Mapping[str, Any]
    ) -> Approximation:
        """What the function gives, on the valid tokens."""
        inner = qkv.compressed()
        rows = [[head] for head in qkv.heads] if "generator" in self.wanted else [qkv.heads]

        def run(v: Tensor) -> list[Any]:
            whole = replace(qkv, v=v)
            return [self._told(self._call(part, plain, streams, options), part)
                    for part in (whole.select(heads) for heads in rows)]  # fmt: skip

        found = _joined(run(qkv.v))
        if isinstance(found, Approximation):
            return found
        if isinstance(found, Operator):
            return Approximation.of(found, inner)
        if not self.linear_in_v:
            return Approximation(None, found)
        if Recovered.size(inner) > LARGEST:
            return Approximation(None, found, no_operator=f"has a matrix of {Recovered.size(inner) / 2**30:.1f} GiB, "
                                 "too large to recover; choose fewer heads or a smaller n")  # fmt: skip

        def apply(x: Tensor) -> Tensor:
            return _joined(run(_spread(x, qkv)))

        return Approximation(Recovered(apply, inner, self.name), found)

    def _call(self, qkv: QKV, plain: Mapping[str, Any], streams: Streams, options: Mapping[str, Any]) -> Any:
        """One call, on copies of Q, K and V."""
        q, k, v = (x.clone() for x in (qkv.q, qkv.k, qkv.v))
        values = {**plain, **options, "q": q, "k": k, "v": v, "scale": qkv.scale, "streams": streams}
        if "mask" in self.wanted:
            values["mask"] = qkv.v.new_ones(qkv.n_k, dtype=torch.bool) if qkv.mask is None else qkv.mask.clone()
        if "generator" in self.wanted:
            values["generator"] = streams.head(qkv.heads[0])
        if "qkv" in self.wanted:
            values["qkv"] = replace(qkv, q=q, k=k, v=v)
        first = [values.get(p.name, p.default) for p in self.parameters if p.kind is p.POSITIONAL_ONLY]
        rest = {p.name: values[p.name] for p in self.parameters if p.kind is not p.POSITIONAL_ONLY and p.name in values}
        try:
            got = self.function(*first, **rest)
        except Unsupported:
            raise
        except SystemExit as error:
            raise BadResult(f"{self.name} ends the process: {error or 'SystemExit'}") from error
        except UsageError as error:  # of the package's own parts, misused
            raise BadResult(f"{self.name}: {error}") from error
        for axis, x in (("q", q), ("k", k), ("v", v)):
            if not torch.equal(x, getattr(qkv, axis)):
                raise BadResult(f"{self.name} writes into its input {axis}; work on {axis}.clone()")
        return got

    def _told(self, got: Any, qkv: QKV) -> Any:
        """What one call returned: an output, an operator or an approximation, on the valid tokens."""
        if isinstance(got, Approximation):
            return self._approximation(got, qkv)
        if isinstance(got, Operator):
            self._fits(got.shape, {"a matrix (h, n_q, n_k)": (qkv.h, qkv.n_q, qkv.n_k)})
            return got if qkv.mask is None else self._matrix(got.dense(), qkv)
        if not isinstance(got, Tensor):
            raise BadResult(f"{self.name} returned a {type(got).__name__}; it returns an output or a matrix, as a "
                            "tensor, or an attnprobe Operator")  # fmt: skip
        self._on_device(got, qkv)
        output, matrix = (qkv.h, qkv.n_q, qkv.p_v), (qkv.h, qkv.n_q, qkv.n_k)
        if got.shape == matrix and (output != matrix or not self.wanted & {"v", "qkv"}):
            if self.linear_in_v:
                raise BadResult(f"{self.name} says linear_in_v, which is of functions that return an output, and "
                                "returned a matrix; drop linear_in_v")  # fmt: skip
            return self._matrix(got, qkv)
        self._fits(got.shape, {"an output is (h, n_q, p_v)": output, "a matrix (h, n_q, n_k)": matrix})
        self._same_dtype(got, qkv)
        return got if qkv.mask is None else got[:, qkv.mask]

    def _fits(self, shape: tuple[int, ...], wanted: Mapping[str, tuple[int, ...]]) -> None:
        if tuple(shape) not in wanted.values():
            told = ", ".join(f"{what} = {one}" for what, one in wanted.items())
            raise BadResult(f"{self.name} returned shape {tuple(shape)}; {told}")

    def _same_dtype(self, output: Tensor, qkv: QKV) -> None:
        if output.dtype != qkv.dtype:
            raise BadResult(f"{self.name} returned {str(output.dtype)[6:]} for inputs of {str(qkv.dtype)[6:]}; end "
                            "with .to(v.dtype)")  # fmt: skip

    def _on_device(self, x: Tensor, qkv: QKV) -> None:
        if not x.dtype.is_floating_point:
            raise BadResult(f"{self.name} returned {str(x.dtype)[6:]}; floating point is needed")
        if x.device != qkv.device:
            raise BadResult(f"{self.name} returned a tensor on {x.device} for inputs on {qkv.device}")

    def _matrix(self, matrix: Tensor, qkv: QKV) -> Dense:
        """A dense matrix on the valid tokens."""
        if qkv.mask is None:
            return Dense(matrix)
        inner = matrix[:, qkv.mask]
        if inner[:, :, ~qkv.mask].any():
            raise BadResult(f"{self.name} gives weight to padded keys")
        return Dense(inner[:, :, qkv.mask])

    def _approximation(self, got: Approximation, qkv: QKV) -> Approximation:
        """An approximation as the function made it, if it holds together."""
        if "mask" in self.wanted and qkv.mask is not None:
            raise BadResult(f"{self.name} takes a mask and returned an Approximation; return the output or the matrix")
        self._fits(got.output.shape, {"its output is (h, n_q, p_v)": (qkv.h, qkv.n_q, qkv.p_v)})
        self._same_dtype(got.output, qkv)
        if got.operator is not None:
            self._fits(got.operator.shape, {"its operator is (h, n_q, n_k)": (qkv.h, qkv.n_q, qkv.n_k)})
        return got


def _spread(x: Tensor, qkv: QKV) -> Tensor:
    """Values of the valid tokens among zeros at the padding."""
    if qkv.mask is None:
        return x
    out = x.new_zeros(x.shape[0], qkv.n_k, x.shape[2])
    out[:, qkv.mask] = x
    return out


def _joined(parts: list[Any]) -> Any:
    """The results of single heads as one."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    if isinstance(parts[0], Dense):
        return Dense(torch.cat([part.matrix for part in parts]))
    if isinstance(parts[0], Operator):
        return Stacked(parts)
    names = {field: set.intersection(*(set(getattr(part, field)) for part in parts))
             for field in ("draws", "cores", "inverses", "diagnostics")}  # fmt: skip
    joined = {field: {name: torch.cat([getattr(part, field)[name] for part in parts]) for name in sorted(some)}
              for field, some in names.items()}  # fmt: skip
    operators = [part.operator for part in parts]
    operator = None if None in operators else Stacked(operators)
    return Approximation(operator, torch.cat([part.output for part in parts]), **joined)
