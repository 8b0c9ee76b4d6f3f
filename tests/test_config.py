"""Sweep files: what they may say, and how what they may not is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from attnprobe.cli.sweep import settings_of
from attnprobe.config import read_config
from attnprobe.errors import UsageError


def read(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return read_config(path, settings_of)


def test_values_are_those_that_the_command_line_would_give(tmp_path):
    config = read(tmp_path, """
        methods:
          - nystromformer
          - {name: performer, options: {eps: 1e-4, double_norm: true}}
          - skyformer:sampler=wor
        weights: [initialized, pretrained]
        n: [128, 256]
        d: 16,32
        layer: 0
        windows: 2
        tol: 1e-2
        matrix: false
        figures: [errors, maps]
        weights-seed: 3
        cell-timeout: 2.5
        gates: [{metric: seconds, max: 1}]
        """)  # fmt: skip
    assert config.command == "error" and config.gates == [{"metric": "seconds", "max": 1}]
    assert config.values == {
        "methods": ("nystromformer", "performer:eps=1e-4,double_norm=true", "skyformer:sampler=wor"),
        "weights": "initialized,pretrained", "n": "128,256", "d": "16,32", "layer": "0", "windows": 2, "tol": 1e-2,
        "matrix": False, "plots": ("errors", "maps"), "weights_seed": 3, "cell_timeout": 2.5,
    }  # fmt: skip
    assert config.lines["windows"] == 10


@pytest.mark.parametrize("text, values", [
    ("command: spectrum\nof: [output, 'mss:identity=true']\nplot: true",
     {"of": ("output", "mss:identity=true"), "plot": True}),
    ("command: condition\nmethod: skyformer\niterations: 9", {"methods": ("skyformer",), "iterations": 9}),
    ("plot: true", {"plots": ("errors",)}),
    ("plot: false", {"plots": ()}),
])  # fmt: skip
def test_each_command_has_its_own_options(tmp_path, text, values):
    assert read(tmp_path, text).values == values


@pytest.mark.parametrize("text, line, said", [
    ("", 1, "a mapping"), ("- 1", 1, "a mapping"), ("n: [1", 1, "no YAML"), ("n: 1\nd: {", 2, "no YAML"),
    ("n: 512\n\nwindos: 2", 3, "did you mean 'windows'?"), ("n: 1\nn: 2", 2, "stands at line 1 already"),
    ("method: vmean\nmethods: svd", 2, "says again"),
    ("command: bench", 1, "no command 'bench'"), ("command: [error]", 1, "no command"),
    ("command: spectrum\nmethod: vmean", 2, "unknown key 'method' of command spectrum"),
    ("n: []", 1, "an empty list"), ("n:", 1, "no value"), ("windows: [1, 2]", 1, "takes one value"),
    ("windows: two", 1, "a whole number"), ("windows: true", 1, "a whole number"),
    ("windows: 1.5", 1, "a whole number"),
    ("tol: small", 1, "a number"), ("matrix: 1", 1, "true or false"), ("n: [true]", 1, "text or numbers"),
    ("n: {a: 1}", 1, "text or numbers"), ("model: ''", 1, "text or numbers"),
    ("method: [{nam: vmean}]", 1, "did you mean 'name'?"), ("method: [{options: {a: 1}}]", 1, "a method is NAME"),
    ("method: [{name: vmean, options: {a: [1]}}]", 1, "takes one value"),
    ("gates: {metric: x}", 1, "a list is needed"), ("gates: []", 1, "a list is needed"),
    ("qkv: a\nmodel: b", 2, "exclude each other"), ("force: true\nretry-failed: true", 2, "exclude each other"),
    ("1: 2", 1, "no option name"), ("debug: true", 1, "unknown key"), ("n: 2020-13-01", None, "month"),
    ("? [1]\n: 2", None, ""),
])  # fmt: skip
def test_what_does_not_hold_together_is_named_with_its_line(tmp_path, text, line, said):
    with pytest.raises(UsageError) as error:
        read(tmp_path, text)
    where = str(tmp_path / "c.yaml")
    assert str(error.value).startswith(where if line is None else f"{where}:{line}: ") and said in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for name in ("absent.yaml", "."):
        with pytest.raises(UsageError, match="cannot be read"):
            read_config(tmp_path / name, settings_of)
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        read_config(tmp_path / "b.yaml", settings_of)


def test_a_file_is_refused_before_anything_heavy_is_imported(tmp_path):
    (tmp_path / "c.yaml").write_text("windos: 2")
    code = (
        "import sys; from attnprobe.cli import main\n"
        "heavy = {'torch', 'numpy', 'matplotlib', 'rich'}\n"
        "try: main(['sweep', 'c.yaml'])\n"
        "except SystemExit as stop: print(stop.code, sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == "2 []", done.stderr
