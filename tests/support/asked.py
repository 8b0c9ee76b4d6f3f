"""What a command measures, without what it shows: tables of a small run take longer than its numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest import MonkeyPatch

from attnprobe.cli.factory import measuring_command
from attnprobe.cli.options import request_and_output
from attnprobe.measure import experiment


def request_of(command: str, *words: Any) -> Any:
    """The request of a command line. A word that begins with ``--`` and has blanks is several words."""
    line = [part for word in map(str, words) for part in (word.split() if word.startswith("--") else [word])]
    one = experiment(command)
    with measuring_command(one).make_context(command, line):
        return request_and_output(one)[0]


def measured(command: str, *words: Any) -> list[dict[str, Any]]:
    """The records of a command line, as its run's folder holds them."""
    return experiment(command).measure(request_of(command, *words)).outcome.records


def measuring(folder: Path, tmp_path: Path, monkeypatch: MonkeyPatch, *shared: Any) -> Callable[..., list[Any]]:
    """A function that measures command lines in a folder, each with the ``shared`` words.

    It gives the records of what was requested: without those of references.
    """
    monkeypatch.chdir(folder)

    def records(*words: Any) -> list[dict[str, Any]]:
        found = measured(*words, *shared, "--out", tmp_path / f"run{len(list(tmp_path.iterdir()))}")
        return [record for record in found if record["requested"]]

    return records
