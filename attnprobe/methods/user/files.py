"""A method from a file, ``PATH.py:FUNCTION``: read, hashed and imported. Every failure is an error of one line."""

from __future__ import annotations

import ast
import hashlib
import sys
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import LINE, BadResult, UsageError, cut, nearest
from ...files import MIB, NO_METHOD, path_of, read_regular, reading
from ...grammar.arguments import checked
from ...grammar.foreign import diverted, first_line, message, notes, reason
from ...grammar.lists import file_and_function, short_name
from ..registry import Method, Provenance
from .claims import as_method

LARGEST = 16 * MIB  # the size limit of a module
PREFIX = "attnprobe_user_"  # starts the names of loaded modules
MISSING: Any = object()
_helpers: dict[str, bytes] = {}  # the source of the modules that a loaded file imported, by their names


def from_file(name: str) -> Method:
    """The method ``PATH.py:FUNCTION``.

    Raises:
        UsageError: the file or the function does not exist, or the import of the file fails. The message names it.
    """
    parts = file_and_function(name)
    if parts is None:
        raise UsageError(f"'{name}' names no file; write PATH.py:FUNCTION")
    file, function = parts
    path = path_of(file)
    files = contents(path)
    if not function:
        raise UsageError(f"{file}: which function? write {file}:FUNCTION{_defined(files[path.resolve()])}")
    module = _module(path.resolve(), digest(files), tuple(files), files[path.resolve()])
    with loading(path):  # a module may have a `__getattr__` of its own
        found = getattr(module, function, MISSING)
    if found is MISSING:
        functions = [
            key
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_") and getattr(value, "__module__", None) == module.__name__
        ]
        way_out = nearest(function, functions) if functions else "; it defines no function"
        raise UsageError(f"{file} has no function '{function}'{way_out}")
    return as_method(found, short_name(name), Provenance(file, digest(files)))


def contents(path: Path) -> dict[Path, bytes]:
    """The bytes of a file and, recursively, of the modules in its folder that it imports.

    Raises:
        UsageError: the file cannot be read.
    """
    with reading(path, UsageError, NO_METHOD):
        files = {path.resolve(): read_regular(path, LARGEST)}
        waiting = list(files)
        while waiting:
            file = waiting.pop()
            for helper in _local_imports(file, files[file]):
                if helper not in files:
                    files[helper] = read_regular(helper, LARGEST)
                    waiting.append(helper)
    return files


def digest(files: dict[Path, bytes]) -> str:
    """SHA-256 of the names and contents of the files, in the order of their paths. It does not depend on the folder."""
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(
            hashlib.sha256(path.name.encode("utf-8", "surrogateescape")).digest() + hashlib.sha256(files[path]).digest()
        )
    return total.hexdigest()


def _local_imports(path: Path, text: bytes) -> Iterator[Path]:
    """The files in the folder of ``path`` that its source ``text`` imports."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
        return  # the import reports it
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [
        f"{node.module or ''}.{alias.name}".strip(".")
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    for name in names:
        target = path.parent.joinpath(*name.split("."))
        for module in (target, target.parent):
            for file in (module.with_suffix(".py"), module / "__init__.py"):
                if module != path.parent and file.is_file():
                    yield file.resolve()


@lru_cache(maxsize=64)
def _module(path: Path, sha256: str, files: tuple[Path, ...], text: bytes) -> types.ModuleType:
    """The module of a file with these contents, executed once. An edited file gives another module.

    Helper modules from its folder are imported again if they changed since their last import.
    """
    for name, source in list(_helpers.items()):
        helper = sys.modules.get(name)
        if helper is not None and _text(helper) != source:
            del sys.modules[name], _helpers[name]
    before = set(sys.modules)
    module = types.ModuleType(f"{PREFIX}{path.stem}_{sha256[:12]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and pickle look there
    try:
        with loading(path, path.parent):
            exec(compile(text, str(path), "exec"), module.__dict__)
    except BaseException:
        sys.modules.pop(module.__name__, None)
        raise
    new = {name: sys.modules[name] for name in set(sys.modules) - before - {module.__name__}}
    _helpers.update({name: _text(helper) for name, helper in new.items() if _file(helper) in files})
    return module


def _file(module: types.ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


def _text(module: types.ModuleType) -> bytes:
    file = _file(module)
    try:
        return file.read_bytes() if file else b""
    except OSError:
        return b""


@contextmanager
def loading(path: Path | str, folder: Path | None = None) -> Iterator[None]:
    """A context in which ``folder`` is on the import path and prints go to stderr.

    Raises:
        UsageError: in place of any exception. The message names the file and the line.
    """
    before = list(sys.path)
    if folder is not None:
        sys.path.insert(0, str(folder))
    try:
        with diverted():
            yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a file may raise anything, SystemExit too
        why = f"{type(error).__name__}: {error.msg}" if isinstance(error, SyntaxError) else reason(error)
        raise UsageError(f"{_where(path, error)}: {why}") from error
    finally:
        sys.path[:] = before


@checked()
def error_text(error: BaseException) -> str:
    """The text of a method's error in rows: its class, its message, the line of a user's file, and its notes."""
    text = first_line(message(error)) if isinstance(error, BadResult) else f"{reason(error)}{line_of(error)}"
    return cut(" ".join([text, *notes(error)]), LINE)


@checked()
def line_of(error: BaseException) -> str:
    """The last line of a user's file in an error's traceback, as `` (mine.py, line 7)``; empty if there is none."""
    lines = [
        (Path(frame.f_code.co_filename).name, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").startswith(PREFIX)
    ]
    return " ({}, line {})".format(*lines[-1]) if lines else ""


def _where(path: Path | str, error: BaseException) -> str:
    """The file, and the line at which its import failed."""
    if isinstance(error, SyntaxError):
        return f"{path}, line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def _defined(text: bytes) -> str:
    """The functions that a file defines, in words, without importing it."""
    try:
        names = [
            node.name
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        ]
    except (SyntaxError, ValueError):
        return ""
    return f"; it defines {', '.join(names)}" if names else ""
