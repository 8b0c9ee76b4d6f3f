"""YAML 1.1, without numbers that it would read in another base than they are written in."""

from __future__ import annotations

import re
from typing import Any

import yaml

DIGITS = re.compile("[-+]?[0-9_]+")


class OtherBase(ValueError):
    """A number such as ``010``, which YAML 1.1 reads as 8, or ``1:30``, which it reads as 90.

    Attributes:
        line: where it stands.
    """

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


class Loader(yaml.SafeLoader):
    """A safe loader that raises `OtherBase`."""

    def integer(self, node: yaml.ScalarNode) -> int:
        """An integer; ``0x10`` and ``0b10`` say their base."""
        value = self.construct_yaml_int(node)
        if DIGITS.fullmatch(node.value):
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
