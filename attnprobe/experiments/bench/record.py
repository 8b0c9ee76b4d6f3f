"""The records of ``attnprobe bench``."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict

from ...records.shapes import Count, Number, PerHead, Place, Shape, flat, said, unequal

OF_ALL_HEADS = ("seconds", "exact_seconds", "peak_bytes", "flops", "leading_flops")


class Machine(TypedDict):
    """The machine."""

    device: str
    cpu: str | None
    threads: Count
    cores: Count | None
    system: str | None


class Versions(TypedDict):
    """The versions."""

    torch: str | None
    python: str
    attnprobe: str


class BenchRecord(Place):
    """The cost of one method, or of exact attention, at one n."""

    method: Annotated[str, said("the method; exact is exact attention")]
    machine: Annotated[Machine, said("the machine")]
    versions: Annotated[Versions, said("versions and devices")]
    reference: Annotated[bool, said("true for a yardstick such as exact attention")]
    requested: Annotated[bool, said("false for rows that attnprobe added")]
    metrics: Annotated[
        dict[str, PerHead],
        said(
            "lists by name: seconds and exact_seconds round by round; peak_bytes, flops and leading_flops "
            "of all heads; the others with one number for each head"
        ),
    ]
    cost: NotRequired[Annotated[str | None, said("the method's leading cost")]]
    backward: NotRequired[Annotated[bool, said("whether gradients are timed too")]]
    gradient: NotRequired[Annotated[str | None, said("what the gradient is of")]]
    load: NotRequired[Annotated[Number | None, said("the load average of the machine")]]
    clock_mhz: NotRequired[Annotated[Number | None, said("the clock of the processor")]]


def _problems(record: BenchRecord) -> Iterator[str]:
    own = {name: values for name, values in record["metrics"].items() if name not in OF_ALL_HEADS}
    yield from unequal("metrics.", own, record["heads"])
    for name in ("seconds", "exact_seconds"):
        if None in record["metrics"].get(name, ()):
            yield f"field metrics.{name}: expected a number for each round, got null"
    for name in OF_ALL_HEADS:
        if any(value is not None and value < 0 for value in record["metrics"].get(name, ())):
            yield f"field metrics.{name}: expected no number below 0"


def _rows(record: BenchRecord) -> Iterator[dict[str, Any]]:
    metrics = record["metrics"]
    shared = flat("machine", record["machine"]) | flat("versions", record["versions"])
    for name in OF_ALL_HEADS:
        known = [value for value in metrics.get(name) or () if value is not None]
        shared[name] = median(known) if known else None
    for index, head in enumerate(record["heads"]):
        own = {name: values[index] for name, values in metrics.items() if name not in OF_ALL_HEADS}
        yield shared | {"head": head} | own


COLUMNS = {
    "seconds": "time of all heads together, the median of the rounds",
    "exact_seconds": "the same of exact attention",
    **{name: "of all heads together" for name in OF_ALL_HEADS[2:]},
    "METRIC": "each other metric of the head, by its name",
    "machine[NAME]": "a fact of the machine",
    "versions[NAME]": "the version of a program",
}
SHAPE = Shape(BenchRecord, _problems, _rows, COLUMNS)
