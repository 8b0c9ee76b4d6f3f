"""What a command measures, without what it shows: tables of a small run take longer than its numbers."""

from typing import Any

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
