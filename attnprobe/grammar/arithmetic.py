"""The arithmetic in which a method runs, ``FORMAT`` or ``FORMAT:MODEL``: a format of numbers, and a model of what is
rounded to it. `attnprobe.rounding` computes so.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ..errors import UsageError, cut, unknown
from .lists import words


@dataclass(frozen=True)
class Format:
    """A format of floating-point numbers.

    Attributes:
        name: the name in options and tables.
        bits: t, the bits of the significand, the leading one included.
        largest: the largest finite number.
        smallest: the smallest positive number, which is subnormal.
        cast: the name of torch's dtype by which numbers are rounded; None: by the bits of float32.
    """

    name: str
    bits: int
    largest: float
    smallest: float
    cast: str | None

    @property
    def unit(self) -> float:
        """u = 2⁻ᵗ, the unit roundoff: the largest relative error of rounding a number that is not subnormal.

        >>> FORMATS["bf16"].unit
        0.00390625
        """
        return 2.0**-self.bits


FLOAT64 = Format("float64", 53, sys.float_info.max, 2.0**-1074, "float64")  # nothing is rounded
FORMATS = {
    format.name: format
    for format in (
        Format("fp32", 24, (2 - 2.0**-23) * 2.0**127, 2.0**-149, "float32"),
        Format("tf32", 11, (2 - 2.0**-10) * 2.0**127, 2.0**-136, None),
        Format("fp16", 11, 65504.0, 2.0**-24, "float16"),
        Format("bf16", 8, (2 - 2.0**-7) * 2.0**127, 2.0**-133, "bfloat16"),
        Format("fp8-e4m3", 4, 448.0, 2.0**-9, "float8_e4m3fn"),
        Format("fp8-e5m2", 3, 57344.0, 2.0**-16, "float8_e5m2"),
    )
}
EVERY = "every"  # the model that is not written
ARITHMETICS = {  # models, and what each rounds
    EVERY: "the result of every operation is rounded",
    "tensor-cores": "products round their inputs and add in float32; everything else is float32",
    "autocast": "products in the format; exponentials, softmax, sums and norms in float32, as torch.autocast has it",
}


def format_of(name: str) -> Format:
    """The format of a name; ``float64`` is one too.

    Raises:
        UsageError: an unknown name.
    """
    formats = {**FORMATS, FLOAT64.name: FLOAT64}
    if name not in formats:
        raise unknown("format", name, formats)
    return formats[name]


def format_and_model(text: str) -> tuple[Format, str]:
    """The format and the model of an arithmetic.

    Raises:
        UsageError: an unknown format or model, or a model alone.

    >>> bf16, model = format_and_model("bf16:autocast")
    >>> bf16.bits, model, format_and_model("fp16")[1]
    (8, 'autocast', 'every')
    >>> format_and_model("autocast")
    Traceback (most recent call last):
    attnprobe.errors.UsageError: arithmetic 'autocast' names no format; write bf16:autocast, or another format
    """
    name, colon, model = text.partition(":")
    if not colon and name in ARITHMETICS:
        raise UsageError(f"arithmetic '{cut(text)}' names no format; write bf16:{name}, or another format")
    format = format_of(name)
    if colon and model not in ARITHMETICS:
        raise unknown("arithmetic", model, ARITHMETICS)
    return format, model or EVERY


def arithmetic_text(format: Format, model: str) -> str:
    """An arithmetic as rows have it.

    >>> arithmetic_text(FORMATS["bf16"], "every"), arithmetic_text(FORMATS["bf16"], "autocast")
    ('bf16', 'bf16:autocast')
    """
    return format.name if model == EVERY else f"{format.name}:{model}"


def arithmetics(text: str, what: str) -> tuple[str, ...]:
    """The arithmetics of a list that round, without repeats, as rows have them.

    Raises:
        UsageError: as `format_and_model`, or ``float64``.

    >>> arithmetics("bf16,fp16:autocast,bf16:every", "--formats")
    ('bf16', 'fp16:autocast')
    """
    found = [format_and_model(word) for word in words(text, what)]
    if any(format == FLOAT64 for format, _ in found):
        raise unknown("format", FLOAT64.name, FORMATS)
    return tuple(dict.fromkeys(arithmetic_text(format, model) for format, model in found))
