"""The reference pages that are made of the program: one of each method, and that of rows.

A build of the site writes them, and so does ``python docs/_extensions/generated.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from method_pages import method_pages
from record_pages import records_page, records_schema

REFERENCE = Path(__file__).parents[1] / "reference"


def generated_pages() -> dict[str, str]:
    """The text of every page by its path below ``docs/reference``."""
    methods = {f"methods/{name}": text for name, text in method_pages().items()}
    return {**methods, "rows.md": records_page(), "rows.schema.json": records_schema()}


def write_pages(folder: Path = REFERENCE) -> None:
    """Write each page that is not there as it should be."""
    for name, text in generated_pages().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Any) -> None:
    app.connect("builder-inited", lambda app: write_pages())


if __name__ == "__main__":
    write_pages()
