"""The rounding of tensors to a format of floating-point numbers. `arithmetic_named` reads a name."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import Unsupported
from ..grammar.arguments import checked
from ..grammar.arithmetic import Format, format_and_model, format_of

BEYOND_E4M3 = 464.0  # half a unit above the largest number, 448; a tie rounds to 448, which is even
DROPPED = 13  # bits of a float32 significand that tf32 lacks


@checked()
def format_named(name: str) -> Format:
    """The format of a name in `FORMATS`, or ``float64``, in which nothing is rounded.

    Raises:
        UsageError: an unknown name. Unsupported: this version of torch has no such dtype.

    >>> format_named("fp17")
    Traceback (most recent call last):
    attnprobe.errors.UsageError: unknown format 'fp17'; did you mean 'fp16'?
    """
    return _of_this_torch(format_of(name))


@checked()
def arithmetic_named(text: str) -> tuple[Format, str]:
    """The format and the model of ``FORMAT`` or ``FORMAT:MODEL``.

    Raises:
        UsageError: an unknown name. Unsupported: this version of torch has no dtype of the format.

    >>> arithmetic_named("fp16:autocast")[1]
    'autocast'
    """
    format, model = format_and_model(text)
    return _of_this_torch(format), model


def _of_this_torch(format: Format) -> Format:
    """The format, if this version of torch can round to it."""
    if format.cast is not None and not hasattr(torch, format.cast):
        message = f"torch {torch.__version__} has no dtype {format.cast}; use a newer torch"
        raise Unsupported(f"format {format.name}: {message}")
    return format


@checked()
def rounded(x: Tensor, to: Format) -> Tensor:
    """The numbers of ``x`` (…) rounded to a format, in the dtype of ``x``.

    Rounding is to the nearest number, and to the even one of two nearest. A number beyond the largest finite one
    becomes infinite where IEEE 754 says so: at half a unit in the last place above it, whether or not the format has
    infinities. Subnormal numbers are kept. Infinities and NaN stay.

    Args:
        x: float32 or float64.

    >>> rounded(torch.tensor([1.00390625, 1.01171875, 3e38]), format_named("bf16")).tolist()
    [1.0, 1.015625, 3.00405527047391e+38]
    >>> rounded(torch.tensor([464.0, 465.0]), format_named("fp8-e4m3")).tolist()
    [448.0, inf]
    """
    if to.cast == "float64" or (to.cast == "float32" and x.dtype == torch.float32):
        return x
    if to.cast == "float32":
        return x.float().to(x.dtype)
    single = x.float()
    if x.dtype != torch.float32 and not torch.equal(single.to(x.dtype), x):  # a second rounding would not be the first
        single = _to_odd(x)
    return cast_single(single, to).to(x.dtype)


def cast_single(x: Tensor, to: Format) -> Tensor:
    """The numbers of a float32 tensor rounded to a format, in the format's own dtype if it has infinities.

    It is `rounded` without the conversion back, for callers that convert the result to another dtype anyway.
    """
    if to.cast is None:
        return _fewer_bits(x)
    if to.cast == "float32":
        return x
    small = x.to(getattr(torch, to.cast))
    if to.cast != "float8_e4m3fn":
        return small
    # the format has no infinity, and versions of torch differ in what is too large for it
    return torch.where(x.abs() > BEYOND_E4M3, torch.copysign(x.new_tensor(float("inf")), x), small.to(x.dtype))


def _to_odd(x: Tensor) -> Tensor:
    """A float64 tensor in float32, where an inexact number is the neighbour whose last bit is 1.

    Rounding that again, to at least two bits fewer, is rounding x once (Boldo & Melquiond 2008).
    """
    single = x.float()
    back = single.double()
    away = back.abs() > x.abs()
    bits = single.view(torch.int32)
    toward_zero = torch.where(away, bits - 1, bits)  # an infinity becomes the largest number
    odd = torch.where((back == x) | x.isnan(), bits, toward_zero | 1)
    return odd.view(torch.float32)


def _fewer_bits(x: Tensor) -> Tensor:
    """A float32 tensor rounded to tf32: a carry of the last bits goes on into the exponent, up to infinity."""
    bits = x.contiguous().view(torch.int32)
    last = (bits >> DROPPED) & 1
    # half a unit less one, plus the last kept bit: ties go to even
    kept = (bits + ((1 << (DROPPED - 1)) - 1 + last)) & -(1 << DROPPED)
    return torch.where(torch.isfinite(x), kept.view(torch.float32), x)
