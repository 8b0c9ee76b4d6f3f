"""The door through which foreign files are read: what is refused, that nothing blocks, and the one line of error."""

import os
import socket
import threading

import pytest
import torch

from attnprobe.errors import AttnprobeError, SourceError, UsageError
from attnprobe.files import naming, open_regular, path_of, read_regular, reading, save_tensors


def within(seconds, function, *arguments):
    """What a call raises or returns, given that it ends in time."""
    actual = []

    def run():
        try:
            actual.append(function(*arguments))
        except BaseException as error:
            actual.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert actual, f"{function.__name__}{arguments} blocks"
    return actual[0]


def make(kind, path):
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as held:
            held.bind(os.path.relpath(path))
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "terminal":
        path.symlink_to("/dev/tty")
    return path


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory", "device", "terminal", "nothing"])
@pytest.mark.parametrize("read", [open_regular, read_regular])
def test_what_is_no_regular_file_is_refused_at_once(kind, read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = within(5, read, make(kind, tmp_path / "x"), 100)
    assert isinstance(error, OSError)
    assert error.strerror and "\n" not in error.strerror


@pytest.mark.parametrize("size", [0, 99, 100, 101])
def test_the_limit_is_exact(size, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"a" * size)
    if size > 100:
        with pytest.raises(OSError, match="larger than 100 bytes"):
            open_regular(path, 100)
        with pytest.raises(OSError, match="larger than 100 bytes"):
            read_regular(path, 100)
    else:
        assert len(read_regular(path, 100)) == size
        with open_regular(path, 100) as file:
            assert len(file.read()) == size


def test_a_file_without_a_size_is_not_read_past_the_limit():
    """Files of /proc are regular, claim no size, and hold much."""
    with pytest.raises(OSError, match="larger than 10 bytes"):
        read_regular("/proc/self/maps", 10)


def test_no_limit_is_none(tmp_path):
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with open_regular(path, None) as file:
        assert file.read(1) == b"\0"


@pytest.mark.parametrize("name", ["~nobody-has-this-name/x", "x" * 400])
def test_a_name_that_cannot_be_a_path_is_refused_wherever_one_is_given(name, monkeypatch):
    from attnprobe.frame.papers import read_reference
    from attnprobe.frame.records.budgets import read_budgets
    from attnprobe.inputs import SourceSpec, resolve
    from attnprobe.inputs.cache import default_cache
    from attnprobe.methods import get
    from attnprobe.methods.user.scaffold import write_method
    from attnprobe.run.sweeps.yaml_file import sweep_file
    from attnprobe.show.page.run import open_run

    def cached():
        monkeypatch.setattr("os.environ", {**os.environ, "ATTNPROBE_CACHE_DIR": name})
        default_cache()

    for attempt in (
        lambda: path_of(name),
        lambda: get(f"selection:{name}"),
        lambda: get(f"{name}.py:method"),
        lambda: read_reference(name),
        lambda: read_budgets(name),
        lambda: write_method("my_method", name),
        lambda: open_run(name),
        lambda: sweep_file(name),
        lambda: resolve(SourceSpec(qkv=name)),
        cached,
    ):
        with pytest.raises(AttnprobeError, match="^'.*' is not a valid path: [A-Z]") as caught:
            attempt()
        assert len(str(caught.value)) < 200


class Panic(BaseException):
    """As Rust's panics arrive in Python."""


@pytest.mark.parametrize(
    "raised", [OSError(2, "No such file"), ValueError("a\nb"), RecursionError(), OverflowError("big"), Panic("regex")]
)
def test_whatever_reading_raises_is_one_line_with_the_name(raised):
    with pytest.raises(SourceError) as caught, reading("a/b.json", SourceError):
        raise raised
    assert str(caught.value).startswith("a/b.json: cannot be read: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("raised", [UsageError("x: wrong"), KeyboardInterrupt(), SystemExit(3)])
def test_errors_of_the_package_and_stops_pass(raised):
    with pytest.raises(type(raised)) as caught, reading("a.json", SourceError):
        raise raised
    assert caught.value is raised


def test_tensors_that_cannot_be_written_are_one_line_with_the_path(tmp_path):
    with pytest.raises(UsageError, match=f"^{tmp_path}: cannot write: .*directory"), naming(tmp_path):
        save_tensors(tmp_path, {"x": torch.ones(1)}, {})
