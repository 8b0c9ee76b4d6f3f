"""The records of ``attnprobe error``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NotRequired

from ...records.shapes import Count, Number, PerHead, Place, Seed, Shape, by_name, lists_of, per_head, said, unequal


class ErrorRecord(Place):
    """The errors of one method at one budget, or the lower bound σ_{d+1}(BV) as the method ``lower-bound``."""

    method: Annotated[str, said("the method")]
    seed: Annotated[Seed, said("the seed of the method's draws")]
    requested: Annotated[bool, said("false for rows that attnprobe added, such as V-Mean")]
    metrics: Annotated[dict[str, PerHead], said("errors by name, one number for each head")]
    matrix_tol: NotRequired[Annotated[Number | None, said("the relative width of matrix intervals")]]
    matrix_kind: NotRequired[Annotated[list[str | None], said("the argument for the interval's upper end")]]
    matrix_open: NotRequired[Annotated[list[bool | None], said("whether the interval is wider than matrix_tol")]]
    matrix_skipped: NotRequired[Annotated[str | None, said("the reason if there are no matrix errors")]]
    target: Annotated[str | None, said("the exact matrix: softmax or gaussian")]
    profile: NotRequired[
        Annotated[
            dict[str, list[Count] | list[PerHead]],
            said(
                "means of row metrics over queries that see 2^a to 2^(a+1) - 1 keys: `keys` lists each "
                "2^a, a metric has a list for each head"
            ),
        ]
    ]
    kernel_dtype: NotRequired[Annotated[str | None, said("the dtype that a kernel is judged in")]]
    row_tolerance: NotRequired[Annotated[Number | None, said("the relative error that a kernel's row may have")]]


PER_HEAD = ("matrix_kind", "matrix_open")


def _problems(record: ErrorRecord) -> Iterator[str]:
    yield from per_head(record)
    yield from unequal("", lists_of(record, PER_HEAD), record["heads"])
    if profile := record.get("profile"):
        yield from _profile_problems(profile, record["heads"])


def _profile_problems(profile: dict[str, Any], heads: Sequence[int]) -> Iterator[str]:
    keys, means = profile.get("keys"), {name: value for name, value in profile.items() if name != "keys"}
    if keys is None or not all(isinstance(one, int) for one in keys):
        yield "field profile.keys: expected the whole numbers 2^a"
        return
    yield from unequal("profile.", means, heads)
    for name, lists in means.items():
        if not all(isinstance(one, list) and len(one) == len(keys) for one in lists):
            yield f"field profile.{name}: expected a list of {len(keys)} numbers for each head"


def _rows(record: ErrorRecord) -> Iterator[dict[str, Any]]:
    lists = {**record["metrics"], **lists_of(record, PER_HEAD)}
    keys, means = None, dict(record.get("profile") or {})
    if means:
        keys = means.pop("keys")
    for index, head in enumerate(record["heads"]):
        profile = {} if keys is None else {"profile": {"keys": keys, **by_name(means, index)}}
        yield {"head": head, **by_name(lists, index), **profile}


COLUMNS = {
    "METRIC": "each metric of the head, by its name",
    "matrix_kind": "the argument for the upper end of the matrix error's interval",
    "matrix_open": "whether that interval is wider than the tolerance",
    "profile[keys]": "the list of numbers of keys 2^a",
    "profile[METRIC]": "the list of means of a row metric, over queries that see 2^a to 2^(a+1) - 1 keys",
}
SHAPE = Shape(ErrorRecord, _problems, _rows, COLUMNS)
