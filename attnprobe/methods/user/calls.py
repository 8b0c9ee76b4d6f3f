"""Calls of a user's function: its arguments, and the check of its result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...approximation import Approximation
from ...errors import LINE, BadResult, Unsupported, UsageError, cut
from ...grammar.arguments import a_type, fault
from ...grammar.foreign import message, one_line
from ...operators import Dense, Operator, Stacked
from ...qkv import QKV
from ...rng import Streams
from .foreign import Guarded, asked, check_tensor
from .recovered import LARGEST, Recovered

COSTS = ("visited", "scored", "kv_read", "realised_d", "bad_rows", "guarded_rows", "rounded_rows")  # of diagnostics


@dataclass(frozen=True)
class UserFunction:
    """A user's function with its name, its parameters and its claim of linearity."""

    function: Callable[..., Any]
    name: str
    parameters: tuple[inspect.Parameter, ...]
    linear_in_v: bool

    @property
    def parameter_names(self) -> set[str]:
        """The names of the parameters."""
        return {p.name for p in self.parameters}

    def approximation(
        self, qkv: QKV, plain: Mapping[str, Any], streams: Streams, options: Mapping[str, Any]
    ) -> Approximation:
        """The function's result as an approximation on the valid tokens.

        Raises:
            BadResult: another type, shape, dtype or device; a result that is not linear in V; inputs that changed.
            Unsupported: the function raises it.
        """
        inner = qkv.compressed()
        calls = [[head] for head in qkv.heads] if "generator" in self.parameter_names else [qkv.heads]

        def run(v: Tensor) -> list[Any]:
            inputs = qkv.replace(v=v)
            parts = [inputs.select(heads) for heads in calls]
            return [self._checked(self._call(part, plain, streams, options), part) for part in parts]

        result, draws = _joined(run(qkv.v)), self._draws(qkv, streams)
        if isinstance(result, Operator):
            return Approximation.of(result, inner, draws=draws)
        if isinstance(result, Tensor):
            result = Approximation(None, result)
        result = replace(result, draws={**result.draws, **draws})
        if not self.linear_in_v or result.operator is not None:
            return result
        if Recovered.size(inner) > LARGEST:
            return replace(
                result,
                no_operator=f"has a matrix of {Recovered.size(inner) / 2**30:.1f} "
                "GiB, too large to recover; choose fewer heads or a smaller n",
            )

        def apply(x: Tensor) -> Tensor:
            again = _joined(run(_spread(x, qkv)))
            return again if isinstance(again, Tensor) else again.output

        return replace(result, operator=Recovered(apply, inner, self.name))

    def _draws(self, qkv: QKV, streams: Streams) -> dict[str, Tensor]:
        """The seed of each head's generator, (h, 1) int64, from which its draws can be replayed."""
        if "generator" not in self.parameter_names:
            return {}
        return {"generator_seed": torch.tensor([[streams.head(head).initial_seed()] for head in qkv.heads])}

    def _call(self, qkv: QKV, plain: Mapping[str, Any], streams: Streams, options: Mapping[str, Any]) -> Any:
        """One call, on copies of Q, K and V."""
        # A function that writes into its inputs would change what later methods and the exact attention get.
        q, k, v = (x.clone() for x in (qkv.q, qkv.k, qkv.v))
        values = {**plain, **options, "q": q, "k": k, "v": v, "scale": qkv.scale, "streams": streams}
        if "mask" in self.parameter_names:
            values["mask"] = qkv.v.new_ones(qkv.n_k, dtype=torch.bool) if qkv.mask is None else qkv.mask.clone()
        if "generator" in self.parameter_names:
            values["generator"] = streams.head(qkv.heads[0])
        if "qkv" in self.parameter_names:
            values["qkv"] = qkv.replace(q=q, k=k, v=v)
        first = [values.get(p.name, p.default) for p in self.parameters if p.kind is p.POSITIONAL_ONLY]
        rest = {p.name: values[p.name] for p in self.parameters if p.kind is not p.POSITIONAL_ONLY and p.name in values}
        try:
            result = self.function(*first, **rest)
        except Unsupported:
            raise
        except SystemExit as error:
            raise BadResult(f"{self.name} ends the process: {message(error)}") from error
        except UsageError as error:  # from attnprobe's own functions, misused
            raise BadResult(f"{self.name}: {message(error)}") from error
        for axis, x in (("q", q), ("k", k), ("v", v)):
            if not torch.equal(x, getattr(qkv, axis)):
                raise BadResult(f"{self.name} writes into its input {axis}; work on {axis}.clone()")
        return result

    def _checked(self, result: Any, qkv: QKV) -> Any:
        """The result of one call on the valid tokens: an output, an operator or an approximation."""
        kind = type(result)  # a foreign object is asked nothing
        if issubclass(kind, Approximation):
            return self._approximation(result, qkv)
        if issubclass(kind, Operator):
            result = self._operator(result, qkv, "a matrix")
            return result if qkv.mask is None else self._matrix(result.dense(), qkv)
        if not issubclass(kind, Tensor):
            raise BadResult(
                f"{self.name} returned {a_type(result)}; return an output or a matrix as a tensor, or an "
                "attnprobe Operator"
            )
        self._check_device(result, qkv)
        output, matrix = (qkv.h, qkv.n_q, qkv.p_v), (qkv.h, qkv.n_q, qkv.n_k)
        if result.shape == matrix and (output != matrix or not self.parameter_names & {"v", "qkv"}):
            if self.linear_in_v:
                raise BadResult(
                    f"{self.name} claims linear_in_v and returned a matrix; linear_in_v is for functions that return "
                    "an output: drop linear_in_v"
                )
            return self._matrix(result, qkv)
        self._check_shape(result.shape, {"an output is (h, n_q, p_v)": output, "a matrix (h, n_q, n_k)": matrix})
        self._check_dtype(result, qkv)
        return result if qkv.mask is None else result[:, qkv.mask]

    def _check_shape(self, shape: tuple[int, ...], allowed: Mapping[str, tuple[int, ...]]) -> None:
        if tuple(shape) not in allowed.values():
            shapes = ", ".join(f"{kind} = {size}" for kind, size in allowed.items())
            raise BadResult(f"{self.name} returned shape {tuple(shape)}; {shapes}")

    def _check_dtype(self, output: Tensor, qkv: QKV) -> None:
        if output.dtype != qkv.dtype:
            raise BadResult(
                f"{self.name} returned {str(output.dtype)[6:]} for inputs of {str(qkv.dtype)[6:]}; end "
                "with .to(v.dtype)"
            )

    def _check_device(self, x: Tensor | Operator, qkv: QKV) -> None:
        if not x.dtype.is_floating_point:
            raise BadResult(f"{self.name} returned {str(x.dtype)[6:]}; floating point is needed")
        if x.device != qkv.device:
            raise BadResult(f"{self.name} returned a result on {x.device} for inputs on {qkv.device}")
        if isinstance(x, Tensor) and (problem := fault(x, Tensor)) is not None:
            raise BadResult(f"{self.name}: its result{problem}")

    def _operator(self, operator: Operator, qkv: QKV, kind: str) -> Operator:
        """A user's operator, with its attributes checked. One of a class of the user's own is `Guarded`."""
        if (problem := fault(operator, Operator)) is not None:
            raise BadResult(f"{self.name}: its operator{problem}")
        self._check_shape(operator.shape, {f"{kind} (h, n_q, n_k)": (qkv.h, qkv.n_q, qkv.n_k)})
        self._check_device(operator, qkv)
        if isinstance(operator, Dense):
            self._check_device(operator.matrix, qkv)
        return operator if type(operator).__module__.startswith("attnprobe.") else Guarded(operator, self.name)

    def _matrix(self, matrix: Tensor, qkv: QKV) -> Dense:
        """A dense matrix on the valid tokens."""
        if qkv.mask is None:
            return Dense(matrix)
        inner = matrix[:, qkv.mask]
        if inner[:, :, ~qkv.mask].any():
            raise BadResult(f"{self.name} gives weight to padded keys")
        return Dense(inner[:, :, qkv.mask])

    def _approximation(self, result: Approximation, qkv: QKV) -> Approximation:
        """The function's own approximation, with its shapes and dtype checked."""
        if "mask" in self.parameter_names and qkv.mask is not None:
            raise BadResult(f"{self.name} takes a mask and returned an Approximation; return the output or the matrix")
        self._check_shape(result.output.shape, {"its output is (h, n_q, p_v)": (qkv.h, qkv.n_q, qkv.p_v)})
        self._check_dtype(result.output, qkv)
        self._check_device(result.output, qkv)
        for name, values in result.diagnostics.items():
            what = f"{self.name}: its diagnostic '{cut(name)}'"
            check_tensor(values, (qkv.h,), what)
            if name in COSTS and (wrong := values[~(values.isfinite() & (values >= 0))]).numel():
                raise BadResult(f"{what} is {wrong[0].item():g} in a head; a finite number of at least 0 is needed")
        for tensors in (result.draws, result.cores, result.inverses):
            for name, x in tensors.items():
                if not x.dim() or len(x) != qkv.h:
                    raise BadResult(f"{self.name}: '{cut(name)}' has shape {tuple(x.shape)}; (h, …) is needed")
        log_normalizer, keys = result.log_normalizer, result.keys
        rows, what = (qkv.h, qkv.n_q), f"{self.name}: the value of its"
        return replace(
            result,
            no_operator=cut(one_line(result.no_operator[:LINE]), LINE),
            operator=None if result.operator is None else self._operator(result.operator, qkv, "its operator is"),
            log_normalizer=log_normalizer and (lambda: check_tensor(log_normalizer(), rows, f"{what} log_normalizer")),
            keys=keys and (lambda: self._checked_keys(keys, qkv)),
        )

    def _checked_keys(self, computed: Callable[[], Any], qkv: QKV) -> Tensor:
        """The keys of each row, (h, n_q, k) int64, as an `Approximation` states them."""
        keys = asked(computed, f"{self.name}: its keys()", BadResult)
        if fault(keys, Tensor) is not None or keys.dtype != torch.int64 or keys.shape[:-1] != (qkv.h, qkv.n_q):
            raise BadResult(f"{self.name}: the value of its keys must be (h, n_q, k) int64")
        if keys.numel() and not (int(keys.min()) >= -1 and int(keys.max()) < qkv.n_k):
            raise BadResult(
                f"{self.name}: its keys {int(keys.min())} … {int(keys.max())} are not all among the {qkv.n_k} keys; "
                "-1 is an empty slot"
            )
        return keys


def _spread(x: Tensor, qkv: QKV) -> Tensor:
    """The values ``x`` of the valid tokens in a tensor of all tokens, zero at the padding."""
    if qkv.mask is None:
        return x
    out = x.new_zeros(x.shape[0], qkv.n_k, x.shape[2])
    out[:, qkv.mask] = x
    return out


def _joined(parts: list[Any]) -> Any:
    """The results of several calls, joined along the heads."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    if isinstance(parts[0], Dense):
        return Dense(torch.cat([part.matrix for part in parts]))
    if isinstance(parts[0], Operator):
        return Stacked(parts)
    names = {
        field: set.intersection(*(set(getattr(part, field)) for part in parts))
        for field in ("draws", "cores", "inverses", "diagnostics")
    }
    joined = {
        field: {name: torch.cat([getattr(part, field)[name] for part in parts]) for name in sorted(common)}
        for field, common in names.items()
    }
    operators = [part.operator for part in parts if part.operator is not None]
    operator = Stacked(operators) if len(operators) == len(parts) else None
    return Approximation(
        operator,
        torch.cat([part.output for part in parts]),
        joined["draws"],
        joined["cores"],
        joined["inverses"],
        joined["diagnostics"],
    )
