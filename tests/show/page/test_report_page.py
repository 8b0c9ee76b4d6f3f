"""The page of a run: nothing is fetched, nothing of a run is executed, every figure and table is there."""

import base64
import hashlib
import math
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
from golden import small_runs as golden
from report_pages import a_folder, an_evil_folder, page_of, records, shown

from attnprobe.cli import main
from attnprobe.show.page import Report, html_page, open_run
from attnprobe.show.page.page import inline_svg

VOID = {"meta", "br", "img", "hr", "input", "link"}


class Reader(HTMLParser):
    """Elements and text of a page; whether every element that opens is closed in its turn."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self.open = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    config = {"d": {"value": "16", "origin": "command line"}}
    manifest = {"status": "finished", "start": "2026-11-21T08:00:00", "arguments": ["error", "--d", "16"]}
    manifest |= {"config": config, "versions": {"torch": "2.13.0"}}
    return page_of(a_folder(tmp_path_factory.mktemp("page") / "r", records(), manifest), "--plot", "errors,heads")


def test_nothing_is_fetched(page):
    """No address but those of the run's own files, which a reader may follow, and a policy that would refuse one."""
    files = re.findall(r'<li><a href="((?:tables|figures)/[\w.-]+|rows\.jsonl|manifest\.json)">\1</a></li>', page)
    assert {"rows.jsonl", "manifest.json", "tables/error.csv"} <= set(files)
    words = re.sub('data:image/png;base64,[^"]*', "", page)
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", words)
    for tag, attrs in Reader(page).elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form", "use-script")
        for name in ("src", "href", "xlink:href", "action", "srcset", "data"):
            if name in attrs:
                assert attrs[name].startswith(("#", "data:image/png;base64,")) or attrs[name] in files, (tag, attrs)
    (policy,) = [attrs["content"] for tag, attrs in Reader(page).elements if attrs.get("http-equiv")]
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'") and f"script-src 'sha256-{digest}'" in policy
    assert "'unsafe-inline'" not in policy.split("script-src")[1]
    assert {"form-action 'none'", "base-uri 'none'"} <= set(policy.split("; "))


def test_ids_are_unique_and_what_refers_to_them_exists(page):
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) | set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)


def test_words_of_a_run_never_become_elements(page, tmp_path):
    """A method's option, a label, a path, a reason, a manifest: each may say anything."""
    folder = an_evil_folder(tmp_path)
    text = page_of(folder, "--plot", "errors")
    actual = Reader(text)
    assert [tag for tag, _ in actual.elements].count("script") == 1 == text.count("<script>")
    assert not any(tag == "img" or any(name.startswith("on") for name in attrs) for tag, attrs in actual.elements)
    assert "document.title='owned'" in "".join(actual.texts)  # it is shown, as words
    assert {tag for tag, _ in actual.elements} <= {tag for tag, _ in Reader(page).elements} | {"ul", "li", "p"}


def test_cells_sort_by_their_number(page):
    keys = re.findall(r'<td class="r" data-k="([^"]+)">(?:<strong>)?([^<]*)<', page)
    assert len(keys) >= 50
    for key, text in keys:
        assert math.isclose(float(key), float(re.search(r"-?\d[\d.]*(?:e[+-]?\d+)?", text)[0]))


def test_svg_loses_what_a_page_must_not_have():
    text = (
        '<?xml version="1.0"?><!DOCTYPE svg PUBLIC "x" "http://y"><svg xmlns="http://www.w3.org/2000/svg" '
        'width="9pt" viewBox="0 0 9 9"><metadata><a href="http://z"/></metadata><!-- <b> --><style>*{}</style>'
        '<defs><g id="a"/></defs><use xlink:href="#a" clip-path="url(#a)"/></svg>'
    )
    actual = inline_svg(text, "f7", 'a "name"')
    assert actual == (
        '<svg viewBox="0 0 9 9" style="max-width:calc(1.5 * 9pt)" role="img" '
        'aria-label="a &quot;name&quot;"><defs>'
        '<g id="f7-a"/></defs><use href="#f7-a" clip-path="url(#f7-a)"/></svg>'
    )
    ElementTree.fromstring(actual)


def test_a_page_without_figures_or_manifest(tmp_path):
    text = page_of(a_folder(tmp_path / "r", records()), "--plot", "none")
    assert "<svg" not in text and "no manifest.json" in text and 'id="tables-0"' in text


@pytest.mark.parametrize("command", golden.COMMANDS)
def test_a_page_of_every_command(command):
    view = shown(golden.RUNS / command)
    actual = Reader(html_page([Report(open_run(golden.RUNS / command), [view])]))
    tables = len(view.tables)
    assert tables and sum(tag == "table" for tag, _ in actual.elements) >= tables


# --- heat maps, and error against cost


def test_several_runs_share_a_page_with_an_index(tmp_path, capsys):
    a_folder(tmp_path / "a" / "same", records())
    a_folder(tmp_path / "b" / "same", records(source={"weights": "initialized"}))
    runs = [str(tmp_path / name / "same") for name in ("a", "b")]
    with pytest.raises(SystemExit) as stop:
        main(["report", *runs])
    assert stop.value.code == 2 and "--out" in capsys.readouterr().err
    out = tmp_path / "both"
    for wrong in ([*runs, "--format", "json"], [runs[0], runs[0]]):
        with pytest.raises(SystemExit) as stop:
            main(["report", *wrong, "--out", str(out)])
        assert stop.value.code == 2 and not out.exists()
    with pytest.raises(SystemExit) as stop:
        main(["report", *runs, "--out", str(out), "--plot", "errors"])
    assert not stop.value.code
    page = (out / "report.html").read_text(encoding="utf-8")
    reader = Reader(page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    links = [attrs["href"] for tag, attrs in reader.elements if tag == "a"]
    assert {"#run-1-run", "#run-2-run"} <= set(links) and {link[1:] for link in links if link[0] == "#"} <= set(ids)
    files = [link for link in links if link[0] != "#"]
    assert {"same/tables/error.csv", "same-again1/tables/error.csv"} <= set(files)
    assert all((out / name).is_file() for name in files)
    assert sum(tag == "svg" for tag, _ in reader.elements) == 2
