"""One run of a method on small seeded inputs, with the allowed errors of its results; the registry of properties.

Scores ``s q·k`` of standard normal Q and K have standard deviation 1 for every p; ``score`` scales it. At 6 a row of B
has a few large entries and the entries of C reach 1e-20, which reveals clamps and missing shifts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..approximation import Approximation
from ..errors import UsageError
from ..grammar.arguments import check_fields
from ..grammar.foreign import message
from ..methods import Method, approximate
from ..operators import Operator
from ..qkv import QKV
from ..rng import generator
from .bands import entry_band, eps, output_band

SCORES = (1.0, 6.0)
DTYPES = (torch.float32, torch.float64)


def make(h=2, n=20, p=8, p_v=5, *, n_k=None, score=1.0, dtype=torch.float64, seed=0, label=None) -> QKV:
    """Normal Q (h, n, p), K (h, n_k, p) and V (h, n_k, p_v), rounded to float32 first.

    So runs in float32 and in float64 have the same numbers.
    """
    g = generator(seed, "inputs")
    n_k = n if n_k is None else n_k
    q, k, v = (torch.randn(h, rows, width, generator=g) for rows, width in ((n, p), (n_k, p), (n_k, p_v)))

    return QKV((q * score**0.5).to(dtype), (k * score**0.5).to(dtype), v.to(dtype), label=label or {})


def reaching(top: float, **shape) -> QKV:
    """Inputs whose largest |score| is ``top``."""
    dtype = shape.pop("dtype", torch.float64)
    qkv = make(**shape)
    factor = (top / float((qkv.scale * qkv.q @ qkv.k.mT).abs().max())) ** 0.5
    return QKV((qkv.q * factor).to(dtype), (qkv.k * factor).to(dtype), qkv.v.to(dtype))


def permuted(qkv: QKV, order: torch.Tensor) -> QKV:
    """The same tokens in another order."""
    return QKV(qkv.q[:, order], qkv.k[:, order], qkv.v[:, order], scale=qkv.scale, heads=qkv.heads)


BY_OUTPUT = ("user", "kernel")  # kinds whose computation is not known


class Fault(AssertionError):
    """A property does not hold; the message says how."""


class Skip(Exception):
    """A property does not apply to a method; the message says why."""


def demand(holds: Any, otherwise: str) -> None:
    """Check that ``holds`` is true."""
    if not bool(holds):
        raise Fault(otherwise)


@dataclass(frozen=True)
class Case:
    """A method with its target and options, the shape of its inputs, the size of their scores, a dtype and a seed.

    Entries of operators are compared within `entry_band`, which follows from the norms of the factors. The computation
    of a user's function is not known, so its results may differ by half of the digits: the square root of the dtype's
    eps times the largest entry of the head.

    Attributes:
        n, h, p, p_v: the numbers of tokens and heads, the head dimension and the value dimension. d: the budget.
        score: the standard deviation of the scores.
    """

    method: Method
    target: str = "softmax"
    options: Mapping[str, Any] = field(default_factory=dict)
    n: int = 20
    h: int = 2
    p: int = 8
    p_v: int = 5
    d: int = 6
    score: float = 1.0
    dtype: torch.dtype = torch.float64
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "case")

    def qkv(self, **changes: Any) -> QKV:
        """The inputs, with ``changes`` of shape, dtype, score or seed."""
        shape = {name: getattr(self, name) for name in ("h", "n", "p", "p_v", "score", "dtype", "seed")}
        return make(**shape | changes)

    @property
    def budget(self) -> int | None:
        """d, or the method's smallest budget if that is larger; None for a method without a budget."""
        return None if self.method.budget is None else max(self.d, self.method.least)

    def run(
        self, qkv: QKV | None = None, d: int | None = None, seed: int | None = None, **options: Any
    ) -> Approximation:
        """The method's result on ``qkv``, by default on `qkv()`. The method's `small` options replace its defaults."""
        return approximate(
            self.method,
            self.qkv() if qkv is None else qkv,
            self.budget if d is None else d,
            seed=self.seed if seed is None else seed,
            target=self.target,
            **{**self.method.small, **self.options, **options},
        )

    def operator(self, approx: Approximation) -> Operator:
        """The operator of an approximation.

        Raises:
            Skip: there is none, so the property does not apply.
        """
        if approx.operator is None:
            raise Skip(f"it {approx.no_operator}")
        return approx.operator

    def band(self, approx: Approximation, qkv: QKV, dtype: torch.dtype | None = None) -> Tensor:
        """The allowed error of each entry of the operator, (h, n_q, n_k)."""
        operator = self.operator(approx)
        dtype = dtype or operator.dtype
        if self.method.kind not in BY_OUTPUT:
            return entry_band(operator, qkv, dtype)
        return half_the_digits(operator.dense(), dtype)

    def output_band(self, approx: Approximation, qkv: QKV) -> Tensor:
        """The allowed error of each entry of the output, (h, n_q, p_v)."""
        if self.method.kind not in BY_OUTPUT and approx.operator is not None:
            return output_band(approx, qkv, approx.operator.dtype)
        return half_the_digits(approx.output, qkv.dtype)

    def compare(self, ours: Approximation, other: Approximation, qkv: QKV, what: str) -> None:
        """Demand that two results agree up to rounding: their matrices, or their outputs if there is no matrix."""
        if ours.operator is None or other.operator is None:
            pairs = (ours.output, other.output, self.output_band(ours, qkv))
        else:
            # the coarser dtype: an operator may be wider or narrower than the inputs
            dtype = max(self.dtype, ours.operator.dtype, key=eps)
            pairs = (ours.operator.dense(), other.operator.dense(), self.band(ours, qkv, dtype))
        self.near(*pairs, what)

    def near(self, got: Tensor, expected: Tensor, band: Tensor, what: str) -> None:
        """Demand that entries differ by at most ``band``; all three have the same shape.

        Raises:
            Fault: an entry differs by more. The message has the worst one.
        """
        error = (got.double() - expected.double()).abs()
        if (error <= band).all():
            return
        # NaN fails every comparison, so an entry that is NaN counts as the worst
        worst = torch.where(error <= band, torch.zeros_like(error), error.nan_to_num(nan=float("inf")))
        index = tuple(int(i) for i in torch.unravel_index(worst.argmax(), worst.shape))
        axes = ("head", "row", "column") if len(index) == 3 else ("head", "row")
        where = ", ".join(f"{axis} {i}" for axis, i in zip(axes, index, strict=True))
        raise Fault(f"{what}: at {where} {float(got[index]):.6g} against {float(expected[index]):.6g}")

    def random(self, *shape: int) -> Tensor:
        """Normal numbers of a shape, float64, the same for equal shapes."""
        return torch.randn(shape, generator=generator(self.seed, "check", *shape), dtype=torch.float64)

    def with_(self, **changes: Any) -> Case:
        """This case with changed fields."""
        return replace(self, **changes)

    def refused(self) -> str | None:
        """The reason why the method cannot take this case's budget and length; None if it can."""
        try:
            self.method.check_budget(self.budget, self.n, self.n)
        except UsageError as error:
            return message(error)
        return None


def half_the_digits(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The allowed error where the computation is not known, (h, n, m): √eps of the largest entry of the head."""
    x = x.double().abs()
    return eps(dtype) ** 0.5 * x.amax((1, 2), keepdim=True).expand_as(x) + torch.finfo(dtype).tiny


@dataclass(frozen=True)
class Property:
    """A property of methods.

    Attributes:
        name: its name on the command line. says: its statement. hold: the function that checks a case.
        scores, dtypes: the cases on which it is checked.
        tag: the tag of the methods that it applies to; None for all methods.
    """

    name: str
    says: str
    hold: Callable[[Case], None]
    scores: Sequence[float] = SCORES
    dtypes: Sequence[torch.dtype] = DTYPES
    tag: str | None = None


PROPERTIES: dict[str, Property] = {}


def in_kit(name: str, says: str, **where: Any) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """A decorator that adds a function to `PROPERTIES`. Further keywords are fields of `Property`."""

    def put(function: Callable[[Case], None]) -> Callable[[Case], None]:
        PROPERTIES[name] = Property(name, says, function, **where)
        return function

    return put
