"""Tables on a terminal and in a pipe: widths, legends, rules and marks, and the digits of numbers."""

import re
from dataclasses import replace
from random import Random

import pytest
from text_tables import text_table

from attnprobe.records.file import LOWER_BOUND
from attnprobe.tables.console import Header
from attnprobe.tables.formats import github
from attnprobe.tables.labels import measured_words, source_labels
from attnprobe.tables.long import worst_status
from attnprobe.tables.methods import grouped
from attnprobe.tables.numbers import significant
from attnprobe.tables.table import Column, Table
from attnprobe.tables.terminal import plain_tables
from attnprobe.tables.view import flat_view
from attnprobe.timings import timings_table

WORDS = " ".join(f"word{i}" for i in range(26))
NUMBERS = {"short": "1", "long": "1" * 40}


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_numbers_keep_their_digits():
    random = Random(0)
    for _ in range(2000):
        value = random.choice([-1, 1]) * 10 ** random.uniform(-12, 12)
        text = significant(value)
        assert float(text) == pytest.approx(value, rel=6e-4)
        assert len(text) <= 10
    assert significant(0.99999) == "1.000"
    assert significant(9999.6) == "10000"


def test_only_sources_that_share_a_word_are_told_apart():
    facts = [{"weights": "pretrained"}, *({"weights": "initialized", "weights_seed": seed} for seed in (0, 1))]
    labels = ["pretrained", "initialized, weights seed 0", "initialized, weights seed 1"]
    assert [*source_labels({"source": one} for one in facts).values()] == labels


TOLD = {  # a fact in which sources differ, the most telling first: two values, and what the label says of the second
    "scale_inputs": (1, 4, "scores x 4"),
    "weights_seed": (0, 1, "weights seed 1"),
    "model_sha256": ("1", "2", "model b"),
    "qkv_sha256": ("1", "2", "qkv b"),
    "text_sha256": ("1", "2", "text b"),
    "tokenizer_sha256": ("1", "2", "tokenizer b"),
    "positions": ("segment", "wrap", "positions wrap"),
    "dtype": ("float32", "float64", "dtype float64"),
    "causal": (False, True, "causal True"),
}


def test_sources_are_told_apart_by_the_most_telling_fact():
    names = [name.removesuffix("_sha256") for name in TOLD if name.endswith("_sha256")]
    for place in range(len(TOLD)):
        some = [*TOLD.items()][place:]
        sources = [
            {"weights": "pretrained", **dict.fromkeys(names, "ab"[i]), **{name: of[i] for name, of in some}}
            for i in (0, 1)
        ]
        said = [*source_labels({"source": one} for one in sources).values()][1]
        assert said == f"pretrained, {some[0][1][2]}"


def test_hashed_files_of_one_name_are_told_apart_by_their_hashes():
    sources = [{"weights": "pretrained", "text": "a", "text_sha256": x * 64} for x in "12"]
    labels = [*source_labels({"source": one} for one in sources).values()]
    assert labels == [f"pretrained, text sha256 {x * 12}…" for x in "12"]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"model": "smollm2", "weights": "initialized", "weights_seed": 3, "text": "wikitext-2", "split": "test"},
            "SmolLM2 (135M-Instruct, 4-bit weights), random weights (seed 3), on Wikitext-2 (test)",
        ),
        (
            {"model": "m", "weights": "initialized-qkv", "text": "words.txt", "causal": True, "sliding_window": 4},
            "m, pretrained but random W_Q, W_K, W_V, on words.txt",
        ),
        ({"qkv": "a.npz", "queries": "last 8 of 16"}, "Q, K and V of a.npz"),
        ({"random": "independent N(0, 1)", "scale_inputs": 2}, "random Q, K and V, independent N(0, 1)"),
    ],
)
def test_what_was_measured_in_words(facts, words):
    records = [{"source": facts, "layer": layer, "n": n, "heads": [1]} for layer in (0, 1, 2) for n in (64, 32)]
    last = ["causal"] * ("causal" in facts) + ["sliding windows"] * ("sliding_window" in facts)
    last += [f"queries {facts['queries']}"] if "queries" in facts else []
    scaled = ["scores x 2"] if "scale_inputs" in facts else []
    assert measured_words(records) == ", ".join([words, *scaled, "layers 0-2, n = 32, 64, 1 head", *last])


def test_a_place_of_bounds_that_are_zero_has_no_table():
    zero = {"source": None, "layer": 0, "n": 8, "target": "softmax", "method": LOWER_BOUND}
    zero["metrics"] = {"output_spectral": {"max": 0.0}}
    assert grouped([], [zero]) == []
    assert [len(group) for group in grouped([zero | {"method": "a"}], [zero])] == [1]


def test_of_many_reasons_three_are_named():
    cells = [("failed", f"reason {number}") for number in range(5)]
    assert worst_status(cells[:4] + [("ok", None)])[1] == (
        "4 failed of 5 cells: reason 0; reason 1; reason 2 (and 1 more reasons)"
    )
    assert worst_status(cells[:3])[1] == "3 failed of 3 cells: reason 0; reason 1; reason 2"
    assert worst_status([("skipped", None)]) == ("skipped", None)


def test_timings_add_up_to_the_total():
    lines = timings_table({"model": 2.0, "a longer name of a stage": 1.0}, 4.0).splitlines()
    assert [line.split()[-2:] for line in lines[1:]] == [["2.000", "50.0%"], ["1.000", "25.0%"], ["1.000", "25.0%"]]
    assert lines[-1].startswith("attnprobe itself")
    assert "0.0%" in timings_table({}, 0.0)


@pytest.mark.parametrize("columns, width, least, most", [(3, 200, 70, 80), (14, 200, 110, 120), (3, 60, 50, 60)])
def test_the_legend_is_as_wide_as_its_table_within_limits(columns, width, least, most):
    """80 columns where the terminal has them, and 120 at most: longer lines are hard to read."""
    headings = [f"a column {i}" for i in range(columns)]
    table = text_table("a caption", headings, [["1.25"] * columns])
    words = WORDS.split()[: 40 * width // 200 + 14]
    shown = plain(plain_tables([table], [" ".join(words)], Header(), width=width))
    legend = [line.strip().partition(" a column")[0] for line in shown.splitlines() if line.startswith("word")]
    assert " ".join(legend).partition(" a column")[0].split() == words and least <= max(map(len, legend)) <= most


def test_any_rows_are_a_table_whose_numbers_and_words_are_never_cut(capsys):
    words = WORDS.replace("word", "incomprehensibility")
    rows = [{"a number": 1234567890 + i, "another": i, "words": words} for i in range(2)]
    for width in (40, 100, 200):
        shown = plain(flat_view("anything", rows).text("table", width=width))
        assert "1234567890" in shown and "1234567891" in shown and all(word in shown for word in words.split())
        assert max(map(len, shown.splitlines())) <= max(width, 80)
    piped = flat_view("anything", rows).text("table")
    assert words in piped
    assert flat_view("anything", []).text("table") == "no rows"


@pytest.mark.parametrize("width", [60, 80, 100])
def test_names_with_options_are_folded_where_the_table_is_too_wide(width):
    names = ["skyformer:guard=sampled,sampler=wor,inverse=cholesky,gamma=0.01", "vmean (ref.)"]
    table = text_table("", ["method", "a", "b", "c"], [[name, "1.25", "10.5", "0.001"] for name in names])
    drawn = plain(plain_tables([table], [], Header(), width=width)).split("\n\n")[0]
    assert max(map(len, drawn.splitlines())) <= width and "…" not in drawn
    assert all(option in drawn for option in ("skyformer:", "guard=sampled,", "inverse=cholesky,", "gamma=0.01"))
    assert (names[0] in drawn) == (width == 100)


@pytest.mark.parametrize(("count", "more"), [(3, None), (4, ", 1 more tables,"), (5, ", 2 more tables,")])
def test_a_summary_for_ci_has_three_tables_above_its_fold(count, more):
    tables = [text_table(f"caption {number}", ["a"], [[f"cell {number}"]]) for number in range(count)]
    above, _, below = github(tables, [], Header(), None).partition("<details>")
    assert [f"cell {number}" in above for number in range(count)] == [number < 3 for number in range(count)]
    assert (" more tables" in below) == (more is not None) and (more or "") in below


def test_a_summary_for_ci_gives_each_warning_once():
    header = Header(lines=["model: m", "fallback: no hub"], warnings=["no hub"], first="M on T")
    view = replace(flat_view("x", [{"a": 1}], header), run="outputs/r")
    text = view.text("github")
    assert text.count("no hub") == 1 and text.count("M on T") == 1
    assert "model: m" in text.partition("<details>")[2] and "Run: outputs/r" in text


def test_tables_with_the_same_headings_go_without_the_same_columns():
    alike = [text_table(one, ["name", "number"], [["a", text]], spare=["number"]) for one, text in NUMBERS.items()]
    other = text_table("another", ["name", "count"], [["a", "1"]], spare=["count"])
    shown = plain(plain_tables([*alike, other], [], Header(), width=30))
    assert "number" not in shown.partition("Left out")[0] and "count" in shown
    assert "Left out: number (--columns)" in " ".join(shown.split())
    wide = plain(plain_tables([*alike, other], [], Header(), width=39))
    assert "what number is" not in wide


def headings_at(table, width):
    shown = plain(plain_tables([table], [], Header(), width=width)).splitlines()
    return next(line for line in shown if line.lstrip().startswith("name")).split()


def test_no_more_spare_columns_go_than_the_width_wants():
    """Three numbers of 26 characters beside a name of 4, two spaces apart, are 88 wide."""
    headings = ["name", "one", "two", "three"]
    table = text_table("", headings, [["some", *["1" * 26] * 3]], spare=["three", "two"])
    assert headings_at(table, 88) == headings
    assert headings_at(table, 87) == headings[:3] == headings_at(table, 60)
    assert headings_at(table, 59) == headings[:2]


def test_without_its_spare_columns_a_table_loses_its_last_numbers_but_one():
    headings = ["name", "one", "two", "three"]
    table = text_table("", headings, [["some", *["1" * 26] * 3]], spare=["three"])
    assert headings_at(table, 60) == headings[:3]
    assert headings_at(table, 59) == headings[:2] == headings_at(table, 20)


def test_without_spare_columns_every_second_number_goes_and_then_the_last():
    """Numbers of 18 characters, each two spaces apart, beside a name of 4."""
    headings = ["name", *(f"n{i}" for i in range(1, 9))]
    table = text_table("", headings, [["some", *["1" * 18] * 8]])
    assert headings_at(table, 164) == headings
    five = ["name", "n1", "n2", "n4", "n6", "n8"]
    assert headings_at(table, 163) == five == headings_at(table, 104)
    assert headings_at(table, 103) == five[:-1] == headings_at(table, 84)
    assert headings_at(table, 83) == five[:-2]


@pytest.mark.parametrize("names, rules", [(["a", "b"], 0), (["a", "a", "b"], 1), (["a", "a", "b", "c"], 2)])
def test_a_rule_stands_between_names_where_a_name_has_several_lines(names, rules):
    lines = [["x" + name, "1"] for name in names]
    shown = plain(plain_tables([text_table("caption", ["name", "number"], lines)], [], Header(), width=80)).strip()
    assert sum(not line.strip() for line in shown.partition("\n\nname")[0].splitlines()) == rules
    assert shown.count("xa") == 1


def test_a_hidden_column_that_shares_its_name_with_a_shown_one_is_named_by_its_heading():
    columns = [
        Column("matrix", str, key=True),
        Column("cond", str, "σ₁/σ_m"),
        Column("[p10 – p90]", str, "σ₁/σ_m", spare=1, short="cond"),
    ]
    table = Table("", columns, [["A", "1" * 30, "[" + "1" * 30 + "]"]])
    assert "Left out: [p10 – p90] (--columns)" in plain(plain_tables([table], [], Header(), width=50))


def test_formulas_are_on_the_left_as_words_are():
    table = text_table("", ["method", "error", "value"], [["a", "‖E‖₂/‖B‖₂", "12.5"], ["b", "|D~/D − 1|", "∞"]])
    lines = plain(plain_tables([table], [], Header(), width=80)).splitlines()
    heading, cells = next(line for line in lines if "error" in line), next(line for line in lines if "‖E‖₂" in line)
    assert heading.index("error") == cells.index("‖E‖₂") and table.sides == ["l", "l", "r"]


def test_a_mark_stands_before_its_line():
    lines = [["x", "one", "1"], ["✗ x", "one", ""], ["y", "two", "2"]]
    table = text_table("caption", ["name", "family", "number"], lines)
    shown = plain(plain_tables([table], [], Header(), width=80)).strip().splitlines()
    assert [line.split() for line in shown[3:7] if line.strip()] == [["x", "one", "1"], ["✗", "one"], ["y", "two", "2"]]
    piped = plain(plain_tables([table], [], Header())).splitlines()
    assert ["✗", "x", "one"] in [line.split() for line in piped]
