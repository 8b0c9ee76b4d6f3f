"""Shards: the part of a run's groups that one process measures, and the names of its files."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..errors import UsageError

MOST = 100_000
Place = TypeVar("Place", bound=Hashable)


@dataclass(frozen=True)
class Shard:
    """Part ``index`` of ``count``, from 1 on.

    >>> str(Shard(2, 8)), Shard(2, 8).of(Path("records.jsonl")).name
    ('2/8', 'records-2-of-8.jsonl')
    """

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def of(self, path: Path) -> Path:
        """This shard's own file in place of ``path``."""
        return path.with_name(f"{path.stem}-{self.index}-of-{self.count}{path.suffix}")

    def dealt(self, places: Sequence[tuple[int, str, Place]]) -> set[Place]:
        """This shard's part of ``places`` (length, hash, place), dealt in turn, the longest sequences first.

        Every place is in one shard. Shards differ by at most one place, and by about one of each length. The result
        depends only on the set of places, not on their order or on finished cells.

        >>> places = [(512, "b", "x"), (512, "a", "y"), (1024, "c", "z")]
        >>> sorted(Shard(1, 2).dealt(places)), sorted(Shard(2, 2).dealt(places))
        (['x', 'z'], ['y'])
        """
        order = sorted(places, key=lambda one: (-one[0], one[1]))
        return {place for _, _, place in order[self.index - 1 :: self.count]}


def parse_shard(text: str | None) -> Shard | None:
    """``I/N``, part I of N; None is no shard.

    Raises:
        UsageError: not two whole numbers, or an I outside 1 to N.
    """
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip(), re.ASCII)
    index, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= index <= count <= MOST:
        raise UsageError(f"shard '{text[:40]}' is not I/N with I from 1 to N, such as 1/8 … 8/8")
    return Shard(index, count)
