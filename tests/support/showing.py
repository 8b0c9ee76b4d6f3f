"""The names of the files of figures."""

from attnprobe.show.styles import FILES

EACH = len(FILES)  # files of a figure


def files_of(*stems: str) -> list[str]:
    """The names of the files of some figures."""
    return [f"{stem}{kind}" for stem in stems for kind in FILES]
