"""The names of formats and of models of arithmetic, as options take them."""

from __future__ import annotations

from ...errors import UsageError, unknown
from ...grammar.lists import words

FORMATS = ("fp32", "tf32", "fp16", "bf16", "fp8-e4m3", "fp8-e5m2")  # those of `attnprobe.rounding`
ARITHMETICS = ("every", "tensor-cores", "autocast")
FLOAT64 = "float64"  # the arithmetic in which nothing is rounded


def arithmetics(text: str, called: str) -> tuple[str, ...]:
    """The arithmetics of a list, each ``FORMAT`` or ``FORMAT:MODEL``. The model ``every`` is left out.

    Raises:
        UsageError: an unknown format or model.

    >>> arithmetics("bf16,fp16:autocast,bf16:every", "--arithmetic")
    ('bf16', 'fp16:autocast')
    """
    named = []
    for arithmetic in words(text, called):
        format, colon, model = arithmetic.partition(":")
        if not colon and format in ARITHMETICS:
            raise UsageError(
                f"{called}={arithmetic} names no format; write {called}=bf16:{arithmetic}, or another format"
            )
        if format not in FORMATS:
            raise unknown("format", format, FORMATS)
        if colon and model not in ARITHMETICS:
            raise unknown("arithmetic", model, ARITHMETICS)
        named.append(format if model in ("", ARITHMETICS[0]) else arithmetic)
    return tuple(dict.fromkeys(named))
