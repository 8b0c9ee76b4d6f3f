"""What a format adds to a method's own error, measured per head. Call `rounding_errors`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import NotFinite, Unsupported, UsageError
from ..grammar.arguments import checked
from ..grammar.arithmetic import EVERY, FLOAT64, Format
from ..methods import Method, get
from ..operators.linalg.norms import output_norms
from ..qkv import QKV
from .computation import Computation
from .emulation import Emulation, Watch
from .following import Follow, Report
from .formats import arithmetic_named
from .site import INPUTS, Site

GOAL = 0.1  # rounding may add a tenth of the approximation's error
EXACT = 1e-12  # an approximation's relative error that float64's own rounding explains


@dataclass(frozen=True, eq=False)
class RoundingErrors:
    """The errors of a method in a format. All tensors are (h,) float64 on the CPU; errors are over ``‖B V‖₂``.

    With B~ the method in float64 and B̂ the method in the format:

    Attributes:
        format: the format. arithmetic: the model of arithmetic.
        approximation: ``‖(B - B~) V‖₂``.
        rounding: ``‖B̂ V - B~ V‖₂``; infinite for a head with an output that is not finite.
        rounding_frobenius: ``‖B̂ V - B~ V‖_F / ‖B V‖_F``.
        total: ``‖B V - B̂ V‖₂``.
        held, held_frobenius: ``rounding`` and ``rounding_frobenius`` with the choices of float64 held.
        flips: the share of the integer choices that rounding flips, over all heads.
        input_floor: ``rounding`` if Q, K and V alone are rounded.
        amplification: ``rounding / u``.
        bits: the bits of a significand with which rounding is at most ``goal`` times the approximation's error; NaN
            for an exact method or a head that is not finite.
        first_failed: for each head, the first step whose result is not finite; None for a finite head.
        report: which operations were rounded.
    """

    format: Format
    arithmetic: str
    approximation: Tensor
    rounding: Tensor
    rounding_frobenius: Tensor
    total: Tensor
    held: Tensor
    held_frobenius: Tensor
    flips: float
    input_floor: Tensor
    amplification: Tensor
    bits: Tensor
    first_failed: tuple[str | None, ...]
    report: Report

    @property
    def decides(self) -> Tensor:
        """Whether rounding exceeds the approximation's error, (h,) bool; heads that are not finite are among them."""
        return self.rounding > self.approximation

    @property
    def is_rounded(self) -> bool:
        """Whether operations were rounded, and none was computed in a dtype of the code's own."""
        return bool(self.report.emulated) and not self.report.as_written


@dataclass(frozen=True, eq=False)
class _Output:
    """An output in a format, (h, n_q, p_v), with the first step that failed in each head."""

    output: Tensor
    first_failed: tuple[str | None, ...]
    report: Report


@checked(options=Any)
def rounding_errors(
    qkv: QKV,
    method: str | Method | Callable[..., Any],
    d: int | None = None,
    format: str = "bf16",
    *,
    keep: Iterable[Site] = (),
    goal: float = GOAL,
    seed: int = 0,
    target: str = "softmax",
    **options: Any,
) -> RoundingErrors:
    """The error that the arithmetic of a format adds to a method's own, per head.

    The operations of the method run in an emulated arithmetic, see `Emulation`, on the same draws. Constants that
    follow the dtype, such as the cutoff of a pseudo-inverse, are those of float64 on both sides.

    Args:
        format: a name in `FORMATS`, or ``FORMAT:MODEL``. The model ``tensor-cores`` rounds the inputs of products only,
            which add in float32; ``autocast`` computes products in the format, and exponentials, sums and norms in
            float32. Without one the result of every operation is rounded.
        keep: sites that stay in float32, such as those of a `plan`.
        goal: the part of the approximation's error that `RoundingErrors.bits` allows.
        method, d, seed, target, options: as in `attnprobe.approximate`.

    Cost: two plain runs in float64 and at most two in the emulated arithmetic, of two to six plain runs each.

    Raises:
        Unsupported: a method whose numbers leave torch, or a format that this torch lacks. UsageError: as
            `attnprobe.approximate`.

    >>> g = torch.Generator().manual_seed(0)
    >>> qkv = QKV(*torch.randn(3, 2, 32, 8, generator=g))
    >>> errors = rounding_errors(qkv, "nystromformer", 8, "bf16")
    >>> bool((errors.rounding < errors.approximation).all()), errors.first_failed
    (True, (None, None))
    """
    computation = computation_of(qkv, method, d, seed=seed, target=target, **options)
    return measured(computation, *arithmetic_named(format), frozenset(keep), goal)


def computation_of(
    qkv: QKV,
    method: str | Method | Callable[..., Any],
    d: int | None = None,
    *,
    seed: int = 0,
    target: str = "softmax",
    **options: Any,
) -> Computation:
    """A method on Q, K and V in float64, from the arguments of `attnprobe.approximate`."""
    entry = get(method)
    return Computation(qkv.to(torch.float64), entry, d, seed, target, entry.check(target, options))


def measured(
    computation: Computation,
    to: Format,
    arithmetic: str = EVERY,
    keep: frozenset[Site] = frozenset(),
    goal: float = GOAL,
) -> RoundingErrors:
    """The errors of `rounding_errors` for a `Computation`, which keeps its exact output and its plain run."""
    if not 0 < goal < float("inf"):
        raise UsageError(f"goal={goal} is not a positive number")
    plain, choices = computation.plain
    if not torch.isfinite(plain).any():
        raise NotFinite(f"{computation.method.name}: no number of its output is finite in float64")
    free = choices.replay(hold=False)
    own = _rounded_output(computation, lambda: Emulation(to, arithmetic, keep, free))
    errors = added(computation, plain, own.output, to, goal)
    held, held_frobenius = errors["rounding"], errors["rounding_frobenius"]
    # without a flip the choices are those of float64 already, and the run would be the same
    if free.flips or free.lost:
        fixed = _rounded_output(computation, lambda: Emulation(to, arithmetic, keep, choices.replay(hold=True)))
        of_fixed = added(computation, plain, fixed.output, to, goal)
        held, held_frobenius = of_fixed["rounding"], of_fixed["rounding_frobenius"]
    return RoundingErrors(
        format=to,
        arithmetic=arithmetic,
        **errors,
        held=held,
        held_frobenius=held_frobenius,
        flips=free.share,
        input_floor=_input_floor(computation, to, arithmetic).cpu(),
        first_failed=own.first_failed,
        report=own.report,
    )


def added(computation: Computation, plain: Tensor, own: Tensor, to: Format, goal: float) -> dict[str, Tensor]:
    """The attributes of `RoundingErrors` that follow from two outputs of a method, (h,) each on the CPU.

    Args:
        plain: in float64. own: in the format.
    """
    spectral, frobenius = computation.sizes
    approximation = _norms(computation.exact - plain)[0] / spectral
    rounding, rounding_frobenius = _norms(own - plain)
    amplification = rounding / spectral / to.unit
    # the bits of an exact method would be those of float64's own rounding
    known = torch.isfinite(rounding) & (approximation > EXACT)
    found = {
        "approximation": approximation,
        "rounding": rounding / spectral,
        "rounding_frobenius": rounding_frobenius / frobenius,
        "total": _norms(computation.exact - own)[0] / spectral,
        "amplification": amplification,
        "bits": torch.where(known, torch.log2(amplification / (goal * approximation)), torch.nan),
    }
    return {name: values.cpu() for name, values in found.items()}


def _norms(difference: Tensor) -> tuple[Tensor, Tensor]:
    """The spectral and Frobenius norms of each head, infinite for a head with a number that is not finite."""
    finite = torch.isfinite(difference).flatten(1).all(1)
    spectral, frobenius = output_norms(difference.masked_fill(~finite[:, None, None], 0))
    return spectral.masked_fill(~finite, torch.inf), frobenius.masked_fill(~finite, torch.inf)


def _input_floor(computation: Computation, to: Format, arithmetic: str) -> Tensor:
    """The rounding error if Q, K and V alone are rounded, (h,)."""
    plain, choices = computation.plain
    start = Emulation(to, arithmetic).start
    # `Follow` rounds nothing, so only the inputs are rounded; held choices keep flips out of the floor
    mode = Follow(choices=choices.replay(hold=True))
    mode.start = lambda x: Follow.start(mode, start(x))  # type: ignore[method-assign]
    try:
        output = computation.followed(mode)
    except NotFinite:
        output = torch.full_like(plain, torch.nan)
    return _norms(output - plain)[0] / computation.sizes[0]


def _rounded_output(computation: Computation, make: Callable[[], Emulation]) -> _Output:
    """The output in an emulated arithmetic. Heads that fail are run alone, to find where."""
    mode, h = make(), computation.qkv.h
    try:
        output = computation.followed(mode)
    except Unsupported:
        raise
    except (RuntimeError, NotFinite):  # of LAPACK, which refuses what is not finite, or of an input
        output = torch.full_like(computation.plain[0], torch.nan)
    lost = ~torch.isfinite(output).flatten(1).all(1)
    # what float64 loses too is the method's own fault, and no fault of the format
    lost &= torch.isfinite(computation.plain[0]).flatten(1).all(1)
    failed: list[str | None] = [None] * h
    for row in lost.nonzero()[:, 0].tolist():
        part = computation if computation.method.joint else computation.head(row)
        found, alone = first_failure(part, make())
        failed[row] = found
        if alone is not None:  # also where another head's failure ended the run of all
            output[row] = alone[row if computation.method.joint else 0]
    return _Output(output, tuple(failed), mode.report)


def first_failure(computation: Computation, mode: Emulation) -> tuple[str | None, Tensor | None]:
    """The first step on the way to the output that is less finite in an arithmetic than in float64, and the output.

    Where LAPACK refuses a number, there is no output, and the step is the first one of all.
    """
    if computation.lost_inputs(mode).any():
        return str(INPUTS), None
    usual = Emulation(FLOAT64)
    usual.watch = Watch()
    computation.followed(usual)
    mode.watch = Watch(usual.watch)
    try:
        output = computation.followed(mode)
    except (RuntimeError, NotFinite) as error:
        return str(mode.watch.first or str(error).splitlines()[0]), None
    if torch.isfinite(output).all():
        return None, output
    return str(mode.watch.cause(output) or mode.watch.first), output
