"""Values from outside, checked by pydantic: the types of numbers and facts, and faults in words."""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from ..files import Fields, JsonObject
from . import lists

LARGEST = 2**53  # the largest whole number; up to it, JSON keeps whole numbers exact in every language
WIDEST = 2**128  # the largest seed
DEEPEST = 8  # levels of objects and lists in facts
SHOWN = 40  # characters of a value in a message


def shallow(value: object, depth: int = 0) -> object:
    """``value`` if it nests at most `DEEPEST` deep and its numbers are finite."""
    if depth > DEEPEST:
        raise ValueError(f"expected at most {DEEPEST} levels")
    if isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            shallow(item, depth + 1)
    elif isinstance(value, int):
        if abs(value) > WIDEST:
            raise ValueError("expected a whole number of at most 128 bits")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


def said(text: str, **limits: Any) -> Any:
    """The meaning of a field of a row, and the limits of its value."""
    return Field(description=text, **limits)


Count = Annotated[int, Field(ge=0, le=LARGEST)]
Budget = Annotated[int, Field(ge=1, le=LARGEST)]
Seed = Annotated[int, Field(ge=-WIDEST, le=WIDEST)]
Number = Annotated[float, Field(ge=-lists.LARGEST, le=lists.LARGEST)]
Key = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,100}$")]
Facts = Annotated[JsonObject, BeforeValidator(shallow)]


def in_words(error: ValidationError, record: object) -> dict[str, str]:
    """The first problem of each field that an error of pydantic names."""
    problems: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        field = str(problem["loc"][0]) if problem["loc"] else ""
        problems.setdefault(field, _problem(problem, record))
    return problems


def _problem(error: Fields, record: object) -> str:
    """One error of pydantic as ``field NAME: what is wrong``."""
    name, value = "", record
    # pydantic's path has the members of unions too, which are no keys of the object
    for part in error["loc"]:
        if (isinstance(value, dict) and part in value) or (isinstance(value, list) and isinstance(part, int)):
            name += f"[{part}]" if isinstance(part, int) else f".{part}"
            value = value[part]
    if error["type"] == "missing":
        return f"field {name}.{error['loc'][-1]}: missing".replace("field .", "field ")
    bounds = error.get("ctx", {})
    if "le" in bounds or "ge" in bounds:
        message = f"expected at most {bounds['le']:g}" if "le" in bounds else f"expected at least {bounds['ge']:g}"
    else:
        message = re.sub("^Value error, | after validation.*", "", error["msg"])
        message = re.sub("Input should be|(List|Dictionary|String) should have", "expected", message)
    return f"field {name.removeprefix('.') or 'record'}: {message}, got {_brief(error['input'])}"


def _brief(value: object) -> str:
    """A value in a message: a long value is described or cut."""
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    if isinstance(value, int) and abs(value) > LARGEST:
        return f"a whole number of {value.bit_length()} bits"
    text = json.dumps(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
