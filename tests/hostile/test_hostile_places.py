"""Whatever a path may lead to, in every option that takes one.

All cases: ``pytest -m slow -n 0 tests/hostile/test_hostile_places.py``.
"""

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from golden import small_runs as golden
from safetensors.torch import save_file

SMALL = ("error", "--method", "vmean", "--n", "8", "--d", "4", "--no-matrix")
EXTRACT = ("extract", "--model", "BERT", "--text", "TEXT", "--n", "8", "--layer", "0", "--out")
#: command lines with PLACE for the path, by what is read or written there
USES = {
    "qkv": (*SMALL, "--qkv", "PLACE", "--out", "run"),
    "text": (*SMALL, "--model", "BERT", "--text", "PLACE", "--out", "run"),
    "tokenizer": (*SMALL, "--model", "BERT", "--text", "TEXT", "--tokenizer", "PLACE", "--out", "run"),
    "model": (*SMALL, "--model", "PLACE", "--text", "TEXT", "--out", "run"),
    "gguf": (*SMALL, "--model", "PLACE.gguf", "--text", "TEXT", "--out", "run"),
    "selection": ("error", "selection:PLACE", "--qkv", "QKV", "--out", "run"),
    "method": ("error", "PLACE.py:f", "--qkv", "QKV", "--d", "4", "--out", "run"),
    "check": ("check", "PLACE.py:f"),
    "sweep": ("sweep", "PLACE", "--out", "run"),
    "report": ("report", "PLACE"),
    "two reports": ("report", "PLACE", "RUN", "--out", "run"),
    "reference": ("report", "RUN", "--reference", "PLACE", "--out", "run"),
    "compare": ("compare", "PLACE", "RUN"),
    "compare with": ("compare", "RUN", "PLACE"),
    "resumed": (*SMALL, "--qkv", "QKV", "--out", "PLACE"),
    "extract": (*EXTRACT, "PLACE"),
    "extract over": (*EXTRACT, "PLACE", "--force"),
    "budgets": ("inject", "--budgets", "PLACE", "--model", "BERT", "--text", "TEXT", "--n", "8", "--out", "run"),
    "junit": (*SMALL, "--qkv", "QKV", "--fail-above", "output_spectral=9", "--out", "run", "--junit", "PLACE"),
}
NAMES = {
    "spaces": "a b",
    "newline": "a\nb",
    "escape": "\x1b[31mred",
    "right to left": "\u202etxt.exe",
    "surrogate": "\udcff",
    "dash": "-x",
    "colon": "a:b",
    "comma": "a,b",
    "percent": "%s%n{}",
    "star": "*",
    "long": "x" * 250,
}


def fifo(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)  # in the current folder: the path may be too long


def folder(path: Path) -> None:
    path.mkdir()


def full_folder(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("mine")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def folders_loop(path: Path) -> None:
    path.mkdir()
    (path / "tables").symlink_to("..")
    (path / "rows.jsonl").symlink_to("rows.jsonl")


def linked(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def holding(data: bytes) -> Callable[[Path], None]:
    return lambda path: bytes_to(path, data)


def bytes_to(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


KINDS = {
    "nothing": lambda path: None,
    "pipe": fifo,
    "socket": listening,
    "folder": folder,
    "folder of another": full_folder,
    "folder of loops": folders_loop,
    "dangling link": linked("nowhere"),
    "loop": loop,
    "link to zeros": linked("/dev/zero"),
    "link to a terminal": linked("/dev/tty"),
    "link to memory": linked("/proc/self/mem"),
    "link to a folder": linked("/proc/self"),
    "empty": holding(b""),
    "zeros": holding(bytes(64)),
    "not UTF-8": holding(b"\xff\xfe\x00"),
    "sparse": sparse,
}


def cases() -> Iterator[tuple[str, str, str]]:
    """Uses x kinds, and uses x names of nothing and of a file."""
    for use in USES:
        for kind in KINDS:
            yield use, kind, "place"
        for name in NAMES:
            for kind in ("nothing", "zeros"):
                yield use, kind, name


@pytest.fixture
def tries(promise, tmp_path, tiny_bert, text_file, monkeypatch):
    monkeypatch.setenv("ATTNPROBE_CACHE_SIZE", "0")
    made = torch.Generator().manual_seed(0)
    save_file({axis: torch.randn(2, 8, 4, generator=made) for axis in "qkv"}, tmp_path / "qkv.safetensors")
    shutil.copytree(golden.RUNS / "error", tmp_path / "golden")
    names = {"BERT": tiny_bert, "TEXT": text_file, "QKV": str(tmp_path / "qkv.safetensors")}
    names["RUN"] = str(tmp_path / "golden")
    home = tmp_path / "home"

    def call(use: str, kind: str, name: str) -> None:
        shutil.rmtree(home)
        home.mkdir()
        os.chdir(home)
        called = NAMES.get(name, name)
        words = [names.get(word, word.replace("PLACE", f"./{called}")) for word in USES[use]]
        (suffix,) = {word[5:].partition(":")[0] for word in USES[use] if word.startswith("PLACE")} or {""}
        with_suffix = f"{called}{suffix}"[:255]
        KINDS[kind](home / with_suffix)
        plain = called if called.isascii() and called.isprintable() and len(called) < 50 else ""
        if use in ("method", "check", "selection") and name in ("comma", "colon"):
            plain = ""  # which part methods there
        promise(*words, *(("--out", "run") if use == "report" and kind != "nothing" else ()), named=plain)

    return call


@pytest.mark.parametrize("share", [slice(None, None, 40), pytest.param(slice(None), marks=pytest.mark.slow)])
def test_every_place(share, tries, held):
    held(tries, list(cases())[share])
