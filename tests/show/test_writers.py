"""The writers of tables: terminal, Markdown, LaTeX, CSV and JSON, each of any table."""

from __future__ import annotations

import ast
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from rich.cells import cell_len

import attnprobe
from attnprobe.show.catalogue.error import TABLES
from attnprobe.show.grid import Cell, Grid, legend
from attnprobe.show.notes import BAD, FLAGS, ROUNDING
from attnprobe.show.table import BUDGET, METHOD, Column, Table
from attnprobe.show.writers import csv, json_rows, jsonl, latex, markdown, terminal
from attnprobe.show.writers.latex import escaped, heading

ERROR = "output_spectral_relative"
MEDIAN = Column("median\n[p10 – p90]", f"{ERROR}.median", low=f"{ERROR}.p10", high=f"{ERROR}.p90", priority=8)
MEAN = Column("mean", f"{ERROR}.mean", best="smaller", priority=7)
MATRIX = Column("‖E‖₂ / ‖B‖₂\nmedian", "matrix_spectral_relative.median", priority=3)
VISITED = Column("entries\nvisited", "visited_fraction.mean", unit="%", priority=4)
COLUMNS = (METHOD, BUDGET, MEDIAN, MEAN, MATRIX, VISITED)
TABLE = Table("error", "Relative error", by=("name", "d"), columns=COLUMNS, metric=ERROR, main=MEAN.name, rivals=("d",))


def line(name, d, mean, bold=False, flag=None, sign=None):
    return [
        *(Cell(name, flag=flag), Cell(d), Cell(mean / 2, low=mean / 8, high=mean), Cell(mean, bold=bold, flag=sign)),
        *(Cell(0.25), Cell(0.125)),
    ]


@pytest.fixture
def grid():
    cells = [
        *(line("skyformer:guard=x", 16, 0.5, bold=True), line("skyformer:guard=x", 32, 12.25)),
        *(line("50%_a|b", 16, 1.5e-7, flag=BAD), line("50%_a|b", 32, 1234.5, sign=ROUNDING)),
        line("V-Mean", None, 0.75),
    ]
    keys = [{"name": row[0].value, "d": row[1].value} for row in cells]
    place, where = {"n": 512, "target": "softmax"}, "n = 512, layers 0-5"
    return Grid(TABLE, COLUMNS, cells, keys, place, where, "A sentence.", ("– x: why",))


# --- terminal


@pytest.mark.parametrize("width", [100, 80, 60, 45])
def test_no_line_is_wider_than_the_terminal(grid, width):
    text = terminal([grid], width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert "skyformer:guard=x" in text and "V-Mean" in text


def test_a_narrow_terminal_leaves_out_the_columns_of_least_priority(grid):
    def hidden(width):
        found = re.search("not shown: (.*)", terminal([grid], width))
        return found and found[1]

    assert hidden(100) is None
    assert hidden(72) == "‖E‖₂ / ‖B‖₂ median"
    assert hidden(71) == "‖E‖₂ / ‖B‖₂ median, entries visited"
    assert hidden(60) == "mean, ‖E‖₂ / ‖B‖₂ median, entries visited"


def test_columns_that_tell_lines_apart_always_stay(grid):
    text = terminal([grid], 16)
    assert max(map(cell_len, text.splitlines())) <= 16
    assert re.search(r"^method +d$", text, re.MULTILINE) and "skyformer:" in text


def test_numbers_stand_below_one_another_at_their_points(grid):
    lines = [text for text in terminal([grid], 100).splitlines() if "[" in text and "p10" not in text]
    assert len({text.index("[") for text in lines}) == 1
    means = [found for text in lines if (found := re.search(r"\] +(\S+)", text))]
    assert [found[1] for found in means] == ["0.500*", "12.2", "1.50e-7", "≈1234", "0.750"]
    assert len({found.string.index(".", found.start(1)) for found in means if "." in found[1]}) == 1


def test_notes_say_the_signs_the_rule_and_the_reasons(grid):
    assert terminal([grid], 100).splitlines()[-3:] == [
        "! has bad rows: sum of weights ≤ 0 or lost to rounding; ≈ decided by rounding",
        "*: smallest mean at each d among methods without a sign",
        "– x: why",
    ]


def test_all_signs_of_numbers_have_room_in_a_line_of_a_hundred(grid):
    cells = [[*cells[:-1], Cell(0.125, flag=flag)] for cells, flag in zip(grid.cells, FLAGS[:3], strict=False)]
    (line,) = [text for text in terminal([replace(grid, cells=cells)], 100).splitlines() if "! has bad rows" in text]
    assert line.endswith("≈ decided by rounding; > uses more than d")


def test_a_terminal_with_colours_has_bold_cells_and_no_stars(grid):
    text = terminal([grid], 100, color=True)
    assert re.search(r"\x1b\[1m *0\.500", text) and not re.search(r"\x1b\[1m *12\.2", text)
    assert "*" not in text and "*" in terminal([grid], 100)
    assert "\x1b" not in terminal([grid], 100)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_meanings_of_columns_are_a_table_too(table):
    text = terminal([legend(table)], 160)
    assert all(column.name in text for column in table.every)
    assert markdown([legend(table)]) and latex([legend(table)])


# --- Markdown


def test_markdown_is_a_table_of_github(grid):
    caption, sentence, table, *below = markdown([grid]).strip().split("\n\n")
    assert caption == "**Relative error: n = 512, layers 0-5**" and sentence == "A sentence."
    head, rule, *lines = table.splitlines()
    assert head == "| method | d | median [p10 – p90] | mean | ‖E‖₂ / ‖B‖₂ median | entries visited |"
    assert rule == "| --- | ---: | ---: | ---: | ---: | ---: |"
    assert lines[0] == "| skyformer:guard=x | 16 | 0.250 [0.062 – 0.50] | **0.500** | 0.250 | 12.5% |"
    assert lines[2].startswith(r"| ! 50%\_a\|b | 16 |")
    assert below[1] == "bold: smallest mean at each d among methods without a sign"


# --- LaTeX


def balanced(text):
    assert text.count("{") == text.count("}") and text.count("$") % 2 == 0
    for name in ("table", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 1
    assert text.isascii(), set(re.findall(r"[^\x00-\x7f]", text))


def test_latex_is_methods_by_d(grid):
    text = latex([grid])
    balanced(text)
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert body == [
        r"skyformer:guard=x & \textbf{0.500} & 12.2 \\",
        r"50\%\_a|b & $1.50\times10^{-7}$\rlap{$^{!}$} & 1234\rlap{$^{\approx}$} \\",
        r"V-Mean & \multicolumn{2}{c}{0.750} \\",
    ]
    assert r"method & 16 & 32 \\" in text and r"\cmidrule(lr){2-3}" in text
    assert r"\label{tab:error-n-512}" in text
    assert r"\caption{Relative error, $\|EV\|_2 / \|BV\|_2$, mean: n = 512, layers 0-5." in text
    assert "Bold: smallest mean at each d" in text


def test_latex_without_the_pivot_has_all_columns(grid):
    text = latex([grid], pivot=False)
    balanced(text)
    assert r"method & $d$ & median [p10 -- p90] & mean & $\|E\|_2 / \|B\|_2$ median & entries visited \\" in text
    assert r"12.5\%" in text and r"50\%\_a|b\rlap{$^{!}$}" in text


def test_two_places_have_two_labels(grid):
    other = replace(grid, place={"n": 1024, "target": "softmax"})
    assert len(set(re.findall(r"\\label\{.*\}", latex([grid, other])))) == 2


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_headings_and_signs_can_be_set_by_latex(table):
    for column in table.every:
        assert heading(column).isascii(), column
    assert all(escaped(flag.sign + flag.text).isascii() for flag in FLAGS)


# --- CSV and JSON


def test_frames_are_written_in_full_precision():
    third = 1 / 3
    frame = pd.DataFrame(
        {"name": ["a", "b"], "d": pd.array([1, pd.NA], "Int64"), "x": [third, math.inf], "bad": [True, False]}
    )
    frame["y"] = pd.array([pd.NA, -math.inf], "Float64")
    lines = csv(frame).splitlines()
    assert lines == ["name,d,x,bad,y", f"a,1,{third!r},True,", "b,,inf,False,-inf"]
    expected = [
        {"name": "a", "d": 1, "x": third, "bad": True, "y": None},
        {"name": "b", "d": None, "x": "inf", "bad": False, "y": "-inf"},
    ]
    assert json_rows(frame) == expected
    assert [json.loads(text) for text in jsonl(frame).splitlines()] == expected
    assert pd.read_csv(io.StringIO(csv(frame)))["x"].tolist() == [third, math.inf]


@pytest.mark.parametrize("room", ["frame", "show/catalogue", "theorems", "metrics", "methods", "experiments", "judge"])
def test_latex_knows_every_letter_that_a_table_may_have(room):
    for path in (Path(attnprobe.__file__).parent / room).rglob("*.py"):
        for part in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and "\n" not in part.value:
                assert all(ord(letter) <= 0xFF for letter in escaped(part.value)), (path, part.value)
