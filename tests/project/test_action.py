"""The action for CI: its own script, run as a runner would run it."""

import os
import re
import subprocess
import sys

import pytest
import torch
import yaml
from paths import ROOT
from safetensors.torch import save_file
from sources_helpers import needs_minilm

ACTION, PAGE = ROOT / "action.yml", ROOT / "docs/guide/ci.md"
pytestmark = pytest.mark.skipif(not ACTION.exists(), reason="not in a checkout")
SMALL = "error --method nystromformer --n 64 --d 8 --head 0 --no-matrix"


def step(name: str) -> dict:
    return next(one for one in yaml.safe_load(ACTION.read_text())["runs"]["steps"] if one.get("name") == name)


@pytest.fixture
def measure(tmp_path):
    """Runs the script of the step `measure` with these inputs; gives its exit code and what it left."""
    (tmp_path / "attnprobe").write_text(f'#!/bin/sh\nexec {sys.executable} -m attnprobe "$@"\n')
    (tmp_path / "attnprobe").chmod(0o755)

    def call(**inputs: str) -> subprocess.CompletedProcess[str]:
        given = {name: facts["default"] for name, facts in yaml.safe_load(ACTION.read_text())["inputs"].items()}
        given |= inputs
        env = {
            **os.environ,
            **{name: filled(value, given) for name, value in step("measure")["env"].items()},
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
            "PYTHONPATH": str(ROOT),
        }
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step("measure")["run"]]
        return subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)

    return call


def filled(value: str, given: dict[str, str]) -> str:
    return re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda actual: given[actual[1]], value)


@needs_minilm
@pytest.mark.slow
def test_a_command_with_a_gate_that_holds_and_one_that_fails(measure, tmp_path):
    done = measure(command=f"{SMALL} --fail-above output_spectral_relative.median=9", out="good")
    assert done.returncode == 0, done.stderr
    manifest = (tmp_path / "good/manifest.json").read_text()
    assert '"minilm"' in manifest and '"embedded"' in manifest and (tmp_path / "attnprobe.xml").exists()
    assert "nystromformer" in (tmp_path / "summary.md").read_text()
    save_file(dict(zip("qkv", torch.randn(3, 2, 64, 8), strict=True)), tmp_path / "own.safetensors")
    own = f"{SMALL} --qkv own.safetensors --fail-above output_spectral_relative.median=1e-9"
    assert measure(command=own, out="bad", model="", text="").returncode == 1


@needs_minilm
@pytest.mark.slow
def test_a_file_with_gates_is_pinned_to_the_model_and_the_text(measure, tmp_path):
    (tmp_path / "gate.yaml").write_text(
        "n: 64\nd: 8\nhead: 0\nmatrix: false\nmethod: nystromformer\n"
        "gates:\n  - {metric: output_spectral_relative, stat: median, max: 9}\n"
    )
    done = measure(config="gate.yaml")
    assert done.returncode == 0, done.stderr
    assert '"minilm"' in (tmp_path / "attnprobe-run/manifest.json").read_text()


def test_neither_and_both_are_refused(measure):
    assert measure().returncode == measure(config="gate.yaml", command=SMALL).returncode == 2


def test_the_page_uses_inputs_that_the_action_has():
    inputs = yaml.safe_load(ACTION.read_text())["inputs"]
    used = re.findall(r"uses: attnprobe/attnprobe@\S+\n\s+with:\n((?:\s+\w+: .*\n)+)", PAGE.read_text())
    assert used
    for block in used:
        assert yaml.safe_load(block).keys() <= inputs.keys()
    for name in inputs:
        assert f"| `{name}` |" in PAGE.read_text(), name
