"""What the README says is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnprobe.cli import COMMANDS
from attnprobe.cli.methods import readme_table
from attnprobe.metrics import MATRIX_METRICS, OUTPUT_METRICS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else ""
pytestmark = pytest.mark.skipif(not README, reason="not in a checkout")


def between(name: str) -> str:
    return README.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0].strip()


def test_the_method_table_is_the_registrys():
    assert between("methods") == readme_table()


def test_ci_runs_the_readmes_own_test_command():
    shell = re.findall(r"```sh\n(.*?)\n```", README, re.S)
    command = next(line for line in shell if line.endswith("&& pytest"))
    assert (ROOT / ".ci/run").read_text().strip().splitlines()[-1] == command


def test_the_readme_names_every_command_metric_and_picture_that_exists():
    for name in COMMANDS:
        assert f"attnprobe {name}" in README
    for name in (*OUTPUT_METRICS, *MATRIX_METRICS):
        assert f"`{name}`" in README
    for path in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / path).exists()


def test_every_pinned_version_is_exact():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9_.-]+==[\w.]+", line), line


def test_the_project_names_no_machine():
    for path in [*ROOT.glob("*.md"), *ROOT.glob("attnprobe/**/*.py"), *ROOT.glob("tests/**/*.py")]:
        for word in ("/ro" + "ot/", "/wo" + "rk/", "/t" + "mp/w"):
            assert word not in path.read_text(), f"{path} names {word}"
