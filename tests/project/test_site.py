"""The documentation builds as a site, without a warning, and shows what the program takes."""

import re
import subprocess
import sys
from html import unescape
from importlib.util import find_spec

import pytest
from paths import ROOT

import attnprobe
from attnprobe.cli import COMMANDS, cli
from attnprobe.measure import EXPERIMENTS, experiment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "docs/conf.py").exists(), reason="not in a checkout"),
    pytest.mark.skipif(find_spec("sphinx") is None, reason="Sphinx is not installed: pip install -e '.[docs]'"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    words = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(folder / "doctrees"), "docs", str(folder / "html")]
    done = subprocess.run([sys.executable, "-m", "sphinx", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_public_name_has_an_entry(site):
    page = (site / "reference/python/attnprobe.html").read_text()
    for name in set(attnprobe.__all__) - {"__version__"}:
        assert f'id="attnprobe.{name}"' in page, name


def test_every_command_shows_its_options(site):
    page = (site / "reference/cli.html").read_text()
    for name in COMMANDS:
        command = cli.commands.get(name) or cli.get_command(None, name)
        assert f"attnprobe {name} " in page
        for option in command.params:
            if option.param_type_name == "option" and not option.hidden:
                assert option.opts[0] in page, f"{name} {option.opts[0]}"


def test_every_column_of_a_table_is_explained(site):
    """The section of each command has the name, the meaning and the rest of every column."""
    sections = re.split(r'<section id="([\w-]+)">', (site / "reference/cli.html").read_text())
    legends = {}
    for name, text in zip(sections[1::2], sections[2::2], strict=True):
        _, _, legend = text.partition(">Columns</p>")
        cells = re.findall(r"<tr[^>]*><td>(.*?)</td>\s*<td>(.*?)</td>", legend, flags=re.S)
        legends[name] = [tuple(unescape(re.sub(r"<[^>]*>", "", cell)) for cell in pair) for pair in cells]
    for name in EXPERIMENTS:
        for column in experiment(name).columns:
            texts = [text for called, text in legends[name] if called == column.name]
            assert any(column.meaning in text and column.more in text for text in texts), f"{name}: {column.name}"
    assert "B / A" in dict(legends["compare"])


def test_a_figure_and_a_methods_page_are_there(site):
    assert (site / "reference/methods/nystromformer.html").exists() and (site / "reference/rows.html").exists()
    assert list((site / "_images").glob("minilm-layer0*.svg"))
