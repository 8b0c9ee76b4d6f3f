"""A folder whose records and manifest hold hostile text is reported in every format, and each is what it says it is.

The table is of strings x commands: ``pytest -m slow tests/hostile/test_text.py`` tries each string alone, with figures;
the default suite tries them all together.
"""

import csv
import io
import json
import re
import shutil
import unicodedata
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from golden import small_runs as golden

from attnprobe.cli import main
from attnprobe.show.writers.data import FORMULA

STRINGS = {
    "escape": "\x1b[31mred\x1b]0;title\x07",
    "latin": "\x00\x7f\x9b2J\x85",
    "direction": "\u202etxt.exe\u2066",
    "surrogate": "\udc80\ud800",
    "lines": "a\nb\r\nc\rd\u2028e\tf\x0b\x0c",
    "no character": "\ufffe\uffff\U0010ffff\ufeff\u200b",
    "formula": "=HYPERLINK(\"http://x\";'y')+1",
    "markdown": "![x](http://x/y) [a]: b | `c` **d** <!-- e",
    "page": "</td></table><script>alert(1)</script><img src=x onerror=alert(2)>\"'&lt;",
    "comment": "--> ]]> <!-- <svg onload=alert(3)>",
    "latex": r"\input{/etc/passwd} $\frac{$ % & # _ ^ ~ { \\",
    "math": r"$\frac{$ $\nosuch$ $",
    "words": "日本語 עברית e\u0301 💾",
}
TOGETHER = "".join(STRINGS.values())
# fields whose words are free; others are names that attnprobe knows
FREE = {
    *("method", "family", "run", "reason", "qkv", "model", "text", "tokenizer", "generator", "random", "cpu", "torch"),
    *("says", "paper", "assumption", "promise", "matrix_skipped", "draws_hash", "cost", "origin", "git_commit"),
    "device",
}
FREE_LISTS = {"described", "arguments", "fallback"}
KNOWN = {"lower-bound", "vmean", "exact", "softmax"}
COMMANDS = tuple(name for name in golden.COMMANDS if "-" not in name)


def poisoned(value, text, free=False):
    """``value`` with ``text`` in every string that is free."""
    if isinstance(value, dict):
        actual = {key: poisoned(one, text, key in FREE | FREE_LISTS) for key, one in value.items()}
        if isinstance(actual.get("options"), dict):
            actual["options"] = {**actual["options"], f"option{text}": text}
        return actual
    if isinstance(value, list):
        return [poisoned(one, text, free) for one in value]
    return f"{text}{value}{text}" if free and isinstance(value, str) and value not in KNOWN else value


def poisoned_run(command: str, text: str, place: Path) -> Path:
    """A copy of a small run of a command with ``text`` wherever it may stand."""
    run = shutil.copytree(golden.RUNS / command, place / command)
    for path in run.glob("*.jsonl"):
        records = [poisoned(json.loads(line), text) for line in path.read_text().splitlines()]
        if path.name == "rows.jsonl":
            records[-1] |= {"status": "failed", "reason": text}
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(poisoned(manifest, text)))
    return run


def obeyed(text: str) -> set[str]:
    """The characters of a text that a terminal or a page obeys."""
    kinds = {"Cc", "Cs", "Zl", "Zp"}
    directions = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    actual = {c for c in set(text) if unicodedata.category(c) in kinds or unicodedata.bidirectional(c) in directions}
    return {hex(ord(c)) for c in actual - {"\n"}}


class Page(HTMLParser):
    """What a page holds that could act."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts, self.acts = 0, []

    def handle_starttag(self, tag, attrs):
        self.scripts += tag == "script"
        self.acts += [name for name, _ in attrs if name.startswith("on")] + [tag] * (tag in ("img", "iframe", "object"))


def check_json(text):
    json.loads(text)


def check_jsonl(text):
    for line in text.split("\n"):
        assert line == "" or isinstance(json.loads(line), dict)


def check_csv(text):
    header, *rows = csv.reader(io.StringIO(text), strict=True)
    assert rows and {len(row) for row in rows} == {len(header)}
    begun = [cell for row in (header, *rows) for cell in row if cell.lstrip().startswith(FORMULA)]
    assert not [cell for cell in begun if not re.fullmatch(r"-?(inf|[\d.]+(e[-+]?\d+)?)", cell)]


def check_md(text):
    plain = re.sub(r"\\.", "", text)  # without what is escaped
    assert "`" not in plain and "<" not in plain and not re.search(r"!\[|\]\(|\]:", plain)
    widths = [line.count(" | ") for line in plain.splitlines() if line.startswith("|")]
    lines = [line for line in plain.splitlines() if line.startswith("|") and set(line) <= set("|-: ")]
    assert widths and len(lines) >= len(set(widths))


def check_tex(text):
    """Each table is one ``table`` with one ``tabular``."""
    plain = without_escapes(text)
    body = [line for line in plain.splitlines() if not line.startswith("%")]
    assert not [line for line in body if "%" in line or "#" in line or "~" in line or "\\input" in line]
    ends = [plain.count(rf"\{end}{{{name}}}") for name in ("table", "tabular") for end in ("begin", "end")]
    assert ends[0] and len(set(ends)) == 1
    assert "".join(body).count("{") == "".join(body).count("}")
    assert not [line for line in body if line.count("$") % 2]


def without_escapes(text):
    return re.sub(r"\\(textbackslash|textasciitilde|textasciicircum|textbar)\{\}|\\[%$#&_{}]", "", text)


def check_html(text):
    page = Page()
    page.feed(text)
    page.close()
    assert page.scripts == 1 and not page.acts


def check_svg(text):
    root = ET.fromstring(text)
    assert not [one for one in root.iter() if one.tag.endswith("script") or any(a.startswith("on") for a in one.attrib)]


CHECKS = {
    ".json": check_json,
    ".jsonl": check_jsonl,
    ".csv": check_csv,
    ".md": check_md,
    ".tex": check_tex,
    ".html": check_html,
    ".svg": check_svg,
}


@pytest.fixture
def report(capsys, monkeypatch):
    """Report a run, as ``(stdout, stderr)``; its files are held to their formats."""

    def call(run: Path, *args: str) -> tuple[str, str]:
        monkeypatch.chdir(run.parent)
        with pytest.raises(SystemExit) as stop:
            main(["report", run.name, *args])
        out, err = capsys.readouterr()
        assert not stop.value.code, err
        assert not obeyed(out) and not obeyed(err) and not [line for line in err.splitlines() if "Glyph" in line]
        for path in [*run.glob("tables/*"), *run.glob("figures/*.svg"), run / "report.html", *run.glob("budgets-*")]:
            text = path.read_bytes().decode()
            assert obeyed(text) <= ({"0x9"} if path.suffix == ".svg" else set()), path
            CHECKS[path.suffix](text)
        return out, err

    return call


@pytest.mark.parametrize("command", COMMANDS)
def test_every_string_at_once(command, tmp_path, report):
    run = poisoned_run(command, TOGETHER, tmp_path)
    out, _ = report(run, "--plot", "none", "--format", "jsonl")
    check_jsonl(out)
    assert {path.suffix for path in run.glob("tables/*")} == {".md", ".csv", ".json", ".tex"}
    assert "1b[31mred" in (run / f"tables/{command}.md").read_text()
    if command in ("spectrum", "bench"):  # others in `test_each_string`, and on a terminal below
        out, _ = report(run, "--plot", "none")
        assert r"\x1b[31mred" in out


@pytest.mark.slow
def test_figures_of_several_strings_at_once(tmp_path, report):
    several = "".join(STRINGS[name] for name in ("escape", "surrogate", "comment", "math", "words"))
    run = poisoned_run("error", several, tmp_path)
    report(run, "--plot", "errors")
    svg = (run / "figures/errors.svg").read_text()
    assert r"\x1b[31mred" in svg


def test_a_terminal_gets_colours_and_nothing_else_to_obey(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm-256color")
    for command in ("error", "budget"):
        poisoned_run(command, TOGETHER, tmp_path)
        shown = golden.on_terminal(["report", command, "--plot", "none"], width=200)
        assert not obeyed(shown) and r"\x1b[31mred" in shown


@pytest.mark.slow
@pytest.mark.parametrize("text", STRINGS.values(), ids=STRINGS)
@pytest.mark.parametrize("command", COMMANDS)
def test_each_string(command, text, tmp_path, report):
    run = poisoned_run(command, text, tmp_path)
    report(run, "--plot", "none")
    out, _ = report(run, "--plot", "none", "--format", "jsonl")
    check_jsonl(out)
