"""An option is a field of a request: name, type, default and help are written once, at the field."""

from __future__ import annotations

import dataclasses
import inspect
import os
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from numbers import Real
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ..errors import UsageError, unknown
from ..files import Fields
from ..grammar.arguments import fault

Parser = Callable[[str, str], Any]
T = TypeVar("T")

# the roles of options
KEYS = "keys"  # says what is measured: it is part of the name of a sweep's folder
FOLDER = "folder"  # says where and how it is measured: the numbers are the same
SHOWN = "shown"  # says how it is shown

MEASURED = "What is measured"
PLACES = "Where in the model and the text"
SOURCE = "Where Q, K and V come from"
NUMBERS = "Device and numbers"
RUN = "The run's folder"
ELSEWHERE = "Processes and machines"
OUTPUT = "What is shown"
GATES = "Gates"
GROUPS = (MEASURED, PLACES, SOURCE, NUMBERS, RUN, ELSEWHERE, OUTPUT, GATES)  # the order of the help
ROLES = {RUN: FOLDER, ELSEWHERE: FOLDER, OUTPUT: SHOWN, GATES: SHOWN}  # by group; of the others KEYS


def opt(
    default: Any, help: str, *, group: str = MEASURED, flag: str | None = None, role: str | None = None, **more: Any
) -> Any:
    """A field that is an option.

    Args:
        default: a typed value; None is "not given". role: by default the role of the group.
        more: further attributes of the `Option`.
    """
    about = {"help": help, "group": group, "flag": flag, "role": role or ROLES.get(group, KEYS), **more}
    return field(default=default, metadata={"option": about})


@dataclass(frozen=True)
class Option:
    """The properties of a field that is an option.

    Attributes:
        name: the field's name. kind: bool, int, float or str; the type of the value, or of the items of a list.
        flag: the option's name on the command line, ``--n`` or ``--matrix/--no-matrix``.
        default: a typed value. several: whether the value is a tuple. optional: whether the value may be None.
        parse: makes the value from its text and the option's name. Without it, click makes the value; a tuple is then
            a repeatable option, and every item is one text.
        words: texts that are values themselves, such as ``all``.
        role: `KEYS`, `FOLDER` or `SHOWN`. group: the heading in the help.
        among: the possible values, or possible items of a list.
        between: the least and the largest value. inside: bounds that the value must not reach.
        choose: names the values within ``between`` or ``inside`` in a message.
        of_methods: whether the items are methods.
        kinds: the names of figures that the option takes, with commas; the option without a name is the first one.
        later: whether the option came later than others: its default does not enter the name of a sweep's folder.
        measures: prefixes of metrics that are measured if the option is true.
        called: the option's name in a message about ``among``.
        alias: another key of the option in a sweep's file. in_file: whether a file may set the option.
        of_whole: the results that the option requests, if a shard cannot give them.
        excludes: options without effect next to this option, each with the reason; ``{value}`` is this option's value.
        reads: by value of this option, the options that have an effect at this value alone.
    """

    name: str
    kind: type
    several: bool
    optional: bool
    default: object
    help: str
    group: str
    flag: str
    metavar: str | None = None
    parse: Parser | None = None
    role: str = KEYS
    words: tuple[str, ...] = ()
    among: tuple[str, ...] | None = None
    between: tuple[float, float] | None = None
    inside: tuple[float, float] | None = None
    choose: str | None = None
    of_methods: bool = False
    kinds: tuple[str, ...] = ()
    later: bool = False
    measures: tuple[str, ...] = ()
    called: str | None = None
    alias: str | None = None
    in_file: bool = True
    of_whole: str | None = None
    excludes: Mapping[str, str] = field(default_factory=dict)
    reads: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def long(self) -> str:
        """The option's name on the command line, without dashes.

        >>> from dataclasses import make_dataclass
        >>> fields = [("tries", int, opt(1, "How often.", group="", flag="--try"))]
        >>> options_of(make_dataclass("Request", fields))[0].long
        'try'
        """
        return self.flag.partition("/")[0].removeprefix("--")

    @property
    def repeatable(self) -> bool:
        return self.several and self.parse is None

    @property
    def is_list(self) -> bool:
        """Whether the option's text is a list with commas."""
        return self.several and self.parse is not None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that a sweep's file may use for the option."""
        plural = (self.name,) if self.repeatable else ()
        flags = (flag.removeprefix("--") for flag in self.flag.split("/"))
        return (*flags, *plural, *filter(None, [self.alias]))

    def names_folder(self, text: object) -> bool:
        """Whether the option's value is part of the name of a sweep's folder."""
        return self.role == KEYS and not (self.later and text == self.text(self.default))

    def text(self, value: object) -> Any:
        """A value as text for the command line.

        >>> option = Option("d", int, True, False, (64, 128), "", "", "--d", parse=lambda text, called: ())
        >>> option.text(option.default)
        '64,128'
        """
        if value is None or self.kind is bool:
            return value
        items = value if isinstance(value, (list, tuple)) else (value,)  # a manifest's value may be anything
        if self.repeatable:
            return (",".join(map(str, items)),) if items else ()
        if self.is_list and not isinstance(value, str):
            # a whole float as people write it: 2 for 2.0
            numbers = (int(item) if isinstance(item, float) and item.is_integer() else item for item in items)
            return ",".join(map(str, numbers))
        return str(value) if self.parse else value

    def value(self, text: Any, called: str) -> Any:
        """The typed value of a text from the command line, the environment or a file.

        Args:
            called: the option's name in a message.

        Raises:
            UsageError: a text that is no value.
        """
        if text is None or self.parse is None:
            return text
        return text.strip() if text.strip() in self.words else self.parse(text, called)

    def checked(self, value: object) -> Any:
        """A value from Python, with any sequence as a tuple.

        Raises:
            UsageError: an impossible value.
        """
        if value is None and self.optional:
            return None
        if self.of_methods:
            self._refuse_function(value)
        if self.several and not (isinstance(value, str) and value in self.words):
            if isinstance(value, str) or not isinstance(value, Sequence):
                example = (value,) if value is not None else self.default or ()
                raise UsageError(f"{self.name}={value!r}: a tuple is needed, such as {example!r}")
            value = tuple(value)
        if self.parse is not None:  # by way of its text, so that Python has the rules of the command line
            parsed = self.value(self.text(value), self.long)
            self._refuse_others(parsed)
            return parsed
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        self._refuse(value)
        return value

    def _refuse_function(self, value: object) -> None:
        """Refuse a function as a method: a cell's key needs the text of the function's file."""
        for method in value if isinstance(value, Sequence) else (value,):
            if callable(method):
                name = getattr(method, "__name__", type(method).__name__)
                raise UsageError(f'{self.name}: {name} is a function; write its file and its name, "./mine.py:{name}"')

    def _refuse(self, value: Any) -> None:
        """Refuse a value of another type, beyond the limits, or not among the possible values."""
        if isinstance(value, Real):  # before the type: a message about the limits says more of NaN
            self._refuse_beyond(value)
        if (problem := fault(value, tuple[self.kind, ...] if self.several else self.kind)) is not None:
            raise UsageError(f"{self.long}{problem}")
        self._refuse_others(value)

    def _refuse_beyond(self, value: Any) -> None:
        """Refuse a number that is not within the limits."""
        if self.between is not None and not self.between[0] <= value <= self.between[1]:
            choose = self.choose or "a number from {:g} to {:g}".format(*self.between)
            raise UsageError(f"{self.long}={_short(value)}: choose {choose}")
        if self.inside is not None and not self.inside[0] < value < self.inside[1]:
            raise UsageError(f"{self.long}={_short(value)}: choose {self.choose}")

    def _refuse_others(self, value: Any) -> None:
        """Refuse a value, or an item of a list, that is not among the possible values."""
        if self.among is None:
            return
        for item in value if isinstance(value, tuple) else (value,):
            if item not in self.among and item not in self.words:
                raise unknown(self.called or self.long, str(item), self.among)


def _short(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@cache
def options_of(request: type) -> tuple[Option, ...]:
    """The options of a request: its own, then those of its bases in their order."""
    hints = get_type_hints(request)
    known = {field.name: field for field in dataclasses.fields(request) if "option" in field.metadata}
    # dataclasses list the fields of bases first; help begins with a command's own options
    names = dict.fromkeys(name for base in request.__mro__ for name in inspect.get_annotations(base))
    return tuple(_option(known[name], hints[name]) for name in names if name in known)


def _option(of: dataclasses.Field, hint: Any) -> Option:
    """The option of a field with this type hint: ``int``, ``int | None`` or ``tuple[int, ...] | None``."""
    about = dict(of.metadata["option"])
    types_of_value = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = types_of_value[0]
    several = get_origin(kind) is tuple
    return Option(
        name=of.name,
        kind=get_args(kind)[0] if several else kind,
        several=several,
        optional=types.NoneType in types_of_value,
        default=of.default,
        metavar=about.pop("metavar", "LIST" if several and about.get("parse") else None),
        flag=about.pop("flag") or "--" + of.name.replace("_", "-"),
        **about,
    )


def check_fields(request: object) -> None:
    """Refuse a request with an impossible value, and make its sequences tuples.

    Raises:
        UsageError: an impossible value; the message names the option and the possible values.
    """
    for option in options_of(type(request)):
        # a request is frozen, but not yet while it is made
        object.__setattr__(request, option.name, option.checked(getattr(request, option.name)))


def built(request: type[T], texts: Fields, called: Callable[[Option], str], **more: object) -> T:
    """A request from texts of the command line, the environment or a file.

    Args:
        texts: by the names of fields; other names are not read. called: the name of an option in messages.
        more: fields that are no options.

    Raises:
        UsageError: a text that is no list where the option is a list, or an impossible value.
    """
    given = [option for option in options_of(request) if option.name in texts]
    return request(**{option.name: option.value(texts[option.name], called(option)) for option in given}, **more)
