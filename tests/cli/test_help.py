"""The help of measuring commands: short by default, whole on request; a first look; lines that are said once."""

import pytest

from attnprobe.cli import cli
from attnprobe.cli.factory import options_in, told_before
from attnprobe.experiments import EXPERIMENTS, experiment


@pytest.mark.parametrize("command", EXPERIMENTS)
def test_the_help_is_short_and_names_every_option_which_help_all_explains(command, run):
    short, whole = (run(command, flag)[1] for flag in ("--help", "--help-all"))
    assert len(short.splitlines()) <= 100 < len(whole.splitlines())
    for option in options_in(experiment(command)):
        flag = f"--{option.long}"
        assert flag in short.split() + short.replace("[=", " ").split() and flag in whole
        assert " ".join(option.help.split()[:4]) in " ".join(whole.split())
    assert "The same as --method METHOD." in short
    for line in experiment(command).examples:
        assert f"  attnprobe {command} {line}\n" in short  # in one line, to be copied


@pytest.mark.parametrize("command", [name for name in EXPERIMENTS if experiment(name).quick])
def test_quick_gives_values_that_were_not_given(command, run):
    context = cli.get_command(None, command).make_context(command, ["--quick", "--seed", "7"])
    quick = experiment(command).quick
    for name, text in quick.items():
        value = context.params[name]
        assert (value[0] if isinstance(value, tuple) else str(value)) == text
        assert f"--{name}" in run(command, "--help-all")[1] or name in ("tasks", "methods")
    assert context.params["seed"] == 7
    own = cli.get_command(None, command).make_context(command, ["--quick", "--d", "4"])
    assert own.params["d"] == "4"


def test_what_is_out_of_reach_is_said_once_on_a_machine(monkeypatch, tmp_path):
    line = "using the packaged MiniLM weights: bert-base-cased is out of reach"
    monkeypatch.setenv("ATTNPROBE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("ATTNPROBE_CACHE_SIZE", "0")  # no cache, no memory
    assert [told_before(line), told_before(line)] == [False, False]
    monkeypatch.delenv("ATTNPROBE_CACHE_SIZE")
    assert [told_before(line), told_before(line), told_before(f"x{line}")] == [False, True, False]
    assert [told_before("another line"), told_before("another line")] == [False, False]


def test_the_question_of_another_command_runs_that_command(run):
    """``budget --keys`` is ``inject --phase decode --plan``, which answers with its own messages."""
    budget = cli.get_command(None, "budget")
    context = budget.make_context("budget", ["tova", "--keys", "0.1", "--by=mass", "--steps", "9", "--n", "64"])
    asked = ("phase", "d", "plan", "steps", "n", "methods")
    assert context.command.name == "inject"
    assert [context.params[name] for name in asked] == ["decode", "0.1", "mass", 9, "64", ("tova",)]
    assert budget.make_context("budget", ["--keys", "9"]).params["plan"] == "residual"
    code, _, err = run("budget", "--by", "mass")
    assert code == 2 and "--by needs --keys" in err
    code, _, err = run("budget", "--keys", "0.1", "--by", "mess")
    assert code == 2 and "unknown plan 'mess'; did you mean 'mass'" in err
    code, _, err = run("budget", "--keys", "0.1", "--qkv", "heads.safetensors")
    assert code == 2 and "--keys runs attnprobe inject --phase decode, which has no option --qkv" in err
