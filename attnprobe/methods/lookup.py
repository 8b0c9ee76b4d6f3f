"""Finds a method by its registered name, ``PATH.py:FUNCTION``, the name of a plugin, or its function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..arguments import checked
from ..environment import plugins
from ..errors import unknown
from ..grammar.lists import SELECTION, file_and_function
from .registry import KERNELS, METHODS, Method
from .selection.files import from_selection
from .user.claims import as_method
from .user.files import from_file
from .user.foreign import asked
from .user.plugins import from_plugin


@checked()
def get(method: str | Method | Callable[..., Any]) -> Method:
    """The method with a name, ``PATH.py:FUNCTION`` or ``selection:FILE``, or that of a function.

    A file is read at every call, so an edited file gives another method.

    Raises:
        UsageError: no such method (the message offers the nearest name); a file, function or package that does not
            exist or cannot be imported.
    """
    if isinstance(method, Method):
        return method
    if callable(method):
        name = asked(lambda: getattr(method, "__name__", None), "the name of the function")
        return as_method(method, name if isinstance(name, str) else type(method).__name__)
    for registry in (METHODS, KERNELS):
        if method in registry:
            return registry[method]
    if method.startswith(SELECTION):
        return from_selection(method)
    if file_and_function(method) is not None:
        return from_file(method)
    points = plugins()
    if method in points:
        return from_plugin(points[method])
    raise unknown("method", method, sorted([*METHODS, *KERNELS, *points]))


@checked()
def is_method(name: str) -> bool:
    """Whether a name can be that of a method: registered, of a file, or of a plugin. Nothing is imported."""
    of_file = name.startswith(SELECTION) or file_and_function(name) is not None
    return of_file or name in METHODS or name in KERNELS or name in plugins()
