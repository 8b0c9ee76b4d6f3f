"""Options of methods: name, default, and allowed values, from the parameters of a function."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, Union

from ..errors import UsageError, cut, unknown
from ..grammar.arguments import fault


@dataclass(frozen=True)
class Option:
    """One option of a method.

    Attributes:
        name: the parameter of the method's function. default: its default.
        choices: the allowed words; None for an option with types.
        kinds: the allowed types; ``(str,)`` for an option with choices.
    """

    name: str
    default: Any
    choices: tuple[str, ...] | None
    kinds: tuple[type, ...]

    def coerce(self, value: Any, method: str) -> Any:
        """``value``, a text of the command line or a typed value, converted to the type of this option.

        Raises:
            UsageError: the value is not one of the choices or not of the type.
        """
        if (problem := fault(value, bool | float | str | None)) is not None:
            raise UsageError(f"{method}: {self.name}{problem}")
        if self.choices is not None:
            if value not in self.choices:
                raise unknown(f"value of {method}:{self.name}", str(value), self.choices)
            return value
        text = str(value).strip()
        if type(None) in self.kinds and (value is None or text.lower() in ("none", "null")):
            return None
        if bool in self.kinds and text.lower() in ("true", "false"):
            return text.lower() == "true"
        # int first, so that "4" stays a whole number where both are allowed.
        for kind in (int, float):
            if kind in self.kinds:
                try:
                    number = kind(text)
                    if isfinite(number):
                        return number
                except (ValueError, OverflowError):
                    continue
        if str in self.kinds:
            return text
        raise UsageError(f"{method}:{self.name}={cut(text)} is not {self.describe()}")

    def describe(self) -> str:
        """The allowed values, in words."""
        if self.choices is not None:
            return " | ".join(self.choices)
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", type(None): "none"}
        return " or ".join(names[kind] for kind in self.kinds)

    @property
    def default_text(self) -> str:
        """The default as it is written on a command line."""
        return word(self.default)


def option_of(name: str, default: Any, hint: Any) -> Option:
    """The option of a parameter with a default and a type hint."""
    if typing.get_origin(hint) is Literal:
        return Option(name, default, typing.get_args(hint), (str,))
    if typing.get_origin(hint) in (Union, types.UnionType):
        return Option(name, default, None, typing.get_args(hint))
    return Option(name, default, None, (hint,))


def word(value: Any) -> str:
    """A value as it is written on a command line."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def at_least(method: str, least: int, *names: str) -> Callable[..., None]:
    """A `Method.validate` that refuses these options below ``least``, 0 or 1, with a `UsageError`."""

    def check(target: str, **options: Any) -> None:
        for name in names:
            if options[name] < least:
                raise UsageError(f"{method}: {name}={options[name]} is {'not positive' if least else 'negative'}")

    return check
