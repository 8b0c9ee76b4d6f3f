"""Variables of the environment: each option has one, and one that nothing reads is named on stderr."""

import json
import re
from pathlib import Path

import pytest

import attnprobe
from attnprobe.cli import COMMANDS
from attnprobe.machine import environment

ROOT = Path(attnprobe.__file__).parent


@pytest.mark.parametrize("name", ["ATTNPROBE_METHDO", "ATTNPROBE_NO_MATRIX"])
@pytest.mark.parametrize("command", [("methods",), ("sweep", "--list")], ids="-".join)
def test_a_variable_that_no_command_reads_is_named(run, monkeypatch, command, name):
    monkeypatch.setenv(name, "1")
    code, _, err = run(*command)
    assert code == 0
    assert err == f"attnprobe: {name} is not an option of any command\n"


def test_what_another_command_or_the_program_itself_reads_is_no_mistake(run, monkeypatch):
    for name in (*environment.OWN, "ATTNPROBE_METHOD", "ATTNPROBE_BACKEND", "ATTNPROBE_STRICT"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("ATTNPROBE_LONG", "")  # of `methods`
    assert run("doctor")[2] == ""


def test_the_value_that_a_negation_is_answered_with_is_read(run, qkv, monkeypatch):
    monkeypatch.setenv("ATTNPROBE_MATRIX", "0")
    code, _, err = run("error", "--qkv", qkv, "--d", "8", "--method", "vmean", "--out", "r")
    assert code == 0, err
    config = json.loads(Path("r/manifest.json").read_text())["config"]
    assert config["matrix"] == {"value": False, "origin": "environment"}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_answers_beside_a_misspelt_variable(run, monkeypatch, command):
    monkeypatch.setenv("ATTNPROBE_METHDO", "1")
    code, out, _ = run(command, "--help")
    assert code == 0 and out.startswith("Usage")


def test_every_variable_that_the_program_reads_is_listed():
    quoted = {}
    for file in ROOT.rglob("*.py"):
        quoted |= dict.fromkeys(re.findall(r'"(ATTNPROBE_[A-Z_]+)"', file.read_text()), file.name)
    assert quoted == dict.fromkeys(environment.OWN, "environment.py")
