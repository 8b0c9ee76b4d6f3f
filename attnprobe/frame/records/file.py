"""The names, keys and numbers of cells, and the files of a run.

`attnprobe.frame.rows` has the lines of cells, and ``measure/COMMAND/record.py`` what a command adds. Of two runs of a
cell, only ``seconds`` differs. The lower bound σ_{d+1}(BV) is a cell of the method `LOWER_BOUND`.

In rows, infinity is the text ``"inf"`` or ``"-inf"`` (`encode_inf`, `decode_inf`), and NaN is null. Elsewhere, a number
that is not finite is null: it is a failure, and the status says so.

A `Shard` is a part of the places of a run. It is measured by itself, and has files of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...errors import UsageError
from ...files import MIB, Fields, JsonObject, naming, read_json, replacing
from ...grammar.foreign import printable

SCHEMA = 1
CELL = "cell"  # the kind of the line that ends a cell
# Facts of a source that determine no result: they name what other facts hash, or follow from other facts.
NAMES = (
    "model",
    "revision",
    "text",
    "split",
    "tokenizer",
    "unk_fraction",
    "qkv",
    "origin",
    "fallback",
    "stored_n",
    "captured",
    "sliding_window",
    "sinks",
)
STATUSES = ("ok", "skipped", "diverged", "failed")  # from best to worst
LOWER_BOUND = "lower-bound"


def plain(value: Any) -> Any:
    """``value`` in JSON types: NaN and infinity become null, tuples and arrays become lists, paths become strings.

    Strings and keys become `printable`, so that any text of a row can be shown.

    >>> plain({"x": (1.5, float("nan")), 2: Path("a")})
    {'x': [1.5, None], '2': 'a'}
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return printable(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, Mapping):
        return {printable(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, os.PathLike):
        return printable(str(os.fspath(value)))
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no JSON form")


def strict_json(value: object, indent: int | None = None) -> str:
    """JSON with sorted keys and without NaN or infinity; compact unless ``indent`` is given.

    >>> strict_json({"b": float("inf"), "a": [1, 2]})
    '{"a":[1,2],"b":null}'
    """
    separators = (",", ":") if indent is None else None
    return json.dumps(plain(value), sort_keys=True, allow_nan=False, indent=indent, separators=separators)


def encode_inf(value: object) -> object:
    """``value`` with infinity as the text ``"inf"`` or ``"-inf"``, in lists and mappings too; NaN stays.

    >>> strict_json(encode_inf({"bound": [float("inf"), 1.5, float("nan")]}))
    '{"bound":["inf",1.5,null]}'
    """
    if isinstance(value, float):
        return str(value) if math.isinf(value) else value
    if isinstance(value, Mapping):
        return {key: encode_inf(item) for key, item in value.items()}
    return [encode_inf(item) for item in value] if isinstance(value, (list, tuple)) else value


def decode_inf(value: float | str | None) -> float:
    """The number behind a value of JSON: the texts of `encode_inf` are infinite, and null is NaN.

    >>> [decode_inf(x) for x in (1.5, "-inf", None)]
    [1.5, -inf, nan]
    """
    return math.nan if value is None else float(value)


def cell_key(**determinants: object) -> str:
    """The name of a cell: 24 hexadecimal digits of the SHA-256 of all fields that determine its result.

    NaN, infinity and null differ here, and so do ``1`` and ``1.0``: an option has one type.

    >>> cell_key(method="skyformer", d=128) == cell_key(d=128, method="skyformer")
    True
    >>> cell_key(method="skyformer", d=128) == cell_key(d=64, method="skyformer")
    False
    """
    canonical = json.dumps(determinants, sort_keys=True, separators=(",", ":"), default=plain)
    return hashlib.sha256(canonical.encode()).hexdigest()[:24]


def identity_facts(facts: Fields) -> JsonObject:
    """The facts of a source that determine results."""
    return {name: fact for name, fact in facts.items() if name not in NAMES}


def inputs_path(run: str | os.PathLike[str]) -> Path:
    """The file of a run's statistics of Q, K and V, a line for each layer that was read.

    Each shard has its own file, as for rows.
    """
    return Path(run) / "inputs.jsonl"


def map_path(run: str | os.PathLike[str], key: str) -> Path:
    """The file of a cell's map."""
    return Path(run) / "maps" / f"{key}.npy"


def mapped(records: Iterable[Fields]) -> list[Fields]:
    """The cells of a run that a figure of maps shows: requested methods, first window, first seed."""
    first: dict[str, Fields] = {}
    for record in records:
        if record["requested"] and record["window"] == 0:
            facts = identity_facts(record["source"])
            map_of = cell_key(source=facts, **{name: record[name] for name in ("n", "layer", "method", "options", "d")})
            if map_of not in first or record["seed"] < first[map_of]["seed"]:
                first[map_of] = record
    return list(first.values())


def exact_map_path(run: str | os.PathLike[str], record: Fields) -> Path:
    """The file of the map of the exact matrix that the cell's method approximates."""
    facts = identity_facts(record["source"])
    matrix = {name: record[name] for name in ("target", "n", "window", "layer", "heads")}
    return map_path(run, cell_key(command="maps", source=facts, **matrix))


def missing_maps_path(run: str | os.PathLike[str]) -> Path:
    """The file with the reasons of missing maps, by key."""
    return Path(run) / "maps" / "missing.json"


def missing_maps(run: str | os.PathLike[str]) -> dict[str, str]:
    """The reasons of missing maps of a run, by key; empty without the file."""
    try:
        reasons = read_json(missing_maps_path(run), MIB)
    except (OSError, ValueError):
        return {}
    return {key: why for key, why in reasons.items() if isinstance(why, str)} if isinstance(reasons, dict) else {}


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a complete file or none: a temporary file next to it, then a rename."""
    path = Path(path)
    with naming(path):
        if path.exists() and not path.is_file():
            raise UsageError(f"{path}: not a regular file")
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, open(temporary, "xb") as file:
            file.write(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """`write_bytes` of `printable` text in UTF-8."""
    write_bytes(path, printable(text).encode())


def write_json(path: str | os.PathLike[str], value: object) -> None:
    """`write_bytes` of indented `strict_json`."""
    write_text(path, strict_json(value, indent=2) + "\n")


def run_directory(base: str | os.PathLike[str], command: str, stamp: str, tag: str) -> Path:
    """Create ``base/stamp-command-tag``, or the same with ``-2``, ``-3``, … where it exists already.

    Args:
        stamp: the time of the start, ``%Y%m%d-%H%M%S``.
        tag: a few digits of the configuration's hash.

    >>> import tempfile
    >>> base = tempfile.mkdtemp()
    >>> [run_directory(base, "error", "20261121-084512", "1a2b3c").name for _ in range(2)]
    ['20261121-084512-error-1a2b3c', '20261121-084512-error-1a2b3c-2']
    """
    name = f"{stamp}-{command}-{tag}"
    # another run may have started in the same second: the folder is created, not looked for
    attempt = 1
    while True:
        path = Path(base) / (name if attempt == 1 else f"{name}-{attempt}")
        with naming(path):
            try:
                path.mkdir(parents=True)
                return path
            except FileExistsError:
                if not Path(base).is_dir():
                    raise
        attempt += 1


MOST = 100_000  # shards
Place = TypeVar("Place", bound=Hashable)


@dataclass(frozen=True)
class Shard:
    """Part ``index`` of ``count`` parts of a run; the first is 1.

    >>> str(Shard(2, 8)), Shard(2, 8).of(Path("rows.jsonl")).name
    ('2/8', 'rows-2-of-8.jsonl')
    """

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def of(self, path: Path) -> Path:
        """This shard's own file in place of ``path``."""
        return path.with_name(f"{path.stem}-{self.index}-of-{self.count}{path.suffix}")

    def dealt(self, places: Sequence[tuple[int, str, Place]]) -> set[Place]:
        """This shard's part of ``places``, each ``(length, hash, place)``, dealt in turn, the longest sequences first.

        Every place is in one shard. Shards differ by at most one place, and by about one place of each length. The
        result depends only on the set of places, not on their order or on finished cells.

        >>> places = [(512, "b", "x"), (512, "a", "y"), (1024, "c", "z")]
        >>> sorted(Shard(1, 2).dealt(places)), sorted(Shard(2, 2).dealt(places))
        (['x', 'z'], ['y'])
        """
        ordered = sorted(places, key=lambda entry: (-entry[0], entry[1]))  # by length, then by hash
        return {place for _, _, place in ordered[self.index - 1 :: self.count]}


def parse_shard(text: str | None) -> Shard | None:
    """``I/N``, part I of N; None is no shard."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip(), re.ASCII)
    index, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= index <= count <= MOST:
        raise UsageError(f"shard '{text[:40]}' is not I/N with I from 1 to N, such as 1/8 … 8/8")
    return Shard(index, count)
