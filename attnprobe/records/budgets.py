"""A file of budgets by head: `attnprobe budget` writes it, `attnprobe inject --budgets` reads it.

Beside ``d``, an entry of ``budgets`` has ``no_counterexample`` (`HeadBudget`), which files of earlier versions call
``monotone``; neither is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from ..errors import UsageError
from ..files import MIB, Fields, path_of, read_json, reading
from .shapes import Budget, Count, Facts, Shape

SCHEMA = 1
LARGEST = 64 * MIB


@dataclass(frozen=True)
class Budgets:
    """Budgets of one method.

    Attributes:
        method, options: the method of the budgets. d: by (layer, head); None keeps exact attention, because no budget
            that was tried is enough. about: other keys of the file, such as ``metric``, ``epsilon``, ``n``.
    """

    method: str
    options: Fields
    d: Mapping[tuple[int, int], int | None]
    about: Fields = field(default_factory=dict)

    @property
    def item(self) -> str:
        """The method as ``--method`` takes it.

        >>> Budgets("skyformer", {"sampler": "rls", "share_heads": True}, {}).item
        'skyformer:sampler=rls,share_heads=true'
        """

        def word(value: object) -> str:
            return str(value).lower() if value is None or isinstance(value, bool) else str(value)

        options = ",".join(f"{name}={word(value)}" for name, value in self.options.items())
        return f"{self.method}:{options}" if options else self.method


class Entry(TypedDict):
    """The budget of a head."""

    layer: Count
    head: Count
    d: Budget | None


class Contents(TypedDict):
    """The checked fields of a file of budgets; it has others."""

    schema: NotRequired[Annotated[int, Field(ge=1, le=SCHEMA)]]
    method: Annotated[str, Field(min_length=1)]
    options: NotRequired[Facts | None]
    budgets: Annotated[list[Entry], Field(min_length=1)]


def _repeated(contents: Contents) -> Iterator[str]:
    seen: set[tuple[int, int]] = set()
    for number, entry in enumerate(contents["budgets"]):
        if (place := (entry["layer"], entry["head"])) in seen:
            yield f"field budgets[{number}]: layer {place[0]}, head {place[1]} is listed twice"
        seen.add(place)


CONTENTS = Shape(Contents, _repeated)


def read_budgets(path: str | Path) -> Budgets:
    """Read a file of budgets: ``{"schema": 1, "method": …, "options": {…}, "budgets": [{"layer", "head", "d"}, …]}``.

    ``about`` has all other keys.

    Raises:
        UsageError: no such file, no JSON, or an invalid entry; the message names the file and the entry.
    """
    with reading(path):
        contents = read_json(path_of(path), LARGEST)
    if (problem := CONTENTS.problem(contents)) is not None:
        raise UsageError(f"{path}: {problem}")
    d = {(entry["layer"], entry["head"]): entry["d"] for entry in contents["budgets"]}
    about = {name: value for name, value in contents.items() if name not in CONTENTS.fields}
    return Budgets(contents["method"], contents.get("options") or {}, d, about)
