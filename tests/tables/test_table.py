"""Columns by name, cells from format strings, the best of a column, the legend of three lines, and long rows."""

import ast
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from golden.rewrite import RUNS, SHOWN
from of_records import OF_RECORDS
from text_tables import text_table

import attnprobe
from attnprobe.errors import UsageError
from attnprobe.experiments import experiment
from attnprobe.records.shapes import Place, Shape
from attnprobe.report import open_run, views
from attnprobe.tables.console import Header
from attnprobe.tables.formats import check_fields
from attnprobe.tables.latex import TEXT, tex
from attnprobe.tables.long import long_rows, quantiles, summarised
from attnprobe.tables.numbers import aligned, cell_text
from attnprobe.tables.results import Value
from attnprobe.tables.table import Best, Column, table_of
from attnprobe.tables.terminal import LEGEND_LINES, plain_tables
from attnprobe.tables.view import View, is_called, spelling

ROWS = [
    {"method": "a", "d": 8, "error": 1.0, "se": 0.2},
    {"method": "b", "d": 8, "error": 1.2, "se": 0.1},
    {"method": "c", "d": 8, "error": 1.5, "se": 0.1},
    {"method": "d", "d": 16, "error": 0.1, "se": None},
    {"method": "reference", "d": 8, "error": 0.0, "se": None},
]
ERROR = Best(lambda row: Value(row["error"], row["se"]))
COLUMNS = (
    Column("method", lambda row: row["method"]),
    Column("d", "{d}"),
    Column("‖E‖₂\nmedian", lambda row: str(row["error"]), "of the output", 2, "median", "over heads", best=ERROR),
    Column("s.e.", lambda row: str(row["se"] or ""), spare=1),
    Column("guarded\nrows", lambda row: ""),
)


def a_view():
    def rivals(row):
        return None if row["method"] == "reference" else row["d"]

    table = table_of("caption", ROWS, COLUMNS, rivals=rivals)
    return View("x", Header(), ROWS, [table], columns=COLUMNS)


def test_the_best_of_a_column_is_shared_within_the_standard_error():
    """b is within both standard errors of a; d has no rival at its budget; the reference takes no part."""
    (table,) = a_view().tables
    assert sorted(table.best) == [(0, 2), (1, 2)]
    assert "**1.0**" in a_view().text("md") and "**1.2**" in a_view().text("md")
    assert a_view().text("md").count("**") == 2 * 2 + 2  # and the caption
    assert a_view().text("latex", columns=["median"]).count(r"\textbf{") == 2
    bold = re.findall(r"\x1b\[1m *(\d[\d.]*) *\x1b\[0m", a_view().text("table", width=80))
    assert bold == ["1.0", "1.2"]


def test_where_no_rival_is_worse_nothing_is_bold():
    columns = [Column("x", lambda row: f"{row[0]}", best=Best(lambda row: Value(*row)))]
    rows = [(1.0, 0.5), (1.2, 0.5), (1.4, 0.5)]
    assert not table_of("", rows, columns, rivals=lambda row: 0).best
    assert len(table_of("", [*rows, (9.0, 0.5)], columns, rivals=lambda row: 0).best) == 3


def test_cells_that_read_the_same_are_bold_together():
    columns = [Column("x", lambda row: f"{row:.1f}", best=Best(lambda row: Value(row, 0.0)))]
    table = table_of("", [0.52, 0.49, 0.61], columns, rivals=lambda row: 0)
    assert sorted(table.best) == [(0, 0), (1, 0)]


def test_columns_are_chosen_by_the_names_that_are_shown():
    text = a_view().text("md", columns=["median", "method"])
    assert "| ‖E‖₂ median | method |" in text and "**1.0** | a" in text and "s.e." not in text
    assert a_view().text("md", columns=["‖E‖₂ median", "method"]) == text
    with pytest.raises(UsageError, match="unknown column 'medain'; did you mean 'median'. Columns: method, d, median"):
        a_view().text("table", columns=["medain"])
    with pytest.raises(UsageError, match="json has every field"):
        a_view().text("json", columns=["median"])


def test_a_column_that_is_empty_in_this_run_is_told():
    text = a_view().text("table", columns=["method", "guarded rows"])
    assert "Empty in this run: guarded rows." in text


def test_columns_of_csv_are_its_fields():
    row = {"method": "a", "metrics": {"x": {"mean": 0.5, "max": 1.0}, "y": {"mean": 2.0}}}
    view = View("x", Header(), [row], [])
    assert view.text("csv", columns=["x", "method"]).splitlines() == ["x.mean,x.max,method", "0.5,1.0,a"]
    assert view.text("csv", columns=["x.max"]).splitlines() == ["x.max", "1.0"]
    with pytest.raises(UsageError, match=r"unknown field 'z'; choose from method, x, y$"):
        view.text("csv", columns=["z"])
    with pytest.raises(UsageError, match=r"unknown field 'x.maen'; did you mean 'x.mean'"):
        view.text("csv", columns=["x.maen"])


def test_a_field_that_no_row_has_is_an_empty_column_of_csv():
    view = View("x", Header(), [{"method": "a"}], [], fields=["method", "seconds.mean"])
    assert view.text("csv", columns=["method", "seconds.mean"]).splitlines() == ["method,seconds.mean", "a,"]


@pytest.mark.parametrize("command", OF_RECORDS)
def test_all_fields_of_csv_are_known_before_a_run(command):
    header = (SHOWN / command / f"{command}.csv").read_text().partition("\n")[0].split(",")
    assert len(header) > 20
    check_fields(experiment(command).fields, header)


def test_key_columns_stay_first_where_they_are_not_named():
    """Else a table of two methods at two budgets would not say which row is of which."""
    columns = [Column("method", "{method}", key=True), Column("d", "{d}", key=True), Column("error", "{error}")]
    view = View("x", Header(), ROWS, [table_of("", ROWS, columns)])
    assert view.text("md", columns=["error"]).splitlines()[2] == "| method | d | error |"
    assert view.text("md", columns=["error", "d"]).splitlines()[2] == "| method | error | d |"


def test_a_table_with_none_of_the_named_columns_but_keys_is_left_out():
    columns = [Column("method", "{method}", key=True), Column("d", "{d}", key=True)]
    tables = [table_of(name, ROWS, [*columns, Column(name, "{error}")]) for name in ("error", "ratio")]
    view = View("x", Header(), ROWS, tables)
    assert [table.caption for table in view.with_columns(["method", "d", "error"]).tables] == ["error"]
    assert [table.caption for table in view.with_columns(["method"]).tables] == ["error", "ratio"]


@pytest.mark.parametrize("command", OF_RECORDS)
def test_tables_of_every_command_have_key_columns(command):
    tables = [view for view in views(open_run(RUNS / command))][0].tables
    for table in tables:
        keys = [place for place, column in enumerate(table.columns) if column.key]
        rows = [tuple(line[place] for place in keys) for line in table.lines]
        assert len(set(rows)) == len(rows), (table.caption, [table.headings[place] for place in keys])


@pytest.mark.parametrize("command", OF_RECORDS)
def test_every_column_can_be_chosen_and_means_one_thing(command):
    columns = experiment(command).columns
    for column in columns:
        assert column.name and "," not in column.name and column.name == column.name.strip()
        assert is_called(column, column.name) and spelling(column.name)
    meanings = {}
    for column in columns:
        meanings.setdefault(spelling(column.name), set()).add((column.name, column.meaning))
    for name, several in meanings.items():
        assert len({name for name, _ in several}) == 1, several
        assert len({meaning for _, meaning in several if meaning}) <= 1, (name, several)


def test_the_legend_has_three_lines_and_explains_what_is_shown():
    names = [f"column {i}" for i in range(12)]
    table = text_table("caption", names, [["1.25"] * 12], spare=names[6:])
    text = plain_tables([table], ["A sentence."], Header(), width=60)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).split("\n\n")[-1].splitlines()
    assert lines[0].startswith("A sentence. column 0: what column 0 is.")
    assert "what column 5 is" not in text and all(len(line) <= 60 for line in lines)
    pointer = f"Left out: {', '.join(names[6:])} (--columns). --format md explains the rest."
    assert " ".join(lines[LEGEND_LINES:]) == pointer


PLAIN = {"method", "family", "d", "n", "layer", "weights", "matrix", "status", "kernel"}


@pytest.mark.parametrize("command", OF_RECORDS)
def test_a_column_without_a_meaning_has_a_plain_name(command):
    columns = list(experiment(command).columns)
    explained = {column.name for column in columns if column.meaning}
    assert {column.name for column in columns} - explained <= PLAIN


@pytest.mark.parametrize("width", [50, 80, 100, 120, 160])
def test_the_legend_explains_each_shown_column_or_points_to_its_explanation(width):
    names = [f"column {letter}" for letter in "abcdefghijkl"]
    text = plain_tables([text_table("", names, [["1.25"] * 12], spare=names[6:])], [], Header(), width=width)
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    table, legend = text.split("\n\n")[0], " ".join(text.split("\n\n")[-1].split())
    shown = [name for name in names if name in table]
    unexplained = [name for name in shown if f"{name}: what {name} is." not in legend]
    assert len(shown) >= min(6, width // 10)
    assert bool(unexplained) == legend.endswith("--format md explains the rest.")


def test_plain_words_stand_first_in_the_place_of_provenance():
    header = Header(
        lines=["model: m, sha256 0"], warnings=["a fallback", "another"], first="M on T", announced=["another"]
    )
    lines = plain_tables([], [], header).splitlines()
    assert lines[:2] == ["M on T", "! a fallback"] and "! another" not in lines


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


def rows_of(record):
    for head, error in zip(record["heads"], record["metrics"].get("output_spectral_relative", ()), strict=False):
        yield {"head": head, "error": error}


SHAPE = Shape(Place, rows=rows_of)


def record(window, status="ok", reason=None, **metrics):
    place = {"method": "mss", "options": {}, "target": "softmax", "layer": 0, "window": window, "n": 8, "d": 2}
    return {
        **place,
        "source": {},
        "heads": [0, 3],
        "status": status,
        "reason": reason,
        "matrices": [],
        "metrics": metrics,
    }


def test_a_record_has_a_row_for_each_head_and_one_without_any():
    errors = {"output_spectral_relative": [0.5, 0.25]}
    measured, failed = record(0, **errors), record(1, "failed", "no memory")
    rows = long_rows([measured, failed], SHAPE)
    expected = [(0, 0, 0.5, "ok"), (0, 3, 0.25, "ok"), (1, None, None, "failed")]
    assert [(row["window"], row["head"], row.get("error"), row["status"]) for row in rows] == expected


def test_a_group_has_the_worst_status_the_first_reason_and_its_numbers_of_heads_and_windows():
    rows = long_rows([record(0, output_spectral_relative=[1.0, 2.0]), record(1, "skipped", "too small")], SHAPE)
    [entry] = summarised(rows, ("method", "d"), lambda group: {"rows": len(group)})
    assert (entry["status"], entry["reason"], entry["heads"], entry["windows"]) == ("skipped", "too small", 2, 2)
    assert entry["rows"] == 3 and entry["scale_inputs"] == 1 and "window" not in entry


def test_a_quantile_beside_an_infinite_value_is_infinite():
    assert quantiles([1.0, -math.inf, 0.0]) == {"p10": -math.inf, "median": 0.0, "p90": 0.8}
    assert quantiles([math.inf, 0.0, 1.0]) == {"p10": pytest.approx(0.2), "median": 1.0, "p90": math.inf}


def test_latex_tables_have_a_label_each_and_no_symbol_outside_of_mathematics():
    text = replace(a_view(), run="out/my run_2").text("latex")
    labels = re.findall(r"\\label{(.*)}", text)
    assert all(label.startswith("tab:my-run-2-x") for label in labels)
    assert len({*labels}) == len(labels) == text.count(r"\caption")
    symbols = "‖∂M⁻¹/∂M‖₂ ‖I − MZ_t‖_F/√d SᵀC̄S + γI Ā σ16 |D~/D − 1| ≤ 2 ± 3e-5 ⪯ λ½ ●∇η ∞ ✗ × – ≈"
    assert tex(symbols).isascii() and tex(symbols).count("$") % 2 == 0
    assert tex("".join(TEXT)) == r"\textbackslash{}\&\%\$\#\_\{\}\textasciitilde{}\textasciicircum{}\textbar{}{[}"
    assert tex("0.1 – 0.3 (--columns)") == r"0.1 -- 0.3 (-{}-columns)"


def test_latex_has_every_row_and_the_reasons_of_marked_ones_in_its_note():
    rows = [{"method": "one", "d": 8, "error": 1.0}, {"method": "✗ two", "d": 8}, {"method": "– three", "d": 8}]
    columns = [Column("method", "{method}", key=True), Column("d", "{d}", key=True), Column("error", ["{error}", ""])]
    notes = ["✗ two d=8: failed, out of memory", "– three d=8: no causal form", "one against two: better"]
    text = View("error", Header(), rows, [table_of("", rows, columns, notes)]).text("latex")
    table, _, comments = text.partition(r"\end{table}")
    assert "\n$\\times$ two & 8 &  \\\\\n-- three & 8 &  \\\\\n" in table
    assert "$\\times$ two $d=8$: failed, out of memory. -- three $d=8$: no causal form." in table
    assert comments.strip() == "% one against two: better"


def test_a_table_of_few_columns_is_whole_in_latex_and_its_long_cells_have_several_lines():
    columns = [Column("method", "{method}", key=True), Column("ties", lambda row: "a tie, " * 20, spare=1)]
    of = View("error", Header(), ROWS, [table_of("", ROWS, columns)])
    assert of.text("latex").count(r"\parbox[t]{4.5cm}{\raggedright\strut a tie, ") == len(ROWS)
    many = [*columns, *(Column(f"x{place}", "{d}") for place in range(7))]
    assert "parbox" not in View("error", Header(), ROWS, [table_of("", ROWS, many)]).text("latex")


def test_latex_captions_name_the_quantity_and_the_source_and_labels_the_run():
    run = open_run(RUNS / "error-rows")
    [view] = views(run)
    caption = next(line for line in view.text("latex").splitlines() if line.startswith(r"\caption"))
    start = (
        r"\caption{Errors of attention approximations, decoder, with its own weights, on words.txt: layer 0 $\cdot$ "
    )
    assert caption.startswith(start) and caption.count("$n = 16$") == 1
    assert r"\label{tab:error-rows-inputs-Inputs-n-16}" in view.inputs.text("latex")


def test_exports_of_one_run_with_other_columns_share_no_label():
    """Two tables in one paper had the label tab:RUN-error-1."""
    [view] = views(open_run(RUNS / "error-rows"))
    labels = [
        re.findall(r"\\label{(.*)}", view.text("latex", columns=names)) for names in ((), ["mean"], ["next", "verdict"])
    ]
    assert labels[0][0] == "tab:error-rows-error-layer-0-n-16"
    every = [label for of_one in labels for label in of_one]
    assert len({*every}) == len(every) > len(labels[0])


def test_latex_headings_have_the_lines_of_a_terminal_and_arrows_are_mathematics():
    columns = [Column("method", "{m}", key=True), Column("median /\nV-Mean's", "{x:3}"), Column("\nmax", "{x:3}")]
    table = table_of("", [{"m": "a → b", "x": 0.5}], columns)
    text = View("error", Header(), [], [table]).text("latex")
    assert r"method & \shortstack[r]{median / \\ V-Mean's} & max \\" in text
    assert r"$\to$" in text and "→" not in text


def test_latex_explains_below_a_table_what_the_table_uses():
    """The legend was a comment: A, B and undecided stood unexplained."""
    columns = [Column("method", "{m}", key=True), Column("verdict", "{v}"), Column("d", "{d}", "budget", key=True)]
    rows = [{"m": "topk", "v": "undecided", "d": 8}, {"m": "– svd", "v": "", "d": 8}]
    legend = ["A, B: the runs.", "undecided: chance may make it.", "missing: in one run only.", "Heads of layer 0."]
    table = table_of("", rows, columns)
    text = View("compare", Header(), [], [table], legend).text("latex")
    below = r"\raggedright --: skipped. undecided: chance may make it. Heads of layer 0. $d$: budget.\par}"
    assert below in text and "missing" not in text


def test_latex_has_no_letter_that_needs_a_package():
    files = [path for path in SHOWN.rglob("*.tex")]
    assert files
    for path in files:
        lines = [line for line in path.read_text().splitlines() if not line.startswith("%")]
        assert all(line.isascii() for line in lines), path


@pytest.mark.parametrize("room", ["experiments", "tables", "metrics"])
def test_latex_knows_every_letter_that_a_table_may_have(room):
    """pdflatex stopped at π and θ₀, which the runs of the test before this one lack."""
    skipped = {"latex.py", "formats.py", "figures.py"}  # with letters that are replaced or drawn
    for path in (Path(attnprobe.__file__).parent / room).rglob("*.py"):
        parsed = [] if path.name in skipped else ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for one in parsed:
            if isinstance(one, ast.Constant) and isinstance(one.value, str) and "\n" not in one.value:
                assert re.fullmatch("[\x00-\xff…’]*", tex(one.value)), (path, one.value)


def test_small_numbers_fit_a_narrow_terminal():
    """Numbers that are aligned at their points are wider than the widest of them."""
    spreads = ["0.759 [0.544 – 1.41]", "69.90 [50.10 – 123.4]", "1.30e-07 [1.25e-07 – 1.38e-07]"]
    table = text_table("", ["method", "error"], [["mss", spread] for spread in spreads])
    widest, least = (len("method  ") + len(text) for text in (aligned(spreads)[0], spreads[-1]))
    assert least < widest
    for width in (widest, widest - 1, least):
        lines = plain_tables([table], [], Header(), width=width).splitlines()
        [line] = [line for line in lines if "0.759" in line]
        assert len(line) <= width and line.endswith("1.41]") == (width < widest)


def test_bold_ends_at_the_first_row_that_the_test_tells_from_the_best():
    """A larger value that is not told apart, since it varies more, would look like a mistake."""
    best = Best(lambda row: Value(row), "kl")

    def compared(metric, pairs):
        return [{"verdict": "worse" if b == 3.0 else "same"} for _, b in pairs]

    [leaders] = best.leaders([4.0, 1.0, 3.0, 2.0], lambda row: 0, compared)
    assert leaders.places == [1, 3] and [*leaders.compared] == [3, 2, 0] and leaders.tested


def test_a_page_has_as_many_columns_as_it_has_room_for():
    """Every spare column was left out as soon as there was one too many: a verdict stood without its difference."""
    columns = [Column(f"c{place}", str, spare=place if place % 2 else 0, key=place == 9) for place in range(10)]
    table = table_of("", [1], columns)
    assert [column.name for column in table.needed.columns] == ["c0", "c1", "c2", "c3", "c4", "c6", "c8", "c9"]
    assert table.with_columns(range(8)).needed.headings == [f"c{place}" for place in range(8)]
