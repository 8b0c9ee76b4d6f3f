"""What is in a folder."""

import os
from pathlib import Path


def snapshot(folder):
    """Every file, folder and link below a folder, with what it holds."""
    actual = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_symlink():
            held = os.readlink(path)
        else:
            held = path.read_bytes() if path.is_file() else None
        actual[path.relative_to(folder).as_posix()] = held
    return actual
