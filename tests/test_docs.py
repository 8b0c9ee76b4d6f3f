"""The pages under docs: every command and every block of code on them does what the page says."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from sources_helpers import SHARED, needs_shared

import attnprobe
from attnprobe.cli.methods import methods_page
from attnprobe.experiments import EXPERIMENTS, experiment
from attnprobe.methods.registry import KERNELS, TAGS
from attnprobe.methods.user.claims import GIVEN, Claims
from attnprobe.methods.user.plugins import GROUP
from attnprobe.metrics import INPUT_STATISTICS, KERNEL_METRICS
from attnprobe.sources.packaged import PUBLISHED
from attnprobe.sources.text import EMBEDDED_SHA256

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "start/tutorial.md"
PAGE, KERNELS_PAGE, DATA_PAGE = (DOCS / f"guide/{name}.md" for name in ("add-a-method", "kernels", "data"))
METRICS_PAGE, METHODS_PAGE = (DOCS / f"reference/{name}.md" for name in ("metrics", "methods"))
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="not in a checkout")
HERE = {**os.environ, "PYTHONPATH": str(Path(attnprobe.__file__).parents[1])}


def blocks(page: Path) -> list[tuple[str, str]]:
    """``(language, text)`` of every fenced block; one without a language shows numbers of a measured model."""
    return re.findall(r"```(\w*)\n(.*?)\n```", page.read_text(), re.S)


def commands(text: str) -> list[tuple[list[str], int]]:
    """The words of each command of a block, and the exit code that its comment announces."""
    found = []
    for line in text.splitlines():
        announced = re.search(r"# exit (\d+)$", line)
        found.append((shlex.split(line, comments=True), int(announced[1]) if announced else 0))
    return found


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_page_from_nothing_to_measured_checked_and_plotted(run, no_hub, tmp_path):
    said = ""
    for language, text in blocks(PAGE):
        first = re.match(r"# (\w+\.py)\n", text)
        if language == "python" and first:
            (tmp_path / first[1]).write_text(text + "\n")
        elif language == "python":
            done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=HERE, capture_output=True, text=True)
            assert done.returncode == 0 and done.stdout.count("tensor(") == 2, done.stderr
        elif language == "sh":
            for words, code in commands(text):
                if words[0] == "pytest":
                    done = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, env=HERE, capture_output=True)
                    assert done.returncode == code, done.stdout
                    continue
                assert words[0] == "attnprobe"
                got, said, err = run(*words[1:])
                assert got == code, (words, err)
        elif language == "text":
            for line in text.splitlines():
                assert flat(line) in flat(said), line
        elif language == "toml":
            points = tomllib.loads(text)["project"]["entry-points"]
            assert points == {GROUP: {"longest": "kept:longest"}}
        else:
            assert not language
    assert {path.suffix for path in (tmp_path / "runs/kept/figures").iterdir()} == {".svg", ".png"}


def test_the_method_and_its_wrong_brother_take_under_fifty_lines():
    sources = [text for language, text in blocks(PAGE) if language == "python" and text.startswith("# ")]
    shell = [line for language, text in blocks(PAGE) if language == "sh" for line in text.splitlines()]
    lines = [line for text in sources for line in text.splitlines() if line.strip() and not line.startswith("# ")]
    assert len(sources) == 3 and len(lines) + len(shell) < 50


def test_the_page_names_everything_that_a_function_may_take_and_claim():
    text = PAGE.read_text()
    for name in (*set(GIVEN) - {"streams"}, *vars(Claims()), *set(TAGS) - {"psd_below", "causal_target"}):
        assert f"`{name}`" in text or f"({name}=True" in text, name
    for path in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert (PAGE.parent / path).exists()


def follow(page: Path, run, folder: Path) -> None:
    """Write every file of a page into ``folder``, and run its other code and its commands, one after the other."""
    for language, text in blocks(page):
        first = re.match(r"# (\w+\.(py|yaml))\n", text)
        if first:
            (folder / first[1]).write_text(text + "\n")
        elif language == "python":
            done = subprocess.run([sys.executable, "-c", text], cwd=folder, env=HERE, capture_output=True, text=True)
            assert done.returncode == 0 and "tensor(" in done.stdout, done.stderr
        elif language == "sh":
            for words, code in commands(text):
                if words[0] != "attnprobe":
                    assert text in (ROOT / "README.md").read_text()  # installs
                    continue
                got, _, err = run(*words[1:])
                assert got == code, (words, err)
        else:
            assert language in ("", "text")


@pytest.fixture(params=["small", pytest.param("whole", marks=pytest.mark.slow)])
def size(request, monkeypatch):
    """Whether a page's commands run as they stand, or on fewer tokens and heads where they name none."""
    if request.param == "small":
        monkeypatch.setenv("ATTNPROBE_N", "256")
        monkeypatch.setenv("ATTNPROBE_HEAD", "4-5")


def test_the_tutorial_from_install_to_a_figure_to_a_gate(run, no_hub, tmp_path, size):
    follow(TUTORIAL, run, tmp_path)
    assert {path.suffix for path in (tmp_path / "runs/first/figures").iterdir()} == {".svg", ".png"}
    assert (tmp_path / "gates.xml").exists()


def test_the_page_of_kernels_judges_them(run, no_hub, tmp_path, size):
    follow(KERNELS_PAGE, run, tmp_path)
    text = KERNELS_PAGE.read_text()
    for name in (*KERNELS, *KERNEL_METRICS):
        assert f"`{name}`" in text, name
    said = text.split("## The shipped kernels")[1].split("<!-- table -->")[0]
    [whole, table] = re.findall(r"^    (\S.*)$", said, re.M)
    small = {
        "--model minilm --text wikitext-2:tokenised ": "",
        "--layer all": "--layer 0",
        "--n 512": "--n 48",
        "torch:flex,": "torch:flex:compiled=false,",
        "torch:flex:dtype=bfloat16": "torch:flex:compiled=false,dtype=bfloat16",
    }
    for before, after in small.items():
        assert before in whole
        whole = whole.replace(before, after)
    code, _, err = run(*shlex.split(whole)[1:])
    assert code == 0, err
    words = shlex.split(table)
    done = subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, env=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = text.split("<!-- table -->")[1].split("<!-- /table -->")[0].strip().splitlines()[2:]
    plain = lambda line: line.split("|")[1:3]
    made = [re.sub(":compiled=False(,)?", lambda end: ":" if end[1] else "", line) for line in done.stdout.splitlines()]
    assert sorted(map(plain, made)) == sorted(map(plain, shown)) and len(shown) == 18


def test_the_methods_page_is_the_registrys():
    assert METHODS_PAGE.read_text() == methods_page() + "\n"


def test_the_metrics_page_has_every_metric_of_every_command():
    text = METRICS_PAGE.read_text()
    gated = [experiment(name).gated() for name in EXPERIMENTS if experiment(name).gated is not None]
    wanted = {name for one in gated for name in one.metrics} | set(INPUT_STATISTICS)
    for name in sorted(wanted):
        assert f"`{name}`" in text, name


def test_the_data_page_has_the_hashes_that_the_code_holds_files_to():
    text = DATA_PAGE.read_text()
    assert f"`{EMBEDDED_SHA256}`" in text and f"`{PUBLISHED['model.safetensors']}`" in text


@needs_shared
def test_the_data_pages_recipe_makes_the_files_of_these_hashes():
    """The data set's rows are the file's lines with their line feeds, blank ones empty."""
    text, file = DATA_PAGE.read_text(), (SHARED / "wikitext-2-test.txt").read_bytes()
    rows = [line if line.strip() else "" for line in file.decode().split("\n")[:-1]]
    rows = [f"{row}\n" if row else "" for row in rows]
    joined = re.search(r"^data = (.*)$", text, re.M)[1]
    assert eval(joined, {"rows": rows}) == file and len(rows) == 4358
    for path in (SHARED / "wikitext-2-test.txt", SHARED / "bert-base-cased-vocab.txt"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() in text


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_links_and_pictures_of_every_page_exist(page):
    for path in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / path).exists(), path
