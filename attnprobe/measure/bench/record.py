"""The rows of ``attnprobe bench``: kind ``time`` is a round of calls, kind ``head`` what a head computes and misses."""

from __future__ import annotations

from typing import Annotated, Literal

from ...frame.metric import metrics
from ...frame.rows import CellLine, HeadRow, Row, RowTypes, Value, with_metrics
from ...grammar.validation import Count, said
from . import ERRORS


class BenchLine(CellLine):
    """One method, or exact attention, at one n: its costs for all heads together, and the machine."""

    cost: Annotated[str | None, said("the method's leading cost")] = None
    kernel: Annotated[
        Literal["fused", "own"] | None,
        said("of exact attention: torch's fused kernel, or attnprobe's own where torch has none for the inputs"),
    ] = None
    rounds: Annotated[Count | None, said("the number of rounds that were asked for")] = None
    backward: Annotated[bool | None, said("whether gradients are timed too")] = None
    gradient_of: Annotated[str | None, said("those of Q, K and V that a gradient reaches")] = None
    load: Annotated[Value, said("the load average of the machine")] = None
    clock_mhz: Annotated[Value, said("the clock of the processor")] = None
    device: Annotated[str | None, said("the device")] = None
    cpu: Annotated[str | None, said("the processor")] = None
    threads: Annotated[Count | None, said("threads of torch")] = None
    cores: Annotated[Count | None, said("cores of the machine")] = None
    system: Annotated[str | None, said("the operating system")] = None
    torch: Annotated[str | None, said("the version of torch")] = None
    python: Annotated[str | None, said("the version of Python")] = None
    attnprobe: Annotated[str | None, said("the version of attnprobe")] = None


class TimeRow(Row):
    """A round: each call is timed once, in turn with exact attention."""

    round: Annotated[Count, said("the number of the round, from 0")]


SHAPE = RowTypes(
    {
        "time": with_metrics(
            "BenchTime", TimeRow, metrics("seconds", "exact_seconds", "ratio_to_exact", "repeated_seconds")
        ),
        "head": with_metrics(
            "BenchHead",
            HeadRow,
            metrics("visited", "scored", "kv_read", "stored_bits", *ERRORS, "guarded_rows", "rounded_rows"),
        ),
    },
    with_metrics("BenchCell", BenchLine, metrics("peak_bytes", "flops", "leading_flops")),
)
