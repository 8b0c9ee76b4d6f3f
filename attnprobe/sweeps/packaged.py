"""The packaged sweeps by name: `configs/` in a clone, and inside the package in a wheel."""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError, nearest
from ..files import path_of

IN_WHEEL, IN_CLONE = Path(__file__).with_name("configs"), Path(__file__).parents[2] / "configs"


def packaged_sweeps() -> dict[str, str]:
    """The names of the packaged sweeps, with the first line of each file, its description."""
    first = {path.stem: path.read_text(encoding="utf-8").partition("\n")[0] for path in _folder().glob("*.yaml")}
    return {name: first[name].removeprefix("# ") for name in sorted(first)}


def sweep_file(name: str) -> Path:
    """The file that a sweep names: a path, else the packaged sweep of this name.

    Raises:
        UsageError: there is neither; the message offers the nearest name.
    """
    path = path_of(name)
    if path.exists() and not path.is_dir():
        return path
    if name in packaged_sweeps():
        return _folder() / f"{name}.yaml"
    kind = "is a directory" if path.is_dir() else "no such file"
    raise UsageError(f"{name}: {kind}, and no packaged sweep{nearest(path.stem, packaged_sweeps())}")


def _folder() -> Path:
    return IN_WHEEL if IN_WHEEL.is_dir() else IN_CLONE
