"""The pages under docs: every command and every block of code on them does what the page says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import attnprobe
from attnprobe.methods.plugins import GROUP
from attnprobe.methods.registry import TAGS
from attnprobe.methods.user import GIVEN, Claims

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/add-a-method.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="not in a checkout")
HERE = {**os.environ, "PYTHONPATH": str(Path(attnprobe.__file__).parents[1])}


def blocks(page: Path) -> list[tuple[str, str]]:
    """``(language, text)`` of every fenced block; one without a language shows numbers of a measured model."""
    return re.findall(r"```(\w*)\n(.*?)\n```", page.read_text(), re.S)


def commands(text: str) -> list[tuple[list[str], int]]:
    """The words of each command of a block, and the exit code that its comment announces."""
    found = []
    for line in text.splitlines():
        announced = re.search(r"# exit (\d+)$", line)
        found.append((shlex.split(line, comments=True), int(announced[1]) if announced else 0))
    return found


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_page_from_nothing_to_measured_checked_and_plotted(run, no_hub, tmp_path):
    said = ""
    for language, text in blocks(PAGE):
        first = re.match(r"# (\w+\.py)\n", text)
        if language == "python" and first:
            (tmp_path / first[1]).write_text(text + "\n")
        elif language == "python":
            done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=HERE, capture_output=True, text=True)
            assert done.returncode == 0 and done.stdout.count("tensor(") == 2, done.stderr
        elif language == "sh":
            for words, code in commands(text):
                if words[0] == "pytest":
                    done = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, env=HERE, capture_output=True)
                    assert done.returncode == code, done.stdout
                    continue
                assert words[0] == "attnprobe"
                got, said, err = run(*words[1:])
                assert got == code, (words, err)
        elif language == "text":
            for line in text.splitlines():
                assert flat(line) in flat(said), line
        elif language == "toml":
            points = tomllib.loads(text)["project"]["entry-points"]
            assert points == {GROUP: {"longest": "kept:longest"}}
        else:
            assert not language
    assert {path.suffix for path in (tmp_path / "runs/kept/figures").iterdir()} == {".svg", ".png"}


def test_the_method_and_its_wrong_brother_take_under_fifty_lines():
    sources = [text for language, text in blocks(PAGE) if language == "python" and text.startswith("# ")]
    shell = [line for language, text in blocks(PAGE) if language == "sh" for line in text.splitlines()]
    lines = [line for text in sources for line in text.splitlines() if line.strip() and not line.startswith("# ")]
    assert len(sources) == 3 and len(lines) + len(shell) < 50


def test_the_page_names_everything_that_a_function_may_take_and_claim():
    text = PAGE.read_text()
    for name in (*set(GIVEN) - {"streams"}, *vars(Claims()), *set(TAGS) - {"psd_below", "causal_target"}):
        assert f"`{name}`" in text or f"({name}=True" in text, name
    for path in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert (PAGE.parent / path).exists()
