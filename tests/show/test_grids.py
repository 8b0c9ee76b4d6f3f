"""Tables as data: typed cells from a frame, their signs and bold cells, and columns that are chosen by name."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from attnprobe.errors import UsageError
from attnprobe.frame.metric import METRICS
from attnprobe.show.catalogue.error import HEADS, TABLES
from attnprobe.show.grid import Cell, Selection, grids, legend
from attnprobe.show.notes import BAD, FAILED, OVER, ROUNDING, SKIPPED
from attnprobe.show.table import BUDGET, METHOD, SOUND, Column, Computed, Table, ratio_to
from attnprobe.show.writers.text import cell_text

ERROR = "output_spectral_relative"
MEAN = Column("mean", f"{ERROR}.mean", best="smaller")


def heads(method, values, d=16, **columns):
    """Rows of heads of a method, their windows 0, 1, 0, 1, …"""
    count = len(values)
    rows = pd.DataFrame(
        {
            **{"source": "", "scale_inputs": 1.0, "name": method, "method": method, "target": "softmax"},
            **{"reference": method in ("vmean", "lower-bound"), "family": "x", "status": "ok", "reason": pd.NA},
            **{"n": 64, "d": d, "layer": 0, "window": np.arange(count) % 2, "head": np.arange(count) // 2},
            **{"repeat": 0, "output_spectral": 1.0, ERROR: values, "bad_rows": 0.0, "guarded_rows": math.nan},
            **columns,
        }
    )
    return rows.astype({"d": "Int64", ERROR: "Float64", "reason": "string"})


def table(*columns, **facts):
    return Table("test", "Test", by=("name", "d"), columns=(METHOD, BUDGET, *columns), rivals=("d",), **facts)


def one_grid(*frames, columns=(MEAN,), **facts):
    (grid,) = grids(Selection.of(pd.concat(frames, ignore_index=True), table(*columns, **facts)))
    return grid


def column_of(grid, name):
    at = [column.name for column in grid.columns].index(name)
    return [line[at] for line in grid.cells]


# --- declared


@pytest.mark.parametrize(
    "column, message",
    [
        (Column("x", "output_spectrl_relative.mean"), "unknown metric 'output_spectrl_relative'; did you mean"),
        (Column("x", f"{ERROR}.men"), "unknown statistic 'men'; did you mean 'mean'"),
        (Column("x", f"{ERROR}.mean", low=f"{ERROR}.p01"), "unknown statistic 'p01'"),
        (Column("x", Computed(("drft.mean",), len), name="x"), "unknown metric 'drft'; did you mean 'drift'"),
    ],
)
def test_a_misspelt_statistic_raises_when_the_table_is_declared(column, message):
    with pytest.raises(ValueError, match=message):
        table(column)


def test_a_misspelt_column_of_the_frame_raises_when_the_table_is_filled():
    with pytest.raises(UsageError, match="unknown column of the frame 'familly'; did you mean 'family'"):
        grids(
            Selection.of(
                heads("a", [1.0]), Table("test", "Test", by=("name", "family"), columns=(Column("x", "familly"),))
            )
        )


@pytest.mark.parametrize(
    "facts",
    [
        {"heading": "a\nb\nc"},
        {"unit": "mm"},
        {"best": "least"},
        {"value": Computed((), len)},
        {"meaning": "x" * 101},
    ],
)
def test_a_wrong_column_is_refused(facts):
    with pytest.raises(ValueError, match="column"):
        Column(**{"heading": "x", "value": f"{ERROR}.mean", **facts})


def test_two_columns_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two columns are called"):
        table(MEAN, MEAN)
    with pytest.raises(ValueError, match="main='mean' is no column"):
        table(MEAN, main="mean")


@pytest.mark.parametrize("one", TABLES, ids=lambda one: one.name)
def test_every_column_of_a_catalogue_has_a_meaning(one):
    grid = legend(one)
    assert [line[0].value for line in grid.cells] == [column.name for column in one.every]
    assert all(line[2].value for line in grid.cells)


# --- cells


def test_cells_hold_the_statistics_of_their_group():
    values = [0.5, 0.25, 2.0, 1.0]
    spread = Column("median", f"{ERROR}.median", low=f"{ERROR}.p10", high=f"{ERROR}.p90")
    columns = (spread, MEAN, Column("max", f"{ERROR}.max"), Column("heads", f"{ERROR}.count", digits=0))
    grid = one_grid(heads("a", values), columns=columns)
    (line,) = grid.cells
    assert line[2].value == 0.75 and (line[2].low, line[2].high) == tuple(np.quantile(values, [0.1, 0.9]))
    assert [cell.value for cell in line[3:]] == [0.9375, 2.0, 4]
    assert [cell_text(*pair) for pair in zip(line, grid.columns, strict=True)] == [
        *("a", "16", "0.750 [0.33 – 1.7]", "0.938", "2.00", "4"),
    ]


def test_half_an_interval_is_students_over_windows():
    column = Column("mean", f"{ERROR}.mean", half=f"{ERROR}.half")
    values = [1.0, 2.0, 3.0, 6.0, 5.0, 4.0]
    cell = column_of(one_grid(heads("a", values, window=[0, 0, 1, 1, 2, 2]), columns=[column]), column.name)[0]
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem([1.5, 4.5, 4.5]))
    assert cell.half == pytest.approx((high - low) / 2, rel=1e-12)
    assert cell_text(cell, column) == "3.50 ± 4.3"
    alone = column_of(one_grid(heads("a", [1.0, 2.0], window=0), columns=[column]), column.name)[0]
    assert alone.half is None and cell_text(alone, column) == "1.50"


def test_infinity_is_shown_and_what_is_unknown_is_empty():
    column, tried = Column("max", f"{ERROR}.max"), Column("d", f"{ERROR}.median", limit="matrix_passes.max")
    frame = pd.concat([heads("a", [math.inf, 1.0]), heads("b", [pd.NA, pd.NA])])
    assert [cell_text(cell, column) for cell in column_of(one_grid(frame, columns=[column]), column.name)] == ["∞", ""]
    (cell,) = column_of(one_grid(heads("a", [math.inf] * 2, matrix_passes=64.0), columns=[tried]), tried.name)
    assert cell.value == math.inf and cell_text(cell, tried) == "> 64"


def test_units_signs_words_and_totals():
    frame = heads("a", [0.25, 0.25], seconds=0.0125, cache_bytes=3 * 2.0**20, loss_change=0.5, kind=True)
    columns = (
        Column("share", f"{ERROR}.mean", unit="%"),
        Column("ms", "seconds.mean", unit="ms"),
        Column("MiB", "cache_bytes.mean", unit="MiB", digits=2),
        Column("change", "loss_change.mean", signed=True),
        Column("inverted", "kind", words={True: "●", False: ""}),
        Column("of", f"{ERROR}.count", of="values", digits=0, words={1: ""}, name="of"),
        Column("half", f"{ERROR}.median", digits=None),
    )
    shown = Table("test", "Test", by=("name", "kind"), columns=columns)
    (grid,) = grids(Selection.of(pd.concat([frame, heads("b", [1.0], kind=False)]), shown))
    texts = [[cell_text(*pair) for pair in zip(line, grid.columns, strict=True)] for line in grid.cells]
    assert texts == [["25.0%", "12.5", "3.0", "+0.500", "●", "2/2", "0.25"], ["100%", "", "", "", "", "", "1"]]


def test_the_ratio_to_a_reference_is_of_the_same_place():
    column = Column("ratio", ratio_to(f"{ERROR}.median", "method == 'vmean'"), name="ratio")
    layers = [
        pd.concat([heads("a", [a, a], layer=at), heads("vmean", [v, v], d=pd.NA, layer=at)])
        for at, a, v in ((0, 1.0, 4.0), (1, 3.0, 2.0), (2, 1.0, 1e-6))
    ]
    filled = grids(Selection.of(pd.concat(layers), table(column, each=("layer",))))
    assert [[cell.value for cell in column_of(grid, "ratio")] for grid in filled] == [
        [0.25, 1.0],
        [1.5, 1.0],
        [None] * 2,
    ]
    assert [grid.where for grid in filled] == [f"layer {at}, 1 head, 2 windows" for at in range(3)]


def test_derived_columns_and_numbers_of_groups():
    frame = pd.concat(
        [heads("a", [1.0, 2.0, 3.0, 4.0], kl=[1.0, 2.0, 3.0, 5.0]), heads("b", [1.0, 2.0], kl=[2.0, 1.0])]
    )
    facts = {
        "derived": {"large": lambda rows: (rows[ERROR] > 2).astype(float)},
        "of_groups": {"rho": lambda rows: rows[ERROR].astype(float).corr(rows["kl"], "spearman")},
    }
    columns = Column("large", "large.sum", of="large.count", digits=0), Column("ρ", "rho", signed=True, digits=2)
    (grid,) = grids(Selection.of(frame, table(*columns, **facts)))
    assert [cell_text(line[2], grid.columns[2]) for line in grid.cells] == ["2/4", "0/2"]
    assert [cell_text(line[3], grid.columns[3]) for line in grid.cells] == ["+1.0", "-1.0"]


def test_a_frame_without_groups_is_shown_line_by_line():
    frame = pd.DataFrame({"name": ["a", "b"], "p": [0.04, math.nan], "low": [0.1, 0.2], "high": [0.3, 0.4]})
    shown = Table("pairs", "Pairs", columns=(METHOD, Column("difference", "p", low="low", high="high")))
    (grid,) = grids(Selection.of(frame, shown))
    assert grid.cells == [[Cell("a"), Cell(0.04, low=0.1, high=0.3)], [Cell("b"), Cell()]]


def test_a_column_without_values_is_left_out_of_all_grids():
    frame = pd.concat([heads("a", [1.0, 2.0], layer=0, kl=math.nan), heads("a", [1.0, 2.0], layer=1, kl=0.5)])
    names = [MEAN.name, "kl.mean", "drift.mean"]
    columns = [Column(name, name) for name in names]
    for grid in grids(Selection.of(frame, table(*columns, each=("layer",)))):
        assert [column.name for column in grid.columns] == ["name", "d", *names[:2]]


def test_a_table_of_what_was_not_measured_has_no_grid():
    assert HEADS.name == "error" and all(
        grids(Selection.of(heads("a", [1.0]).assign(kernel_dtype=pd.NA), one)) == [] for one in TABLES[1:3]
    )


def test_references_stand_last_and_methods_in_the_order_of_the_frame():
    frames = heads("vmean", [1.0], d=pd.NA), heads("b", [1.0]), heads("a", [1.0]), heads("b", [1.0], d=32)
    grid = one_grid(*frames)
    assert [tuple(keys.values()) for keys in grid.keys] == [("b", 16), ("a", 16), ("b", 32), ("vmean", None)]
    assert [cell.value for cell in column_of(grid, "name")] == ["b", "a", "b", "V-Mean (mean of V)"]


# --- signs, bold cells, notes


@pytest.mark.parametrize(
    "facts, flag",
    [
        ({"bad_rows": 2.0}, BAD),
        ({"bad_rows": 2.0, "guarded_rows": 2.0}, None),
        ({"realised_d": 16.8}, None),
        ({"realised_d": 17.0}, OVER),
        ({"status": "failed", "bad_rows": 2.0}, FAILED),
        ({"status": "diverged"}, FAILED),
        ({"status": "skipped"}, SKIPPED),
    ],
)
def test_a_line_has_the_sign_of_its_state(facts, flag):
    grid = one_grid(heads("a", [1.0, 2.0], **facts))
    assert grid.cells[0][0].flag is flag
    assert grid.flags == ({flag} if flag else set())


def test_a_number_that_rounding_decides_has_its_sign():
    frame = heads("a", [1.0, 2.0, 3.0, 90.0], rounded_rows=[0.0, 0.0, 0.0, 1.0])
    columns = MEAN, Column("median", f"{ERROR}.median"), Column("max", f"{ERROR}.max")
    grid = one_grid(frame, columns=columns)
    assert [cell.flag for cell in grid.cells[0][2:]] == [ROUNDING, None, ROUNDING]
    ratio = Column("ratio", ratio_to(f"{ERROR}.mean", "name == 'a'"), name="ratio")
    assert column_of(one_grid(frame, columns=[ratio]), "ratio")[0].flag is ROUNDING


def test_an_open_interval_has_the_sign_of_rounding():
    column = Column("matrix", "matrix_spectral_relative.median", flag="matrix_open.max")
    frames = [
        heads(name, [1.0, 1.0], matrix_spectral_relative=0.5, matrix_open=flags)
        for name, flags in (("a", [False, True]), ("b", [False, False]))
    ]
    frames = [frame.astype({"matrix_open": "boolean"}) for frame in frames]
    assert [cell.flag for cell in column_of(one_grid(*frames, columns=[column]), column.name)] == [ROUNDING, None]


def test_the_best_of_each_budget_is_bold_among_lines_without_a_sign():
    frames = (
        *(heads("best", [0.5], d=16), heads("next", [0.6], d=16), heads("next", [0.2], d=32)),
        *(heads("bad", [0.1], d=16, bad_rows=1.0), heads("over", [0.1], d=16, realised_d=20.0)),
        *(heads("failed", [0.1], d=16, status="failed"), heads("rounding", [0.1], d=16, rounded_rows=1.0)),
        *(heads("vmean", [0.1], d=pd.NA), heads("lower-bound", [0.1], d=16)),
    )
    grid = one_grid(*frames)
    bold = [keys for keys, cell in zip(grid.keys, column_of(grid, MEAN.name), strict=True) if cell.bold]
    assert bold == [{"name": "best", "d": 16}]  # at d = 32 nothing competes
    assert grid.rule == "smallest mean at each d among methods without a sign"
    apart = one_grid(*frames, heads("topk", [0.1], d=16), competes=f"{SOUND} and method != 'topk'")
    assert apart.rule == "smallest mean at each d among methods without a sign except topk"
    assert one_grid(heads("a", [1.0])).rule == ""
    more = one_grid(*frames, columns=[MEAN, Column("max", f"{ERROR}.max", best="smaller")])
    assert more.rule == "best of a column at each d among methods without a sign"


def test_what_no_method_reaches_is_not_bold():
    grid = one_grid(heads("a", [math.inf]), heads("b", [math.inf]))
    assert not any(cell.bold for cell in column_of(grid, MEAN.name))


def test_the_largest_is_best_where_larger_is_better():
    column = Column("mass", "mass.mean", best="larger")
    grid = one_grid(heads("a", [1.0], mass=0.5), heads("b", [1.0], mass=0.75), columns=[column])
    assert [cell.bold for cell in column_of(grid, "mass.mean")] == [False, True]


def test_budgets_of_a_method_with_one_reason_share_a_note():
    frames = [heads("a", [pd.NA], d=d, status="skipped", reason="d is too small") for d in (2, 4)]
    assert one_grid(*frames, heads("b", [1.0])).reasons == ("– a, d = 2, 4: d is too small",)


def test_a_grid_has_the_sentence_and_notes_of_its_rows():
    facts = {"sentence": lambda rows: f"{len(rows)} rows", "notes": lambda rows: ["a note"], "each": ("layer",)}
    frame = pd.concat([heads("a", [1.0, 2.0]), heads("a", [1.0], layer=1)])
    filled = grids(Selection.of(frame, table(MEAN, **facts)))
    assert [(grid.sentence, grid.reasons) for grid in filled] == [("2 rows", ("a note",)), ("1 rows", ("a note",))]


# --- chosen columns


def test_columns_are_chosen_by_name_and_by_any_statistic():
    shown = table(MEAN, Column("max", f"{ERROR}.max"), more=(Column("KL", "kl.mean"),))

    def names(*chosen):
        return [column.name for column in shown.chosen(chosen)]

    assert names("kl.mean") == ["name", "d", "kl.mean"]
    assert names("kl") == ["name", "d", "kl.mean"]
    assert names("drift") == ["name", "d", "drift.median"]
    assert names("drift.p90", f"{ERROR}.max") == ["name", "d", "drift.p90", f"{ERROR}.max"]
    assert names("+kl", "+drift.max") == ["name", "d", MEAN.name, f"{ERROR}.max", "kl.mean", "drift.max"]
    for name in ("klx", "kl.men"):
        with pytest.raises(UsageError, match="did you mean"):
            shown.chosen([name])


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_can_be_a_column(metric):
    (column,) = Table("test", "Test", by=("name",)).chosen([metric])
    assert column.value == f"{metric}.median" and column.meaning.startswith("median: ")


# --- attnprobe error


@pytest.fixture(scope="module")
def measured():
    draw = np.random.default_rng(0)
    frames = [
        heads(method, draw.lognormal(-1, 1, 24), d, n=4096, matrix_spectral_relative=0.5, matrix_open=False)
        for method, d in (("vmean", pd.NA), ("lower-bound", 128), ("skyformer", 128))
    ]
    frame = pd.concat(frames, ignore_index=True).astype({"matrix_open": "boolean"})
    bad = frame["method"] == "skyformer"
    return frame.assign(
        bad_rows=np.where(bad, 3.0, 0.0),
        output_spectral=np.where(frame["method"] == "lower-bound", 0.0, 1.0),
        layer=frame["head"] % 2,
        kernel_dtype=pd.NA,
    )


def test_the_default_table_of_errors_has_eight_columns(measured):
    (grid,) = grids(Selection.of(measured, HEADS))
    headings = [column.title for column in grid.columns]
    assert headings == [
        *("method", "d", "median [p10 – p90]", "mean", "max", "median / V-Mean's", "matrix error median", "bad rows"),
    ]
    assert [cell.value for cell in column_of(grid, "name")] == [
        "skyformer",
        "V-Mean (mean of V)",
    ]  # no bound of 0
    median = measured.groupby("method")[ERROR].median()
    assert column_of(grid, "median_over_vmean")[0].value == pytest.approx(median["skyformer"] / median["vmean"])
    assert column_of(grid, "bad_rows.sum")[0].value == 72
    assert grid.where == "n = 4096, layers 0-1, 12 heads, 2 windows"


def test_tokens_that_repeat_others_are_noted(measured):
    assert [grid.reasons for grid in grids(Selection.of(measured, HEADS))] == [()]
    (grid,) = grids(Selection.of(measured.assign(duplicates=np.where(measured["layer"] == 0, 7, 5)), HEADS))
    assert grid.reasons == ("7 tokens repeat another token's Q, K and V",)


def test_a_layer_has_its_own_table_on_request(measured):
    assert [grid.where for grid in grids(Selection.of(measured, HEADS), each=["layer"])] == [
        f"n = 4096, layer {layer}, 6 heads, 2 windows" for layer in (0, 1)
    ]


def test_the_lines_of_a_table_have_all_statistics(measured):
    lines = Selection.of(measured, HEADS).lines()
    assert lines["name"].tolist() == ["skyformer", "vmean"]
    assert f"{ERROR}.p90" in lines and "matrix_spectral_relative.max" in lines


LIGHT = """
import sys
from attnprobe.show import grid, table, writers
from attnprobe.show.catalogue import error
assert not {"pandas", "numpy", "rich", "torch", "matplotlib", "scipy"} & set(sys.modules), sys.modules.keys()
"""


def test_a_catalogue_imports_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
