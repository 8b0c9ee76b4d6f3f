"""Every option of every command that measures, with values that nobody means."""

import zlib
from collections.abc import Iterator

import click
import pytest
import torch
from hostile_cases import VALUES
from safetensors.torch import save_file

from attnprobe.cli import cli

SMALL = {
    "error": "--method vmean --n 16 --d 4",
    "spectrum": "--of vmean --n 16 --d 4",
    "condition": "--method nystromformer --n 16 --d 4",
    "theory": "--theorem eckart-young --n 16 --d 4 --repeats 2",
    "budget": "--method linformer --n 16 --d-max 8 --repeats 2",
    "bench": "--method vmean --n 16 --d 4 --rounds 2 --no-memory",
}
LAST = {"help", "version", "debug"}  # which shows a traceback


def options(command: str) -> Iterator[click.Option]:
    actual = cli.get_command(click.Context(cli), command)
    assert actual is not None
    yield from (each for each in actual.params if isinstance(each, click.Option) and each.name not in LAST)


def cases(command: str, qkv: str) -> Iterator[tuple[str, ...]]:
    """The smallest run of a command, with one option at one value of `VALUES`."""
    for option in options(command):
        flag = option.opts[0]
        small = SMALL[command].split()
        if flag in small:  # in its place, not beside it
            del small[small.index(flag) : small.index(flag) + 2]
        run = [
            command,
            *small,
            *(() if flag == "--qkv" or command == "bench" else ("--qkv", qkv)),
            *(("--out", "run") if flag != "--out" else ()),
        ]
        for value in [None] if option.is_flag else VALUES:
            yield (*run, flag) if value is None else (*run, f"{flag}={value}")


@pytest.fixture
def file(tmp_path):
    made = torch.Generator().manual_seed(0)
    path = tmp_path / "qkv.safetensors"
    save_file({axis: torch.randn(2, 16, 4, generator=made) for axis in "qkv"}, path)
    return str(path)


def a_share(runs: Iterator[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """One case in fifty, by a hash of it."""
    return [run for run in runs if zlib.crc32(repr(run[-1]).encode()) % 50 == 0]


@pytest.mark.parametrize("share", [a_share, pytest.param(list, marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", SMALL)
def test_every_value_of_every_option(command, share, file, promise, held):
    held(promise, share(cases(command, file)))


def test_there_are_hundreds_of_cases():
    assert sum(len(list(cases(command, "x"))) for command in SMALL) > 2000
