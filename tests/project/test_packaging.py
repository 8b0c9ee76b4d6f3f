"""What a wheel and an sdist hold: the package, its data, and a description that an index page can show."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from paths import ROOT

import attnprobe
from attnprobe.errors import UsageError
from attnprobe.inputs.text import EMBEDDED_FILE
from attnprobe.run.sweeps.yaml_file import IN_WHEEL, packaged_sweeps, sweep_file

URL = "https://github.com/attnprobe/attnprobe"
SAFE: dict = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4 has filters
in_checkout = pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="not in a checkout")
STRAY = ("notes.txt", "secret.env", "outputs/run/rows.jsonl", "node_modules/x.js", "shared/data.txt")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist of a copy of this checkout with stray files in it, and the wheel that is built from the sdist alone."""
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install -e '.[test]'")
    pytest.importorskip("hatch_fancy_pypi_readme", reason="hatch-fancy-pypi-readme is not installed")
    folder = tmp_path_factory.mktemp("build")
    copy = shutil.copytree(
        ROOT, folder / "copy", ignore=shutil.ignore_patterns(".*cache", ".venv", ".git", "outputs", "__pycache__")
    )
    for name in STRAY:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("stray")
    build(copy, "sdist", folder)
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        sdist.extractall(folder / "unpacked", **SAFE)
    [unpacked] = (folder / "unpacked").iterdir()
    build(unpacked, "wheel", folder)
    return unpacked, zipfile.ZipFile(next(folder.glob("*.whl")))


@pytest.fixture(scope="module")
def borrowed(tmp_path_factory):
    """A folder with the packages of this environment but attnprobe itself, which pip may find and remove."""
    folder = tmp_path_factory.mktemp("borrowed")
    for site in map(Path, sys.path):
        if site.name not in ("site-packages", "dist-packages"):
            continue
        for package in site.iterdir():
            if package.suffix != ".pth" and not package.name.startswith("attnprobe") and package.name != "pip":
                (folder / package.name).is_symlink() or (folder / package.name).symlink_to(package)
    return folder


def build(place: Path, target: str, out: Path) -> None:
    words = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@in_checkout
def test_the_sdist_has_what_belongs_to_it_and_no_stray_file(built):
    unpacked, _ = built
    for name in (
        "attnprobe",
        "tests",
        "docs",
        "configs",
        "benchmarks",
        ".ci",
        "README.md",
        "LICENSE",
        "CITATION.cff",
        "AGENTS.md",
    ):
        assert (unpacked / name).exists(), name
    for name in STRAY:
        assert not (unpacked / name).exists(), name


@in_checkout
def test_the_wheel_has_the_packages_data(built):
    _, wheel = built
    names = set(wheel.namelist())
    assert "attnprobe/py.typed" in names
    assert wheel.read("attnprobe/inputs/embedded.txt") == EMBEDDED_FILE.read_bytes()
    for path in (ROOT / "configs").glob("*.yaml"):
        assert wheel.read(f"attnprobe/run/sweeps/configs/{path.name}") == path.read_bytes()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"attnprobe"}


@in_checkout
def test_the_wheels_sweeps_are_found_by_name_outside_of_a_clone(built, tmp_path):
    _, wheel = built
    wheel.extractall(tmp_path)
    code = "from attnprobe.run.sweeps.yaml_file import *;print(sweep_file('smoke')); print(*packaged_sweeps())"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    file, names = done.stdout.splitlines()
    assert Path(file) == tmp_path / "attnprobe/run/sweeps/configs/smoke.yaml"
    assert names.split() == sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))


@in_checkout
def test_the_index_page_has_links_that_need_no_files_beside_it(built):
    _, wheel = built
    [name] = [name for name in wheel.namelist() if name.endswith("METADATA")]
    page = message_from_string(wheel.read(name).decode())
    assert page["Description-Content-Type"] == "text/markdown"
    assert all(url.partition(", ")[2].startswith(URL) for url in page.get_all("Project-URL"))
    description, readme = page.get_payload(), (ROOT / "README.md").read_text()
    links, here = (re.findall(r"(!?)\[[^\]]*\]\(([^)]*)\)", text) for text in (description, readme))
    assert len(links) == len(here) > 20
    for (picture, link), (_, path) in zip(links, here, strict=True):
        if not path.startswith(("https://", "#")):
            assert (ROOT / path.partition("#")[0]).exists(), path
            assert link == f"{URL}/{'raw' if picture else 'blob'}/main/{path}"


@in_checkout
@pytest.mark.slow
@pytest.mark.parametrize("archive", ["wheel", "sdist"])
def test_an_archive_installs_and_measures_in_a_fresh_environment(archive, built, borrowed, tmp_path):
    """Outside of the repository and without network: packages are borrowed, pip looks at no index."""
    _, wheel = built
    file = Path(wheel.filename) if archive == "wheel" else next(Path(wheel.filename).parent.glob("*.tar.gz"))
    fresh, here = tmp_path / "fresh", tmp_path / "here"
    here.mkdir()
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env["HF_HUB_OFFLINE"] = "1"

    def said(*words: str | Path) -> str:
        done = subprocess.run([*map(str, words)], cwd=here, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    said(sys.executable, "-m", "venv", fresh)
    [site] = fresh.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(f"{borrowed}\n")
    python, program = fresh / "bin/python", fresh / "bin/attnprobe"
    said(python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation", file)
    assert said(program, "--version").split()[-1] == attnprobe.__version__
    assert Path(said(python, "-c", "import attnprobe; print(attnprobe.__file__)").strip()).is_relative_to(site)
    said(program, "sweep", "smoke", "--dry-run")
    table = said(program, "error", "--method", "skyformer", "--n", "256", "--d", "32", "--no-matrix", "--out", "run")
    assert re.search(r"^skyformer +32 +0\.\d+", table, re.M)
    frame = said(python, "-c", "import attnprobe; print(len(attnprobe.open_run('run').frame()))")
    assert int(frame) >= 12


@in_checkout
def test_one_version_and_one_address():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert project["urls"]["Repository"] == URL and f"repository-code: {URL}\n" in citation
    assert f"\nversion: {attnprobe.__version__}\n" in citation
    [latest, *_] = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert latest == attnprobe.__version__
    assert "python-flint" in " ".join(project["optional-dependencies"]["test"])


def test_a_sweep_is_a_file_or_the_name_of_a_packaged_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sweep_file("smoke").parent in (IN_WHEEL, ROOT / "configs")
    (tmp_path / "smoke").mkdir()
    assert sweep_file("smoke").name == "smoke.yaml"  # a folder of that name is no file
    (tmp_path / "smoke").rmdir()
    (tmp_path / "smoke").write_text("d: 8\n")
    assert sweep_file("smoke") == Path("smoke")
    with pytest.raises(UsageError, match="smok: no such file, and no packaged sweep; did you mean 'smoke'?"):
        sweep_file("smok")
    with pytest.raises(UsageError, match="^../configs/smoke: no such file"):
        sweep_file("../configs/smoke")


def test_every_packaged_sweep_says_in_one_line_what_it_is(run):
    for name, line in packaged_sweeps().items():
        assert 20 < len(line) < 120 and line[-1] in ".?" and not line.startswith("#"), name
    code, out, _ = run("sweep", "--list")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == list(packaged_sweeps())
    code, out, err = run("sweep")
    assert (code, out) == (2, "") and "name a FILE or a packaged sweep" in err


def test_the_list_of_a_command_that_has_one_is_its_own(run):
    code, out, _ = run("sweep", "theory", "--list")
    assert code == 0 and "\nskyformer-theorem-2\n" in f"\n{out}"


def test_a_packaged_sweep_plans_its_cells(run):
    code, out, err = run("sweep", "smoke", "--dry-run", "--d", "16", "--n", "128")
    assert code == 0 and "5 cells" in out, err
