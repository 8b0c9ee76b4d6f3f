"""Text from elsewhere is shown, never obeyed: the functions that it passes, and each exit by itself."""

import csv
import io
import re
import unicodedata
import warnings
import xml.etree.ElementTree as ET

import pytest
from pandas import DataFrame
from text_grids import text_grid

from attnprobe.frame.records.append import RecordWriter
from attnprobe.frame.records.file import plain, strict_json, write_text
from attnprobe.frame.records.read import read_records
from attnprobe.grammar.foreign import first_line, message, one_line, printable, reason
from attnprobe.judge.junit import write_junit
from attnprobe.judge.outcomes import gate_cases
from attnprobe.judge.parse import Gate
from attnprobe.show.figure import Figure, save, sheets
from attnprobe.show.listing import listing
from attnprobe.show.writers import latex, markdown, terminal
from attnprobe.show.writers.data import FORMULA

HOSTILE = "a\x1b]0;title\x07b\x00\x9b31m\u202ecba\u2066\udc80\u2028\ufffe\U000e0041\r!"
SEEN = r"a\x1b]0;title\x07b\x00\x9b31m\u202ecba\u2066\udc80\u2028\ufffe\U000e0041 !"  # on one line


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


KINDS = {"Cc", "Cs", "Zl", "Zp"}
DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def obeyed(text: str) -> set[str]:
    """The characters of a text that a terminal or a page obeys, or that have no encoding."""
    actual = {c for c in set(text) if unicodedata.category(c) in KINDS or unicodedata.bidirectional(c) in DIRECTIONS}
    return actual - {"\n", "\t"}


def test_of_characters_those_that_are_obeyed_are_escaped_and_words_stay():
    codes = [*range(0x20000), *range(0xE0000, 0xE0200), *(plane << 16 | 0xFFFF for plane in range(17))]
    every = "".join(map(chr, codes))
    shown = printable(every)
    assert not {hex(ord(c)) for c in obeyed(shown)}
    assert printable(shown) == shown and shown.encode().decode() == shown
    assert not set("\n\r\t\v\f") & set(one_line(every))
    words = "".join(c for c in every if unicodedata.category(c)[0] in "LMNPS" or c in "\u200c\u200d\xa0")
    assert printable(words) == words and one_line(words) == words
    for code in (0x200B, 0x200F, 0xFEFF, 0xFFFE, 0xFDD0, 0x10FFFF, 0xE0041, 0x061C):
        assert printable(chr(code)) in (f"\\u{code:04x}", f"\\U{code:08x}")


def test_one_line_folds_breaks():
    assert one_line(HOSTILE) == SEEN
    assert one_line("a\r\n  b\tc\n") == "a b c "
    assert first_line("\n\n one\x1b\ntwo") == r"one\x1b"


def test_exceptions_say_what_they_can():
    assert (message(Mute()), reason(Mute())) == ("Mute", "Mute")
    assert (message(KeyError()), reason(ValueError("\n"))) == ("KeyError", "ValueError")
    assert reason(ValueError(f"{HOSTILE}\nsecond")) == f"ValueError: {SEEN.removesuffix(' !')}"
    assert message(type("E\x1b[31m", (Exception,), {})()) == r"E\x1b[31m"


# --- exits


def test_records_hold_printable_text(tmp_path):
    with RecordWriter(tmp_path / "rows.jsonl") as writer:
        writer.append({"key": "k", "status": "ok", "method": HOSTILE, "options": {HOSTILE: [HOSTILE]}})
    (record,) = read_records(tmp_path / "rows.jsonl")
    assert record["method"] == printable(HOSTILE) and record["options"] == {printable(HOSTILE): [printable(HOSTILE)]}
    assert plain({"path": tmp_path / HOSTILE.replace("\x00", "")})["path"].endswith(r"\U000e0041\x0d!")
    assert not obeyed(strict_json(HOSTILE))


def test_a_file_holds_printable_text(tmp_path):
    write_text(tmp_path / "page.html", f"{HOSTILE}\n")
    assert (tmp_path / "page.html").read_text() == f"{printable(HOSTILE)}\n"


@pytest.mark.parametrize("tty", [True, False])
def test_a_terminal_gets_printable_text_and_its_own_colours(tty):
    text = terminal([text_grid("check", ["name"], [[one_line(HOSTILE)]], [one_line(HOSTILE)])], 200, tty)
    assert obeyed(re.sub(r"\x1b\[[0-9;]*m", "", text)) == set()
    assert ("\x1b[" in text) is tty


CELLS = [HOSTILE, "=1+1", "+1", "-1+1", "@SUM(A1)", " =1", "＝1", "a,b\"c\n'd", "ok", "-inf", "−3", "💾 文", "<b>&amp;"]


@pytest.mark.parametrize("cell", CELLS)
def test_csv_is_read_back_and_holds_no_formula(cell):
    text = listing("check", [{"name": cell, cell: 1, "number": -0.5}], "csv")
    assert not obeyed(text)
    (row,) = csv.DictReader(io.StringIO(text))
    assert row["number"] == "-0.5" and row["name"].removeprefix("'") == one_line(printable(cell))
    cells = [*row, *row.values()]
    assert not [one for one in cells if one.lstrip().startswith(FORMULA) and one not in ("-0.5", "-inf")]


def test_markdown_begins_no_link_picture_html_or_code():
    row = {"name": f"![x](http://a/b) [y](z) [i]: j `k` <b> &#27; | *e* {HOSTILE}", "interval": "[0.1 – 0.2]"}
    text = listing("check", [row], "md")
    line = text.splitlines()[-1]
    assert line.count(" | ") == 1 and not obeyed(text)
    assert r"!\[x\](http" in line and r"\[y" not in line and r"[y\](z)" in line and r"[i\]: j" in line
    assert r"\`k\`" in line and r"\<b>" in line and r"\&#27;" in line and r"\|" in line
    assert "[0.1 – 0.2]" in line  # brackets alone begin nothing


def test_latex_has_no_command_of_a_cell():
    grid = text_grid(HOSTILE, ["a_b"], [[r"\input{x} $y$ % & # ~ ^ {" + HOSTILE]], [HOSTILE])
    text = latex([grid])
    assert not obeyed(text) and r"\input" not in text and r"\textbackslash{}input\{x\} \$y\$ \% \& \#" in text
    assert r"\textbackslash{}x1b" in text
    assert not obeyed(markdown([grid]))


def test_junit_xml_is_well_formed(tmp_path):
    from attnprobe.judge.gates import GateResult

    result = GateResult(Gate("seconds", max=1.0), HOSTILE, None, HOSTILE)
    write_junit(gate_cases([result]), "gates", tmp_path / "gates.xml")
    root = ET.parse(tmp_path / "gates.xml").getroot()
    assert root.find(".//failure").get("message") == SEEN


@pytest.mark.usefixtures("every_file")
def test_figures_are_well_formed_and_draw_without_a_word(tmp_path):
    words = printable(HOSTILE) + "文 --> $x"
    facts = {"method": "x", "options": "", "family": "y", "status": "ok", "reference": False, "window": 0, "head": 0}
    rows = DataFrame({"name": words, "d": [8, 16], "kl": [0.1, 0.2]}).assign(**facts)
    figure = Figure("check", words, x="d", y="kl", marks=("line", "point"), colour="name")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [drawn] = sheets(rows, figure)
        written = save(drawn, tmp_path / "figure", caption=printable(HOSTILE))
    files = {path.suffix: path for path in written}
    ET.parse(files[".svg"])
    assert not obeyed(files[".svg"].read_text()) and not obeyed(files[".txt"].read_text())
    assert all(path.stat().st_size for path in written)
