"""The package has no type error, every file is linted and formatted, and values are frozen."""

import ast
import subprocess
import sys

import pytest
from paths import ROOT

CHANGING = {  # dataclasses that are no values: what they hold changes while they live
    "attnprobe/measure/inject/decoding.py": ["ExactSteps", "DecodingBench"],
    "attnprobe/measure/inject/bench.py": ["Bench"],
    "attnprobe/measure/inject/cache.py": ["CacheReaders"],
    "attnprobe/inputs/hooks/interface.py": ["Masks"],
    "attnprobe/inputs/hooks/rope.py": ["_Probe"],
    "attnprobe/show/marks.py": ["Legend"],
    "attnprobe/measure/stability/training.py": ["Training"],
    "attnprobe/inputs/hooks/capture.py": ["_Recorder"],
    "attnprobe/inject/injection.py": ["_Injection"],
    "attnprobe/rounding/arithmetic.py": ["Arithmetic"],
    "attnprobe/rounding/choices.py": ["Choices"],
    "attnprobe/rounding/following.py": ["Report"],
    "attnprobe/rounding/tape.py": ["_Saved", "_Step", "Squares"],
    "attnprobe/run/folder.py": ["Outcome", "RunFolder"],
    "attnprobe/run/limits.py": ["Attempt"],
    "attnprobe/run/loop.py": ["Session"],
    "attnprobe/run/where/backends.py": ["Member"],
    "attnprobe/run/where/pool.py": ["_Process"],
    "attnprobe/run/where/ray_actors.py": ["_Actor"],
    "attnprobe/inputs/choose.py": ["_Substitutions"],
}


def answer_of(*command):
    actual = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    return actual.returncode, actual.stdout + actual.stderr


@pytest.mark.slow
def test_types():
    """Basic mode; the interpreter that runs the tests knows the packages that are imported.

    Half a minute: each commit runs it, and `just types`.
    """
    pytest.importorskip("basedpyright")
    code, text = answer_of("basedpyright", "--pythonpath", sys.executable)
    assert code == 0 and "0 errors" in text, text[-4000:]


@pytest.mark.parametrize("command", [("check",), ("format", "--check")], ids=" ".join)
def test_lint_and_format(command):
    pytest.importorskip("ruff")
    code, text = answer_of("ruff", *command)
    assert code == 0, text[-4000:]


def test_a_dataclass_is_frozen_unless_it_is_named_here():
    changing = {path.relative_to(ROOT).as_posix(): _changing(path) for path in sorted(ROOT.glob("attnprobe/**/*.py"))}
    assert {path: names for path, names in changing.items() if names} == CHANGING


def test_options_are_named_where_they_are_given():
    """Their order is that of the help, and may change."""
    files = [*ROOT.glob("attnprobe/measure/*/__init__.py"), *ROOT.glob("attnprobe/run/topics/*.py")]
    marks = [mark for path in files for _, mark in _dataclasses(path)]
    assert len(marks) > 30 and all("kw_only=True" in mark for mark in marks)


def _changing(path):
    return [name for name, mark in _dataclasses(path) if "frozen=True" not in mark]


def _dataclasses(path):
    """The names of dataclasses in a file, with their decorators."""
    text = path.read_text(encoding="utf-8")
    nodes = ast.walk(ast.parse(text)) if "@dataclass" in text else ()
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    marks = [(node.name, ast.unparse(mark)) for node in classes for mark in node.decorator_list]
    return [(name, mark) for name, mark in marks if mark.startswith("dataclass")]
