"""Signs and bold cells are explained where they occur, and only there, in every format."""

import re

import pytest

from attnprobe.tables.console import Header
from attnprobe.tables.results import Value
from attnprobe.tables.table import Best, Column, table_of
from attnprobe.tables.view import View

WORSE = {"verdict": "worse"}
BEST = Best(lambda row: Value.of(row["x"]), "x")
COLUMNS = [Column("method", "{name}", key=True), Column("error", "{sign}{x:3}", best=BEST)]
ROWS = [{"name": name, "x": x, "sign": ""} for name, x in (("one", 1.0), ("two", 2.0), ("three", 3.0))]


def text(format, rows=ROWS, tested=None, *others, **options):
    every = [table_of("here", rows, COLUMNS, rivals=lambda row: 0, tested=one) for one in (tested, *others)]
    shown = View("error", Header(), rows, every).text(format, **options)
    return " ".join(re.sub(r"\x1b\[\d*m", "", shown).split())


@pytest.mark.parametrize("format", ["table", "md", "latex", "github"])
def test_a_sign_is_explained_where_it_occurs(format):
    open_, marked = r"\$\\approx\$" if format == "latex" else "≈", [{**ROWS[0], "name": "! one"}, *ROWS[1:]]
    assert "bad rows" not in text(format) and "rounding decides" not in text(format)
    assert "!: bad rows, whose sum is not positive or is rounding." in text(format, marked)
    doubtful = [{**ROWS[0], "sign": "≈"}, *ROWS[1:]]
    assert re.search(
        f"{open_}: rounding decides it, so that it differs between machines, or its interval is wide\\.",
        text(format, doubtful),
    )


@pytest.mark.parametrize("format", ["table", "md", "latex", "github"])
def test_the_rule_of_bold_cells_is_said_or_why_there_are_none(format):
    terminal = {"width": 100} if format == "table" else {}
    assert "Bold: the best of comparable rows, with ties." in text(format, **terminal)
    tested = text(format, tested=lambda metric, pairs: [WORSE] * len(pairs), **terminal)
    tested = tested.replace("$d$", "d").replace("$p$", "p")
    assert (
        "Bold: at each d where a test finds a worse row (p by Holm, over a layer), the best mean and the next ones "
        "before it; not ranked: yardsticks, rows with ! or with more than d." in tested
    )
    untested = text(format, tested=lambda metric, pairs: [None] * len(pairs), **terminal)
    assert "No bold: too few heads and windows for a paired test." in untested and "Bold:" not in untested
    assert "old:" not in text(format, ROWS[:1], **terminal)  # no rival
    partly = text(
        format, ROWS, *(lambda metric, pairs, one=one: [one] * len(pairs) for one in (WORSE, None)), **terminal
    )
    if format != "latex":  # whose notes are each of one table
        assert "more than d; none where heads and windows are too few." in partly


def test_a_pipe_has_no_bold_cells_to_explain():
    assert "Bold" not in text("table")


def test_the_note_of_a_latex_table_explains_its_marks():
    marked = [{**ROWS[0], "name": "! one"}, *ROWS[1:]]
    said = "!: bad rows, whose sum is not positive or is rounding."
    shown = text("latex", marked)
    assert r"\caption{here.}" in shown and f"{said} Bold: the best of comparable rows, with ties." in shown
