"""The result of a method."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .errors import Unsupported
from .grammar.arguments import check_fields, checked
from .operators import Operator
from .operators.blocks import row_blocks
from .operators.groups import of_heads
from .qkv import QKV

CACHED_ENTRIES = 2**18  # numbers of an output on a CPU; to allocate more takes as long as the product


@dataclass(frozen=True, eq=False)
class Sampling:
    """The statistics of the estimates of a method that samples keys, for each row: (h, n_q) float64, None if unknown.

    Attributes:
        ess: the effective sample size ``(Σ w)² / Σ w²`` of the weights w of the used keys.
        inclusion: the smallest probability that a visible key is used.
        variance: the method's own estimate of ``Var(D~) / D²``.
        capped: 1 if the number of samples of the row reached a cap, otherwise 0.
    """

    ess: Tensor | None = None
    inclusion: Tensor | None = None
    variance: Tensor | None = None
    capped: Tensor | None = None

    def known(self) -> dict[str, Tensor]:
        """The known statistics by name, (h, n_q) each."""
        return {name: value for name, value in vars(self).items() if value is not None}


class Later(Mapping[str, Tensor]):
    """Tensors by name that are made each time they are read, such as draws of which a method uses a few."""

    made_when_read = True  # so that a check of types reads none

    def __init__(self, make: Mapping[str, Callable[[], Tensor]]) -> None:
        self._make = make

    def __getitem__(self, name: str) -> Tensor:
        return self._make[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._make)

    def __len__(self) -> int:
        return len(self._make)


class Counted(Later):
    """Tensors by name that are made when they are read first, such as costs that many callers do not need."""

    def __init__(self, make: Mapping[str, Callable[[], Tensor]]) -> None:
        super().__init__({name: cache(made) for name, made in make.items()})


@dataclass(frozen=True, eq=False)
class Approximation:
    """An approximate attention: its operator, its output, its draws and its diagnostics.

    Attributes:
        operator: the implicit ``B~`` (or ``C~``), (h, n_q, n_k); None if only an output is known.
        output: ``B~ V`` in the dtype of Q, K and V, (h, n_q, p_v).
        draws: all random draws by name, see `attnprobe.methods`.
        cores: the inverted matrices by name, (h, d, d) each, before and after scaling.
        inverses: the inverses that were used, by the names of `cores`.
        diagnostics: numbers of each head by name, (h,): ``realised_d``, ``visited``, ``bad_rows``,
            ``inverse_residual``, …
        no_operator: the reason why there is no operator.
        log_normalizer: computes ``log D~_i``, (h, n_q), for methods that divide row i by an estimate D~_i of ``D_i =
            Σ_j exp(S_ij)``; None for others.
        keys: computes the keys of each row, (h, n_q, k) int64 with -1 in empty slots, for methods that select keys;
            None for others.
        sampling: the statistics of its estimates, for methods that sample keys; None for others.
        stored: the keys and values that all rows read in place of K and V, (h_kv, n_k, ·) each, for methods that
            quantise them: the output is then ``B~`` times these values. With a mask they are those of the valid tokens.
            None for others, and where rows read different ones.

    Of inputs with a padding mask, only the operator and the output have the padded tokens. The rows of the other
    attributes are those of the valid tokens, by which their keys are numbered.

    Raises:
        UsageError: an attribute of another type, or a tensor that is sparse, complex or without memory.
    """

    operator: Operator | None
    output: Tensor
    draws: Mapping[str, Tensor] = field(default_factory=dict)
    cores: Mapping[str, Tensor] = field(default_factory=dict)
    inverses: Mapping[str, Tensor] = field(default_factory=dict)
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)
    no_operator: str = "gives an output and no matrix"
    log_normalizer: Callable[[], Tensor] | None = None
    keys: Callable[[], Tensor] | None = None
    sampling: Sampling | None = None
    stored: tuple[Tensor, Tensor] | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    @checked()
    def of(cls, operator: Operator, qkv: QKV, **parts: Any) -> Approximation:
        """The approximation with the output ``operator @ V`` (h, n_q, p_v); ``parts`` are its other attributes."""
        # of another dtype, the output of all heads at once would be held twice, in both dtypes
        if operator.dtype == qkv.dtype:
            return cls(operator, operator.matmul_shared(qkv.shared_v), **parts)
        output = qkv.q.new_empty(qkv.h, qkv.n_q, qkv.p_v)
        for heads in _heads_at_once(qkv):
            output[heads] = operator.heads(heads).matmul_shared(of_heads(qkv.shared_v, heads, qkv.h))
        return cls(operator, output, **parts)

    def matrix(self) -> Operator:
        """The operator, (h, n_q, n_k).

        Raises:
            Unsupported: the approximation has an output and no operator.
        """
        if self.operator is None:
            raise Unsupported(f"the method {self.no_operator}")
        return self.operator

    def __repr__(self) -> str:
        parts = [f"output={tuple(self.output.shape)}", f"operator={self.operator!r}"]
        for name in ("draws", "cores"):
            if tensors := getattr(self, name):
                parts.append(f"{name}={', '.join(tensors)}")
        numbers = {name: [round(float(x), 6) for x in values] for name, values in self.diagnostics.items()}
        return f"Approximation({', '.join(parts)}, diagnostics={numbers})"

    def lost_rows(self) -> Tensor:
        """The number of output rows with a value that is not finite, (h,) int64."""
        if self.output.device.type == "cpu":  # a GPU would have to be waited for
            sums = self.output.sum(-1, dtype=torch.float64)  # several times faster to check than all values
            if torch.isfinite(sums).all():
                return torch.zeros(len(sums), dtype=torch.int64, device=sums.device)
        return (~torch.isfinite(self.output)).any(-1).sum(-1)

    def draws_hash(self) -> str | None:
        """SHA-256 of the draws (16 hex digits); None if there are none."""
        if not self.draws:
            return None
        digest = hashlib.sha256()
        # sorted: the hash is that of the draws, not of the order in which a method names them
        for name in sorted(self.draws):
            tensor = self.draws[name].detach().cpu()
            digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            for head in tensor:  # one at a time, because sketches are large
                digest.update(head.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]


def _heads_at_once(qkv: QKV) -> list[slice]:
    """Slices of the heads that are multiplied at once: on a CPU so many that their output stays in the cache."""
    size = qkv.h
    if qkv.device.type == "cpu":
        size = max(1, CACHED_ENTRIES // (qkv.n_q * qkv.p_v))
    return [slice(start, stop) for start, stop in row_blocks(qkv.h, size)]
