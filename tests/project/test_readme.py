"""What the README says is what there is."""

import re
import shlex
import tomllib

import pytest
import torch
from paths import ROOT
from sources_helpers import bert_config, needs_minilm, needs_smollm2, save, seeded

from attnprobe.cli import COMMANDS
from attnprobe.methods import KERNELS, METHODS

NUMBERS = {3: "three", 4: "four", 5: "five", 6: "six"}
README = (ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else ""
pytestmark = pytest.mark.skipif(not README, reason="not in a checkout")


INSTALL = (ROOT / "docs/start/install.md").read_text() if README else ""


def flat(text: str) -> str:
    return " ".join(text.split())


def shell(page: str) -> list[str]:
    return re.findall(r"```sh\n(.*?)\n```", page, re.S)


def test_the_readme_is_read_in_five_minutes():
    assert len(README.split()) <= 900


def test_ci_runs_the_readmes_own_test_command():
    [command] = [line for line in shell(README) if line.endswith("&& pytest")]
    assert command in (ROOT / ".ci/run").read_text().splitlines()


def test_the_install_page_has_the_readmes_two_commands():
    assert shell(README)[:2] == [line for line in shell(INSTALL) if line.startswith("python3 -m venv")]


def test_the_readme_names_every_command_and_picture_that_exists():
    for name in COMMANDS:
        assert f"attnprobe {name}" in README
    for path in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / path).exists()
    assert f"{len(METHODS)} methods and {NUMBERS[len(KERNELS)]} kernels" in README


@pytest.mark.parametrize(
    "page",
    [
        pytest.param("README.md", marks=needs_minilm),
        pytest.param("docs/guide/error.md", marks=[needs_smollm2, pytest.mark.slow]),
    ],
)
def test_a_pages_first_command_gives_its_table(page, run, no_hub):
    """Every line that it shows, but for the numbers that rounding decides (≈)."""
    text = (ROOT / page).read_text()
    command = shell(text)[0].rpartition(" && attnprobe ")[2]
    code, out, _ = run(*shlex.split(command))
    assert code == 0
    printed = [flat(line).split() for line in out.splitlines()]
    shown = text.split("<!-- table -->")[1].split("<!-- /table -->")[0].strip("`\n").splitlines()
    assert len(shown) > 8
    for line in shown:
        words = [word for word in flat(line).split() if "≈" not in word]
        assert any(contains(one, words) for one in printed), line


def contains(line: list[str], words: list[str]) -> bool:
    """Whether the ``words`` stand in a line in this order."""
    rest = iter(line)
    return all(word in rest for word in words)


def test_five_lines_of_python_go_from_tensors_to_a_figure(no_hub, tmp_path, monkeypatch, every_file):
    [code] = re.findall(r"```python\n(.*?)\n```", README, re.S)
    assert len([line for line in code.splitlines() if line]) == 5
    monkeypatch.chdir(tmp_path)
    names = dict(zip("qkv", torch.randn(3, 2, 64, 16, generator=torch.Generator().manual_seed(0)), strict=True))
    exec(compile(code, "README.md", "exec"), names)
    assert (tmp_path / "own.png").stat().st_size > 5000


def test_one_command_measures_the_folder_of_a_model(run, no_hub, text_file, tmp_path):
    from transformers import BertModel

    save(seeded(lambda: BertModel(bert_config())), tmp_path / "my-model")
    [command] = [line for line in README.splitlines() if line.startswith("attnprobe error --model ./my-model")]
    code, out, err = run(*shlex.split(command)[1:], "--text", text_file, "--n", 48, "--device", "cpu", "--out", "r")
    assert code == 0, err
    assert "my-model" in out.splitlines()[0] and (tmp_path / "r/figures/errors.svg").exists()


def test_both_short_ways_are_at_the_top_of_the_docs():
    index = (ROOT / "docs/index.md").read_text()
    assert ":start-after: <!-- short -->" in index.partition("{toctree}")[0] and "<!-- /short -->" in README


def test_every_pinned_version_is_exact():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9_.-]+==[\w.]+", line), line


def test_the_project_names_no_machine():
    for path in [*ROOT.glob("*.md"), *ROOT.glob("attnprobe/**/*.py"), *ROOT.glob("tests/**/*.py")]:
        for word in ("/ro" + "ot/", "/wo" + "rk/", "/t" + "mp/w"):
            assert word not in path.read_text(), f"{path} names {word}"


def test_contributors_read_ten_minutes_and_their_commands_are_there():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert len(re.sub(r"```diff\n.*?```", "", page, flags=re.S).split()) <= 600  # besides its recipes
    recipes = re.findall(r"^([a-z]+)(?: \*\w+)?:$", (ROOT / "justfile").read_text(), re.M)
    assert {"test", "quick", "types", "docs", "format"} <= set(recipes)
    for name in re.findall(r"^just (\w+)|`just ([a-z ]+)`", page, re.M):
        assert set(" ".join(name).split()) <= set(recipes)


def test_every_extra_that_the_install_page_names_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"^\| `attnprobe\[([\w-]+)\]`", INSTALL, re.M)
    assert sorted(named) == sorted(extras)


def test_what_changed_is_one_page_and_listed_once():
    page = (ROOT / "CHANGELOG.md").read_text()
    bullets = re.findall(r"^- .*(?:\n  .*)*", page, re.M)
    assert len(bullets) == len(set(bullets)) > 8 and len(page.split()) <= 700
