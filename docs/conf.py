"""How the documentation is built: `sphinx-build -W --keep-going -b html docs build/docs`."""

from __future__ import annotations

import sys
from pathlib import Path

from attnprobe import __version__

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

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
