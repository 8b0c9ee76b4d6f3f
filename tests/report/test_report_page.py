"""The page of a run: nothing is fetched, nothing of a run is executed, every figure and table is there."""

import base64
import hashlib
import math
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest
from error_records import cell
from golden import rewrite as golden
from report_pages import a_folder, an_evil_folder, page_of, records
from showing import EACH, files_of

from attnprobe.cli import main
from attnprobe.compare.contest import Contest
from attnprobe.experiments.error.cost import cost_figure
from attnprobe.experiments.error.error_figure import error_figure
from attnprobe.experiments.error.heads_figure import head_figures
from attnprobe.experiments.error.papers import paper_figure
from attnprobe.experiments.error.view import error_tables, summarise
from attnprobe.figures.drawing import Drawing
from attnprobe.figures.methods import text_label
from attnprobe.report import Report, html_page, open_run, views
from attnprobe.report.page import inline_svg
from attnprobe.tables.numbers import significant

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
    return page_of(a_folder(tmp_path_factory.mktemp("page") / "r", records(), manifest))


def test_the_page_is_whole_and_has_every_figure_and_number(page):
    actual = Reader(page)
    text = " ".join(actual.texts)
    figures = [one for tag, one in actual.elements if tag == "figure"]
    names = [one["aria-label"] for tag, one in actual.elements if tag == "svg"]
    assert len(figures) == len(names) == 3
    assert names == [
        "Relative output error (spectral norm) against budget d: median, p10 – p90, maximum (n = 64)",
        "Relative output error (spectral norm) head by head: mean over windows and repeats (n = 64)",
        "Relative output error (spectral norm) against cost: medians (layers 0, 2, n = 64)",
    ]
    captions = re.findall("<figcaption>(.*?)</figcaption>", page, flags=re.S)
    assert "Points are medians, bands run from p10 to p90, and ticks are maxima, or arrows" in captions[0]
    assert not any("attnprobe error" in caption for caption in captions)  # where it is from stands once
    rows, bounds = summarise(records())
    for row in [*rows, *bounds]:
        assert significant(row["metrics"]["output_spectral"]["mean"]) in text
    for word in ("command line", "2.13.0", "finished", "attnprobe error --d 16", "skyformer", "layer 2 · n = 64"):
        assert word in text
    assert page.startswith("<!doctype html>")


def test_the_best_of_a_column_is_bold(page):
    tables = error_tables(*summarise(records()), tested=Contest(records(), "error"))
    best = Counter(table.lines[line][column] for table in tables for line, column in table.best)
    assert best and Counter(re.findall(r"<td[^>]*><strong>(.*?)</strong></td>", page)) == best


def test_the_legend_is_sentences(page):
    legends = re.findall(r'<p class="legend">(.*?)</p>', page)
    assert legends and all(re.fullmatch(r"[^\[&].*\.", legend) for legend in legends), legends


def test_nothing_is_fetched(page):
    """No address but those of the run's own files, which a reader may follow, and a policy that would refuse one."""
    files = re.findall(r'<li><a href="((?:tables|figures)/[\w.-]+|records\.jsonl|manifest\.json)">\1</a></li>', page)
    assert {"records.jsonl", "manifest.json", "tables/error.csv"} <= set(files)
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
    text = page_of(folder)
    actual = Reader(text)
    assert [tag for tag, _ in actual.elements].count("script") == 1 == text.count("<script>")
    assert not any(tag == "img" or any(name.startswith("on") for name in attrs) for tag, attrs in actual.elements)
    assert "document.title='owned'" in "".join(actual.texts)  # it is shown, as words
    assert {tag for tag, _ in actual.elements} <= {tag for tag, _ in Reader(page).elements} | {"ul", "li", "p"}


def test_cells_sort_by_their_number(page):
    keys = re.findall(r'<td class="r" data-k="([^"]+)">(?:<strong>)?([^<]*)<', page)
    assert len(keys) > 50
    for key, shown in keys:
        assert math.isclose(float(key), float(re.search(r"-?\d[\d.]*(?:e[+-]?\d+)?", shown)[0]))


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
    run = open_run(golden.RUNS / command)
    shown = views(run)
    actual = Reader(html_page([Report(run, shown)]))
    tables = sum(len(view.tables) for view in shown)
    assert tables and sum(tag == "table" for tag, _ in actual.elements) >= tables


# --- heat maps, and error against cost


def test_heat_maps_show_the_mean_of_each_head(tmp_path, pages):
    """More methods than layers are lines, by their median at the largest d; V-Mean, which has none, is in each map."""
    some = records()
    paths = head_figures(some, summarise(some)[0], Drawing(), tmp_path, "output_spectral")
    assert [path.name for path in paths] == files_of("heads-output_spectral-n64")
    maps = [axis for axis in pages[0].axes if axis.get_label() != "<colorbar>"]
    assert [axis.get_title() for axis in maps] == [f"layer {layer}, d = {d}" for layer in (0, 2) for d in (16, 32)]
    labels = [text.get_text().removesuffix(" !") for text in maps[0].get_yticklabels()]

    def means(name, d, layer):
        cells = [one for one in some if (text_label(one), one["d"], one["layer"]) == (name, d, layer)]
        return np.mean([one["metrics"]["output_spectral"] for one in cells], axis=0)

    def budget(name, d):
        return None if name == "V-Mean" else d

    medians = [np.median([means(name, budget(name, 32), layer) for layer in (0, 2)]) for name in labels]
    assert "V-Mean" in labels[:-1] and medians == sorted(medians)
    for axis in maps:
        layer, d = map(int, re.findall(r"\d+", axis.get_title()))
        drawn = np.asarray(axis.collections[0].get_array())
        expected = [means(name, budget(name, d), layer) for name in labels]
        assert drawn == pytest.approx(np.array(expected)), axis.get_title()
        assert axis.get_ylim() == (4, 0)


def test_heat_maps_of_many_layers_have_these_as_lines(tmp_path, pages):
    layers = range(3)
    some = [cell(d=d, values=[0.1 + layer, 0.2 * d], layer=layer, source={}) for d in (1, 2) for layer in layers]
    some += [cell("vmean", None, [1.0, 2.0], layer=layer, source={}) for layer in layers]
    head_figures(some, summarise(some)[0], Drawing(), tmp_path, "output_spectral")
    maps = [axis for axis in pages[0].axes if axis.get_visible() and axis.get_label() != "<colorbar>"]
    names = [(axis.get_ylabel(), axis.get_title()) for axis in maps]
    assert names == [("skyformer\nlayer", "d = 1"), ("", "d = 2"), ("V-Mean\nlayer", "")]
    assert [text.get_text() for text in maps[0].get_yticklabels()] == ["0", "1", "2"]
    for axis, last in zip(maps, (0.2, 0.4, 2.0), strict=True):
        drawn = np.asarray(axis.collections[0].get_array())
        assert drawn == pytest.approx(np.array([[1.0 if last == 2.0 else 0.1 + layer, last] for layer in layers]))


def test_a_method_far_away_does_not_stretch_the_colours_of_heat_maps(tmp_path, pages):
    """The scale ends at 1.5 ranges of the quartiles beyond them, and a map beyond it is named so."""
    spread = [0.1, 0.2, 0.3, 0.4]
    some = [
        cell(name, 16, [size * one for one in spread], layer=layer, source={})
        for name, size in (("skyformer", 1), ("topk", 1), ("window", 1), ("bigbird", 1), ("linformer", 1000))
        for layer in range(5)
    ]
    head_figures(some, summarise(some)[0], Drawing(), tmp_path, "output_spectral")
    maps = [axis for axis in pages[0].axes if axis.get_title()]
    assert [axis.get_title() for axis in maps[:3]] == ["skyformer", "topk", "window"]
    assert " ".join(maps[4].get_title().split()) == "linformer, above: ≥ 100"
    first, third = np.quantile([size * one for size in (1, 1, 1, 1, 1000) for one in spread], (0.25, 0.75))
    assert maps[0].collections[0].norm.vmax == pytest.approx(third * (third / first) ** 1.5)
    assert maps[0].collections[0].norm.vmin == 0.1


def test_methods_beyond_a_page_of_heat_maps_have_another_one(tmp_path, pages):
    """Long names have several lines. A page of methods without d has one map for each layer."""
    names = [f"{'m' * 60}{place:02}" for place in range(40)]
    some = [
        cell(name, None if place >= 20 else d, [1.0 + place], layer=layer, source={})
        for place, name in enumerate(names)
        for d in (1, 2)
        for layer in (0, 1)
    ]
    head_figures(some, summarise(some)[0], Drawing(style="slide"), tmp_path, "output_spectral")
    maps = [[axis for axis in page.axes if axis.get_title()] for page in pages]
    lines = [[text.get_text() for text in page[0].get_yticklabels()] for page in maps]
    assert ["".join(name.split()) for page in lines for name in page] == names
    assert all("\n" in name for page in lines for name in page)
    assert [axis.get_title() for axis in maps[-1]] == ["layer 0", "layer 1"], "not twice"


def test_lines_of_heat_maps_that_used_more_than_d_are_last(tmp_path, pages):
    some = records()
    for one in some:
        if one["method"] == "skyformer":
            one["metrics"]["realised_d"] = [64] * len(one["heads"])
    head_figures(some, summarise(some)[0], Drawing(), tmp_path, "output_spectral")
    labels = [text.get_text() for text in pages[0].axes[0].get_yticklabels()]
    assert labels[-1] == "skyformer ! (used 64)"
    (rule,) = pages[0].axes[0].lines
    assert {*rule.get_ydata()} == {len(labels) - 1}, "it sets the last line apart"
    assert pages[0].axes[0].get_ylabel() == "best first; those above d last"


@pytest.mark.filterwarnings("error")
@pytest.mark.slow
def test_heat_maps_of_what_is_missing_of_several_sources_and_of_many(tmp_path):
    one = [one for one in records() if one["layer"] == 0]
    assert head_figures(one, summarise(one)[0], Drawing(), tmp_path, "output_spectral") == []
    assert head_figures(records(), summarise(records())[0], Drawing(), tmp_path, "matrix_spectral") == []
    broken = [cell("skyformer", 16, [None, 0.0, 1.0, 1e9], layer=layer, source={}) for layer in range(3)]
    assert len(head_figures(broken, summarise(broken)[0], Drawing(), tmp_path, "output_spectral")) == EACH
    several = [*records(), *records(source={"weights": "initialized"})]
    names = {path.name for path in head_figures(several, summarise(several)[0], Drawing(), tmp_path, "output_spectral")}
    assert names == {
        f"heads-output_spectral-n64-{word}.{kind}"
        for word in ("pretrained", "initialized")
        for kind in ("svg", "png", "pdf", "txt")
    }
    many = [
        cell(f"m{number}", d, [1.0, 2.0], layer=layer, source={})
        for number in range(8)
        for d in range(1, 8)
        for layer in range(2)
    ]
    assert len(head_figures(many, summarise(many)[0], Drawing(), tmp_path, "output_spectral")) == EACH


def test_cost_shows_each_budget_at_its_entries(tmp_path, pages):
    rows, _ = summarise(records())
    paths = cost_figure(rows, Drawing(), tmp_path, "output_spectral")
    assert [path.name for path in paths] == files_of("cost-output_spectral")
    visited = pages[0].axes[0]
    points = [tuple(float(x[0]) for x in line.get_data()) for line in visited.lines if len(line.get_xdata()) == 1]
    for row in rows:
        if row["layer"] == 0 and not row["reference"]:
            metrics = row["metrics"]
            error = metrics["output_spectral"]["median"]
            assert (pytest.approx(100 * metrics["visited_fraction"]["mean"]), error) in points
    names = ["skyformer !", "nystromformer", r"mine_%\$&.py:fn"]
    assert {text.get_text() for text in visited.texts} == {*names, "d = 16", "32"}
    legend = [text.get_text() for text in pages[0].legends[0].get_texts()]
    assert legend == [
        "V-Mean",
        "exact attention",
        "hollow, !: bad rows (normaliser ≤ 0 or lost)",
        "frontier: no bad rows, left of exact attention",
    ]
    assert [list(line.get_xdata()) for line in visited.lines if line.get_color() == "black"] == [[100.0, 100.0]]


@pytest.mark.filterwarnings("error")
def test_cost_of_what_went_wrong(tmp_path):
    records = [cell("skyformer", d, [0.0, 1e9]) for d in (16, 32)]
    assert cost_figure(summarise(records)[0], Drawing(), tmp_path, "output_spectral") == []  # no entries
    records = [cell("skyformer", d, [1.0, 1e9]) for d in (16, 32)] + [cell("x", 16, status="failed", metrics={})]
    for record in records[:2]:
        record["metrics"]["visited_fraction"] = [0.25, 0.25]
    records += [cell("linear", None, [1.0, 2.0]), cell("huge", 16, [1.7e308, 1.7e308]), cell("$_", 16, n=128)]
    assert len(cost_figure(summarise(records)[0], Drawing(), tmp_path, "output_spectral")) == EACH
    assert cost_figure(summarise(records[:1])[0], Drawing(), tmp_path, "output_spectral") == []


def test_keys_read_are_a_panel_of_costs_where_a_method_states_them(tmp_path, pages):
    some = [cell("quest", d, [1.0, 2.0]) for d in (8, 16)]
    for record in some:
        record["metrics"] |= {"kv_read": [10.0 + record["d"], 12.0 + record["d"]]}
    cost_figure(summarise(some)[0], Drawing(), tmp_path, "output_spectral")
    (keys,) = pages[-1].axes
    assert keys.get_xlabel() == "rows of K and V read for a query"
    points = [line for line in keys.lines if len(line.get_xdata()) == 1 and line.get_marker() != "None"]
    assert [float(line.get_xdata()[0]) for line in points] == [19.0, 27.0]


def test_a_method_looks_the_same_in_every_figure(tmp_path, pages):
    """Whatever the order of its family, and where another method has no value in one of the figures."""
    families = {"skyformer": "Nyström", "nystromformer": "Nyström"}
    places = [(layer, n, d) for layer in (0, 1) for n in (64, 128) for d in (16, 32)]
    some = [
        cell(method, d, [1.0, 2.0 + place], family=families[method], layer=layer, n=n)
        for place, method in enumerate(families)
        for layer, n, d in places
    ]
    some += [cell("amm", d, status="failed", metrics={}, family="sketch") for d in (16, 32)]
    for record in some[:-2]:
        record["metrics"]["visited_fraction"] = [record["d"] / record["n"]] * 2
    rows, bounds = summarise([*some[:8], *some[-2:], *some[8:-2]])
    assert error_figure(rows, bounds, Drawing(), tmp_path) and paper_figure(rows, Drawing(), tmp_path)
    assert cost_figure(rows, Drawing(), tmp_path, "output_spectral") and len(pages) >= 3
    looks = []
    for figure in pages:
        legend = figure.legends[0]
        lines = zip(legend.get_texts(), legend.legend_handles, strict=True)
        looks.append({text.get_text(): (line.get_color(), line.get_marker()) for text, line in lines})
    for name in families:
        assert len({look[name] for look in looks if name in look}) == 1
        names = [text for page in pages for axis in page.axes for text in axis.texts if text.get_text() == name]
        assert {text.get_color() for text in names} == {looks[0][name][0]}, "names at lines of costs"
    shared = pages[0].axes[0].get_shared_y_axes()
    a, b, c, _ = pages[0].axes
    assert [axis.get_title() for axis in (a, b, c)] == ["n = 64", "n = 128", ""]
    assert [axis.get_ylabel().partition("\n")[0] for axis in (a, c)] == ["layer 0", "layer 1"]
    assert shared.joined(a, b) and not shared.joined(a, c)  # a row of panels is a layer, and has its own scale


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
