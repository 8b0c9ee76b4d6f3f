"""Kits know no command: what all commands share names none of them."""

import ast
from pathlib import Path

import pytest

import attnprobe
from attnprobe.experiments import EXPERIMENTS

PACKAGE = Path(attnprobe.__file__).parent
KITS = ("tables", "figures", "gates", "report", "run")
WORDS = {*EXPERIMENTS, "theorem", "task"} - {"error", "condition", "spectrum", "budget"}  # which are words of the field
OF_A_SOURCE = {"tables/labels.py", "report/run.py"}  # a task is a kind of source as well, as a model or a file is


@pytest.mark.parametrize(
    "path", [path for kit in KITS for path in sorted((PACKAGE / kit).rglob("*.py"))], ids=lambda path: path.stem
)
def test_a_kit_names_no_command(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    allowed = {"task"} if path.relative_to(PACKAGE).as_posix() in OF_A_SOURCE else set()
    assert not words & WORDS - allowed
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [name for name in imported for command in EXPERIMENTS if f"experiments.{command}" in name]
