"""Methods of installed packages: entry points of the group ``attnprobe.methods``.

An entry point refers to a user's function (see `claims`). ``ATTNPROBE_LOAD_PLUGINS=`` (empty) loads none. A
comma-separated list loads only the entry points of these names or packages.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from importlib.metadata import EntryPoint
from pathlib import Path

from ...environment import plugins
from ...errors import AttnprobeError, UsageError
from ...grammar.foreign import message
from ..registry import METHODS, Method, Provenance
from .claims import as_method
from .files import contents, digest, loading


def from_plugin(point: EntryPoint) -> Method:
    """The method of an entry point.

    Raises:
        UsageError: it cannot be imported or is not a method. The message names it and its package.
    """
    package = f"{point.dist.name} {point.dist.version}" if point.dist else None
    where = f"the method '{point.name}' of {package or point.value}"
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


def every(points: Iterable[EntryPoint] | None = None) -> tuple[list[Method], list[str]]:
    """The methods of all entry points, and an error line for each that fails to load."""
    methods, lines = [], []
    for point in plugins().values() if points is None else points:
        try:
            methods.append(from_plugin(point))
        except AttnprobeError as error:
            lines.append(message(error))
    return methods, lines
