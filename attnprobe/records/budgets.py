"""A file of budgets by head: `attnprobe budget` writes it, `attnprobe inject --budgets` reads it.

Beside ``d``, an entry of ``budgets`` has ``no_counterexample`` (`HeadBudget`), which files of earlier versions call
``monotone``; neither is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UsageError
from ..files import MIB, Fields, path_of, read_json, reading

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


def read_budgets(path: str | Path) -> Budgets:
    """Read a file of budgets: ``{"schema": 1, "method": …, "options": {…}, "budgets": [{"layer", "head", "d"}, …]}``.

    ``about`` has all other keys.

    Raises:
        UsageError: no such file, no JSON, or an invalid entry; the message names the file and the entry.
    """
    with reading(path):
        contents = read_json(path_of(path), LARGEST)
    if not isinstance(contents, dict):
        raise UsageError(f"{path}: expected an object with method and budgets")
    schema, method, options = contents.get("schema", SCHEMA), contents.get("method"), contents.get("options") or {}
    if not _is_count(schema) or not 1 <= schema <= SCHEMA:
        raise UsageError(f"{path}: schema {schema!r} is not {SCHEMA}, which this version reads")
    if not isinstance(method, str) or not method:
        raise UsageError(f"{path}: method: expected a name, got {method!r}")
    if not isinstance(options, dict):
        raise UsageError(f"{path}: options: expected an object, got {options!r}")
    entries = contents.get("budgets")
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{path}: budgets: expected a list of {{layer, head, d}}")
    budgets: dict[tuple[int, int], int | None] = {}
    for number, entry in enumerate(entries):
        place, d = _entry(entry, f"{path}: budgets[{number}]")
        if place in budgets:
            raise UsageError(f"{path}: budgets[{number}]: layer {place[0]}, head {place[1]} is listed twice")
        budgets[place] = d
    about = {name: value for name, value in contents.items() if name not in ("schema", "method", "options", "budgets")}
    return Budgets(method, options, budgets, about)


def _entry(entry: object, where: str) -> tuple[tuple[int, int], int | None]:
    """One entry: its (layer, head) and its budget."""
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: expected an object, got {entry!r}")
    for name in ("layer", "head"):
        if not _is_count(entry.get(name)) or entry[name] < 0:
            raise UsageError(f"{where}: {name}: expected the number of a {name}, got {entry.get(name)!r}")
    d = entry.get("d", "nothing")
    if d is not None and (not _is_count(d) or d < 1):
        raise UsageError(f"{where}: d: expected a budget or null, got {d!r}")
    return (entry["layer"], entry["head"]), d


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
