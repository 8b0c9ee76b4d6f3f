"""Cells of tables from format strings."""

import pytest

from attnprobe.tables.numbers import cell_text
from attnprobe.tables.table import Column

ROW = {"cond": {"median": 4.42e7}, "share": 0.25, "bytes": 3 * 2**20, "d": 8, "steps": [0.5, None], "null": None}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{cond[median]:brief}", "4.42e7"),
        ("{share:share}", "25.0%"),
        ("{bytes:3MiB}", "3.00"),
        ("{share:3ms}", "250"),
        ("{d}/{share:.1f}", "8/0.2"),
        ("{steps[0]:g}", "0.5"),
        ("{steps[1]:g}", ""),
        ("{steps[2]:g}", ""),
        ("{null[median]:brief}", ""),
        ("{nothing}", ""),
        ("{d} of {null}", ""),
    ],
)
def test_a_template_is_written_or_empty(template, text):
    assert Column("x", template).text(ROW) == cell_text([template], ROW) == text


def test_a_wrong_format_is_an_error_and_no_empty_cell():
    with pytest.raises(ValueError, match="Unknown format code"):
        cell_text(["{share:d}"], ROW)
