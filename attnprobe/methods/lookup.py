"""Finds a method by its registered name, ``PATH.py:FUNCTION``, the name of a plugin, or its function.

A plugin is an entry point of the group ``attnprobe.methods`` of an installed package, and refers to a user's function
(see `user.claims`). ``ATTNPROBE_LOAD_PLUGINS=`` (empty) loads none. A comma-separated list loads only the entry points
of these names or packages.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from ..errors import AttnprobeError, UsageError, unknown
from ..grammar.arguments import checked
from ..grammar.foreign import message
from ..grammar.lists import ROTATED, SELECTION, file_and_function, policy_and_format
from ..machine.environment import plugins
from .quantised.evicted import evicted_format
from .quantised.rotated import rotated_format
from .registry import KERNELS, METHODS, OF_MODELS, Method, Provenance
from .selection.files import from_selection
from .user.claims import as_method
from .user.files import contents, digest, from_file, loading
from .user.foreign import asked


@checked()
def get(method: str | Method | Callable[..., Any]) -> Method:
    """The method of a name or of a function.

    A name is registered, or is ``PATH.py:FUNCTION``, ``selection:FILE``, ``rotated:FORMAT`` or ``POLICY+FORMAT``.

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
    for registry in (METHODS, KERNELS, OF_MODELS):
        if method in registry:
            return registry[method]
    if method.startswith(ROTATED):
        return rotated_format(_format(method.removeprefix(ROTATED)))
    if (both := policy_and_format(method)) is not None:
        policy, stored = both
        return evicted_format(get(policy), get(stored) if stored.startswith(ROTATED) else _format(stored))
    if method.startswith(SELECTION):
        return from_selection(method)
    if file_and_function(method) is not None:
        return from_file(method)
    points = plugins()
    if method in points:
        return from_plugin(points[method])
    raise unknown("method", method, sorted([*METHODS, *KERNELS, *OF_MODELS, *points]))


def _format(name: str) -> Method:
    """The registered method with a format of this name."""
    known = {name: entry for name, entry in METHODS.items() if entry.format is not None}
    if name not in known:
        raise unknown("format", name, sorted(known))
    return known[name]


@checked()
def is_method(name: str) -> bool:
    """Whether a name can be that of a method: registered, of a file, or of a plugin. Nothing is imported."""
    if name.startswith(ROTATED):
        return is_method(name.removeprefix(ROTATED))
    if (both := policy_and_format(name)) is not None:
        return all(map(is_method, both))
    of_file = name.startswith(SELECTION) or file_and_function(name) is not None
    return of_file or name in METHODS or name in KERNELS or name in OF_MODELS or name in plugins()


def from_plugin(point: EntryPoint) -> Method:
    """The method of an entry point.

    Raises:
        UsageError: it cannot be imported or is not a method. The message names it and its package.
    """
    package = f"{point.dist.name} {point.dist.version}" if point.dist else None
    where = f"the method '{point.name}' of {package or point.value}"
    # A package must not change what a built-in name in a paper or a script means.
    if point.name in METHODS:
        raise UsageError(f"{where} has the name of a built-in method and is left out")
    with loading(where):
        function = point.load()
    try:
        source = inspect.getsourcefile(inspect.unwrap(function))
        if source is None:
            raise TypeError(f"{where} has no source file")
        file = Path(source)
        sha256 = digest(contents(file))
    except (TypeError, UsageError):  # compiled: the hash is of its package's version
        file, sha256 = Path(point.value), digest({Path(point.value): (package or "").encode()})
    try:
        return as_method(function, point.name, Provenance(file.name, sha256, package))
    except UsageError as error:
        raise UsageError(f"{where}: {message(error)}") from error


def installed(points: Iterable[EntryPoint] | None = None) -> tuple[list[Method], list[str]]:
    """The methods of all entry points, and an error line for each that fails to load."""
    methods, lines = [], []
    for point in plugins().values() if points is None else points:
        try:
            methods.append(from_plugin(point))
        except AttnprobeError as error:
            lines.append(message(error))
    return methods, lines
