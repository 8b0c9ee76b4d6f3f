"""The view of a command's records, as `report` makes it of a folder."""

from pathlib import Path

from attnprobe.experiments import experiment
from attnprobe.experiments.base import Recorded
from attnprobe.figures.files import FILES
from attnprobe.tables.console import Header
from attnprobe.tables.view import View


def view_of(command, records, header=None, folder="nowhere") -> View:
    """What records of a command show, beneath a header."""
    return experiment(command).view(Recorded(records, header or Header(), Path(folder)))


EACH = len(FILES)  # files of a figure


def files_of(*stems: str) -> list[str]:
    """The names of the files of some figures."""
    return [f"{stem}{kind}" for stem in stems for kind in FILES]
