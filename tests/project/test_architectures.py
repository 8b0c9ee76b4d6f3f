"""The page of architectures: what its benchmark finds for each, and that the page says so."""

import sys
from importlib import import_module

import pytest
import tiny_models
from paths import ROOT

PAGE = ROOT / "docs/reference/architectures.md"
QUICK = {"Longformer", "LFM2", "Gemma 4", "Whisper"}
EVERY = [*tiny_models.CAPTURED, *tiny_models.OTHERS]


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "architectures", raising=False)
    return import_module("architectures")


def on_page() -> dict[str, list[str]]:
    """The cells of each architecture on the page, by its name."""
    rows = [line.strip("|").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {name.strip(): [cell.strip() for cell in cells] for name, *cells in rows[2:]}


def test_the_page_has_every_architecture_that_tests_build():
    page = PAGE.read_text()
    assert [*on_page()] == EVERY
    assert all(name in page.rpartition("Refused by name")[2] for name in tiny_models.REFUSED)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in EVERY]
)
def test_an_architecture_gives_right_numbers_or_a_line_as_its_page_says(benchmark, tmp_path, name):
    found = benchmark.row(name, tmp_path)
    assert found.faults() == []
    layers, masks, *results = on_page()[name]
    assert (layers, masks) == (found.layers, found.masks)
    stated = [cell.startswith("[") for cell in results[1:]]  # a line in place of a number
    assert stated == [isinstance(found.results[command], str) for command in benchmark.COMMANDS[1:]]


def test_a_wrong_number_and_an_error_of_more_lines_are_faults(benchmark):
    right = {"doctor": 1e-7, "error": 1e-7, "inject": 3e-6, "decode": "model: it caps its scores at 2"}
    assert benchmark.Row("m", "0", "causal", 1e-7, 1e-6, right).faults() == []
    for command, wrong in (
        ("error", 1e-4),
        ("inject", 1e-4),
        ("decode", float("nan")),
        ("decode", "two\nlines"),
        ("error", ""),
    ):
        assert len(benchmark.Row("m", "0", "causal", 1e-7, 1e-6, {**right, command: wrong}).faults()) == 1
    assert len(benchmark.Row("m", "0", "causal", 1e-3, 1e-6, right).faults()) == 1
