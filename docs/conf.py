"""How the documentation is built: `sphinx-build -W --keep-going -b html docs build/docs`."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

from attnprobe import __version__

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
REPOSITORY = PROJECT["urls"]["Repository"]

project = "attnprobe"
author = "The attnprobe authors"
project_copyright = f"2026, {author}"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "commands",
    "generated",
]
exclude_patterns = ["_extensions"]

default_role = "py:obj"
highlight_language = "none"
smartquotes = False
myst_heading_anchors = 4

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Cost", ("Random", "notes")]

html_theme = "furo"
html_title = f"attnprobe {version}"
html_show_sourcelink = False


def keep_lines(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """A paragraph of click's that keeps its lines (``\\b``) is a literal block."""
    while "\b" in lines:
        start = lines.index("\b")
        end = lines.index("", start) if "" in lines[start:] else len(lines)
        lines[start:end] = ["::", "", *(f"    {line}" for line in lines[start + 1 : end])]


def link_to_repository(app: Sphinx, page: str, source: list[str]) -> None:
    """Files of the repository outside of ``docs/`` are no pages of the site: a link leads to the repository."""
    outside = "../" * (page.count("/") + 1)
    source[0] = source[0].replace(f"]({outside}", f"]({REPOSITORY}/blob/main/")


def setup(app: Sphinx) -> None:
    app.connect("source-read", link_to_repository)
    app.connect("autodoc-process-docstring", keep_lines)
