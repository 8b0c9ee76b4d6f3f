"""The page of a run in a real browser: it sorts by mouse and keyboard, fetches nothing, runs nothing, and can be read.

`pytest -m slow tests/show/page/test_report_browser.py` runs these where a browser is installed (Debian's ``chromium``).
"""

import re

import pytest
from browser import BROWSER, NAMES, Browser
from golden.small_runs import RUNS
from pandas import DataFrame
from PIL import Image
from report_pages import EVIL, a_folder, an_evil_folder, page_of, records
from text_grids import text_grid

from attnprobe.show.grid import Grid
from attnprobe.show.header import Header
from attnprobe.show.page import Report, Run, html_page, open_run, views
from attnprobe.show.shown import Catalogue, Shown

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason=f"no browser is installed (looked for {', '.join(NAMES)})"),
]

MINUS = "−"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page of a run of several layers, methods and budgets."""
    folder = a_folder(tmp_path_factory.mktemp("report") / "r", records(options={"sampler": "rls"}))
    page_of(folder)
    return folder / "report.html"


def column(browser, number, table="document.querySelector('table.sorts')"):
    rows = f"[...{table}.tBodies[0].rows]"
    return browser.value(f"{rows}.map(row => row.cells[{number}].textContent)")


def header(number, table="document.querySelector('table.sorts')"):
    return f"{table}.tHead.rows[0].cells[{number}].querySelector('button')"


def visible(browser):
    """The numbers of the shown columns."""
    cells = "[...document.querySelector('table.sorts').tHead.rows[0].cells]"
    return browser.value(f"{cells}.filter(cell => !cell.hidden).map(cell => cell.cellIndex)")


def sorted_by(browser, number):
    """Whether and how a column is marked as sorted; no other one may be."""
    marks = browser.value(
        "[...document.querySelector('table.sorts').tHead.rows[0].cells].map(cell => cell.getAttribute('aria-sort'))"
    )
    assert all(mark is None for place, mark in enumerate(marks) if place != number)
    return marks[number]


def test_the_page_opens_without_a_word_of_complaint_and_fetches_nothing(browser, report):
    browser.open(report)
    assert browser.value("document.documentElement.getAttribute('data-ready')") == "yes"
    assert browser.value("document.title") == "r · attnprobe"
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [report.as_uri()]
    names = "[...document.querySelectorAll('.sheet svg')].map(svg => svg.getBoundingClientRect().height)"
    assert len(browser.value(names)) == 4 and min(browser.value(names)) > 100


@pytest.mark.parametrize("guarded", [True, False])
def test_words_of_a_run_do_not_run(browser, tmp_path, guarded):
    """With the page's policy, and without it: then escaping alone keeps a word from being code."""
    folder = an_evil_folder(tmp_path)
    text = page_of(folder)
    if not guarded:
        text, count = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
        assert count == 1
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    browser.open(tmp_path / "page.html")
    assert browser.value("document.title") == "r <script> · attnprobe"
    assert browser.value("[document.scripts.length, document.images.length]") == [1, 0]
    assert browser.errors == [] and browser.value("document.documentElement.getAttribute('data-ready')") == "yes"
    assert EVIL in browser.value("document.body.textContent")


def test_a_policy_refuses_what_would_have_slipped_through(browser, report, tmp_path):
    """The second line of defence: an element that runs code is refused, and so is an address, a file's included."""
    text = report.read_text(encoding="utf-8")
    Image.new("RGB", (200, 100)).save(tmp_path / "picture.png")
    picture = (tmp_path / "picture.png").as_uri()
    slip = f"<script>document.title='owned'</script><img src='{picture}' onload=\"document.title='owned'\">"
    for policy, title, width in ((True, "r · attnprobe", 0), (False, "owned", 100)):
        shown = text.replace("<main>", f"<main>{slip}")
        shown = shown if policy else re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", shown)
        (tmp_path / "slip.html").write_text(shown, encoding="utf-8")
        browser.open(tmp_path / "slip.html")
        assert browser.value("document.title") == title
        assert browser.value("document.images[0].naturalWidth") >= width
        assert (browser.value("document.images[0].naturalWidth") == 0) == policy == (len(browser.errors) >= 2)


@pytest.mark.parametrize("place", range(5))
def test_a_click_sorts_what_the_report_shows(browser, report, place):
    browser.open(report)
    number = visible(browser)[place]
    before = column(browser, number)
    browser.click(header(number))
    up = column(browser, number)
    assert sorted_by(browser, number) == "ascending" and sorted(up) == sorted(before)
    browser.click(header(number))
    down = column(browser, number)
    assert sorted_by(browser, number) == "descending" and sorted(down) == sorted(before)
    actual = [re.match(r"\d[\d.]*(?:e[+-]?\d+)?", text) for text in up]
    if any(actual):
        values = [float(one[0]) for one in actual if one]
        assert values == sorted(values) and len(set(values)) > 1
        assert all(actual[: len(values)])  # what is no number stands behind
        values = [float(one[0]) for text in down if (one := re.match(r"\d[\d.]*(?:e[+-]?\d+)?", text))]
        assert values == sorted(values, reverse=True)


CELLS = [
    *("10 (9.8)", "–", "3.1e-04", "", "∞", "! 2.5", f"{MINUS}4e2", "≈9", "1.2e+05 ± 3", "-7", "[0.5 – ∞]", "0"),
    *("beta", "! alpha", "26.6%", "1/12", "2-stage", "beta d=128", "beta d=64"),
]
ASCENDING = [f"{MINUS}4e2", "-7", "0", "3.1e-04", "[0.5 – ∞]", "1/12", "≈9", "10 (9.8)", "26.6%", "1.2e+05 ± 3", "∞"]
WORDS = ["2-stage", "! 2.5", "! alpha", "beta", "beta d=64", "beta d=128"]


class OneGrid(Shown):
    """A view with a grid that a test wrote down."""

    grid: Grid

    @property
    def tables(self):
        return [self.grid]


def page_with(grid, folder):
    shown = OneGrid("error", Catalogue("check", ()), lambda kind: DataFrame(), Header())
    object.__setattr__(shown, "grid", grid)
    return html_page([Report(Run(folder, {}), [shown])])


def test_every_kind_of_cell_has_its_place(browser, tmp_path):
    """Numbers by value whatever their notation, then words whatever their mark, then what is empty."""
    table = text_grid("a table", ["cell", "place"], [[x, str(i)] for i, x in enumerate(CELLS)])
    page = page_with(table, tmp_path)
    (tmp_path / "table.html").write_text(page, encoding="utf-8")
    browser.open(tmp_path / "table.html")
    browser.click(header(0))
    assert column(browser, 0) == [*ASCENDING, *WORDS, "–", ""]
    browser.click(header(0))
    assert column(browser, 0) == [*ASCENDING[::-1], *WORDS[::-1], "–", ""]
    browser.click(header(1))
    assert column(browser, 0) == CELLS


def test_the_keyboard_sorts_too(browser, report):
    browser.open(report)
    first, second = visible(browser)[1:3]
    before = column(browser, second)
    browser.value(f"{header(first)}.focus()")
    browser.press("Tab", 9)
    assert browser.value(f"document.activeElement === {header(second)}")
    browser.press("Enter", 13, "\r")
    assert sorted_by(browser, second) == "ascending" and column(browser, second) != before
    browser.press(" ", 32, " ")
    assert sorted_by(browser, second) == "descending"


def test_columns_are_hidden_until_the_table_fits_and_shown_when_asked(browser, tmp_path):
    """The headings that a narrow terminal goes without are hidden in the same order, no more than it takes."""
    names = ["method", "first", "second", "third"]
    lines = [["x", *(f"{name} " + "wide " * 7 for name in names[1:])]]
    table = text_grid("a table", names, lines, spare=["second", "first"])
    page = page_with(table, tmp_path)
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    shown = "[...document.querySelectorAll('table.sorts th')].filter(one => !one.hidden).map(one => one.textContent)"
    browser.open(tmp_path / "page.html", 3000)
    assert browser.value(shown) == names
    browser.open(tmp_path / "page.html", 900)
    assert browser.value(shown) == ["method", "first", "third"]
    assert browser.value("document.querySelector('.columns summary').textContent") == "Columns: 3 of 4 shown"
    assert browser.value("[...document.querySelectorAll('table.sorts td')].map(one => one.hidden)") == [
        *(False, False, True, False)
    ]
    browser.open(tmp_path / "page.html", 500)
    assert browser.value(shown) == ["method", "third"]
    browser.value("document.querySelector('.columns').open = true")
    browser.click("document.querySelectorAll('.columns input')[2]")
    assert browser.value(shown) == ["method", "second", "third"]


@pytest.mark.parametrize("command", ["error", "inject", "spectrum"])
def test_the_tables_of_inputs_fit_the_page(browser, tmp_path, command):
    run = open_run(RUNS / command)
    (tmp_path / "page.html").write_text(html_page([Report(run, views(run))]), encoding="utf-8")
    browser.open(tmp_path / "page.html", 1400)
    inputs = "[...document.querySelectorAll('.scroll[aria-label^=Q]')]"
    assert browser.value(f"{inputs}.length") >= 1
    assert browser.value(f"{inputs}.every(frame => frame.scrollWidth <= frame.clientWidth)")
    shown = f"{inputs}.map(frame => [...frame.querySelectorAll('th')].filter(one => !one.hidden).length)"
    assert min(browser.value(shown)) >= 8


@pytest.mark.parametrize("width", [1400, 420, 320])
def test_nothing_sticks_out_of_the_page(browser, report, width):
    """Wide tables and figures scroll in their own frames."""
    browser.open(report, width)
    assert browser.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    frames = "[...document.querySelectorAll('.scroll, .sheet')]"
    assert browser.value(f"{frames}.every(one => one.getBoundingClientRect().right <= innerWidth)")
    assert browser.value("getComputedStyle(document.querySelector('.scroll')).overflowX") == "auto"
    drawn = browser.value("Math.min(...[...document.querySelectorAll('.sheet svg')].map(one => one.clientWidth))")
    assert drawn >= 450  # smaller, and the words in it could not be read
    rows = "[...document.querySelectorAll('table.sorts tr')].map(row => row.clientHeight)"
    assert max(browser.value(rows)) < 130  # no column so narrow that its words stand letter by letter


# the least contrast of text with what lies behind it (WCAG: 4.5 for text of this size)
CONTRAST = """(() => {
  const parse = text => { const x = text.match(/[\\d.]+/g).map(Number); return x.length < 4 ? [...x, 1] : x; };
  const linear = x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = one => {
    for (; one; one = one.parentElement) {
      const found = parse(getComputedStyle(one).backgroundColor);
      if (found[3] === 1) return found;
    }
    return [255, 255, 255, 1];
  };
  const words = 'h1,h2,h3,p,li,dt,dd,td,th button,a,figcaption,summary,footer,.state';
  return [...document.querySelectorAll(words)].filter(one => one.textContent.trim()).map(one => {
    const [a, b] = [light(parse(getComputedStyle(one).color)), light(behind(one))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), one.tagName];
  }).sort((x, y) => x[0] - y[0])[0];
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_by_day_and_by_night(browser, report, scheme):
    browser.open(report, scheme=scheme)
    paper = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper)[:3])) > 3 * 128) == (scheme == "light")
    least, name = browser.value(CONTRAST)
    assert least >= 4.5, name
