"""The tests mirror the package: who opens a module knows where its tests are."""

from __future__ import annotations

import ast
from pathlib import Path

from paths import TESTS

import attnprobe

PACKAGE = Path(attnprobe.__file__).parent
APART = {"cuda", "golden", "hostile", "project", "support"}  # tests of the whole, and what tests share


def rooms(of: Path) -> set[Path]:
    """The folders below one that hold Python files."""
    return {path.parent.relative_to(of) for path in of.rglob("*.py")} - {Path(".")}


def imported(path: Path) -> set[str]:
    """The names of modules that a test file imports, and of what it imports from them."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def mirrored(module: Path) -> bool:
    """Whether its room of tests has a file of the module's name, one of the room's name, or one that imports it."""
    tests = list((TESTS / module.parent).glob("test_*.py"))
    names = [path.stem.removeprefix("test_") for path in tests]
    dotted = ".".join(("attnprobe", *module.with_suffix("").parts))
    room = module.parent.name or "attnprobe"
    named = any(name.startswith((module.stem, room)) or module.stem.startswith(name) for name in names)
    return named or any(dotted in imported(path) for path in tests)


def test_every_module_has_its_mirror():
    modules = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    modules = [path for path in modules if not path.stem.startswith("__")]
    assert len(modules) > 200
    assert not [str(path) for path in modules if not mirrored(path)]


def test_every_room_of_tests_is_a_room_of_the_package():
    ours = {path for path in rooms(TESTS) if path.parts[0] not in APART}
    assert not ours - rooms(PACKAGE)


def test_names_of_test_files_are_unique():
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert len(set(names)) == len(names)
