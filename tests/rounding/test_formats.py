"""Formats against torch's dtypes and against exact fractions."""

from fractions import Fraction
from math import inf, isinf

import pytest
import torch

from attnprobe.errors import UsageError
from attnprobe.rounding import FORMATS, format_named, rounded


@pytest.mark.parametrize(
    "name, dtype", [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp8-e5m2", torch.float8_e5m2)]
)
def test_rounding_is_the_cast_of_torch(name, dtype):
    bits = torch.arange(2**16, dtype=torch.int32) << 16
    x = torch.cat([bits.view(torch.float32), (bits | 0x8000).view(torch.float32), (bits | 0x7FFF).view(torch.float32)])
    x = x[~x.isnan()]
    assert torch.equal(rounded(x, format_named(name)), x.to(dtype).float())


@pytest.mark.parametrize("name", ["fp16", "bf16", "tf32", "fp8-e4m3", "fp8-e5m2"])
def test_rounding_is_to_the_nearest_and_of_two_to_the_even(name):
    """Against fractions: neighbours, the middle between them, and both sides of the middle."""
    to = format_named(name)
    for exponent in (-3, 0, 5):
        unit = Fraction(2) ** (exponent - to.bits + 1)
        for number in range(min(8, 2 ** (to.bits - 1))):
            low = Fraction(2) ** exponent + number * unit
            for part, expected in ((Fraction(1, 4), 0), (Fraction(1, 2), number % 2), (Fraction(3, 4), 1)):
                for sign in (1, -1):
                    x = torch.tensor([float(sign * (low + part * unit))])
                    assert rounded(x, to).item() == float(sign * (low + expected * unit))


@pytest.mark.parametrize("name", ["fp16", "bf16", "tf32", "fp8-e4m3", "fp8-e5m2"])
def test_largest_and_smallest_numbers(name):
    to = format_named(name)
    half = to.largest * to.unit / (2 - 2 * to.unit)  # half a unit in the last place of the largest number
    if name == "fp8-e4m3":
        half = 16.0  # its last number would be 480: the bits of that number are NaN
    x = torch.tensor([to.largest, to.largest + 0.99 * half, to.smallest, 0.51 * to.smallest, 0.49 * to.smallest])
    x = x.double() if name in ("tf32", "bf16") else x
    assert rounded(x, to).tolist() == [to.largest, to.largest, to.smallest, to.smallest, 0.0]
    above = torch.tensor([to.largest + 1.01 * half, -2 * to.largest], dtype=torch.float64)
    assert rounded(above, to).tolist() == [inf, -inf]


def test_float64_numbers_are_rounded_once():
    """1 + 2⁻⁸ + 2⁻⁴⁰ is above the middle of two bf16 numbers, and float32 has the middle."""
    x = torch.tensor([1 + 2**-8 + 2**-40, -1 - 2**-8 - 2**-40, 1 + 2**-8], dtype=torch.float64)
    assert rounded(x, format_named("bf16")).tolist() == [1 + 2**-7, -1 - 2**-7, 1.0]
    assert x[0].float().bfloat16() == 1.0  # twice


def test_infinities_and_nan_stay():
    for name in FORMATS:
        x = torch.tensor([inf, -inf, float("nan"), -0.0])
        plus, minus, nan, zero = rounded(x, format_named(name)).tolist()
        assert isinf(plus) and plus > 0 > minus and nan != nan and str(zero) == "-0.0"


def test_a_misspelt_format_is_named():
    with pytest.raises(UsageError, match="unknown format 'bf61'; did you mean 'bf16'"):
        format_named("bf61")


def test_options_have_the_names_of_the_formats_and_arithmetics():
    from attnprobe.measure import rounding
    from attnprobe.rounding import ARITHMETICS

    assert tuple(FORMATS) == rounding.FORMATS and tuple(ARITHMETICS) == rounding.ARITHMETICS
