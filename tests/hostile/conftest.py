"""What is promised of every input, however hostile: a code, one line, and no file outside the run's folder."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from attnprobe.cli import main

SECONDS = 60  # that a case may take
CODES = (0, 2, 3, 4)  # 1 is a gate's or a comparison's, 130 is Ctrl-C's, 70 is never right


class Broken(AssertionError):
    """A promise that did not hold."""


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    """Raise where a block takes longer."""

    def stop(number: int, frame: object) -> None:
        raise Broken(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def in_time() -> Iterator[None]:
    """The whole test takes no longer than one case may."""
    with deadline(SECONDS):
        yield


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file below a folder, by its path."""
    actual = {}
    for place, _, files in os.walk(folder):
        for name in files:
            facts = os.lstat(os.path.join(place, name))
            actual[os.path.join(place, name)] = (facts.st_size, facts.st_mtime_ns)
    return actual


def written(args: Sequence[str], home: Path) -> tuple[str, ...]:
    """What a command line may write: the folder of ``--out``, or else ``outputs``, and the file of ``--junit``."""
    named = {"--out": "outputs"}
    for flag, value in zip(args, (*args[1:], ""), strict=True):
        name, equals, after = flag.partition("=")
        if name in ("--out", "--junit"):
            named[name] = after if equals else value
    return tuple(os.path.normpath(os.path.join(home, os.path.expanduser(one))) + os.sep for one in named.values())


@pytest.fixture
def promise(capfd, monkeypatch, tmp_path, no_hub) -> Callable[..., int]:
    """Run the command line in this process and hold it to what is promised.

    The code is one of `CODES`; a refusal is a line of stderr that begins with ``attnprobe:``; no traceback is shown,
    nor one of compiled code; nothing on either stream could move a terminal's cursor; and no file outside the
    folder of ``--out`` was touched. With ``named``, a refusal has that word, such as the name of the file.
    """
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)

    def call(*args: str, named: str = "") -> int:
        before, inside = tree(tmp_path), written(args, home)
        with deadline(SECONDS), pytest.raises(SystemExit) as stop:
            main(list(args))
        code = stop.value.code or 0
        out, err = capfd.readouterr()
        if code not in CODES:
            raise Broken(f"code {code}: {err.strip()[-300:]}")
        if any(word in out + err for word in ("Traceback", "panicked")):
            raise Broken(f"a traceback: {err[-300:]}")
        if code in (2, 3) and not any(line.startswith("attnprobe: ") for line in err.splitlines()):
            raise Broken(f"code {code} without a line that says why: {err!r}")
        last = ([line for line in err.splitlines() if line.startswith("attnprobe: ")] or [""])[-1]
        if code in (2, 3) and named not in last:
            raise Broken(f"code {code} without the name {named}: {last[:200]!r}")
        if any(ord(letter) < 32 and letter not in "\n\t" for letter in out + err):
            raise Broken("a control character reaches the terminal")
        after = tree(tmp_path)
        changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
        changed = [name for name in changed if not f"{name}{os.sep}".startswith(inside)]
        if changed:
            raise Broken(f"touched outside its folder: {sorted(changed)[:3]}")
        return code

    return call


@pytest.fixture
def held() -> Callable[..., None]:
    """Try every case, and name all that broke a promise."""

    def call(attempt: Callable[..., object], cases: Iterable[tuple[object, ...]]) -> None:
        broken = []
        for case in cases:
            try:
                attempt(*case)
            except Broken as error:
                broken.append(f"{' '.join(map(ascii, case))[:300]}: {error}")
        assert not broken, "\n".join(broken)

    return call
