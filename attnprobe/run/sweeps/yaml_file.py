"""A sweep's YAML file: long names of a command's options with values, checked before heavy modules load.

It is a user's or one of the packaged ones: `configs/` in a clone, and inside the package in a wheel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as shown
from typing import Any

import yaml

from ...errors import UsageError, nearest
from ...files import MIB, path_of, read_regular, reading
from ..option import Option

LARGEST = 4 * MIB  # size of a file
DIGITS = re.compile("[-+]?[0-9_]+")  # a number that people read in base 10
IN_WHEEL, IN_CLONE = Path(__file__).with_name("configs"), Path(__file__).parents[3] / "configs"


@dataclass(frozen=True)
class Config:
    """A file that passed all checks.

    Attributes:
        command: its name. values: by the command's parameter names, as the command line would have given them.
        gates: the mappings under ``gates``, unchecked. places: the name of each gate in messages, with its line.
        lines: the line of each key.
    """

    path: Path
    command: str
    values: Mapping[str, Any]
    gates: Sequence[Any] = ()
    places: Sequence[str] = ()
    lines: Mapping[str, int] = field(default_factory=dict)


def read_config(path: str | Path, settings_of: Callable[[str], Mapping[str, Option]]) -> Config:
    """Read and check a sweep's file.

    Keys are ``command`` (by default ``error``), ``gates``, and the long option names of that command. The keys
    ``methods``, ``theorems`` and ``figures`` may replace ``method``, ``theorem`` and ``plot``, and ``_`` may replace
    ``-``. Lists may be YAML lists. A method is ``NAME[:k=v,…]`` or ``{name: …, options: {…}}``.

    Args:
        settings_of: gives the options of a command by their keys in a file (`Option.keys`), and refuses an unknown
            command.

    Raises:
        UsageError: with ``file:line``: a file that is not a YAML mapping, an unknown or repeated key (with the nearest
            name), a value of the wrong type, a number that YAML reads in another base than 10, an empty list,
            options that exclude each other.
    """
    path = Path(path)
    pairs = _pairs(path)
    lines = {key: entry.line for key, entry in pairs.items()}
    contents = {key: entry.value for key, entry in pairs.items()}
    command = contents.pop("command", "error")
    try:
        settings = settings_of(str(command))
    except UsageError as error:
        raise UsageError(f"{path}:{lines.get('command', 1)}: {error}") from None
    gates = contents.pop("gates", [])
    if not isinstance(gates, list) or ("gates" in lines and not gates):
        raise UsageError(f"{path}:{lines['gates']}: gates: a list is needed, such as [{{metric: …, max: …}}]")
    values: dict[str, Any] = {}
    for key, value in contents.items():
        where = f"{path}:{lines[key]}"
        # the key as it is first: it may have an underscore of its own
        name = key if key in settings else key.replace("_", "-")
        if name not in settings:
            known = ["command", "gates", *settings]
            raise UsageError(f"{where}: unknown key '{key}' of command {command}{nearest(key, known)}")
        setting = settings[name]
        if setting.name in values:
            raise UsageError(f"{where}: {key} repeats the option of another key")
        values[setting.name] = _value(value, setting, f"{where}: {key}")
    places = [f"{path}:{line}: gate {number}" for number, line in enumerate(pairs["gates"].items if gates else (), 1)]
    return Config(path, command, values, list(map(_gate, gates, places)), places, lines)


@dataclass(frozen=True)
class _Entry:
    """A key's line, its value, and for a list the lines of its items."""

    line: int
    value: Any
    items: tuple[int, ...]


def _gate(entry: Any, where: str) -> Any:
    """A gate with its method as the command line takes it."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("method"), Mapping):
        return entry
    return {**entry, "method": _method(entry["method"], f"{where}: method")}


def _pairs(path: Path) -> dict[str, _Entry]:
    """The top-level keys with their lines and values."""
    with reading(path):
        text = read_regular(path, LARGEST).decode("utf-8")
    with reading(path, UsageError, ": no YAML"):
        try:
            loader = Loader(text)
            root = loader.get_single_node()
            if not isinstance(root, yaml.MappingNode):
                raise UsageError(f"{path}:1: a mapping of option names to values is needed, such as 'n: [512, 1024]'")
            pairs: dict[str, _Entry] = {}
            for key_node, value_node in root.value:
                line = key_node.start_mark.line + 1
                key = loader.construct_object(key_node, deep=True)
                if not isinstance(key, str):
                    raise UsageError(f"{path}:{line}: the key {shown(key)} is not an option name")
                if key in pairs:
                    raise UsageError(f"{path}:{line}: duplicate key '{key}' (first on line {pairs[key].line})")
                nodes = value_node.value if isinstance(value_node, yaml.SequenceNode) else ()
                items = tuple(node.start_mark.line + 1 for node in nodes)
                try:
                    value = loader.construct_object(value_node, deep=True)
                except OtherBase as error:
                    raise UsageError(f"{path}:{error.line}: {key}: {error}") from error
                pairs[key] = _Entry(line, value, items)
        except yaml.YAMLError as error:
            # for a forbidden character PyYAML gives no mark, but a position in the text
            mark = getattr(error, "problem_mark", None)
            line = (mark.line if mark else text[: getattr(error, "position", 0)].count("\n")) + 1
            raise UsageError(f"{path}:{line}: not valid YAML: {getattr(error, 'problem', None) or error}") from error
    return pairs


def _value(value: Any, setting: Option, where: str) -> Any:
    """A value as the command line would give it."""
    if value is None:
        raise UsageError(f"{where} has no value; leave the key out for the default")
    if isinstance(value, list):
        if not value:
            raise UsageError(f"{where} is an empty list; leave the key out for the default")
        if not (setting.is_list or setting.repeatable):
            raise UsageError(f"{where} takes one value, not a list")
    if setting.repeatable:
        if isinstance(value, bool) and setting.kinds:  # `plot: true` is --plot without a kind
            return setting.kinds[:1] if value else ()
        items = value if isinstance(value, list) else [value]
        return tuple(_method(item, where) if isinstance(item, Mapping) else _text(item, where) for item in items)
    if setting.is_list:
        items = value if isinstance(value, list) else [value]
        return ",".join(_text(item, where) for item in items)
    if setting.kind is bool:
        if not isinstance(value, bool):
            raise UsageError(f"{where} takes true or false, not {shown(value)}")
        return value
    if setting.parse is None and setting.kind in (int, float):
        return _number(value, setting.kind, where)
    return _text(value, where)


def _number(value: Any, kind: type, where: str) -> int | float:
    if isinstance(value, str) and kind is float:  # YAML reads 1e-3 as text, because its floats have a dot
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        raise UsageError(f"{where} takes {'a whole number' if kind is int else 'a number'}, not {shown(value)}")
    return value


def _text(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value == "":
        raise UsageError(f"{where} takes text or numbers, not {shown(value)}")
    return str(value)


def _method(value: Mapping[str, Any], where: str) -> str:
    """``{name: …, options: {…}}`` as ``NAME:k=v,…``."""
    for key in value:
        if key not in ("name", "options"):
            raise UsageError(f"{where}: unknown key '{key}' of a method{nearest(str(key), ('name', 'options'))}")
    name, options = value.get("name"), value.get("options") or {}
    if not isinstance(name, str) or not isinstance(options, Mapping):
        raise UsageError(f"{where}: a method is NAME, or {{name: NAME, options: {{…}}}}")
    given = []
    for key, item in options.items():
        if not isinstance(item, (str, int, float)) or "," in str(item):
            raise UsageError(f"{where}: option {key} of {name} takes one value, not {shown(item)}")
        given.append(f"{key}={str(item).lower() if isinstance(item, bool) else item}")
    return f"{name}:{','.join(given)}" if given else name


class OtherBase(ValueError):
    """A number such as ``010``, which YAML 1.1 reads as 8, or ``1:30``, which it reads as 90.

    Attributes:
        line: where it stands.
    """

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


class Loader(yaml.SafeLoader):
    """YAML 1.1 that refuses a number which it would read in another base than people do; the error is `OtherBase`."""

    def integer(self, node: yaml.ScalarNode) -> int:
        """An integer. ``0x10`` and ``0b10`` are allowed, because they name their base."""
        value = self.construct_yaml_int(node)
        if DIGITS.fullmatch(node.value):
            # YAML 1.1 allows underscores between digits
            decimal = int(node.value.replace("_", ""))
            if decimal != value:
                raise OtherBase(
                    node.start_mark.line + 1, f"YAML reads {node.value} as octal; write {decimal}, or {value}"
                )
        return self._outside_base_60(node, value)

    def number(self, node: yaml.ScalarNode) -> float:
        """A float."""
        return self._outside_base_60(node, self.construct_yaml_float(node))

    def _outside_base_60(self, node: yaml.ScalarNode, value: Any) -> Any:
        if ":" in node.value:
            way_out = f"write {value}, or '{node.value}' in quotes"
            raise OtherBase(node.start_mark.line + 1, f"YAML reads {node.value} in base 60; {way_out}")
        return value


Loader.add_constructor("tag:yaml.org,2002:int", Loader.integer)
Loader.add_constructor("tag:yaml.org,2002:float", Loader.number)


def packaged_sweeps() -> dict[str, str]:
    """The names of the packaged sweeps, with the first line of each file, its description."""
    first = {path.stem: path.read_text(encoding="utf-8").partition("\n")[0] for path in _folder().glob("*.yaml")}
    return {name: first[name].removeprefix("# ") for name in sorted(first)}


def sweep_file(name: str) -> Path:
    """The file that a sweep names: a path, else the packaged sweep of this name."""
    path = path_of(name)
    if path.exists() and not path.is_dir():
        return path
    if name in packaged_sweeps():
        return _folder() / f"{name}.yaml"
    kind = "is a directory" if path.is_dir() else "no such file"
    raise UsageError(f"{name}: {kind}, and no packaged sweep{nearest(path.stem, packaged_sweeps())}")


def _folder() -> Path:
    return IN_WHEEL if IN_WHEEL.is_dir() else IN_CLONE
