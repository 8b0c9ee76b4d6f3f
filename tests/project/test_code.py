"""The package has no type error, and every file is linted and formatted."""

import subprocess
import sys

import pytest
from paths import ROOT


def answer_of(*command):
    actual = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    return actual.returncode, actual.stdout + actual.stderr


def test_types():
    """Basic mode; the interpreter that runs the tests knows the packages that are imported."""
    pytest.importorskip("basedpyright")
    code, text = answer_of("basedpyright", "--pythonpath", sys.executable)
    assert code == 0 and "0 errors" in text, text[-4000:]


@pytest.mark.parametrize("command", [("check",), ("format", "--check")], ids=" ".join)
def test_lint_and_format(command):
    pytest.importorskip("ruff")
    code, text = answer_of("ruff", *command)
    assert code == 0, text[-4000:]
