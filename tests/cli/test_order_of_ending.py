"""How the command line ends: the answer last, and whoever reads it changes neither files nor the exit code."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET

import click
import pytest
import torch
from safetensors.torch import save_file

from attnprobe import cli as command_line
from attnprobe.cli import main
from attnprobe.cli.streams import answer, answers_last, echo, note

FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a small file of Q, K and V."""
    place = tmp_path_factory.mktemp("order")
    q, k, v = torch.randn(3, 2, 16, 4, generator=torch.Generator().manual_seed(0))
    save_file({"q": q.contiguous(), "k": k.contiguous(), "v": v.contiguous()}, place / "q.safetensors")
    return place


def ran(folder, command, unbuffered=""):
    """What a shell says of ``attnprobe COMMAND``, whose exit code it prints last."""
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "HF_HUB_OFFLINE": "1"}
    program = f"{sys.executable} -m attnprobe"
    done = subprocess.run(
        ["sh", "-c", command.replace("attnprobe", program, 1)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    return done.stdout, done.stderr


ERROR = "error --qkv q.safetensors --method svd --d 2"


@pytest.mark.slow  # the same in this process is below
@pytest.mark.parametrize(
    ("limit", "expected", "unbuffered"),
    [pytest.param("1e-9", 1, "", id="gate fails"), pytest.param("1e9", 0, "1", id="gate holds")],
)
def test_a_reader_that_leaves_at_once_changes_nothing(folder, limit, expected, unbuffered):
    gate = f"--fail-above output_spectral={limit} --junit j{expected}.xml"
    command = f"attnprobe {ERROR} --plot errors {gate} --out r{expected}"
    _, err = ran(folder, f"({command}; echo $? >&2) | true", unbuffered)
    assert err.splitlines()[-1] == str(expected) and "rror:" not in err
    assert {"rows.jsonl", "tables", "figures"} <= set(os.listdir(folder / f"r{expected}"))
    assert (folder / f"r{expected}/tables/error.md").exists()
    assert ET.parse(folder / f"j{expected}.xml").getroot().get("failures") == str(expected)


UNWRITTEN = "attnprobe: stdout: the output could not be written: No space left on device"


@FULL
@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "expected"), [pytest.param("1e-9", 1, id="gate fails"), pytest.param("1e9", 4, id="gate holds")]
)
def test_a_full_disk_beneath_stdout_is_one_line(folder, limit, expected):
    gate = f"--fail-above output_spectral={limit}"
    out, err = ran(folder, f"attnprobe {ERROR} {gate} --out f{expected} > /dev/full; echo $?")
    assert out.split() == [str(expected)]
    assert err.splitlines()[-1] == UNWRITTEN
    assert (folder / f"f{expected}/tables/error.md").exists()


@pytest.mark.parametrize(
    ("onto", "limit", "expected"),
    [
        pytest.param(None, "1e-9", 1, id="nobody reads, gate fails"),
        pytest.param("/dev/full", "1e9", 4, id="full, gate holds", marks=FULL),
    ],
)
def test_an_answer_that_cannot_be_written_costs_no_file(onto, limit, expected, folder, capsys, monkeypatch):
    """On a stream of this process; how a process ends with help as its answer is below."""
    monkeypatch.chdir(folder)
    read, write = os.pipe()
    os.close(read)
    junit, out = f"now{expected}.xml", f"now{expected}"
    with open(onto or write, "w") as stream, pytest.raises(SystemExit) as stop:
        monkeypatch.setattr(sys, "stdout", stream)
        gate = ["--fail-above", f"output_spectral={limit}", "--junit", junit]
        main([*ERROR.split(), "--plot", "errors", *gate, "--out", out])
    if onto:
        os.close(write)
    err = capsys.readouterr().err
    assert stop.value.code == expected and "Traceback" not in err and (UNWRITTEN in err.splitlines()) == bool(onto)
    assert {"rows.jsonl", "tables", "figures"} <= set(os.listdir(folder / out))
    assert (folder / out / "tables/error.md").exists()
    assert ET.parse(folder / junit).getroot().get("failures") == ("0" if onto else "1")


@FULL
@pytest.mark.parametrize(
    ("args", "unbuffered"),
    [
        ("error --help", ""),
        ("", "1"),
        pytest.param("error --help", "1", marks=pytest.mark.slow),
        pytest.param("", "", marks=pytest.mark.slow),
    ],
)
def test_what_click_prints_meets_the_same_end(folder, args, unbuffered):
    out, err = ran(folder, f"attnprobe {args} > /dev/full; echo $?", unbuffered)
    assert out.split() == ["4" if args else "2"] and err.splitlines() == [UNWRITTEN]
    out, err = ran(folder, f"(sleep 0.3; attnprobe {args}; echo $? >&2) | true", unbuffered)
    assert err.split() == ["0" if args else "2"]


def test_a_reader_that_takes_a_line_gets_it(folder):
    out, err = ran(folder, "attnprobe --help | head -n 1")
    assert out == "Usage: attnprobe [OPTIONS] COMMAND [ARGS]...\n" and not err


def test_stderr_may_be_gone_too(folder):
    out, err = ran(folder, "attnprobe nosuch 2>/dev/full; echo $?")
    assert out.split() == ["2"] and not err


def test_without_arguments_the_help_is_the_answer(folder, capsys):
    out, err = ran(folder, "attnprobe; echo $?")
    assert out.splitlines()[-1] == "2" and not err
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0 and capsys.readouterr().out == out.removesuffix("2\n")


# --- the functions


def test_answers_come_last_in_their_order(capsys):
    with answers_last():
        answer("first")
        note("a note\nin two lines\x1b")
        answer("second\x1b")
        assert capsys.readouterr() == ("", "attnprobe: a note in two lines\\x1b\n")
    assert capsys.readouterr().out == "first\nsecond\\x1b\n"
    answer("alone")
    assert capsys.readouterr().out == "alone\n"
    with pytest.raises(ZeroDivisionError), answers_last():
        answer("all the same")
        raise ZeroDivisionError
    assert capsys.readouterr().out == "all the same\n"
    echo("\x1b[31mred\udc80", err=True)
    assert capsys.readouterr().err == "\\x1b[31mred\\udc80\n"


class Mute(BaseException):
    def __str__(self) -> str:
        raise ValueError("no words")


RAISED = {
    "exit": (SystemExit(1), "RuntimeError: SystemExit: 1"),
    "pipe": (BrokenPipeError(32, "Broken pipe"), "RuntimeError: BrokenPipeError: [Errno 32] Broken pipe"),
    "generator": (GeneratorExit(), "GeneratorExit"),
    "mute": (Mute(), "Mute"),
    "steering": (ValueError("\x1b]0;x\x07\udc80"), r"ValueError: \x1b]0;x\x07\udc80"),
}


@pytest.mark.parametrize(("error", "says"), RAISED.values(), ids=RAISED)
def test_exit_1_is_a_gate_and_nothing_else(error, says, capsys, monkeypatch):
    @click.command("methods")
    def broken() -> None:
        answer("what there is")
        raise error

    monkeypatch.setattr(command_line.LazyGroup, "get_command", lambda *_: broken)
    with pytest.raises(SystemExit) as stop:
        main(["methods"])
    out, err = capsys.readouterr()
    assert stop.value.code == 70 and out == "what there is\n"
    assert err == f"attnprobe: internal error, {says}; run again with --debug to see where\n"


def test_a_file_of_gates_that_cannot_be_written_is_told_before_anything_is_measured(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "file").write_text("")
    for limit in ("1e-9", "1e9"):
        gate = ["--fail-above", f"output_spectral={limit}", "--junit", "file/j.xml"]
        with pytest.raises(SystemExit) as stop:
            main([*ERROR.split(), *gate, "--out", "refused"])
        assert stop.value.code == 2 and not (folder / "refused").exists()
        assert "file" in capsys.readouterr().err.splitlines()[-1]
