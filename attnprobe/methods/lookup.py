"""From what names a method to its entry: a registered name, a file's function, a package's, or a function itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UsageError, unknown
from ..grammar.spelling import file_and_function
from .registry import KERNELS, METHODS, Method
from .user import plugins
from .user.claims import as_method
from .user.files import from_file

__all__ = ["get", "is_method"]


def get(method: str | Method | Callable[..., Any]) -> Method:
    """The method of this name, ``PATH.py:FUNCTION``, or of a function as `attnprobe.method` describes it.

    A file is read each time: what was edited since is another method.

    Raises:
        UsageError: no such method, the message offers the nearest name; a file, a function or a package that is not
            there or cannot be imported.
    """
    if isinstance(method, Method):
        return method
    if callable(method):
        return as_method(method, getattr(method, "__name__", type(method).__name__))
    if not isinstance(method, str):
        raise UsageError(f"a method is a name or a function, not {method!r}")
    for known in (METHODS, KERNELS):
        if method in known:
            return known[method]
    if file_and_function(method) is not None:
        return from_file(method)
    points = plugins.found()
    if method in points:
        return plugins.from_plugin(points[method])
    raise unknown("method", method, sorted([*METHODS, *KERNELS, *points]))


def is_method(name: str) -> bool:
    """Whether `get` would look for a method of this name; nothing is imported."""
    return name in METHODS or name in KERNELS or file_and_function(name) is not None or name in plugins.found()
