"""The check of the arguments of public functions. The annotations of a function are the declaration."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin

from ..errors import UsageError, cut

P = ParamSpec("P")
R = TypeVar("R")

WIDEST = {int: 128, float: 63}  # bits of a whole number: of a seed in rows, and of a number that torch takes
NUMBERS = {  # what annotations call them: the types of values, and words
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
}


def checked(**declared: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator of a public function: an argument that is not of its annotation is refused before the call.

    Args:
        declared: types of parameters in place of their annotations; ``Any`` is no check.

    Raises:
        UsageError: by the decorated function. One line names the function, the argument and the type that is needed.

    >>> @checked()
    ... def scaled(size: float, names: Sequence[str] = ()) -> float:
    ...     return 2 * size
    >>> scaled(3), scaled(0.5)
    (6, 1.0)
    >>> scaled("a")
    Traceback (most recent call last):
    attnprobe.errors.UsageError: scaled: size='a'; a number is needed
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = signature(function).parameters
        named = [name for name, parameter in parameters.items() if parameter.kind is not Parameter.VAR_KEYWORD]

        @cache  # at the first call: the names in annotations may not be defined yet
        def kinds() -> dict[str, Any]:
            return _evaluated(function, {name: parameters[name].annotation for name in named}) | declared

        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> R:
            arguments = {**dict(zip(named, args, strict=False)), **options}
            for name, value in arguments.items():
                if (problem := fault(value, kinds().get(name, Any))) is not None:
                    raise UsageError(f"{function.__name__}: {name}{problem}")
            return function(*args, **options)

        return call

    return decorate


def check_fields(value: Any, called: str | None = None) -> None:
    """Refuse an instance of a dataclass with a field that is not of its annotation.

    Args:
        called: the name in messages; None is that of the class.
    """
    for name, kind in _fields_of(type(value)).items():
        if (problem := fault(vars(value)[name], kind)) is not None:
            raise UsageError(f"{called or type(value).__name__}: {name}{problem}")


@cache
def _fields_of(kind: type) -> dict[str, Any]:
    return _evaluated(kind, {name: kind.__annotations__[name] for name in kind.__dataclass_fields__})


def _evaluated(owner: Any, annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Annotations as types; those with names that only a type checker knows are ``Any``."""
    names, kinds = vars(sys.modules[owner.__module__]), {}
    for name, kind in annotations.items():
        try:
            kinds[name] = eval(kind, names) if isinstance(kind, str) else kind
        except NameError:
            kinds[name] = Any
    return kinds


def fault(value: Any, kind: Any) -> str | None:
    """What is wrong with a value that must be of a type, to follow its name; None if it is of the type.

    Numbers of numpy count as numbers; booleans do not, nor does NaN. A tensor must be dense, real and in memory. A
    class may say what else is wrong with an instance by a static method ``fault``.

    >>> fault([1, "a"], Sequence[int])
    "[1]='a'; a whole number is needed"
    >>> fault(None, int | None), fault({}, int)
    (None, ' is a dict; a whole number is needed')
    """
    if kind is Any or kind is Parameter.empty or isinstance(kind, TypeVar):
        return None
    if kind in (None, NoneType):
        return None if value is None else _needed(value, "None")
    origin, parts = _taken_apart(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in parts:
            return None
        faults = []
        for part in parts:
            if (problem := fault(value, part)) is None:
                return None
            faults.append(problem)
        # a list of wrong items is better told by its items than by the words of the union
        own = [problem for problem, part in zip(faults, parts, strict=True) if _is(value, get_origin(part) or part)]
        return own[0] if own else _needed(value, _words(kind))
    if not _is(value, origin or kind):
        return _needed(value, _words(kind))
    if kind in NUMBERS and kind is not bool:
        return _of_number(value, kind)
    if origin is tuple and Ellipsis not in parts:
        return _of_tuple(value, parts)
    if origin is not None and origin is not Callable:
        return _of_items(value, parts)
    # a tensor can only exist if torch is imported
    torch = sys.modules.get("torch")
    if torch is not None and kind is torch.Tensor:
        return tensor_fault(value)
    own = getattr(kind, "fault", None)
    return None if own is None else own(value)


@cache  # a tenth of the time of a small method
def _taken_apart(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(kind), get_args(kind)


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of a class, by its type alone: foreign objects are asked nothing."""
    if kind is Callable:
        return callable(value)
    own = type(value)
    if kind is bool:
        return own is bool
    if kind in NUMBERS:
        # True is an int to Python; as a budget or a seed it is a mistake
        return issubclass(own, NUMBERS[kind][0]) and not issubclass(own, bool)
    # a text is a sequence of letters to Python; where a list of names is needed it is one name, unlisted
    if issubclass(own, (str, bytes)) and kind in (Sequence, Iterable, Collection):
        return False
    return issubclass(own, kind)


def _of_number(value: Any, kind: type) -> str | None:
    if value != value:
        return f"=nan; {NUMBERS[kind][1]} is needed"
    most = WIDEST[kind]
    if isinstance(value, int) and value.bit_length() > most:
        return f" is a whole number of {value.bit_length()} bits; at most {most} are possible"
    return None


def _of_tuple(value: tuple[Any, ...], parts: tuple[Any, ...]) -> str | None:
    """What is wrong with an item of a tuple whose items have a type each."""
    if len(value) != len(parts):
        return f" has {len(value)} items; {len(parts)} are needed"
    faults = ((number, fault(item, part)) for number, (item, part) in enumerate(zip(value, parts, strict=True)))
    return next((f"[{number}]{problem}" for number, problem in faults if problem is not None), None)


def _of_items(value: Any, parts: tuple[Any, ...]) -> str | None:
    """What is wrong with an item of a collection; items of an iterator, and those made when read, are not looked at."""
    if not isinstance(value, Collection) or getattr(type(value), "made_when_read", False):
        return None
    if isinstance(value, Mapping):
        for key, item in value.items():
            if (problem := fault(key, parts[0])) is not None:
                return f": a key{problem}"
            if (problem := fault(item, parts[-1])) is not None:
                return f"[{_shown(key)}]{problem}"
        return None
    for number, item in enumerate(value):
        if (problem := fault(item, parts[0])) is not None:
            return f"[{number}]{problem}"
    return None


def tensor_fault(x: Any) -> str | None:
    """What is wrong with a tensor: it holds no numbers, is sparse, or its numbers are not real; None if nothing is.

    A subclass with operations of its own may say that it is on ``meta`` and hold numbers elsewhere.
    """
    torch = sys.modules["torch"]
    if x.is_meta and type(x).__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        return " is on the device 'meta', which holds no numbers"
    if str(x.layout) != "torch.strided":
        return f" is a tensor of layout {str(x.layout)[6:]}; pass its to_dense()"
    if x.dtype.is_complex or x.is_quantized:
        return f" has dtype {str(x.dtype)[6:]}; real numbers are needed"
    return None


def _needed(value: Any, words: str) -> str:
    shown = _shown(value)
    return f" is {a_type(value)}; {words} is needed" if shown is None else f"={shown}; {words} is needed"


def _shown(value: Any) -> str | None:
    """A simple value in a message; None for others, which may be large or refuse to be shown."""
    if value is None or type(value) in (bool, float):
        return repr(value)
    if type(value) is int:
        return repr(value) if value.bit_length() <= WIDEST[int] else f"a whole number of {value.bit_length()} bits"
    return cut(repr(value[:100])) if type(value) is str else None


def a_type(value: Any) -> str:
    """The type of a value with its article.

    >>> a_type([]), a_type(int)
    ('a list', 'a type')
    """
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _words(kind: Any) -> str:
    """A type in words.

    >>> _words(int | None), _words(Sequence[str]), _words(Callable[..., int] | str)
    ('a whole number or None', 'a sequence of text', 'a function or text')
    """
    origin, parts = get_origin(kind), get_args(kind)
    if kind in NUMBERS:
        return NUMBERS[kind][1]
    if kind in (None, NoneType):
        return "None"
    if kind is str:
        return "text"
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_words, parts)))
    if origin is Callable or kind is Callable:
        return "a function"
    if origin is not None:
        item = parts[0] if origin is tuple else parts[-1]
        items = "" if item is Any else f" of {_words(item)}"
        return f"a {origin.__name__.lower()}{items}"
    name = getattr(kind, "__name__", str(kind))
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
