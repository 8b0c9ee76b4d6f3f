"""The rules of import: which module may know which, and kits no command."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import attnprobe
from attnprobe.measure import EXPERIMENTS

ROOT = Path(attnprobe.__file__).parent
CORE = {"errors", "rng", "grammar", "operators", "operators/linalg", "qkv", "reference", "approximation"}
READS = {"errors", "files", "grammar", "frame/records"}
SCIENCES = CORE | {"files", "machine", "methods", "metrics", "theorems", "rounding", "inputs", "inject"}
MAY = {
    # for typing only
    "__init__": CORE | {"measure", "inject", "methods", "metrics", "probing", "show/page", "rounding", "inputs"},
    "__main__": {"cli"},
    "errors": set(),
    "rng": set(),
    "machine": set(),
    "grammar": {"errors", "files"},
    "files": {"errors", "grammar"},
    "operators": {"errors", "machine"},
    "operators/linalg": {"errors", "rng", "operators"},
    "qkv": {"errors", "grammar", "operators"},
    "reference": {"errors", "grammar", "operators", "qkv"},
    "approximation": {"errors", "grammar", "operators", "qkv"},
    "methods": CORE | {"files", "machine"},
    "metrics": CORE | {"machine"},
    "theorems": CORE | {"metrics"},
    "rounding": CORE | {"methods"},
    "inputs/hooks": {"errors", "grammar", "operators", "qkv"},
    "inputs": {"errors", "files", "rng", "machine", "grammar", "operators", "qkv", "inputs/hooks"},
    "inject": CORE | {"methods", "inputs/hooks", "rounding"},
    "frame/records": READS | {"frame"},
    "frame": READS,
    "judge": READS | {"measure", "frame", "show"},
    "show": READS | {"frame", "operators/linalg"},
    "lm_eval": {"errors", "__init__", "run"},
    "probing": {"errors", "grammar", "measure", "show/page"},
    "show/page": READS | {"measure", "frame", "judge", "show"},
    "testing": CORE | {"methods"},
    "testing/packs": {"errors", "files", "rng", "inputs"},
    "run": SCIENCES | READS | {"__init__", "frame", "show"},
    "run/sweeps": READS | {"machine", "run"},
    "measure": SCIENCES | READS | {"inputs/hooks", "frame", "judge", "run", "show"},
    "cli": READS | {"__init__", "machine", "measure", "frame", "run", "run/sweeps"},
}
HEAVY = {
    *("torch", "transformers", "pandas", "pydantic", "jinja2", "datasets", "matplotlib", "numpy", "scipy"),
    *("safetensors", "tokenizers", "rich"),
}
TYPED = {
    "grammar": {"validation", "metadata"},
    "frame/records": {"shapes", "budgets"},
    "frame": {"rows"},
}  # by pydantic
MAY_HEAVY = {
    **dict.fromkeys(("errors", "files", "__init__", "__main__", "machine", "run/sweeps", "cli"), set()),
    **dict.fromkeys(("grammar", "frame", "frame/records", "show", "show/page"), set()),
    "inputs": {"torch"},
    "inputs/hooks": {"torch"},
    "judge": {"numpy"},
}
DRAWS = {  # the modules of figures, which the catalogue's data never imports
    "points": {"numpy", "pandas"},
    **dict.fromkeys(("drawing", "marks", "looks"), {"matplotlib", "numpy", "pandas"}),
}
VIEWS = {"files", "record"}  # modules of a command that read rows and never measure
FILES = sorted(ROOT.rglob("*.py"))


def room(parts: Sequence[str]) -> str:
    """The room of a module: a folder, a room inside a folder, or a module of the root."""
    inner = "/".join(parts[:2])
    return inner if inner in MAY else parts[0]


def part(file: Path) -> str:
    return room([name.removesuffix(".py") for name in file.relative_to(ROOT).parts])


def _is_lazy(top: ast.stmt) -> bool:
    """Whether what a statement imports is not imported with the module."""
    typing_only = isinstance(top, ast.If) and isinstance(top.test, ast.Name) and top.test.id == "TYPE_CHECKING"
    return typing_only or isinstance(top, ast.FunctionDef | ast.ClassDef)


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def imports(file: Path, module_level: bool) -> set[str]:
    """Absolute names imported by a file, ``attnprobe.x.y`` for relative ones."""
    tree = parsed(file)
    package = ["attnprobe", *file.relative_to(ROOT).parts[:-1]]
    nodes = ast.walk(tree)
    if module_level:
        nodes = [n for top in tree.body if not _is_lazy(top) for n in ast.walk(top)]
    actual = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            actual |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            if node.module:
                actual.add(name)
            else:

                def is_module(x, b=base):
                    return (ROOT.joinpath(*b[1:], x)).with_suffix(".py").exists() or (ROOT.joinpath(*b[1:], x)).is_dir()

                actual |= {f"{name}.{a.name}" if is_module(a.name) else f"{name}.__init__" for a in node.names}
    return actual


def test_a_module_imports_only_what_it_may():
    for file in FILES:
        ours = part(file)
        everywhere = ours != "cli"  # commands may import anything inside their bodies
        for name in imports(file, module_level=not everywhere):
            if name.split(".")[0] == "attnprobe":
                other = room(name.split(".")[1:])
                assert other == ours or other in MAY[ours], f"{file} imports {name}"


def test_a_module_imports_heavy_packages_only_where_it_may():
    for file in FILES:
        allowed = MAY_HEAVY.get(part(file), HEAVY - {"transformers", "datasets", "matplotlib"})
        allowed = allowed | (DRAWS.get(file.stem, set()) if part(file) == "show" else set())
        allowed = allowed | ({"pydantic"} if file.stem in TYPED.get(part(file), ()) else set())
        heavy = {name.split(".")[0] for name in imports(file, module_level=True)} & HEAVY
        typing_only = {"transformers", "tokenizers", "pandas"} if "TYPE_CHECKING" in file.read_text() else set()
        assert heavy <= allowed | typing_only | ({"torch"} if part(file) == "__init__" else set()), file


def test_what_reads_records_never_imports_torch():
    kits = [file for file in FILES if part(file) in ("show/page", "frame", "frame/records", "show", "judge")]
    views = [file for file in FILES if part(file) == "measure" and file.stem in VIEWS]
    assert kits and views
    for file in (*kits, *views):
        assert not any(name.split(".")[0] == "torch" for name in imports(file, module_level=False)), file


def commands_in(file: Path) -> set[str]:
    """The commands whose modules a file imports anywhere."""
    parts = [name.split(".") for name in imports(file, module_level=False)]
    return {one[2] for one in parts if one[:2] == ["attnprobe", "measure"] and one[2:3] and one[2] in EXPERIMENTS}


def test_kits_know_no_command():
    kits = [file for file in FILES if part(file) not in ("__init__", "cli", "measure")]
    known = {str(file.relative_to(ROOT)): commands_in(file) for file in kits}
    assert not {name: actual for name, actual in known.items() if actual}


def test_only_the_catalogue_shows_a_command_by_name():
    files = [file for file in FILES if part(file) == "show" and "catalogue" not in file.parts]
    assert files
    for file in files:
        words = {node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)}
        assert not words & set(EXPERIMENTS), file


def test_a_command_does_not_import_another():
    files = [file for file in FILES if part(file) == "measure" and file.parent.name in EXPERIMENTS]
    for file in files:
        others = commands_in(file) - {file.parent.name}
        assert not others, file


def test_a_method_does_not_import_another_method():
    decorated = re.compile(r"^@(register|\w*selector)\(", re.MULTILINE)
    papers = {file.stem: file for file in FILES if part(file) == "methods" and decorated.search(file.read_text())}
    assert len(papers) > 20
    for stem, file in papers.items():
        others = {name.rsplit(".", 1)[-1] for name in imports(file, False)}
        assert not others & (set(papers) - {stem}), file


HELP = """
import sys
from attnprobe.cli import main
heavy = {"torch", "transformers", "datasets", "matplotlib", "numpy", "pandas", "pydantic", "jinja2", "rich"}
for words in ["--help", "--version", *(f"{name} --help" for name in sys.argv[1:])]:
    try:
        main(words.split())
    except SystemExit as stop:
        assert not stop.code, words
    assert not heavy & set(sys.modules), (words, heavy & set(sys.modules))
"""


COMMANDS = (*EXPERIMENTS, "compare", "methods", "new-method", "check", "report", "sweep")


def test_help_never_imports_anything_heavy():
    done = subprocess.run([sys.executable, "-c", HELP, *COMMANDS], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("Usage: attnprobe") == 1 + len(COMMANDS), done.stderr


def test_importing_the_package_is_light():
    code = "import sys, attnprobe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


PAIRS = """
import sys
from attnprobe.judge.runs import compare_runs
place = {"target": "softmax", "n": 8, "layer": 0, "window": 0, "seed": 0, "source": {}, "status": "ok", "d": 2}
cells = [
    {**place, "key": x, "method": x, "rows": [{"kind": "head", "head": h, "output_spectral": v} for h in range(6)]}
    for x, v in (("a", 1.0), ("b", 2.0))
]
(row,) = compare_runs(cells, cells, ["output_spectral"], pairs=["a=b"]).rows
assert row["test"] == "heads", row
sys.exit("scipy.stats" in sys.modules)
"""


def test_heads_are_tested_without_the_slow_import_of_students_distribution():
    done = subprocess.run([sys.executable, "-c", PAIRS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_submodule_shares_a_name_with_a_public_one():
    names = [module.name for module in pkgutil.walk_packages(attnprobe.__path__, "attnprobe.")]
    apart = ["attnprobe.__main__"]
    for name in names:
        if name not in apart:
            import_module(name)
    top = {name.split(".")[1] for name in names}
    assert not top & set(attnprobe.__all__)
    for name in attnprobe.__all__:
        assert not isinstance(getattr(attnprobe, name), type(sys)), f"{name} is a module"


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = attnprobe.nothing_here


ALONE = """
import os, pkgutil, sys, torch, transformers, attnprobe
from importlib import import_module
from importlib.util import find_spec
rooms = ("measure", "metrics", "run", "inputs")
names = [one.name for one in pkgutil.walk_packages(attnprobe.__path__, "attnprobe.") if one.name.split(".")[1] in rooms]
for name in names:
    for old in [old for old in sys.modules if old.startswith("attnprobe.")]:
        del sys.modules[old]
    import_module(name)
"""


@pytest.mark.slow
def test_every_module_may_be_the_first_that_is_imported():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


FIRST = """
import os, sys, torch, transformers, attnprobe
for name in attnprobe.__all__:
    if os.fork() == 0:  # as in a process of its own, which has torch already
        try:
            getattr(attnprobe, name)
        except Exception as error:
            print(f"{name}: {error}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    assert os.wait()[1] == 0, name
"""


@pytest.mark.slow
def test_every_public_name_may_be_the_first_that_is_imported():
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


PACKAGE = Path(attnprobe.__file__).parent
KITS = ("judge", "show/page", "run")
WORDS = {*EXPERIMENTS, "theorem", "task"} - {"error", "condition", "spectrum", "budget"}  # which are words of the field
OF_A_SOURCE = {"show/page/run.py"}  # a task is a kind of source as well, as a model or a file is


@pytest.mark.parametrize(
    "path", [path for kit in KITS for path in sorted((PACKAGE / kit).rglob("*.py"))], ids=lambda path: path.stem
)
def test_a_kit_names_no_command(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    allowed = {"task"} if path.relative_to(PACKAGE).as_posix() in OF_A_SOURCE else set()
    assert not words & WORDS - allowed
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [name for name in imported for command in EXPERIMENTS if f"measure.{command}" in name]
